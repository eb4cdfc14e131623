package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	rollupprogress "lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
)

// journalView is the journal as data.
type journalView struct {
	// Through is the store's time before which everything that was answered was read.
	Through string `json:"through"`
	// Begun says how the journal came to be complete: by the authority, or by an audit; empty while it is not, as after a
	// file was dropped.
	Begun     string       `json:"begun_by"`
	Head      headView     `json:"head"`
	OpenRuns  int          `json:"open_runs"`
	EndedRuns int          `json:"ended_runs"`
	Waiting   waitingView  `json:"waiting"`
	Runs      []runView    `json:"runs"`
	Readers   []readerView `json:"readers"`
	Findings  []string     `json:"findings"`
}

type headView struct {
	Number    uint64 `json:"number"`
	Forgotten uint64 `json:"forgotten"`
	// Lost is the number of the last move that dropped a file which could not be read any more.
	Lost      uint64 `json:"lost"`
	Bytes     int64  `json:"bytes"`
	MovedAt   string `json:"moved_at"`
	Files     int    `json:"files"`
	Lists     int    `json:"lists"`
	Entries   uint64 `json:"entries"`
	FileBytes uint64 `json:"file_bytes"`
	Fences    int    `json:"fences"`
}

// waitingView is what no folded file has.
type waitingView struct {
	Segments int    `json:"segments"`
	Entries  int    `json:"entries"`
	Oldest   string `json:"oldest_accepted_at"`
}

type runView struct {
	Run    string `json:"run"`
	Writer string `json:"writer"`
	Role   string `json:"role"`
	State  string `json:"state"`
	// Segments that the run has, Folded and Deleted of them.
	Segments       uint64 `json:"segments"`
	Folded         uint64 `json:"folded"`
	Deleted        uint64 `json:"deleted"`
	WaitingEntries int    `json:"waiting_entries"`
	OpenedAt       string `json:"opened_at"`
	LastAt         string `json:"last_segment_at"`
	// Age is the time since the last segment.
	Age string `json:"age"`
}

type readerView struct {
	Name string `json:"reader"`
	Head uint64 `json:"head"`
	// Moves of the head, Segments and Entries that it has not read; Entries of folded files are at most that many.
	Moves    uint64 `json:"moves_behind"`
	Segments uint64 `json:"segments_behind"`
	Entries  uint64 `json:"entries_behind"`
	// Oldest is the first acceptance among them.
	Oldest    string `json:"oldest_accepted_at"`
	Pending   int    `json:"pending"`
	WrittenAt string `json:"written_at"`
}

// States of a run.
const (
	stateOpen   = "open"
	stateClosed = "closed"
	stateFenced = "fenced"
)

// unfolded is what is known of a segment that no folded file has.
type unfolded struct {
	entries int
	oldest  int64
}

type runState struct {
	id       journal.RunID
	writer   string
	role     journal.Role
	state    string
	next     uint64 // the first segment that is not there
	folded   uint64
	deleted  uint64
	waiting  map[uint64]unfolded
	openedAt time.Time
	lastAt   time.Time
}

// journalState is what one poll found.
type journalState struct {
	through time.Time
	head    journal.Head
	runs    map[journal.RunID]*runState
}

// readJournal polls once from the head on.
func readJournal(ctx context.Context, store objstore.Store, authority string) (*journalState, error) {
	first, _, err := journal.ReadHead(ctx, store)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	segments := map[journal.RunID]map[uint64]unfolded{}
	ended := map[journal.RunID]string{}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: store, Authority: authority, From: first.Positions(), Fan: sideBySide,
		Segment: func(_ context.Context, s *journal.Segment) error {
			mu.Lock()
			defer mu.Unlock()
			if segments[s.Run] == nil {
				segments[s.Run] = map[uint64]unfolded{}
			}
			if s.Closed {
				ended[s.Run] = stateClosed
			} else if s.Fenced {
				ended[s.Run] = stateFenced
			}
			u := unfolded{entries: len(s.Entries)}
			for i := range s.Entries {
				u.oldest = earliest(u.oldest, s.Entries[i].At)
			}
			segments[s.Run][s.Segment] = u
			return nil
		},
		Folded: func(context.Context, []journal.Entry) error { return nil },
	})
	if err != nil {
		return nil, err
	}
	p, err := f.Poll(ctx)
	if err != nil {
		return nil, err
	}
	// What was folded during the poll counts as folded.
	j := &journalState{through: p.Through, runs: map[journal.RunID]*runState{}}
	if j.head, _, err = journal.ReadHead(ctx, store); err != nil {
		return nil, err
	}
	for _, h := range j.head.Runs {
		r := &runState{id: h.Run, writer: h.Writer, role: h.Role, state: stateOpen, next: h.Folded, folded: h.Folded, deleted: h.Deleted}
		switch {
		case h.Fenced:
			r.state = stateFenced
		case h.Ended > 0:
			r.state = stateClosed
		}
		j.runs[h.Run] = r
	}
	for _, at := range p.Positions.Runs {
		r := j.runs[at.Run]
		if r == nil {
			r = &runState{id: at.Run}
			j.runs[at.Run] = r
		}
		r.next = max(r.next, at.Next)
		if r.state == "" || r.state == stateOpen {
			r.state = stateOpen
			if at.Ended {
				r.state = ended[at.Run]
			}
		}
	}
	for id, found := range segments {
		r := j.runs[id]
		if r == nil {
			continue // it has ended, was folded, and the head has forgotten it
		}
		r.waiting = found
		maps.DeleteFunc(r.waiting, func(n uint64, _ unfolded) bool { return n < r.folded })
	}
	for _, r := range f.Runs() {
		if s := j.runs[r.Run]; s != nil && r.Opening != nil {
			s.writer, s.role = r.Opening.Writer, r.Opening.Role
		}
	}
	return j, nil
}

// date fills in when the open runs began, and when they had their last segment, by the store's clock.
func (j *journalState) date(ctx context.Context, store objstore.Store) error {
	for o, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: layout.JournalOpenPrefix}) {
		if err != nil {
			return err
		}
		if run, _, err := layout.ParseJournalSegment(o.Key); err == nil && j.runs[run] != nil {
			j.runs[run].openedAt = o.LastModified
		}
	}
	var open []*runState
	for _, r := range j.runs {
		if r.state == stateOpen && r.next > 0 {
			open = append(open, r)
		}
	}
	return sideBySide(ctx, len(open), func(ctx context.Context, i int) error {
		r := open[i]
		info, err := store.Head(ctx, journal.Position{Run: r.id, Segment: r.next - 1}.Key())
		if errors.Is(err, objstore.ErrNotFound) {
			return nil // deleted after it was folded
		}
		r.lastAt = info.LastModified
		return err
	})
}

func (r *runState) view(now time.Time) runView {
	v := runView{Run: r.id.String(), Writer: r.writer, State: r.state, Segments: r.next, Folded: r.folded, Deleted: r.deleted, OpenedAt: at(r.openedAt), LastAt: at(r.lastAt)}
	if r.role != 0 {
		v.Role = r.role.String()
	}
	for _, u := range r.waiting {
		v.WaitingEntries += u.entries
	}
	if !r.lastAt.IsZero() && !now.IsZero() {
		v.Age = max(0, now.Sub(r.lastAt)).Round(time.Second).String()
	}
	return v
}

// surveyJournal reads the journal and the positions of those who read it. ended asks for runs that have ended, long is
// how long something may wait without being a finding.
func surveyJournal(ctx context.Context, store objstore.Store, ended bool, long time.Duration) (journalView, error) {
	v := journalView{Runs: []runView{}, Readers: []readerView{}, Findings: []string{}}
	authority, err := accept.ReadAuthority(ctx, store)
	if err != nil {
		return v, err
	}
	j, err := readJournal(ctx, store, authority.AuthorityID)
	if err == nil {
		err = j.date(ctx, store)
	}
	if err == nil {
		err = v.addHead(ctx, store, j)
	}
	if err != nil {
		return v, err
	}
	v.Through = at(j.through)
	var oldest int64
	for _, id := range slices.SortedFunc(maps.Keys(j.runs), journal.RunID.Compare) {
		r := j.runs[id]
		for _, u := range r.waiting {
			v.Waiting.Segments, v.Waiting.Entries, oldest = v.Waiting.Segments+1, v.Waiting.Entries+u.entries, earliest(oldest, u.oldest)
		}
		if r.state == stateFenced {
			v.Head.Fences++
		}
		if r.state == stateOpen {
			v.OpenRuns++
		} else {
			v.EndedRuns++
		}
		if r.state == stateOpen || ended {
			v.Runs = append(v.Runs, r.view(j.through))
		}
		if quiet := j.through.Sub(r.lastAt); r.state == stateOpen && r.role != journal.RoleSpooler && !r.lastAt.IsZero() && quiet > long {
			v.Findings = append(v.Findings, fmt.Sprintf("run %s of %q has had no segment for %s, and no reconciler has ended it", id, r.writer, quiet.Round(time.Second)))
		}
	}
	v.Waiting.Oldest = at(ofNs(oldest))
	if oldest > 0 && j.through.Sub(ofNs(oldest)) > long {
		v.Findings = append(v.Findings, fmt.Sprintf("entries have waited since %s, and no reconciler has folded them", v.Waiting.Oldest))
	}
	if v.Begun == "" {
		why := "the first full audit has not ended"
		if v.Head.Lost > 0 {
			why = fmt.Sprintf("a file was dropped by move %d, and no full audit that began later has ended", v.Head.Lost)
		}
		v.Findings = append(v.Findings, "the journal is not known to be complete: "+why)
	}
	return v, v.addReaders(ctx, store, authority.AuthorityID, j)
}

func (v *journalView) addHead(ctx context.Context, store objstore.Store, j *journalState) error {
	begin, err := journal.ReadBegin(ctx, store)
	if err != nil {
		return err
	}
	if begin.Covers(j.head.Lost) {
		v.Begun = begin.By
	}
	info, err := store.Head(ctx, layout.JournalHeadKey)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	v.Head = headView{Number: j.head.Number, Forgotten: j.head.Forgotten, Lost: j.head.Lost, Bytes: info.Size, MovedAt: at(info.LastModified), Files: len(j.head.Files), Lists: len(j.head.Lists)}
	for _, l := range j.head.Lists {
		v.Head.Entries, v.Head.FileBytes = v.Head.Entries+l.Entries, v.Head.FileBytes+l.Bytes
	}
	for _, f := range j.head.Files {
		v.Head.Entries, v.Head.FileBytes = v.Head.Entries+f.Entries, v.Head.FileBytes+f.Bytes
	}
	return nil
}

// addReaders adds those whose positions stand in the bucket. Query nodes keep theirs in memory: their status page has them.
func (v *journalView) addReaders(ctx context.Context, store objstore.Store, authority string, j *journalState) error {
	add := func(name string, p journal.Positions, pending int, written time.Time) error {
		r, err := j.behind(ctx, store, p)
		if err != nil {
			return err
		}
		r.Name, r.Pending, r.WrittenAt = name, pending, at(written)
		if p.Head > j.head.Number {
			v.Findings = append(v.Findings, fmt.Sprintf("%s is at head %d, and the head at %d: the bucket was restored from an older copy", name, p.Head, j.head.Number))
		}
		v.Readers = append(v.Readers, r)
		return nil
	}
	root, info, err := record.Read(ctx, store, layout.LedgersKey, ledgers.RootKind, ledgers.ParseRoot)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	if err := add("ledgers", root.Positions, 0, info.LastModified); err != nil {
		return err
	}
	count, err := shards.Read(ctx, store)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil // no rollups
	}
	if err != nil {
		return err
	}
	written := map[string]time.Time{}
	for o, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: layout.RollupProgressPrefix}) {
		if err != nil {
			return err
		}
		written[o.Key] = o.LastModified
	}
	all, err := rollupprogress.ReadAll(ctx, store, authority, count)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := add("rollups "+p.Shard.String(), p.Positions, len(p.Pending), written[layout.RollupProgress(p.Shard)]); err != nil {
			return err
		}
	}
	return nil
}

// behind counts what a reader at p has not read.
func (j *journalState) behind(ctx context.Context, g objstore.Getter, p journal.Positions) (readerView, error) {
	v := readerView{Head: p.Head, Moves: j.head.Number - min(p.Head, j.head.Number)}
	oldest, folded := int64(0), uint64(0)
	for id, r := range j.runs {
		next := uint64(0)
		at, named := p.Find(id)
		switch h := j.head.Run(id); {
		case named:
			next = at.Next
		case h != nil && h.Ended > 0 && h.Ended <= p.Head:
			next = r.next // it had ended by then, and was read to its end
		}
		folded += r.folded - min(next, r.folded)
		for n, u := range r.waiting {
			if n >= next {
				v.Segments, v.Entries, oldest = v.Segments+1, v.Entries+uint64(u.entries), earliest(oldest, u.oldest)
			}
		}
	}
	v.Segments += folded
	// Runs that the head has forgotten count, too.
	if folded > 0 || p.Head < j.head.Forgotten {
		files, err := j.head.FilesAfter(ctx, g, p.Head)
		if err != nil {
			return v, err
		}
		for _, f := range files {
			v.Entries, oldest = v.Entries+f.Entries, earliest(oldest, f.MinAt)
		}
	}
	v.Oldest = at(ofNs(oldest))
	return v, nil
}

// earliest of two times, of which 0 is none.
func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func ofNs(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// sideBySide is a journal.Fan with some requests at once.
func sideBySide(ctx context.Context, n int, do func(context.Context, int) error) error {
	var g errgroup.Group
	g.SetLimit(16)
	errs := make([]error, n)
	for i := range n {
		g.Go(func() error { errs[i] = do(ctx, i); return nil })
	}
	_ = g.Wait() // the errors of all are in errs
	return errors.Join(errs...)
}
