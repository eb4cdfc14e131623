// Package answer evaluates queries: each over one snapshot, within bounds, and with what is known about its
// completeness.
package answer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/inorder"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/services/query/internal/blocks"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Limits of queries. An error names the limit that was met.
type Limits struct {
	Series       int           `koanf:"series" help:"most series that the selectors of one query may find"`
	Samples      int           `koanf:"samples" help:"most samples that one query may hold in memory"`
	Points       int           `koanf:"points" help:"most steps of a range query"`
	Objects      int           `koanf:"objects" help:"most requests for parts of published objects of one query"`
	Bytes        config.Bytes  `koanf:"bytes" help:"most bytes that these requests read"`
	ChunkSamples int64         `koanf:"chunk_samples" help:"most samples that one query may decode from published chunks"`
	Timeout      time.Duration `koanf:"timeout" help:"longest time of one query, its wait included"`
	Concurrency  int           `koanf:"concurrency" help:"queries that run at once; others wait"`
	QueueWait    time.Duration `koanf:"queue_wait" help:"longest time that a query waits to run"`
	Queue        int           `koanf:"queue" help:"queries that wait to run; beyond it they are refused at once"`
	Memory       config.Bytes  `koanf:"memory" help:"most memory for samples, results and unsent answers of all queries together, estimated"`
}

// DefaultLimits are those of the Prometheus server where it has them.
func DefaultLimits() Limits {
	return Limits{Series: 500_000, Samples: 50_000_000, Points: 11_000, Objects: 20_000, Bytes: 1 << 30, ChunkSamples: 500_000_000, Timeout: 2 * time.Minute, Concurrency: 20, QueueWait: 10 * time.Second, Queue: 100, Memory: 1 << 30}
}

// Validate wants positive limits.
func (l Limits) Validate() error {
	if l.Series <= 0 || l.Samples <= 0 || l.Points <= 0 || l.Objects <= 0 || l.Bytes <= 0 || l.ChunkSamples <= 0 || l.Timeout <= 0 || l.Concurrency <= 0 || l.QueueWait <= 0 || l.Queue <= 0 || l.Memory <= 0 {
		return errors.New("limits: every limit must be greater than 0")
	}
	return nil
}

// Config of an Evaluator.
type Config struct {
	Limits     Limits
	Lookback   time.Duration // of instant selectors
	StaleAfter time.Duration // age of complete_through that makes answers partial
	// Several: there are other regions, so this one may be without batches for hours.
	Several bool
	// Serve is how many queries of other regions are answered at once; 0 answers none.
	Serve int
}

// Deps of an Evaluator.
type Deps struct {
	Live     *live.Store
	Follower *follow.Follower
	Blocks   *blocks.Keeper
	// Regions are the others; nil: there are none.
	Regions  *regions.Peers
	Log      *slog.Logger
	Registry prometheus.Registerer
	Now      func() time.Time
}

// Evaluator runs queries. Safe for concurrent use.
type Evaluator struct {
	cfg    Config
	d      Deps
	engine *promql.Engine
	Parser parser.Parser
	parsed *lru.Cache[string, parser.Expr]
	slots  *semaphore.Weighted
	// serving are the slots of other regions' queries. Were they those of this region's, then two regions whose queries
	// have all slots and wait for each other would wait for nothing.
	serving *semaphore.Weighted
	// processors read the series of large selections, of all queries together.
	processors *inorder.Pool
	queued     atomic.Int64
	memory     *budget
}

// defaultSubqueryStep is the step of subqueries that name none, as in Prometheus by default.
const defaultSubqueryStep = time.Minute

// New makes an Evaluator; Close it.
func New(cfg Config, d Deps) *Evaluator {
	p := parser.NewParser(parser.Options{})
	e := &Evaluator{
		cfg: cfg, d: d, Parser: p, parsed: lru.New[string, parser.Expr](parsedBytes), memory: &budget{max: int64(cfg.Limits.Memory)},
		slots: semaphore.NewWeighted(int64(cfg.Limits.Concurrency)), serving: semaphore.NewWeighted(int64(cfg.Serve)), processors: inorder.New(0),
		engine: promql.NewEngine(promql.EngineOpts{
			Logger: d.Log, Reg: prometheus.WrapRegistererWithPrefix("lightmetrics_", d.Registry),
			MaxSamples: cfg.Limits.Samples, Timeout: cfg.Limits.Timeout, LookbackDelta: cfg.Lookback,
			NoStepSubqueryIntervalFn: func(int64) int64 { return defaultSubqueryStep.Milliseconds() },
			EnableAtModifier:         true, EnableNegativeOffset: true, EnablePerStepStats: true,
			Parser: p,
		}),
	}
	reg := promauto.With(d.Registry)
	reg.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_query_memory_bytes",
		Help: "Part of limits.memory that is reserved by queries and unsent answers."}, func() float64 { return float64(e.memory.inUse()) })
	reg.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_query_waiting",
		Help: "Queries that wait to run."}, func() float64 { return float64(e.queued.Load()) })
	return e
}

// Reserve begins a reservation of limits.memory, for an answer that is not sent yet.
func (e *Evaluator) Reserve() *Reservation { return &Reservation{b: e.memory} }

// Close ends the engine.
func (e *Evaluator) Close() error { return e.engine.Close() }

// Now is the evaluator's clock.
func (e *Evaluator) Now() time.Time { return e.d.Now() }

// Limits of the evaluator.
func (e *Evaluator) Limits() Limits { return e.cfg.Limits }

// BusyError: the concurrency limit was reached for too long, or too many queries wait already.
type BusyError struct {
	Limits Limits
	Full   bool // the query did not wait: limits.queue is met
}

func (e *BusyError) Error() string {
	if e.Full {
		return fmt.Sprintf("limits.queue of %d queries wait to run", e.Limits.Queue)
	}
	return fmt.Sprintf("query waited %s to run: limits.concurrency of %d is met", e.Limits.QueueWait, e.Limits.Concurrency)
}

// QueryError: the expression or a parameter is wrong.
type QueryError struct{ Err error }

func (e *QueryError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *QueryError) Unwrap() error { return e.Err }

// Session is the view of one query: a snapshot, and what was known when it was opened. Close it when the answer is
// written.
type Session struct {
	*promstore.Queryable
	Snapshot *live.Snapshot
	e        *Evaluator
	seen     follow.Status
	pub      *published.Query // nil when there are no blocks
	query    promql.Query     // of the engine, when it evaluates
	account  *account
	unwatch  func() bool
	closed   bool

	in      In
	regions *regions.Query // nil: this region alone is read
	foreign *Reservation   // of what other regions send; it lasts longer than an attempt
	slots   *semaphore.Weighted
}

// In says of which regions a session is.
type In struct {
	Scope regions.Scope
	// Caller is for whom other regions are asked.
	Caller regions.Caller
	// Strong wants everything that was accepted before in the other regions, too; AwaitIn does so in this one.
	Strong bool
	// Tokens must be visible in other regions as far as they know them; Unknown of them are not known to this one.
	Tokens, Unknown []journal.Position
	// Serves another region's query: then Scope must be this region alone.
	Serves bool
}

// slot waits until the query may run. Errors: *BusyError, a context error.
func (e *Evaluator) slot(ctx context.Context, slots *semaphore.Weighted) error {
	// The usual case must not touch the counter of waiting queries.
	if slots.TryAcquire(1) {
		return nil
	}
	defer e.queued.Add(-1)
	// The queue is bounded too: a client that cancels and asks again must not pile up waiting queries.
	if e.queued.Add(1) > int64(e.cfg.Limits.Queue) {
		return &BusyError{Limits: e.cfg.Limits, Full: true}
	}
	wctx, cancel := context.WithTimeout(ctx, e.cfg.Limits.QueueWait)
	defer cancel()
	switch err := slots.Acquire(wctx, 1); {
	case err == nil:
		return nil
	// The caller went away; only the end of the wait itself means that the node is busy.
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &BusyError{Limits: e.cfg.Limits}
}

// Fresh says what a query must see. The zero value asks for nothing.
type Fresh struct {
	// Tokens are positions of the journal whose batches must be visible.
	Tokens []journal.Position
	// Strong asks for everything that was accepted before.
	Strong bool
}

// maxTokens bounds Fresh.Tokens.
const maxTokens = 100

// ParseFresh reads what a caller asks for. A wrong parameter is a *QueryError.
func ParseFresh(tokens []string, strong bool) (f Fresh, err error) {
	if len(tokens) > maxTokens {
		return f, &QueryError{fmt.Errorf("%d tokens, at most %d", len(tokens), maxTokens)}
	}
	for _, t := range tokens {
		p, err := journal.ParsePosition(t)
		if err != nil {
			return f, &QueryError{err}
		}
		f.Tokens = append(f.Tokens, p)
	}
	f.Strong = strong
	return f, nil
}

// Await waits until what f asks for is visible. Call it before Open. Errors: *follow.NotVisibleError,
// *follow.UnknownTokenError, a context error.
func (e *Evaluator) Await(ctx context.Context, f Fresh) error {
	return e.d.Follower.WaitFor(ctx, f.Tokens, f.Strong)
}

// Open is OpenIn of this region alone.
func (e *Evaluator) Open(ctx context.Context) (*Session, error) {
	return e.OpenIn(ctx, In{Scope: regions.OwnOnly})
}

// OpenIn waits for a slot and opens a snapshot. Reads of the session end with ctx. Errors: *BusyError, a context
// error.
func (e *Evaluator) OpenIn(ctx context.Context, in In) (*Session, error) {
	slots := e.slots
	if in.Serves {
		slots = e.serving
	}
	if err := e.slot(ctx, slots); err != nil {
		return nil, err
	}
	// The status is read first. What it promises was inserted before, so the snapshot has it; in the other order a
	// batch could be promised that the snapshot lacks.
	st := e.d.Follower.Status()
	snap := e.d.Live.Snapshot(e.d.Now())
	s := &Session{Snapshot: snap, e: e, seen: st, account: &account{Reservation: e.Reserve()}, in: in, slots: slots}
	s.unwatch = s.account.watch(ctx)
	if len(in.Scope.Others) > 0 {
		s.foreign = e.Reserve()
		s.regions = e.d.Regions.Open(ctx, regions.Ask{
			Scope: in.Scope, Caller: in.Caller, Strong: in.Strong, Tokens: in.Tokens, Series: int64(e.cfg.Limits.Series), Samples: e.cfg.Limits.ChunkSamples, Reserve: s.foreign.Grow,
		})
	}
	s.begin()
	if err := s.knownSomewhere(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// parallelSamples is how many samples make it worth while to read them with several processors.
const parallelSamples = 1 << 14

// begin starts reading over the blocks as they are now. The snapshot was opened before, so a batch that has left
// it is in the blocks that are seen now.
func (s *Session) begin() {
	l := s.e.cfg.Limits
	// What an earlier attempt reserved would otherwise count twice.
	s.done()
	s.Queryable = promstore.New(s.Snapshot, promstore.Limits{Series: l.Series}).WithGuard(s.account).WithParallel(s.e.processors, parallelSamples)
	s.pub = s.e.d.Blocks.Query(published.Limits{
		Series: l.Series, Objects: l.Objects, Bytes: int64(l.Bytes), Samples: l.ChunkSamples, Reserve: s.account.Reserve,
	})
	if s.pub != nil {
		s.Queryable.WithPublished(s.pub).WithResolutions(s.e.d.Blocks.Resolutions())
	}
	if s.regions != nil {
		s.regions.Begin()
		s.Queryable.WithOthers(s.e.d.Regions.Own(), s.regions)
	}
	if !s.in.Scope.Own {
		s.Queryable.WithoutOwn()
	}
}

// done releases what the session reads with, but not the snapshot.
func (s *Session) done() {
	if s.query != nil {
		// Closing gives the slices of the result back to the engine's pool, so nothing may use them afterwards.
		s.query.Close()
		s.query = nil
	}
	s.account.reset()
	if s.pub != nil {
		s.e.d.Blocks.Done(s.pub)
		s.pub = nil
	}
}

// Close gives the slot, the snapshot and the memory back. A second call does nothing.
func (s *Session) Close() {
	if s.closed {
		return
	}
	s.closed = true
	s.unwatch()
	// Nothing comes any more when it returns, so nothing is reserved any more either.
	s.regions.Close()
	s.done()
	if s.foreign != nil {
		s.foreign.Release()
	}
	s.Snapshot.Close()
	// Last: a query that takes the slot must find the memory free.
	s.slots.Release(1)
}

// Published counts what was read of blocks; nil when there are none.
func (s *Session) Published() *published.Stats {
	if s.pub == nil {
		return nil
	}
	st := s.pub.Stats()
	return &st
}

// Completeness says what was complete of everything that was read so far.
func (s *Session) Completeness() Completeness {
	if s.regions != nil {
		return s.ofRegions(s.regions.States())
	}
	return s.own()
}

// own is the completeness of what was read of this region.
func (s *Session) own() Completeness {
	mint, maxt, ok := s.Touched()
	c := s.e.complete(s.seen, s.Snapshot, s.pub, mint, maxt, ok)
	if n, merged := mergeNote(s.Merges()); merged {
		c.Notes = append(c.Notes, n)
	}
	return c
}

// Result of an evaluation; valid until the session is closed.
type Result struct {
	Value    parser.Value
	Warnings annotations.Annotations
	Stats    *stats.Statistics // nil unless they were asked for
}

// Options of an evaluation.
type Options struct {
	Lookback     time.Duration // 0 is the default
	Stats        bool          // Result.Stats is wanted
	PerStepStats bool
}

// Instant evaluates at one time. A wrong expression is a *QueryError.
func (s *Session) Instant(ctx context.Context, expr string, at time.Time, o Options) (Result, error) {
	return s.run(ctx, &request{text: expr, start: at, end: at, o: o})
}

// Range evaluates at every step from start to end.
func (s *Session) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration, o Options) (Result, error) {
	if err := s.e.CheckRange(start, end, step); err != nil {
		return Result{}, err
	}
	return s.run(ctx, &request{text: expr, start: start, end: end, step: step, o: o})
}

// CheckRange refuses what can't be a range query.
func (e *Evaluator) CheckRange(start, end time.Time, step time.Duration) error {
	switch {
	case end.Before(start):
		return &QueryError{errors.New("end timestamp must not be before start time")}
	case step <= 0:
		return &QueryError{errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer")}
	// Before the engine runs, which allocates for every step.
	case int64(end.Sub(start)/step) > int64(e.cfg.Limits.Points):
		return &QueryError{fmt.Errorf("exceeded maximum resolution of %d points per timeseries (limits.points). Try decreasing the query resolution (?step=XX)", e.cfg.Limits.Points)}
	}
	return nil
}

// run evaluates, and does so a second time if the blocks changed while it read them.
func (s *Session) run(ctx context.Context, q *request) (Result, error) {
	var err error
	if q.expr, err = s.e.check(q.text, q.end.Sub(q.start), q.times()); err != nil {
		return Result{}, err
	}
	res, err := s.once(ctx, q)
	if s.again(ctx) {
		res, err = s.once(ctx, q)
	}
	for s.torn() {
		res, err = s.once(ctx, q)
	}
	return res, err
}

// Read runs fn, for reads without an expression. It may call fn twice (see again); then what the first call
// returned is void.
func (s *Session) Read(ctx context.Context, fn func() error) error {
	err := fn()
	if s.again(ctx) {
		err = fn()
	}
	for s.torn() {
		err = fn()
	}
	return err
}

// torn reports whether a region was lost after a part of its answers was used; then the session begins again without it. Each
// region is lost at most once.
func (s *Session) torn() bool {
	if !s.regions.Torn() {
		return false
	}
	s.begin()
	return true
}

// again reports whether an object was missing, perhaps because its generation was superseded and removed while it
// was read. Then the session begins again, over the blocks as they are now.
func (s *Session) again(ctx context.Context) bool {
	if s.pub == nil || ctx.Err() != nil {
		return false
	}
	from, to, gone := s.pub.GoneHours()
	if !gone {
		return false
	}
	if err := s.e.d.Blocks.Refresh(ctx, from, to); err != nil {
		s.e.d.Log.Warn("the blocks can't be listed again", "error", err)
	}
	// Also when the listing failed: the answer is then partial for the missing object.
	s.begin()
	return true
}

// Check must be called while a result is written, as writing may take long. Errors: a context error.
func (s *Session) Check() error { return s.account.Check() }

// Reserve reserves memory for what is made of a result, until the session is closed.
func (s *Session) Reserve(bytes int64) error { return s.account.Reserve(bytes) }

// Matrix is the value of a range evaluation.
func (r Result) Matrix() (promql.Matrix, error) {
	m, ok := r.Value.(promql.Matrix)
	if !ok {
		return nil, fmt.Errorf("range query gave a %s", r.Value.Type())
	}
	return m, nil
}

// Completeness returns the completeness of an answer that reads no samples.
func (e *Evaluator) Completeness(st follow.Status) Completeness {
	return e.complete(st, nil, nil, 0, 0, false)
}
