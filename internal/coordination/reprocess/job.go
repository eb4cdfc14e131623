package reprocess

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Store is what reprocessing needs of the object store.
type Store interface {
	journal.FollowerStore
	progress.Writer
}

// Handler is the work.Handler of reprocess requests. It runs one at a time.
type Handler struct {
	store     Store
	authority string
	shards    uint32
}

// NewHandler makes a handler over the bucket of an authority with so many shards.
func NewHandler(s Store, authority string, shards uint32) *Handler {
	return &Handler{s, authority, shards}
}

var _ work.Handler = (*Handler)(nil)

// Job reads a message. Any worker may run a request, so there is no fence; a request in the format of a newer
// release is left to workers of that release.
func (h *Handler) Job(_ context.Context, m work.Message) (work.Key, uint64, error) {
	k, _, err := parse(m.Body)
	if errors.Is(err, record.ErrNewerVersion) {
		return k, 0, fmt.Errorf("%w: %w", work.ErrElsewhere, err)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", work.ErrPoison, err)
	}
	return k, 0, err
}

// Run puts the positions of the shards back, so that their owners read the journal once more, and then counts what that
// is. An attempt that was killed in between is made again from its checkpoint; positions that are put back twice cost
// reading, and nothing else.
func (h *Handler) Run(ctx context.Context, j *work.Job) error {
	_, o, err := parse(j.Body())
	if err != nil {
		return fmt.Errorf("%w: %w", work.ErrPoison, err)
	}
	var last Progress
	if s := j.State(); len(s) > 0 {
		switch last, err = ParseProgress(s); {
		case errors.Is(err, record.ErrNewerVersion):
			return fmt.Errorf("checkpoint of %s: %w", j.Key(), err) // its worker was of that release
		case err != nil:
			return fmt.Errorf("%w: checkpoint of %s: %w", work.ErrPoison, j.Key(), err)
		}
	}
	// The count was complete, and only the row was not.
	if last.Done {
		return nil
	}
	if last.Shards == 0 {
		if last.Shards, err = h.putBack(ctx, o); err != nil {
			return err
		}
		if err := checkpoint(ctx, j, last); err != nil {
			return err
		}
	}
	last, err = h.count(ctx, o, last, func(p Progress) error { return checkpoint(ctx, j, p) })
	if err != nil {
		return err
	}
	last.Done = true
	return checkpoint(ctx, j, last)
}

// putBack moves the positions of the request's shards to before its batches, and returns how many shards those are. What
// a published block holds already changes nothing there: the owners compare each batch with the blocks of its hours.
func (h *Handler) putBack(ctx context.Context, o Request) (n uint64, err error) {
	head, _, err := journal.ReadHead(ctx, h.store)
	if err != nil {
		return 0, err
	}
	s := o.Selection()
	files, err := s.Files(ctx, h.store, head, 0)
	if err != nil {
		return 0, err
	}
	// A file that is not read has moves up to this one. Runs are left out, so that all that are open are read.
	before := journal.Positions{Head: head.Number}
	for _, f := range files {
		before.Head = min(before.Head, f.First-1)
	}
	for id := range shard.ID(h.shards) {
		if o.Agent != "" && shard.Of(o.Agent, h.shards) != id {
			continue
		}
		if err := h.putShardBack(ctx, id, before); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// maxWrites bounds the attempts at one record, which its owner writes as well.
const maxWrites = 10

func (h *Handler) putShardBack(ctx context.Context, id shard.ID, before journal.Positions) (err error) {
	for range maxWrites {
		p, etag, rerr := progress.Read(ctx, h.store, h.authority, id, h.shards)
		if errors.Is(rerr, objstore.ErrNotFound) {
			return nil // its owner has read nothing, or nobody owns it yet
		}
		if rerr != nil {
			return rerr
		}
		p.Positions = journal.Earliest(p.Positions, before)
		if _, err = p.Write(ctx, h.store, etag); err == nil {
			return nil
		}
		if !errors.Is(err, objstore.ErrPreconditionFailed) {
			return err
		}
	}
	return err
}

func checkpoint(ctx context.Context, j *work.Job, p Progress) error {
	return j.Checkpoint(ctx, ProgressKind.Marshal(p))
}

// dirty is an hour of a shard.
type dirty struct {
	shard shard.ID
	hour  timegrid.Hour
}

// maxHours of one batch are counted one by one.
const maxHours = 48

// count counts the batches of a request and the hours that they lie in, file by file, from p on.
func (h *Handler) count(ctx context.Context, o Request, p Progress, save func(Progress) error) (Progress, error) {
	r := history.Reader{Store: h.store, Authority: h.authority}
	_, err := r.Read(ctx, o.Selection(), p.Through, func(_ context.Context, page history.Page) error {
		hours := map[dirty]struct{}{}
		for i := range page.Entries {
			e := page.Entries[i].Batch()
			id := shard.Of(e.Agent, h.shards)
			first, last := e.Hours()
			// The last hour always counts, also when the hours between are too many.
			hours[dirty{id, last}] = struct{}{}
			for at := first; at < last && at < first+maxHours; at++ {
				hours[dirty{id, at}] = struct{}{}
			}
		}
		p.Batches, p.Hours = p.Batches+uint64(len(page.Entries)), p.Hours+uint64(len(hours))
		if page.Through == 0 {
			return nil // the next attempt would count it again, so it is noted together with the end
		}
		p.Through = page.Through
		return save(p)
	})
	return p, err
}

// Count counts what a request is about, and changes nothing.
func (h *Handler) Count(ctx context.Context, o Request) (Progress, error) {
	return h.count(ctx, o, Progress{}, func(Progress) error { return nil })
}

// Progress says how far a request came. It is the checkpoint of its job, and in the end its result.
type Progress struct {
	// Shards whose positions were put back; 0: not yet.
	Shards uint64 `json:"shards"`
	// Through is the move of the journal's head through which the batches are counted.
	Through uint64 `json:"through"`
	Batches uint64 `json:"batches"`
	// Hours counts the hours of shards that the batches lie in, file by file.
	Hours uint64 `json:"hours"`
	// Done: everything was counted. It stays false for a request that was cancelled.
	Done bool `json:"done,omitempty"`
}

// ParseProgress reads a checkpoint, or the result that the log of a request keeps. Errors wrap
// record.ErrCorrupt or record.ErrNewerVersion.
func ParseProgress(b []byte) (Progress, error) {
	var p Progress
	err := ProgressKind.Unmarshal(b, &p)
	return p, err
}
