package s3

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func TestSetTags(t *testing.T) {
	var got *http.Request
	var body []byte
	s := open(t, func(w http.ResponseWriter, r *http.Request) { got = r; body, _ = io.ReadAll(r.Body) }, func(c *Config) { c.Prefix = "p/" })
	if err := s.SetTags(t.Context(), "a b", map[string]string{"status": "committed", "id": `<&"`}); err != nil {
		t.Fatal(err)
	}
	const want = `<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><TagSet><Tag><Key>id</Key><Value>&lt;&amp;&#34;</Value></Tag><Tag><Key>status</Key><Value>committed</Value></Tag></TagSet></Tagging>`
	if got.Method != http.MethodPut || got.URL.Path != "/bucket/p/a b" || got.URL.RawQuery != "tagging=" || string(body) != want || got.Header.Get("X-Amz-Checksum-Sha256") == "" {
		t.Errorf("%s %s %v\n%s", got.Method, got.URL, got.Header, body)
	}
	for _, c := range []struct {
		answer http.HandlerFunc
		want   error
	}{
		{says(404, "NoSuchKey"), objstore.ErrNotFound}, {says(404, "NoSuchBucket"), objstore.ErrNoBucket}, {says(403, "AccessDenied"), objstore.ErrDenied},
		{says(503, "SlowDown"), objstore.ErrUnknown}, {says(501, "NotImplemented"), objstore.ErrInvalid}, {says(404, ""), objstore.ErrUnknown},
	} {
		if err := open(t, c.answer).SetTags(t.Context(), "k", nil); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	if err := s.SetTags(t.Context(), "/", nil); !errors.Is(err, objstore.ErrInvalid) {
		t.Error(err)
	}
}
