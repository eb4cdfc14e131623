package ingest_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FuzzHTTPFrame: a body that POST /v1/batches takes is a frame that decodes; all else is
// refused with a reason and writes nothing.
func FuzzHTTPFrame(f *testing.F) {
	good := encode(f, boot, 1, 3, 1)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(bytes.Clone(good), 0))
	f.Add(encode(f, identity.Boot{Agent: "ä", Boot: "b"}, 1<<63, 1, 0))
	f.Add([]byte("\x89LMB"))
	f.Add([]byte{})
	c := start(f, newStore(), nil)
	url := "http://" + c.HTTPAddr() + "/v1/batches"
	f.Fuzz(func(t *testing.T, b []byte) {
		before := contents(t, c.store)
		resp, err := http.Post(url, frame.MediaType, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var a struct{ Error string }
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
		_, bad := frame.Inspect(b, frame.Limits{})
		switch {
		case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusConflict:
			if bad != nil {
				t.Fatalf("%d for a frame that does not hold: %v", resp.StatusCode, bad)
			}
		case resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusRequestEntityTooLarge, a.Error == "", bad == nil:
			t.Fatalf("%d %q for %v", resp.StatusCode, a.Error, bad)
		case !maps.Equal(before, contents(t, c.store)):
			t.Fatal("something was written")
		}
	})
}
