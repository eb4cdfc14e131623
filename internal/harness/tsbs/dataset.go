// Package tsbs has time series in the shape of the TSBS devops case, for tests
// and benchmarks: read from a .ds file, or generated from a seed.
package tsbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/klauspost/compress/zstd"
)

// Label is a name and a value.
type Label struct{ Name, Value string }

// Series is one label set, sorted by name, with its samples.
type Series struct {
	Labels     []Label
	Timestamps []int64 // Unix milliseconds, increasing
	Values     []float64
}

// Dataset is a list of series.
type Dataset struct{ Series []Series }

// Label gives the value of a label, "" when s has none.
func (s *Series) Label(name string) string {
	for _, l := range s.Labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// Samples counts all samples.
func (d *Dataset) Samples() int {
	n := 0
	for i := range d.Series {
		n += len(d.Series[i].Values)
	}
	return n
}

// Host is the series of one host, in the data set's order.
type Host struct {
	Name   string
	Series []Series
}

// Hosts splits the data set by the label hostname, in order of appearance.
func (d *Dataset) Hosts() []Host {
	var hosts []Host
	at := map[string]int{}
	for _, s := range d.Series {
		name := s.Label("hostname")
		i, ok := at[name]
		if !ok {
			i = len(hosts)
			at[name] = i
			hosts = append(hosts, Host{Name: name})
		}
		hosts[i].Series = append(hosts[i].Series, s)
	}
	return hosts
}

// ErrTruncated is wrapped by errors about a file that ends early.
var ErrTruncated = errors.New("data set ends early")

// Load reads a .ds file compressed with zstd. All little-endian: u32 series; per
// series u32 labels, per label u16 length and name, u16 length and value; u32
// samples n; n int64 timestamps in ms; n float64 values.
func Load(path string) (*Dataset, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load data set: %w", err)
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("load data set: %w", err)
	}
	defer z.Close()
	if raw, err = z.DecodeAll(raw, nil); err != nil {
		return nil, fmt.Errorf("load data set %s: %w", path, err)
	}
	d, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("load data set %s: %w", path, err)
	}
	return d, nil
}

type cursor struct {
	b   []byte
	err error
}

func (c *cursor) take(n int) []byte {
	if c.err != nil || n > len(c.b) {
		c.err = ErrTruncated
		return make([]byte, min(n, 8))
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) u32() int { return int(binary.LittleEndian.Uint32(c.take(4))) }
func (c *cursor) text() string {
	return string(c.take(int(binary.LittleEndian.Uint16(c.take(2)))))
}

func parse(raw []byte) (*Dataset, error) {
	c := &cursor{b: raw}
	d := &Dataset{}
	for n := c.u32(); n > 0 && c.err == nil; n-- {
		var s Series
		for l := c.u32(); l > 0 && c.err == nil; l-- {
			s.Labels = append(s.Labels, Label{c.text(), c.text()})
		}
		samples := c.u32()
		ts, vs := c.take(8*samples), c.take(8*samples)
		if c.err != nil {
			break
		}
		s.Timestamps, s.Values = make([]int64, samples), make([]float64, samples)
		for i := range samples {
			s.Timestamps[i] = int64(binary.LittleEndian.Uint64(ts[8*i:]))
			s.Values[i] = math.Float64frombits(binary.LittleEndian.Uint64(vs[8*i:]))
		}
		d.Series = append(d.Series, s)
	}
	return d, c.err
}
