package erasure

import (
	"math/rand/v2"
	"testing"
)

// TestDerive: a threshold and a smallest chunk follow from each other.
func TestDerive(t *testing.T) {
	for _, c := range []struct {
		k                    int
		threshold, min       int64
		wantThreshold, wantM int64
	}{
		{4, 1 << 20, 0, 1 << 20, 256 << 10},
		{6, 1 << 20, 0, 1 << 20, 174763},
		{4, 10 << 10, 0, 10 << 10, 16 << 10}, // not below 16 KiB
		{4, 1 << 30, 0, 1 << 30, 4 << 20},    // not above 4 MiB
		{6, 5, 100 << 10, 600 << 10, 100 << 10},
	} {
		if th, m := Derive(c.k, c.threshold, c.min); th != c.wantThreshold || m != c.wantM {
			t.Errorf("%+v: %d, %d", c, th, m)
		}
	}
}

// TestLayout: one stripe when it fits, as few as possible otherwise; every byte of the body is in
// one place, and nothing else is stored.
func TestLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		lo := int64(1 + rng.IntN(1000))
		p := Params{1 + rng.IntN(10), rng.IntN(5), lo, lo + int64(rng.IntN(5000))}
		size := int64(rng.IntN(200_000))
		l := p.Layout(size)
		if err := l.check(); err != nil {
			t.Fatalf("%+v: %v", l, err)
		}
		full := int64(p.K) * p.MaxChunk
		if want := max(1, ceilDiv(size, full)); l.Stripes() > want || l.Chunk < p.MinChunk || l.Chunk > p.MaxChunk {
			t.Fatalf("%+v of %d bytes: %+v, %d stripes; want %d", p, size, l, l.Stripes(), want)
		}
		var data int64
		for i := range p.K {
			data += l.ShardSize(i)
		}
		if data != size {
			t.Fatalf("%+v stores %d data bytes of %d", l, data, size)
		}
		for i := p.K; i < p.K+p.M; i++ {
			if l.ShardSize(i) != l.ShardSize(0) {
				t.Fatalf("%+v: parity has %d bytes, the longest data shard %d", l, l.ShardSize(i), l.ShardSize(0))
			}
		}
	}
}

func TestParamsAreChecked(t *testing.T) {
	for _, p := range []Params{{0, 1, 1, 1}, {1, -1, 1, 1}, {60, 5, 1, 1}, {1, 1, 0, 1}, {1, 1, 2, 1}, {1, 1, 1, LargestChunk + 1}} {
		if p.Validate() == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}

// TestNames: names of fragments are read back, and nothing else is.
func TestNames(t *testing.T) {
	for _, f := range []Fragment{CopyOf(anID), {anID, 1, 4, 2, 0}, {anID, 0xdeadbeef, 50, 14, 63}} {
		if got, ok := Parse(f.Name()); !ok || got != f {
			t.Errorf("%s: %+v, %t", f.Name(), got, ok)
		}
	}
	if k := []Kind{CopyOf(anID).Kind(), Fragment{anID, 1, 4, 2, 3}.Kind(), Fragment{anID, 1, 4, 2, 4}.Kind()}; k[0] != Copy || k[1] != Data || k[2] != Parity {
		t.Error(k)
	}
	for _, n := range []string{"", anID, anID + ".cop", anID[1:] + ".copy", "AB" + anID[2:] + ".copy", anID + ".00000000.04-02-00", anID + ".00000001.04-02-06",
		anID + ".1.04-02-00", anID + ".00000001.4-02-00", anID + ".00000001.04-02-00.x", anID + ".00000001.60-05-00", anID + ".00000001.00-02-00"} {
		if f, ok := Parse(n); ok {
			t.Errorf("%q is taken for %+v", n, f)
		}
	}
}
