package claims_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write golden files that are not there")

var (
	boot = identity.Boot{Agent: "host-1", Boot: "b"}
	late = claims.Claim{
		Identity: batch(100, 199), Hash: identity.Sum([]byte("frame")), State: claims.Claimed, ID: claims.ID{1, 2, 3},
		Stamp: claims.Stamp{Epoch: 300}, Home: "eu-central-1", ClaimedAt: 1_790_000_000_000_000_000,
	}
	examples = map[string]claims.Claim{
		"claimed": late, "durable": with(late, func(c *claims.Claim) {
			c.State, c.Stamp.Fence, c.DurableAt = claims.Durable, 1<<40, 1_790_000_000_100_000_000
		}),
		"settled":   with(late, func(c *claims.Claim) { c.State, c.Stamp.Fence, c.DurableAt = claims.Settled, 7, 5 }),
		"recovered": with(late, func(c *claims.Claim) { c.Recovered = true }), "bound": with(late, func(c *claims.Claim) { c.Bound = true }),
		"last": with(late, func(c *claims.Claim) { c.Identity = batch(0, math.MaxUint64-1) }),
	}
	heads = map[string]claims.Heads{
		"one": {{Region: "eu", Generation: 0}}, "many": {{Region: "asia", Generation: 300}, {Region: "eu", Generation: 1}, {Region: "us", Generation: math.MaxUint64}},
	}
)

func batch(start, end uint64) identity.Batch {
	return identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: start, SeqEnd: end}
}

func with(c claims.Claim, change func(*claims.Claim)) claims.Claim { change(&c); return c }

// golden compares bytes with a file, which stays readable for ever.
func golden(t *testing.T, name string, value []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	want, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *update {
		want = []byte(hex.EncodeToString(value) + "\n")
		err = os.WriteFile(path, want, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(value); got != strings.TrimSpace(string(want)) {
		t.Errorf("%s: %s, the file has %s", name, got, want)
	}
}

func TestGoldenRecords(t *testing.T) {
	for name, c := range examples {
		golden(t, "claim-"+name, c.Marshal())
		if got, err := claims.ParseClaim(boot, c.Identity.SeqStart, c.Marshal()); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, s := range heads {
		golden(t, "heads-"+name, s.Marshal(300))
		if got, above, err := claims.ParseHeads(boot, s.Marshal(300)); err != nil || above != 300 || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestEpochs(t *testing.T) {
	e := claims.Epoch{Number: 300, ID: claims.ID{1}, Regions: []claims.Region{"eu", "us"}}
	golden(t, "epoch", e.Marshal())
	if got, err := claims.ParseEpoch(e.Marshal()); err != nil || !reflect.DeepEqual(got, e) || e.Validate() != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for name, bad := range map[string]claims.Epoch{
		"no number": {ID: e.ID, Regions: e.Regions}, "no id": {Number: 1, Regions: e.Regions}, "no regions": {Number: 1, ID: e.ID},
		"a region twice": {Number: 1, ID: e.ID, Regions: []claims.Region{"eu", "eu"}}, "a capital": {Number: 1, ID: e.ID, Regions: []claims.Region{"EU"}},
		"many": {Number: 1, ID: e.ID, Regions: make([]claims.Region, claims.MaxRegions+1)},
	} {
		if _, err := claims.ParseEpoch(bad.Marshal()); !errors.Is(err, claims.ErrCorrupt) || bad.Validate() == nil {
			t.Errorf("%s: %v, %v", name, err, bad.Validate())
		}
	}
}

func FuzzParseEpoch(f *testing.F) {
	f.Add(claims.Epoch{Number: 300, ID: claims.ID{1}, Regions: []claims.Region{"eu", "us"}}.Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := claims.ParseEpoch(b); err == nil && !bytes.Equal(e.Marshal(), b) {
			t.Fatalf("%x is written as %x", b, e.Marshal())
		}
	})
}

func TestRecordsThatAreNot(t *testing.T) {
	good := late.Marshal()
	changed := func(at int, to byte) []byte { b := bytes.Clone(good); b[at] = to; return b }
	durable := examples["durable"].Marshal()
	for name, b := range map[string][]byte{
		"empty": nil, "version 0": changed(0, 0), "state 0": changed(1, 0), "state 4": changed(1, 4), "flag 4": changed(2, 4),
		"bound and durable": append([]byte{1, 2, 2}, durable[3:]...), "more": append(bytes.Clone(good), 0),
		"no hash": append(append(bytes.Clone(good[:4]), make([]byte, 32)...), good[36:]...), "no id": append(append(bytes.Clone(good[:36]), make([]byte, 16)...), good[52:]...),
		"a longer number":    append(append(bytes.Clone(good[:3]), 0x80|good[3], 0), good[4:]...),
		"region in capitals": append(bytes.Clone(good[:len(good)-12]), bytes.ToUpper(good[len(good)-12:])...),
	} {
		if c, err := claims.ParseClaim(boot, 100, b); !errors.Is(err, claims.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	for n := range good {
		if _, err := claims.ParseClaim(boot, 100, good[:n]); !errors.Is(err, claims.ErrCorrupt) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	if _, err := claims.ParseClaim(boot, math.MaxUint64-1, good); !errors.Is(err, claims.ErrCorrupt) {
		t.Errorf("an end beyond all: %v", err)
	}
	if _, err := claims.ParseClaim(boot, 100, changed(0, 2)); !errors.Is(err, claims.ErrNewer) {
		t.Errorf("version 2: %v", err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "no heads": {1, 9, 0}, "a head twice": {1, 9, 2, 2, 'e', 'u', 1, 2, 'e', 'u', 1}, "heads in another order": {1, 9, 2, 2, 'u', 's', 1, 2, 'e', 'u', 1},
		"fewer heads than it says": {1, 9, 2, 2, 'e', 'u', 1}, "no region": {1, 9, 1, 0, 1}, "a longer form of a number": {1, 9, 1, 2, 'e', 'u', 0x81, 0}, "a byte more": {1, 9, 1, 2, 'e', 'u', 1, 0},
	} {
		if s, _, err := claims.ParseHeads(boot, b); !errors.Is(err, claims.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestKeys(t *testing.T) {
	k := claims.Keys("/p/")
	key := k.Claim(boot, 42)
	if want := "/p/claims/686f73742d31/62/00000000000000000042"; key != want {
		t.Errorf("%s, want %s", key, want)
	}
	if b, start, err := k.ParseClaim(key); err != nil || b != boot || start != 42 {
		t.Errorf("%v %d %v", b, start, err)
	}
	if b, err := k.ParseHeads(k.Heads(boot)); err != nil || b != boot {
		t.Errorf("%v %v", b, err)
	}
	for _, bad := range []string{"", "/p/claims/", "/q" + key, key + "0", key[:len(key)-1], "/p/claims/686F73742d31/62/00000000000000000042", "/p/claims/62/00000000000000000042", "/p/claims//62/00000000000000000042", "/p/claims/6/62/00000000000000000042"} {
		if _, _, err := k.ParseClaim(bad); !errors.Is(err, claims.ErrNotAKey) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := k.ParseHeads(key); !errors.Is(err, claims.ErrNotAKey) {
		t.Errorf("a claim's key is not that of heads: %v", err)
	}
}

func FuzzParseClaim(f *testing.F) {
	for _, c := range examples {
		f.Add(c.Identity.SeqStart, c.Marshal())
	}
	f.Fuzz(func(t *testing.T, start uint64, b []byte) {
		c, err := claims.ParseClaim(boot, start, b)
		if err != nil {
			if !errors.Is(err, claims.ErrCorrupt) && !errors.Is(err, claims.ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(c.Marshal(), b) {
			t.Fatalf("%x is written as %x", b, c.Marshal())
		}
	})
}

func FuzzParseHeads(f *testing.F) {
	for _, s := range heads {
		f.Add(s.Marshal(7))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, above, err := claims.ParseHeads(boot, b)
		if err != nil {
			if !errors.Is(err, claims.ErrCorrupt) && !errors.Is(err, claims.ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(s.Marshal(above), b) {
			t.Fatalf("%x is written as %x", b, s.Marshal(above))
		}
	})
}
