package badinput

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"testing"
	"time"
)

// s3Case is a request that is right and signed, but for what it says. The default is
// PUT /bucket-one/new with the body "body". {seed} in headers and paths is an object that
// is there, {etag} its ETag.
type s3Case struct {
	named  `yaml:",inline"`
	M      string   `yaml:"m"`
	Path   string   `yaml:"path"`  // as on the wire; default /bucket-one/new
	Sign   string   `yaml:"sign"`  // path that is signed, when it is another
	Query  string   `yaml:"query"` // as on the wire
	H      []string `yaml:"h"`     // signed
	Extra  []string `yaml:"extra"` // added after signing
	Body   string   `yaml:"body"`
	Recipe string   `yaml:"recipe"` // body as a recipe
	Sent   string   `yaml:"sent"`   // body that is sent in place of the signed one
	SHA    string   `yaml:"sha"`    // X-Amz-Content-Sha256 in place of the body's hash
	Key    string   `yaml:"key"`
	Secret string   `yaml:"secret"`
	Skew   string   `yaml:"skew"`
	Scope  string   `yaml:"scope"` // credential scope; {date} is the day
	Skip   []string `yaml:"skip"`  // headers that are not signed
	Auth   string   `yaml:"auth"`  // whole Authorization header; {sig} the right signature, {cred} the credential
	// Presign moves the signature into the query; Expires in seconds.
	Presign bool   `yaml:"presign"`
	Expires string `yaml:"expires"`
	// Chunks sends the body aws-chunked: signed, trailer or unsigned; Spoil replaces in the encoded body: old=>new.
	Chunks  string `yaml:"chunks"`
	Trailer string `yaml:"trailer"`
	Spoil   string `yaml:"spoil"`
	Status  int    `yaml:"status"`
	Code    string `yaml:"code"`
}

func hmacOf(key []byte, s string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(s))
	return m.Sum(nil)
}

func hexHash(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// bytes puts the request together, with a Signature Version 4 of this package's own.
func (k s3Case) bytes(t testing.TB, addr string, fill *strings.Replacer) (method string, req []byte) {
	t.Helper()
	body := []byte(or(k.Body, "body"))
	if k.Recipe != "" {
		body = expand(t, k.Recipe, nil)
	}
	method = or(k.M, http.MethodPut)
	if method == http.MethodGet || method == http.MethodHead || method == http.MethodDelete {
		if k.Body == "" {
			body = nil
		}
	}
	at := time.Now().UTC()
	if k.Skew != "" {
		d, err := time.ParseDuration(k.Skew)
		if err != nil {
			t.Fatal(err)
		}
		at = at.Add(d)
	}
	stamp := at.Format("20060102T150405Z")
	scope := strings.ReplaceAll(or(k.Scope, "{date}/us-east-1/s3/aws4_request"), "{date}", stamp[:8])
	sha := or(k.SHA, hexHash(body))
	if k.Chunks != "" {
		// All chunks but the last have 8 KiB at least: with this the first ends with the first three bytes of the case's body.
		body = append(bytes.Repeat([]byte("-"), chunkSize-3), body...)
	}
	decoded := body
	switch k.Chunks {
	case "signed":
		sha = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	case "trailer":
		sha = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	case "unsigned":
		sha = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	}
	type header struct{ name, value string }
	headers := []header{{"Host", addr}}
	if !k.Presign {
		headers = append(headers, header{"X-Amz-Date", stamp}, header{"X-Amz-Content-Sha256", sha})
	}
	if k.Chunks != "" {
		headers = append(headers, header{"X-Amz-Decoded-Content-Length", fmt.Sprint(len(decoded))}, header{"Content-Encoding", "aws-chunked"})
		if name, _, ok := strings.Cut(k.Trailer, ":"); ok {
			headers = append(headers, header{"X-Amz-Trailer", name})
		}
	}
	add := func(lines []string) {
		for _, l := range lines {
			n, v, _ := strings.Cut(fill.Replace(l), ": ")
			replaced := false
			for i := range headers {
				if strings.EqualFold(headers[i].name, n) {
					headers[i].value, replaced = v, true
				}
			}
			if !replaced {
				headers = append(headers, header{n, v})
			}
		}
	}
	add(k.H)
	values := map[string]string{}
	for _, h := range headers {
		values[strings.ToLower(h.name)] = strings.TrimSpace(h.value)
	}
	for _, n := range k.Skip {
		delete(values, n)
	}
	var names []string
	for n := range values {
		names = append(names, n)
	}
	sort.Strings(names)
	path := fill.Replace(or(k.Path, "/bucket-one/new"))
	signedPath := fill.Replace(or(k.Sign, or(k.Path, "/bucket-one/new")))
	query := fill.Replace(k.Query)
	cred := or(k.Key, accessKey) + "/" + scope
	if k.Presign {
		q := url.Values{}
		q.Set("X-Amz-Algorithm", "AWS4-HMAC-SHA256")
		q.Set("X-Amz-Credential", cred)
		q.Set("X-Amz-Date", stamp)
		q.Set("X-Amz-Expires", or(k.Expires, "60"))
		q.Set("X-Amz-SignedHeaders", strings.Join(names, ";"))
		if query != "" {
			query += "&"
		}
		query += strings.ReplaceAll(q.Encode(), "+", "%20")
		sha = "UNSIGNED-PAYLOAD"
	}
	params := strings.Split(query, "&")
	for i, p := range params {
		if p != "" && !strings.Contains(p, "=") {
			params[i] = p + "="
		}
	}
	sort.Strings(params)
	var c strings.Builder
	fmt.Fprintf(&c, "%s\n%s\n%s\n", method, signedPath, strings.Join(params, "&"))
	for _, n := range names {
		fmt.Fprintf(&c, "%s:%s\n", n, values[n])
	}
	fmt.Fprintf(&c, "\n%s\n%s", strings.Join(names, ";"), sha)
	parts := strings.Split(scope+"///", "/")
	key := hmacOf(hmacOf(hmacOf(hmacOf([]byte("AWS4"+or(k.Secret, secretKey)), parts[0]), parts[1]), "s3"), "aws4_request")
	sig := hex.EncodeToString(hmacOf(key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hexHash([]byte(c.String()))))
	if k.Presign {
		query += "&X-Amz-Signature=" + sig
	} else {
		auth := or(k.Auth, "AWS4-HMAC-SHA256 Credential={cred}, SignedHeaders={names}, Signature={sig}")
		auth = strings.NewReplacer("{cred}", cred, "{names}", strings.Join(names, ";"), "{sig}", sig).Replace(auth)
		if auth != "none" {
			headers = append(headers, header{"Authorization", auth})
		}
	}
	add(k.Extra)
	if k.Sent != "" {
		body = []byte(k.Sent)
	}
	if k.Chunks != "" {
		body = k.chunked(stamp, scope, sig, key, decoded)
		if k.Spoil != "" {
			old, replacement, ok := strings.Cut(k.Spoil, "=>")
			if !ok || !bytes.Contains(body, []byte(old)) {
				t.Fatalf("nothing to spoil with %q in %q", k.Spoil, body)
			}
			body = bytes.Replace(body, []byte(old), []byte(replacement), 1)
		}
	}
	var b bytes.Buffer
	if query != "" {
		path += "?" + query
	}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", method, path)
	length := true
	for _, h := range headers {
		if strings.EqualFold(h.name, "content-length") || strings.EqualFold(h.name, "transfer-encoding") {
			length = false
		}
		if h.value != "drop" {
			fmt.Fprintf(&b, "%s: %s\r\n", h.name, h.value)
		}
	}
	if length {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return method, b.Bytes()
}

// chunkSize is the size of all chunks but the last: the least that the store takes.
const chunkSize = 8 << 10

// chunked encodes a body in chunks.
func (k s3Case) chunked(stamp, scope, prev string, key, body []byte) []byte {
	var b bytes.Buffer
	for end := false; !end; {
		c := body[:min(len(body), chunkSize)]
		body = body[len(c):]
		end = len(c) == 0
		if k.Chunks == "unsigned" {
			fmt.Fprintf(&b, "%x\r\n", len(c))
		} else {
			prev = hex.EncodeToString(hmacOf(key, strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", stamp, scope, prev, hexHash(nil), hexHash(c)}, "\n")))
			fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n", len(c), prev)
		}
		if b.Write(c); !end {
			b.WriteString("\r\n")
		}
	}
	if k.Trailer != "" {
		b.WriteString(k.Trailer + "\r\n")
		if k.Chunks == "trailer" {
			sig := hex.EncodeToString(hmacOf(key, strings.Join([]string{"AWS4-HMAC-SHA256-TRAILER", stamp, scope, prev, hexHash([]byte(k.Trailer + "\n"))}, "\n")))
			fmt.Fprintf(&b, "x-amz-trailer-signature:%s\r\n", sig)
		}
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// TestS3 sends bad requests to the embedded object store.
func TestS3(t *testing.T) {
	e := startObjectStore(t)
	store := e.open(t)
	boundMemory(t, 96<<20)
	fill := strings.NewReplacer("{host}", e.Addr(), "{seed}", "/bucket-one/seed")
	do := func(t testing.TB, k s3Case) (int, string, []byte) {
		method, req := k.bytes(t, e.Addr(), fill)
		status, body, _ := rawAnswer(t, e.Addr(), method, req, false)
		var x struct {
			XMLName xml.Name `xml:"Error"`
			Code    string
		}
		_ = xml.Unmarshal(body, &x) // success has another root
		return status, x.Code, body
	}
	if status, code, _ := do(t, s3Case{Path: "/bucket-one/seed", Body: "seed"}); status != 200 {
		t.Fatalf("the signer of this test is refused: %d %s", status, code)
	}
	sum := md5.Sum([]byte("seed"))
	fill = strings.NewReplacer("{host}", e.Addr(), "{seed}", "/bucket-one/seed", "{etag}", hex.EncodeToString(sum[:]),
		"{md5}", base64.StdEncoding.EncodeToString(sum[:]), "{1000}", strings.Repeat("k", 1000), "{100}", strings.Repeat("k", 100))
	for _, k := range load[s3Case](t, "s3") {
		t.Run(k.Name, func(t *testing.T) {
			before := listing(t, store)
			if status, code, body := do(t, k); status != k.Status || code != k.Code {
				t.Errorf("got %d %s, want %d %s: %.300s", status, code, k.Status, k.Code, body)
			}
			wantUnchanged(t, store, before)
		})
	}
	for _, path := range []string{"/bucket-two", "/evil"} {
		if status, code, _ := do(t, s3Case{M: "HEAD", Path: path}); status != 404 {
			t.Errorf("bucket %s: %d %s", path, status, code)
		}
	}
	wantNoPanics(t)
	for _, k := range []s3Case{{Path: "/bucket-one/after"}, {M: "GET", Path: "/bucket-one/seed"}, {Path: "/bucket-one/c1", Chunks: "signed"},
		{Path: "/bucket-one/c2", Chunks: "trailer", Trailer: "x-amz-checksum-crc32:1c+Btg=="}, {M: "GET", Path: "/bucket-one/seed", Presign: true}} {
		k.Name = k.Path
		if status, code, body := do(t, k); status != 200 && code != "BadDigest" {
			t.Errorf("a good request: %d %s %s", status, code, body)
		}
	}
}
