package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// FollowerStore is what a Follower needs of the store.
type FollowerStore interface {
	objstore.Getter
	objstore.Header
	objstore.Lister
}

// Fan runs do for 0 to n-1, one after the other or side by side, and returns the errors of all.
// An error of one must not keep the others from running.
type Fan func(ctx context.Context, n int, do func(ctx context.Context, i int) error) error

// OneByOne is a Fan.
func OneByOne(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	var errs []error
	for i := range n {
		errs = append(errs, do(ctx, i))
	}
	return errors.Join(errs...)
}

// FollowerConfig makes a Follower.
type FollowerConfig struct {
	Store FollowerStore
	// Authority is the id that openings must have.
	Authority string
	// Segment applies a segment, and Folded the entries of a folded file. What they get they may have got
	// before: entries are known by their identities. An error keeps the run, or the poll, where it is, and
	// the same is applied again. Both are called side by side when Fan does so. A fence is a segment without
	// entries; it may have come late, so it proves nothing before the poll has ended.
	Segment func(context.Context, *Segment) error
	Folded  func(context.Context, []Entry) error
	// Skip reports that the caller needs no entry of a folded file, or of the files of a list; they then
	// count as applied. nil skips nothing.
	Skip func(Span) bool
	// Fan is OneByOne when nil.
	Fan Fan
	// From is where somebody stopped who has applied everything before; zero is the beginning.
	From Positions
}

// Follower reads all runs of the journal. Its methods may be called concurrently, but one Poll waits
// for another.
//
// A poll lists the runs, reads each until a segment is not there, and reads the head last. Let T
// be the time before its first request. A run that the listing does not show had no segment at T, so
// nothing had been answered from it; a run whose segment n is not there had answered nothing beyond n-1.
// Both could also be because the segments were folded and deleted, but the head moves before anything is
// deleted: a head that is read afterwards and is not beyond n rules that out. So whatever was
// answered before T has been applied. No clock, lease or grace period takes part.
type Follower struct {
	cfg FollowerConfig

	polling sync.Mutex // one poll at a time

	mu    sync.Mutex
	runs  map[RunID]*followed
	head  Head   // that was last compared with
	etag  string // of head; empty before the first comparison, and while there is no head
	known uint64 // everything that moves up to this one folded has been applied
	date  time.Time
	polls uint64
}

// followed is one run. mu is held while it is read, the other fields are guarded by Follower.mu.
type followed struct {
	id RunID
	mu sync.Mutex

	next uint64
	// ended: the run has no segment from next on. pending: so its segment next says, which counts only
	// after the head was compared: a fence that came late stands where a segment was folded and deleted.
	ended, pending bool
	opening        *Opening // nil: segment 0 was not read
	listed         bool     // by the poll that is under way, or the last one
	newsAt         uint64   // the poll in which the last segment was read
}

// NewFollower makes a follower; it makes no request.
func NewFollower(c FollowerConfig) (*Follower, error) {
	if c.Store == nil || c.Segment == nil || c.Folded == nil || c.Authority == "" {
		return nil, errors.New("journal follower: a dependency is missing")
	}
	if err := c.From.Validate(); err != nil {
		return nil, fmt.Errorf("journal follower: %w", err)
	}
	if c.Fan == nil {
		c.Fan = OneByOne
	}
	f := &Follower{cfg: c, runs: map[RunID]*followed{}, known: c.From.Head}
	for _, r := range c.From.Runs {
		f.runs[r.Run] = &followed{id: r.Run, next: r.Next, ended: r.Ended}
	}
	return f, nil
}

// ErrHeadWentBack: the head has a lower number than one that was read before, so the bucket was restored
// from an older copy. Whoever follows the journal has to start from nothing.
var ErrHeadWentBack = errors.New("the head of the journal went back")

// maxRounds bounds how often one poll starts again because the head had moved.
const maxRounds = 8

// Polled is what a poll proves.
type Polled struct {
	// Through: everything that was answered before it is applied. It is the store's time; zero where
	// no answer of the store had a time.
	Through time.Time
	// Positions through which the journal is applied.
	Positions Positions
	// Lost is that of the head: what was answered before Through is applied only where the Begin that was read before the
	// poll covers it.
	Lost uint64
	// Segments and Entries that were read by this poll.
	Segments, Entries int
}

// Poll reads everything that was answered before it began. After an error some of it may be applied,
// and nothing is proved.
func (f *Follower) Poll(ctx context.Context) (Polled, error) {
	f.polling.Lock()
	defer f.polling.Unlock()
	if err := f.prepare(ctx); err != nil {
		return Polled{}, fmt.Errorf("poll the journal: %w", err)
	}
	var out Polled
	for range maxRounds {
		// Of an answer that came before the first request of this round. The time of that request's own
		// answer would be too late: a run may open and answer between a listing and its date.
		f.mu.Lock()
		out.Through = f.date
		f.polls++
		f.mu.Unlock()
		behind, err := f.round(ctx, &out)
		if err != nil {
			return Polled{}, fmt.Errorf("poll the journal: %w", err)
		}
		if !behind {
			out.Positions, out.Lost = f.compared()
			return out, nil
		}
	}
	return Polled{}, fmt.Errorf("poll the journal: %w: the head moved %d times meanwhile", objstore.ErrUnavailable, maxRounds)
}

// prepare makes the requests of a first poll that come before its first round: one whose answer has
// the store's time, and the head, which tells the runs that had ended by the positions' own move.
func (f *Follower) prepare(ctx context.Context) error {
	f.mu.Lock()
	first := f.polls == 0
	f.mu.Unlock()
	if !first {
		return nil
	}
	page, err := f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: layout.JournalOpenPrefix, Limit: 1})
	if err != nil {
		return err
	}
	head, _, err := ReadHead(ctx, f.cfg.Store)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.date = page.Date
	for _, r := range head.Runs {
		// Otherwise segments that are not deleted yet would be read again.
		if r.Ended > 0 && r.Ended <= f.known && f.runs[r.Run] == nil {
			f.runs[r.Run] = &followed{id: r.Run, next: r.Folded, ended: true}
		}
	}
	return nil
}

// round is one attempt of a poll. behind: folded files had to be read in place of segments, so nothing is proved.
func (f *Follower) round(ctx context.Context, out *Polled) (behind bool, err error) {
	todo, err := f.list(ctx)
	if err != nil {
		return false, err
	}
	var count sync.Mutex
	err = f.cfg.Fan(ctx, len(todo), func(ctx context.Context, i int) error {
		segments, entries, err := f.read(ctx, todo[i], toTheEnd)
		count.Lock()
		defer count.Unlock()
		out.Segments, out.Entries = out.Segments+segments, out.Entries+entries
		return err
	})
	if err != nil {
		return false, err
	}
	return f.compare(ctx)
}

// list finds the runs, and returns those to read: the ones that were known, and those that the listing shows.
func (f *Follower) list(ctx context.Context) ([]*followed, error) {
	var shown []RunID
	var date time.Time
	o := objstore.ListOptions{Prefix: layout.JournalOpenPrefix}
	for {
		page, err := f.cfg.Store.List(ctx, o)
		if err != nil {
			return nil, err
		}
		date = page.Date
		for _, i := range page.Objects {
			// A key of another form is nobody's run.
			if run, n, err := layout.ParseJournalSegment(i.Key); err == nil && n == 0 {
				shown = append(shown, run)
			}
		}
		if o.StartAfter = page.Next; page.Next == "" {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.date = date
	for _, r := range f.runs {
		r.listed = false
	}
	for _, id := range shown {
		r := f.runs[id]
		if r == nil {
			if len(f.runs) >= maxPositions {
				return nil, fmt.Errorf("%w: more than %d runs of the journal are open", objstore.ErrInvalid, maxPositions)
			}
			r = &followed{id: id, newsAt: f.polls}
			f.runs[id] = r
		}
		r.listed = true
	}
	var todo []*followed
	for _, r := range f.runs {
		if !r.ended {
			todo = append(todo, r)
		}
	}
	slices.SortFunc(todo, func(a, b *followed) int { return a.id.Compare(b.id) })
	return todo, nil
}

// maxAhead bounds the segments of one run that are read side by side. A writer has one in flight at a time, so a
// reader that reads one after the other over the same store would hardly be faster than it.
const maxAhead = 4

// read reads a run's segments until one is not there or ends it, or it has read the segment through, which a
// hint says is there.
func (f *Follower) read(ctx context.Context, r *followed, through uint64) (segments, entries int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := f.readOpening(ctx, r); err != nil {
		return 0, 0, err
	}
	for {
		f.mu.Lock()
		at, done := Position{r.id, r.next}, r.ended || r.pending || r.next > through
		f.mu.Unlock()
		if done {
			return segments, entries, nil
		}
		// Where nothing is known of further segments, no more are asked for than were there.
		ahead := uint64(max(1, segments))
		if through != toTheEnd {
			ahead = through - at.Segment + 1
		}
		got := make([]fetched, min(ahead, maxAhead))
		ferr := f.cfg.Fan(ctx, len(got), func(ctx context.Context, i int) error {
			got[i].s, got[i].err = f.get(ctx, Position{at.Run, at.Segment + uint64(i)})
			return got[i].err
		})
		for i := range got {
			s, err := got[i].s, got[i].err
			if s == nil && err == nil {
				return segments, entries, ferr // it was not asked for
			}
			// A segment behind it that is there was created meanwhile.
			if errors.Is(err, objstore.ErrNotFound) {
				return segments, entries, nil
			}
			if err == nil {
				err = f.cfg.Segment(ctx, s)
			}
			if err != nil {
				return segments, entries, err
			}
			segments, entries = segments+1, entries+len(s.Entries)
			if f.applied(r, s) {
				break
			}
		}
	}
}

// toTheEnd is no segment's number.
const toTheEnd = ^uint64(0)

type fetched struct {
	s   *Segment
	err error
}

// applied notes that a run's next segment was applied, and reports whether it ends the run.
func (f *Follower) applied(r *followed, s *Segment) (ends bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.newsAt = f.polls
	if s.Opening != nil {
		r.opening = s.Opening
	}
	// A fence is not counted as read. Where it came late, the head is beyond it, and says so.
	if !s.Fenced && r.next == s.Segment {
		r.next++
	}
	r.pending = s.Ends()
	return r.pending
}

// readOpening reads whose run it is that was followed from a position. Where segment 0 is deleted, the head says it.
func (f *Follower) readOpening(ctx context.Context, r *followed) error {
	f.mu.Lock()
	known := r.opening != nil || r.next == 0 || !r.listed
	f.mu.Unlock()
	if known {
		return nil
	}
	s, err := f.get(ctx, Position{r.id, 0})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.opening = s.Opening
	return nil
}

// get reads one segment. One that can't be used stops its run, and completeness with it, until an
// operator has dealt with it: the batches that it lists are known to nobody else.
func (f *Follower) get(ctx context.Context, at Position) (*Segment, error) {
	key := at.Key()
	s, _, err := record.Read(ctx, f.cfg.Store, key, FileKind, ParseSegment)
	switch {
	case err != nil:
		return nil, err
	case s.Position != at:
		return nil, FileKind.Corrupt(key, "it is segment %s", s.Position)
	case s.Opening != nil && s.Opening.Authority != f.cfg.Authority:
		return nil, FileKind.Corrupt(key, "it is of the authority %q, ours is %q", s.Opening.Authority, f.cfg.Authority)
	}
	return s, nil
}

// compare reads the head and compares it with what was read. Where runs were folded beyond that, the
// folded files are applied.
func (f *Follower) compare(ctx context.Context) (behind bool, err error) {
	// Only ends that were read before the head: a fence that a hint reads meanwhile may be a late one.
	f.mu.Lock()
	var ends []*followed
	for _, r := range f.runs {
		if r.pending {
			ends = append(ends, r)
		}
	}
	f.mu.Unlock()
	head, etag, err := f.readHead(ctx)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	if head.Number < f.known {
		f.mu.Unlock()
		return false, fmt.Errorf("%w: from %d to %d", ErrHeadWentBack, f.known, head.Number)
	}
	after := f.known
	if behind = f.isBehind(&head); !behind {
		f.accept(head, etag, ends)
	}
	f.mu.Unlock()
	if !behind {
		return false, nil
	}
	files, err := f.filesAfter(ctx, head, after)
	if err != nil {
		return false, again(err)
	}
	err = f.cfg.Fan(ctx, len(files), func(ctx context.Context, i int) error {
		es, err := ReadFile(ctx, f.cfg.Store, files[i])
		if err != nil {
			return err
		}
		return f.cfg.Folded(ctx, es)
	})
	if err != nil {
		return false, again(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range head.Runs {
		r := f.runs[h.Run]
		if r == nil {
			r = &followed{id: h.Run, newsAt: f.polls}
			f.runs[h.Run] = r
		}
		if r.next < h.Folded || h.Ended > 0 {
			r.next, r.pending = max(r.next, h.Folded), false
			r.ended = r.ended || h.Ended > 0
		}
		if r.opening == nil {
			r.opening = &Opening{Writer: h.Writer, Role: h.Role, Authority: f.cfg.Authority}
		}
	}
	f.head, f.etag, f.known = head, etag, head.Number
	return true, nil
}

// filesAfter lists the files that have what was folded after a move, but for those to skip.
func (f *Follower) filesAfter(ctx context.Context, h Head, number uint64) ([]FoldedFile, error) {
	if f.cfg.Skip == nil {
		return h.FilesAfter(ctx, f.cfg.Store, number)
	}
	h.Lists = slices.DeleteFunc(slices.Clone(h.Lists), func(l FileList) bool { return f.cfg.Skip(l.Span) })
	files, err := h.FilesAfter(ctx, f.cfg.Store, number)
	return slices.DeleteFunc(files, func(x FoldedFile) bool { return f.cfg.Skip(x.Span) }), err
}

// again makes of "not found" an error that a later poll mends: the head has moved on, and what it
// no longer names was deleted.
func again(err error) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return fmt.Errorf("%w: a folded file is gone: %v", objstore.ErrUnavailable, err)
	}
	return err
}

// readHead reads the head, or only its ETag if it is the one that was read last.
func (f *Follower) readHead(ctx context.Context) (Head, string, error) {
	f.mu.Lock()
	head, etag := f.head, f.etag
	f.mu.Unlock()
	if etag != "" {
		info, err := f.cfg.Store.Head(ctx, layout.JournalHeadKey)
		if err != nil {
			// A head that was there is never deleted, so "not found" is a failure as well.
			return Head{}, "", again(err)
		}
		if info.ETag == etag {
			return head, etag, nil
		}
	}
	return ReadHead(ctx, f.cfg.Store)
}

// isBehind reports whether the head has folded what was not read. The caller holds mu.
func (f *Follower) isBehind(h *Head) bool {
	// A run may have begun, ended and been forgotten unseen.
	if h.Forgotten > f.known {
		return true
	}
	for _, run := range h.Runs {
		r := f.runs[run.Run]
		switch {
		case r == nil && (run.Ended == 0 || run.Ended > f.known):
			return true
		case r != nil && !r.ended && run.Folded > r.next:
			return true
		}
	}
	return false
}

// accept makes what was read count, after the head ruled out that segments were deleted unseen; ends
// are the runs whose end had been read before the head. The caller holds mu.
func (f *Follower) accept(head Head, etag string, ends []*followed) {
	f.head, f.etag, f.known = head, etag, head.Number
	for _, r := range ends {
		if r.pending {
			r.pending, r.ended = false, true
		}
	}
	for id, r := range f.runs {
		h := head.Run(id)
		if r.opening == nil && h != nil {
			r.opening = &Opening{Writer: h.Writer, Role: h.Role, Authority: f.cfg.Authority}
		}
		// Its segment 0 may have been created again, by a request that came late, and been read again.
		if h != nil && h.Ended > 0 && r.next >= h.Folded {
			r.ended = true
		}
		// A run is dropped once nothing shows it any more. Its segment 0 was there, and is deleted: so a
		// head had it, and this one, which is younger than the listing, has its end or has forgotten it.
		if !r.listed && (h == nil || h.Ended > 0 && r.ended) {
			delete(f.runs, id)
		}
	}
}

// Read reads the segments of a run through a position, of which a hint has told. It proves nothing. known is false for
// a run that no poll has found yet: then the caller polls.
func (f *Follower) Read(ctx context.Context, through Position) (known bool, err error) {
	f.mu.Lock()
	r := f.runs[through.Run]
	f.mu.Unlock()
	if r == nil {
		return false, nil
	}
	_, _, err = f.read(ctx, r, min(through.Segment, toTheEnd-1))
	return true, err
}

// Positions through which everything is applied, as far as the last poll that succeeded compared it
// with the head.
func (f *Follower) Positions() Positions {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := Positions{Head: f.known}
	for _, id := range slices.SortedFunc(maps.Keys(f.runs), RunID.Compare) {
		r := f.runs[id]
		if h := f.head.Run(id); h != nil && h.Ended > 0 && r.ended {
			continue // its end is in Head
		}
		p.Runs = append(p.Runs, RunPosition{Run: id, Next: r.next, Ended: r.ended})
	}
	return p
}

// compared is what the head says with which the last poll was compared.
func (f *Follower) compared() (at Positions, lost uint64) {
	at = f.Positions()
	f.mu.Lock()
	defer f.mu.Unlock()
	return at, f.head.Lost
}

// Has reports whether what stands at a position is applied. It is false for a run that nobody knows yet, and
// for one that the head has forgotten; see Forgotten.
func (f *Follower) Has(p Position) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.runs[p.Run]; r != nil {
		return p.Segment < r.next || r.ended
	}
	h := f.head.Run(p.Run)
	return h != nil && p.Segment < h.Folded
}

// Forgotten reports that a run has ended, was read to its end, and that the head does not name it any more; or that
// it never was. Only who knows that the run had begun before the last poll that succeeded, because a position of it had
// been answered, can tell these apart: a poll finds every run that is open or that the head names, and reads the files
// of those that the head has forgotten since the poll before.
func (f *Follower) Forgotten(run RunID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[run] == nil && f.head.Run(run) == nil && f.head.Forgotten > 0
}

// Run describes a run that is followed.
type Run struct {
	RunPosition
	// Opening is nil where segment 0 was not read and the head does not have the run.
	Opening *Opening
	// Quiet is the number of polls that found nothing new in the run.
	Quiet uint64
}

// Runs are those that may have further segments, in the order of their ids.
func (f *Follower) Runs() []Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Run
	for _, id := range slices.SortedFunc(maps.Keys(f.runs), RunID.Compare) {
		r := f.runs[id]
		if r.ended {
			continue
		}
		out = append(out, Run{RunPosition: RunPosition{Run: id, Next: r.next}, Opening: r.opening, Quiet: f.polls - min(r.newsAt, f.polls)})
	}
	return out
}
