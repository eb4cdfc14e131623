package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"hash"
	"net/http"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	algorithm   = "AWS4-HMAC-SHA256"
	dateFormat  = "20060102T150405Z"
	maxSkew     = 15 * time.Minute
	maxPresign  = 7 * 24 * time.Hour
	maxKeyCache = 1024
)

// Payload says how the signature protects the body of a request.
type Payload int

// The payload modes of x-amz-content-sha256.
const (
	Unsigned              Payload = iota // UNSIGNED-PAYLOAD
	Hashed                               // the hash of the body
	StreamSigned                         // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
	StreamSignedTrailer                  // STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER
	StreamUnsignedTrailer                // STREAMING-UNSIGNED-PAYLOAD-TRAILER
)

// Auth is the result of a verified signature.
type Auth struct {
	AccessKey string
	Payload   Payload
	SHA256    []byte // of the body, when Payload is Hashed
	Presigned bool   // the signature came in the query
	key       []byte
	date      string
	scope     string
	signature string
}

// Verifier checks signatures. It is safe for concurrent use.
type Verifier struct {
	// Region is the only one whose signatures are taken; empty: all are.
	Region string

	secret func(accessKey string) (string, bool)
	now    func() time.Time

	mu   sync.RWMutex
	keys map[keyID]*signingKey
}

type keyID struct{ access, scope string }

// New makes a verifier. secret gives the secret of an access key.
func New(secret func(accessKey string) (string, bool), now func() time.Time) *Verifier {
	return &Verifier{secret: secret, now: now, keys: map[keyID]*signingKey{}}
}

// claim is the signature of a request and what it says of itself; nothing in it is verified.
type claim struct {
	access, date, region, service, scope string // of the credential
	signed                               []string
	signature                            string
	time                                 string
	presigned                            bool
	expires                              time.Duration
}

// Verify checks the signature of a request. Errors are *s3err.Error.
func (v *Verifier) Verify(r *http.Request) (*Auth, error) {
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, s3err.InvalidURI
	}
	c, err := parseClaim(r, query)
	if err != nil {
		return nil, err
	}
	malformed := malformedHeader
	if c.presigned {
		malformed = malformedQuery
	}
	if err := v.checkRegion(c, malformed); err != nil {
		return nil, err
	}
	if err := v.checkTime(c); err != nil {
		return nil, err
	}
	if err := checkSigned(r, c); err != nil {
		return nil, err
	}
	// The cheap checks come first: they need no key, and their errors tell nothing about keys.
	a := &Auth{AccessKey: c.access, Presigned: c.presigned, date: c.time, scope: c.scope, signature: c.signature}
	payload, err := a.payload(r, c, query)
	if err != nil {
		return nil, err
	}
	secret, ok := v.secret(c.access)
	if !ok {
		return nil, s3err.InvalidAccessKeyID.Detail("AWSAccessKeyId", c.access)
	}
	key := v.signingKey(c, secret)
	a.key = key.bytes
	want := key.sign(stringToSign(r, c, query, payload))
	if subtle.ConstantTimeCompare(want[:], []byte(c.signature)) != 1 {
		return nil, s3err.SignatureDoesNotMatch
	}
	return a, nil
}

func sign(key, text []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write(text)
	return hex.EncodeToString(m.Sum(nil))
}

func parseClaim(r *http.Request, query []param) (c claim, err error) {
	get := func(name string) string {
		for _, p := range query {
			if p.name == name {
				return p.value
			}
		}
		return ""
	}
	auth := r.Header.Get("Authorization")
	presigned := get("X-Amz-Algorithm") != "" || get("X-Amz-Signature") != ""
	// A URL presigned with Signature Version 2 gets a clear error, as its header form does below.
	if get("AWSAccessKeyId") != "" && get("Signature") != "" {
		return c, errUnsupportedMechanism // a URL that was presigned with Signature Version 2
	}
	switch {
	case auth != "" && presigned:
		return c, s3err.InvalidArgument.With("Only one auth mechanism allowed")
	case presigned:
		return parseQueryClaim(get)
	case auth == "":
		return c, s3err.AccessDenied
	}
	if err := c.parseHeader(auth); err != nil {
		return c, err
	}
	if c.time = r.Header.Get("X-Amz-Date"); c.time == "" {
		t, err := parseDate(r.Header.Get("Date"))
		if err != nil {
			return c, errNoDate
		}
		c.time = t.UTC().Format(dateFormat)
	}
	return c, nil
}

var errNoDate = s3err.AccessDenied.With("AWS authentication requires a valid Date or x-amz-date header.")

func malformedHeader(format string, args ...any) *s3err.Error {
	return s3err.AuthHeaderMalformed.With("The authorization header is malformed; "+format, args...)
}

// parseHeader reads an Authorization header: the algorithm and three components, in AWS's order.
func (c *claim) parseHeader(auth string) error {
	kind, rest, ok := strings.Cut(auth, " ")
	switch {
	case !ok:
		return s3err.Argument("Authorization", auth, "Authorization header is invalid -- one and only one ' ' (space) required.")
	case kind == "AWS":
		return errUnsupportedMechanism
	case kind != algorithm:
		return s3err.Argument("Authorization", kind, "Unsupported Authorization Type")
	}
	parts := [3]struct{ name, value string }{{name: "Credential"}, {name: "SignedHeaders"}, {name: "Signature"}}
	if strings.Count(rest, ",") != len(parts)-1 {
		return malformedHeader("the authorization header requires three components: Credential, SignedHeaders, and Signature.")
	}
	i := 0
	for part := range strings.SplitSeq(rest, ",") {
		part = strings.TrimSpace(part)
		name, value, ok := strings.Cut(part, "=")
		if !ok || strings.Contains(value, "=") {
			return malformedHeader("the authorization component %q is malformed.", part)
		}
		if name != parts[i].name || value == "" {
			return malformedHeader("missing %s.", parts[i].name)
		}
		parts[i].value = value
		i++
	}
	if err := c.parseCredential(parts[0].value, malformedHeader); err != nil {
		return err
	}
	c.signed, c.signature = strings.Split(parts[1].value, ";"), parts[2].value
	return nil
}

// errUnsupportedMechanism answers requests with Signature Version 2, as AWS does in regions that
// never served it.
var errUnsupportedMechanism = s3err.InvalidRequest.With("The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.")

// parseDate reads a Date header: an HTTP date, or one of RFC 5322, whose zone may be
// numeric; old mail libraries write "-0000".
func parseDate(s string) (time.Time, error) {
	if t, err := http.ParseTime(s); err == nil {
		return t, nil
	}
	return mail.ParseDate(s)
}

func malformedQuery(format string, args ...any) *s3err.Error {
	return s3err.AuthQueryMalformed.With("Error parsing the X-Amz-Credential parameter; "+format, args...)
}

var errQueryIncomplete = s3err.AuthQueryMalformed.With("Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.")

func parseQueryClaim(get func(string) string) (c claim, err error) {
	c.presigned = true
	c.signature, c.time = get("X-Amz-Signature"), get("X-Amz-Date")
	credential, headers, expires := get("X-Amz-Credential"), get("X-Amz-SignedHeaders"), get("X-Amz-Expires")
	kind := get("X-Amz-Algorithm")
	switch {
	case strings.HasPrefix(kind, "AWS4-ECDSA-"):
		return c, s3err.AuthQueryMalformed.With("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"")
	case kind != "" && kind != algorithm:
		return c, s3err.AuthQueryMalformed.With("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256 and AWS4-ECDSA-P256-SHA256\"")
	case kind == "", credential == "", headers == "", c.signature == "", c.time == "", expires == "":
		return c, errQueryIncomplete
	}
	if err := c.parseCredential(credential, malformedQuery); err != nil {
		return c, err
	}
	c.signed = strings.Split(headers, ";")
	secs, perr := strconv.ParseInt(expires, 10, 32)
	switch {
	case perr != nil:
		return c, s3err.AuthQueryMalformed.With("X-Amz-Expires should be a number")
	case secs < 0:
		return c, s3err.AuthQueryMalformed.With("X-Amz-Expires must be non-negative")
	case time.Duration(secs)*time.Second > maxPresign:
		return c, s3err.AuthQueryMalformed.With("X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds")
	case get("X-Amz-Security-Token") != "":
		return c, s3err.InvalidToken // there are only permanent keys
	}
	c.expires = time.Duration(secs) * time.Second
	return c, nil
}

func (c *claim) parseCredential(s string, malformed func(string, ...any) *s3err.Error) error {
	p := strings.Split(s, "/")
	switch {
	case len(p) != 5 || p[0] == "":
		return malformed("the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")
	case p[3] != "s3":
		return malformed("incorrect service %q. This endpoint belongs to \"s3\".", p[3])
	case p[4] != "aws4_request":
		return malformed("incorrect terminal %q. This endpoint uses \"aws4_request\".", p[4])
	}
	if !isDay(p[1]) {
		return malformed("incorrect date format %q. This date in the credential must be in the format \"yyyyMMdd\".", p[1])
	}
	c.access, c.date, c.region, c.service = p[0], p[1], p[2], p[3]
	c.scope = s[len(p[0])+1:]
	return nil
}

func isDay(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) == 8
}

func (v *Verifier) checkTime(c claim) error {
	t, err := time.Parse(dateFormat, c.time)
	switch {
	case err != nil && c.presigned:
		return s3err.AuthQueryMalformed.With("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
	case err != nil:
		return errNoDate
	case !strings.HasPrefix(c.time, c.date) && c.presigned:
		return s3err.AuthQueryMalformed.With("Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", c.date, c.time[:8])
	case !strings.HasPrefix(c.time, c.date):
		return malformedHeader("Invalid credential date. Date is not the same as X-Amz-Date.")
	}
	age := v.now().Sub(t)
	switch {
	case age < -maxSkew, !c.presigned && age > maxSkew:
		return s3err.RequestTimeTooSkewed
	case c.presigned && age > c.expires:
		return s3err.AccessDenied.With("Request has expired.").
			Detail("X-Amz-Expires", strconv.Itoa(int(c.expires/time.Second))).
			Detail("Expires", t.Add(c.expires).Format(time.RFC3339)).Detail("ServerTime", v.now().UTC().Format(time.RFC3339))
	}
	return nil
}

// checkSigned refuses a request whose host, x-amz-* or condition headers are not covered.
func checkSigned(r *http.Request, c claim) error {
	var missing []string
	if !slices.Contains(c.signed, "host") {
		missing = append(missing, "host")
	}
	for name := range r.Header {
		if mustBeSigned(name) && !slices.ContainsFunc(c.signed, func(s string) bool { return isLowerOf(s, name) }) {
			missing = append(missing, strings.ToLower(name))
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	return s3err.AccessDenied.With("There were headers present in the request which were not signed").
		Detail("HeadersNotSigned", strings.Join(missing, ", "))
}

// payload reads how the body is protected and gives the text that the signature covers in its
// place.
func (a *Auth) payload(r *http.Request, c claim, query []param) (string, error) {
	text := r.Header.Get("X-Amz-Content-Sha256")
	if text == "" && c.presigned {
		for _, p := range query {
			if strings.EqualFold(p.name, "X-Amz-Content-Sha256") {
				text = p.value
			}
		}
		if text == "" {
			text = "UNSIGNED-PAYLOAD"
		}
	}
	switch text {
	case "":
		return "", s3err.InvalidRequest.With("Missing required header for this request: x-amz-content-sha256")
	case "UNSIGNED-PAYLOAD":
		a.Payload = Unsigned
	case "STREAMING-AWS4-HMAC-SHA256-PAYLOAD":
		a.Payload = StreamSigned
	case "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER":
		a.Payload = StreamSignedTrailer
	case "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
		a.Payload = StreamUnsignedTrailer
	default:
		sum, err := hex.DecodeString(text)
		if err != nil || len(sum) != sha256.Size || strings.ToLower(text) != text {
			return "", s3err.Argument("x-amz-content-sha256", text, "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER or a valid sha256 value.")
		}
		a.Payload, a.SHA256 = Hashed, sum
	}
	return text, nil
}

// signingKey signs for one credential on one day in one region.
type signingKey struct {
	secret string // that it was made of
	bytes  []byte
	// macs are HMACs that have hashed the key already, which is a third of a signature's work.
	macs sync.Pool
}

// sign gives the signature in hexadecimal digits.
func (k *signingKey) sign(text []byte) (digits [2 * sha256.Size]byte) {
	m, ok := k.macs.Get().(hash.Hash)
	if !ok {
		m = hmac.New(sha256.New, k.bytes)
	}
	m.Reset()
	m.Write(text)
	var sum [sha256.Size]byte
	hex.Encode(digits[:], m.Sum(sum[:0]))
	k.macs.Put(m)
	return digits
}

func (v *Verifier) signingKey(c claim, secret string) *signingKey {
	id := keyID{c.access, c.scope}
	v.mu.RLock()
	key := v.keys[id]
	v.mu.RUnlock()
	if key != nil && key.secret == secret { // a secret that was replaced must not sign any more
		return key
	}
	mac := func(key []byte, s string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(s))
		return m.Sum(nil)
	}
	key = &signingKey{secret: secret, bytes: mac(mac(mac(mac([]byte("AWS4"+secret), c.date), c.region), c.service), "aws4_request")}
	v.mu.Lock()
	if len(v.keys) >= maxKeyCache {
		clear(v.keys) // a key is cheap to compute again; this only bounds the memory
	}
	// The credential is a part of the request's header, which should not stay for it.
	v.keys[keyID{strings.Clone(id.access), strings.Clone(id.scope)}] = key
	v.mu.Unlock()
	return key
}

func stringToSign(r *http.Request, c claim, query []param, payload string) []byte {
	b := make([]byte, 0, 1024)
	b = append(append(b, r.Method...), '\n')
	b = append(appendPath(b, r), '\n')
	b = append(appendQuery(b, query), '\n')
	for _, name := range c.signed {
		val, _ := headerValue(r, name)
		b = append(append(append(append(b, name...), ':'), val...), '\n')
	}
	b = append(b, '\n')
	for i, name := range c.signed {
		if i > 0 {
			b = append(b, ';')
		}
		b = append(b, name...)
	}
	b = append(b, '\n')
	b = append(b, payload...)
	sum := sha256.Sum256(b)
	out := make([]byte, 0, 160)
	out = append(append(out, algorithm+"\n"...), c.time...)
	out = append(append(append(out, '\n'), c.scope...), '\n')
	return hex.AppendEncode(out, sum[:])
}

// SignedAt is the time that a request was signed, by its own word; zero when it was not.
func (a *Auth) SignedAt() time.Time {
	t, _ := time.Parse(dateFormat, a.date) // it was read before; an anonymous request has none
	return t
}
