package accept_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation runs collectors and a garbage collector as coroutines that stop
// before every request. A seeded scheduler picks who goes on, which answers are
// lost, which writes land later (or never), and who dies. One seed is one schedule.

type sim struct {
	rng     *rand.Rand
	store   *mem.Store
	late    []func() // writes whose sender got no answer, and which may land at any time
	ids     map[identity.Digest]identity.Batch
	frames  map[identity.Digest][]byte
	trace   []string
	violate error

	truth     map[identity.Batch]identity.Digest // the hash that was acknowledged
	accepted  map[identity.Batch]int
	kept      map[identity.Digest]bool // frames that an answer promised to keep
	conflicts map[string]bool          // quarantine keys that were answered
	blind     blindness
}

// blindness takes one guard away, from the outside.
type blindness uint8

const (
	sighted        blindness = iota
	noMarker                 // step 11 never sees a marker
	noMarkerOnDup            // … on the path of a manifest that was there
	noMarkerOnLoss           // … on the path of a quarantine record
	earlyMarker              // the marker is read before the manifest is created, not after
	trustExisting            // an existing blob is believed to be right
)

type actor struct {
	*sim
	name   string
	yield  func(struct{}) bool
	dead   bool
	cancel context.CancelFunc
	// for blindness
	sawExists, sawQuarantine bool
	early                    map[string]bool
}

func (a *actor) stop() bool {
	if !a.dead && !a.yield(struct{}{}) {
		a.dead = true
		a.cancel()
	}
	return a.dead
}

func (s *sim) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) failf(format string, args ...any) {
	if s.violate == nil {
		s.violate = fmt.Errorf(format, args...)
		s.logf("VIOLATION: %v", s.violate)
	}
}

var errCrashed = fmt.Errorf("crashed: %w", context.Canceled)

// write is one write with a seeded fate.
func (a *actor) write(op, key string, apply func() error) error {
	dead := a.stop()
	fate := a.rng.IntN(100)
	if dead { // the request may have left just before
		if fate < 50 {
			a.late = append(a.late, func() { a.logf("late of %s: %s %s: %v", a.name, op, key, apply()) })
		}
		return errCrashed
	}
	switch {
	case fate < 72:
		err := apply()
		a.logf("%s: %s %s: %v", a.name, op, key, err)
		return err
	case fate < 80:
		a.logf("%s: %s %s: lost answer, was %v", a.name, op, key, apply())
		return objstore.ErrUnknown
	case fate < 90:
		a.late = append(a.late, func() { a.logf("late of %s: %s %s: %v", a.name, op, key, apply()) })
		a.logf("%s: %s %s: unknown, in flight", a.name, op, key)
		return objstore.ErrUnknown
	case fate < 95:
		a.logf("%s: %s %s: unknown, dropped", a.name, op, key)
		return objstore.ErrUnknown
	}
	a.logf("%s: %s %s: 409", a.name, op, key)
	return objstore.ErrConflict
}

func (a *actor) read(op, key string, look func() error) error {
	if a.stop() {
		return errCrashed
	}
	if a.rng.IntN(100) < 6 {
		a.logf("%s: %s %s: unavailable", a.name, op, key)
		return objstore.ErrUnavailable
	}
	err := look()
	a.logf("%s: %s %s: %v", a.name, op, key, err)
	return err
}

func (a *actor) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	err := a.write("create", key, func() error {
		_, err := a.store.Create(context.Background(), key, body, o)
		return err
	})
	if a.blind == earlyMarker && strings.HasPrefix(key, layout.RawBlobsPrefix) {
		d, gen, _ := layout.ParseBlob(key)
		_, _, gerr := a.store.Get(context.Background(), layout.Condemned(d, gen), objstore.GetOptions{})
		a.early[layout.Condemned(d, gen)] = gerr == nil
	}
	a.sawExists = a.sawExists || errors.Is(err, objstore.ErrExists) && strings.HasPrefix(key, layout.AcceptedPrefix)
	a.sawQuarantine = a.sawQuarantine || strings.HasPrefix(key, layout.QuarantinePrefix)
	return objstore.Info{}, err
}

func (a *actor) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = a.read("get", key, func() (e error) { b, i, e = a.store.Get(context.Background(), key, o); return })
	if err == nil && strings.HasPrefix(key, layout.CondemnedPrefix) {
		switch {
		case a.blind == noMarker, a.blind == noMarkerOnDup && a.sawExists && !a.sawQuarantine,
			a.blind == noMarkerOnLoss && a.sawQuarantine, a.blind == earlyMarker && !a.early[key]:
			return nil, i, objstore.ErrNotFound
		}
	}
	return b, i, err
}

func (a *actor) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = a.read("head", key, func() (e error) { i, e = a.store.Head(context.Background(), key); return })
	if d, _, perr := layout.ParseBlob(key); err == nil && perr == nil && a.blind == trustExisting {
		i.Size, i.SHA256 = int64(len(a.frames[d])), d
	}
	return i, err
}

// collector submits frames in a random order, each until it is told an outcome or loses patience.
func (a *actor) collector(ctx context.Context, work []accept.Submission) {
	p, err := accept.New(accept.Config{
		Store: tried(a, &tickClock{}), AuthorityID: "authority-1", CollectorID: a.name, Clock: &tickClock{}, Rand: seededRand(a.rng.Uint64()),
		Policy: accept.Policy{Generations: 6},
	})
	if err != nil {
		panic(err)
	}
	for _, sub := range work {
		for range 3 {
			a.sawExists, a.sawQuarantine = false, false
			res, err := p.Accept(ctx, sub)
			if a.dead {
				return
			}
			var retry *accept.RetryError
			if err == nil {
				a.answered(sub, res)
				break
			}
			a.logf("%s: %v", a.name, err)
			if !errors.As(err, &retry) {
				a.failf("%s: neither an outcome nor a retry: %v", a.name, err)
				return
			}
		}
	}
}

func (a *actor) answered(sub accept.Submission, res accept.Result) {
	id, won := sub.Identity, res.Manifest.FrameSHA256
	a.logf("%s: ANSWER %s %s for %.8s, manifest %.8s", a.name, id, res.Outcome, sub.SHA256, won)
	if was, ok := a.truth[id]; ok && was != won {
		a.failf("two hashes for %s", id)
	}
	a.truth[id] = won
	a.kept[sub.SHA256] = true
	switch res.Outcome {
	case accept.Accepted:
		a.accepted[id]++
		if a.accepted[id] > 1 {
			a.failf("%s accepted twice", id)
		}
		if won != sub.SHA256 {
			a.failf("accepted, and the manifest has another hash")
		}
	case accept.Duplicate:
		if won != sub.SHA256 {
			a.failf("duplicate, and the manifest has another hash")
		}
	case accept.Conflict:
		if won == sub.SHA256 {
			a.failf("conflict with itself")
		}
		a.conflicts[res.QuarantineKey] = true
	default:
		a.failf("no outcome")
	}
	a.checkKept(sub.SHA256)
}

// checkKept wants a readable generation, and the manifest or quarantine record that says so.
func (s *sim) checkKept(d identity.Digest) {
	ok := false
	for gen := range uint32(64) {
		b, _, err := s.store.Get(context.Background(), layout.Blob(d, gen), objstore.GetOptions{})
		ok = ok || err == nil && identity.Sum(b) == d
	}
	if !ok {
		s.failf("no generation of %.8s is readable", d)
	}
}

// collect is a garbage collector of the worst kind: no minimum age, every blob is a candidate.
func (a *actor) collect(passes int) {
	for range passes {
		var keys []string
		if a.stop() {
			return
		}
		storetest.Each(context.Background(), a.store, layout.RawBlobsPrefix, func(i objstore.Info) error {
			keys = append(keys, i.Key)
			return nil
		})
		for _, key := range keys {
			a.collectOne(key)
			if a.dead {
				return
			}
		}
	}
}

func (a *actor) collectOne(key string) {
	d, gen, _ := layout.ParseBlob(key)
	m := accept.CondemnedMarker{FrameSHA256: d, Generation: gen, PlanID: a.name}
	confirmed := false
	for range 3 {
		_, err := a.Create(context.Background(), m.Key(), m.Marshal(), objstore.PutOptions{})
		if err == nil || errors.Is(err, objstore.ErrExists) {
			confirmed = true
			break
		}
	}
	if !confirmed {
		return
	}
	id := a.ids[d]
	b, _, err := a.Get(context.Background(), layout.Accepted(id), objstore.GetOptions{})
	if err == nil {
		if man, perr := accept.ParseManifest(b); perr != nil || man.FrameSHA256 == d {
			return
		}
	} else if !errors.Is(err, objstore.ErrNotFound) {
		return
	}
	if _, _, err = a.Get(context.Background(), layout.Quarantine(id, d), objstore.GetOptions{}); !errors.Is(err, objstore.ErrNotFound) {
		return
	}
	a.write("delete", key, func() error { return a.store.Delete(context.Background(), key) })
}

// runSim plays one schedule and returns its trace, and the first broken promise as its error.
func runSim(seed uint64, blind blindness) ([]string, error) {
	s := &sim{
		rng: rand.New(rand.NewPCG(seed, 1)), store: mem.New(nil), blind: blind,
		ids: map[identity.Digest]identity.Batch{}, frames: map[identity.Digest][]byte{},
		truth: map[identity.Batch]identity.Digest{}, accepted: map[identity.Batch]int{},
		kept: map[identity.Digest]bool{}, conflicts: map[string]bool{},
	}
	var subs []accept.Submission
	for i := range 1 + s.rng.IntN(2) {
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(10 * i), SeqEnd: uint64(10*i + 9)}
		for v := range 1 + s.rng.IntN(2) {
			sub := submission(id, strconv.Itoa(v))
			s.ids[sub.SHA256], s.frames[sub.SHA256] = id, sub.Frame
			subs = append(subs, sub)
			switch s.rng.IntN(6) {
			case 0: // an old orphan
				s.store.Put(context.Background(), layout.Blob(sub.SHA256, 0), sub.Frame, objstore.PutOptions{})
			case 1: // garbage of an old accident
				s.store.Put(context.Background(), layout.Blob(sub.SHA256, 0), sub.Frame[:5], objstore.PutOptions{})
			}
		}
	}
	type coroutine struct {
		next func() (struct{}, bool)
		kill func()
		gc   bool
	}
	var live []coroutine
	start := func(name string, gc bool, body func(*actor, context.Context)) {
		ctx, cancel := context.WithCancel(context.Background())
		a := &actor{sim: s, name: name, cancel: cancel, early: map[string]bool{}}
		next, kill := iter.Pull(func(yield func(struct{}) bool) {
			defer cancel()
			a.yield = yield
			body(a, ctx)
		})
		live = append(live, coroutine{next, kill, gc})
	}
	for i := range 2 + s.rng.IntN(3) {
		work := make([]accept.Submission, 1+s.rng.IntN(3))
		for j := range work {
			work[j] = subs[s.rng.IntN(len(subs))]
		}
		start("c"+strconv.Itoa(i), false, func(a *actor, ctx context.Context) { a.collector(ctx, work) })
	}
	start("gc", true, func(a *actor, _ context.Context) { a.collect(1 + s.rng.IntN(3)) })

	for len(live) > 0 && s.violate == nil {
		if len(s.late) > 0 && s.rng.IntN(8) == 0 {
			s.landOne()
			continue
		}
		i := s.rng.IntN(len(live))
		if s.rng.IntN(150) == 0 {
			s.logf("crash")
			live[i].kill()
			live = append(live[:i], live[i+1:]...)
			continue
		}
		if _, more := live[i].next(); !more {
			live = append(live[:i], live[i+1:]...)
		}
	}
	for _, c := range live {
		c.kill()
	}
	for len(s.late) > 0 {
		s.landOne()
	}
	s.finish()
	return s.trace, s.violate
}

// landOne lets a late write land, or be lost for good.
func (s *sim) landOne() {
	i := s.rng.IntN(len(s.late))
	f := s.late[i]
	s.late = append(s.late[:i], s.late[i+1:]...)
	if s.rng.IntN(4) > 0 {
		f()
	}
}

// finish checks every promise against what the store holds at the end.
func (s *sim) finish() {
	for d := range s.kept {
		s.checkKept(d)
	}
	for id, d := range s.truth {
		b, _, err := s.store.Get(context.Background(), layout.Accepted(id), objstore.GetOptions{})
		if err != nil {
			s.failf("%s was answered and has no manifest: %v", id, err)
			continue
		}
		if m, err := accept.ParseManifest(b); err != nil || m.FrameSHA256 != d {
			s.failf("manifest of %s is not what was answered (%v)", id, err)
		}
	}
	for key := range s.conflicts {
		b, _, err := s.store.Get(context.Background(), key, objstore.GetOptions{})
		if err != nil {
			s.failf("conflict without its quarantine record: %v", err)
			continue
		}
		if _, err := accept.ParseConflictRecord(b); err != nil {
			s.failf("quarantine record: %v", err)
		}
	}
}

func TestSimulation(t *testing.T) {
	seeds, first := uint64(6000), uint64(1)
	if testing.Short() {
		seeds = 600
	}
	if v := os.Getenv("ACCEPT_SIM_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, seeds = n, 1
	}
	for seed := first; seed < first+seeds; seed++ {
		if trace, err := runSim(seed, sighted); err != nil {
			t.Fatalf("ACCEPT_SIM_SEED=%d: %v\n%s", seed, err, strings.Join(trace, "\n"))
		}
	}
	t.Logf("%d schedules from seed %d", seeds, first)
}

// TestSimulationFindsMissingGuard proves that the simulation can see: with one guard
// taken away, some schedule breaks a promise.
func TestSimulationFindsMissingGuard(t *testing.T) {
	for name, blind := range map[string]blindness{
		"no marker": noMarker, "no marker on duplicate": noMarkerOnDup, "no marker on conflict": noMarkerOnLoss,
		"marker before manifest": earlyMarker, "existing blob trusted": trustExisting,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 20000; seed++ {
				if _, err := runSim(seed, blind); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("no schedule broke a promise")
		})
	}
}
