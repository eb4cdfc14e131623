package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Credentials sign requests.
type Credentials struct {
	AccessKey, Secret string
	// Region of the store that is asked.
	Region string
}

// Sign signs a request with everything that is in its header, and its body's SHA-256. The path must be
// without characters that have more than one encoding.
func (c Credentials) Sign(r *http.Request, bodySum [sha256.Size]byte, now time.Time) {
	payload := hex.EncodeToString(bodySum[:])
	when := now.UTC().Format(dateFormat)
	r.Header.Set("X-Amz-Date", when)
	r.Header.Set("X-Amz-Content-Sha256", payload)
	if r.Host == "" {
		r.Host = r.URL.Host
	}
	cl := claim{date: when[:8], time: when, scope: when[:8] + "/" + c.Region + "/s3/aws4_request", signed: []string{"host"}}
	for name := range r.Header {
		cl.signed = append(cl.signed, strings.ToLower(name))
	}
	slices.Sort(cl.signed)
	query, _ := parseQuery(r.URL.RawQuery) // the caller encoded it
	key := []byte("AWS4" + c.Secret)
	for _, part := range strings.Split(cl.scope, "/") {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(part))
		key = m.Sum(nil)
	}
	text := stringToSign(r, cl, query, payload)
	r.Header.Set("Authorization", algorithm+" Credential="+c.AccessKey+"/"+cl.scope+
		", SignedHeaders="+strings.Join(cl.signed, ";")+", Signature="+sign(key, text))
}
