package reconciler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// takeEvents takes the events of the bucket where the settings ask for it. What a segment's event makes this process read,
// its watchers are told of as of every segment.
func (s *Service) takeEvents(queue events.MessageQueue) {
	if !s.cfg.Events.Webhook && queue == nil {
		return
	}
	k := s.journal
	if k.checks.m == nil {
		k.checks.m = newCheckMetrics(s.m.reg, k.checks.waiting)
	}
	to := events.NewReceiver(events.Deps{
		Bucket: s.cfg.Store.Bucket, Prefix: s.cfg.Store.Prefix, Segment: func(at journal.Position) { k.hint(at) }, Accepted: k.check,
		Metrics: events.NewMetrics(s.m.reg), Log: s.log, Now: s.now,
	})
	if s.cfg.Events.Webhook {
		s.Handle(to.Route())
	}
	if queue != nil {
		s.Go("events", events.NewConsumer(s.cfg.Events.Queue, queue, to).Run)
	}
}

// checks are batches whose manifest an event has named, in the order in which they become due. It is bounded: what
// does not fit is left to the audits.
type checks struct {
	limit int
	m     *prometheus.CounterVec // result; nil where there are neither events nor regions

	mu    sync.Mutex
	known map[identity.Batch]struct{}
	queue []check
}

// check is one of them.
type check struct {
	id  identity.Batch
	due int64 // of the keeper's monotonic clock
}

func newChecks(limit int) *checks {
	return &checks{limit: limit, known: map[identity.Batch]struct{}{}}
}

func newCheckMetrics(reg prometheus.Registerer, waiting func() int) *prometheus.CounterVec {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_reconciler_event_checks_total",
		Help: "Manifests that events told of, or that an audit left undecided, by result: known (the journal has the batch), entered (it had not, the reconciler entered it), gone (there is no such manifest), unusable, dropped (too many waited; audits find them), failed (tried again); with several regions: copy (another region counts the batch), quarantined (it lost to another one), undecided (tried again)."}, []string{"result"})
	for _, r := range []string{"known", "entered", "gone", "unusable", "dropped", "failed", "copy", "quarantined", "undecided"} {
		m.WithLabelValues(r)
	}
	reg.MustRegister(m, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_reconciler_event_checks_waiting",
		Help: "Manifests of events whose batches must soon be in the journal."}, func() float64 { return float64(waiting()) }))
	return m
}

// add queues a batch; one that waits already does not wait twice.
func (c *checks) add(id identity.Batch, due int64) (dropped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[id]; ok {
		return false
	}
	if len(c.known) >= c.limit {
		return true
	}
	c.known[id] = struct{}{}
	c.queue = append(c.queue, check{id, due})
	return false
}

// take takes those that are due, at most a number of them.
func (c *checks) take(now int64, most int) (out []identity.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < min(len(c.queue), most) && c.queue[n].due <= now {
		out = append(out, c.queue[n].id)
		delete(c.known, c.queue[n].id)
		n++
	}
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil // what was taken is let go
	}
	return out
}

func (c *checks) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known)
}

// check takes the identity of a manifest that an event says was created. Most are known already, or in a moment, by their collector's segment.
func (k *journalKeeper) check(id identity.Batch) {
	if set, _, ready := k.status(); ready && set.Seen(id) {
		k.checks.m.WithLabelValues("known").Inc()
		return
	}
	k.checkLater(id)
}

func (k *journalKeeper) checkLater(id identity.Batch) {
	if k.checks.add(id, k.monotonic()+int64(k.cfg.Events.CheckAfter)) {
		k.checks.m.WithLabelValues("dropped").Inc()
	}
}

// checkEvery is the longest time between two looks at what is due.
const checkEvery = time.Second

// checkAtOnce bounds the checks before what they entered is written into a segment: reads are paced, so that of very many it
// would wait for long, and be lost with the process.
const checkAtOnce = 500

// runChecks enters batches that events told of and that stand in no run of the journal: their collectors died between
// manifest and segment, and nobody was answered. An audit would find them later.
func (k *journalKeeper) runChecks(ctx context.Context, authority string, set *ledgers.Set, of judge, fits func(context.Context) error) error {
	if k.checks.m == nil {
		return nil // no events
	}
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: k.store, Rand: rand.Reader, Clock: func() int64 { return time.Now().UnixNano() },
		Opening: journal.Opening{Writer: k.id, Role: journal.RoleReconciler, Authority: authority},
	})
	if err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	c := &checker{k: k, authority: authority, set: set, of: of, fits: fits, writer: w, pace: rate.NewLimiter(rate.Limit(k.cfg.Audit.Rate), 1)}
	for {
		if err := run.Sleep(ctx, min(checkEvery, k.cfg.Events.CheckAfter)); err != nil {
			return err
		}
		if err := c.round(ctx); unfit(err) {
			return err
		} else if err != nil && ctx.Err() == nil {
			k.log.Warn("batches that events told of were not entered into the journal; tried again", "error", err)
		}
	}
}

// checker looks at what is due. It ends with a life of the keeper.
type checker struct {
	k         *journalKeeper
	authority string
	set       *ledgers.Set
	of        judge // nil where a manifest alone is enough
	fits      func(context.Context) error
	writer    *journal.Writer
	// settles are called once the entries that were added are durable.
	settles []func(context.Context) error
	pace    *rate.Limiter
}

// round looks at all that is due.
func (c *checker) round(ctx context.Context) error {
	for {
		n, err := c.some(ctx)
		if err != nil || n < checkAtOnce || ctx.Err() != nil {
			return err
		}
	}
}

// some looks at what is due, at most checkAtOnce, and says how many they were.
func (c *checker) some(ctx context.Context) (n int, err error) {
	// A journal that can't be read shows nothing: whatever is due waits.
	through, err := c.readThrough()
	if err != nil {
		return 0, nil // its poll has said so
	}
	due := c.k.checks.take(c.k.monotonic(), checkAtOnce)
	if len(due) > 0 {
		if err := c.fits(ctx); err != nil {
			for _, id := range due {
				c.k.checkLater(id)
			}
			return 0, err
		}
	}
	for _, id := range due {
		result, err := c.one(ctx, id, through)
		if err != nil || result == "later" || result == "undecided" {
			c.k.checkLater(id)
		}
		if err != nil {
			result = "failed"
			c.k.log.Warn("a manifest that an event told of can't be read; tried again", "key", layout.Accepted(id), "error", err)
		}
		if result != "later" {
			c.k.checks.m.WithLabelValues(result).Inc()
		}
	}
	// One segment that opens the run and ends it: nobody polls for more of it, and nobody has to fence it.
	if err := c.writer.Close(ctx); err != nil {
		return len(due), err
	}
	for _, settle := range c.settles {
		if err := settle(ctx); err != nil {
			c.k.log.Warn("a batch was entered and not settled; the next scan of the claims does that", "error", err)
		}
	}
	c.settles = nil
	return len(due), nil
}

// readThrough is the store's time through which the journal is read.
func (c *checker) readThrough() (time.Time, error) {
	c.k.mu.Lock()
	t := c.k.tail
	c.k.mu.Unlock()
	through, _, ready := t.Through()
	if !ready {
		return through, errNotRead
	}
	return through, t.Err()
}

// one checks one batch. "later": the journal is not read through the time at which the manifest was created.
func (c *checker) one(ctx context.Context, id identity.Batch, through time.Time) (string, error) {
	if c.set.Seen(id) {
		return "known", nil
	}
	if err := c.pace.Wait(ctx); err != nil {
		return "", err
	}
	key := layout.Accepted(id)
	b, info, err := c.k.store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return "gone", nil
	case err != nil && !objstore.Unreadable(err):
		return "", err
	case err == nil && !through.After(info.LastModified):
		return "later", nil
	}
	var e journal.Entry
	if err == nil {
		var authority string
		if e, authority, err = audit.AcceptedEntry(b, id); err == nil && authority != c.authority {
			err = fmt.Errorf("it is of the authority %.80q", authority)
		}
	}
	if err == nil && c.of != nil {
		return c.judged(ctx, b)
	}
	if err == nil {
		_, err = c.writer.Add(e)
	}
	if err != nil {
		c.k.to.unusable(key)
		return "unusable", nil
	}
	c.k.log.Info("a batch that an event told of was in no run of the journal", "key", key)
	return "entered", nil
}

// judged asks about a manifest that can be used, where there are or were several regions.
func (c *checker) judged(ctx context.Context, body []byte) (string, error) {
	m, err := accept.ParseManifest(body)
	if err != nil {
		return "", err
	}
	j, err := c.of.judge(ctx, m)
	if err != nil {
		return "", err
	}
	switch j.Finding {
	case audit.Copy:
		return "copy", nil
	case audit.Undecided:
		return "undecided", nil
	}
	if _, err := c.writer.Add(j.Entry); err != nil {
		return "", err
	}
	if j.Settle != nil {
		c.settles = append(c.settles, j.Settle)
	}
	if j.Finding == audit.Quarantined {
		return "quarantined", nil
	}
	return "entered", nil
}
