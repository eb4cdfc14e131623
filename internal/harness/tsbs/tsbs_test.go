package tsbs

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const devops = "../../../../shared/data/devops100_2h.ds.zst"

func TestGenerateIsDeterministic(t *testing.T) {
	a, b := Generate(7, 3, 20), Generate(7, 3, 20)
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed, two data sets")
	}
	if reflect.DeepEqual(a, Generate(8, 3, 20)) {
		t.Error("two seeds, one data set")
	}
	if one := Generate(7, 1, 20); !reflect.DeepEqual(one.Hosts()[0], a.Hosts()[0]) {
		t.Error("host 0 depends on the number of hosts")
	}
}

func TestGenerateShape(t *testing.T) {
	d := Generate(1, 4, 30)
	hosts := d.Hosts()
	if len(hosts) != 4 || d.Samples() != 4*SeriesPerHost*30 {
		t.Fatalf("%d hosts, %d samples", len(hosts), d.Samples())
	}
	for _, h := range hosts {
		names := map[string]bool{}
		for _, s := range h.Series {
			names[s.Label("__name__")] = true
			if !slices.IsSortedFunc(s.Labels, func(a, b Label) int { return cmpNames(a, b) }) {
				t.Errorf("labels not sorted: %v", s.Labels)
			}
			if len(s.Timestamps) != 30 || len(s.Values) != 30 || s.Timestamps[1]-s.Timestamps[0] != StepMS {
				t.Errorf("%v: %d timestamps, %d values", s.Labels, len(s.Timestamps), len(s.Values))
			}
			for _, v := range s.Values {
				if math.IsNaN(v) || v < 0 {
					t.Errorf("%v: value %v", s.Labels, v)
				}
			}
		}
		if len(names) != SeriesPerHost {
			t.Errorf("%s: %d names", h.Name, len(names))
		}
	}
}

func cmpNames(a, b Label) int {
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	}
	return 0
}

// The generated names and label names are those of the real data.
func TestGenerateIsLikeTSBS(t *testing.T) {
	d, err := Load(devops)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no TSBS data at %s", devops)
	}
	if err != nil {
		t.Fatal(err)
	}
	hosts := d.Hosts()
	if len(hosts) != 100 || d.Samples() != 7_272_000 {
		t.Fatalf("%d hosts, %d samples", len(hosts), d.Samples())
	}
	names := func(h Host) (out []string) {
		for _, s := range h.Series {
			key := s.Label("__name__")
			for _, l := range s.Labels {
				key += " " + l.Name
			}
			out = append(out, key)
		}
		slices.Sort(out)
		return out
	}
	want, got := names(hosts[0]), names(Generate(1, 1, 1).Hosts()[0])
	if !slices.Equal(want, got) {
		t.Errorf("generated\n%q\nTSBS\n%q", got, want)
	}
}

func TestLoad(t *testing.T) {
	var raw []byte
	u16 := func(s string) { raw = append(binary.LittleEndian.AppendUint16(raw, uint16(len(s))), s...) }
	raw = binary.LittleEndian.AppendUint32(raw, 1)
	raw = binary.LittleEndian.AppendUint32(raw, 1)
	u16("__name__")
	u16("up")
	raw = binary.LittleEndian.AppendUint32(raw, 2)
	for _, v := range []uint64{1000, 2000, math.Float64bits(1), math.Float64bits(0.5)} {
		raw = binary.LittleEndian.AppendUint64(raw, v)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	path := filepath.Join(t.TempDir(), "x.ds.zst")
	for n := range len(raw) + 1 {
		if err := os.WriteFile(path, z.EncodeAll(raw[:n], nil), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Load(path)
		if n < len(raw) {
			if !errors.Is(err, ErrTruncated) {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
			continue
		}
		want := &Dataset{Series: []Series{{[]Label{{"__name__", "up"}}, []int64{1000, 2000}, []float64{1, 0.5}}}}
		if err != nil || !reflect.DeepEqual(d, want) {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if _, err := Load(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
