package rollup

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
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
	f.Add([]byte(`{"schema":"lightmetrics.rollup_plan.v1","boots":[{"batches":[[1,2,null]]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePlan(b)
		if err != nil {
			return
		}
		if again, err := p.Marshal(); err != nil || string(again) != string(b) {
			t.Errorf("%q is read and written as %q, %v", b, again, err)
		}
	})
}
