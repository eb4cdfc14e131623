package regions_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/record"
)

var example = regions.Record{
	Region: "eu", Number: 7, ID: claims.ID{1, 2, 3}, Regions: []claims.Region{"asia", "eu"}, Retired: []regions.Retired{{Name: "us", Done: true}}, Cluster: 0xcdf818194e3a8c32,
}

func TestGoldenRecord(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("testdata", "epoch.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got := example.Marshal(); !bytes.Equal(got, bytes.TrimSuffix(want, []byte("\n"))) {
		t.Errorf("%s\nwant %s", got, want)
	}
	r, err := regions.ParseRecord(bytes.TrimSuffix(want, []byte("\n")))
	if err != nil || !bytes.Equal(r.Marshal(), example.Marshal()) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestDamagedRecords(t *testing.T) {
	good := string(example.Marshal())
	for _, c := range [][2]string{
		{`"region":"eu"`, `"region":""`}, {`"number":7`, `"number":0`}, {`"01020300`, `"0102030`}, {`"01020300`, `"0102030A`},
		{`["asia","eu"]`, `["asia","asia"]`}, {`["asia","eu"]`, `[]`}, {`["asia","eu"]`, `["asia","us"]`}, {`"name":"us"`, `"name":"US"`},
		{`cdf818194e3a8c32`, `cdf818194e3a8c3`}, {`cdf818194e3a8c32`, `CDF818194e3a8c32`}, {`"number":7`, `"number":"7"`}, {`{`, ``},
		{`cdf818194e3a8c32"`, `cdf818194e3a8c32","dissolved":true`}, {`cdf818194e3a8c32"`, `cdf818194e3a8c32","dissolved":false`},
	} {
		bad := strings.Replace(good, c[0], c[1], 1)
		if bad == good {
			t.Fatalf("%s is not there", c[0])
		}
		if r, err := regions.ParseRecord([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", bad, r, err)
		}
	}
	if _, err := regions.ParseRecord([]byte(strings.Replace(good, "regions.v1", "regions.v2", 1))); !errors.Is(err, record.ErrNewerVersion) {
		t.Error(err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(example.Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := regions.ParseRecord(b)
		if err == nil && !bytes.Equal(r.Marshal(), b) && len(b) == len(r.Marshal()) {
			t.Fatalf("%q is read as %q", b, r.Marshal())
		}
	})
}
