// Package owner is the loop of one owned shard: it takes what the journal has for the shard, rolls up the
// hours that are due, processes repair requests, and deletes raw frames that nobody needs any more. Everything
// it needs is in the bucket, so a new owner begins with nothing.
package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/arrivals"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/aside"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/late"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/listing"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metadata"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/overlaps"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/requests"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

// Config of the owners of one worker.
type Config struct {
	Store   objstore.Store
	Records hour.Records
	Frames  *frames.Reader
	Jobs    *job.Jobs
	Helps   *metadata.Helps
	Board   *status.Board
	Metrics *metrics.Metrics
	Log     *slog.Logger
	Now     func() time.Time
	// Jitter gives numbers of 0 to 1 for waits.
	Jitter   func() float64
	Schedule schedule.Policy
	Hub      *arrivals.Hub
	// Asides and Requests are of all shards: of the agents that are set aside, and of what is to be repaired.
	Asides, Requests *listing.Listing
	// Interval between two rounds that find nothing to do at once, Recheck until batches that were evicted are
	// looked for again in the journal.
	Interval, Recheck time.Duration
	RawFrames         FramesConfig
	Deltas            DeltasConfig
}

// Owner owns one shard. It is not for concurrent use.
type Owner struct {
	cfg      Config
	Shard    *job.Shard
	Arrivals *Follower
	deltas   *deltas
	removal  *frameRemoval
	clock    schedule.Clock
	// published: something was covered by blocks since the last round.
	published bool
}

// New makes an owner that has read nothing yet. snapshots may be nil.
func New(c Config, g ownership.Grant, snapshots Snapshots) *Owner {
	pending, book := backlog.New(), late.New()
	authority := c.Records.AuthorityID
	o := &Owner{
		cfg: c,
		Shard: &job.Shard{
			Grant: g, Backlog: pending, Unreadable: &backlog.Unreadable{Jitter: c.Jitter}, Frames: c.Frames, Late: book, Notes: map[string]struct{}{},
			Aside:    aside.New(aside.Config{Store: c.Store, Log: c.Log, AuthorityID: authority, Shard: g.Shard, Limit: c.Jobs.Limits.Hour(), Listing: c.Asides}),
			Requests: requests.New(requests.Config{Store: c.Store, Log: c.Log, AuthorityID: authority, Shard: g.Shard, Listing: c.Requests}),
		},
		Arrivals: &Follower{
			Grant: g, hub: c.Hub, frames: c.Frames, records: c.Records, backlog: pending, snapshots: snapshots,
			metrics: c.Metrics, log: c.Log, now: c.Now, schedule: c.Schedule, recheck: c.Recheck, recheckedAt: c.Now(),
			room:     func() int { return c.Board.Room(g.Shard, pending.Len()) },
			overlaps: overlaps.Finder{Manifests: c.Store, Fan: arrivals.Fan, Listed: c.Metrics.Lookups.Inc, Damaged: c.Metrics.Damage, Counts: unstamped{c.Store, authority}.counts},
			saved:    keeper{Grant: g, store: c.Store, records: c.Records, metrics: c.Metrics, log: c.Log},
		},
		removal: &frameRemoval{FramesConfig: c.RawFrames, store: c.Store, log: c.Log, metrics: c.Metrics, authority: authority, shard: g.Shard, shards: c.Records.Shards,
			now: c.Now, backlog: pending},
	}
	o.Shard.ReadThrough = o.Arrivals.ReadThrough
	o.deltas = &deltas{
		DeltasConfig: c.Deltas, store: c.Store, frames: c.Frames, helps: c.Helps, log: c.Log, metrics: c.Metrics, now: c.Now, recheck: c.Recheck,
		authority: authority, shard: g.Shard, shards: c.Records.Shards, owned: o.Shard, book: book, records: c.Records, jobs: c.Jobs,
		policy:    late.Policy{FoldAfter: c.Schedule.FoldAfter, FirstAfter: c.Schedule.FirstAfter, RawKept: c.Deltas.RawKept},
		retryBase: c.Schedule.RetryBase, retryWait: o.retryWait,
	}
	return o
}

// Run works on the shard until ctx ends: the grant is lost, or the service stops.
func (o *Owner) Run(ctx context.Context) error {
	o.cfg.Board.Enter(o.Status())
	defer o.cfg.Board.Leave(o.Shard.Shard)
	o.cfg.Log.Info("owns shard", "shard", o.Shard.Shard, "fence", o.Shard.Fence)
	wait := time.Duration(0)
	for {
		if err := (run.WallClock{}).Sleep(ctx, wait); err != nil {
			o.end(ctx)
			return nil // the grant is over, which is no failure
		}
		wait = o.cfg.Interval
		again, err := o.Round(ctx)
		if err != nil && ctx.Err() == nil {
			o.cfg.Log.Warn("round failed; it is tried again", "shard", o.Shard.Shard, "error", err)
		}
		if again { // what failed has waits of its own
			wait = 0
		}
		o.cfg.Board.Note(o.Status())
	}
}

// endTimeout bounds the last write of the record of the shard's progress.
const endTimeout = 5 * time.Second

// end leaves the shard to its next owner.
func (o *Owner) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := o.Arrivals.End(ctx); err != nil {
		// Its next owner begins further back, and reads more.
		o.cfg.Log.Warn("the shard's progress is not written", "shard", o.Shard.Shard, "error", err)
	}
	o.cfg.Log.Info("shard is given back", "shard", o.Shard.Shard)
}

const (
	// HoursPerRound bounds the hours between two readings of what has arrived: a batch may span thousands.
	HoursPerRound = 32
	// maxUnreadable bounds the lost frames that are remembered of batches that were evicted.
	maxUnreadable = 100_000
	// requestsPerRound bounds the repair requests that are processed between two polls.
	requestsPerRound = 4
	// hoursDown is how many hours, one after the other, a store may leave without an answer before
	// the round ends: each of them may wait for its deadline.
	hoursDown = 3
)

// Round takes what has arrived, does what is due and deletes what is not needed any more.
// again: there may be more to do at once. What fails is in the error and is tried again by later
// rounds; it keeps nothing else from being done, but a store that is down ends the round.
func (o *Owner) Round(ctx context.Context) (again bool, err error) {
	o.watchClock()
	again, err = o.Arrivals.Follow(ctx)
	// Whether everything was taken is asked now: what comes later is younger than all frames that may be removed.
	idle := err == nil && !again
	// A listing that fails leaves what was listed before in force. So hours that are known are made
	// all the same, and errors are joined.
	released, aerr := o.Shard.Aside.List(ctx, o.cfg.Now())
	err = errors.Join(err, aerr)
	if !o.Shard.Aside.Known() {
		return again, err // a job must not begin before it is known who is set aside
	}
	for _, h := range released {
		o.Shard.Backlog.Retry(h)
	}
	// What deltas have must be known before an hour is made: it is an input.
	if derr := o.deltas.list(ctx); derr != nil {
		err = errors.Join(err, derr)
	}
	if !o.deltas.known {
		return again, err
	}
	did, rerr := o.processRequests(ctx)
	again, err = again || did, errors.Join(err, rerr)
	// Room is made after batches were taken, which says whether there is too little, and before
	// hours are made, because it may make more of them due.
	o.makeRoom()
	did, herr := o.processHours(ctx)
	again, err = again || did, errors.Join(err, herr)
	if ctx.Err() != nil {
		return false, err
	}
	did, ferr := o.deltas.foldHours(ctx)
	again, err = again || did, errors.Join(err, ferr)
	if ctx.Err() != nil {
		return false, err
	}
	// While there is more to do at once, hours that were just made are not compared with the backlog yet.
	err = errors.Join(err, o.Arrivals.Save(ctx, o.published, !again), o.deltas.deleteSpent(ctx))
	o.published = false
	if idle && o.Arrivals.Complete() {
		err = errors.Join(err, o.removal.remove(ctx))
	}
	return again, err
}

// watchClock forgets all waits when the clock went back: they would last until it is again where
// it was.
func (o *Owner) watchClock() {
	now := o.cfg.Now()
	back := o.clock.Observe(now)
	if back == 0 {
		return
	}
	o.cfg.Metrics.ClockSteps.Inc()
	o.cfg.Log.Warn("the clock went back; nothing waits for where it was", "shard", o.Shard.Shard, "by", back)
	o.Shard.Backlog.ForgetWaits(now)
	o.Shard.Late.ForgetWaits(now)
	o.Shard.Unreadable.ForgetWaits()
	o.Shard.Requests.ForgetWaits()
	o.Shard.Aside.ForgetWaits()
	o.Arrivals.ClockWentBack(now)
}

// blocked says which pending batches wait for something that more time does not bring.
type blocked struct {
	s   *job.Shard
	now time.Time
}

// Tries is 0 for a frame that is to be tried again: it may be back.
func (b blocked) Tries(id identity.Batch) int {
	if _, due := b.s.Unreadable.Due(id, b.now); due {
		return 0
	}
	return b.s.Unreadable.Tries(id)
}

func (b blocked) SetAside(h timegrid.Hour, agent string) bool { return b.s.Aside.SetAside(h, agent) }

// makeRoom evicts and expedites when there is no room for more pending batches.
func (o *Owner) makeRoom() {
	hasRoom := func() bool { return o.cfg.Board.Room(o.Shard.Shard, o.Shard.Backlog.Len()) > 0 }
	if hasRoom() {
		return
	}
	evicted := o.Shard.Backlog.MakeRoom(hasRoom, blocked{o.Shard, o.cfg.Now()})
	for _, id := range evicted {
		// When it comes back its frame is asked for first, and no generation is planned with it in vain.
		if o.Shard.Unreadable.Len() > maxUnreadable {
			o.Shard.Unreadable.Remove(id)
		}
	}
	if len(evicted) > 0 {
		o.cfg.Log.Warn("batches that can't be rolled up make room for others; they are tried again later", "shard", o.Shard.Shard,
			"batches", len(evicted), "after", o.cfg.Recheck)
	}
}

// processRequests processes the repair requests of the shard. One that can't be done keeps
// nothing else from being done.
func (o *Owner) processRequests(ctx context.Context) (again bool, err error) {
	if err := o.Shard.Requests.List(ctx, o.cfg.Now()); err != nil {
		return false, err
	}
	for i, q := range o.Shard.Requests.Due(o.cfg.Now()) {
		if i == requestsPerRound {
			again = true // they take as long as any hour, so what has arrived comes first
			break
		}
		did, rerr := o.processRequest(ctx, q)
		again = again || did
		if rerr != nil && ctx.Err() == nil {
			q.Fail(o.cfg.Now(), o.retryWait)
			o.cfg.Metrics.Requests.WithLabelValues("failed").Inc()
			err = errors.Join(err, fmt.Errorf("repair request for hour %s: %w", q.Hour, rerr))
		}
	}
	_, inDeltas, _ := o.Shard.Late.Size()
	o.cfg.Metrics.InDeltas.WithLabelValues(o.Shard.Shard.String()).Set(float64(inDeltas))
	o.cfg.Metrics.Requested.WithLabelValues(o.Shard.Shard.String()).Set(float64(o.Shard.Requests.Len()))
	return again, err
}

// processRequest makes the next generation of a requested hour, or deletes a request that is
// done. did: there may be more to do for it at once.
func (o *Owner) processRequest(ctx context.Context, q *requests.Request) (did bool, err error) {
	st, err := o.cfg.Records.State(ctx, q.Hour, o.Shard.Shard, q.PassOver())
	if err != nil {
		o.cfg.Metrics.Damage(err)
		return false, err
	}
	if st.CommittedAbove(q.Above) {
		if again, err := o.Shard.Requests.Finish(ctx, q, st); again || err != nil {
			return again, err
		}
		o.cfg.Metrics.Requests.WithLabelValues("done").Inc()
		return false, nil
	}
	if _, err := o.cfg.Jobs.Make(ctx, o.Shard, q.Hour, st.Next()); err != nil {
		return false, err
	}
	return true, nil
}

// processHours goes through the hours that are due.
func (o *Owner) processHours(ctx context.Context) (again bool, err error) {
	defer func() {
		// One delta has what is late in all of these hours.
		o.published = o.published || len(o.deltas.deferred) > 0
		if derr := o.deltas.deferHours(ctx); derr != nil {
			err = errors.Join(err, derr)
		}
	}()
	down := 0
	for i, w := range o.Shard.Backlog.Due(o.cfg.Now()) {
		if cerr := ctx.Err(); cerr != nil {
			return false, cerr
		}
		if i == HoursPerRound {
			return true, err // what has arrived, and what is said of the shard, come first
		}
		did, herr := o.processHour(ctx, w)
		again = again || did
		if herr != nil {
			err = errors.Join(err, fmt.Errorf("hour %s: %w", w.Hour, herr))
		}
		if !isDown(herr) {
			down = 0
		} else if down++; down == hoursDown {
			break
		}
	}
	return again, err
}

// isDown reports whether the store did not answer.
func isDown(err error) bool {
	return errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// processHour makes the next generation of an hour with pending batches when that is due. did: it
// was made, so that the hour should be considered again.
func (o *Owner) processHour(ctx context.Context, w *backlog.Hour) (did bool, err error) {
	s := o.Shard
	st, err := o.cfg.Records.State(ctx, w.Hour, s.Shard, nil)
	if err != nil {
		o.cfg.Metrics.Damage(err)
		o.fail(w, err)
		return false, err
	}
	now := o.cfg.Now()
	o.cover(w.Hour, st, now)
	// Another worker, or this one in its former life, may have made the hour already.
	if w.Batches() == 0 && !st.Unfinished() {
		return false, nil
	}
	at, early := o.dueAt(w, st, now)
	if now.Before(at) {
		w.Next = at
		return false, nil
	}
	in, again, err := s.Pending(ctx, w.Hour, now)
	if err != nil {
		o.fail(w, err)
		return false, err
	}
	if !st.Unfinished() && len(in) == 0 {
		w.Next = again // all that is left can't be read, or is set aside
		return false, nil
	}
	if early == schedule.OnTime && !s.Requests.Pending(w.Hour) && o.deltas.policy.Defers(s.Late, w.Hour, st, in, now) {
		o.deltas.deferred[w.Hour] = in
		w.Next = now.Add(o.cfg.Schedule.LateAfter)
		return false, nil
	}
	switch after, err := o.cfg.Jobs.Make(ctx, s, w.Hour, st.Next()); {
	case err == nil:
		w.Succeed(now)
		if after != nil {
			// What this job has just written need not be listed and read again.
			o.cover(w.Hour, after, o.cfg.Now())
		}
		if early != schedule.OnTime {
			o.cfg.Metrics.Early.WithLabelValues(string(early)).Inc()
		}
		return true, nil
	case ctx.Err() != nil || s.Lost() != nil: // not the hour's fault
		w.Next = now.Add(o.cfg.Schedule.RetryBase)
		return false, err
	default:
		o.fail(w, err)
		return false, err
	}
}

// cover takes what is published of an hour out of the backlog.
func (o *Owner) cover(h timegrid.Hour, st *hour.State, now time.Time) {
	s := o.Shard
	s.Late.Cover(h, st.Covers, now)
	published := late.Published(st)
	s.Backlog.Cover(h, func(id identity.Batch) bool {
		// A delta is enough for an hour that has blocks. One without waits for its first generation.
		covered := st.Covers(id) || published && s.Late.Holds(id, h)
		if covered {
			o.published = true
			s.Unreadable.Remove(id) // somebody else could read its frame
		}
		return covered
	})
}

func (o *Owner) dueAt(w *backlog.Hour, st *hour.State, now time.Time) (time.Time, schedule.Early) {
	h := schedule.Hour{Hour: w.Hour, Since: w.Since, Expedited: w.Expedited, Unfinished: st.Unfinished()}
	if b := st.Blocks[timegrid.Raw]; b != nil {
		h.Published = time.Unix(0, b.CreatedAt)
	}
	return o.cfg.Schedule.DueAt(h, now)
}

// fail puts the hour off, the longer the more often it failed.
func (o *Owner) fail(w *backlog.Hour, err error) {
	w.Fail(o.cfg.Now().Add(o.retryWait(w.Failures+1)), isPermanent(err))
}

// isPermanent reports whether the store answered, and what it holds does not let the hour be
// rolled up. Only somebody who brings a frame or an object back can mend that.
func isPermanent(err error) bool {
	var frame *frames.UnreadableError
	var records *rollup.ConservationError
	return errors.As(err, &frame) || errors.As(err, &records) || record.Opaque(err) || errors.Is(err, objstore.ErrNotFound)
}

// retryWait is how long to wait after the nth failure in a row, counted from 1.
func (o *Owner) retryWait(n int) time.Duration { return o.cfg.Schedule.RetryWait(n, o.cfg.Jitter()) }

// Status says where the shard stands.
func (o *Owner) Status() status.Shard {
	s := o.Shard
	lag := time.Duration(0)
	if h, ok := s.Backlog.Oldest(); ok {
		lag = o.cfg.Now().Sub(h.End())
	}
	var hours []string
	failing := 0
	for w := range s.Backlog.Hours() {
		hours = append(hours, w.Hour.String())
		if w.Permanent > 0 {
			failing += w.Batches()
		}
	}
	st := status.Of(s.Shard, s.Fence, lag, hours)
	st.PendingBatches, st.Failing, st.Evicted = s.Backlog.Len(), failing, s.Backlog.Evicted()
	st.Unreadable, st.DeferredBatches, st.Behind = s.Unreadable.Len(), o.Arrivals.Deferred(), !o.Arrivals.Complete()
	if at, ok := o.Arrivals.ReadThrough(); ok {
		st.JournalHead, st.JournalRuns = at.Head, len(at.Runs)
	}
	st.AgentHours, st.SetAside = s.Aside.Len(), o.countSetAside()
	return st
}

// countSetAside counts the pending batches that are set aside in an hour of theirs.
func (o *Owner) countSetAside() (n int) {
	if o.Shard.Aside.Len() == 0 {
		return 0 // as nearly always; there may be hundreds of thousands of batches
	}
	for p := range o.Shard.Backlog.Batches() {
		for _, h := range p.Open {
			if o.Shard.Aside.SetAside(h, p.Agent) {
				n++
				break
			}
		}
	}
	return n
}
