package claims

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config of a Group.
type Config struct {
	// MaxOps of one transaction.
	MaxOps int
	// MaxRequests of one transaction, by the store's count: parts, and the longest list within a part.
	MaxRequests int
	// MaxFlights is how many transactions are under way at once.
	MaxFlights int
	// Linger is how long an operation waits for others, while a transaction is under way that could have taken it.
	Linger time.Duration
	// MaxWaiting bounds the operations that are not answered, MaxOfBoot those of one boot.
	MaxWaiting, MaxOfBoot int
	// MaxClaims of a boot that are not folded.
	MaxClaims int
	// MaxTries of an operation that others' changes overtake.
	MaxTries int
	// CacheBytes bounds what is remembered of boots.
	CacheBytes int64
	// Cluster is the store that the epoch was opened on: what another one answers is no answer. 0 is any.
	Cluster uint64
}

// DefaultConfig fits etcd's own default of 128 requests a transaction.
func DefaultConfig() Config {
	return Config{
		MaxOps: 128, MaxRequests: 128, MaxFlights: 8, Linger: time.Millisecond, MaxWaiting: 16384, MaxOfBoot: 256,
		MaxClaims: 512, MaxTries: 16, CacheBytes: 64 << 20,
	}
}

// maxPartOps bounds the operations of one boot in a transaction, so that a busy boot leaves room for others.
const maxPartOps = 16

// Validate refuses what could not work.
func (c Config) Validate() error {
	for name, v := range map[string]int{"ops": c.MaxOps, "flights": c.MaxFlights, "waiting": c.MaxWaiting, "operations of a boot": c.MaxOfBoot, "claims": c.MaxClaims, "tries": c.MaxTries} {
		if v < 1 {
			return fmt.Errorf("claims: %s: %d, not 1 or more", name, v)
		}
	}
	// A part with a fold must fit.
	if least := MaxFold + 2*opSize + 2; c.MaxRequests < least {
		return fmt.Errorf("claims: requests of a transaction: %d, not %d or more", c.MaxRequests, least)
	}
	if c.Linger < 0 || c.CacheBytes < 0 {
		return errors.New("claims: linger and cache can't be negative")
	}
	return nil
}

// Ticket names an operation of a Group.
type Ticket struct{ of *waiting }

// Compare orders tickets of one Group by when they were given.
func (t Ticket) Compare(o Ticket) int { return cmp.Compare(t.of.number, o.of.number) }

func (t Ticket) String() string {
	if t.of == nil {
		return "no ticket"
	}
	return fmt.Sprintf("ticket %d", t.of.number)
}

// Done is the end of an operation.
type Done struct {
	Ticket Ticket
	Answer Answer
	Err    error
}

// Group gathers operations into transactions, and answers them by what became of these. Operations on one boot are never
// in two transactions at once, and are done in the order in which they came. It serves one epoch. Not safe for
// concurrent use.
type Group struct {
	cfg   Config
	keys  Keys
	epoch Epoch
	mark  []byte // the value of the epoch's key

	boots   map[identity.Boot]*line
	ready   []*line // with operations, and none under way
	waiting int     // operations that are not answered
	views   *lru.Cache[identity.Boot, *view]
	last    uint64 // number of a ticket
	flights int
	// revision is the greatest that the store has told of.
	revision int64
	stopped  error
}

// line is the operations of one boot.
type line struct {
	keys   bootKeys
	ops    []*waiting
	flying bool
	// since when it is ready, and ready whether it is in the list.
	since time.Time
	ready bool
	// view is what the store has just said of the boot, also where there is no room to remember it.
	view *view
}

type waiting struct {
	Op
	number   uint64
	tries    int
	canceled bool
	flying   bool
	ended    bool
}

// Flight is a transaction and the operations in it.
type Flight struct {
	Txn   Txn
	parts []flightPart
	// floor is the store's revision before: one that answers with less has forgotten.
	floor int64
}

// Ops is how many operations the transaction has.
func (f *Flight) Ops() int {
	n := 0
	for _, p := range f.parts {
		n += len(p.ops)
	}
	return n
}

type flightPart struct {
	line *line
	ops  []*waiting
	// draft is nil for a part that only reads.
	draft *draft
	// guess: nothing was known of the boot.
	guess     bool
	decisions []decision
	errs      []error
}

// NewGroup makes a Group that serves an epoch, over a store that has told of a revision.
func NewGroup(cfg Config, keys Keys, epoch Epoch, revision int64) *Group {
	return &Group{
		cfg: cfg, keys: keys, epoch: epoch, mark: epoch.Marshal(), revision: revision,
		boots: map[identity.Boot]*line{}, views: lru.New[identity.Boot, *view](cfg.CacheBytes),
	}
}

// Waiting is how many operations are not answered.
func (g *Group) Waiting() int { return g.waiting }

// Flights is how many transactions are under way.
func (g *Group) Flights() int { return g.flights }

// Stopped says why the Group serves no more; nil while it does. Another Group, of the epoch that holds then, follows.
func (g *Group) Stopped() error { return g.stopped }

// Submit takes an operation. Errors wrap ErrInvalid, ErrFull or what stopped the Group.
func (g *Group) Submit(now time.Time, op Op) (Ticket, error) {
	if err := op.Validate(); err != nil {
		return Ticket{}, &Error{op.Kind, op.Identity, err}
	}
	if g.stopped != nil {
		return Ticket{}, &Error{op.Kind, op.Identity, g.stopped}
	}
	boot := op.Identity.BootOf()
	l := g.boots[boot]
	if g.waiting >= g.cfg.MaxWaiting || l != nil && len(l.ops) >= g.cfg.MaxOfBoot {
		return Ticket{}, &Error{op.Kind, op.Identity, ErrFull}
	}
	if l == nil {
		l = &line{keys: g.keys.of(boot)}
		g.boots[boot] = l
	}
	g.last++
	g.waiting++
	w := &waiting{Op: op, number: g.last}
	l.ops = append(l.ops, w)
	g.makeReady(now, l)
	return Ticket{w}, nil
}

// Cancel gives an operation up. True: it was not sent, and nothing of it is done. Otherwise it may be done, and its end
// is not told.
func (g *Group) Cancel(t Ticket) bool {
	w := t.of
	if w == nil || w.ended {
		return false
	}
	if w.flying {
		w.canceled = true
		return false
	}
	w.ended = true
	g.waiting--
	l := g.boots[w.Identity.BootOf()]
	l.ops = slices.DeleteFunc(l.ops, func(o *waiting) bool { return o == w })
	g.settle(l)
	return true
}

// Stop ends the Group: every operation that is not under way is answered with err.
func (g *Group) Stop(err error) []Done {
	if g.stopped != nil {
		return nil
	}
	g.stopped = err
	var done []Done
	for _, l := range g.ready {
		for _, w := range l.ops {
			done = g.end(done, w, Answer{}, err)
		}
		l.ops, l.ready = nil, false
		g.settle(l)
	}
	g.ready = nil
	// Lines under way may have operations that came later.
	var later []*waiting
	for _, l := range g.boots {
		l.ops = slices.DeleteFunc(l.ops, func(w *waiting) bool {
			if !w.flying {
				later = append(later, w)
			}
			return !w.flying
		})
	}
	slices.SortFunc(later, func(a, b *waiting) int { return cmp.Compare(a.number, b.number) })
	for _, w := range later {
		done = g.end(done, w, Answer{}, err)
	}
	return done
}

// Due is when Next is to be asked again if nothing else happens; false: not before something does.
func (g *Group) Due() (time.Time, bool) {
	if len(g.ready) == 0 || g.flights >= g.cfg.MaxFlights {
		return time.Time{}, false
	}
	return g.ready[0].since.Add(g.cfg.Linger), true
}

// Next gives the next transaction to run, or nil while operations wait for others. Land takes its result.
func (g *Group) Next(now time.Time) *Flight {
	if len(g.ready) == 0 || g.flights >= g.cfg.MaxFlights {
		return nil
	}
	if g.flights > 0 && g.readyOps() < g.cfg.MaxOps && now.Before(g.ready[0].since.Add(g.cfg.Linger)) {
		return nil
	}
	f := g.gather()
	g.flights++
	return f
}

// readyOps counts operations that could be sent, up to MaxOps.
func (g *Group) readyOps() int {
	n := 0
	for _, l := range g.ready {
		if n += min(len(l.ops), maxPartOps); n >= g.cfg.MaxOps {
			break
		}
	}
	return n
}

func (g *Group) makeReady(now time.Time, l *line) {
	if l.ready || l.flying || len(l.ops) == 0 {
		return
	}
	l.ready, l.since = true, now
	g.ready = append(g.ready, l)
}

// settle forgets a line without operations.
func (g *Group) settle(l *line) {
	if len(l.ops) > 0 || l.flying {
		return
	}
	if l.ready {
		l.ready = false
		g.ready = slices.DeleteFunc(g.ready, func(o *line) bool { return o == l })
	}
	delete(g.boots, l.keys.boot)
}

func (g *Group) end(done []Done, w *waiting, a Answer, err error) []Done {
	w.ended = true
	g.waiting--
	if w.canceled {
		return done
	}
	if err != nil {
		err = &Error{w.Kind, w.Identity, err}
	}
	return append(done, Done{Ticket{w}, a, err})
}
