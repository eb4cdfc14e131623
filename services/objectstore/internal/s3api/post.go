package s3api

import (
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/postpolicy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// postObject serves a browser's upload of a form. The policy in it, which its signature covers, says what may be in the
// form; it is checked before a byte of the file is read.
func (c *call) postObject() error {
	pace := c.pace()
	// Nobody knows yet who sends this: it has the time of one piece in all.
	pace.by = time.Now().Add(c.IdleTimeout) // a socket deadline is wall time by nature
	f, err := c.readForm(pace)
	if err != nil {
		return err
	}
	allowed, err := c.authenticateForm(f)
	if err != nil {
		return err
	}
	pace.by, pace.set, pace.rate = time.Time{}, time.Time{}, c.leastRate() // of who has signed the form, if anybody has
	if err := c.checkOwner(); err != nil {
		return err
	}
	if c.r.Header, err = f.header(c.r.Header); err != nil {
		return err
	}
	if err := c.refuseHeaders("PutObject", c.r.Method, c.r.Header); err != nil {
		return err
	}
	o, cond, err := c.newObject()
	if err != nil {
		return err
	}
	if o.Tags, err = c.formTags(f); err != nil {
		return err
	}
	if err := c.checkConditionEarly(cond); err != nil {
		return err
	}
	if err := readStoredHeaders(c.r.Header, &o); err != nil {
		return err
	}
	d := &digest{}
	if err := d.md5Header(c.r.Header); err != nil {
		return err
	}
	if err := d.checksum(c.r.Header, sigv4.Unsigned); err != nil {
		return err
	}
	d.byDefault()
	u, err := c.receiveFormFile(f, d, pace, allowed)
	if err != nil {
		return err
	}
	defer u.release()
	if o, err = c.store(o, u, cond); err != nil {
		return err
	}
	return c.answerForm(f, o)
}

// authenticateForm finds out who signed a form, and checks that its policy allows the fields.
func (c *call) authenticateForm(f *form) (*postpolicy.Policy, error) {
	c.form = f
	signed := sigv4.Form{
		Policy: f.get("policy"), Algorithm: f.get("x-amz-algorithm"), Credential: f.get("x-amz-credential"),
		Date: f.get("x-amz-date"), Signature: f.get("x-amz-signature"), Token: f.get("x-amz-security-token"),
	}
	if _, ok := f.fields["policy"]; !ok && !signed.IsAnonymous() {
		return nil, s3err.Argument("policy", "", "Bucket POST must contain a field named 'policy'.  If it is specified, please check the order of the fields.")
	}
	allowed := &postpolicy.Policy{Max: -1}
	var err error
	if signed.IsAnonymous() {
		c.auth, c.user, c.anonymous = &sigv4.Auth{}, nobody, true
	} else {
		if c.auth, err = c.Server.auth.VerifyForm(signed); err != nil {
			return nil, err
		}
		if err := c.identify(); err != nil {
			return nil, err
		}
		if allowed, err = postpolicy.Parse(signed.Policy); err != nil {
			return nil, err
		}
	}
	if c.key, err = f.key(); err != nil || c.anonymous {
		return allowed, err
	}
	// The bucket and the key are those of the upload, whatever the form says.
	fields := make(map[string]string, len(f.fields)+1)
	for name, v := range f.fields {
		fields[name] = v
	}
	fields["bucket"], fields["key"] = c.bucket, c.key
	return allowed, allowed.Check(c.Now(), fields)
}

// formTags reads the tags of a form, which are XML there.
func (c *call) formTags(f *form) ([]engine.Pair, error) {
	text := f.get("tagging")
	if text == "" {
		return nil, nil
	}
	if err := c.authorize("PutObjectTagging", c.bucket, c.key, nil); err != nil {
		return nil, err
	}
	var in tagging
	if s3xml.Decode([]byte(text), &in) != nil {
		return nil, s3err.MalformedXML
	}
	return checkTags(pairsOf(in.TagSet.Tag))
}

// receiveFormFile reads and verifies the file of a form, whose size is known only at its end.
func (c *call) receiveFormFile(f *form, d *digest, pace *pacedReader, allowed *postpolicy.Policy) (*upload, error) {
	most := c.MaxObjectBytes
	if allowed.Max >= 0 {
		most = min(most, allowed.Max)
	}
	// The rest of the body holds the file, the boundary behind it, and what is ignored. Of what was read some may be of the
	// file already.
	bound := min(c.r.ContentLength, c.r.ContentLength-f.body.n+maxFormHead)
	u := &upload{}
	var err error
	if bound <= c.Engine.InlineBytes() {
		err = c.receiveFormInline(u, d, f.file, bound, pace)
	} else {
		err = c.receiveFormBlob(u, d, f.file, most, pace)
	}
	if err == nil {
		err = allowed.CheckSize(u.size)
	}
	if err == nil && u.size > c.MaxObjectBytes {
		err = s3err.EntityTooLarge.Detail("ProposedSize", strconv.FormatInt(u.size, 10)).Detail("MaxSizeAllowed", strconv.FormatInt(c.MaxObjectBytes, 10))
	}
	if err == nil {
		u.etag = hex.EncodeToString(d.gotMD5[:])
		u.sum, err = d.verify(nil)
	}
	if err != nil {
		u.release()
		return nil, err
	}
	return u, nil
}

// receiveFormInline reads a file of at most bound bytes into memory.
func (c *call) receiveFormInline(u *upload, d *digest, file io.Reader, bound int64, pace *pacedReader) error {
	s, err := c.reserve(max(bound, 1), pace)
	if err != nil {
		return err
	}
	u.share, u.buffers, u.buffer = s, &c.buffers, c.buffer(int(bound))
	for {
		if u.size == bound {
			return s3err.MalformedPOST // no boundary fits behind it
		}
		n, err := file.Read((*u.buffer)[u.size:bound])
		u.size += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return formFileError(err)
		}
	}
	u.body = (*u.buffer)[:u.size]
	d.whole(u.body)
	return nil
}

// receiveFormBlob writes a file into a body of its own, and stops at the first byte beyond most.
func (c *call) receiveFormBlob(u *upload, d *digest, file io.Reader, most int64, pace *pacedReader) error {
	s, err := c.reserve(engine.BlockSize, pace)
	if err != nil {
		return err
	}
	u.share, u.buffers, u.buffer = s, &c.buffers, c.buffer(128<<10)
	if u.blob, err = c.Engine.NewBlob(c.bucket, c.key); err != nil {
		return err
	}
	d.begin()
	for u.size <= most {
		n, err := file.Read(*u.buffer)
		p := (*u.buffer)[:n]
		u.size += int64(n)
		d.write(p)
		if u.size <= most {
			if _, werr := u.blob.Write(p); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return formFileError(err)
		}
	}
	d.end()
	return nil
}

// formFileError is the error of a file that ends without a boundary, or of its body.
func formFileError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return s3err.IncompleteBody
	}
	return formError(err)
}

// answerForm answers as the form asks.
func (c *call) answerForm(f *form, o engine.Object) error {
	location := c.objectURL()
	c.setHeader("ETag", `"`+o.ETag+`"`)
	c.setMade(o.Version)
	c.setHeader("Location", location)
	c.setEncryption(o.Sealed())
	c.setExpiration(&o)
	c.setChecksum(o.Checksum)
	if to := redirectOf(f, c.bucket, o); to != "" {
		c.setHeader("Location", to)
		c.w.WriteHeader(http.StatusSeeOther)
		return nil
	}
	switch f.get("success_action_status") {
	case "200":
		c.w.WriteHeader(http.StatusOK)
	case "201":
		out, err := xml.Marshal(struct {
			XMLName                     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ PostResponse"`
			Location, Bucket, Key, ETag string
		}{Location: location, Bucket: c.bucket, Key: o.Key, ETag: `"` + o.ETag + `"`})
		if err != nil {
			return err
		}
		c.setHeader("Content-Type", "application/xml")
		c.w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(c.w, xml.Header+string(out)) // the client went away: nothing to do
	default:
		c.w.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// redirectOf gives the address that a form names for its success, with what was stored; "" for none.
func redirectOf(f *form, bucket string, o engine.Object) string {
	text := f.get("success_action_redirect")
	if text == "" {
		text = f.get("redirect")
	}
	u, err := url.Parse(text)
	if text == "" || err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "" // as on AWS, the status counts then
	}
	q := u.Query()
	q.Set("bucket", bucket)
	q.Set("key", o.Key)
	q.Set("etag", `"`+o.ETag+`"`)
	u.RawQuery = q.Encode()
	return u.String()
}

// objectURL is the address of the object, as the client has named the store.
func (c *call) objectURL() string {
	u := url.URL{Scheme: "http", Host: c.r.Host, Path: "/" + c.bucket + "/" + c.key}
	if c.r.TLS != nil {
		u.Scheme = "https"
	}
	if c.Domain != "" && strings.HasPrefix(strings.ToLower(c.r.Host), c.bucket+".") {
		u.Path = "/" + c.key
	}
	return u.String()
}
