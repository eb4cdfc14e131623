package journal

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// populate starts the processes of a schedule: collectors in several lives, folders, fencers, and
// followers that also start again from where some follower was.
func (s *sim) populate() {
	process := func(name string, life func(*simProc)) {
		p := &simProc{name: name}
		p.restart = func() { life(p) }
		s.procs = append(s.procs, p)
		life(p)
	}
	for i := range 1 + s.rng.IntN(3) {
		process("collector"+strconv.Itoa(i), s.collector)
	}
	bounds := folderBounds{perMove: 3 + s.rng.IntN(30), perFile: 3 + s.rng.IntN(20), deletes: 1 + s.rng.IntN(9), filesListed: 2 + s.rng.IntN(8), forgetAfter: uint64(1 + s.rng.IntN(12)), runs: 1 + s.rng.IntN(9)}
	for i := range 1 + s.rng.IntN(2) {
		process("folder"+strconv.Itoa(i), func(p *simProc) { s.folder(p, bounds) })
	}
	for i := range 1 + s.rng.IntN(2) {
		process("follower"+strconv.Itoa(i), s.follower)
	}
	if s.rng.IntN(5) > 0 {
		process("fencer", s.fencer)
	}
	if s.losesFiles {
		process("operator", s.operator)
		process("auditor", s.auditor)
	}
}

// ids are the random ids of runs and folders: distinct, and taken from the schedule.
type ids struct{ s *sim }

func (r ids) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.s.rng.Uint32())
	}
	return len(b), nil
}

// simCall is one submission that waits for its answer.
type simCall struct {
	entry  Entry
	number uint64 // that the writer gave
}

// collector is one life: calls that observe their manifest, and one task that writes segments and answers.
func (s *sim) collector(p *simProc) {
	w, err := NewWriter(WriterConfig{
		Store: simPort{s}, Rand: ids{s}, Clock: func() int64 { return s.now.UnixNano() },
		Opening: Opening{Writer: p.name, Role: RoleCollector, Authority: "authority"},
		Events:  WriterEvents{Fenced: func(Position) { s.tally.Fenced++ }},
	})
	if err != nil {
		panic(err)
	}
	w.perSegment = 1 + s.rng.IntN(4)
	if s.oneIn(5) {
		w.open.Role = RoleSpooler
	}
	var queue, waiting []simCall
	for range 1 + s.rng.IntN(2) {
		s.start(p, p.name+".calls", func(ctx context.Context, t *simTask) {
			for {
				for range s.rng.IntN(12) {
					if t.pause() {
						return
					}
				}
				if e, ok := t.submit(ctx); ok {
					queue = append(queue, simCall{entry: e})
				}
				if t.dead {
					return
				}
			}
		})
	}
	closed := uint64(0) // entries that were made durable by a Close, which does not say where
	answer := func(t *simTask, done uint64, at Position) bool {
		if t.pause() { // it may be killed just before it answers
			return false
		}
		for len(waiting) > 0 && waiting[0].number <= done {
			s.answered(t, &waiting[0].entry, at, waiting[0].number > closed)
			waiting = waiting[1:]
		}
		return true
	}
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		for w.open.Role == RoleSpooler {
			if _, err := w.Begin(ctx); t.dead {
				return
			} else if err == nil {
				break
			}
		}
		for {
			closes := false
			if t.wait(func() bool {
				closes = s.oneIn(50)
				return len(queue) > 0 || w.Waiting() > 0 || w.sent != nil || closes && w.Open()
			}) {
				return
			}
			for _, c := range queue {
				var err error
				if c.number, err = w.Add(c.entry); err != nil {
					s.failf("%s: %v", t.name, err)
				}
				waiting = append(waiting, c)
			}
			queue = nil
			if closes {
				err := w.Close(ctx)
				closed = w.flushed
				s.checkFlush(t, err)
				s.logf("%s: close: %v", t.name, err)
				if t.dead {
					return
				}
				if err == nil {
					s.tally.Closed++
					if w.Waiting() > 0 || w.Open() {
						s.failf("%s: %d entries wait after a close", t.name, w.Waiting())
					}
					if !answer(t, ^uint64(0), Position{}) {
						return
					}
				}
				continue
			}
			at, done, err := w.Flush(ctx)
			s.checkFlush(t, err)
			if t.dead || err == nil && !answer(t, done, at) {
				return
			}
		}
	})
}

// submit creates or observes a manifest, as acceptance does, and makes the entry of its answer.
func (t *simTask) submit(ctx context.Context) (Entry, bool) {
	id, hash := simBatch(t.rng.IntN(3+t.steps/30), max(0, t.rng.IntN(8)-5))
	there, created, err := objstore.CreateOrGet(ctx, simPort{t.sim}, layout.Accepted(id), hash[:], 64, objstore.PutOptions{})
	if err != nil {
		return Entry{}, false
	}
	e := Entry{ID: id, Outcome: Duplicate, SHA256: hash, Bytes: 100, At: t.now.UnixNano(), MinTime: int64(id.SeqStart), MaxTime: int64(id.SeqEnd)}
	switch {
	case created:
		e.Outcome = Accepted
	case identity.Digest(there) != hash:
		e.Outcome = Conflict
	}
	return e, true
}

// fencer ends runs, at positions that somebody read lately or long ago, or anywhere.
func (s *sim) fencer(p *simProc) {
	var stale []Position
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		most := [...][2]int{{6, 60}, {12, 40}, {40, 12}}[s.rng.IntN(3)]
		for fences := s.rng.IntN(most[0]); fences > 0; fences-- {
			for range s.rng.IntN(most[1]) {
				if t.pause() {
					return
				}
			}
			for _, f := range s.followers {
				for _, r := range f.f.Runs() {
					stale = append(stale, Position{r.Run, max(1, r.Next)})
				}
			}
			if len(stale) == 0 {
				continue
			}
			at := stale[s.rng.IntN(len(stale))]
			if s.oneIn(3) {
				at = stale[len(stale)-1]
			}
			if s.oneIn(6) {
				at.Segment = 1 + uint64(s.rng.IntN(8))
			}
			if _ = Fence(ctx, simPort{s}, at); t.dead {
				return
			}
		}
	})
}

// simFollower follows, and knows what it was handed.
type simFollower struct {
	s     *sim
	name  string
	f     *Follower
	got   map[simKey]bool
	needs int64
	files int // folded files that it read
	each  func(*Segment) error
}

// simSaved is where a follower was.
type simSaved struct {
	at  Positions
	got map[simKey]bool
	// needs is the first sample time that the follower needs: it skips folded files with older ones alone.
	needs int64
}

// both is where somebody begins who has what two others have.
func both(a, b simSaved) simSaved {
	out := simSaved{Earliest(a.at, b.at), map[simKey]bool{}, max(a.needs, b.needs)}
	for k := range a.got {
		if b.got[k] {
			out.got[k] = true
		}
	}
	return out
}

var errSimApply = errors.New("what was read can't be applied now")

func (s *sim) newFollower(p *simProc, from simSaved, each func(*Segment) error) *simFollower {
	r := &simFollower{s: s, name: p.name, got: maps.Clone(from.got), needs: from.needs, each: each}
	if r.got == nil {
		r.got = map[simKey]bool{}
	}
	apply := func(es []Entry) error {
		if s.oneIn(60) && s.faults != (simFaults{}) {
			return errSimApply
		}
		for i := range es {
			s.checkEntry(&es[i])
			r.got[keyOf(&es[i])] = true
		}
		return nil
	}
	var err error
	r.f, err = NewFollower(FollowerConfig{
		Store: simPort{s}, Authority: "authority", Fan: s.sideBySide, From: from.at,
		Segment: func(_ context.Context, seg *Segment) error {
			if err := apply(seg.Entries); err != nil || r.each == nil {
				return err
			}
			return r.each(seg)
		},
		Folded: func(_ context.Context, es []Entry) error { r.files++; return apply(es) },
		Skip: func(x Span) bool {
			if x.MaxTime < r.needs {
				s.tally.Skipped++
			}
			return x.MaxTime < r.needs
		},
	})
	if err != nil {
		s.failf("%v", err)
	}
	return r
}

// poll polls once and checks what the poll proves.
func (r *simFollower) poll(ctx context.Context, t *simTask) (Polled, error) {
	answers, files := len(r.s.answers), r.files
	begin := r.s.begin
	p, err := r.f.Poll(ctx)
	if t.dead {
		return p, errSimKilled
	}
	r.s.logf("%s: poll through %v: %v", r.name, p.Through, err)
	if err == nil {
		r.s.tally.Polls++
		if r.files > files {
			r.s.tally.Behind++
		}
		r.s.checkPoll(r, p, answers, begin)
	} else if !errors.Is(err, objstore.ErrUnavailable) && !(r.s.losesFiles && errors.Is(err, record.ErrCorrupt)) && !errors.Is(err, errSimApply) && !errors.Is(err, ErrFolderFull) {
		r.s.failf("%s: %v", r.name, err)
	}
	return p, err
}

// follower is one life: from nothing, from where some follower was, or from the earlier of two.
func (s *sim) follower(p *simProc) {
	from := simSaved{needs: int64(max(0, s.rng.IntN(100)-50))}
	switch n := len(s.saved); {
	case n > 0 && s.oneIn(3):
		from = s.saved[s.rng.IntN(n)]
		s.tally.Resumed++
	case n > 1 && s.oneIn(2):
		from = both(s.saved[s.rng.IntN(n)], s.saved[s.rng.IntN(n)])
		s.tally.Earliest++
	}
	r := s.newFollower(p, from, nil)
	s.setFollower(p, r)
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		for {
			done, err := r.poll(ctx, t)
			if t.dead {
				return
			}
			if err == nil && s.oneIn(3) {
				s.save(simSaved{done.Positions, maps.Clone(r.got), r.needs})
			}
			for range s.rng.IntN(40) {
				if t.pause() {
					return
				}
			}
		}
	})
}

func (s *sim) save(at simSaved) {
	const most = 8
	if len(s.saved) < most {
		s.saved = append(s.saved, at)
		return
	}
	s.saved[s.rng.IntN(most)] = at
}

// setFollower notes the follower of a process, for hints and fences.
func (s *sim) setFollower(p *simProc, r *simFollower) {
	for i := range s.followers {
		if s.followers[i].proc == p {
			s.followers[i].simFollower = r
			return
		}
	}
	s.followers = append(s.followers, &followerOf{p, r})
}

type followerOf struct {
	proc *simProc
	*simFollower
}

// hint makes a follower read one run between its requests, as the notice of a new segment does.
func (s *sim) hint() {
	if len(s.followers) == 0 {
		return
	}
	f := s.followers[s.rng.IntN(len(s.followers))]
	runs := f.f.Runs()
	if f.proc.asleep > 0 || len(runs) == 0 {
		return
	}
	at := runs[s.rng.IntN(len(runs))]
	run := at.Run
	lock := &f.f.runs[run].mu
	if !lock.TryLock() {
		return // there are no threads here that could wait for it
	}
	lock.Unlock()
	t := &simTask{sim: s, name: f.name + ".hint", proc: f.proc, whole: true}
	s.logf("%s: hint of %s", f.name, run)
	_, err := f.f.Read(context.WithValue(context.Background(), simTaskKey{}, t), Position{run, at.Next + uint64(s.rng.IntN(3))})
	s.logf("%s: hint: %v", f.name, err)
	s.tally.Hints++
}

// folder is one life: a follower that feeds it, moves of the head and deletes.
func (s *sim) folder(p *simProc, bounds folderBounds) {
	f, err := NewFolder(FolderConfig{Store: simPort{s}, Rand: ids{s}, Retention: int64(s.rng.IntN(3)) * int64(s.rng.IntN(5e9)), MaxWaiting: 8 + s.rng.IntN(100), Fan: s.sideBySide})
	if err != nil {
		panic(err)
	}
	f.bounds = bounds
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		from, err := f.Load(ctx)
		for ; err != nil; from, err = f.Load(ctx) {
			if t.dead {
				return
			}
		}
		head := f.Head()
		start := simSaved{at: from, got: s.entriesOf(&head)}
		if n := len(s.saved); n > 0 && s.oneIn(2) { // one that also keeps ledgers begins where those end
			start = both(s.saved[s.rng.IntN(n)], start)
		}
		r := s.newFollower(p, start, f.Add)
		s.setFollower(p, r)
		for {
			_, _ = r.poll(ctx, t)
			if t.dead || !s.fold(ctx, t, f) {
				return
			}
			for range s.rng.IntN(12) {
				if t.pause() {
					return
				}
			}
		}
	})
}

func (s *sim) fold(ctx context.Context, t *simTask, f *Folder) bool {
	moved, err := f.Fold(ctx, s.now.UnixNano())
	s.logf("%s: fold: %v, %v", t.name, moved, err)
	if !t.dead && err == nil && s.oneIn(8) {
		err = f.Sweep(ctx, s.now.UnixNano())
		s.logf("%s: sweep: %v", t.name, err)
	}
	if t.dead {
		return false
	}
	if err != nil && s.faults == (simFaults{}) && !errors.Is(err, objstore.ErrPreconditionFailed) && !errors.Is(err, objstore.ErrNotFound) && !errors.Is(err, objstore.ErrExists) && !(s.losesFiles && errors.Is(err, record.ErrCorrupt)) {
		s.failf("%s: without faults: %v", t.name, err)
	}
	return true
}
