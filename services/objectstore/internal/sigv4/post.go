package sigv4

import (
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// Form has the fields of a browser's upload that say who allowed it.
type Form struct {
	Policy, Algorithm, Credential, Date, Signature string
	// Token is that of temporary credentials, of which this store has none.
	Token string
}

// formFields are the fields that go together, by their names in a form.
func (f Form) fields() [5]struct{ name, value string } {
	return [5]struct{ name, value string }{
		{"policy", f.Policy}, {"x-amz-signature", f.Signature}, {"x-amz-credential", f.Credential},
		{"x-amz-date", f.Date}, {"x-amz-algorithm", f.Algorithm},
	}
}

// IsAnonymous reports whether a form has no signature.
func (f Form) IsAnonymous() bool {
	for _, x := range f.fields() {
		if x.value != "" {
			return false
		}
	}
	return f.Token == ""
}

// VerifyForm checks the signature of a form, which covers its policy as it was sent: base64. What the policy allows is for
// the caller to decide. Errors are *s3err.Error.
func (v *Verifier) VerifyForm(f Form) (*Auth, error) {
	for _, x := range f.fields() {
		// An empty policy is a policy, and a bad one.
		if x.value == "" && x.name != "policy" {
			return nil, s3err.Argument(x.name, "", "Bucket POST must contain a field named '%s'.  If it is specified, please check the order of the fields.", x.name)
		}
	}
	if f.Token != "" {
		return nil, s3err.InvalidToken // there are only permanent keys
	}
	if f.Algorithm != algorithm {
		return nil, s3err.Argument("X-Amz-Algorithm", f.Algorithm, "Only AWS4-HMAC-SHA256 is supported")
	}
	c := claim{presigned: true, expires: maxPresign, time: f.Date, signature: f.Signature}
	if err := c.parseCredential(f.Credential, func(format string, args ...any) *s3err.Error {
		return s3err.Argument("x-amz-credential", f.Credential, format, args...)
	}); err != nil {
		return nil, err
	}
	t, err := time.Parse(dateFormat, f.Date)
	if err != nil {
		return nil, s3err.Argument("X-Amz-Date", f.Date, "X-Amz-Date must be formated via ISO8601 Long format")
	}
	switch age := v.now().Sub(t); {
	case !strings.HasPrefix(f.Date, c.date):
		return nil, s3err.Argument("x-amz-credential", f.Credential, "Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", c.date, f.Date[:8])
	case age < -maxSkew:
		return nil, s3err.RequestTimeTooSkewed
	case age > maxPresign: // AWS's keys of a day are good for seven
		return nil, s3err.AccessDenied.With("Invalid according to Policy: Policy expired.")
	}
	if err := v.checkRegion(c, func(format string, args ...any) *s3err.Error {
		return s3err.Argument("x-amz-credential", f.Credential, format, args...)
	}); err != nil {
		return nil, err
	}
	secret, ok := v.secret(c.access)
	if !ok {
		return nil, s3err.InvalidAccessKeyID.Detail("AWSAccessKeyId", c.access)
	}
	want := v.signingKey(c, secret).sign([]byte(f.Policy))
	if subtle.ConstantTimeCompare(want[:], []byte(f.Signature)) != 1 {
		return nil, s3err.SignatureDoesNotMatch.Detail("AWSAccessKeyId", c.access).Detail("StringToSign", f.Policy).
			Detail("SignatureProvided", f.Signature).Detail("StringToSignBytes", strings.TrimSpace(fmt.Sprintf("% x", f.Policy)))
	}
	return &Auth{AccessKey: c.access}, nil
}

// checkRegion refuses a signature that was made for another region, where the store takes only those of its own.
func (v *Verifier) checkRegion(c claim, malformed func(string, ...any) *s3err.Error) error {
	if v.Region == "" || c.region == v.Region {
		return nil
	}
	return malformed("the region %q is wrong; expecting %q", c.region, v.Region).Detail("Region", v.Region)
}
