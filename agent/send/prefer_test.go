package send

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/memfs"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// fixedPreference has no jitter but what random gives.
func fixedPreference(random float64) *preference {
	p := newPreference(DefaultConfig())
	p.cfg.Fallback = []string{"x:1"}
	p.random = func() float64 { return random }
	return p
}

// TestPreference: times of leaving, probing and trying, and how they grow.
func TestPreference(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := fixedPreference(0)
	if !p.fallbackAt().IsZero() || p.list() != Preferred {
		t.Fatal("the fallback may be tried at the start")
	}
	p.failed(now)
	p.failed(now.Add(5 * time.Second))
	if at := p.fallbackAt(); at.Sub(now) != 10*time.Second {
		t.Errorf("the fallback may be tried after %s", at.Sub(now))
	}
	home := &target{list: Preferred}
	try := func(c *target, ended, silent time.Duration, now time.Time) time.Duration {
		c.failed, c.ended, c.silent = true, p.leaving.Add(ended), silent
		return p.tryBefore(c, now, now.Add(time.Minute)).Sub(now)
	}
	late := now.Add(20 * time.Second)
	for _, c := range []struct {
		what string
		got  time.Duration
		want time.Duration
	}{
		{"one that failed soon", try(home, -1, time.Second, now), 10 * time.Second},
		{"one that failed soon, and it is late", try(home, -1, time.Second, late), 0},
		{"one that failed when it was time", try(home, 0, 0, late), time.Minute},
		{"one that was silent for as long", try(home, -1, 10*time.Second, late), time.Minute},
		{"one of the fallback", try(&target{list: Fallback}, -1, 0, now), time.Minute},
	} {
		if c.got != c.want {
			t.Errorf("%s is tried again after %s, want %s", c.what, c.got, c.want)
		}
	}
	p.answered()
	if !p.fallbackAt().IsZero() {
		t.Error("an answer is no answer")
	}

	stay := func(at time.Time) time.Duration {
		t.Helper()
		p.failed(at)
		p.leave(at)
		if p.next.Sub(at) != 15*time.Second {
			t.Errorf("the first probe is due after %s", p.next.Sub(at))
		}
		p.probed(at, true)
		d := p.steadyUntil.Sub(at)
		if p.tryDue(at.Add(d-1)) || !p.tryDue(at.Add(d)) {
			t.Error("a batch is tried at another time")
		}
		return d
	}
	if d := stay(now); d != 2*time.Minute {
		t.Errorf("a batch is tried after %s", d)
	}
	// One probe that fails, and all begins again.
	p.probed(now.Add(time.Minute), false)
	if p.isSteady() || p.tryDue(now.Add(time.Hour)) {
		t.Error("a failed probe is forgotten")
	}
	p.probed(now.Add(2*time.Minute), true)
	p.probed(now.Add(3*time.Minute), true)
	if p.tryDue(now.Add(4*time.Minute-1)) || !p.tryDue(now.Add(4*time.Minute)) {
		t.Error("the while is counted from another probe")
	}
	// A trial that is refused doubles the wait, as a return that does not last does.
	p.tried()
	if p.isSteady() {
		t.Error("a collector that refuses a batch is steady")
	}
	p.probed(now, true)
	if d := p.steadyUntil.Sub(now); d != 4*time.Minute {
		t.Errorf("after a refusal a batch is tried after %s", d)
	}
	p.arrive(now)
	for i, want := range []time.Duration{8 * time.Minute, 15 * time.Minute, 15 * time.Minute} {
		if d := stay(now.Add(14 * time.Minute)); d != want {
			t.Errorf("leaving for the %d. time soon: a batch is tried after %s, want %s", i+1, d, want)
		}
		now = now.Add(14 * time.Minute)
		p.arrive(now)
	}
	if d := stay(now.Add(15 * time.Minute)); d != 2*time.Minute {
		t.Errorf("after a long stay a batch is tried after %s", d)
	}
	// Other settings bound what has grown.
	p.wait = 15 * time.Minute
	cfg := p.cfg
	cfg.ReturnAfter, cfg.ReturnMax = time.Minute, 3*time.Minute
	if p.configure(now, cfg); p.wait != 3*time.Minute {
		t.Errorf("the wait is %s", p.wait)
	}
	// What has not grown is the setting.
	p.wait, cfg.ReturnAfter = p.cfg.ReturnAfter, 10*time.Second
	if p.configure(now, cfg); p.wait != 10*time.Second {
		t.Errorf("the wait is %s", p.wait)
	}
}

// TestAFleetReturnsBitByBit: agents of a region that is back at one moment return spread over minutes, and leave it spread over
// seconds.
func TestAFleetReturnsBitByBit(t *testing.T) {
	rng, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1_800_000_000, 0)
	leaves, returns := map[int]int{}, map[int]int{}
	const agents = 5000
	for range agents {
		p := fixedPreference(0)
		p.random = rng.Float64
		p.failed(now)
		leaves[int(p.fallbackAt().Sub(now)/(500*time.Millisecond))]++
		p.leave(now)
		for p.next.Sub(now) < time.Hour {
			p.probed(p.next, false)
		}
		back := now.Add(time.Hour)
		for !p.tryDue(p.next) {
			p.probed(p.next, true)
		}
		returns[int(p.next.Sub(back)/(5*time.Second))]++
	}
	for what, c := range map[string]struct {
		n      map[int]int
		spread int
	}{"leave": {leaves, 10}, "return": {returns, 24}} {
		if len(c.n) < c.spread {
			t.Errorf("all %s within %d steps", what, len(c.n))
		}
		for at, n := range c.n {
			if n > 2*agents/c.spread {
				t.Errorf("%d of %d %s in step %d", n, agents, what, at)
			}
		}
	}
}

// TestTheHashSpreadsEachList: agents begin with different collectors, in either list.
func TestTheHashSpreadsEachList(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Collectors, cfg.Fallback = []string{"a:1", "b:1", "c:1"}, []string{"d:1", "e:1", "f:1", "g:1"}
	n := map[string]int{}
	const agents = 1200
	for i := range agents {
		q, err := queue.Open(memfs.New(), "q", queue.Options{Agent: fmt.Sprintf("agent-%d", i), MaxBytes: 1 << 20, SegmentBytes: 1 << 18, Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(cfg, q, Deps{Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		n[s.preferred.first().address]++
		n[s.fallback.first().address]++
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, list := range [][]string{cfg.Collectors, cfg.Fallback} {
		for _, a := range list {
			if want := agents / len(list); n[a] < want*3/4 || n[a] > want*5/4 {
				t.Errorf("%d of %d agents begin with %s, want about %d", n[a], agents, a, want)
			}
		}
	}
}

// TestOrderOfCandidates: what is known to work goes first, and the fallback waits for its time.
func TestOrderOfCandidates(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	world := func() *Sender {
		cfg := DefaultConfig()
		cfg.Fallback = []string{"f:1", "g:1"}
		cfg.Collectors = []string{"a:1", "b:1"}
		x := windowSession(t)
		x.s.wanted = cfg
		x.s.configure(nil)
		x.s.preferred.at, x.s.fallback.at = 0, 0
		x.s.now = func() time.Time { return now }
		x.s.prefer.random = func() float64 { return 0 }
		return x.s
	}
	next := func(s *Sender) string {
		if c, wait := s.candidate(now); c == nil {
			return wait.String()
		} else {
			return c.address
		}
	}
	fail := func(s *Sender, address string, back time.Duration) {
		for _, c := range slices.Concat(s.preferred.all, s.fallback.all) {
			if c.address == address {
				s.noteEnd(&session{s: s, target: c}, now, errTryOther, false)
				c.notBefore = s.prefer.tryBefore(c, now, now.Add(back))
			}
		}
	}
	s := world()
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"at the start", func() {}, "a:1"},
		{"the first one failed", func() { fail(s, "a:1", time.Minute) }, "b:1"},
		{"both failed", func() { fail(s, "b:1", 30*time.Second) }, "10s"},
		{"the time of the fallback: each is tried once more", func() { now = now.Add(10 * time.Second) }, "a:1"},
		{"in vain", func() { fail(s, "a:1", time.Minute) }, "b:1"},
		{"in vain, too", func() { fail(s, "b:1", 30*time.Second) }, "f:1"},
		{"on it", func() { s.noteList(Fallback) }, "f:1"},
		{"it failed, the preferred ones could be tried", func() { fail(s, "f:1", time.Hour); now = now.Add(time.Minute) }, "g:1"},
		{"all of it failed", func() { fail(s, "g:1", time.Hour) }, "a:1"},
		{"a preferred one answers probes", func() { s.fallback.all[0].notBefore = now; s.prefer.probed(now, true) }, "a:1"},
		{"it does no more", func() { s.prefer.probed(now, false) }, "f:1"},
		{"a preferred one is used again", func() { s.noteList(Preferred) }, "a:1"},
		{"it failed, and the other one had failed before", func() {
			s.preferred.all[1].notBefore = now.Add(time.Hour)
			fail(s, "a:1", time.Hour)
		}, "10s"},
		{"the time of the fallback, and one was not tried again", func() { now = now.Add(10 * time.Second) }, "b:1"},
		{"it was", func() { fail(s, "b:1", time.Hour) }, "a:1"},
		{"so was the other one", func() { fail(s, "a:1", time.Hour) }, "f:1"},
	} {
		if step.do(); next(s) != step.want {
			t.Errorf("%s: %s, want %s", step.what, next(s), step.want)
		}
	}
}

// TestOneMoreRetryIsEnough: when the time of the fallback has come, a preferred collector that failed and says RETRY again is left.
func TestOneMoreRetryIsEnough(t *testing.T) {
	x, now := windowSession(t), time.Unix(1_800_000_000, 0)
	s := x.s
	cfg := DefaultConfig()
	cfg.Fallback = []string{"f:1"}
	s.wanted, s.now = cfg, func() time.Time { return now }
	s.configure(nil)
	s.prefer.random = func() float64 { return 0 }
	x.target = s.preferred.first()
	says := func() error {
		x.retries = 0
		return x.handleRetry(s.queue.Pending(0, 1)[0], &ingestv1.BatchResult{})
	}
	if err := says(); err != nil {
		t.Errorf("it has not failed yet: %v", err)
	}
	s.noteEnd(x, now, errTryOther, false)
	if err := says(); err != nil {
		t.Errorf("the fallback may not be used yet: %v", err)
	}
	now = now.Add(cfg.FallbackAfter)
	if err := says(); !errors.Is(err, errTryOther) {
		t.Errorf("it is kept: %v", err)
	}
	x.target = s.fallback.first()
	if err := says(); err != nil {
		t.Errorf("a fallback collector is left: %v", err)
	}
}

// TestLongestWait: only where being asked costs a collector little.
func TestLongestWait(t *testing.T) {
	for reason, want := range map[string]time.Duration{"LINEARIZER_UNAVAILABLE": 16 * time.Second, "STORE_UNAVAILABLE": 0, "OVERLOADED": 0, "CLAIM_PENDING": 0} {
		if got := longestWait(&ingestv1.BatchResult{Reason: reason, RetryDelay: durationpb.New(2 * time.Second)}); got != want {
			t.Errorf("%s: %s", reason, got)
		}
	}
	if got := longestWait(&ingestv1.BatchResult{Reason: "LINEARIZER_UNAVAILABLE"}); got != 0 {
		t.Errorf("without a delay: %s", got)
	}
	s := windowSession(t).s
	for range 50 {
		if d := s.backOff(s.preferred.first(), &tryOtherError{longest: 8 * time.Second}); d > 8*time.Second {
			t.Fatalf("the collector is left alone for %s", d)
		}
	}
	if d := s.backOff(s.preferred.first(), &tryOtherError{}); d < 10*time.Second {
		t.Errorf("another one is left alone for %s", d)
	}
}
