package identity

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBatchValidate(t *testing.T) {
	ok := Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 1}
	cases := []struct {
		name   string
		change func(b *Batch)
		valid  bool
	}{
		{"one record", func(b *Batch) {}, true},
		{"longest ids", func(b *Batch) { b.Agent, b.Boot = strings.Repeat("a", 128), strings.Repeat("b", 64) }, true},
		{"any UTF-8", func(b *Batch) { b.Agent, b.Boot = "../é\x00\n", "日本" }, true},
		{"first sequence number", func(b *Batch) { b.SeqStart, b.SeqEnd = 0, 0 }, true},
		{"last sequence number", func(b *Batch) { b.SeqStart, b.SeqEnd = 1, math.MaxUint64 }, true},
		{"whole range", func(b *Batch) { b.SeqStart, b.SeqEnd = 0, math.MaxUint64 }, false},
		{"backwards", func(b *Batch) { b.SeqEnd = 0 }, false},
		{"no agent", func(b *Batch) { b.Agent = "" }, false},
		{"no boot", func(b *Batch) { b.Boot = "" }, false},
		{"long agent", func(b *Batch) { b.Agent = strings.Repeat("a", 129) }, false},
		{"long boot", func(b *Batch) { b.Boot = strings.Repeat("b", 65) }, false},
		{"agent not UTF-8", func(b *Batch) { b.Agent = "a\xff" }, false},
		{"boot not UTF-8", func(b *Batch) { b.Boot = "\xc3" }, false},
	}
	for _, c := range cases {
		b := ok
		c.change(&b)
		err := b.Validate()
		if (err == nil) != c.valid || (err != nil && !errors.Is(err, ErrInvalid)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestCount(t *testing.T) {
	if n := (Batch{SeqStart: 5, SeqEnd: 7}).Count(); n != 3 {
		t.Errorf("count %d", n)
	}
	if n := (Batch{SeqStart: 1, SeqEnd: math.MaxUint64}).Count(); n != math.MaxUint64 {
		t.Errorf("count %d", n)
	}
}

func TestIntersects(t *testing.T) {
	of := func(agent, boot string, start, end uint64) Batch { return Batch{agent, boot, start, end} }
	x := of("a", "b", 10, 20)
	for _, c := range []struct {
		o    Batch
		want bool
	}{
		{x, true},
		{of("a", "b", 20, 30), true},
		{of("a", "b", 1, 10), true},
		{of("a", "b", 12, 13), true},
		{of("a", "b", 1, 100), true},
		{of("a", "b", 21, 30), false},
		{of("a", "b", 1, 9), false},
		{of("a", "c", 10, 20), false},
		{of("c", "b", 10, 20), false},
	} {
		if x.Intersects(c.o) != c.want || c.o.Intersects(x) != c.want {
			t.Errorf("%v and %v: want %v", x, c.o, c.want)
		}
	}
}

func TestCompareIsATotalOrder(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) Batch {
		return Batch{
			rapid.SampledFrom([]string{"a", "b", "aa"}).Draw(t, "agent"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "boot"),
			rapid.Uint64Range(0, 3).Draw(t, "start"), rapid.Uint64Range(0, 3).Draw(t, "end"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen.Draw(t, "a"), gen.Draw(t, "b"), gen.Draw(t, "c")
		if (a.Compare(b) == 0) != (a == b) || a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%v and %v: %d, %d", a, b, a.Compare(b), b.Compare(a))
		}
		if a.Compare(b) < 0 && b.Compare(c) < 0 && a.Compare(c) >= 0 {
			t.Fatalf("%v < %v < %v", a, b, c)
		}
		if boots := a.BootOf().Compare(b.BootOf()); boots != 0 && boots != a.Compare(b) {
			t.Fatalf("boots of %v and %v compare %d", a, b, boots)
		}
	})
}

// SHA-256 of "abc", from FIPS 180-4.
const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

func TestDigest(t *testing.T) {
	d := Sum([]byte("abc"))
	if d.String() != abc || d.IsZero() || !(Digest{}).IsZero() {
		t.Errorf("%v", d)
	}
	if p, err := ParseDigest(abc); err != nil || p != d {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := DigestFromBytes(d[:]); err != nil || p != d {
		t.Errorf("%v, %v", p, err)
	}
	for _, s := range []string{"", abc[1:], abc + "0", strings.ToUpper(abc), "g" + abc[1:], " " + abc[1:]} {
		if _, err := ParseDigest(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := DigestFromBytes(d[:31]); !errors.Is(err, ErrInvalid) {
		t.Errorf("31 bytes: %v", err)
	}
	j, err := json.Marshal(d)
	var back Digest
	if err != nil || string(j) != `"`+abc+`"` || json.Unmarshal(j, &back) != nil || back != d {
		t.Errorf("%s, %v, %v", j, err, back)
	}
	before := back
	if err := json.Unmarshal([]byte(`"zz"`), &back); !errors.Is(err, ErrInvalid) || back != before {
		t.Errorf("%v, %v", err, back)
	}
}

func FuzzParseDigest(f *testing.F) {
	f.Add(abc)
	f.Add(strings.ToUpper(abc))
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDigest(s); err == nil && d.String() != s {
			t.Errorf("%q became %v", s, d)
		}
	})
}
