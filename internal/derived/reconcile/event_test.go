package reconcile

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func eventRecord(event, key string) string {
	return fmt.Sprintf(`{"eventVersion":"2.1","eventName":%q,"s3":{"bucket":{"name":"b"},"object":{"key":%q,"size":1}}}`, event, key)
}

func TestParseEvent(t *testing.T) {
	acc := layout.Accepted(batch(1, 2))
	quar := layout.Quarantine(batch(1, 2), identity.Sum(nil))
	esc := url.QueryEscape
	for name, c := range map[string]struct {
		records []string
		prefix  string
		keys    []string
		ignored int
	}{
		"one":              {[]string{eventRecord("ObjectCreated:Put", acc)}, "", []string{acc}, 0},
		"escaped":          {[]string{eventRecord("ObjectCreated:Put", esc(acc))}, "", []string{acc}, 0},
		"prefix":           {[]string{eventRecord("ObjectCreated:Put", esc("team a/"+acc))}, "team a/", []string{acc}, 0},
		"other prefix":     {[]string{eventRecord("ObjectCreated:Put", acc)}, "p/", nil, 1},
		"s3: name":         {[]string{eventRecord("s3:ObjectCreated:CompleteMultipartUpload", acc)}, "", []string{acc}, 0},
		"removed":          {[]string{eventRecord("ObjectRemoved:Delete", acc)}, "", nil, 1},
		"quarantine":       {[]string{eventRecord("ObjectCreated:Put", quar)}, "", []string{quar}, 0},
		"not a manifest":   {[]string{eventRecord("ObjectCreated:Put", "raw-blobs/v1/x"), eventRecord("ObjectCreated:Put", acc)}, "", []string{acc}, 1},
		"bad escape":       {[]string{eventRecord("ObjectCreated:Put", "%zz")}, "", nil, 1},
		"empty key":        {[]string{eventRecord("ObjectCreated:Put", "")}, "", nil, 1},
		"traversal":        {[]string{eventRecord("ObjectCreated:Put", "accepted/v1/../"+acc)}, "", nil, 1},
		"several, doubled": {[]string{eventRecord("ObjectCreated:Put", acc), eventRecord("ObjectCreated:Put", acc)}, "", []string{acc, acc}, 0},
		"none":             {nil, "", nil, 0},
	} {
		keys, ignored, err := ParseEvent([]byte(`{"Records":[`+strings.Join(c.records, ",")+`]}`), c.prefix)
		if err != nil || ignored != c.ignored || !cmp.Equal(keys, c.keys) {
			t.Errorf("%s: %v, %d ignored, %v", name, keys, ignored, err)
		}
	}
	if _, _, err := ParseEvent([]byte(`{"Service":"Amazon S3","Event":"s3:TestEvent"}`), ""); err != nil {
		t.Errorf("S3's test event: %v", err)
	}
	many := `{"Records":[` + strings.Repeat("{},", MaxEventRecords) + `{}]}`
	for _, bad := range []string{"", "[]", "{", `{"Records":{}}`, `{"Records":[1]}`, many} {
		if _, _, err := ParseEvent([]byte(bad), ""); !errors.Is(err, ErrEvent) {
			t.Errorf("%.30q: %v", bad, err)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"Records":[`+eventRecord("ObjectCreated:Put", layout.Accepted(batch(1, 2)))+`]}`), "")
	f.Fuzz(func(t *testing.T, b []byte, prefix string) {
		keys, _, err := ParseEvent(b, prefix)
		if err != nil && !errors.Is(err, ErrEvent) {
			t.Fatal(err)
		}
		for _, k := range keys {
			if !IsManifestKey(k) {
				t.Fatalf("not a manifest key: %q", k)
			}
		}
	})
}
