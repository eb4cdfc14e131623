package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RunnerStore is what garbage collection as a service needs of the store.
type RunnerStore interface {
	Store
	objstore.Replacer
}

// Limits are the ages, margins and bounds of garbage collection as a service. Ages are by the store's clock.
type Limits struct {
	// MinAge is the age below which a sweep leaves a blob alone, Delay that of the blobs of a report and of the report. No
	// safety depends on either: a blob that is collected too early costs its sender's next attempt a further generation.
	MinAge, Delay time.Duration
	// Interval between the beginnings of two sweeps; 0 is never, unless an operator asks.
	Interval time.Duration
	// Lease is after how long another process takes over from one that does not move the state.
	Lease time.Duration
	// Budget bounds the requests of a day; 0 does not.
	Budget uint64
	// MaxListed bounds the blobs of one plan, MaxNames the names in memory, and Step the blobs that are condemned together; 0 are defaults.
	MaxListed, MaxNames, Step int
	// Epochs begins the log of epochs, which lets collectors go without reading markers. Once it has begun, every collection goes by it.
	Epochs bool
	// DryRun condemns nothing: plans are made, and logged.
	DryRun bool
}

// RunnerConfig of a Runner. Store, AuthorityID, By, Claim and Clock are required.
type RunnerConfig struct {
	Store       RunnerStore
	AuthorityID string
	// By names the process; Claim is its random id.
	By, Claim string
	// Clock stamps records. No decision depends on it.
	Clock accept.Clock
	// Fan reads parts of the journal side by side; nil one after the other.
	Fan journal.Fan
	Limits
	Inventory InventoryOptions
	// Planned is called with each plan before it is executed, and Executed with what became of it. May be nil.
	Planned  func(Source, Plan)
	Executed func(Source, Report)
	// Wait is called while a collection waits for runs of the journal; see ExecuteOptions. It must end at some time.
	Wait func(ctx context.Context, left, looks int) error
}

// Runner collects garbage as a service: one process at a time, step by step. Its state is in the bucket, so any process goes on
// where another one was. It is for one caller of Step at a time; Renew may be called beside it. It has no goroutines and no clock.
type Runner struct {
	cfg   RunnerConfig
	c     *Collector
	store *metered

	mu sync.Mutex
	// held: the state had our claim and the number of our plan when it was last moved.
	held bool
	plan uint64

	// names are those of the sweep that began at namesOf; they were read at namesAt, by the store's clock.
	names   *Names
	namesOf int64
	namesAt time.Time
	// inventory is the one that was opened last.
	inventory *Inventory

	// dry is what a dry run has in place of the state in the bucket.
	dry dryState
}

const (
	defaultStep = 100
	// maxReports bounds the reports of one plan.
	maxReports = 4
)

// NewRunner checks the settings; it makes no request.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	if cfg.Store == nil {
		return nil, errors.New("gc: store and clock are needed")
	}
	if cfg.Step <= 0 {
		cfg.Step = defaultStep
	}
	m := &metered{RunnerStore: cfg.Store}
	c, err := New(Config{Store: m, AuthorityID: cfg.AuthorityID, Clock: cfg.Clock, By: cfg.By})
	if err != nil {
		return nil, err
	}
	for what, name := range map[string]string{"name": cfg.By, "claim": cfg.Claim} {
		if err := validName(what, name); err != nil {
			return nil, err
		}
	}
	return &Runner{cfg: cfg, c: c, store: m}, nil
}

// Progress is what a step found.
type Progress struct {
	// State as it was read, or moved, last; zero where the step did not need it.
	State State
	// Worked: there was something to do, and there may be more.
	Worked bool
	// Waiting reports that are not due, or that the breaker or another process keeps waiting; at most one page is counted. Oldest is
	// the age of the oldest of them that was never checked. Looked: both were counted.
	Waiting int
	Oldest  time.Duration
	Looked  bool
	// OverBudget: the requests of the day are used up.
	OverBudget bool
	// Awaited runs of the journal have not come to the epoch of what is condemned; nothing is planned until they have.
	Awaited int
}

// ErrNoTime: the store's answers have no time, so no age is known.
var ErrNoTime = errors.New("the store does not say its time")

// Step does one plan of what is due: reports first, then a part of the sweep. Errors: ErrFenced, where another process has
// taken over, ErrJournalIncomplete, the store's. After any of them the next call goes on.
func (r *Runner) Step(ctx context.Context) (Progress, error) {
	p, err := r.step(ctx)
	if errors.Is(err, errBudget) {
		p.OverBudget, p.Worked = true, false
		return p, r.release(ctx)
	}
	if errors.Is(err, ErrAwaited) {
		p.Awaited, p.Worked = max(p.Awaited, 1), false
		return p, r.release(ctx)
	}
	if err != nil {
		// What was read before may be of a state that has moved.
		r.names = nil
		if errors.Is(err, ErrFenced) {
			r.drop()
		}
		// What this process may not do, or can't reach, another one may. If this fails, too, it waits for the lease.
		_ = r.release(ctx)
		return p, fmt.Errorf("collect garbage: %w", err)
	}
	return p, nil
}

func (r *Runner) step(ctx context.Context) (p Progress, err error) {
	page, err := r.store.List(ctx, objstore.ListOptions{Prefix: layout.OrphanReportsPrefix})
	if err != nil {
		return p, err
	}
	now := page.Date
	if now.IsZero() {
		return p, ErrNoTime
	}
	if p.State, err = r.readState(ctx, now); err != nil {
		return p, err
	}
	if p.State.CreatedAt == 0 {
		// The first sweep comes after the minimum age: before that a new bucket has nothing to find.
		r.mu.Lock()
		p.State, err = r.moveState(ctx, func(s *State) error { s.create(now); return nil })
		r.mu.Unlock()
		if err != nil {
			return p, err
		}
	}
	reports := r.due(&p.State, page.Objects, now)
	p.Waiting, p.Oldest, p.Looked = len(page.Objects), r.oldest(&p.State, page.Objects, now), true
	sweep := r.sweepDue(&p.State, now)
	begins, err := r.epochsDue(ctx, &p.State, now)
	if err != nil {
		return p, err
	}
	switch {
	case len(reports) == 0 && !sweep && !begins, p.State.Holds():
		return p, r.release(ctx)
	case r.overBudget(&p.State, now):
		p.OverBudget = true
		return p, r.release(ctx)
	}
	// A plan that is made again before they have come finds the same, and would wait for them again.
	if p.Awaited, err = r.c.Awaits(ctx); err != nil || p.Awaited > 0 {
		return p, cmp.Or(err, r.release(ctx))
	}
	if mine, err := r.take(ctx, now); err != nil || !mine {
		return p, err
	}
	if begins {
		if err := r.beginEpochs(ctx, now); err != nil {
			return p, err
		}
	}
	if len(reports) > 0 {
		done, worked, err := r.reports(ctx, now, reports)
		if err != nil {
			return p, err
		}
		p.Waiting -= done
		if p.Worked = worked; worked || !sweep {
			return r.progress(ctx, p, now)
		}
	}
	if sweep {
		if err := r.sweep(ctx, now); err != nil {
			return p, err
		}
		p.Worked = true
	}
	return r.progress(ctx, p, now)
}

// quarantineOfEpochs is the least time between the state that earlier releases refuse and the log of epochs. A collection of such a release
// that passed its fence before may still condemn a step of blobs, in no epoch: it has this time to finish.
const quarantineOfEpochs = time.Hour

// epochsDue reports whether the log of epochs has to begin, or the state to say that it has.
func (r *Runner) epochsDue(ctx context.Context, s *State, now time.Time) (bool, error) {
	// A dry run writes nothing but its log, and condemns nothing that an epoch would have to name.
	if held, _ := r.c.epochs.Held(); r.cfg.DryRun || held != nil && s.EpochsAt > 0 {
		return false, nil
	}
	begun, err := r.c.epochs.Begun(ctx)
	switch {
	case err != nil || begun:
		return begun, err
	case !r.cfg.Epochs:
		return false, nil
	}
	return s.EpochsAt == 0 || now.Sub(time.Unix(s.EpochsAt, 0)) >= max(quarantineOfEpochs, r.cfg.Lease), nil
}

// beginEpochs keeps earlier releases out, and then begins the log of epochs.
func (r *Runner) beginEpochs(ctx context.Context, now time.Time) error {
	// Also where the state was lost after the log had begun.
	st, err := r.move(ctx, now, func(s *State) {
		if s.EpochsAt == 0 {
			s.EpochsAt = now.Unix()
		}
	})
	if err != nil {
		return err
	}
	begun, err := r.c.epochs.Begun(ctx)
	if err != nil || !begun && now.Sub(time.Unix(st.EpochsAt, 0)) < max(quarantineOfEpochs, r.cfg.Lease) {
		return err
	}
	return r.c.beginEpochs(ctx, begun)
}

// progress notes the requests of the step.
func (r *Runner) progress(ctx context.Context, p Progress, now time.Time) (Progress, error) {
	st, err := r.move(ctx, now, nil)
	if err == nil {
		p.State = st
	}
	return p, err
}

func (s *State) create(now time.Time) {
	if s.CreatedAt == 0 {
		s.CreatedAt = max(now.Unix(), 1)
	}
}

// oldest is the age of the oldest report that nobody has checked yet.
func (r *Runner) oldest(s *State, reports []objstore.Info, now time.Time) (age time.Duration) {
	for _, o := range reports {
		if s.postponed(o.Key) < 0 && !r.dry.seen[o.Key] {
			age = max(age, now.Sub(o.LastModified))
		}
	}
	return age
}

func (r *Runner) due(s *State, reports []objstore.Info, now time.Time) (keys []string) {
	r.dry.listed(reports)
	for _, o := range reports {
		if i := s.postponed(o.Key); i >= 0 && now.Unix() < s.Postponed[i].Due || r.dry.seen[o.Key] {
			continue
		}
		if now.Sub(o.LastModified) >= r.cfg.Delay && len(keys) < maxReports {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

func (r *Runner) sweepDue(s *State, now time.Time) bool {
	switch {
	case s.Sweep.BeganAt > 0 || s.Requested:
		return true
	case r.cfg.Interval <= 0:
		return false
	case s.Last.BeganAt == 0:
		return now.Sub(time.Unix(s.CreatedAt, 0)) >= max(r.cfg.MinAge, 0)
	}
	return now.Sub(time.Unix(s.Last.BeganAt, 0)) >= r.cfg.Interval
}

func day(now time.Time) int64 { return now.Unix() / int64(24*time.Hour/time.Second) }

// overBudget counts what this process has not noted yet as well.
func (r *Runner) overBudget(s *State, now time.Time) bool {
	return r.cfg.Budget > 0 && s.Day == day(now) && s.Requests+r.store.count() >= r.cfg.Budget
}

// take makes this process the one that collects, and begins a plan. mine is false while another one does.
func (r *Runner) take(ctx context.Context, now time.Time) (mine bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, err := r.moveState(ctx, func(s *State) error {
		if s.Claim != "" && s.Claim != r.cfg.Claim && now.Sub(time.Unix(s.UpdatedAt, 0)) < r.cfg.Lease {
			return errHeld
		}
		s.create(now)
		s.Holder, s.Claim, s.UpdatedAt = r.cfg.By, r.cfg.Claim, now.Unix()
		s.Plan++
		return nil
	})
	r.held, r.plan = err == nil, st.Plan
	if errors.Is(err, errHeld) {
		return false, nil
	}
	return err == nil, err
}

var errHeld = errors.New("another process collects")

// move changes the state if this process still holds it, and so renews the lease. It is the fence: another one's claim, or
// an operator's plan, is ErrFenced.
func (r *Runner) move(ctx context.Context, now time.Time, change func(*State)) (State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		return State{}, ErrFenced
	}
	n := r.store.count()
	st, err := r.moveState(ctx, func(s *State) error {
		if s.Claim != r.cfg.Claim || s.Plan != r.plan {
			return ErrFenced
		}
		s.UpdatedAt = max(s.UpdatedAt, now.Unix())
		// A step that began before midnight ends with its own day.
		if d := day(now); d > s.Day || d < s.Day-1 {
			s.Day, s.Requests = d, 0
		}
		s.Requests += n
		if change != nil {
			change(s)
		}
		return nil
	})
	if err == nil {
		r.store.noted(n)
	}
	if errors.Is(err, ErrFenced) {
		r.held = false
	}
	return st, err
}

// Renew moves the lease of a step that takes long, if one is under way.
func (r *Runner) Renew(ctx context.Context) error {
	r.mu.Lock()
	held := r.held
	r.mu.Unlock()
	if !held {
		return nil
	}
	return r.fence(ctx)
}

// fence is called before each step of an execution.
func (r *Runner) fence(ctx context.Context) error {
	now, err := r.date(ctx)
	if err != nil {
		return err
	}
	st, err := r.move(ctx, now, nil)
	if err == nil && r.overBudget(&st, now) {
		err = errBudget
	}
	return err
}

// errBudget ends a plan; what is left of it is planned again on another day.
var errBudget = errors.New("the requests of the day are used up")

func (r *Runner) date(ctx context.Context) (time.Time, error) {
	page, err := r.store.List(ctx, objstore.ListOptions{Prefix: layout.OrphanReportsPrefix, Limit: 1})
	if err == nil && page.Date.IsZero() {
		err = ErrNoTime
	}
	return page.Date, err
}

func (r *Runner) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
}

// Release gives the claim back, so that another process need not wait for the lease.
func (r *Runner) Release(ctx context.Context) error { return r.release(ctx) }

func (r *Runner) release(ctx context.Context) error {
	r.mu.Lock()
	held := r.held
	r.mu.Unlock()
	if !held {
		return nil
	}
	now, err := r.date(ctx)
	if err == nil {
		_, err = r.move(ctx, now, func(s *State) { s.Claim, s.Holder = "", "" })
	}
	if err == nil || errors.Is(err, ErrFenced) {
		r.drop()
		return nil
	}
	return err
}

// reports plans and executes what was reported. done are the reports that are answered; worked is false where all of them have
// to wait.
func (r *Runner) reports(ctx context.Context, now time.Time, keys []string) (done int, worked bool, err error) {
	var witnesses []string
	var frames []identity.Digest
	// of are the frames of each report.
	of := map[string][]identity.Digest{}
	submissions := uint64(0)
	for i, key := range keys {
		rep, _, err := record.Read(ctx, r.store, key, OrphanReportKind, ParseOrphanReport)
		switch {
		case record.Opaque(err), errors.Is(err, objstore.ErrNotFound), err == nil && rep.AuthorityID != r.cfg.AuthorityID:
			of[key] = nil // the sweep finds the same
			continue
		case err != nil:
			return 0, false, err
		}
		// The budget can't end a plan of more than it, day after day.
		if len(frames) > 0 && len(frames)+len(rep.Frames) > MaxReported {
			keys = keys[:i]
			break
		}
		of[key] = rep.Frames
		frames = append(frames, rep.Frames...)
		submissions += rep.Submissions
		if rep.Witness != "" {
			witnesses = append(witnesses, rep.Witness)
		}
	}
	st, err := r.move(ctx, now, nil)
	if err != nil {
		return 0, false, err
	}
	if len(frames) > 0 && len(witnesses)+len(st.Witnesses) == 0 {
		// Nothing shows that manifests can be seen at all. The first sweep finds some that must be there.
		return 0, false, nil
	}
	plan, err := r.planFrames(ctx, now, frames)
	if err != nil {
		return 0, false, err
	}
	// Most senders have sent the same again, so this leaves little to condemn, and tells the breaker how much it is.
	if err := r.c.Search(ctx, &plan, r.cfg.Step, r.fence); err != nil {
		return 0, false, err
	}
	plan.Listed = max(len(plan.Candidates)+len(plan.Kept), int(min(submissions, 1<<40)))
	if err := r.noteSearched(ctx, &plan); err != nil {
		return 0, false, err
	}
	var answered []string
	ok, err := r.execute(ctx, now, FromReports, plan, witnesses, func(s *State, rep *Report) {
		open := undecided(&plan, rep)
		answered = answered[:0]
		for _, key := range keys {
			if slices.ContainsFunc(of[key], func(d identity.Digest) bool { return open[d] }) && s.postpone(key, now, r.cfg.Delay) {
				continue
			}
			s.answered(key, now)
			answered = append(answered, key)
		}
	})
	if err != nil || !ok {
		return 0, false, err
	}
	return len(answered), true, r.forget(ctx, answered)
}

// planFrames lists the generations of the frames.
func (r *Runner) planFrames(ctx context.Context, now time.Time, frames []identity.Digest) (Plan, error) {
	plan := Plan{ID: r.planID()}
	o := PlanOptions{ID: plan.ID, Now: now, MinAge: r.cfg.Delay}
	if o.MinAge <= 0 {
		o.MinAge = -1
	}
	if err := o.fill(); err != nil {
		return Plan{}, err
	}
	slices.SortFunc(frames, func(a, b identity.Digest) int { return slices.Compare(a[:], b[:]) })
	for part := range slices.Chunk(slices.Compact(frames), r.cfg.Step) {
		if err := r.fence(ctx); err != nil {
			return Plan{}, planError(plan.ID, err)
		}
		for _, d := range part {
			for info, err := range objstore.List(ctx, r.store, objstore.ListOptions{Prefix: layout.BlobStem(d)}) {
				if err != nil {
					return Plan{}, planError(plan.ID, err)
				}
				plan.add(info, o, false)
			}
		}
	}
	return plan, nil
}

// noteSearched logs what the search could not decide, or an operator must check.
func (r *Runner) noteSearched(ctx context.Context, p *Plan) error {
	var rep Report
	for _, k := range p.Kept {
		if !k.Reason.Doubtful() && !k.Reason.undecided() {
			continue
		}
		rep.Entries = append(rep.Entries, Entry{At: r.cfg.Clock.Now().UnixNano(), PlanID: p.ID, Key: k.Key, Action: KeptBlob, Reason: k.Reason, Detail: k.Detail})
		rep.Kept++
		if k.Reason.Doubtful() {
			rep.Doubtful++
		}
	}
	if rep.Kept == 0 {
		return nil
	}
	if r.cfg.Executed != nil {
		r.cfg.Executed(FromReports, rep)
	}
	return r.log(ctx, FromReports, p.ID, rep.Entries)
}

// undecided are the frames of blobs about which the store did not say enough, whether they were condemned or not.
func undecided(p *Plan, rep *Report) map[identity.Digest]bool {
	open := map[identity.Digest]bool{}
	note := func(key string, is bool) {
		if d, _, err := layout.ParseBlob(key); err == nil && is {
			open[d] = true
		}
	}
	for _, k := range p.Kept {
		note(k.Key, k.Reason.undecided())
	}
	for _, e := range rep.Entries {
		note(e.Key, e.Reason.undecided() || e.Action == DeleteUnknown)
	}
	return open
}

// forget deletes reports that are answered. A dry run keeps them.
func (r *Runner) forget(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if r.cfg.DryRun {
			r.dry.see(key)
			continue
		}
		if err := r.store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) planID() string { return fmt.Sprintf("gc-%d", r.plan) }

// sweep plans and executes the next part.
func (r *Runner) sweep(ctx context.Context, now time.Time) error {
	inv, err := r.choose(ctx, now)
	if err != nil {
		return err
	}
	st, err := r.move(ctx, now, func(s *State) {
		if s.Sweep.BeganAt == 0 {
			s.Sweep, s.Requested = Sweep{BeganAt: now.Unix()}, false
			if inv != nil {
				s.Sweep.Inventory = inv.Key
			}
		}
	})
	if err != nil {
		return err
	}
	after := st.Sweep.Cursor
	if r.names == nil || r.namesOf != st.Sweep.BeganAt || !r.names.Reaches(after) || r.stale(now) {
		if r.names, err = r.c.ReadNames(ctx, NamesOptions{StartAfter: after, Max: r.cfg.MaxNames, Fan: r.cfg.Fan}); err != nil {
			return err
		}
		r.namesOf, r.namesAt = st.Sweep.BeganAt, now
	}
	o := PlanOptions{ID: r.planID(), Now: now, MinAge: r.cfg.MinAge, StartAfter: after, MaxListed: r.cfg.MaxListed}
	if o.MinAge <= 0 {
		o.MinAge = -1
	}
	var plan Plan
	if inv != nil {
		plan, err = r.c.PlanInventory(ctx, r.names, *inv, o, r.cfg.Step, r.fence)
		if errors.Is(err, ErrInventory) {
			return r.refuse(ctx, now, err)
		}
	} else {
		plan, err = r.c.PlanNamed(ctx, r.names, o)
	}
	if err != nil {
		return err
	}
	witnesses := r.names.Witnesses()
	found := uint64(len(plan.Candidates))
	if len(witnesses)+len(st.Witnesses) == 0 {
		// The journal names no accepted batch, and nobody knows of a manifest that must be there: what is hidden, or not restored
		// yet, may be the journal as well. Orphans alone can wait for the first batch.
		plan.Candidates = nil
	}
	ok, err := r.execute(ctx, now, FromSweep, plan, witnesses, func(s *State, _ *Report) {
		w := &s.Sweep
		w.Listed += uint64(plan.Listed)
		w.Candidates += found
		w.count(&plan, now)
		if w.Cursor = plan.Next; plan.Next == "" {
			w.EndedAt = now.Unix()
			s.Last, s.Sweep = *w, Sweep{}
			s.Last.Cursor = ""
		}
	})
	if ok && plan.Next == "" {
		r.names, r.inventory = nil, nil
	}
	return err
}

// leastRead is the least time between two readings of the journal for the same names.
const leastRead = time.Hour

// stale reports whether blobs that were accepted since the names were read may be old enough to be candidates. Each would
// be kept, after a search, and all of them would count for the breaker. A sweep takes that long where the budget ends it for a
// day, or the breaker held.
func (r *Runner) stale(now time.Time) bool {
	return now.Sub(r.namesAt) >= max(r.cfg.MinAge/2, leastRead)
}

// count adds what was kept by the plan, and the ages of its candidates.
func (w *Sweep) count(p *Plan, now time.Time) {
	w.Named += uint64(p.Named)
	for i := range p.Kept {
		switch p.Kept[i].Reason {
		case Named:
			w.Named++
		case Young:
			w.Young++
		case Foreign:
			w.Foreign++
		}
	}
	if len(w.Ages) != len(Ages)+1 {
		w.Ages = make([]uint64, len(Ages)+1)
	}
	for i := range p.Candidates {
		class, _ := slices.BinarySearch(Ages, now.Sub(p.Candidates[i].LastModified)+1)
		w.Ages[class]++
	}
}

// execute asks the breaker, executes the plan and moves the state. ok is false where the breaker holds: then nothing was done.
func (r *Runner) execute(ctx context.Context, now time.Time, source Source, plan Plan, witnesses []string, done func(*State, *Report)) (ok bool, err error) {
	if r.cfg.Planned != nil {
		r.cfg.Planned(source, plan)
	}
	var rep Report
	if len(plan.Candidates) > 0 {
		force, seen, err := r.ask(ctx, now, plan, witnesses)
		if err != nil || len(seen) == 0 {
			return false, err
		}
		step := 0
		rep, err = r.c.Execute(ctx, plan, ExecuteOptions{
			DryRun: r.cfg.DryRun, Force: force, Step: r.cfg.Step, Wait: r.wait,
			Fence: func(ctx context.Context) error {
				if err := r.fence(ctx); err != nil {
					return err
				}
				// A plan may take hours. What is hidden meanwhile is found before the next step.
				step++
				return r.askAgain(ctx, now, seen[step%len(seen)])
			},
			Log: func(ctx context.Context, entries []Entry) error { return r.log(ctx, source, plan.ID, entries) },
		})
		if r.cfg.Executed != nil {
			r.cfg.Executed(source, rep)
		}
		if err != nil {
			// The rest is planned again. What was kept is then found again; what was deleted is not.
			if errors.Is(err, errBudget) || errors.Is(err, errHidden) || errors.Is(err, ErrAwaited) {
				_, _ = r.move(ctx, now, func(s *State) { s.deleted(source, &rep) })
			}
			if errors.Is(err, errHidden) {
				return false, nil
			}
			return false, err
		}
	}
	_, err = r.move(ctx, now, func(s *State) {
		// The write before was applied, without an answer, and an operator has moved the state since.
		counted := s.Settled == r.plan
		if s.Settled = r.plan; counted {
			return
		}
		s.deleted(source, &rep)
		if source == FromSweep {
			s.Sweep.Kept, s.Sweep.Doubtful = s.Sweep.Kept+uint64(rep.Kept), s.Sweep.Doubtful+uint64(rep.Doubtful)
			if len(witnesses) > 0 {
				s.Witnesses = witnesses
			}
		}
		// A release of TOO_MANY is for one plan. What no plan of the sweep has needed must not let a wrong one pass months later.
		ends := source == FromSweep && plan.Next == ""
		if b := s.Breaker; (plan.Tripped() || ends && b != nil && b.Released) && !r.cfg.DryRun && b != nil && b.Cause == TooMany {
			s.Breaker = nil
		}
		done(s, &rep)
	})
	return err == nil, err
}

// wait waits for runs of the journal, as long as the caller of Step wants to. It is the fence as well: who was taken over meanwhile
// deletes nothing.
func (r *Runner) wait(ctx context.Context, left, looks int) error {
	if r.cfg.Wait == nil {
		return fmt.Errorf("%w: %d runs", ErrAwaited, left)
	}
	if err := r.cfg.Wait(ctx, left, looks); err != nil {
		return err
	}
	return r.fence(ctx)
}

// deleted counts what an execution has deleted.
func (s *State) deleted(source Source, rep *Report) {
	s.Deleted, s.Bytes, s.Markers = s.Deleted+uint64(rep.Deleted), s.Bytes+uint64(rep.Bytes), s.Markers+uint64(rep.Condemned)
	if source == FromSweep {
		s.Sweep.Deleted, s.Sweep.Bytes = s.Sweep.Deleted+uint64(rep.Deleted), s.Sweep.Bytes+uint64(rep.Bytes)
	}
}

// errHidden ends a plan in the middle of which a manifest could not be seen any more.
var errHidden = errors.New("a manifest that was there can't be seen")

// askAgain trips the breaker where a manifest that was there can't be seen.
func (r *Runner) askAgain(ctx context.Context, now time.Time, key string) error {
	_, err := r.store.Head(ctx, key)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, objstore.ErrNotFound):
		return fmt.Errorf("ask for a manifest that must be there: %w", err)
	}
	if err := r.trip(ctx, now, Breaker{Cause: Hidden, Key: key}); err != nil {
		return err
	}
	return errHidden
}

// ask trips the breaker where the plan is too large, or manifests that must be there can't be seen. force: an operator has let it
// pass. seen are the manifests that are there; where there are none the breaker holds.
func (r *Runner) ask(ctx context.Context, now time.Time, plan Plan, witnesses []string) (force bool, seen []string, err error) {
	st, err := r.move(ctx, now, nil)
	if err != nil {
		return false, nil, err
	}
	if st.Holds() {
		return false, nil, nil
	}
	// A listing, a role or a replica that hides what was accepted would make an orphan of every frame, and each proof would
	// agree: so manifests that must be there are asked for first.
	b, gone := st.Breaker, ""
	for _, key := range append(slices.Clone(witnesses), st.Witnesses...) {
		switch _, err := r.store.Head(ctx, key); {
		case err == nil:
			seen = append(seen, key)
		case !errors.Is(err, objstore.ErrNotFound):
			return false, nil, fmt.Errorf("ask for a manifest that must be there: %w", err)
		// An operator knows of it. But one has to be there, or nothing shows that others can be seen.
		case slices.Contains(st.Lost, key):
			gone = key
		default:
			return false, nil, r.trip(ctx, now, Breaker{Cause: Hidden, Key: key})
		}
	}
	if len(seen) == 0 && gone != "" {
		return false, nil, r.trip(ctx, now, Breaker{Cause: Hidden, Key: gone})
	}
	// What was hidden and is seen again has to stay.
	found := func(key string) bool { return slices.Contains(seen, key) }
	if slices.ContainsFunc(st.Lost, found) {
		if _, err := r.move(ctx, now, func(s *State) { s.Lost = slices.DeleteFunc(s.Lost, found) }); err != nil {
			return false, nil, err
		}
	}
	released := b != nil && b.Released && b.Cause == TooMany && uint64(plan.counted()) <= b.Candidates
	if plan.Tripped() && !released && !r.cfg.DryRun {
		return false, nil, r.trip(ctx, now, Breaker{Cause: TooMany, Candidates: uint64(plan.counted()), Listed: uint64(plan.Listed)})
	}
	return released, seen, nil
}

func (r *Runner) trip(ctx context.Context, now time.Time, b Breaker) error {
	_, err := r.move(ctx, now, func(s *State) {
		b.Plan, b.At = r.plan, now.Unix()
		s.Breaker = &b
	})
	return err
}

// log writes what was done, in as many records as it takes.
func (r *Runner) log(ctx context.Context, source Source, plan string, entries []Entry) error {
	for part := range slices.Chunk(entries, MaxLogged) {
		l := Log{AuthorityID: r.cfg.AuthorityID, By: r.cfg.By, Plan: plan, Source: source, At: max(r.cfg.Clock.Now().UnixNano(), 0)}
		for _, e := range part {
			detail := strings.ToValidUTF8(e.Detail[:min(len(e.Detail), maxDetail)], "?")
			l.Entries = append(l.Entries, LogEntry{Key: e.Key, Action: e.Action, Reason: e.Reason, Detail: detail, Bytes: e.Bytes})
		}
		if err := l.write(ctx, r.store); err != nil {
			return err
		}
	}
	return nil
}
