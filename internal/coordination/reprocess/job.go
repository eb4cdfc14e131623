package reprocess

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Handler is the work.Handler of reprocess requests. It runs one at a time.
type Handler struct {
	walker Walker
	writer *intake.Writer
	shards uint32
}

// NewHandler makes a handler over the bucket of shards; run names the intake segments of
// this process, in lower-case hex. page is as in Walker.
func NewHandler(s objstore.Store, run string, shards uint32, page int) *Handler {
	return &Handler{Walker{s, page}, intake.NewWriter(s, run, shards), shards}
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

// Run continues the walk from the checkpoint. A page that was written without its checkpoint is written again, which
// costs a segment with batches that the owners of the shards know already.
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
	// The walk was complete, and only the row was not: nothing is written twice.
	if last.Done {
		return nil
	}
	err = h.walker.Walk(ctx, o, last, func(p Progress, batches []accept.Manifest) error {
		segments, hours, err := h.writeIntake(ctx, batches)
		if err != nil {
			return err
		}
		p.Segments, p.Hours = last.Segments+segments, last.Hours+hours
		// Before the checkpoint: if that fails, Run ends with its error, and the next attempt begins from what is
		// stored.
		last = p
		return checkpoint(ctx, j, p)
	})
	if err != nil {
		return err
	}
	last.Done = true
	return checkpoint(ctx, j, last)
}

func checkpoint(ctx context.Context, j *work.Job, p Progress) error {
	return j.Checkpoint(ctx, ProgressKind.Marshal(p))
}

// dirty is an hour of a shard.
type dirty struct {
	shard shard.ID
	hour  timegrid.Hour
}

// groupByShard returns the entries of the batches by shard, and the hours of each shard that they have samples in. Of
// a batch with very many hours only the first maxHours and the last count.
func (h *Handler) groupByShard(batches []accept.Manifest) (map[shard.ID][]accepted.Batch, map[dirty]struct{}) {
	entries, hours := map[shard.ID][]accepted.Batch{}, map[dirty]struct{}{}
	for _, m := range batches {
		e := m.Batch()
		id := shard.Of(e.Agent, h.shards)
		entries[id] = append(entries[id], e)
		first, last := e.Hours()
		// The last hour always counts, also when the hours between are too many.
		hours[dirty{id, last}] = struct{}{}
		for at := first; at < last && at < first+maxHours; at++ {
			hours[dirty{id, at}] = struct{}{}
		}
	}
	return entries, hours
}

// maxHours of one batch are counted one by one.
const maxHours = 48

// writeIntake writes the batches into the intake of their shards, where the owners find them.
func (h *Handler) writeIntake(ctx context.Context, batches []accept.Manifest) (segments, hours uint64, err error) {
	entries, dirtied := h.groupByShard(batches)
	for _, id := range sortedShards(entries) {
		// A segment has a bound; a page with many batches of one shard takes several.
		for part := range slices.Chunk(entries[id], intake.MaxEntries) {
			if err := h.writer.Write(ctx, id, part); err != nil {
				return 0, 0, err
			}
			segments++
		}
	}
	return segments, uint64(len(dirtied)), nil
}

func sortedShards(m map[shard.ID][]accepted.Batch) []shard.ID {
	ids := make([]shard.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Count walks a request without writing, and returns what Run would do.
func (h *Handler) Count(ctx context.Context, o Request) (Progress, error) {
	var last Progress
	err := h.walker.Walk(ctx, o, last, func(p Progress, batches []accept.Manifest) error {
		entries, hours := h.groupByShard(batches)
		p.Segments, p.Hours = last.Segments, last.Hours+uint64(len(hours))
		for _, es := range entries {
			p.Segments += uint64((len(es) + intake.MaxEntries - 1) / intake.MaxEntries)
		}
		last = p
		return nil
	})
	return last, err
}
