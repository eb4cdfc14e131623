// Package scrub divides the check of all frames into chunks of the journal's folded files, which reconcilers share. One record, moved
// by If-Match, says how far a pass is and who works on which chunk; so a restart goes on where the last process was,
// and two reconcilers check different frames.
//
// Leases, by the store's clock, only save work: a chunk that two processes check is checked twice. The package is
// deterministic: no goroutines, no clock.
package scrub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Kind is the kind of the record.
var Kind = record.Kind{Schema: "lightmetrics.scrub.v1", Title: "record of the scrub", MaxBytes: 64 << 10}

// Record is how far the scrub is.
type Record struct {
	// Pass counts the passes over everything, from 1; BeganAt is when this one began, by the store's clock, Unix seconds.
	Pass    uint64 `json:"pass"`
	BeganAt int64  `json:"began_at_unix_s"`
	// Through: what moves of the journal's head up to this one have folded was given to somebody.
	Through uint64 `json:"through"`
	// Checked frames of finished chunks in this pass.
	Checked uint64 `json:"checked"`
	// Chunks that are not finished, in the order of their moves.
	Chunks []Chunk `json:"chunks"`
	// EndedAt is when everything that was folded when the pass began had been checked; 0 before that.
	EndedAt int64 `json:"ended_at_unix_s,omitempty"`
	// Bytes of frames that were hashed, and Suspects that were found, by finished chunks in this pass.
	Bytes    uint64 `json:"bytes,omitempty"`
	Suspects uint64 `json:"suspects,omitempty"`
	// Last is the pass before this one.
	Last *Pass `json:"last,omitempty"`
}

// Pass is what a pass did that has ended.
type Pass struct {
	Pass     uint64 `json:"pass"`
	BeganAt  int64  `json:"began_at_unix_s"`
	EndedAt  int64  `json:"ended_at_unix_s"`
	Checked  uint64 `json:"checked"`
	Bytes    uint64 `json:"bytes"`
	Suspects uint64 `json:"suspects"`
}

// VerifiedSince is the begin of the last pass that has ended, Unix seconds: since then every frame was checked that had been
// folded before. Of a first pass that goes on it is that one's begin, as the acceptance has verified everything before.
func (r *Record) VerifiedSince() int64 {
	if r.EndedAt == 0 && r.Last != nil {
		return r.Last.BeganAt
	}
	return r.BeganAt
}

// Due is when the pass, or the next one if it has ended, is to be over or to begin; period is the time between two begins.
func (r *Record) Due(period time.Duration) time.Time {
	return time.Unix(r.BeganAt, 0).Add(period)
}

// Progress counts with the chunks that are under way.
func (r *Record) Progress() (checked, bytes, suspects uint64) {
	checked, bytes, suspects = r.Checked, r.Bytes, r.Suspects
	for _, c := range r.Chunks {
		checked, bytes, suspects = checked+c.Done, bytes+c.Bytes, suspects+c.Suspects
	}
	return checked, bytes, suspects
}

// Chunk is what one process checks: the entries of moves First to Last.
type Chunk struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Done entries of the files were checked, while the first file is the one with this key.
	Done uint64 `json:"done"`
	Key  string `json:"key"`
	// By is the reconciler, Claim the random id of its process, and At when it last moved the chunk, Unix seconds.
	By    string `json:"by"`
	Claim string `json:"claim"`
	At    int64  `json:"at_unix_s"`
	// Bytes of frames that were hashed for Done, and Suspects among them.
	Bytes    uint64 `json:"bytes,omitempty"`
	Suspects uint64 `json:"suspects,omitempty"`
}

const (
	// maxChunks bounds the chunks under way, and so the processes that work at once.
	maxChunks = 64
	// chunkEntries is from how many entries on a chunk takes no further file.
	chunkEntries = 200_000
	// maxMoves bounds how often an update is tried that others have overtaken.
	maxMoves = 10
)

// Marshal writes the canonical JSON.
func (r Record) Marshal() []byte {
	if r.Chunks == nil {
		r.Chunks = []Chunk{}
	}
	return Kind.Marshal(r)
}

// ParseRecord reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRecord(b []byte) (Record, error) {
	var r Record
	err := Kind.Unmarshal(b, &r)
	if err == nil && (r.Pass == 0 || len(r.Chunks) > maxChunks) {
		err = fmt.Errorf("pass %d with %d chunks", r.Pass, len(r.Chunks))
	}
	for i, c := range r.Chunks {
		if err == nil && (c.First > c.Last || c.Last > r.Through || i > 0 && r.Chunks[i-1].Last >= c.First) {
			err = fmt.Errorf("a chunk of moves %d to %d, through %d", c.First, c.Last, r.Through)
		}
	}
	return r, Kind.Wrap(layout.ScrubKey, err)
}

// Store is what a Cursor needs of the store.
type Store interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}

// Cursor is one process's hold on the record. Not for concurrent use.
type Cursor struct {
	Store Store
	// By names the reconciler, and Claim is the random id of this process.
	By, Claim string
	// Lease is after how long a chunk that is not moved is taken from its process.
	Lease time.Duration
	// Period is the time from the begin of a pass to that of the next.
	Period time.Duration
}

// Job is a chunk that this process has.
type Job struct {
	Chunk
	// Files that have its entries, and perhaps others; the first Done entries of them were checked.
	Files []journal.FoldedFile
}

// ErrTakenOver: another process has the chunk.
var ErrTakenOver = errors.New("another reconciler checks this part")

// errNothing: there is nothing to do now.
var errNothing = errors.New("nothing to check")

// Next takes a chunk: of this process, of one that is gone, or the next of the pass; when a pass has ended and its period is
// over, the first of the next one. ok is false where there is none, and r says why.
func (c *Cursor) Next(ctx context.Context, now time.Time, head *journal.Head) (job Job, r Record, ok bool, err error) {
	r, err = c.update(ctx, func(r *Record) error {
		ok = true
		if r.Pass == 0 {
			*r = Record{Pass: 1, BeganAt: now.Unix()}
		}
		for i := range r.Chunks {
			if k := &r.Chunks[i]; k.Claim == c.Claim || now.Sub(time.Unix(k.At, 0)) >= c.Lease {
				files, err := head.FilesAfter(ctx, c.Store, k.First-1)
				if err != nil {
					return err
				}
				files = slices.DeleteFunc(files, func(f journal.FoldedFile) bool { return f.First > k.Last })
				// Files that were merged meanwhile have their entries in another order.
				if len(files) > 0 && files[0].Key != k.Key {
					k.Done, k.Bytes, k.Suspects, k.Key = 0, 0, 0, files[0].Key
				}
				k.By, k.Claim, k.At = c.By, c.Claim, now.Unix()
				job = Job{Chunk: *k, Files: files}
				return nil
			}
		}
		files, err := head.FilesAfter(ctx, c.Store, r.Through)
		if err == nil && len(files) == 0 && len(r.Chunks) == 0 && now.Sub(time.Unix(r.BeganAt, 0)) >= c.Period {
			last := &Pass{Pass: r.Pass, BeganAt: r.BeganAt, EndedAt: r.EndedAt, Checked: r.Checked, Bytes: r.Bytes, Suspects: r.Suspects}
			if last.EndedAt == 0 {
				last.EndedAt = now.Unix()
			}
			*r = Record{Pass: r.Pass + 1, BeganAt: now.Unix(), Last: last}
			files, err = head.FilesAfter(ctx, c.Store, 0)
		}
		if err != nil {
			return err
		}
		if len(files) == 0 && len(r.Chunks) == 0 && r.EndedAt == 0 {
			r.EndedAt, ok = now.Unix(), false
			return nil
		}
		if files = firstFiles(files); len(files) == 0 || len(r.Chunks) >= maxChunks {
			return errNothing
		}
		k := Chunk{First: r.Through + 1, Key: files[0].Key, By: c.By, Claim: c.Claim, At: now.Unix()}
		for _, f := range files {
			k.Last = max(k.Last, f.Last)
		}
		r.Through, r.Chunks = k.Last, append(r.Chunks, k)
		job = Job{Chunk: k, Files: files}
		return nil
	})
	if errors.Is(err, errNothing) {
		return Job{}, r, false, nil
	}
	return job, r, ok && err == nil, err
}

// firstFiles are the first ones with enough entries, and those that share moves with them.
func firstFiles(files []journal.FoldedFile) []journal.FoldedFile {
	last, entries := uint64(0), uint64(0)
	for i, f := range files {
		if entries >= chunkEntries && f.First > last {
			return files[:i]
		}
		last, entries = max(last, f.Last), entries+f.Entries
	}
	return files
}

// Move notes how many entries of the job were checked, and that this process lives. release gives the chunk to
// whoever comes next.
func (c *Cursor) Move(ctx context.Context, now time.Time, j *Job, release bool) error {
	_, err := c.update(ctx, func(r *Record) error {
		i, err := c.find(r, j)
		if err == nil {
			r.Chunks[i].Done, r.Chunks[i].At = j.Done, now.Unix()
			r.Chunks[i].Bytes, r.Chunks[i].Suspects = j.Bytes, j.Suspects
			if release {
				r.Chunks[i].At = 0
			}
		}
		return err
	})
	return err
}

// Finish notes that all entries of the job were checked.
func (c *Cursor) Finish(ctx context.Context, j *Job) error {
	_, err := c.update(ctx, func(r *Record) error {
		i, err := c.find(r, j)
		if err == nil {
			r.Checked, r.Bytes, r.Suspects = r.Checked+j.Done, r.Bytes+j.Bytes, r.Suspects+j.Suspects
			r.Chunks = slices.Delete(r.Chunks, i, i+1)
		}
		return err
	})
	return err
}

func (c *Cursor) find(r *Record, j *Job) (int, error) {
	i := slices.IndexFunc(r.Chunks, func(k Chunk) bool { return k.First == j.First && k.Claim == c.Claim })
	if i < 0 {
		return 0, ErrTakenOver
	}
	return i, nil
}

// update moves the record with If-Match. fn may be called several times; its error ends the update, and
// nothing is written. A record that can't be read begins the scrub from its beginning.
func (c *Cursor) update(ctx context.Context, fn func(*Record) error) (Record, error) {
	for range maxMoves {
		r, info, err := record.Read(ctx, c.Store, layout.ScrubKey, Kind, ParseRecord)
		absent := errors.Is(err, objstore.ErrNotFound)
		if err != nil && !absent && !errors.Is(err, record.ErrCorrupt) {
			return r, fmt.Errorf("scrub: %w", err)
		}
		if err != nil {
			r = Record{}
		}
		if err := fn(&r); err != nil {
			return r, err
		}
		o := objstore.PutOptions{ContentType: "application/json"}
		if absent {
			_, err = c.Store.Create(ctx, layout.ScrubKey, r.Marshal(), o)
		} else {
			_, err = c.Store.Replace(ctx, layout.ScrubKey, r.Marshal(), info.ETag, o)
		}
		switch {
		case err == nil:
			return r, nil
		case errors.Is(err, objstore.ErrExists), errors.Is(err, objstore.ErrPreconditionFailed), errors.Is(err, objstore.ErrConflict), errors.Is(err, objstore.ErrUnknown):
			// It was another one's move, or this one's whose answer was lost: fn decides on what stands there.
		default:
			return r, fmt.Errorf("scrub: %w", err)
		}
	}
	return Record{}, fmt.Errorf("scrub: %w: the record moved %d times meanwhile", objstore.ErrUnavailable, maxMoves)
}
