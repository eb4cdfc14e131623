package owner

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

const (
	// markEvery is the time between two marks that are kept, and maxMarks bounds them.
	markEvery = time.Minute
	maxMarks  = 120
	// saveSoon is the least time between two records of one shard, and saveEvery the time after which one is written
	// although nothing was published: readers of all shards begin at the positions of the one that is furthest behind.
	saveSoon, saveEvery = time.Minute, time.Hour
	// checkEvery is how often it is asked whether somebody else has written the record.
	checkEvery = time.Minute
)

// keeper reads and writes the record of a shard's progress. It knows positions through which everything had been taken
// at some time, and writes the newest ones of which few enough batches are still pending.
type keeper struct {
	ownership.Grant
	store   objstore.Store
	records hour.Records
	metrics *metrics.Metrics
	log     *slog.Logger

	loaded bool              // since the last write that failed, or that may have been somebody else's
	known  bool              // the record was read, or found missing
	record progress.Progress // that is in the store; without one it is at nothing
	etag   string            // "": there is none
	sent   []byte            // that was read or written last, and may be the one in the store

	marks     []position // the oldest first
	begun     bool       // the journal is complete
	savedAt   time.Time
	checkedAt time.Time
	published bool // since savedAt
}

// position is one through which everything had been taken when mark was set.
type position struct {
	mark uint64
	at   journal.Positions
	time time.Time
}

// load reads the record unless it is known, and asks from time to time whether it is still the same. changed: it is
// another one than this keeper wrote.
func (k *keeper) load(ctx context.Context, now time.Time) (changed bool, err error) {
	if k.loaded && now.Sub(k.checkedAt) >= checkEvery {
		info, err := k.store.Head(ctx, layout.RollupProgress(k.Shard))
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return false, err
		}
		// lmctl reprocess puts the positions back, and a former owner's write may come late.
		if err == nil && info.ETag != k.etag || err != nil && k.etag != "" {
			k.loaded = false
		}
		k.checkedAt = now
	}
	if k.loaded {
		return false, nil
	}
	p, etag, err := progress.Read(ctx, k.store, k.records.AuthorityID, k.Shard, k.records.Shards)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		p = progress.Progress{}
	case errors.Is(err, record.ErrCorrupt):
		k.log.Error("the record of the shard's progress can't be read; the whole journal is read, and the record replaced", "shard", k.Shard, "error", err)
		p = progress.Progress{}
	case err != nil:
		return false, err
	}
	same := k.known && etag == k.etag // a write was not applied, or not yet
	k.loaded, k.known, k.checkedAt, k.etag = true, true, now, etag
	if same {
		return false, nil
	}
	k.record = p
	var b []byte
	if etag != "" {
		b, _ = p.Marshal() // an invalid one is replaced
	}
	if b != nil && bytes.Equal(b, k.sent) {
		return false, nil // it was, and the answer was lost
	}
	k.sent, k.savedAt = b, now
	k.forgetMarks()
	return true, nil
}

// mark notes positions through which everything is taken.
func (k *keeper) mark(mark uint64, at journal.Positions, now time.Time) {
	m := position{mark, at, now}
	// The newest one is replaced while the one before it is young.
	if n := len(k.marks); n > 1 && now.Sub(k.marks[n-2].time) < markEvery && !now.Before(k.marks[n-2].time) {
		k.marks[n-1] = m
		return
	}
	if k.marks = append(k.marks, m); len(k.marks) > maxMarks {
		// Every other one, so that old positions stay for a shard that has much pending.
		kept := k.marks[:0]
		for i := range k.marks {
			if i%2 == 0 || i == len(k.marks)-1 {
				kept = append(kept, k.marks[i])
			}
		}
		k.marks = kept
	}
}

func (k *keeper) forgetMarks() { k.marks = nil }

// save writes the newest positions of which few enough batches are pending, when it is time; calm: there is nothing
// more to do at once; last: at the end of the ownership.
func (k *keeper) save(ctx context.Context, pending func(mark uint64) ([]accepted.Batch, bool), now time.Time, calm, last bool) error {
	defer func() {
		k.metrics.ProgressAge.WithLabelValues(k.Shard.String()).Set(max(now.Sub(k.savedAt), 0).Seconds())
	}()
	since := now.Sub(k.savedAt)
	if !k.loaded || len(k.marks) == 0 || !last && k.etag != "" && since < saveEvery && (!k.published || !calm || since < saveSoon) {
		return nil
	}
	if !k.begun {
		begun, err := journal.IsComplete(ctx, k.store)
		if err != nil || !begun {
			return err // what was accepted before the journal is in no position
		}
		k.begun = true
	}
	for i := len(k.marks) - 1; i >= 0; i-- {
		batches, ok := pending(k.marks[i].mark)
		if !ok {
			continue
		}
		at := k.marks[i]
		k.marks = k.marks[i:]
		return k.write(ctx, at.at, batches, now)
	}
	return nil
}

// write writes the record, unless it is what is there.
func (k *keeper) write(ctx context.Context, at journal.Positions, pending []accepted.Batch, now time.Time) error {
	p := progress.Progress{AuthorityID: k.records.AuthorityID, Shard: k.Shard, Shards: k.records.Shards, Fence: k.Fence, Positions: at, Pending: pending}
	b, err := p.Marshal()
	if err != nil {
		return err
	}
	if k.etag != "" && bytes.Equal(b, k.sent) {
		k.savedAt, k.published = now, false
		return nil
	}
	k.sent = b
	etag, err := p.Write(ctx, k.store, k.etag)
	if errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrExists) {
		// Another owner's, or an operator has put the positions back. Reading it tells.
		k.loaded = false
		k.metrics.ProgressWrites.WithLabelValues("refused").Inc()
		k.log.Info("another record of the shard's progress is there", "shard", k.Shard)
		return nil
	}
	if err != nil {
		// It may have been written: reading it tells.
		k.loaded = false
		k.metrics.ProgressWrites.WithLabelValues("failed").Inc()
		return err
	}
	k.metrics.ProgressWrites.WithLabelValues("ok").Inc()
	k.record, k.etag, k.savedAt, k.published = p, etag, now, false
	return nil
}

func (k *keeper) clockWentBack(now time.Time) {
	k.checkedAt = time.Time{}
	if k.savedAt.After(now) {
		k.savedAt = now
	}
	for i := range k.marks {
		if k.marks[i].time.After(now) {
			k.marks[i].time = now
		}
	}
}
