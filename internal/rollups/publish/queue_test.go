package publish_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func testItem(due int64) publish.Item {
	return publish.Item{
		Keys:   []string{layout.BlockManifest(hour0, 1, timegrid.Raw, 2), layout.RollupIndex(hour0, sum(nil), 3), layout.RollupChunk(timegrid.OneHour, hour0, "é", sum(nil), 0)},
		Reason: "test <&>", Since: 5, Due: due,
	}
}

func TestDueItemsComeInOrder(t *testing.T) {
	s := mem.New(nil)
	var corrupt []string
	q := publish.NewObjectQueue(s, func(key string, err error) {
		if !errors.Is(err, record.ErrCorrupt) {
			t.Error(err)
		}
		corrupt = append(corrupt, key)
	})
	for _, due := range []int64{3000, 1000, 2000, 1000, 4000} { // one of them twice
		if err := q.Push(t.Context(), testItem(due)); err != nil {
			t.Fatal(err)
		}
	}
	bad := layout.Delayed(time.UnixMilli(1500), sum([]byte("x")))
	if _, err := s.Create(t.Context(), bad, []byte("{}"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	due := func(at int64, limit int) (dues []int64) {
		t.Helper()
		items, err := q.Due(t.Context(), time.UnixMilli(at), limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			dues = append(dues, i.Due)
			if !slices.Equal(i.Keys, testItem(0).Keys) || i.Reason != "test <&>" || i.Since != 5 {
				t.Errorf("%+v", i)
			}
		}
		return dues
	}
	if got := due(999, 10); got != nil {
		t.Errorf("%v", got)
	}
	if got := due(3000, 10); !slices.Equal(got, []int64{1000, 2000, 3000}) || !slices.Equal(corrupt, []string{bad}) {
		t.Errorf("%v, corrupt %q", got, corrupt)
	}
	if got := due(9000, 2); !slices.Equal(got, []int64{1000, 2000}) {
		t.Errorf("%v", got)
	}
	for range 2 {
		if err := q.Done(t.Context(), testItem(1000)); err != nil {
			t.Fatal(err)
		}
	}
	if got := due(9000, 10); !slices.Equal(got, []int64{2000, 3000, 4000}) {
		t.Errorf("%v", got)
	}
	if err := q.Push(t.Context(), publish.Item{Keys: []string{"accepted/v1/x"}}); err == nil {
		t.Error("a foreign key is queued")
	}
	if err := q.Push(t.Context(), publish.Item{}); err == nil {
		t.Error("an empty item is queued")
	}
}

func FuzzParseItem(f *testing.F) {
	i := testItem(1000)
	f.Add(i.Key(), i.Marshal())
	f.Add(i.Key(), []byte(strings.Replace(string(i.Marshal()), `"due`, ` "due`, 1)))
	f.Fuzz(func(t *testing.T, key string, b []byte) {
		i, err := publish.ParseItem(key, b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Error(err)
			}
			return
		}
		if i.Key() != key || string(i.Marshal()) != string(b) {
			t.Errorf("%q became %q", b, i.Marshal())
		}
	})
}

func TestBatchesOfReferences(t *testing.T) {
	w := newWorld(t)
	putPlan(t, w.store, 1)
	var texts []string
	for i := range 120 { // 240 objects: three metadata transactions
		texts = append(texts, strings.Repeat("x", i+1))
	}
	pub := publication(1, 0, texts...)
	phases := map[publish.Phase]bool{}
	var outcomes []publish.Outcome
	cfg := w.config()
	cfg.Events.Phase = func(p publish.Phase, _ time.Duration) { phases[p] = true }
	cfg.Events.Published = func(_ layout.BlockName, o publish.Outcome, _ error) { outcomes = append(outcomes, o) }
	p, err := publish.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Publish(t.Context(), pub)
	if err != nil {
		t.Fatal(err)
	}
	recs, next, err := w.refs.List(t.Context(), "", 0)
	if err != nil || next != "" || len(recs) != 240 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	for _, r := range recs {
		if !res.Block.Names(r.Key) || len(r.Txns) != 1 || string(r.Txns[0]) != res.Block.TransactionID {
			t.Fatalf("%v", r)
		}
	}
	if len(phases) != 5 || !slices.Equal(outcomes, []publish.Outcome{publish.OutcomeCommitted}) {
		t.Errorf("phases %v, outcomes %v", phases, outcomes)
	}
}
