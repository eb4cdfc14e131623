package journal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation runs collectors, fencers, followers and folders over one store, as coroutines that
// stop before every request. A seeded scheduler picks who goes on, which answers are lost, which writes
// land later or never, who sleeps and who dies. One seed is one schedule. What must hold, P1 to P5 of
// docs/protocol/journal.md, is checked at every step by simcheck_test.go; simactors_test.go has those who act.

type sim struct {
	rng     *rand.Rand
	now     time.Time // of the store; every request takes a while
	objects map[string]simObject
	births  uint64
	faults  simFaults
	late    []lateWrite // writes whose sender got no answer, and which may land at any time
	procs   []*simProc
	tasks   []*simTask
	steps   int
	// losesFiles: the disk loses folded files and lists of them.
	losesFiles bool
	tracing    bool
	trace      []string
	broken     error

	simTruth
}

type simObject struct {
	body []byte
	born uint64
}

func (o simObject) etag() string { return strconv.FormatUint(o.born, 10) }

// simFaults are percentages of requests; lands is how soon late ones land, in 200 steps.
type simFaults struct{ lost, late, dropped, refused, unread, lands int }

type lateWrite struct {
	text  string
	apply func() error
}

// simProc is a process; its tasks die with it.
type simProc struct {
	name   string
	asleep int // turns
	// restart begins the next life.
	restart func()
}

// simTask is a coroutine.
type simTask struct {
	*sim
	name   string
	proc   *simProc
	next   func() (struct{}, bool)
	kill   func()
	yield  func(struct{}) bool
	cancel context.CancelFunc
	dead   bool
	// ready is false while the task waits for others; nil means that it is ready.
	ready func() bool
	// whole: it does not stop before its requests.
	whole bool
}

type simTaskKey struct{}

var errSimKilled = fmt.Errorf("killed: %w", context.Canceled)

func (s *sim) logf(format string, args ...any) {
	if s.tracing {
		s.trace = append(s.trace, fmt.Sprintf(format, args...))
	}
}

func (s *sim) failf(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf(format, args...)
		s.logf("VIOLATION: %v", s.broken)
	}
}

func (s *sim) oneIn(n int) bool { return s.rng.IntN(n) == 0 }

// start makes a coroutine that has not run yet.
func (s *sim) start(p *simProc, name string, body func(context.Context, *simTask)) *simTask {
	ctx, cancel := context.WithCancel(context.Background())
	t := &simTask{sim: s, name: name, proc: p, cancel: cancel}
	ctx = context.WithValue(ctx, simTaskKey{}, t)
	next, kill := iter.Pull(func(yield func(struct{}) bool) {
		defer cancel()
		t.yield = yield
		body(ctx, t)
	})
	t.next, t.kill = next, func() { t.dead = true; kill(); cancel() }
	s.tasks = append(s.tasks, t)
	return t
}

// pause gives the turn away; true means that the process was killed meanwhile.
func (t *simTask) pause() bool {
	if !t.dead && !t.whole && !t.yield(struct{}{}) {
		t.dead = true
		t.cancel()
	}
	return t.dead
}

// wait gives the turn away until something holds.
func (t *simTask) wait(until func() bool) (killed bool) {
	for !until() {
		t.ready = until
		if t.pause() {
			return true
		}
	}
	t.ready = nil
	return t.dead
}

// sideBySide is a Fan: each reading is a coroutine of its own.
func (s *sim) sideBySide(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	parent := ctx.Value(simTaskKey{}).(*simTask)
	if parent.whole {
		return OneByOne(ctx, n, do)
	}
	errs := make([]error, n)
	var parts []*simTask
	running := n
	for i := range n {
		parts = append(parts, s.start(parent.proc, parent.name+"."+strconv.Itoa(i), func(ctx context.Context, t *simTask) {
			errs[i] = do(ctx, i)
			running--
		}))
	}
	if parent.wait(func() bool { return running == 0 }) {
		for _, p := range parts {
			p.kill()
			s.drop(p)
		}
		return errSimKilled
	}
	return errors.Join(errs...)
}

func (s *sim) drop(t *simTask) {
	s.tasks = slices.DeleteFunc(s.tasks, func(o *simTask) bool { return o == t })
}

// advance lets a task go on to its next request.
func (s *sim) advance(t *simTask) {
	if _, more := t.next(); !more {
		s.drop(t)
	}
}

// end kills a process with all that it was doing, and starts its next life.
func (s *sim) end(p *simProc) {
	s.logf("kill -9 of %s", p.name)
	s.stop(p)
	p.asleep = 0
	p.restart()
}

func (s *sim) stop(p *simProc) {
	for _, t := range slices.Clone(s.tasks) {
		if t.proc == p {
			t.kill()
			s.drop(t)
		}
	}
}

// step makes one thing happen.
func (s *sim) step() {
	switch e := s.rng.IntN(200); {
	case e < s.faults.lands && len(s.late) > 0:
		s.land()
	case e < 24:
		s.hint()
	case e < 26:
		s.end(s.procs[s.rng.IntN(len(s.procs))])
	case e < 32:
		p := s.procs[s.rng.IntN(len(s.procs))]
		p.asleep = 20 + s.rng.IntN(300)
		s.logf("%s sleeps", p.name)
	default:
		for _, p := range s.procs {
			p.asleep = max(0, p.asleep-1)
		}
		var ready []*simTask
		for _, t := range s.tasks {
			switch {
			case t.proc.asleep > 0:
			case t.ready == nil || t.ready():
				ready = append(ready, t)
			}
		}
		if len(ready) > 0 {
			s.advance(ready[s.rng.IntN(len(ready))])
		}
	}
}

// land lets a late write land, or be lost for good.
func (s *sim) land() {
	i := s.rng.IntN(len(s.late))
	l := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	if s.rng.IntN(5) > 0 {
		s.logf("late: %s: %v", l.text, l.apply())
	}
}

func (s *sim) tick() { s.now = s.now.Add(time.Duration(1+s.rng.IntN(50)) * time.Millisecond) }

// write is one write with a drawn fate.
func (t *simTask) write(op, key string, apply func() error) error {
	late := func() {
		t.late = append(t.late, lateWrite{fmt.Sprintf("%s of %s: %s", op, t.name, key), apply})
	}
	if t.pause() {
		if t.oneIn(2) { // it had left just before
			late()
		}
		return errSimKilled
	}
	t.tick()
	err, how := objstore.ErrUnknown, ""
	switch fate, f := t.rng.IntN(100), t.faults; {
	case fate < f.lost:
		how = fmt.Sprint("answer lost, was ", apply())
	case fate < f.lost+f.late:
		how = "in flight"
		late()
	case fate < f.lost+f.late+f.dropped:
		how = "never arrives"
	case fate < f.lost+f.late+f.dropped+f.refused && op != "delete":
		err = objstore.ErrConflict
	default:
		err = apply()
	}
	t.logf("%s: %s %s: %v %s", t.name, op, key, err, how)
	if err != nil {
		return &objstore.Error{Op: op, Key: key, Err: err}
	}
	return nil
}

func (t *simTask) read(op, key string, look func() error) error {
	if t.pause() {
		return errSimKilled
	}
	t.tick()
	err := objstore.ErrUnavailable
	if t.rng.IntN(100) >= t.faults.unread {
		err = look()
	}
	t.logf("%s: %s %s: %v", t.name, op, key, err)
	if err != nil {
		return &objstore.Error{Op: op, Key: key, Err: err}
	}
	return nil
}

// simPort is the store as processes have it. The context says which task asks.
type simPort struct{ s *sim }

func simTaskOf(ctx context.Context) *simTask { return ctx.Value(simTaskKey{}).(*simTask) }

func (p simPort) Create(ctx context.Context, key string, body []byte, _ objstore.PutOptions) (i objstore.Info, err error) {
	err = simTaskOf(ctx).write("create", key, func() error {
		if _, ok := p.s.objects[key]; ok {
			return objstore.ErrExists
		}
		i = p.s.put(key, body)
		return nil
	})
	return i, err
}

func (p simPort) Replace(ctx context.Context, key string, body []byte, etag string, _ objstore.PutOptions) (i objstore.Info, err error) {
	err = simTaskOf(ctx).write("replace", key, func() error {
		if o, ok := p.s.objects[key]; !ok || o.etag() != etag {
			return objstore.ErrPreconditionFailed
		}
		i = p.s.put(key, body)
		return nil
	})
	return i, err
}

func (s *sim) put(key string, body []byte) objstore.Info {
	s.births++
	o := simObject{slices.Clone(body), s.births}
	s.objects[key] = o
	s.written(key, o)
	return objstore.Info{Key: key, Size: int64(len(body)), ETag: o.etag()}
}

func (p simPort) Delete(ctx context.Context, key string) error {
	return simTaskOf(ctx).write("delete", key, func() error {
		if o, ok := p.s.objects[key]; ok {
			delete(p.s.objects, key)
			p.s.deleted(key, o)
		}
		return nil
	})
}

func (p simPort) Get(ctx context.Context, key string, _ objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	t := simTaskOf(ctx)
	err = t.read("get", key, func() error {
		o, ok := p.s.objects[key]
		if !ok {
			return objstore.ErrNotFound
		}
		b, i = slices.Clone(o.body), objstore.Info{Key: key, Size: int64(len(o.body)), ETag: o.etag()}
		return nil
	})
	return b, i, err
}

func (p simPort) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = simTaskOf(ctx).read("head", key, func() error {
		o, ok := p.s.objects[key]
		if !ok {
			return objstore.ErrNotFound
		}
		i = objstore.Info{Key: key, Size: int64(len(o.body)), ETag: o.etag()}
		return nil
	})
	return i, err
}

// List has pages of one to three keys, so that writes fall between them.
func (p simPort) List(ctx context.Context, o objstore.ListOptions) (page objstore.Page, err error) {
	err = simTaskOf(ctx).read("list", o.Prefix, func() error {
		page.Date = p.s.now
		limit := 1 + p.s.rng.IntN(3)
		for _, key := range p.s.keys(o.Prefix) {
			switch {
			case key <= o.StartAfter:
			case len(page.Objects) == limit:
				page.Next = page.Objects[limit-1].Key
				return nil
			default:
				page.Objects = append(page.Objects, objstore.Info{Key: key})
			}
		}
		return nil
	})
	return page, err
}

func (s *sim) keys(prefix string) []string {
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// runSim plays one schedule to its end.
func runSim(seed uint64, tracing bool) *sim {
	s := &sim{
		rng: rand.New(rand.NewPCG(seed, 10)), now: time.Unix(1_700_000_000, 0), objects: map[string]simObject{},
		tracing: tracing, simTruth: newSimTruth(),
	}
	s.losesFiles = seed&simLoses != 0
	if s.rng.IntN(4) > 0 {
		s.faults = simFaults{lost: s.rng.IntN(12), late: s.rng.IntN(12), dropped: s.rng.IntN(6), refused: s.rng.IntN(6), unread: s.rng.IntN(8), lands: 1 + s.rng.IntN(14)}
	}
	s.populate()
	for steps := 200 + s.rng.IntN(1500); s.steps < steps && s.broken == nil; s.steps++ {
		s.step()
	}
	for _, p := range s.procs {
		s.stop(p)
	}
	if s.broken == nil {
		s.finish()
	}
	return s
}

const (
	simSchedules      = 800
	simSchedulesShort = 150
	simSchedulesSoak  = 500_000
	// simLoses is the bit of a seed whose schedule has a disk that loses files. One schedule of simLosesEach is played a
	// second time with it.
	simLoses     = 1 << 62
	simLosesEach = 4
)

// TestSimulation plays JOURNAL_SIM_SCHEDULES schedules, or the one of JOURNAL_SIM_SEED; with LIGHTMETRICS_SOAK=1 many,
// from a seed that nobody has seen.
func TestSimulation(t *testing.T) {
	schedules, first := uint64(simSchedules), uint64(1)
	switch {
	case testing.Short():
		schedules = simSchedulesShort
	case os.Getenv("LIGHTMETRICS_SOAK") == "1":
		schedules, first = simSchedulesSoak, rand.Uint64()>>2
	}
	number := func(name string, to *uint64) bool {
		v := os.Getenv(name)
		n, err := strconv.ParseUint(v, 10, 64)
		if v != "" && err != nil {
			t.Fatal(err)
		}
		if v != "" {
			*to = n
		}
		return v != ""
	}
	number("JOURNAL_SIM_SCHEDULES", &schedules)
	if number("JOURNAL_SIM_SEED", &first) {
		schedules = 1
	}
	var sum simTally
	play := func(seed uint64) {
		s := runSim(seed, false)
		sum.add(s.tally)
		if s.broken != nil {
			trace := runSim(seed, true).trace
			t.Fatalf("JOURNAL_SIM_SEED=%d: %v\n%s", seed, s.broken, strings.Join(trace[max(0, len(trace)-400):], "\n"))
		}
	}
	for seed := first; seed < first+schedules; seed++ {
		if play(seed); seed%simLosesEach == 0 {
			play(seed | simLoses)
		}
	}
	t.Logf("%d schedules from seed %d: %+v", schedules, first, sum)
	if schedules >= simSchedulesShort && !sum.complete() {
		t.Errorf("something never happened: %+v", sum)
	}
}

// TestSimulationReplays: a seed is a schedule, step by step.
func TestSimulationReplays(t *testing.T) {
	for seed := range uint64(20) {
		if a, b := runSim(seed, true), runSim(seed, true); !slices.Equal(a.trace, b.trace) {
			for i := range min(len(a.trace), len(b.trace)) {
				if a.trace[i] != b.trace[i] {
					t.Fatalf("seed %d, step %d: %s, and then %s", seed, i, a.trace[i], b.trace[i])
				}
			}
			t.Fatalf("seed %d: %d and %d lines", seed, len(a.trace), len(b.trace))
		}
	}
}

// simBatch is batch i with one of its hashes.
func simBatch(i, hash int) (identity.Batch, identity.Digest) {
	id := identity.Batch{Agent: "agent" + strconv.Itoa(i%2), Boot: "boot", SeqStart: uint64(i*10 + 1), SeqEnd: uint64(i*10 + 10)}
	return id, identity.Sum(fmt.Appendf(nil, "%s/%d", id, hash))
}
