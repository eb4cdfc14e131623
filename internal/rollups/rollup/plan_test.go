package rollup

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func testPlan() *Plan {
	p := &Plan{AuthorityID: "auth", Shards: 4, Shard: shard.Of("a <&> é", 4), Hour: testHour, Generation: 2, Parts: 1}
	for i := range uint64(3) {
		d := identity.Sum(fmt.Append(nil, i))
		p.Inputs = append(p.Inputs, accepted.Batch{
			Identity: identity.Batch{Agent: "a <&> é", Boot: fmt.Sprint("b", i/2), SeqStart: 10 * i, SeqEnd: 10*i + 9}, FrameSHA256: d, FrameBytes: 100,
			RawBlobKey: layout.Blob(d, uint32(i/2)), AcceptedAt: int64(i), MinTime: testHour.StartMS() * 1e6, MaxTime: testHour.EndMS() * 1e6,
		})
	}
	return p
}

func TestPlanRoundTrip(t *testing.T) {
	p := testPlan()
	old, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParsePlan(old); err != nil || got.Journal != nil {
		t.Errorf("without positions: %+v, %v", got, err)
	}
	p.Journal = catalog.ReadThrough(journal.Positions{Head: 2, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}}})
	b, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParsePlan(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, bytes.TrimSuffix(old, []byte("}"))) {
		t.Errorf("%s does not continue %s", b, old)
	}
	if !reflect.DeepEqual(got, p) {
		t.Errorf("got  %+v\nwant %+v", got, p)
	}
	set, err := p.InputSet()
	if err != nil || set.Records() != p.Records() || !set.Covers(p.Inputs[1].Identity) {
		t.Errorf("input set %+v, %v", set, err)
	}
}

// TestPlanObjects: a plan is stored compressed, and one that a former release stored as JSON is read as well. Every damaged
// or cut object is refused, and so is one that would take more memory than a plan may.
func TestPlanObjects(t *testing.T) {
	p := testPlan()
	for i := range uint64(400) {
		d := identity.Sum(fmt.Append(nil, "more", i))
		p.Inputs = append(p.Inputs, accepted.Batch{Identity: identity.Batch{Agent: "a <&> é", Boot: "c", SeqStart: 10 * i, SeqEnd: 10*i + 9}, FrameSHA256: d, FrameBytes: 2000 + i%7,
			RawBlobKey: layout.Blob(d, 0), AcceptedAt: int64(i) * 7_919_000_017, MinTime: testHour.StartMS() * 1e6, MaxTime: testHour.EndMS() * 1e6})
	}
	plain, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
		t.Errorf("the same plan has other bytes, %v", err)
	}
	if 2*len(b) > len(plain) {
		t.Errorf("%d bytes, of %d of JSON", len(b), len(plain))
	}
	for name, o := range map[string][]byte{"compressed": b, "plain": plain} {
		if got, err := ParsePlan(o); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	huge := planEncoder().EncodeAll(make([]byte, PlanKind.MaxBytes+1), nil)
	damaged := map[string][]byte{"twice": slices.Concat(b, b), "too large": huge, "empty frame": planEncoder().EncodeAll(nil, nil), "no JSON": planEncoder().EncodeAll([]byte("plan"), nil)}
	for i := 0; i < len(b); i += 97 {
		damaged[fmt.Sprint("cut at ", i)] = b[:i]
		x := slices.Clone(b)
		x[i] ^= 4
		damaged[fmt.Sprint("damaged at ", i)] = x
	}
	for name, o := range damaged {
		if _, err := ParsePlan(o); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	p := testPlan()
	p.Journal = catalog.ReadThrough(journal.Positions{Head: 2, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}}})
	good, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]string{
		"empty": "", "cut": string(good[:len(good)-1]), "space": strings.Replace(string(good), ":", ": ", 1),
		"schema":     strings.Replace(string(good), "plan.v1", "plans.v1", 1),
		"shard":      strings.Replace(string(good), `"shard":`, `"shard":1`, 1),
		"generation": strings.Replace(string(good), `"generation":2`, `"generation":0`, 1),
		"parts":      strings.Replace(string(good), `"parts":1`, `"parts":0`, 1),
		"range":      strings.Replace(string(good), `[0,9,`, `[10,9,`, 1),
		"order":      strings.Replace(string(good), `[0,9,`, `[20,29,`, 1),
		"fields":     strings.Replace(string(good), `[0,9,`, `[0,9,1,`, 1),
		"authority":  strings.Replace(string(good), `"auth"`, `""`, 1),
		"positions":  strings.Replace(string(good), `{"head":2,"runs":[{"run":"01000000000000000000000000000000","next":4}]}`, `{"head":0,"runs":[]}`, 1),
		"runs":       strings.Replace(string(good), `[{"run":"01000000000000000000000000000000","next":4}]`, `null`, 1),
		"hour":       strings.Replace(string(good), `2026-11-21T13`, `2026-11-21T25`, 1),
	} {
		if _, err := ParsePlan([]byte(b)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	good, _ := testPlan().Marshal()
	f.Add(good)
	object, _ := testPlan().Encode()
	f.Add(object)
	f.Add([]byte(`{"schema":"lightmetrics.rollup_plan.v1","boots":[{"batches":[[1,2,null]]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePlan(b)
		if err != nil {
			return
		}
		if b, err = planText(b); err != nil {
			t.Fatal(err)
		}
		if again, err := p.Marshal(); err != nil || string(again) != string(b) {
			t.Errorf("%q is read and written as %q, %v", b, again, err)
		}
	})
}
