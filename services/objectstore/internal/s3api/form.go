package s3api

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	// maxFormFields bounds the names and values of a form, bytes, as AWS does.
	maxFormFields = 20 << 10
	// maxFormHead bounds all that comes before the file, bytes: with boundaries and the headers of the fields.
	maxFormHead = 256 << 10
)

// form is the body of a browser's upload, up to the file.
type form struct {
	fields map[string]string // by name, in lower case
	file   *multipart.Part
	body   *countedBody
}

func (f *form) get(name string) string { return f.fields[name] }

// countedBody counts what was read of a request's body, and bounds it until the file comes.
type countedBody struct {
	r       io.Reader
	n, most int64 // most 0: no bound
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.most > 0 && b.n >= b.most {
		return 0, s3err.MaxPostPreData
	}
	n, err := b.r.Read(p)
	b.n += int64(n)
	return n, err
}

// readForm reads the fields of a form. Whatever follows the file is ignored, as on AWS.
func (c *call) readForm(body io.Reader) (*form, error) {
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	switch {
	case kind != "multipart/form-data":
		return nil, s3err.PreconditionFailed.Failed("Bucket POST must be of the enclosure-type multipart/form-data")
	case err != nil || params["boundary"] == "":
		return nil, s3err.MalformedPOST
	case c.r.ContentLength < 0:
		return nil, s3err.MissingContentLength
	}
	f := &form{fields: map[string]string{}, body: &countedBody{r: body, most: maxFormHead}}
	parts := multipart.NewReader(f.body, params["boundary"])
	left := maxFormFields
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && len(f.fields) > 0 {
			return nil, s3err.Argument("file", "0", "POST requires exactly one file upload per request.")
		}
		if err != nil {
			return nil, formError(err)
		}
		name := strings.ToLower(part.FormName())
		if name == "file" {
			f.file, f.body.most = part, 0
			return f, nil
		}
		value, err := io.ReadAll(io.LimitReader(part, int64(left)+1))
		if err != nil {
			return nil, formError(err)
		}
		if left -= len(name) + len(value); left < 0 {
			return nil, s3err.MaxPostPreData
		}
		if _, twice := f.fields[name]; twice || name == "" {
			return nil, s3err.Argument(name, "", "POST requires every field to have a name, and to be there once.")
		}
		f.fields[name] = string(value)
	}
}

// formError keeps the errors of the body, and calls all others a form that is none.
func formError(err error) error {
	var known *s3err.Error
	if errors.As(err, &known) {
		return known
	}
	return s3err.MalformedPOST
}

// key gives the key that a form asks for: ${filename} in it is the name of the file.
func (f *form) key() (string, error) {
	key := f.get("key")
	if key == "" {
		return "", s3err.Argument("key", "", "Bucket POST must contain a field named 'key'.  If it is specified, please check the order of the fields.")
	}
	// Browsers have sent whole paths.
	name := f.file.FileName()
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = path.Base(name[i+1:])
	}
	key = strings.ReplaceAll(key, "${filename}", name)
	return key, validKey(key)
}

// formHeaders are the fields that stand for headers of a PUT. Those that end with a hyphen are beginnings.
var formHeaders = []string{
	"cache-control", "content-disposition", "content-encoding", "content-language", "content-md5", "content-type", "expires",
	"x-amz-checksum-", "x-amz-meta-", "x-amz-object-lock-", "x-amz-sdk-checksum-algorithm", "x-amz-server-side-encryption",
	"x-amz-server-side-encryption-", "x-amz-storage-class", "x-amz-website-redirect-location",
}

// signatureFields are those of the signature.
var signatureFields = []string{"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature", "x-amz-security-token"}

// header gives the header of the PUT that a form stands for.
func (f *form) header(request http.Header) (http.Header, error) {
	h := http.Header{}
	// What a policy may ask for, and what a script may ask in a condition, comes with the request itself.
	for _, name := range []string{"User-Agent", "Referer", "Origin", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if v := request[name]; len(v) > 0 {
			h[name] = v
		}
	}
	for name, value := range f.fields {
		switch {
		case isOneOf(name, formHeaders):
			if value == "" {
				continue
			}
			if err := checkField(name, value); err != nil {
				return nil, err
			}
			h.Set(name, value)
		case isOneOf(name, signatureFields), strings.HasPrefix(name, "x-ignore-"):
		case name == "acl":
			h.Set("X-Amz-Acl", value)
		case strings.HasPrefix(name, "x-amz-"):
			return nil, s3err.NotImplemented.With("The field %s is not implemented.", name)
		}
	}
	return h, nil
}

func isOneOf(name string, list []string) bool {
	for _, x := range list {
		if x == name || strings.HasSuffix(x, "-") && strings.HasPrefix(name, x) {
			return true
		}
	}
	return false
}
