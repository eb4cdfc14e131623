package putback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

const authority = "authority-1"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type clock struct{}

func (clock) Now() time.Time                                   { return time.Unix(1_700_000_000, 0) }
func (clock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// encode makes a frame of one record.
func encode(t testing.TB, seq uint64, value float64) accept.Submission {
	t.Helper()
	b := frame.NewBuilder()
	s, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	must(t, err)
	must(t, b.Append(s, 1, value))
	batch, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, seq)
	must(t, err)
	f, err := frame.Encode(nil, batch)
	must(t, err)
	return accept.Submission{Frame: f, SHA256: identity.Sum(f), Identity: batch.Identity, Records: 1, MinTime: 1, MaxTime: 1, WireVersion: 1, FrameVersion: 1, SpoolID: "spool"}
}

// submit accepts or quarantines as a collector does.
func submit(t testing.TB, s accept.Store, sub accept.Submission, inlineBelow int) accept.Result {
	t.Helper()
	p, err := accept.New(accept.Config{Store: s, AuthorityID: authority, CollectorID: "c", Clock: clock{}, Rand: rand.NewChaCha8([32]byte{byte(sub.Identity.SeqStart)}), InlineBelow: inlineBelow})
	must(t, err)
	r, err := p.Accept(t.Context(), sub)
	must(t, err)
	return r
}

// place gives what it has under a hash.
type place struct {
	name string
	has  map[identity.Digest][]byte
	err  error
	n    int
}

func (p *place) Name() string { return p.name }

func (p *place) Find(_ context.Context, ref accept.Reference) ([]byte, error) {
	p.n++
	if p.err != nil {
		return nil, p.err
	}
	if b := p.has[ref.SHA256]; b != nil {
		return b, nil
	}
	return nil, ErrNone
}

func with(name string, subs ...accept.Submission) *place {
	p := &place{name: name, has: map[identity.Digest][]byte{}}
	for _, s := range subs {
		p.has[s.SHA256] = s.Frame
	}
	return p
}

func repairer(s accept.Store, places ...Place) *Repairer {
	return &Repairer{Config: accept.Config{Store: s, AuthorityID: authority, CollectorID: "r1", Clock: clock{}}, Places: places}
}

// rotting answers HEAD by what it noted of an object when it was written, and GET with what has become of it.
type rotting struct {
	*mem.Store
	rotten map[string]bool
}

func newRotting() *rotting { return &rotting{mem.New(clock{}.Now), map[string]bool{}} }

func (s *rotting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, i, err := s.Store.Get(ctx, key, o)
	if err == nil && s.rotten[key] {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 1
	}
	return b, i, err
}

// Damage of every kind is mended from a place that has the bytes; what is damaged stays, and so does every record.
func TestFramesArePutBack(t *testing.T) {
	sub, loser := encode(t, 1, 1), encode(t, 1, 2)
	for name, c := range map[string]struct {
		damage func(s *rotting, key string)
		gen    uint32
		found  bool // the generation was there
	}{
		"gone": {func(s *rotting, key string) { must(t, s.Delete(t.Context(), key)) }, 0, false},
		"cut": {func(s *rotting, key string) {
			_, err := s.Put(t.Context(), key, []byte("LM"), objstore.PutOptions{})
			must(t, err)
		}, 1, false},
		"longer": {func(s *rotting, key string) {
			_, err := s.Put(t.Context(), key, make([]byte, 1000), objstore.PutOptions{})
			must(t, err)
		}, 1, false},
		"rotten below the checksum": {func(s *rotting, key string) { s.rotten[key] = true }, 1, false},
		"condemned": {func(s *rotting, key string) {
			sum, gen, err := layout.ParseBlob(key)
			must(t, err)
			_, err = s.Create(t.Context(), layout.Condemned(sum, gen), []byte("x"), objstore.PutOptions{})
			must(t, err)
			must(t, s.Delete(t.Context(), key))
		}, 1, false},
		"whole": {func(*rotting, string) {}, 0, true},
	} {
		for _, quarantined := range []bool{false, true} {
			s := newRotting()
			submit(t, s, sub, 0)
			submit(t, s, loser, 0)
			of, key := sub, layout.Accepted(sub.Identity)
			if quarantined {
				of, key = loser, layout.Quarantine(loser.Identity, loser.SHA256)
			}
			c.damage(s, layout.Blob(of.SHA256, 0))
			before := dump(t, s.Store)
			wrong, has, unasked := with("wrong", loser), with("has", sub, loser), with("unasked")
			wrong.has[sub.SHA256], wrong.has[loser.SHA256] = loser.Frame, sub.Frame
			r, err := repairer(s, with("none"), &place{name: "away", err: errors.New("no route")}, wrong, has, unasked).Repair(t.Context(), key)
			must(t, err)
			if r.From != "has" || r.Key != layout.Blob(of.SHA256, c.gen) || r.Written == c.found || unasked.n != 0 {
				t.Errorf("%s, quarantined %v: %+v", name, quarantined, r)
			}
			var said []string
			for _, a := range r.Answers {
				said = append(said, a.Place+" "+string(a.Said))
			}
			if got := strings.Join(said, ", "); got != "none none, away failed, wrong other_bytes, has frame" {
				t.Errorf("%s: %s", name, got)
			}
			if got, _, err := s.Get(t.Context(), r.Key, objstore.GetOptions{}); err != nil || !bytes.Equal(got, of.Frame) {
				t.Errorf("%s: %v", name, err)
			}
			after := dump(t, s.Store)
			for k, b := range before {
				if after[k] != b {
					t.Errorf("%s: %s was changed or deleted", name, k)
				}
			}
		}
	}
}

// dump is everything in a store.
func dump(t testing.TB, s *mem.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for o, err := range objstore.List(t.Context(), s, objstore.ListOptions{}) {
		must(t, err)
		b, _, err := s.Get(t.Context(), o.Key, objstore.GetOptions{})
		must(t, err)
		out[o.Key] = string(b)
	}
	return out
}

// Where no place has the frame, or all give other bytes, nothing is written.
func TestNothingIsPutBackWithoutTheBytes(t *testing.T) {
	s, sub, other := newRotting(), encode(t, 1, 1), encode(t, 2, 1)
	submit(t, s, sub, 0)
	must(t, s.Delete(t.Context(), layout.Blob(sub.SHA256, 0)))
	before := dump(t, s.Store)
	wrong := with("wrong")
	wrong.has[sub.SHA256] = other.Frame
	r, err := repairer(s, with("none"), wrong).Repair(t.Context(), layout.Accepted(sub.Identity))
	if err != nil || r.From != "" || r.Key != "" || len(r.Answers) != 2 || len(dump(t, s.Store)) != len(before) {
		t.Errorf("%+v, %v", r, err)
	}
	// Also where something else calls accept.Restore with them.
	_, err = accept.Restore(t.Context(), repairer(s).Config, layout.Accepted(sub.Identity), other.Frame)
	if !errors.Is(err, accept.ErrOtherBytes) || len(dump(t, s.Store)) != len(before) {
		t.Errorf("%v", err)
	}
}

// A record that is damaged, of another identity or of another authority says nothing about bytes; one that carries its frame
// can't be mended.
func TestRecordsInDoubt(t *testing.T) {
	s, sub, small := newRotting(), encode(t, 1, 1), encode(t, 5, 1)
	m := submit(t, s, sub, 0).Manifest
	submit(t, s, small, 1<<10)
	p := with("has", sub, small)
	if _, err := repairer(s, p).Repair(t.Context(), layout.Accepted(small.Identity)); !errors.Is(err, accept.ErrRecordHasFrame) {
		t.Error(err)
	}
	key := layout.Accepted(sub.Identity)
	foreign, moved := m, m
	foreign.AuthorityID = "another"
	moved.Identity.SeqStart, moved.Identity.SeqEnd = 7, 7
	for _, b := range [][]byte{[]byte("{}"), foreign.Marshal(), moved.Marshal()} {
		_, err := s.Put(t.Context(), key, b, objstore.PutOptions{})
		must(t, err)
		if _, err := repairer(s, p).Repair(t.Context(), key); err == nil {
			t.Errorf("%s is believed", b)
		}
	}
	if p.n != 0 {
		t.Errorf("%d questions", p.n)
	}
}

// Of an hour that retention has condemned the frame goes to a generation above, behind a note by which retention finds it.
func TestPutBackAfterRetention(t *testing.T) {
	s, sub := newRotting(), encode(t, 1, 1)
	submit(t, s, sub, 0)
	hour := timegrid.HourOfNS(sub.MaxTime)
	_, err := s.Create(t.Context(), layout.CondemnedHour(hour), accept.CondemnedHour{AuthorityID: authority, Hour: hour, Below: 3, By: "w"}.Marshal(), objstore.PutOptions{})
	must(t, err)
	s.rotten[layout.Blob(sub.SHA256, 0)] = true
	r, err := repairer(s, with("has", sub)).Repair(t.Context(), layout.Accepted(sub.Identity))
	if err != nil || r.Key != layout.Blob(sub.SHA256, 3) || !r.Written {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Head(t.Context(), layout.Rewritten(hour, sub.Identity, 3)); err != nil {
		t.Error(err)
	}
}

// A replica gives any generation whose bytes hash, also from a record that carries the frame.
func TestReplica(t *testing.T) {
	sub, loser := encode(t, 1, 1), encode(t, 1, 2)
	for name, c := range map[string]struct {
		prepare func(replica *rotting)
		there   bool
	}{
		"a copy":       {func(r *rotting) { submit(t, r, sub, 0); submit(t, r, loser, 0) }, true},
		"an empty one": {func(*rotting) {}, false},
		"damaged":      {func(r *rotting) { submit(t, r, sub, 0); r.rotten[layout.Blob(sub.SHA256, 0)] = true }, false},
		"an earlier generation": {func(r *rotting) {
			_, err := r.Create(t.Context(), layout.Blob(sub.SHA256, 4), sub.Frame, objstore.PutOptions{})
			must(t, err)
		}, true},
	} {
		s, replica := newRotting(), newRotting()
		submit(t, s, sub, 0)
		s.rotten[layout.Blob(sub.SHA256, 0)] = true
		c.prepare(replica)
		r, err := repairer(s, Replica{replica, "replica"}).Repair(t.Context(), layout.Accepted(sub.Identity))
		if err != nil || (r.From == "replica") != c.there || !c.there && r.Answers[0].Said != SaidNone {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// faulty fails one request, before or after it takes effect, and counts them.
type faulty struct {
	accept.Store
	at    int
	after bool
	n     int
}

var errCut = fmt.Errorf("cut off: %w", objstore.ErrUnknown)

func (f *faulty) around(do func() error) error {
	f.n++
	if f.n == f.at && !f.after {
		return errCut
	}
	err := do()
	if f.n == f.at {
		return errCut
	}
	return err
}

func (f *faulty) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = f.around(func() (e error) { b, i, e = f.Store.Get(ctx, key, o); return e })
	return b, i, err
}

func (f *faulty) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = f.around(func() (e error) { i, e = f.Store.Head(ctx, key); return e })
	return i, err
}

func (f *faulty) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = f.around(func() (e error) { i, e = f.Store.Create(ctx, key, b, o); return e })
	return i, err
}

// TestPutBackUnderFaults draws damage, condemned generations, requests that fail before or after they take effect, two
// repairers, senders that send again, and a collection of garbage after all. Whatever happens, records and objects that were
// there stay as they were, what is created under a hash has it, and what was put back can be read, from a generation
// that is not condemned.
func TestPutBackUnderFaults(t *testing.T) {
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 12))
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { putBackOnce(t, rng) }) {
			return
		}
	}
}

func putBackOnce(t *testing.T, rng *rand.Rand) {
	ctx := t.Context()
	s := newRotting()
	subs := []accept.Submission{encode(t, 1, 1), encode(t, 1, 2), encode(t, 9, 1)}
	keys := []string{layout.Accepted(subs[0].Identity), layout.Quarantine(subs[1].Identity, subs[1].SHA256), layout.Accepted(subs[2].Identity)}
	for _, sub := range subs {
		submit(t, s, sub, 0)
	}
	for _, sub := range subs {
		for gen := range uint32(1 + rng.IntN(3)) {
			key := layout.Blob(sub.SHA256, gen)
			if gen > 0 && rng.IntN(2) == 0 {
				_, err := s.Put(ctx, key, sub.Frame, objstore.PutOptions{})
				must(t, err)
			}
			switch rng.IntN(5) {
			case 0:
				_, err := s.Head(ctx, key)
				s.rotten[key] = err == nil // what is written later is whole
			case 1:
				_, err := s.Put(ctx, key, sub.Frame[:len(sub.Frame)/2], objstore.PutOptions{})
				must(t, err)
			case 2:
				must(t, s.Delete(ctx, key))
			}
			if rng.IntN(4) == 0 {
				_, err := s.Create(ctx, layout.Condemned(sub.SHA256, gen), []byte("x"), objstore.PutOptions{})
				must(t, err)
			}
		}
	}
	before := dump(t, s.Store)
	lies := with("lies")
	for i, sub := range subs {
		lies.has[sub.SHA256] = subs[(i+1)%len(subs)].Frame
	}
	for range 4 {
		i := rng.IntN(len(subs))
		f := &faulty{Store: s, at: rng.IntN(14), after: rng.IntN(2) == 0}
		places := []Place{with("has", subs...)}
		if rng.IntN(2) == 0 {
			places = append([]Place{lies}, places...)
		}
		r, err := repairer(f, places...).Repair(ctx, keys[i])
		if err != nil && !errors.Is(err, objstore.ErrUnknown) {
			t.Fatal(err)
		}
		if err == nil {
			checkRelied(t, s, &subs[i], r.Key)
		}
	}
	after := dump(t, s.Store)
	for k, b := range before {
		if after[k] != b {
			t.Errorf("%s was changed or deleted", k)
		}
	}
	for k, b := range after {
		if _, ok := before[k]; ok {
			continue
		}
		sum, _, err := layout.ParseBlob(k)
		if err != nil || identity.Sum([]byte(b)) != sum {
			t.Errorf("%s was created: %v", k, err)
		}
	}
	// Without faults all of them are whole, and stay so.
	var relied []string
	for i, key := range keys {
		r, err := repairer(s, with("has", subs...)).Repair(ctx, key)
		must(t, err)
		checkRelied(t, s, &subs[i], r.Key)
		relied = append(relied, r.Key)
	}
	g, err := gc.New(gc.Config{Store: s, AuthorityID: authority, Clock: clock{}})
	must(t, err)
	var blobs []string // all of them, as if the journal named none
	for k := range dump(t, s.Store) {
		if _, _, err := layout.ParseBlob(k); err == nil {
			blobs = append(blobs, k)
		}
	}
	p, err := g.PlanKeys(ctx, blobs, len(blobs), gc.PlanOptions{ID: "all", MinAge: -1})
	must(t, err)
	_, err = g.Execute(ctx, p, gc.ExecuteOptions{Force: true})
	must(t, err)
	for i, key := range relied {
		checkRelied(t, s, &subs[i], key)
	}
}

// checkRelied checks that a generation has the frame and is not condemned.
func checkRelied(t *testing.T, s *rotting, sub *accept.Submission, key string) {
	t.Helper()
	b, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
	if err != nil || !bytes.Equal(b, sub.Frame) {
		t.Errorf("%s was put back and can't be read: %v", key, err)
		return
	}
	_, gen, err := layout.ParseBlob(key)
	must(t, err)
	if _, err := s.Head(t.Context(), layout.Condemned(sub.SHA256, gen)); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("%s is relied on and condemned: %v", key, err)
	}
	if got, err := accept.ReadFrame(t.Context(), s, layout.Blob(sub.SHA256, 0), sub.SHA256, uint64(len(sub.Frame))); err != nil || !bytes.Equal(got, sub.Frame) {
		t.Errorf("readers don't find %s: %v", key, err)
	}
}
