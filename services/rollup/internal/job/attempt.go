package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
)

// noteBytes of frames, and more, are worth a note of who makes an hour of them: smaller hours
// kill no worker, and there are many of them.
const noteBytes = 1 << 20

// noteTimeout bounds the delete of a note when the job was stopped.
const noteTimeout = 10 * time.Second

// attempts are notes in the bucket of who makes an hour. A worker that is killed, by its memory
// most likely, can't say so; its note tells the next one.
type attempts struct {
	store   objstore.Store
	log     *slog.Logger
	process string // random name of this process
	now     func() time.Time
}

// begin notes that this process makes the generation. died: another process began it and did
// not live to say how that ended.
func (a attempts) begin(ctx context.Context, s *Shard, p *hour.Plan) (died bool, err error) {
	var n uint64
	for i := range p.Inputs {
		n += p.Inputs[i].FrameBytes
	}
	if n < noteBytes {
		return false, nil
	}
	key := layout.RollupAttempt(p.Hour, p.Shard)
	b, _, err := a.store.Get(ctx, key, objstore.GetOptions{Limit: int64(catalog.AttemptKind.MaxBytes)})
	if err == nil {
		var was catalog.Attempt
		was, err = catalog.ParseAttempt(key, b)
		// A note of this process is of an attempt whose end could not delete it, and no death. One of
		// another generation is of a job that ended somehow: this generation comes after it.
		died = err == nil && was.AuthorityID == p.AuthorityID && was.Generation == p.Generation && was.By != a.process
	}
	if err != nil && !errors.Is(err, objstore.ErrNotFound) && !record.Unreadable(err) {
		return false, fmt.Errorf("read %q: %w", key, err)
	}
	// A note that can't be read is replaced: it only ever costs a few parts more or less.
	note := catalog.Attempt{AuthorityID: p.AuthorityID, Shard: p.Shard, Hour: p.Hour, Generation: p.Generation, By: a.process, At: a.now().UnixNano()}
	if _, err := a.store.Put(ctx, key, note.Marshal(), objstore.PutOptions{ContentType: "application/json"}); err != nil {
		return false, fmt.Errorf("put %q: %w", key, err)
	}
	s.Notes[key] = struct{}{}
	return died, nil
}

// end takes the note back, whether the job was done, failed or was stopped.
func (a attempts) end(ctx context.Context, s *Shard, h timegrid.Hour) {
	key := layout.RollupAttempt(h, s.Shard)
	if _, ok := s.Notes[key]; !ok {
		return
	}
	// A note that stays is taken for a death by other processes. That costs them parts, so it is
	// taken back also when the job's context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if err := a.store.Delete(ctx, key); err != nil {
		// The note of this process' next attempt replaces it.
		a.log.Warn("the note of a job that ended can't be deleted", "key", key, "error", err)
		return
	}
	delete(s.Notes, key)
}
