package objectstore_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// webForm is a browser's upload.
type webForm struct {
	conditions []any
	fields     map[string]string
	expires    time.Duration
	file       []byte
	cut        int // bytes that the body lacks at its end
}

// send posts the form, signed by the tester, and gives the answer.
func (f webForm) send(t *testing.T, s *server) (*http.Response, []byte) {
	t.Helper()
	g := newSigner()
	fields := map[string]string{"key": "up/a", "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": g.date(), "x-amz-credential": testKey + "/" + g.scope()}
	conditions := append([]any{map[string]string{"bucket": bucket}, []any{"starts-with", "$key", "up/"},
		map[string]string{"x-amz-algorithm": fields["x-amz-algorithm"]}, map[string]string{"x-amz-date": fields["x-amz-date"]},
		map[string]string{"x-amz-credential": fields["x-amz-credential"]}}, f.conditions...)
	if f.expires == 0 {
		f.expires = time.Hour
	}
	doc, err := json.Marshal(map[string]any{"expiration": g.time.Add(f.expires).Format(time.RFC3339), "conditions": conditions})
	if err != nil {
		t.Fatal(err)
	}
	fields["policy"] = base64.StdEncoding.EncodeToString(doc)
	fields["x-amz-signature"] = hex.EncodeToString(mac(g.signingKey(), fields["policy"]))
	for name, v := range f.fields {
		if fields[name] = v; v == "" {
			delete(fields, name)
		}
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, v := range fields {
		if err := w.WriteField(name, v); err != nil {
			t.Fatal(err)
		}
	}
	part, err := w.CreateFormFile("file", `C:\photos\cat.png`)
	if err == nil {
		_, err = part.Write(f.file)
	}
	if err == nil {
		err = w.WriteField("submit", "what follows the file is ignored")
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest("POST", s.url()+"/"+bucket, bytes.NewReader(b.Bytes()[:b.Len()-f.cut]))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func TestPostOfAForm(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	for name, size := range map[string]int{"empty": 0, "small": 100, "in memory": 900 << 10, "in a file": 3 << 20} {
		file := bytes.Repeat([]byte("forms "), size/6)
		resp, body := webForm{file: file, fields: map[string]string{"key": "up/" + name}}.send(t, s)
		if resp.StatusCode != 204 || resp.Header.Get("X-Amz-Checksum-Crc64nvme") == "" {
			t.Errorf("%s: %d %v %s", name, resp.StatusCode, resp.Header, body)
			continue
		}
		if got := get(t, c, "up/"+name); !bytes.Equal(got, file) {
			t.Errorf("%s: %d bytes came back", name, len(got))
		}
	}
	resp, body := webForm{file: []byte("cat"), fields: map[string]string{
		"key": "up/${filename}", "Content-Type": "image/png", "x-amz-meta-mood": "good", "success_action_status": "201", "x-ignore-me": "x",
		"tagging": "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>", "x-amz-checksum-crc32": "nl5DqA=="},
		conditions: []any{[]any{"starts-with", "$Content-Type", "image/"}, []any{"eq", "$x-amz-meta-mood", "good"}, []any{"starts-with", "$tagging", ""},
			[]any{"eq", "$success_action_status", "201"}, []any{"starts-with", "$x-amz-checksum-crc32", ""}, []any{"content-length-range", 3, 3}}}.send(t, s)
	if resp.StatusCode != 201 || !strings.Contains(string(body), "<Key>up/cat.png</Key>") || resp.Header.Get("Location") != s.url()+"/"+bucket+"/up/cat.png" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("up/cat.png")})
	if err != nil || aws.ToString(out.ContentType) != "image/png" || out.Metadata["mood"] != "good" || aws.ToInt32(out.TagCount) != 1 {
		t.Errorf("%+v %v", out, err)
	}
	resp, _ = webForm{file: []byte("cat"), fields: map[string]string{"success_action_redirect": "https://example.com/done?a=b"},
		conditions: []any{[]any{"starts-with", "$success_action_redirect", "https://example.com/"}}}.send(t, s)
	if to := resp.Header.Get("Location"); resp.StatusCode != 303 || !strings.HasPrefix(to, "https://example.com/done?a=b&bucket="+bucket) || !strings.Contains(to, "key=up%2Fa") {
		t.Errorf("a redirect: %d %s", resp.StatusCode, to)
	}
}

// What the policy does not allow, or what does not come whole, is not stored.
func TestPostThatIsRefused(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	large := bytes.Repeat([]byte("x"), 3<<20)
	sized := func(least, most int) []any { return []any{[]any{"content-length-range", least, most}} }
	for name, c := range map[string]struct {
		form   webForm
		status int
		code   string
	}{
		"not covered":           {webForm{fields: map[string]string{"x-amz-meta-a": "b"}}, 403, "AccessDenied"},
		"other key":             {webForm{fields: map[string]string{"key": "elsewhere"}}, 403, "AccessDenied"},
		"no key":                {webForm{fields: map[string]string{"key": ""}}, 400, "InvalidArgument"},
		"expired":               {webForm{expires: -time.Second}, 403, "AccessDenied"},
		"too large":             {webForm{file: []byte("0123456789"), conditions: sized(0, 9)}, 400, "EntityTooLarge"},
		"much too large":        {webForm{file: large, conditions: sized(0, 2<<20)}, 400, "EntityTooLarge"},
		"too small":             {webForm{file: []byte("0"), conditions: sized(2, 9)}, 400, "EntityTooSmall"},
		"signature":             {webForm{fields: map[string]string{"x-amz-signature": strings.Repeat("0", 64)}}, 403, "SignatureDoesNotMatch"},
		"no signature":          {webForm{fields: map[string]string{"x-amz-signature": ""}}, 400, "InvalidArgument"},
		"another policy":        {webForm{fields: map[string]string{"policy": base64.StdEncoding.EncodeToString([]byte(`{"expiration":"2099-01-01T00:00:00Z","conditions":[]}`))}}, 403, "SignatureDoesNotMatch"},
		"key that is unknown":   {webForm{fields: map[string]string{"x-amz-credential": "NOBODY/" + newSigner().scope()}}, 403, "InvalidAccessKeyId"},
		"public by ACL":         {webForm{fields: map[string]string{"acl": "public-read"}, conditions: []any{map[string]string{"acl": "public-read"}}}, 400, "AccessControlListNotSupported"},
		"field of no meaning":   {webForm{fields: map[string]string{"x-amz-copy-source": "/a/b"}, conditions: []any{[]any{"starts-with", "$x-amz-copy-source", ""}}}, 501, "NotImplemented"},
		"wrong checksum":        {webForm{file: []byte("cat"), fields: map[string]string{"x-amz-checksum-crc32": "AAAAAA=="}, conditions: []any{[]any{"starts-with", "$x-amz-checksum-crc32", ""}}}, 400, "BadDigest"},
		"cut in the file":       {webForm{file: large[:1000], cut: 700}, 400, "IncompleteBody"},
		"cut in a large file":   {webForm{file: large, cut: 1 << 20}, 400, "IncompleteBody"},
		"too much before it":    {webForm{fields: map[string]string{"x-ignore-a": strings.Repeat("a", 30<<10)}}, 400, "MaxPostPreDataLengthExceeded"},
		"temporary credentials": {webForm{fields: map[string]string{"x-amz-security-token": "t"}}, 400, "InvalidToken"},
	} {
		resp, body := c.form.send(t, s)
		if resp.StatusCode != c.status || !strings.Contains(string(body), "<Code>"+c.code+"</Code>") {
			t.Errorf("%s: %d %s, want %d %s", name, resp.StatusCode, body, c.status, c.code)
		}
	}
	all := webForm{}
	all.fields = map[string]string{"policy": "", "x-amz-signature": "", "x-amz-credential": "", "x-amz-date": "", "x-amz-algorithm": ""}
	if resp, body := all.send(t, s); resp.StatusCode != 403 {
		t.Errorf("nobody's form: %d %s", resp.StatusCode, body)
	}
	if st, _, b := send(t, newSigner().request("GET", s.url()+"/"+bucket+"?list-type=2", nil)); st != 200 || bytes.Contains(b, []byte("<Key>")) {
		t.Errorf("a refused form left something: %d %s", st, b)
	}
	if err := setPolicy(t, s.client(), fmt.Sprintf(`{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::%s/up/*"}]}`, bucket)); err != nil {
		t.Fatal(err)
	}
	if resp, body := all.send(t, s); resp.StatusCode != 204 {
		t.Errorf("nobody's form in an open bucket: %d %s", resp.StatusCode, body)
	}
}

// What comes in a field of a form, or in the query of a presigned URL, becomes a header; it must be able to be one.
func TestFieldsThatCannotBeHeaders(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	for name, value := range map[string]string{
		"Content-Type": "text/html\r\nSet-Cookie: a=b", "Cache-Control": "a\x00b", "x-amz-meta-a": "line\nline", "x-amz-meta-b": "\x7f",
		"x-amz-meta-a b": "x", "x-amz-meta-a:b": "x", "x-amz-meta-\u00fc": "x",
	} {
		resp, body := webForm{file: []byte("cat"), fields: map[string]string{name: value}, conditions: []any{[]any{"starts-with", "$" + name, ""}}}.send(t, s)
		if resp.StatusCode != 400 || !strings.Contains(string(body), "InvalidArgument") {
			t.Errorf("%q: %q: %d %s", name, value, resp.StatusCode, body)
		}
		target := s.url() + "/" + bucket + "/up/a"
		if name == "Content-Type" || name == "Cache-Control" {
			name = "x-amz-meta-" + name
		}
		u := newSigner().presign("PUT", target+"?"+url.Values{name: {value}}.Encode(), time.Minute)
		r, err := http.NewRequest("PUT", u, nil)
		if err != nil {
			t.Fatal(err)
		}
		if st, code, b := send(t, r); st != 400 || code != "InvalidArgument" {
			t.Errorf("presigned %q: %q: %d %s %s", name, value, st, code, b)
		}
	}
	if st, _, _ := send(t, newSigner().request("HEAD", s.url()+"/"+bucket+"/up/a", nil)); st != 404 {
		t.Errorf("something was stored: %d", st)
	}
	// A presigned URL may ask for headers of its answer, which are bounded in the same way.
	put(t, s.client(), "up/a", []byte("x"))
	u := newSigner().presign("GET", s.url()+"/"+bucket+"/up/a?response-content-type="+url.QueryEscape("a\x00b"), time.Minute)
	r, err := http.NewRequest("GET", u, nil)
	if err != nil {
		t.Fatal(err)
	}
	if st, code, _ := send(t, r); st != 400 || code != "InvalidArgument" {
		t.Errorf("an answer's header: %d %s", st, code)
	}
}
