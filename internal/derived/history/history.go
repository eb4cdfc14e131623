// Package history reads the acceptance journal backwards in time: which batches were accepted in a
// range of time, or have samples in one, as they stand in the folded files and in the segments that nobody has
// folded yet. It is what a listing of accepted-by-time would be, costs requests for each file and not for each
// batch, and its answer is complete for what was answered before it began.
package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// ErrIncomplete: batches were accepted before the journal began, and no full audit has finished since. A
// reader would miss them, so there is no answer; accepted/v1/ has them.
var ErrIncomplete = errors.New("the journal does not have every accepted batch yet: a reconciler's first full audit completes it")

// Range is the half-open range of times [From, To), in Unix nanoseconds. The zero Range is all of time.
type Range struct{ From, To int64 }

// Between is the range of two times.
func Between(from, to time.Time) Range { return Range{from.UnixNano(), to.UnixNano()} }

// overlaps reports whether one of the times from lo to hi, both included, lies in the range.
func (r Range) overlaps(lo, hi int64) bool { return r == Range{} || lo < r.To && hi >= r.From }

// Selection says which entries are wanted. The zero Selection is every accepted batch.
type Selection struct {
	// Accepted bounds the time of acceptance, by the clock of the collector that accepted.
	Accepted Range
	// Samples must have one sample in it, or lie around it.
	Samples Range
	// Agents reports whether an agent's batches are wanted; nil wants all.
	Agents func(agent string) bool
	// Conflicts asks for the frames in quarantine as well.
	Conflicts bool
	// Spans says which folded files are read, of those that Accepted and Samples leave; nil reads all of them.
	Spans func(journal.Span) bool
	// Raw asks for every entry of these agents as it stands, whatever its outcome: also of batches that another region counts, and each
	// time that it stands somewhere.
	Raw bool
}

// Files are those of a head that were folded after one of its moves, 0 being all of them, and whose spans the selection
// overlaps. Lists of files are read only where theirs does.
func (s *Selection) Files(ctx context.Context, g objstore.Getter, head journal.Head, after uint64) ([]journal.FoldedFile, error) {
	head.Lists = slices.DeleteFunc(slices.Clone(head.Lists), func(l journal.FileList) bool { return s.skips(l.Span) })
	files, err := head.FilesAfter(ctx, g, after)
	return slices.DeleteFunc(files, func(f journal.FoldedFile) bool { return s.skips(f.Span) }), err
}

// skips reports whether nothing of a folded file, or of a list of them, is wanted.
func (s *Selection) skips(x journal.Span) bool {
	return !s.Accepted.overlaps(x.MinAt, x.MaxAt) || !s.Samples.overlaps(x.MinTime, x.MaxTime) || s.Spans != nil && !s.Spans(x)
}

func (s *Selection) wants(e *journal.Entry) bool {
	return (s.Raw || e.Outcome.Counts() || s.Conflicts && e.Outcome.Conflict()) && s.Accepted.overlaps(e.At, e.At) && s.Samples.overlaps(e.MinTime, e.MaxTime) &&
		(s.Agents == nil || s.Agents(e.ID.Agent))
}

// Reader reads the history of a bucket.
type Reader struct {
	Store journal.FollowerStore
	// Authority is the id that the journal's runs must have.
	Authority string
	// Remember bounds the entries that are remembered to give each batch once, 32 bytes each and twice as many
	// at most; 0 is 1,000,000. A batch with several entries, as after a repeat of its sender's, is given again
	// when more than so many others came in between.
	Remember int
	// Partial reads a journal that does not have every accepted batch, too; else that is ErrIncomplete.
	Partial bool
	// Fan reads runs that are not folded side by side; nil is one after the other. Pages come one at a time all the same.
	Fan journal.Fan
}

// Page is what one file or one segment has.
type Page struct {
	// Entries that are wanted, in the order of their identities. They may be none, and are valid during the call.
	Entries []journal.Entry
	// Key of the file or the segment; empty of a file that was folded while the reading went on.
	Key string
	// Through is the number of the head's move through which everything folded has been given with this page:
	// where a later reading may begin. It is 0 for what is not folded yet.
	Through uint64
}

// Read is what a reading proves.
type Read struct {
	// Through: everything that was answered before it was given. It is the store's time; zero where the
	// store says none.
	Through time.Time
	// Positions through which the journal was read.
	Positions journal.Positions
	// Files that were read.
	Files int
}

// attempts bounds how often a reading begins again where it was, because files were merged meanwhile.
const attempts = 8

// Read calls page for each folded file and each segment that is not folded, one at a time. It begins after a move
// of the head, of an earlier reading with the same selection; 0 is the beginning. Of several entries of a batch it
// gives one.
//
// Files that a head names come first, in the order of its moves, and the rest as a journal.Follower that starts from
// that head finds it, which reads the head once more at its end. So nothing is missed that was answered before the
// reading began, whatever is folded, merged and deleted beside it. An error of page ends the reading. Errors wrap
// ErrIncomplete, journal.ErrHeadWentBack where after is beyond the head, or the store's.
func (r Reader) Read(ctx context.Context, s Selection, after uint64, page func(context.Context, Page) error) (Read, error) {
	out, err := r.read(ctx, s, after, page)
	if err != nil {
		return Read{}, fmt.Errorf("history of accepted batches: %w", err)
	}
	return out, nil
}

func (r Reader) read(ctx context.Context, s Selection, after uint64, page func(context.Context, Page) error) (Read, error) {
	// Before the first request for entries: an audit writes what it found first, and says so afterwards.
	begin, err := journal.ReadBegin(ctx, r.Store)
	if err != nil {
		return Read{}, err
	}
	w := walk{Reader: r, begin: begin, s: &s, page: page, once: newOnce(r.Remember)}
	for failed := 0; ; failed++ {
		head, err := w.folded(ctx, after)
		if err != nil {
			return Read{}, err
		}
		polled, err := w.rest(ctx, head)
		if err == nil && !r.Partial && !begin.Covers(polled.Lost) {
			return Read{}, ErrIncomplete
		}
		if err == nil {
			w.out.Through, w.out.Positions = polled.Through, polled.Positions
			return w.out, nil
		}
		// Folders may be faster than the poll: a file that its head named is gone then, and a later head names
		// what took its place.
		if w.ended != nil || !errors.Is(err, objstore.ErrUnavailable) || failed == attempts || ctx.Err() != nil {
			return Read{}, err
		}
		after = head.Number
	}
}

// walk is one reading.
type walk struct {
	Reader
	begin journal.Begin
	s     *Selection
	page  func(context.Context, Page) error
	once  *once
	out   Read

	giving sync.Mutex // a page, of which Fan may read several at once
	// ended is the caller's error, after which nothing is tried again.
	ended error
}

// give hands a page over.
func (w *walk) give(ctx context.Context, es []journal.Entry, key string, through uint64) error {
	w.giving.Lock()
	defer w.giving.Unlock()
	if w.ended != nil {
		return w.ended
	}
	wanted := slices.DeleteFunc(es, func(e journal.Entry) bool { return !w.s.wants(&e) || !w.s.Raw && !w.once.first(&e) })
	w.ended = w.page(ctx, Page{wanted, key, through})
	return w.ended
}

// folded gives what a head has folded after a move, and returns that head.
func (w *walk) folded(ctx context.Context, after uint64) (journal.Head, error) {
	for failed := 0; ; failed++ {
		head, _, err := journal.ReadHead(ctx, w.Store)
		if err == nil && !w.Partial && !w.begin.Covers(head.Lost) {
			err = ErrIncomplete
		}
		if err != nil {
			return head, err
		}
		if head.Number < after {
			return head, fmt.Errorf("%w: from %d to %d", journal.ErrHeadWentBack, after, head.Number)
		}
		was := after
		after, err = w.files(ctx, head, after)
		if err == nil {
			return head, nil
		}
		// A file that is gone was merged into another, which a later head names. Without progress in between,
		// the files are lost.
		if after > was {
			failed = 0
		}
		if w.ended != nil || !errors.Is(err, objstore.ErrNotFound) || failed == attempts {
			return head, err
		}
	}
}

// files gives the files of a head after a move, and returns the move through which that was done.
func (w *walk) files(ctx context.Context, head journal.Head, after uint64) (uint64, error) {
	return w.s.files(ctx, w.Store, head, after, func(es []journal.Entry, key string, through uint64) error {
		w.out.Files++
		return w.give(ctx, es, key, through)
	})
}

// files gives all entries of the files of a head after a move, and the move through which everything has been given with them.
func (s *Selection) files(ctx context.Context, g objstore.Getter, head journal.Head, after uint64, give func(es []journal.Entry, key string, through uint64) error) (uint64, error) {
	files, err := s.Files(ctx, g, head, after)
	if err != nil {
		return after, err
	}
	for i, f := range files {
		es, err := journal.ReadFile(ctx, g, f)
		if err != nil {
			return after, err
		}
		// Several files of one move stand beside each other, and the move is done with the last of them.
		through := head.Number
		if i+1 < len(files) {
			through = files[i+1].First - 1
		}
		if err := give(es, f.Key, through); err != nil {
			return after, err
		}
		after = max(after, through)
	}
	return head.Number, nil
}

// Folded calls page for each folded file after a move of the head, in the order of the moves, and gives the number of the last one. It
// proves nothing: the journal may lack batches, and what is not folded is not read. A batch with several entries may be given several
// times. An error of page ends the reading. Errors wrap journal.ErrHeadWentBack where after is beyond the head, or the store's.
func Folded(ctx context.Context, g objstore.Getter, s Selection, after uint64, page func(context.Context, Page) error) (uint64, error) {
	var ended error
	for failed := 0; ; failed++ {
		head, _, err := journal.ReadHead(ctx, g)
		if err == nil && head.Number < after {
			err = fmt.Errorf("%w: from %d to %d", journal.ErrHeadWentBack, after, head.Number)
		}
		was := after
		if err == nil {
			after, err = s.files(ctx, g, head, after, func(es []journal.Entry, key string, through uint64) error {
				ended = page(ctx, Page{slices.DeleteFunc(es, func(e journal.Entry) bool { return !s.wants(&e) }), key, through})
				return ended
			})
		}
		if err == nil {
			return after, nil
		}
		// As in a walk: a file that is gone was merged into another.
		if after > was {
			failed = 0
		}
		if ended != nil || !errors.Is(err, objstore.ErrNotFound) || failed == attempts {
			return after, fmt.Errorf("folded history of accepted batches: %w", err)
		}
	}
}

// rest gives what a head has not folded, and proves that nothing is missing.
func (w *walk) rest(ctx context.Context, head journal.Head) (journal.Polled, error) {
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: w.Store, Authority: w.Authority, From: head.Positions(), Skip: w.s.skips, Fan: w.Fan,
		Folded:  func(ctx context.Context, es []journal.Entry) error { return w.give(ctx, es, "", 0) },
		Segment: func(ctx context.Context, s *journal.Segment) error { return w.give(ctx, s.Entries, s.Key(), 0) },
	})
	if err != nil {
		return journal.Polled{}, err
	}
	return f.Poll(ctx)
}
