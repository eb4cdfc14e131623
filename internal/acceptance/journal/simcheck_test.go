package journal

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// simTruth is what the simulation knows and no process does.
type simTruth struct {
	manifests map[identity.Batch]identity.Digest
	answers   []simAnswer // in the order of their times
	// entries are those that ever stood in a segment; a segment that is created again, by a request that
	// comes late, has the same ones.
	entries map[Position][]simKey
	// folded, ended and fence are of the head: segments that it ever named, the move that ended the run, and
	// the fence that did, by run.
	folded map[RunID]uint64
	ended  map[RunID]uint64
	fence  map[RunID]uint64
	// files are the entries of folded files.
	files map[string][]simKey
	head  Head // as it stands
	// parsed are segments by the number of their birth.
	parsed map[uint64]*Segment
	// ruined are files that the disk lost, lost what they had, and begin the proof of completeness as it stands.
	ruined map[string]bool
	lost   map[simKey]bool
	begin  Begin
	// again are keys that were created after they had been deleted.
	gone, again map[string]bool
	saved       []simSaved
	followers   []*followerOf
	tally       simTally
}

func newSimTruth() simTruth {
	return simTruth{
		manifests: map[identity.Batch]identity.Digest{}, entries: map[Position][]simKey{},
		folded: map[RunID]uint64{}, ended: map[RunID]uint64{}, fence: map[RunID]uint64{},
		files: map[string][]simKey{}, parsed: map[uint64]*Segment{}, gone: map[string]bool{}, again: map[string]bool{},
		ruined: map[string]bool{}, lost: map[simKey]bool{}, begin: Begin{AuthorityID: "authority", By: ByAuthority},
	}
}

// simKey is what an entry says, whoever wrote it.
type simKey struct {
	id       identity.Batch
	hash     identity.Digest
	conflict bool
}

func keyOf(e *Entry) simKey { return simKey{e.ID, e.SHA256, e.Outcome.Conflict()} }

type simAnswer struct {
	key   simKey
	at    time.Time
	pos   Position
	known bool // pos is
}

// simTally counts what happened.
type simTally struct {
	Answers, Conflicts, Fenced, Closed, Polls, Behind, Resumed, Earliest, Hints int
	Moves, Deletes, Merged, Listed, Forgotten, Again, FenceInDeleted, Swept     int
	Skipped, Ruined, Dropped, Audited                                           int
}

func (t *simTally) add(o simTally) {
	a, b := reflect.ValueOf(t).Elem(), reflect.ValueOf(o)
	for i := range a.NumField() {
		a.Field(i).SetInt(a.Field(i).Int() + b.Field(i).Int())
	}
}

// complete reports whether everything happened at least once: a simulation in which something
// never does shows nothing about it.
func (t simTally) complete() bool {
	v := reflect.ValueOf(t)
	for i := range v.NumField() {
		if v.Field(i).Int() == 0 {
			return false
		}
	}
	return true
}

// answered is the moment of an answer: P2, P3 and P4 hold at each.
func (s *sim) answered(t *simTask, e *Entry, at Position, known bool) {
	s.tick()
	k := keyOf(e)
	s.logf("%s: ANSWER %s %s %.8s in %s", t.name, e.ID, e.Outcome, e.SHA256, at)
	s.answers = append(s.answers, simAnswer{k, s.now, at, known})
	s.tally.Answers++
	if k.conflict {
		s.tally.Conflicts++
	}
	if (s.manifests[e.ID] == e.SHA256) == k.conflict {
		s.failf("P2: %s is answered %s with %.8s, the manifest has %.8s", e.ID, e.Outcome, e.SHA256, s.manifests[e.ID])
	}
	// By now a fence may stand where the segment was, if that was folded and deleted.
	if known && !slices.Contains(s.entries[at], k) {
		s.failf("P4: %s is answered from %s, where it never stood", e.ID, at)
	}
	s.checkJournal()
}

// checkFlush: a segment that was not written may be tried again; no other error is for the caller.
func (s *sim) checkFlush(t *simTask, err error) {
	if err != nil && !t.dead && !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, objstore.ErrConflict) {
		s.failf("%s: %v", t.name, err)
	}
}

// checkEntry is P5, of an entry that a follower applies.
func (s *sim) checkEntry(e *Entry) {
	if won, ok := s.manifests[e.ID]; !ok || (won == e.SHA256) == e.Outcome.Conflict() {
		s.failf("P5: an entry of %s says %s with %.8s, the manifest has %.8s", e.ID, e.Outcome, e.SHA256, won)
	}
}

// checkPoll is P1: what was answered before the poll's first request, or before Through, is applied.
// What a lost file had may be missing where the proof that was read before the poll does not cover what the poll says is lost.
func (s *sim) checkPoll(r *simFollower, p Polled, before int, begin Begin) {
	for i, a := range s.answers {
		if a.key.id.SeqEnd < uint64(r.needs) || s.lost[a.key] && !begin.Covers(p.Lost) {
			continue
		}
		if (i < before || a.at.Before(p.Through)) && !r.got[a.key] {
			s.failf("P1: %s polls through %v, and has not applied %s, answered at %v in %s", r.name, p.Through, a.key.id, a.at, a.pos)
		}
		if !a.known {
			continue
		}
		has := r.f.Has(a.pos)
		if has && !r.got[a.key] {
			s.failf("%s has %s, and has not applied %s", r.name, a.pos, a.key.id)
		}
		if i < before && !has && s.ended[a.pos.Run] == 0 {
			s.failf("%s polled, and has not %s, which was answered before", r.name, a.pos)
		}
	}
	if p.Through.IsZero() {
		s.failf("%s: a poll without a time", r.name)
	}
}

// written is every object that was created or replaced.
func (s *sim) written(key string, o simObject) {
	if id, err := layout.ParseAccepted(key); err == nil {
		s.manifests[id] = identity.Digest(o.body)
		return
	}
	if s.gone[key] {
		s.again[key] = true
		s.tally.Again++
	}
	switch {
	case key == layout.JournalBeginKey:
		b, err := ParseBegin(o.body)
		if err != nil || b.Head < s.begin.Head {
			s.failf("the begin is %+v, and was %+v (%v)", b, s.begin, err)
		}
		s.begin = b
	case key == layout.JournalHeadKey:
		s.headMoved(o.body)
	case strings.HasPrefix(key, layout.JournalFoldedPrefix):
		if es, err := ParseFolded(o.body); err == nil {
			s.files[key] = keysOf(es)
		}
		return // nothing names it yet
	default:
		seg, err := ParseSegment(o.body)
		if err != nil || seg.Position.Key() != key {
			s.failf("%s is written: %v, %v", key, seg, err)
			return
		}
		s.parsed[o.born] = seg
		switch {
		case seg.Fenced && seg.Segment < s.folded[seg.Run]:
			s.tally.FenceInDeleted++
		case !seg.Fenced:
			s.entries[seg.Position] = append(s.entries[seg.Position], keysOf(seg.Entries)...)
		}
	}
	s.checkJournal()
}

func keysOf(es []Entry) (out []simKey) {
	for i := range es {
		out = append(out, keyOf(&es[i]))
	}
	return out
}

// headMoved checks a move: it folds what follows, and what it folds stands in the files that it names.
func (s *sim) headMoved(body []byte) {
	h, err := ParseHead(body)
	if err != nil {
		s.failf("the head moves to one that can't be read: %v", err)
		return
	}
	s.tally.Moves++
	was := s.head
	s.head = h
	if len(h.Lists) > 0 {
		s.tally.Listed++
	}
	for _, f := range h.Files {
		if f.First < f.Last {
			s.tally.Merged++
		}
	}
	if h.Forgotten > 0 {
		s.tally.Forgotten++
	}
	var lost []Position
	named := s.namedBy(&h)
	for _, r := range h.Runs {
		// A run that is created again after the head forgot it is folded again, which changes nothing.
		if r.Folded < s.folded[r.Run] && s.ended[r.Run] == 0 {
			s.failf("the head went back from %d to %d segments of %s", s.folded[r.Run], r.Folded, r.Run)
		}
		if was.Run(r.Run) == nil && s.ended[r.Run] > 0 && !s.again[layout.JournalSegment(r.Run, 0)] {
			s.failf("the head takes up %s again, which had ended and was forgotten", r.Run)
		}
		s.folded[r.Run] = max(s.folded[r.Run], r.Folded)
		if r.Ended > 0 {
			s.ended[r.Run] = r.Ended
		}
		if r.Fenced {
			s.fence[r.Run] = r.Folded - 1
		}
		for n := range r.Folded {
			for _, k := range s.entries[Position{r.Run, n}] {
				if !named[k] && !s.lost[k] {
					lost = append(lost, Position{r.Run, n})
				}
			}
		}
	}
	if len(lost) > 0 {
		s.failf("move %d folds %v without their entries", h.Number, lost)
	}
}

// namedBy are the entries of the files that a head names.
func (s *sim) namedBy(h *Head) map[simKey]bool {
	out := map[simKey]bool{}
	add := func(files []FoldedFile) {
		for _, f := range files {
			if s.ruined[f.Key] {
				continue
			}
			if _, ok := s.objects[f.Key]; !ok {
				s.failf("the head %d names %s, which is not there", h.Number, f.Key)
			}
			for _, k := range s.files[f.Key] {
				out[k] = true
			}
		}
	}
	for _, l := range h.Lists {
		if s.ruined[l.Key] {
			continue
		}
		files, err := ParseList(s.objects[l.Key].body)
		if err != nil {
			s.failf("the head %d names the list %s: %v", h.Number, l.Key, err)
		}
		add(files)
	}
	add(h.Files)
	return out
}

// entriesOf are the entries of all segments that a head has folded.
func (s *sim) entriesOf(h *Head) map[simKey]bool {
	out := map[simKey]bool{}
	for p, keys := range s.entries {
		r := h.Run(p.Run)
		if r != nil && p.Segment < r.Folded || s.ended[p.Run] > 0 && s.ended[p.Run] <= h.Number {
			for _, k := range keys {
				out[k] = true
			}
		}
	}
	return out
}

// deleted is every object that went.
func (s *sim) deleted(key string, o simObject) {
	s.gone[key] = true
	s.tally.Deletes++
	run, n, err := layout.ParseJournalSegment(key)
	switch {
	case err == nil && n >= s.folded[run]:
		s.failf("%s is deleted, and not folded", key)
	case err == nil:
		end, fenced := s.fence[run]
		if seg, err := ParseSegment(o.body); err != nil || seg.Fenced && fenced && n == end {
			s.failf("the fence %s is deleted (%v)", key, err)
		}
	case !strings.HasPrefix(key, layout.JournalFoldedPrefix):
		s.failf("%s is deleted", key)
	default:
		h := s.head
		s.namedBy(&h)
		s.tally.Swept++
	}
	s.checkJournal()
}

// checkJournal is P3: what was answered stands in a file that the head names, or in a segment that a
// follower gets at, without a gap, a fence or an end before it.
func (s *sim) checkJournal() {
	if s.broken != nil || len(s.answers) == 0 {
		return
	}
	h := s.head
	there := s.namedBy(&h)
	var runs []RunID
	for p := range s.entries {
		if p.Segment == 0 {
			runs = append(runs, p.Run)
		}
	}
	for _, run := range runs {
		n := uint64(0)
		if r := h.Run(run); r != nil {
			n = r.Folded
			if r.Ended > 0 {
				continue
			}
		} else if s.ended[run] > 0 {
			continue
		}
		for {
			o, ok := s.objects[layout.JournalSegment(run, n)]
			if !ok {
				break
			}
			seg := s.parsed[o.born]
			if seg.Fenced {
				break
			}
			for i := range seg.Entries {
				there[keyOf(&seg.Entries[i])] = true
			}
			if seg.Closed {
				break
			}
			n++
		}
	}
	for _, a := range s.answers {
		// Nobody calls the journal complete: the head names a file that can't be read, or says that there was one.
		if s.lost[a.key] && (s.namesRuined() || !s.begin.Covers(h.Lost)) {
			continue
		}
		if !there[a.key] {
			s.failf("P3: %s was answered in %s, and no follower gets at it", a.key.id, a.pos)
			return
		}
	}
}

// finish ends all faults. Late writes land, runs are fenced and folded; then every follower, from
// wherever somebody was, finds everything, and what is left is small.
func (s *sim) finish() {
	for len(s.late) > 0 {
		s.land()
	}
	s.faults = simFaults{}
	p := &simProc{name: "final"}
	s.tasks = nil
	if s.losesFiles {
		s.calm(p, func(ctx context.Context, t *simTask) {
			if s.dropRuined(ctx, t); s.namesRuined() {
				s.failf("without faults: the head names files that can't be read")
			}
			if s.audit(ctx, t, p); !s.begin.Covers(s.head.Lost) {
				s.failf("without faults: no audit completes the journal: %+v, lost %d", s.begin, s.head.Lost)
			}
		})
	}
	s.calm(p, func(ctx context.Context, t *simTask) {
		f, err := NewFolder(FolderConfig{Store: simPort{s}, Rand: ids{s}, Retention: 10})
		if err != nil {
			panic(err)
		}
		f.bounds.forgetAfter = 3
		// Before the head forgets more runs, because openings that came back are known by it.
		if err := f.Sweep(ctx, s.now.UnixNano()); err != nil {
			s.failf("a sweep without faults: %v", err)
		}
		from, err := f.Load(ctx)
		if err != nil {
			s.failf("without faults: %v", err)
		}
		head := f.Head()
		r := s.newFollower(p, simSaved{at: from, got: s.entriesOf(&head)}, f.Add)
		for range 5 {
			if _, err := r.poll(ctx, t); err != nil {
				s.failf("a poll without faults: %v", err)
			}
			for _, run := range r.f.Runs() {
				if err := Fence(ctx, simPort{s}, Position{run.Run, max(1, run.Next)}); err != nil {
					s.failf("a fence without faults: %v", err)
				}
			}
			for range 4 {
				s.now = s.now.Add(time.Second)
				if _, err := f.Fold(ctx, s.now.UnixNano()); err != nil {
					s.failf("a move without faults: %v", err)
				}
			}
		}
		if err := f.Sweep(ctx, s.now.UnixNano()); err != nil {
			s.failf("a sweep without faults: %v", err)
		}
		s.now = s.now.Add(time.Second)
		if _, err := f.Fold(ctx, s.now.UnixNano()); err != nil {
			s.failf("a move without faults: %v", err)
		}
		s.checkLeft()
		for i, from := range append([]simSaved{{}}, s.saved...) {
			if r := s.newFollower(p, from, nil); s.broken == nil {
				s.logf("from saved %d: %+v", i, from.at)
				if _, err := r.poll(ctx, t); err != nil {
					s.failf("a poll without faults: %v", err)
				}
				if runs := r.f.Runs(); len(runs) > 0 {
					s.failf("all runs have ended, and a follower from %+v goes on asking for %+v", from.at, runs)
				}
			}
		}
	})
}

// calm plays tasks alone until they end.
func (s *sim) calm(p *simProc, body func(context.Context, *simTask)) {
	s.start(p, p.name, body)
	for len(s.tasks) > 0 {
		for _, t := range slices.Clone(s.tasks) {
			if t.ready == nil || t.ready() {
				s.advance(t)
			}
		}
	}
}

// checkLeft: at the end there are fences, files that the head names, and nothing else.
func (s *sim) checkLeft() {
	h := s.head
	named := map[string]bool{}
	for _, l := range h.Lists {
		named[l.Key] = true
		files, _ := ParseList(s.objects[l.Key].body)
		for _, f := range files {
			named[f.Key] = true
		}
	}
	for _, f := range h.Files {
		named[f.Key] = true
	}
	for _, r := range h.Runs {
		if r.Ended == 0 {
			s.failf("all runs have ended, and the head has folded %d segments of %s and no end", r.Folded, r.Run)
		}
	}
	for _, key := range s.keys(layout.JournalPrefix) {
		_, n, err := layout.ParseJournalSegment(key)
		switch {
		case key == layout.JournalHeadKey || key == layout.JournalBeginKey || named[key]:
		case err == nil && n > 0 && (s.again[key] || isFence(s.objects[key].body)):
			// What comes late into a deleted place stays: nobody lists it, and nobody asks for it.
		default:
			s.failf("%s is left", key)
		}
	}
}

func isFence(b []byte) bool {
	s, err := ParseSegment(bytes.Clone(b))
	return err == nil && s.Fenced
}
