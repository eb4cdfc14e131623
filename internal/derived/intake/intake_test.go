package intake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var bg = context.Background()

const shards = 4

func entry(agent string, seq uint64) accepted.Batch {
	d := identity.Sum(fmt.Appendf(nil, "%s %d", agent, seq))
	return accepted.Batch{
		Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: seq, SeqEnd: seq + 9}, FrameSHA256: d, FrameBytes: 100,
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: 5, MinTime: 1e18, MaxTime: 1e18 + 1,
	}
}

// agentOf gives an agent of the shard.
func agentOf(s shard.ID) string {
	for i := 0; ; i++ {
		if a := fmt.Sprintf("agent-%d", i); shard.Of(a, shards) == s {
			return a
		}
	}
}

func TestSegmentsRoundTrip(t *testing.T) {
	a := agentOf(2)
	seg := Segment{Shard: 2, Shards: shards, Entries: []accepted.Batch{entry(a, 0), entry(a, 10)}}
	b, err := seg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSegment(b)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(seg) {
		t.Errorf("got  %v\nwant %v", got, seg)
	}
}

func TestBadSegmentsAreRefused(t *testing.T) {
	a := agentOf(2)
	good, err := Segment{Shard: 2, Shards: shards, Entries: []accepted.Batch{entry(a, 0)}}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]string{
		"empty": "", "not JSON": "x", "cut": string(good[:len(good)-1]), "two": string(good) + string(good),
		"space":          strings.Replace(string(good), ":", ": ", 1),
		"unknown field":  strings.Replace(string(good), `"shard":`, `"more":1,"shard":`, 1),
		"schema":         strings.Replace(string(good), "segment.v1", "segments.v1", 1),
		"shard":          strings.Replace(string(good), `"shard":2`, `"shard":1`, 1),
		"no shards":      strings.Replace(string(good), `"shards":4`, `"shards":0`, 1),
		"no entries":     `{"schema":"lightmetrics.intake_segment.v1","shard":2,"shards":4,"entries":[]}`,
		"range":          strings.Replace(string(good), `"seq_end":9`, `"seq_end":0,"x":0`, 1),
		"times":          strings.Replace(string(good), `"max_time_unix_ns":1000000000000000001`, `"max_time_unix_ns":1`, 1),
		"no frame bytes": strings.Replace(string(good), `"frame_bytes":100`, `"frame_bytes":0`, 1),
		"long":           string(good) + strings.Repeat(" ", SegmentKind.MaxBytes),
	} {
		if _, err := ParseSegment([]byte(b)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (Segment{Shard: 2, Shards: shards, Entries: make([]accepted.Batch, MaxEntries+1)}).Marshal(); err == nil {
		t.Error("too many entries are written")
	}
}

func FuzzParseSegment(f *testing.F) {
	good, _ := Segment{Shard: 2, Shards: shards, Entries: []accepted.Batch{entry(agentOf(2), 0)}}.Marshal()
	f.Add(good)
	f.Add([]byte(`{"schema":"lightmetrics.intake_segment.v1","shard":2,"shards":4,"entries":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSegment(b)
		if err != nil {
			return
		}
		if again, err := s.Marshal(); err != nil || string(again) != string(b) {
			t.Errorf("%q is read and written as %q, %v", b, again, err)
		}
	})
}

// all reads every entry of the shard with a new reader.
func all(t *testing.T, s objstore.Store, id shard.ID) map[identity.Batch]int {
	t.Helper()
	got := map[identity.Batch]int{}
	poll(t, NewReader(s, id), s, 0, got)
	return got
}

func poll(t *testing.T, r *Reader, s objstore.Store, limit int, into map[identity.Batch]int) (more bool) {
	t.Helper()
	more, err := r.Poll(bg, limit, func(key string) error {
		seg, err := ReadSegment(bg, s, key)
		for _, e := range seg.Entries {
			into[e.Identity]++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return more
}

// lossy answers "unknown" to creates: before or after they are applied.
type lossy struct {
	objstore.Store
	before, after bool
}

func (l *lossy) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if l.before {
		return objstore.Info{}, objstore.ErrUnknown
	}
	info, err := l.Store.Create(ctx, key, b, o)
	if l.after {
		return objstore.Info{}, objstore.ErrUnknown
	}
	return info, err
}

// Whatever becomes of a write, its entries are in the log once it was repeated with success.
func TestLostRepliesLoseNothing(t *testing.T) {
	for _, c := range []struct{ before, after, grown, deleted bool }{
		{before: true}, {after: true}, {after: true, grown: true}, {after: true, deleted: true}, {before: true, grown: true},
	} {
		s := &lossy{Store: mem.New(time.Now), before: c.before, after: c.after}
		w := NewWriter(s, "aa", shards)
		a := agentOf(1)
		entries := []accepted.Batch{entry(a, 0), entry(a, 10)}
		if err := w.Write(bg, 1, entries); !errors.Is(err, objstore.ErrUnknown) {
			t.Fatalf("%+v: %v", c, err)
		}
		s.before, s.after = false, false
		if c.grown {
			entries = append(entries, entry(a, 20))
		}
		seen := all(t, s, 1)
		if c.deleted { // the owner was quick
			if err := s.Delete(bg, layout.IntakeSegment(1, "aa", 0)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Write(bg, 1, entries); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if err := w.Write(bg, 1, []accepted.Batch{entry(a, 90)}); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for id, n := range all(t, s, 1) {
			seen[id] += n
		}
		for _, e := range append(entries, entry(a, 90)) {
			if seen[e.Identity] == 0 {
				t.Errorf("%+v: %s is lost", c, e.Identity)
			}
		}
	}
}

func TestReadersSeeEachSegmentOnce(t *testing.T) {
	s := mem.New(time.Now)
	a, b := NewWriter(s, "aa", shards), NewWriter(s, "bb", shards)
	agent, other := agentOf(3), agentOf(0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(s, 3)
	got := map[identity.Batch]int{}
	for i := range uint64(5) {
		must(a.Write(bg, 3, []accepted.Batch{entry(agent, 10*i)}))
		must(b.Write(bg, 3, []accepted.Batch{entry(agent, 1000+10*i)}))
		must(b.Write(bg, 0, []accepted.Batch{entry(other, 10*i)}))
		if i == 2 {
			poll(t, r, s, 0, got)
			must(s.Delete(bg, layout.IntakeSegment(3, "bb", 0)))
			must(s.Delete(bg, layout.IntakeSegment(3, "bb", 1)))
			must(s.Delete(bg, layout.IntakeSegment(3, "bb", 2)))
			poll(t, r, s, 0, got) // the run is gone, and comes back
		}
	}
	for poll(t, r, s, 1, got) {
	}
	if len(got) != 10 {
		t.Errorf("%d batches, want 10", len(got))
	}
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s was given %d times", id, n)
		}
	}
}

// A segment that can't be taken now is given again.
func TestRefusedSegmentsComeBack(t *testing.T) {
	s := mem.New(time.Now)
	w := NewWriter(s, "aa", shards)
	if err := w.Write(bg, 1, []accepted.Batch{entry(agentOf(1), 0)}); err != nil {
		t.Fatal(err)
	}
	r := NewReader(s, 1)
	refusal := errors.New("not now")
	if _, err := r.Poll(bg, 0, func(string) error { return refusal }); !errors.Is(err, refusal) {
		t.Fatal(err)
	}
	got := map[identity.Batch]int{}
	if poll(t, r, s, 0, got); len(got) != 1 {
		t.Errorf("%d batches after the refusal", len(got))
	}
}

// A segment that was written after all and is damaged at rest does not end the log.
func TestWriterPassesADamagedSegment(t *testing.T) {
	s := &lossy{Store: mem.New(time.Now), after: true}
	w := NewWriter(s, "aa", shards)
	entries := []accepted.Batch{entry(agentOf(1), 0)}
	if err := w.Write(bg, 1, entries); !errors.Is(err, objstore.ErrUnknown) {
		t.Fatal(err)
	}
	s.after = false
	w.Store = fault.New(s, 1, fault.Refused("get", layout.IntakeSegment(1, "aa", 0), objstore.ErrChecksum))
	for range 2 {
		if err := w.Write(bg, 1, entries); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Head(bg, layout.IntakeSegment(1, "aa", 2)); err != nil {
		t.Error(err)
	}
}

// A segment that can't be taken now holds up nothing behind it, and is given again until
// it is taken; only so many are put aside.
func TestSegmentsThatArePutAside(t *testing.T) {
	s := mem.New(time.Now)
	w := NewWriter(s, "aa", shards)
	agent := agentOf(1)
	const n = MaxDeferred + 2
	for i := range uint64(n) {
		if err := w.Write(bg, 1, []accepted.Batch{entry(agent, 10*i)}); err != nil {
			t.Fatal(err)
		}
	}
	bad := map[string]bool{layout.IntakeSegment(1, "aa", 0): true, layout.IntakeSegment(1, "aa", 7): true}
	r, taken := NewReader(s, 1), map[string]int{}
	take := func(key string) error {
		if bad[key] {
			return fmt.Errorf("get %q: %w: %w", key, ErrLater, objstore.ErrUnavailable)
		}
		taken[key]++
		return nil
	}
	for range 3 {
		if _, err := r.Poll(bg, 0, take); err != nil {
			t.Fatal(err)
		}
		if len(taken) != n-2 || r.Deferred() != 2 {
			t.Fatalf("%d taken, %d aside", len(taken), r.Deferred())
		}
	}
	clear(bad)
	if _, err := r.Poll(bg, 0, take); err != nil || len(taken) != n || r.Deferred() != 0 {
		t.Fatalf("healed: %d taken, %d aside, %v", len(taken), r.Deferred(), err)
	}
	for key, times := range taken {
		if times != 1 {
			t.Errorf("%s was taken %d times", key, times)
		}
	}

	// All of them: the reader waits at the bound, and nothing is passed over.
	r, taken = NewReader(s, 1), map[string]int{}
	later := func(string) error { return ErrLater }
	for range 3 {
		if _, err := r.Poll(bg, 0, later); !errors.Is(err, ErrLater) || r.Deferred() != MaxDeferred {
			t.Fatalf("%d aside, %v", r.Deferred(), err)
		}
	}
	if _, err := r.Poll(bg, 0, take); err != nil {
		t.Fatal(err)
	}
	if len(taken) != n || r.Deferred() != 0 {
		t.Errorf("%d taken, %d aside", len(taken), r.Deferred())
	}
}

// Runs above the bound wait until others are consumed, and are not lost.
func TestMoreRunsThanAreFollowed(t *testing.T) {
	s := mem.New(time.Now)
	agent := agentOf(1)
	const runs = MaxRuns + 3
	for i := range uint64(runs) {
		if err := NewWriter(s, fmt.Sprintf("%08x", i), shards).Write(bg, 1, []accepted.Batch{entry(agent, 10*i)}); err != nil {
			t.Fatal(err)
		}
	}
	r, taken := NewReader(s, 1), map[string]int{}
	take := func(key string) error { taken[key]++; return nil }
	if more, err := r.Poll(bg, 0, take); err != nil || more || len(taken) != MaxRuns || !r.Crowded() {
		t.Fatalf("%d taken, more %v, crowded %v, %v", len(taken), more, r.Crowded(), err)
	}
	for i := range uint64(5) {
		if err := s.Delete(bg, layout.IntakeSegment(1, fmt.Sprintf("%08x", i), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Poll(bg, 0, take); err != nil || len(taken) != runs || r.Crowded() {
		t.Fatalf("%d taken, crowded %v, %v", len(taken), r.Crowded(), err)
	}
}

// A segment under another shard's key is none.
func TestSegmentOfAnotherShard(t *testing.T) {
	s := mem.New(time.Now)
	body, err := Segment{Shard: 2, Shards: shards, Entries: []accepted.Batch{entry(agentOf(2), 0)}}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	key := layout.IntakeSegment(1, "aa", 0)
	if _, err := s.Create(bg, key, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSegment(bg, s, key); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
}
