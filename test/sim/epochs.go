package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ledgerOfRuns is a collector's journal: calls share segments, and whoever waits first writes them.
type ledgerOfRuns struct {
	w      *world
	p      *process
	log    *epochs.Log
	writer *journal.Writer
	busy   bool // a task is within the writer
	// flushed entries are durable; at and spared say where, and whether they need no marker read.
	flushed uint64
	at      map[uint64]journal.Position
	spared  map[uint64]bool
}

// condemnedNames is the log of epochs as the writer takes it.
type condemnedNames struct{ *epochs.Log }

func (c condemnedNames) Held() (journal.Condemned, uint64) {
	set, reading := c.Log.Held()
	if set == nil {
		return nil, 0
	}
	return set, reading
}

// keepJournal gives a collector that starts a journal, and a task that looks for new epochs.
func (w *world) keepJournal(p *process) {
	store := p.tried(p.port, p.port)
	j := &ledgerOfRuns{w: w, p: p, log: epochs.NewLog(store, p.authority), at: map[uint64]journal.Position{}, spared: map[uint64]bool{}}
	c := journal.WriterConfig{
		Store: store, Rand: attemptIDs{w}, Clock: func() int64 { return w.now.UnixNano() },
		Opening: journal.Opening{Writer: p.name, Role: journal.RoleCollector, Authority: p.authority},
	}
	if p.names {
		c.Epochs = condemnedNames{j.log}
	}
	var err error
	if j.writer, err = journal.NewWriter(c); err != nil {
		panic(err)
	}
	p.journal = j
	if !p.names {
		return
	}
	w.start(p.name+epochsTask, p, nil, func(t *task, ctx context.Context) {
		for range 80 {
			p.port.t = t
			if err := j.log.Read(ctx); err != nil {
				w.note(t.name, "read epochs", "", "", err)
			}
			if t.pause() || !w.others() {
				return
			}
			if p.port.t = t; !j.busy && j.writer.Behind() {
				j.busy = true
				err := j.writer.Renew(ctx)
				j.busy = false
				w.note(t.name, "renews its run", "", "", err)
				if t.dead {
					return
				}
			}
		}
	})
}

const epochsTask = ".epochs"

// others reports whether anybody is at work but those who look for epochs.
func (w *world) others() bool {
	for _, t := range w.tasks {
		if !strings.HasSuffix(t.name, epochsTask) {
			return true
		}
	}
	for _, a := range w.agents {
		if w.maySend(a) {
			return true
		}
	}
	return false
}

func (j *ledgerOfRuns) Add(e journal.Entry) (journal.Ticket, error) {
	no, err := j.writer.Add(e)
	return place{j, j.p.port.t, no}, err
}

func (j *ledgerOfRuns) spares(d identity.Digest) bool {
	names := j.writer.Current()
	return names != nil && !names.Has(d)
}

// place is an entry of a task that waits for it.
type place struct {
	j  *ledgerOfRuns
	t  *task
	no uint64
}

func (e place) Wait(ctx context.Context) (journal.Position, error) {
	j := e.j
	for e.no > j.flushed {
		if j.busy {
			if e.t.pause() {
				return journal.Position{}, errKilled
			}
			j.p.port.t = e.t
			continue
		}
		j.busy = true
		at, done, err := j.writer.Flush(ctx)
		j.busy = false
		for ; j.flushed < done; j.flushed++ {
			no := j.flushed + 1
			j.at[no], j.spared[no] = at, j.writer.Spared(no)
		}
		if err != nil && e.no > j.flushed {
			return journal.Position{}, err
		}
	}
	return j.at[e.no], nil
}

func (e place) Spared() bool { return e.j.spared[e.no] }

// begin has the log of epochs begin, as a collection does, while others are at work.
func (w *world) begin(p *process) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		for range 4 {
			l, by := epochs.NewLog(t, p.authority), epochs.Writer{Store: t, By: p.name}
			err := l.Begin(ctx, by)
			if err == nil {
				_, err = l.Name(ctx, by, nil)
			}
			w.note(t.name, "begins the log of epochs", "", "", err)
			if err == nil || t.dead {
				return
			}
		}
	})
}

// fenceSome ends runs that may be those of collectors that live.
func (w *world) fenceSome(p *process, rounds int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		for range rounds {
			if err := w.fence(ctx, t, func() bool { return t.ch.oneIn(2) }); err != nil {
				w.note(t.name, "fences", "", "", err)
			}
			if t.pause() {
				return
			}
		}
	})
}

// fence ends the open runs that may go.
func (w *world) fence(ctx context.Context, t *task, may func() bool) error {
	for o, err := range objstore.List(ctx, t, objstore.ListOptions{Prefix: layout.JournalOpenPrefix}) {
		if err != nil {
			return err
		}
		run, n, err := layout.ParseJournalSegment(o.Key)
		if err != nil || !may() {
			continue
		}
		for {
			var b []byte
			if b, _, err = t.Get(ctx, layout.JournalSegment(run, n), objstore.GetOptions{}); err != nil {
				break
			}
			if s, perr := journal.ParseSegment(b); perr != nil || s.Ends() {
				break
			}
			n++
		}
		if errors.Is(err, objstore.ErrNotFound) && n > 0 {
			if err := journal.Fence(ctx, t, journal.Position{Run: run, Segment: n}); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaits is what a collection does while runs have not come to an epoch.
func (t *task) awaits(_ context.Context, left, looks int) error {
	t.note(t.name, "waits for runs", fmt.Sprint(left), "", nil)
	if looks > 30 {
		return gc.ErrAwaited
	}
	if t.pause() {
		return errKilled
	}
	return nil
}

// calmly plays the task that was started last to its end, without faults, and before all others.
func (w *world) calmly() {
	t, faults := w.tasks[len(w.tasks)-1], w.faults
	for w.faults = weather[0]; ; {
		if _, more := t.next(); !more {
			break
		}
	}
	w.drop(t)
	w.faults = faults
}

// warm has collectors that name epochs be at work already: their runs are open, with an entry of a batch that was accepted before,
// and name the epoch that there is.
func (w *world) warm() {
	s := frames()[frameName("agent-2", len(ranges)-1, 1)]
	for _, other := range w.submissions {
		if other.Identity == s.Identity {
			return
		}
	}
	m := w.earlier(s)
	w.store.put(layout.Blob(s.SHA256, 0), s.Frame, w.now.Add(-longAgo))
	w.store.put(layout.Accepted(s.Identity), m.Marshal(), w.now.Add(-longAgo))
	w.frames[s.SHA256], w.identityOf[s.SHA256] = s.Frame, s.Identity
	w.submissions = append(w.submissions, s)
	w.calls = append(w.calls, &call{sub: s})
	w.everNamed[s.SHA256] = true
	for _, p := range w.collectors {
		if !p.names {
			continue
		}
		j := p.journal
		w.start(p.name+".warm", p, nil, func(t *task, ctx context.Context) {
			p.port.t = t
			ticket, err := j.Add(m.Entry(journal.Duplicate))
			if err == nil {
				_, err = ticket.Wait(ctx)
			}
			// Segment 0 says whether the run names epochs, so one that opened before they were read is closed first.
			for range 3 {
				if err == nil {
					err = j.log.Read(ctx)
				}
				if err == nil {
					err = j.writer.Renew(ctx)
				}
				if err == nil && !j.writer.Open() {
					if ticket, err = j.Add(m.Entry(journal.Duplicate)); err == nil {
						_, err = ticket.Wait(ctx)
					}
				}
			}
			if err != nil {
				w.violated("progress", "a segment without faults: %v", err)
			}
		})
		w.calmly()
	}
}

// setupEpochs draws how the log of epochs begins: before everything else, or meanwhile; and who fences.
func (w *world) setupEpochs() {
	// Orphans of frames that are sent again: what collections condemn, and calls find.
	for _, s := range w.submissions {
		if _, there := w.store.objects[layout.Blob(s.SHA256, 0)]; !there && w.ch.n(2) == 0 {
			w.store.put(layout.Blob(s.SHA256, 0), s.Frame, w.now.Add(-longAgo))
			w.written[layout.Blob(s.SHA256, 0)] = true
		}
	}
	p := &process{name: "begin", authority: "authority-1"}
	p.restart = func() { w.begin(p) }
	if w.begin(p); w.ch.n(3) > 0 {
		w.calmly()
		if w.ch.n(4) > 0 {
			w.warm()
		}
		// A collection died when it had written a marker, and had not named it.
		for _, s := range w.submissions {
			m := accept.CondemnedMarker{FrameSHA256: s.SHA256, PlanID: "earlier"}
			if _, there := w.store.objects[m.Key()]; !there && w.ch.n(4) == 0 {
				w.store.put(m.Key(), m.Marshal(), w.now)
			}
		}
	}
	if w.ch.n(2) > 0 {
		f := &process{name: "fencer", authority: "authority-1"}
		f.restart = func() { w.fenceSome(f, 1) }
		w.fenceSome(f, 1+w.ch.n(4))
	}
}
