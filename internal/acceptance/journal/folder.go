package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// FolderConfig makes a Folder.
type FolderConfig struct {
	Store Store
	// Rand is the source of the ids in the keys of files: crypto/rand.Reader, except in tests.
	Rand io.Reader
	// Retention is how long segments stay after they were folded, and files after others took their
	// place, in nanoseconds. It spares slow readers a second reading, and has nothing to do with safety.
	Retention int64
	// MaxWaiting bounds the entries in memory that are not folded; 0 is 1,000,000.
	MaxWaiting int
	// Fan runs the deletes of a move; OneByOne when nil.
	Fan Fan
}

// Folder moves what segments have into few sorted files, and deletes the segments after their retention.
// Any number of folders may run: each move of the head is an If-Match, and who loses reads the head and
// goes on from there. Not for concurrent use.
//
// The order is what matters: first files are durable, then the head names them, then segments are
// deleted. So a reader that misses a segment finds it in the files of a head that it reads afterwards.
type Folder struct {
	cfg    FolderConfig
	bounds folderBounds

	loaded bool
	head   Head
	etag   string

	runs    map[RunID]*folding
	waiting int
	// folded are the positions of the heads that were read or written over the last retention, the oldest first:
	// what the first of them names has been folded for that long.
	folded []foldedAt
	// retired files are those that the head does not name, and since when.
	retired map[string]int64
}

// folding are the segments of a run that are read and not folded.
type folding struct {
	opening  *Opening
	segments map[uint64]*Segment
	// since is the number of the head with which it was last compared, and which did not name the run.
	since uint64
}

type foldedAt struct {
	at int64
	// number of the head, and its positions.
	number uint64
	runs   map[RunID]uint64
}

// folderBounds keep the head, its files and a move small. Only tests have others.
type folderBounds struct {
	// perMove bounds the entries of one move, and so its memory and its requests; perFile those of a file, and
	// deletes the segments that one move deletes.
	perMove, perFile, deletes int
	// filesListed bounds Files of a head: twice it, and the older half moves into a list.
	filesListed int
	// forgetAfter is after how many moves the head forgets a run that ended and whose segments are deleted. Where
	// it has more than so many runs it forgets them sooner: whoever read the journal before the move that ended
	// such a run then reads the files since.
	forgetAfter uint64
	runs        int
}

var defaultBounds = folderBounds{perMove: 10 * MaxFoldedEntries, perFile: MaxFoldedEntries, deletes: 100_000, filesListed: 512, forgetAfter: 1000, runs: 10_000}

const (
	defaultMaxWaiting = 1_000_000
	// mergeWidth files of about one size become one. Every entry is so written about as often as
	// the logarithm of MaxFoldedEntries to this base, when its files are small, and once when they are not.
	mergeWidth = 8
)

// ErrFolderFull: too much waits to be folded, because the head could not be moved for long.
var ErrFolderFull = errors.New("too many entries wait to be folded")

// NewFolder makes a folder; it makes no request.
func NewFolder(c FolderConfig) (*Folder, error) {
	if c.Store == nil || c.Rand == nil || c.Retention < 0 || c.MaxWaiting < 0 {
		return nil, errors.New("journal folder: a store, randomness and bounds that are not negative are needed")
	}
	if c.MaxWaiting == 0 {
		c.MaxWaiting = defaultMaxWaiting
	}
	if c.Fan == nil {
		c.Fan = OneByOne
	}
	return &Folder{cfg: c, bounds: defaultBounds, runs: map[RunID]*folding{}, retired: map[string]int64{}}, nil
}

// Load reads the head and returns its positions: a follower that starts there hands everything to
// Add that is not folded.
func (f *Folder) Load(ctx context.Context) (Positions, error) {
	head, etag, err := ReadHead(ctx, f.cfg.Store)
	if err != nil {
		return Positions{}, fmt.Errorf("fold the journal: %w", err)
	}
	if head.Number < f.head.Number {
		return Positions{}, fmt.Errorf("fold the journal: %w: from %d to %d", ErrHeadWentBack, f.head.Number, head.Number)
	}
	if err := f.dropForgotten(ctx, &head); err != nil {
		return Positions{}, fmt.Errorf("fold the journal: %w", err)
	}
	f.head, f.etag, f.loaded = head, etag, true
	f.drop()
	return head.Positions(), nil
}

// dropForgotten drops runs that other folders have folded to their end and that the head has forgotten since:
// they would be folded again, as runs that have begun and never end. The openings tell them from runs that
// nobody has folded yet.
func (f *Folder) dropForgotten(ctx context.Context, head *Head) error {
	for _, id := range slices.SortedFunc(maps.Keys(f.runs), RunID.Compare) {
		r := f.runs[id]
		if head.Run(id) != nil || head.Forgotten <= r.since {
			continue
		}
		_, _, err := f.cfg.Store.Get(ctx, layout.JournalSegment(id, 0), objstore.GetOptions{Limit: MaxFileBytes + headerBytes})
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			f.dropSegments(id, ^uint64(0))
		case err != nil && !objstore.Unreadable(err):
			return err
		}
		r.since = head.Number
	}
	return nil
}

// Head is the head that was last read or written.
func (f *Folder) Head() Head { return f.head }

// Waiting is how many entries wait to be folded.
func (f *Folder) Waiting() int { return f.waiting }

// Add takes a segment that a follower has read. Segments that are folded, or were added before, change nothing.
func (f *Folder) Add(s *Segment) error {
	if f.waiting+len(s.Entries) > f.cfg.MaxWaiting {
		return fmt.Errorf("%w: %d", ErrFolderFull, f.waiting)
	}
	if h := f.head.Run(s.Run); h != nil && (s.Segment < h.Folded || h.Ended > 0) {
		return nil
	}
	r := f.runs[s.Run]
	if r == nil {
		r = &folding{segments: map[uint64]*Segment{}, since: f.head.Number}
		f.runs[s.Run] = r
	}
	if s.Opening != nil {
		r.opening = s.Opening
	}
	if r.segments[s.Segment] == nil {
		r.segments[s.Segment] = s
		f.waiting += len(s.Entries)
	}
	return nil
}

// drop drops segments that the head has folded.
func (f *Folder) drop() {
	for id := range f.runs {
		if h := f.head.Run(id); h != nil && h.Ended > 0 {
			f.dropSegments(id, ^uint64(0))
		} else if h != nil {
			f.dropSegments(id, h.Folded)
		}
	}
}

// dropSegments drops those of a run before one.
func (f *Folder) dropSegments(id RunID, before uint64) {
	r := f.runs[id]
	for n, s := range r.segments {
		if n < before {
			f.waiting -= len(s.Entries)
			delete(r.segments, n)
		}
	}
	if len(r.segments) == 0 {
		delete(f.runs, id)
	}
}

// Fold makes one move of the head: what was added and follows on what is folded goes into files, and
// segments and files whose retention is over are deleted. now is any monotonic time in nanoseconds. It
// reports whether the head has moved; without anything to do it makes no request. After an error nothing
// is lost, and the next call begins with the head as it is then.
func (f *Folder) Fold(ctx context.Context, now int64) (moved bool, err error) {
	if !f.loaded {
		if _, err := f.Load(ctx); err != nil {
			return false, err
		}
	}
	if moved, err = f.move(ctx, now); err != nil {
		f.loaded = false // whatever happened, the head is read before the next move
		return false, fmt.Errorf("fold the journal: %w", err)
	}
	return moved, f.deleteRetired(ctx, now)
}

func (f *Folder) move(ctx context.Context, now int64) (bool, error) {
	next := f.head
	next.Number++
	next.Runs, next.Files, next.Lists = slices.Clone(f.head.Runs), slices.Clone(f.head.Files), slices.Clone(f.head.Lists)
	entries, folds := f.collect(&next)
	deleted, err := f.deleteSegments(ctx, &next, now)
	if err != nil {
		return false, err
	}
	if !folds && !deleted {
		return false, nil
	}
	next.forgetRuns(f.bounds.forgetAfter, f.bounds.runs)
	id, err := NewRunID(f.cfg.Rand)
	if err != nil {
		return false, err
	}
	w := fileWriter{store: f.cfg.Store, bounds: f.bounds, number: next.Number, id: id}
	files, err := w.write(ctx, entries, next.Number, next.Number)
	if err != nil {
		return false, err
	}
	next.Files = append(next.Files, files...)
	old, err := w.merge(ctx, &next)
	if err != nil {
		return false, err
	}
	if err := w.list(ctx, &next); err != nil {
		return false, err
	}
	if err := f.replace(ctx, next); err != nil {
		return false, err
	}
	for _, key := range old {
		f.retired[key] = now
	}
	f.drop()
	f.note(now)
	return true, nil
}

// collect takes what follows on the head's positions, and moves those of next.
func (f *Folder) collect(next *Head) (entries []Entry, folds bool) {
	for _, id := range slices.SortedFunc(maps.Keys(f.runs), RunID.Compare) {
		r := f.runs[id]
		h := next.Run(id)
		if h == nil {
			if r.opening == nil || r.segments[0] == nil {
				continue // of a run that the head has forgotten, or whose beginning comes later
			}
			at, _ := slices.BinarySearchFunc(next.Runs, id, func(x HeadRun, id RunID) int { return x.Run.Compare(id) })
			next.Runs = slices.Insert(next.Runs, at, HeadRun{Run: id, Writer: r.opening.Writer, Role: r.opening.Role})
			h = &next.Runs[at]
		}
		for s := r.segments[h.Folded]; s != nil && h.Ended == 0 && len(entries)+len(s.Entries) <= f.bounds.perMove; s = r.segments[h.Folded] {
			entries, folds = append(entries, s.Entries...), true
			h.Folded++
			if s.Ends() {
				h.Ended, h.Fenced = next.Number, s.Fenced
			}
		}
		if h.Folded == 0 {
			next.Runs = slices.DeleteFunc(next.Runs, func(x HeadRun) bool { return x.Run == id })
		}
	}
	return unique(entries), folds
}

// unique sorts entries and keeps one of each batch, one of each frame in quarantine, and one of each batch that is
// elsewhere: a batch that was answered several times stands in several segments. One that is elsewhere now may be of this
// region later, or have been before, so it never stands for the other.
func unique(entries []Entry) []Entry {
	slices.SortFunc(entries, func(a, b Entry) int { return a.Compare(&b) })
	type key struct {
		conflict, counts bool
		hash             [32]byte
	}
	seen := map[key]bool{}
	out := entries[:0]
	for i := range entries {
		e := &entries[i]
		if len(out) == 0 || out[len(out)-1].ID != e.ID {
			clear(seen)
		}
		k := key{conflict: e.Outcome.Conflict(), counts: e.Outcome.Counts()}
		if k.conflict {
			k.hash = e.SHA256
		}
		if !seen[k] {
			seen[k] = true
			out = append(out, *e)
		}
	}
	return out
}

// deleteSegments deletes what has been folded for the retention, and notes it in next. Fences stay: a
// writer that wakes up would create the segment after all, and answer from a run that nobody asks again.
func (f *Folder) deleteSegments(ctx context.Context, next *Head, now int64) (bool, error) {
	old := f.takeOld(now)
	var keys []string
	moved := false
	for i := range next.Runs {
		h := &next.Runs[i]
		for until := min(old[h.Run], h.Folded); h.Deleted < until && len(keys) < f.bounds.deletes; h.Deleted++ {
			if !h.Fenced || h.Deleted < h.Folded-1 {
				keys = append(keys, layout.JournalSegment(h.Run, h.Deleted))
			}
			moved = true
		}
	}
	return moved, f.cfg.Fan(ctx, len(keys), func(ctx context.Context, i int) error { return f.cfg.Store.Delete(ctx, keys[i]) })
}

// note remembers the head's positions.
func (f *Folder) note(now int64) {
	m := make(map[RunID]uint64, len(f.head.Runs))
	for _, r := range f.head.Runs {
		if r.Folded > r.Deleted {
			m[r.Run] = r.Folded
		}
	}
	f.folded = append(f.folded, foldedAt{now, f.head.Number, m})
}

// takeOld returns positions that were folded at least the retention ago. It notes heads that this folder
// has read and not moved: where it began, what another one has folded, and its own moves of unknown outcome,
// whose segments nobody would delete otherwise until there is something to fold.
func (f *Folder) takeOld(now int64) map[RunID]uint64 {
	if n := len(f.folded); n == 0 || f.folded[n-1].number < f.head.Number {
		f.note(now)
	}
	i := 0
	for i < len(f.folded) && now-f.folded[i].at >= f.cfg.Retention {
		i++
	}
	if i == 0 {
		return nil
	}
	out := f.folded[i-1].runs
	// The last one stays, because its deletes may have to be repeated.
	f.folded = slices.Delete(f.folded, 0, i-1)
	return out
}

// forgetRuns drops runs that ended and whose segments are deleted: all that ended by the move that was
// `after` moves ago, and more of the oldest ones where there are more than `most` runs.
func (h *Head) forgetRuns(after uint64, most int) {
	through := h.Number - min(after, h.Number)
	if over := len(h.Runs) - most; over > 0 {
		var ends []uint64
		for _, r := range h.Runs {
			if r.forgettable() {
				ends = append(ends, r.Ended)
			}
		}
		slices.Sort(ends)
		if over = min(over, len(ends)); over > 0 {
			through = max(through, ends[over-1])
		}
	}
	h.Runs = slices.DeleteFunc(h.Runs, func(r HeadRun) bool {
		if !r.forgettable() || r.Ended > through {
			return false
		}
		h.Forgotten = max(h.Forgotten, r.Ended)
		return true
	})
}

// forgettable: nothing of the run is left but what its files have, and the fence where it has one.
func (r *HeadRun) forgettable() bool { return r.Ended > 0 && r.Deleted == r.Folded }

// replace moves the head to next. Nil means that it stands there.
func (f *Folder) replace(ctx context.Context, next Head) error {
	etag, err := moveHead(ctx, f.cfg.Store, f.etag, next)
	if err == nil {
		f.head, f.etag = next, etag
	}
	return err
}

var headContent = objstore.PutOptions{ContentType: "application/json"}

// deleteRetired deletes files that no head has named for the retention.
func (f *Folder) deleteRetired(ctx context.Context, now int64) error {
	for _, key := range slices.Sorted(maps.Keys(f.retired)) {
		if now-f.retired[key] < f.cfg.Retention {
			continue
		}
		if err := f.cfg.Store.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete a folded file that nothing names: %w", err)
		}
		delete(f.retired, key)
	}
	return nil
}
