package s3

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestCreateSendsConditionAndOneHashSigned(t *testing.T) {
	body := []byte("frame")
	sum := identity.Sum(body)
	var got *http.Request
	var sent []byte
	s := open(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		sent, _ = io.ReadAll(r.Body)
		w.Header().Set("ETag", `"e"`)
	}, func(c *Config) { c.Prefix = "a b/" })
	info, err := s.Create(t.Context(), "x+y", body, objstore.PutOptions{ContentType: "text/plain", Tags: map[string]string{"a b": "c/d", "e": ""}})
	if err != nil {
		t.Fatal(err)
	}
	if info.Key != "x+y" || info.ETag != `"e"` || info.SHA256 != sum || info.Size != 5 {
		t.Errorf("%+v", info)
	}
	if got.Method != "PUT" || got.RequestURI != "/bucket/a%20b/x%2By" || string(sent) != "frame" {
		t.Errorf("%s %s %q", got.Method, got.RequestURI, sent)
	}
	for name, want := range map[string]string{
		"If-None-Match":         "*",
		"X-Amz-Content-Sha256":  sum.String(),
		"X-Amz-Checksum-Sha256": base64.StdEncoding.EncodeToString(sum[:]),
		"Content-Type":          "text/plain",
		"X-Amz-Tagging":         "a%20b=c%2Fd&e=",
		"Content-Length":        "5",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
		if auth := got.Header.Get("Authorization"); !strings.Contains(auth, strings.ToLower(name)) {
			t.Errorf("%s is not signed: %s", name, auth)
		}
	}
}

func TestListRefusesAnAnswerOutOfOrder(t *testing.T) {
	page := func(keys ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "<ListBucketResult><IsTruncated>false</IsTruncated>")
			for _, k := range keys {
				io.WriteString(w, "<Contents><Key>"+k+"</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>")
			}
			io.WriteString(w, "</ListBucketResult>")
		}
	}
	for _, keys := range [][]string{{"p/b", "p/a"}, {"p/a", "q"}, {"a"}, {"p/"}} {
		_, err := open(t, page(keys...)).List(t.Context(), objstore.ListOptions{Prefix: "p/", StartAfter: "p/"})
		if !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%q: %v", keys, err)
		}
	}
	p, err := open(t, page("p/a", "p/b")).List(t.Context(), objstore.ListOptions{Prefix: "p/"})
	if err != nil || len(p.Objects) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}
