package work

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// What a Handler answers besides success and failure.
var (
	// ErrElsewhere of Handler.Job: the job is not for this worker; the message is left to others for a while.
	ErrElsewhere = errors.New("another worker's")
	// ErrPoison of Job or Run: no attempt will ever succeed; the message becomes a dead letter.
	ErrPoison = errors.New("job can never succeed")
	// ErrHandOver of Job.Checkpoint: the state is stored and the time is nearly up; return it from Run.
	ErrHandOver = errors.New("hand over")
)

// NotDueError of Handler.Job: the job is not due yet; its message is put back for Wait, at most for MaxDelay.
type NotDueError struct{ Wait time.Duration }

func (e *NotDueError) Error() string { return fmt.Sprintf("not due for %s", e.Wait) }

// Handler does one kind of jobs.
type Handler interface {
	// Job says which job the message is for, and under which fence this worker would do it.
	Job(ctx context.Context, m Message) (Key, uint64, error)
	// Run does the job from j.State() on, piece by piece with a Checkpoint after each, and returns nil when it is
	// complete. An error of Checkpoint must end it. Its outputs have predictable names, as the piece after the
	// last checkpoint may be done twice.
	Run(ctx context.Context, j *Job) error
}

// DefaultMaxAttempts is how often a job is tried without progress before an operator has to see to it.
const DefaultMaxAttempts = 5

// Config of a Worker. Times that are 0 get their defaults.
type Config struct {
	Topic string
	// Owner is different for every start of every process, and at most 150 bytes long.
	Owner string
	// Hold is the longest time between two checkpoints (60 s). Visibility is how long a
	// message is hidden from one checkpoint on (twice Hold).
	Hold, Visibility time.Duration
	// TimeLimit is how long one worker may keep a job; 0 is no limit.
	TimeLimit time.Duration
	// MaxAttempts is how often a job may be claimed without a checkpoint; 0 is DefaultMaxAttempts.
	MaxAttempts uint32
	// OrderDelay is for how long a job is put back whose predecessor is pending, or that another worker has (2 s).
	OrderDelay time.Duration
	// RetryDelay hides a failed job, doubled by each attempt, at most 16 times (5 s).
	RetryDelay time.Duration
}

func (c *Config) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Hold, time.Minute)
	set(&c.Visibility, 2*c.Hold)
	set(&c.OrderDelay, 2*time.Second)
	set(&c.RetryDelay, 5*time.Second)
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
}

// Validate refuses settings that no back end accepts.
func (c Config) Validate() error {
	c.defaults()
	k := Key{Log: "x", Number: 1}
	return errors.Join(
		CheckTopic("worker", c.Topic),
		CheckClaim("worker", k, Claim{Owner: c.Owner, Hold: c.Hold}),
		CheckClaim("worker", k, Claim{Owner: c.Owner + ".18446744073709551615", Hold: c.Hold}),
		checkVisibility("worker", c.Topic, c.Visibility),
		checkVisibility("worker", c.Topic, c.RetryDelay),
		CheckDefer(Message{ID: "x", Topic: c.Topic, Receipt: "x"}, c.OrderDelay),
	)
}

// Worker takes jobs to their outcomes. It starts no goroutine: its caller calls Step or Handle, from as many
// goroutines as it likes.
type Worker struct {
	queue   Queue
	table   Table
	handler Handler
	cfg     Config
	now     func() time.Time
	claims  atomic.Uint64
}

// NewWorker makes a worker; now is only used for the time limit.
func NewWorker(q Queue, t Table, h Handler, cfg Config, now func() time.Time) (*Worker, error) {
	cfg.defaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Worker{queue: q, table: t, handler: h, cfg: cfg, now: now}, nil
}

// Outcome is what became of a job.
type Outcome string

// Outcomes. All but Failed and Lost have put the message back, deleted or buried it.
const (
	Idle       Outcome = "idle"        // there was no message
	Completed  Outcome = "completed"   // done and recorded
	Duplicate  Outcome = "duplicate"   // was completed before
	Deferred   Outcome = "deferred"    // a predecessor is pending, it is not due, or it is for another worker
	Busy       Outcome = "busy"        // another owner works on it
	Fenced     Outcome = "fenced"      // this worker no longer owns it
	HandedOver Outcome = "handed_over" // the next worker continues from the checkpoint
	Lost       Outcome = "lost"        // another worker has taken the row
	Failed     Outcome = "failed"      // comes again, by its message or by the sweep
	Buried     Outcome = "buried"      // a dead letter
)

// Step receives one message and handles it. Failed, Buried and Lost come with an error.
func (w *Worker) Step(ctx context.Context) (Outcome, error) {
	ms, err := w.queue.Receive(ctx, w.cfg.Topic, 1, w.cfg.Visibility)
	if err != nil {
		return Failed, err
	}
	if len(ms) == 0 {
		return Idle, nil
	}
	return w.Handle(ctx, ms[0])
}

// Handle takes one delivery to its outcome.
func (w *Worker) Handle(ctx context.Context, m Message) (Outcome, error) {
	k, fence, err := w.handler.Job(ctx, m)
	var early *NotDueError
	switch {
	case errors.As(err, &early):
		return Deferred, w.queue.Defer(ctx, m, min(max(early.Wait, 0), MaxDelay))
	// Put back as if it had not been delivered, so that passing it on does not use up its tries.
	case errors.Is(err, ErrElsewhere):
		return Deferred, w.queue.Defer(ctx, m, w.cfg.OrderDelay)
	case errors.Is(err, ErrPoison):
		return w.bury(ctx, m, err)
	case err != nil:
		// Hidden for a while instead of returned at once: a store that fails would be asked in a tight loop.
		return Failed, errors.Join(err, w.queue.Extend(ctx, m, w.backoff(m.Tries)))
	}
	return w.do(ctx, Row{Key: k, Topic: m.Topic, Body: m.Body, Fence: fence}, m)
}

// Do does a job that no message brings: its caller knows that it is due, and comes again after every outcome but Completed.
// A row with an Increment is that of an earlier attempt, which is claimed. Without one the job gets its row with the first
// checkpoint, so one that makes none leaves nothing in the table: something else has to decide it, such as a conditional
// create. The outcomes are Completed, HandedOver, Busy, Fenced, Lost and Failed.
func (w *Worker) Do(ctx context.Context, row Row) (Outcome, error) {
	j := &Job{w: w, row: row, started: w.now()}
	if row.Increment != 0 {
		c, ours := w.claim(row)
		var err error
		j.row, err = w.resolve(ctx, row, ours, func() (Row, error) { return w.table.Claim(ctx, row, c) })
		switch {
		case errors.Is(err, ErrLive), errors.Is(err, ErrMoved):
			return Busy, nil
		case errors.Is(err, ErrFenced):
			return Fenced, nil
		case err != nil:
			return Failed, err
		}
	}
	j.piece = j.started
	return j.finish(ctx, w.handler.Run(ctx, j))
}

// claim of a row, and what recognizes the row that it made.
func (w *Worker) claim(r Row) (c Claim, ours func(Row) bool) {
	// A number for each claim: two attempts of one process must not take each other's row for their own.
	c = Claim{Owner: fmt.Sprintf("%s.%d", w.cfg.Owner, w.claims.Add(1)), Fence: r.Fence, Hold: w.cfg.Hold}
	return c, func(r Row) bool { return r.Active && r.Owner == c.Owner }
}

func (w *Worker) do(ctx context.Context, want Row, m Message) (Outcome, error) {
	ready, err := w.ordered(ctx, want.Key)
	switch {
	case errors.Is(err, ErrCompleted):
		return Duplicate, w.queue.Delete(ctx, m)
	case err != nil:
		return Failed, err
	case !ready:
		return w.putBack(ctx, m, Deferred)
	}
	row, err := w.take(ctx, want, m)
	switch {
	case errors.Is(err, ErrCompleted):
		return Duplicate, w.queue.Delete(ctx, m)
	case errors.Is(err, ErrLive), errors.Is(err, ErrMoved):
		return w.putBack(ctx, m, Busy)
	case errors.Is(err, ErrFenced):
		return w.putBack(ctx, m, Fenced)
	case errors.Is(err, ErrPoison):
		return w.bury(ctx, m, err)
	case err != nil:
		return Failed, err
	}
	j := &Job{w: w, row: row, msg: &m, started: w.now()}
	// The first piece begins with the claim, which has set the hold.
	j.piece = j.started
	return j.finish(ctx, w.handler.Run(ctx, j))
}

// ordered reports whether it is the job's turn: it has to wait while the log has rows with lower numbers. Jobs
// that must not overtake each other need their rows before any of them is received (Submit), or numbers that only
// a completed predecessor gives. ErrCompleted when the job was done before.
func (w *Worker) ordered(ctx context.Context, k Key) (bool, error) {
	log, err := w.table.Log(ctx, k.Log)
	switch {
	case err != nil:
		return false, err
	case k.Number <= log.Last:
		return false, failed("order", k, ErrCompleted)
	}
	for after := ""; ; {
		rows, next, err := w.table.Rows(ctx, k.Log, after, orderPage)
		if err != nil {
			return false, err
		}
		for _, r := range rows {
			// Logs below this one's name, such as a/b for a, are listed too and do not count.
			if r.Log == k.Log {
				return r.Number >= k.Number, nil // the log's lowest
			}
		}
		if next == "" {
			return true, nil
		}
		after = next
	}
}

// orderPage is large enough to contain the lowest row of a log without other logs under its name.
const orderPage = 4

// take creates or claims the row.
func (w *Worker) take(ctx context.Context, want Row, m Message) (Row, error) {
	c, ours := w.claim(want)
	var last error
	for range moves {
		row, err := w.resolve(ctx, Row{Key: want.Key}, ours, func() (Row, error) { return w.table.Create(ctx, want, &c) })
		if !errors.Is(err, ErrExists) {
			return row, err
		}
		row, err = w.table.Get(ctx, want.Key)
		// It was completed or removed just now; the next round finds out which.
		if errors.Is(err, ErrNotFound) {
			last = failed("take", want.Key, ErrMoved)
			continue
		}
		if err != nil {
			return Row{}, err
		}
		// The first delivery always gets an attempt, so that an operator's redrive has an effect.
		if row.Attempts >= w.cfg.MaxAttempts && !row.Live && m.Tries > 1 {
			return Row{}, fmt.Errorf("%w: %s: %d attempts without a checkpoint", ErrPoison, want.Key, row.Attempts)
		}
		row, err = w.resolve(ctx, row, ours, func() (Row, error) { return w.table.Claim(ctx, row, c) })
		if !errors.Is(err, ErrMoved) {
			return row, err
		}
		last = err
	}
	return Row{}, last
}

// moves is how often a worker reads a row again that others change meanwhile, and how often it tries to find out
// the outcome of its own change.
const moves = 4

// resolve makes one change of row by op, and finds out what happened if the outcome is unknown. ours recognizes a
// row that op has written.
func (w *Worker) resolve(ctx context.Context, row Row, ours func(Row) bool, op func() (Row, error)) (Row, error) {
	unknown := false
	var last error
	for range moves {
		n, err := op()
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, ErrUnknown):
			unknown = true
		case errors.Is(err, ErrUnavailable):
		// The first attempt may have taken effect, so a refusal of the second proves nothing: the row decides.
		case unknown && (errors.Is(err, ErrMoved) || errors.Is(err, ErrExists)):
		default:
			return Row{}, err
		}
		last = err
		cur, err := w.table.Get(ctx, row.Key)
		switch {
		case errors.Is(err, ErrNotFound) && row.Increment == 0: // not created
		case errors.Is(err, ErrNotFound):
			return Row{}, failed("resolve", row.Key, ErrMoved)
		case err != nil:
			last = errors.Join(last, err)
		case ours(cur):
			return cur, nil
		// Somebody has created the row, and it was not this call.
		case row.Increment == 0:
			return Row{}, failed("resolve", row.Key, ErrExists)
		case cur.Increment != row.Increment:
			return Row{}, failed("resolve", row.Key, ErrMoved)
		}
	}
	return Row{}, last
}

func (w *Worker) putBack(ctx context.Context, m Message, o Outcome) (Outcome, error) {
	return o, w.queue.Defer(ctx, m, w.cfg.OrderDelay)
}

func (w *Worker) bury(ctx context.Context, m Message, why error) (Outcome, error) {
	return Buried, errors.Join(why, w.queue.Bury(ctx, m, why.Error()))
}

// backoff grows with the tries, counted from 1. It has no jitter: jobs that failed together have a message each,
// and the queue delivers these one by one.
func (w *Worker) backoff(tries int) time.Duration {
	return retry.Policy{Base: w.cfg.RetryDelay, Cap: min(16*w.cfg.RetryDelay, MaxVisibility)}.Wait(tries, 1)
}
