package gc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

func (f faulty) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = f.around("head", key, func() (e error) { i, e = f.Store.Head(ctx, key); return })
	return i, err
}

func (f faulty) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (i objstore.Info, err error) {
	err = f.around("replace", key, func() (e error) { i, e = f.Store.Replace(ctx, key, b, etag, o); return })
	return i, err
}

// retained is one batch that retention removes once blocks cover it.
type retained struct {
	t       *testing.T
	s       *mem.Store
	sub     accept.Submission
	covered bool
}

func newRetained(t *testing.T) *retained {
	r := &retained{t: t, s: mem.New(nil), sub: encode(t, 1, 1), covered: true}
	submit(t, r.s, r.sub)
	return r
}

func (r *retained) hour() timegrid.Hour { return timegrid.HourOfNS(r.sub.MaxTime) }

// remove is a pass of retention over s; the proof is what r.covered says then.
func (r *retained) remove(ctx context.Context, s gc.FrameStore) ([]framelog.Frame, error) {
	r.t.Helper()
	f, err := gc.NewFrames(gc.FramesConfig{Store: s, AuthorityID: "authority-1", By: "test", Clock: &clock{}})
	if err != nil {
		r.t.Fatal(err)
	}
	return f.Hour(r.hour()).Remove(ctx, gc.FrameRemoval{
		Batches: []*accepted.Batch{{Identity: r.sub.Identity, FrameSHA256: r.sub.SHA256, FrameBytes: uint64(len(r.sub.Frame))}}, Before: time.Unix(9, 0),
		Prove: func(_ context.Context, frames []framelog.Frame) ([]framelog.Frame, error) {
			if !r.covered {
				return nil, nil
			}
			return frames, nil
		},
	})
}

// resend is an agent that was offline and sends the batch again, to a collector over s.
func (r *retained) resend(s accept.Store) {
	r.t.Helper()
	p, err := accept.New(accept.Config{Store: s, AuthorityID: "authority-1", CollectorID: "c2", Clock: &clock{}, Rand: ones{}})
	if err != nil {
		r.t.Fatal(err)
	}
	if res, err := p.Accept(context.WithoutCancel(r.t.Context()), r.sub); err != nil || res.Outcome != accept.Duplicate {
		r.t.Fatalf("%v, %v", res.Outcome, err)
	}
}

type ones struct{}

func (ones) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 1
	}
	return len(b), nil
}

func (r *retained) readable() bool { return readable(r.t, r.s, r.sub) }

func (r *retained) logged() bool {
	r.t.Helper()
	ok, err := framelog.NewIndex(r.s, "authority-1").Removed(r.t.Context(), r.sub.Identity)
	if err != nil {
		r.t.Fatal(err)
	}
	return ok
}

// The blocks of a batch are lost, and its agent sends it again: before each request of the removal
// that had proved that they cover it, and after the last. From then on the frame is all there is.
func TestADuplicateIsNotHitByARemovalUnderWay(t *testing.T) {
	for at := 0; ; at++ {
		r := newRetained(t)
		n := 0
		meanwhile := func(_, _ string) error {
			if n++; n == at+1 {
				r.covered = false
				r.resend(r.s)
			}
			return nil
		}
		if _, err := r.remove(t.Context(), faulty{Store: r.s, before: meanwhile}); err != nil {
			t.Fatal(err)
		}
		if n <= at {
			r.covered = false
			r.resend(r.s)
		}
		if !r.readable() {
			t.Errorf("sent again before request %d of %d: answered duplicate, and there is no frame", at+1, n)
		}
		if n <= at {
			return
		}
	}
}

// The removal runs between two requests of a duplicate: what the duplicate relies on is there.
func TestARemovalBetweenTwoRequestsOfADuplicate(t *testing.T) {
	for at := 0; ; at++ {
		r := newRetained(t)
		n := 0
		r.resend(faulty{Store: r.s, before: func(_, _ string) error {
			if n++; n == at+1 {
				if _, err := r.remove(t.Context(), r.s); err != nil {
					t.Fatal(err)
				}
			}
			return nil
		}})
		if n <= at {
			return
		}
		if !r.readable() || !r.logged() {
			t.Errorf("removed before request %d of %d: readable %v, logged %v", at+1, n, r.readable(), r.logged())
		}
	}
}

// A delete whose outcome is unknown is applied when the batch was sent again and its blocks are
// gone; so is one of each pass of retention over the generations that the passes before left behind.
func TestALateDeleteHitsNothingThatIsReliedOn(t *testing.T) {
	r := newRetained(t)
	var late []string
	lost := faulty{Store: r.s, before: func(op, key string) error {
		if op == "delete" {
			late = append(late, key)
			return objstore.ErrUnknown
		}
		return nil
	}}
	for pass := range 12 {
		if _, err := r.remove(t.Context(), lost); !errors.Is(err, objstore.ErrUnknown) {
			t.Fatal(err)
		}
		for _, key := range late {
			if err := r.s.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		r.resend(r.s)
		for _, key := range late {
			if err := r.s.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if !r.readable() {
			t.Fatalf("pass %d: no frame", pass)
		}
	}
}

// A frame that is not covered when its generation is condemned stays, and a duplicate of it
// only costs a further generation; later both go.
func TestWhatTheProofKeepsStays(t *testing.T) {
	r := newRetained(t)
	r.covered = false
	if removed, err := r.remove(t.Context(), r.s); err != nil || len(removed) > 0 || !r.readable() || r.logged() {
		t.Fatalf("%+v, %v", removed, err)
	}
	r.resend(r.s)
	if !has(t, r.s, layout.Blob(r.sub.SHA256, 1)) || !has(t, r.s, layout.Rewritten(r.hour(), r.sub.Identity, 1)) {
		t.Error("no further generation, or no note of it")
	}
	r.covered = true
	removed, err := r.remove(t.Context(), r.s)
	if err != nil || len(removed) != 1 || len(removed[0].Keys) != 2 || r.readable() || !r.logged() {
		t.Fatalf("%+v, %v", removed, err)
	}
}

// A dry run asks the proof and writes nothing.
func TestADryRunOfARemoval(t *testing.T) {
	r := newRetained(t)
	f, err := gc.NewFrames(gc.FramesConfig{Store: faulty{Store: r.s, before: func(op, key string) error {
		if op != "get" && op != "list" {
			t.Errorf("%s %s", op, key)
		}
		return nil
	}}, AuthorityID: "authority-1", By: "test", Clock: &clock{}})
	if err != nil {
		t.Fatal(err)
	}
	all := func(_ context.Context, f []framelog.Frame) ([]framelog.Frame, error) { return f, nil }
	removed, err := f.Hour(r.hour()).Remove(t.Context(), gc.FrameRemoval{
		Batches: []*accepted.Batch{{Identity: r.sub.Identity, FrameSHA256: r.sub.SHA256}}, Prove: all, DryRun: true, Below: 3,
	})
	if err != nil || len(removed) != 1 {
		t.Errorf("%+v, %v", removed, err)
	}
}

// A removal ends before or after each of its requests. What is gone is in a log then, and a
// repeat finishes.
func TestCrashesOfARemoval(t *testing.T) {
	for _, after := range []bool{false, true} {
		for crash := 0; ; crash++ {
			r := newRetained(t)
			n := 0
			fail := func(string, string) error {
				if n++; n > crash {
					return objstore.ErrUnknown
				}
				return nil
			}
			f := faulty{Store: r.s, before: fail}
			if after {
				dead := false
				f = faulty{Store: r.s, after: func(op, key string) error {
					if err := fail(op, key); err != nil {
						dead = true
						return err
					}
					return nil
				}, before: func(string, string) error {
					if dead {
						return objstore.ErrUnknown
					}
					return nil
				}}
			}
			_, err := r.remove(t.Context(), f)
			if !r.readable() && !r.logged() {
				t.Errorf("crash %d (after %v): the frame is gone, and no log says why", crash, after)
			}
			if _, err := r.remove(t.Context(), r.s); err != nil || r.readable() || !r.logged() {
				t.Errorf("crash %d (after %v): the repeat: %v", crash, after, err)
			}
			if err == nil {
				break
			}
		}
	}
}

// Two that raise the record of an hour at once: it only grows, and each knows when it is raised.
func TestAnHoursRecordOnlyGrows(t *testing.T) {
	r := newRetained(t)
	put(t, r.s, layout.Blob(r.sub.SHA256, 4), r.sub.Frame)
	others := 0
	another := func(op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.CondemnedPrefix) || op == "replace" {
			others++
			c := accept.CondemnedHour{AuthorityID: "authority-1", Hour: r.hour(), Below: uint32(others), By: "another"}
			put(t, r.s, layout.CondemnedHour(c.Hour), c.Marshal())
		}
		return nil
	}
	removed, err := r.remove(t.Context(), faulty{Store: r.s, before: another})
	if err != nil || len(removed) != 1 || r.readable() {
		t.Fatalf("%+v, %v", removed, err)
	}
	c, _, err := record.Read(t.Context(), r.s, layout.CondemnedHour(r.hour()), accept.CondemnedHourKind, accept.ParseCondemnedHour)
	if err != nil || c.Below != 5 || others != 5 {
		t.Errorf("%+v after %d others, %v", c, others, err)
	}
}

// Where the record can't be used nothing is removed, and no duplicate is answered.
func TestADamagedRecordOfAnHour(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "no record": "{}", "another authority": string(accept.CondemnedHour{AuthorityID: "authority-2", Hour: -1, Below: 1}.Marshal()),
		"another hour": string(accept.CondemnedHour{AuthorityID: "authority-1", Hour: 7, Below: 1}.Marshal()),
		"nothing":      string(accept.CondemnedHour{AuthorityID: "authority-1", Hour: -1}.Marshal()),
	} {
		r := newRetained(t)
		put(t, r.s, layout.CondemnedHour(r.hour()), []byte(body))
		if removed, err := r.remove(t.Context(), r.s); !errors.Is(err, record.ErrCorrupt) || !accept.CondemnedHourKind.Is(err) || len(removed) > 0 || !r.readable() {
			t.Errorf("%s: %+v, %v", name, removed, err)
		}
		p, err := accept.New(accept.Config{Store: r.s, AuthorityID: "authority-1", CollectorID: "c2", Clock: &clock{}, Rand: ones{}})
		if err != nil {
			t.Fatal(err)
		}
		var retry *accept.RetryError
		if _, err := p.Accept(t.Context(), r.sub); !errors.As(err, &retry) || retry.Reason != accept.ReasonCorruptCondemnedHour {
			t.Errorf("%s: a duplicate is answered %v", name, err)
		}
	}
}

// Accepting takes one read of a marker, as before retention had any; a duplicate takes two.
func TestWhoReadsTheRecordOfAnHour(t *testing.T) {
	r := &retained{t: t, s: mem.New(nil), sub: encode(t, 1, 1)}
	reads := 0
	s := faulty{Store: r.s, before: func(op, key string) error {
		if op == "get" && strings.HasPrefix(key, layout.CondemnedPrefix) {
			reads++
		}
		return nil
	}}
	p, err := accept.New(accept.Config{Store: s, AuthorityID: "authority-1", CollectorID: "c", Clock: &clock{}, Rand: zeros{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Accept(t.Context(), r.sub); err != nil || reads != 1 {
		t.Errorf("accepted with %d reads, %v", reads, err)
	}
	reads = 0
	if r.resend(s); reads != 2 {
		t.Errorf("duplicate with %d reads", reads)
	}
}

// On a versioned bucket retention deletes the versions that it finds, and asks for none elsewhere but once.
func TestRetentionDeletesVersions(t *testing.T) {
	for _, versioned := range []bool{true, false} {
		r := newRetained(t)
		v := &versions{Store: r.s, on: versioned}
		if frames, err := r.remove(t.Context(), v); err != nil || len(frames) != 1 || r.readable() {
			t.Fatalf("%+v, %v", frames, err)
		}
		want := layout.Blob(r.sub.SHA256, 0)
		if versioned {
			want += "?v1"
		}
		if !slices.Equal(v.deleted, []string{want}) {
			t.Errorf("deleted %q, want %q", v.deleted, want)
		}
	}
}
