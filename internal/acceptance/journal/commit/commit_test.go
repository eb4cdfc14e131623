package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// testTimeout bounds every wait of a test; it says nothing of how long things take.
var testTimeout = mutants.Patience(30 * time.Second)

func entry(n int) journal.Entry {
	return journal.Entry{
		ID:      identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(n * 10), SeqEnd: uint64(n*10 + 9)},
		Outcome: journal.Accepted, SHA256: identity.Sum(fmt.Append(nil, n)), Bytes: 1, At: 2, MinTime: 1, MaxTime: 2,
	}
}

// store can hold its creates back, fail them, lose their answers, or be cut off from its caller.
type store struct {
	objstore.Store
	hold    atomic.Pointer[chan struct{}]
	held    atomic.Int64
	down    atomic.Bool
	creates atomic.Int64
	// lossy loses some answers: the request is applied, or is not.
	lossy bool
	mu    sync.Mutex
	rnd   *rand.Rand
	// left is the number of the request at which the process dies: it is applied, by odd, or not, and no
	// further one is sent. Before alive, and from there on, all are answered.
	left atomic.Int64
	odd  bool
}

var lost = objstore.ErrUnknown

// alive is a value of left from which no request is counted down to.
const alive = -1 << 40

func (s *store) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	s.creates.Add(1)
	if h := s.hold.Load(); h != nil {
		s.held.Add(1)
		select {
		case <-*h:
		case <-ctx.Done():
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: lost}
		}
	}
	if s.down.Load() {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: lost}
	}
	switch n := s.left.Add(-1); {
	case n == 0:
		if s.odd {
			_, _ = s.Store.Create(ctx, key, body, o)
		}
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: lost}
	case n < 0 && n > alive:
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: lost}
	}
	if s.lossy {
		s.mu.Lock()
		chance := s.rnd.IntN(4)
		s.mu.Unlock()
		if chance < 2 {
			if chance == 0 {
				_, _ = s.Store.Create(ctx, key, body, o)
			}
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: lost}
		}
	}
	return s.Store.Create(ctx, key, body, o)
}

func newStore() *store {
	s := &store{Store: mem.New(time.Now), rnd: rand.New(rand.NewPCG(1, 2))}
	s.left.Store(alive)
	return s
}

// start runs a committer; the returned function ends it and waits.
func start(t *testing.T, s journal.WriterStore, change func(*Config)) (*Committer, func()) {
	t.Helper()
	cfg := Config{Store: s, Opening: journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: "authority"}}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// read gives every entry of the journal, with its position, and the runs that are open.
func read(t *testing.T, s journal.FollowerStore) (map[identity.Batch]journal.Position, []journal.Run) {
	t.Helper()
	got := map[identity.Batch]journal.Position{}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: "authority",
		Segment: func(_ context.Context, seg *journal.Segment) error {
			for _, e := range seg.Entries {
				got[e.ID] = seg.Position
			}
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return got, f.Runs()
}

func bound(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func waitFor(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-bound(t).Done():
		t.Fatal("never")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Thousands of callers at once: few segments, and each caller gets the position of its own entry.
func TestConcurrentCommitsShareSegments(t *testing.T) {
	s := newStore()
	c, stop := start(t, s, nil)
	release := make(chan struct{})
	s.hold.Store(&release)
	const callers = 3000
	var wg sync.WaitGroup
	at := make([]journal.Position, callers)
	for i := range callers {
		wg.Go(func() {
			var err error
			if at[i], err = c.Commit(bound(t), entry(i)); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return c.Waiting() == callers && s.held.Load() == 1 })
	if got, _ := read(t, s); len(got) != 0 {
		t.Fatalf("%d entries while nothing is durable", len(got))
	}
	s.hold.Store(nil)
	close(release)
	wg.Wait()
	got, runs := read(t, s)
	for i := range callers {
		if got[entry(i).ID] != at[i] {
			t.Fatalf("entry %d is at %v, its caller was told %v", i, got[entry(i).ID], at[i])
		}
	}
	if n := s.creates.Load(); n != 2 {
		t.Errorf("%d requests: the first segment, and one for all that came meanwhile", n)
	}
	if len(runs) != 1 {
		t.Errorf("%d runs are open", len(runs))
	}
	stop()
	if _, runs := read(t, s); len(runs) != 0 {
		t.Errorf("%d runs are open after the end", len(runs))
	}
	if _, err := c.Commit(bound(t), entry(0)); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// Nobody is answered before the segment is durable, whatever the answers of the store.
func TestUnknownOutcomes(t *testing.T) {
	s := newStore()
	s.lossy = true
	c, stop := start(t, s, nil)
	for i := range 12 {
		at, err := c.Commit(bound(t), entry(i))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := read(t, s); got[entry(i).ID] != at {
			t.Fatalf("entry %d was answered at %v and is at %v", i, at, got[entry(i).ID])
		}
	}
	stop()
}

// A process that dies at any request has answered nothing that is not in the journal, and what its successor
// is given again is there once it is answered.
func TestKilledAtEveryRequest(t *testing.T) {
	for _, odd := range []bool{false, true} {
		for n := int64(1); n <= 12; n++ {
			s := newStore()
			s.odd = odd
			s.left.Store(n)
			c, err := New(Config{Store: s, Opening: journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: "authority"}})
			if err != nil {
				t.Fatal(err)
			}
			life, kill := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); runWithoutClose(life, c) }()
			var answered []int
			for i := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				go func() { // a caller leaves when the store has gone
					for s.left.Load() > 0 && ctx.Err() == nil {
						time.Sleep(100 * time.Microsecond)
					}
					cancel()
				}()
				if _, err := c.Commit(ctx, entry(i)); err == nil {
					answered = append(answered, i)
				}
				cancel()
			}
			kill()
			<-ended
			s.left.Store(alive)
			got, _ := read(t, s)
			for _, i := range answered {
				if _, ok := got[entry(i).ID]; !ok {
					t.Fatalf("killed at request %d: entry %d was answered and is not there", n, i)
				}
			}
			next, stop := start(t, s, nil)
			for i := range 10 {
				if _, err := next.Commit(bound(t), entry(i)); err != nil {
					t.Fatal(err)
				}
			}
			if got, _ := read(t, s); len(got) != 10 {
				t.Errorf("killed at request %d: %d of 10 entries after the restart", n, len(got))
			}
			stop()
		}
	}
}

// runWithoutClose is Run of a process that is killed: it writes segments and closes nothing.
func runWithoutClose(ctx context.Context, c *Committer) {
	for ctx.Err() == nil {
		c.take()
		if c.writer.Waiting() > 0 && c.flush(ctx) == nil {
			continue
		}
		select {
		case <-c.wake:
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func TestAFencedRunIsReplaced(t *testing.T) {
	s := newStore()
	var fences atomic.Int64
	c, stop := start(t, s, func(c *Config) { c.Events.Fenced = func(journal.Position) { fences.Add(1) } })
	first, err := c.Commit(bound(t), entry(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Fence(t.Context(), s, journal.Position{Run: first.Run, Segment: 1}); err != nil {
		t.Fatal(err)
	}
	second, err := c.Commit(bound(t), entry(2))
	if err != nil || second.Run == first.Run || fences.Load() != 1 {
		t.Errorf("%v, %v, %d fences", second, err, fences.Load())
	}
	if got, _ := read(t, s); len(got) != 2 {
		t.Errorf("%d entries", len(got))
	}
	stop()
}

// An idle writer closes its run, so that nobody polls it, and opens another one when it has something to write.
func TestIdleClosesTheRun(t *testing.T) {
	s := newStore()
	closed := make(chan struct{}, 10)
	c, _ := start(t, s, func(c *Config) {
		c.Idle = 20 * time.Millisecond
		c.Events.Closed = func() { closed <- struct{}{} }
	})
	first, err := c.Commit(bound(t), entry(1))
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, closed)
	if _, runs := read(t, s); len(runs) != 0 {
		t.Errorf("%d runs are open", len(runs))
	}
	second, err := c.Commit(bound(t), entry(2))
	if err != nil || second.Run == first.Run {
		t.Errorf("%v, %v", second, err)
	}
	waitFor(t, closed)
}

// TestARenewalThatFailedIsRepeated: an idle run that could not say that it holds a new epoch says it again, without an entry and
// long before it is closed: garbage collection waits for it, and Failing makes a collector that is not ready.
func TestARenewalThatFailedIsRepeated(t *testing.T) {
	s := newStore()
	l := &epochLog{}
	l.epoch.Store(1)
	c, _ := start(t, s, func(c *Config) { c.Epochs, c.Idle = l, time.Hour })
	var at journal.Position
	for i := range 2 { // the second names epoch 1
		var err error
		if at, err = c.Commit(bound(t), entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.down.Store(true)
	l.epoch.Store(2)
	c.Wake()
	eventually(t, "it fails", func() bool { _, err := c.Failing(); return err != nil })
	s.down.Store(false)
	at.Segment++
	eventually(t, "it is repeated", func() bool {
		_, err := s.Head(t.Context(), at.Key())
		_, failing := c.Failing()
		return err == nil && failing == nil
	})
}

// epochLog is a log of epochs that condemns nothing, and is always read again.
type epochLog struct{ epoch, readings atomic.Uint64 }

type noNames uint64

func (n noNames) Epoch() uint64          { return uint64(n) }
func (noNames) Has(identity.Digest) bool { return false }

func (l *epochLog) Held() (journal.Condemned, uint64) {
	return noNames(l.epoch.Load()), l.readings.Add(1)
}
func (l *epochLog) Readings() uint64 { return l.readings.Load() }

func TestFullAndFailing(t *testing.T) {
	s := newStore()
	s.down.Store(true)
	c, stop := start(t, s, func(c *Config) { c.Entries = 3 })
	var tickets []journal.Ticket
	for i := range 3 {
		ticket, err := c.Add(entry(i))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	if _, err := c.Add(entry(3)); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth entry: %v", err)
	}
	eventually(t, "it fails", func() bool { _, err := c.Failing(); return err != nil })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tickets[0].Wait(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.down.Store(false)
	for _, ticket := range tickets { // the first one's caller has left, its entry has not
		if _, err := ticket.Wait(bound(t)); err != nil {
			t.Error(err)
		}
	}
	if since, err := c.Failing(); err != nil || !since.IsZero() {
		t.Errorf("still failing since %v: %v", since, err)
	}
	if _, err := c.Add(entry(4)); err != nil {
		t.Error(err)
	}
	if _, err := c.Add(journal.Entry{}); err == nil {
		t.Error("an invalid entry was taken")
	}
	stop()
	if got, runs := read(t, s); len(got) != 4 || len(runs) != 0 {
		t.Errorf("%d entries, %d runs are open", len(got), len(runs))
	}
}

// More entries than a segment holds: each is answered with the segment that has it.
func TestMoreThanASegment(t *testing.T) {
	s := newStore()
	c, err := New(Config{Store: s, Opening: journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: "authority"}})
	if err != nil {
		t.Fatal(err)
	}
	tickets := make([]journal.Ticket, journal.MaxSegmentEntries+5)
	for i := range tickets {
		if tickets[i], err = c.Add(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	at := make([]journal.Position, len(tickets))
	for i, ticket := range tickets {
		if at[i], err = ticket.Wait(bound(t)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	got, _ := read(t, s)
	for i := range tickets {
		if got[entry(i).ID] != at[i] {
			t.Fatalf("entry %d is at %v, its caller was told %v", i, got[entry(i).ID], at[i])
		}
	}
}

// A caller that leaves takes nothing with it: others may wait for the same segment.
func TestACallerThatLeaves(t *testing.T) {
	s := newStore()
	c, stop := start(t, s, nil)
	release := make(chan struct{})
	s.hold.Store(&release)
	if _, err := c.Add(entry(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a segment is being written", func() bool { return s.held.Load() == 1 })
	left, err := c.Add(entry(1))
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := left.Wait(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.hold.Store(nil)
	close(release)
	stop()
	if got, _ := read(t, s); len(got) != 2 {
		t.Errorf("%d entries, want both", len(got))
	}
}

// The first entry of a segment waits for others, so few callers need few segments.
func TestLinger(t *testing.T) {
	s := newStore()
	c, stop := start(t, s, func(c *Config) { c.Linger, c.pace = time.Hour, pace{rate: 1, write: time.Hour} })
	const callers = journal.MaxSegmentEntries
	var last journal.Ticket
	for i := range callers {
		var err error
		if last, err = c.Add(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	// A full segment waits for nothing.
	if _, err := last.Wait(bound(t)); err != nil || s.creates.Load() != 1 {
		t.Errorf("%d segments, %v", s.creates.Load(), err)
	}
	more, err := c.Add(entry(callers))
	if err != nil {
		t.Fatal(err)
	}
	stop() // nor does the end
	if _, err := more.Wait(bound(t)); err != nil {
		t.Error(err)
	}
	if got, _ := read(t, s); len(got) != callers+1 {
		t.Errorf("%d entries", len(got))
	}
}

// TestPace: a segment waits for others only where some are to be expected meanwhile, by what came in the last second, and
// where a segment takes a while to be written anyway.
func TestPace(t *testing.T) {
	const linger = 50 * time.Millisecond
	at := time.Unix(100, 0)
	var p pace
	check := func(what string, want bool) {
		t.Helper()
		if p.lets(linger) != want {
			t.Errorf("%s: %+v", what, p)
		}
	}
	came := func(d time.Duration, n int) {
		at = at.Add(d)
		p.came(at, n)
	}
	p.wrote(30 * time.Millisecond)
	came(0, 1)
	check("the first entry", false)
	for range 5 {
		came(30*time.Second, 1)
		check("a sender alone", false)
	}
	for range 200 {
		came(10*time.Millisecond, 1)
	}
	check("100 a second", true)
	for range 200 {
		came(100*time.Millisecond, 1)
	}
	check("10 a second", false)
	for range 200 {
		came(10*time.Millisecond, 1)
		p.wrote(2 * time.Millisecond)
	}
	check("100 a second to a store that is near", false)
	for range 20 {
		p.wrote(30 * time.Millisecond)
	}
	check("the store is slow again", true)
	came(time.Minute, 1)
	came(time.Second, 1)
	check("a minute of silence", false)
}

// A spooler's run is open before it has entries, and stays open when the process ends with batches that are in no segment.
func TestASpoolersRun(t *testing.T) {
	s := newStore()
	keep := atomic.Bool{}
	keep.Store(true)
	life := func() (*Committer, func()) {
		return start(t, s, func(c *Config) { c.Opening.Role, c.KeepOpen = journal.RoleSpooler, keep.Load })
	}
	c, stop := life()
	at, err := c.Begin(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Begin(bound(t)); err != nil || again != at {
		t.Errorf("begun again at %v, %v", again, err)
	}
	if _, runs := read(t, s); len(runs) != 1 || runs[0].Run != at.Run || runs[0].Opening.Role != journal.RoleSpooler {
		t.Errorf("runs: %+v", runs)
	}
	stop()
	if _, runs := read(t, s); len(runs) != 1 {
		t.Errorf("%d runs are open after an end with batches", len(runs))
	}
	keep.Store(false)
	c, stop = life()
	if _, err := c.Begin(bound(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, runs := read(t, s); len(runs) != 1 {
		t.Errorf("%d runs are open, the second one ended without batches", len(runs))
	}
}

// A store that never answers does not keep the process from ending, and nobody is left waiting.
func TestTheEndIsBounded(t *testing.T) {
	s := newStore()
	s.down.Store(true)
	c, stop := start(t, s, func(c *Config) { c.CloseTimeout = 50 * time.Millisecond })
	ticket, err := c.Add(entry(1))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := ticket.Wait(bound(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}
