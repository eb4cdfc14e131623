package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// apply updates the index with the records of ops, which are durable in the log, and advances
// the head to next. The entries and the position go into one batch of the index: after a crash
// the index is at some batch boundary, and replay continues there.
func (e *Engine) apply(v *overlay, ops []*op, next checkpoint) error {
	failpoint.Hit("objectstore.index.apply.before")
	b := e.idx.db.NewBatch()
	defer b.Close()
	delta, sums := map[uint64]int64{}, e.sums.reset(e.idx)
	var buckets map[string]Bucket
	set := func(k, v []byte) error { return b.Set(k, v, nil) }
	records := &applier{e: e, b: b, v: v, owned: ownedFiles(ops), next: &next, delta: delta, sums: sums}
	for _, o := range ops {
		var err error
		if o.rec.kind == kindBuckets {
			if buckets, err = decodeBuckets(o.rec.body); err == nil {
				err = set([]byte{spaceBuckets}, o.rec.body)
			}
		} else if o.rec.kind == kindDamages {
			err = e.applyDeclaration(b, o.rec.body)
		} else {
			err = records.object(o)
		}
		if err != nil {
			return fmt.Errorf("update index: %w", err)
		}
	}
	if err := e.applyVersions(b, v, ops, &next); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	e.mu.Lock()
	delta[next.pos.seg] += 0 // writes the entry of a new segment even when no object changed
	for _, o := range ops {  // all of them are in one segment
		if o.rec.kind == kindDelete {
			e.tombs[next.pos.seg] += o.rec.size()
		}
	}
	for seg, d := range delta {
		e.live[seg] += d
		u := use{live: e.live[seg], tombs: e.tombs[seg]}
		if s := e.segments[seg]; s != nil {
			u.salt, u.firstSeq = s.salt, s.firstSeq
		}
		if err := set(segmentKey(seg), u.encode()); err != nil {
			e.mu.Unlock()
			return fmt.Errorf("update index: %w", err)
		}
	}
	err := e.applyTally(b, sums)
	e.mu.Unlock()
	if err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	if err := set([]byte{spaceCheckpoint}, next.encode()); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	for _, o := range ops {
		if o.then != nil {
			e.completed.add(&o.obj)
		}
	}
	e.idx.unflushed.Add(int64(b.Len()))
	// No sync: the index has no log of its own, the segments are its log. A lost tail of the
	// index costs a replay at the next open.
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("update index: %w", err)
	}
	failpoint.Hit("objectstore.index.apply.after")
	e.sinceSync += max(0, next.pos.off-e.head.pos.off)
	e.head = next
	e.storeCounts()
	e.counts.batches.Add(1)
	e.counts.records.Add(int64(len(ops)))
	e.mu.Lock()
	if buckets != nil {
		e.buckets = buckets
	}
	e.end, e.endSeq = next.pos, next.nextSeq
	// Wakes the cursors that wait at the end of the log; each takes the new channel next.
	close(e.changed)
	e.changed = make(chan struct{})
	e.mu.Unlock()
	// Bounds the replay of the next open. An index that fails already is not asked again.
	if e.sinceSync >= flushEvery && e.idx.healthy() == nil {
		e.sinceSync = 0
		if _, err := e.idx.db.AsyncFlush(); err != nil {
			return fmt.Errorf("flush index: %w", err)
		}
	}
	return nil
}

func (e *Engine) storeCounts() {
	e.counts.objects.Store(e.head.objects)
	e.counts.bytes.Store(e.head.bytes)
	e.counts.hidden.Store(e.head.hidden)
	e.counts.hiddenBytes.Store(e.head.hiddenBytes)
}

// ownedFiles gives the files of the completed objects among ops; nil for none.
func ownedFiles(ops []*op) (owned map[string]bool) {
	for _, o := range ops {
		if o.obj.Upload == "" {
			continue
		}
		if owned == nil {
			owned = map[string]bool{}
		}
		for _, x := range o.obj.Extents {
			owned[x.File] = true
		}
	}
	return owned
}

// ownerOf is the index's value for the files of an object.
func ownerOf(o *Object) []byte {
	if o.Upload == "" {
		return nil
	}
	return []byte(fileOfObject)
}

// isFileOfObject reports whether a completed object names a file.
func (x *index) isFileOfObject(file string) bool {
	mine := false
	err := x.get(spaceKey(spaceFile, file), func(v []byte) error {
		mine = string(v) == fileOfObject
		return nil
	})
	// A file is rather left behind than removed while the index cannot say whose it is.
	return mine || err != nil && !errors.Is(err, ErrNotFound)
}

// applier brings the records of one batch into a batch of the index.
type applier struct {
	e *Engine
	b *pebble.Batch
	v *overlay
	// owned are files that came to a completed object in this very batch, which the index does not show yet.
	owned map[string]bool
	next  *checkpoint
	delta map[uint64]int64 // of live bytes, by segment
	sums  *tally
}

// object puts or removes one record.
func (a *applier) object(o *op) error {
	if err := a.nameFiles(o); err != nil {
		return err
	}
	if o.prev != nil {
		if err := a.replace(o); err != nil {
			return err
		}
	}
	if o.entry != nil {
		if err := a.count(o, o.entry, 1); err != nil {
			return err
		}
	}
	key := objectKey(o.rec.bucket, o.rec.key)
	switch {
	case a.versioned(o) && !isHidden(o.rec.key): // applyCurrent knows where the null version belongs
		return nil
	case o.entry == nil:
		return a.b.Delete(key, nil)
	}
	return a.b.Set(key, o.entry.encode(make([]byte, 0, 128)), nil)
}

func (a *applier) versioned(o *op) bool {
	return !isInternal(o.rec.key) && a.v.versioned(o.rec.bucket)
}

// isOfObject reports whether a file of a record belongs to a completed object: the record is a part that reclaiming has moved.
func (a *applier) isOfObject(o *op, file string) bool {
	return isInternal(o.rec.key) && (a.owned[file] || a.e.idx.isFileOfObject(file))
}

// nameFiles enters the files of the new record.
func (a *applier) nameFiles(o *op) error {
	for _, x := range o.obj.Extents {
		if a.isOfObject(o, x.File) {
			continue
		}
		if err := a.b.Set(spaceKey(spaceFile, x.File), ownerOf(&o.obj), nil); err != nil {
			return err
		}
	}
	return nil
}

// count adds what an entry has to what is counted, or takes it off where sign is -1.
func (a *applier) count(o *op, x *entry, sign int64) error {
	a.delta[x.pos.seg] += sign * x.recordSize()
	if a.versioned(o) { // the current ones are counted by applyCurrent
		a.next.hidden, a.next.hiddenBytes = a.next.hidden+sign, a.next.hiddenBytes+sign*x.size
	} else if !isInternal(o.rec.key) {
		a.next.objects, a.next.bytes = a.next.objects+sign, a.next.bytes+sign*x.size
	}
	return a.sums.count(o.rec.bucket, o.rec.key, x, sign)
}

// replace takes away what only the record before needed: its counts, what was known of its damage, and its files.
func (a *applier) replace(o *op) error {
	p := o.prev
	if err := a.count(o, p, -1); err != nil {
		return err
	}
	// The old record is not needed any more, so its damage is not either. Damage that hides
	// writes of unknown keys (Last > 0) stays until a repair.
	at := p.pos.off
	if err := a.e.forgetDamage(a.b, segName(p.pos.seg), func(d Damage) bool { return d.Offset == at && d.Last == 0 }); err != nil {
		return err
	}
	for _, f := range p.files {
		// SetTags and reclaiming write a new record that names the same body files: these must
		// not be removed with the old record.
		if slices.ContainsFunc(o.obj.Extents, func(x Extent) bool { return x.File == f }) || a.isOfObject(o, f) {
			continue
		}
		o.trash = append(o.trash, f)
		if err := a.b.Delete(spaceKey(spaceFile, f), nil); err != nil {
			return err
		}
		if err := a.e.forgetDamage(a.b, body.Name(f), func(Damage) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}
