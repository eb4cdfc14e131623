package send

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// target is one collector.
type target struct {
	address   string
	list      List
	backoff   *backoff.ExponentialBackOff
	notBefore time.Time
	// failed: it was tried since a collector of its list gave an answer last, and gave none. The attempt ended at ended, and had been
	// without an answer for silent.
	failed bool
	ended  time.Time
	silent time.Duration
	// vain: the last session with it ended without any answer.
	vain bool
	// status is guarded by Sender.mu.
	status CollectorStatus
}

// targets are the collectors of one list.
type targets struct {
	all []*target
	// at is the one that is tried first.
	at int
}

// newTargets makes the targets of a list; those that were there before keep their state. first is the one to begin with.
func newTargets(list List, addresses []string, cfg Config, before []*target, hash uint32) targets {
	var out targets
	for _, a := range addresses {
		i := slices.IndexFunc(before, func(t *target) bool { return t.address == a && t.list == list })
		if i >= 0 {
			out.all = append(out.all, before[i])
			continue
		}
		t := &target{address: a, list: list, backoff: cfg.newBackoff(), status: CollectorStatus{Address: a, List: list, State: Standby}}
		t.backoff.Reset()
		out.all = append(out.all, t)
	}
	if n := len(out.all); n > 0 {
		out.at = int(hash % uint32(n))
	}
	return out
}

// due gives the first collector from at on whose back-off is over, or how long that of the first one lasts; below 0 without any.
func (l *targets) due(now time.Time) (*target, time.Duration) {
	wait := time.Duration(-1)
	for k := range l.all {
		t := l.all[(l.at+k)%len(l.all)]
		d := t.notBefore.Sub(now)
		if d <= 0 {
			return t, 0
		}
		if wait < 0 || d < wait {
			wait = d
		}
	}
	return nil, wait
}

// first is the one that is tried first.
func (l *targets) first() *target { return l.all[l.at] }

// after makes the one behind t the first.
func (l *targets) after(t *target) {
	if i := slices.Index(l.all, t); i >= 0 {
		l.at = (i + 1) % len(l.all)
	}
}

func (l *targets) clearFailed() {
	for _, t := range l.all {
		t.failed = false
	}
}

// use makes t the first.
func (l *targets) use(t *target) {
	if i := slices.Index(l.all, t); i >= 0 {
		l.at = i
	}
}

// of gives the targets of a list.
func (s *Sender) of(list List) *targets {
	if list == Fallback {
		return &s.fallback
	}
	return &s.preferred
}

// collectors is how many there are.
func (s *Sender) collectors() int { return len(s.preferred.all) + len(s.fallback.all) }

// startHash spreads the agents of a fleet over the collectors of a list.
func (s *Sender) startHash() uint32 {
	h := fnv.New32a()
	boot, _, _ := s.queue.Boot()
	_, _ = h.Write([]byte(boot.Agent))
	return h.Sum32()
}

// dial connects to a collector, lazily.
func (s *Sender) dial(address string) (*grpc.ClientConn, error) {
	extra := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage))}
	if s.dialer != nil {
		extra = append(extra, grpc.WithContextDialer(s.dialer))
	}
	return rpc.Dial(address, s.client, extra...)
}

// Dialer opens a connection to host:port.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// candidate gives the collector to use now, or how long until there may be one.
func (s *Sender) candidate(now time.Time) (*target, time.Duration) {
	fallback := s.untilFallback(now)
	order := []*targets{&s.preferred, &s.fallback}
	if fallback == 0 && !s.prefer.isSteady() && !s.prefer.fallbackAt().IsZero() {
		// What may work goes first: a preferred collector that does not answer would be waited for. And while the stream of a fallback
		// collector has just broken off, that one is.
		order = []*targets{&s.fallback, &s.preferred}
		if slices.ContainsFunc(s.fallback.all, func(t *target) bool { return !t.vain }) {
			order = order[:1]
		}
	}
	wait := time.Duration(-1)
	for _, l := range order {
		d := time.Duration(0)
		if l == &s.fallback {
			d = fallback
		}
		if d == 0 {
			var t *target
			if t, d = l.due(now); t != nil {
				return t, 0
			}
		}
		if d > 0 && (wait < 0 || d < wait) {
			wait = d
		}
	}
	return nil, wait
}

// untilFallback is how long the fallback may not be tried yet; below 0 while there is no reason to.
func (s *Sender) untilFallback(now time.Time) time.Duration {
	switch at := s.prefer.fallbackAt(); {
	case len(s.fallback.all) == 0:
		return -1
	case s.stopping.seen: // the last attempt leaves nothing out
		return 0
	case at.IsZero():
		return -1
	case s.prefer.list() == Preferred && slices.ContainsFunc(s.preferred.all, func(t *target) bool { return !s.prefer.exhausted(t) }):
		return -1 // it is due by then, and the end of its session decides
	default:
		return max(0, at.Sub(now))
	}
}

// noteEnd notes how a session ended that began at began. planned: nothing was wrong with it.
func (s *Sender) noteEnd(x *session, began time.Time, err error, planned bool) {
	t := x.target
	list, quarantined := s.of(t.list), rpc.Reason(err) == reasonQuarantined
	if x.progressed {
		// A collector that answered batches is healthy, whatever ended the stream.
		t.backoff.Reset()
	}
	// A quarantine is an operator's answer, and no reason to look for a collector that does not know of it.
	if x.progressed || quarantined {
		list.clearFailed()
		if t.list == Preferred {
			s.prefer.answered()
		}
	}
	if planned {
		t.vain = false
		return
	}
	list.after(t)
	if quarantined {
		return
	}
	now := s.now()
	t.failed, t.ended, t.silent, t.vain = true, now, 0, !x.progressed
	switch {
	case errors.Is(err, errStalled):
		t.silent = s.cfg.AnswerTimeout
	case !x.progressed && !errors.Is(err, errTryOther):
		t.silent = now.Sub(began)
	}
	if t.list == Preferred {
		s.prefer.failed(now)
		for _, o := range list.all {
			o.notBefore = s.prefer.tryBefore(o, now, o.notBefore)
		}
	}
}

// Reload takes other collectors, and other times for changing between them, while Run goes on: a stream that is open is left once the
// batches in flight have their answers. What else differs needs a restart. An error leaves everything as it was.
func (s *Sender) Reload(cfg Config) error {
	if err := s.CheckReload(cfg); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.wanted.withCollectors(cfg)
	if next.sameCollectors(s.wanted) {
		return nil
	}
	s.wanted = next
	select {
	case s.reloaded <- struct{}{}:
	default: // there is one to be seen
	}
	return nil
}

// CheckReload gives the error of a Reload, and changes nothing.
func (s *Sender) CheckReload(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	return s.checkDial(cfg)
}

// withCollectors gives c with what Reload takes of other settings.
func (c Config) withCollectors(other Config) Config {
	c.Collectors, c.Fallback = other.Collectors, other.Fallback
	c.FallbackAfter, c.ReturnAfter, c.ReturnMax, c.ReturnInterval = other.FallbackAfter, other.ReturnAfter, other.ReturnMax, other.ReturnInterval
	return c
}

func (c Config) sameCollectors(other Config) bool {
	return slices.Equal(c.Collectors, other.Collectors) && slices.Equal(c.Fallback, other.Fallback) &&
		c.FallbackAfter == other.FallbackAfter && c.ReturnAfter == other.ReturnAfter && c.ReturnMax == other.ReturnMax && c.ReturnInterval == other.ReturnInterval
}

// checkDial checks what a connection to each collector needs of the settings; nothing is sent.
func (s *Sender) checkDial(cfg Config) error {
	for _, a := range slices.Concat(cfg.Collectors, cfg.Fallback) {
		conn, err := s.dial(a)
		if err != nil {
			return fmt.Errorf("collector %s: %w", a, err)
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("collector %s: %w", a, err)
		}
	}
	return nil
}

// applyReload takes the collectors of a Reload. in is the one in use, or nil.
func (s *Sender) applyReload(in *target) {
	s.mu.Lock()
	same := s.wanted.sameCollectors(s.cfg)
	s.mu.Unlock()
	if !same {
		s.configure(in)
	}
}

// configure takes the collectors that are wanted. in is the one in use, which stays so where its list still has it.
func (s *Sender) configure(in *target) {
	s.mu.Lock()
	cfg := s.wanted
	s.mu.Unlock()
	before := slices.Concat(s.preferred.all, s.fallback.all)
	s.cfg = cfg
	s.prefer.configure(s.now(), cfg)
	hash := s.startHash()
	preferred, fallback := newTargets(Preferred, cfg.Collectors, cfg, before, hash), newTargets(Fallback, cfg.Fallback, cfg, before, hash)
	s.mu.Lock()
	s.preferred, s.fallback = preferred, fallback
	s.mu.Unlock()
	now := slices.Concat(preferred.all, fallback.all)
	for _, t := range before {
		if !slices.ContainsFunc(now, func(o *target) bool { return o.address == t.address }) {
			s.metrics.forget(t.address)
		}
	}
	for _, t := range now {
		s.metrics.know(t.address)
	}
	if in != nil {
		s.of(in.list).use(in)
	}
	// A fallback collector that the settings have no more is not gone on with: the agent begins as at its start.
	if in == nil || !slices.Contains(fallback.all, in) {
		s.prefer.reset()
		s.publishList()
	}
}
