package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Put stores an object with the given body, at most InlineBytes long, or with o.Extents when
// body is nil. The condition is decided together with the write. The result is the object with
// its Seq. After an error the files of the extents still belong to the caller, unless the
// outcome is unknown (ErrPoisoned, ErrClosed).
func (e *Engine) Put(ctx context.Context, o Object, body []byte, c Cond) (Object, error) {
	if err := checkKey(o.Key); err != nil {
		return o, fmt.Errorf("put %q: %w", o.Key, err)
	}
	return e.put(ctx, &op{cond: c}, o, body, 0)
}

// put gives w its record and object, and submits it.
func (e *Engine) put(ctx context.Context, w *op, o Object, body []byte, flags uint8) (Object, error) {
	r := record{kind: kindPut, flags: flags, bucket: o.Bucket, key: o.Key, meta: encodeMeta(&o)}
	if len(o.Extents) > 0 {
		r.flags |= flagFile
	} else {
		r.body, r.bodyLen, r.bodyCRC = body, uint32(len(body)), crc32.Checksum(body, castagnoli)
	}
	// What decodeHead would refuse must never be written: the record could not be read back.
	if len(o.Key) > maxHiddenLen || len(r.meta) > maxMetaLen || len(r.body) > maxInlineBytes {
		return o, fmt.Errorf("put %q: %w", o.Key, ErrTooLarge)
	}
	w.rec, w.obj = r, o
	if err := e.submit(ctx, w); err != nil {
		return o, fmt.Errorf("put %q: %w", o.Key, err)
	}
	failpoint.Hit("objectstore.put.answer.before")
	o.Seq = w.entry.seq
	return o, nil
}

// Delete removes an object. An absent key is no error, unless c asks for one.
func (e *Engine) Delete(ctx context.Context, bucket, key string, c Cond) error {
	if err := checkKey(key); err != nil {
		return fmt.Errorf("delete %q: %w", key, err)
	}
	failpoint.Hit("objectstore.delete.submit.before")
	w := &op{rec: record{kind: kindDelete, bucket: bucket, key: key}, cond: c}
	if err := e.submit(ctx, w); err != nil {
		return fmt.Errorf("delete %q: %w", key, err)
	}
	failpoint.Hit("objectstore.delete.answer.before")
	return nil
}

// Deletion is one key of DeleteMany.
type Deletion struct {
	Key  string
	Cond Cond
	Err  error // set by the caller: the key is skipped; afterwards the outcome
}

// DeleteMany removes keys, each on its own. All are enqueued before the first is waited for,
// so that they share fsyncs. The outcomes are in the list.
func (e *Engine) DeleteMany(ctx context.Context, bucket string, keys []Deletion) {
	for i, k := range keys {
		if k.Err == nil {
			keys[i].Err = checkKey(k.Key)
		}
	}
	e.deleteMany(ctx, bucket, keys, 0)
}

func (e *Engine) deleteMany(ctx context.Context, bucket string, keys []Deletion, flags uint8) {
	ops := make([]*op, len(keys))
	for i, k := range keys {
		if k.Err == nil {
			ops[i] = &op{rec: record{kind: kindDelete, flags: flags, bucket: bucket, key: k.Key}, cond: k.Cond}
			if keys[i].Err = e.enqueue(ctx, ops[i]); keys[i].Err != nil {
				ops[i] = nil
			}
		}
	}
	for i, o := range ops {
		if o != nil {
			keys[i].Err = e.wait(o)
		}
	}
}

// SetTags replaces the tags of an object; body, ETag and times stay.
func (e *Engine) SetTags(ctx context.Context, bucket, key string, tags []Pair) error {
	for {
		// Tags are part of the record, so the object is written again with its own sequence as
		// the condition. If somebody else wrote the key in between, the new version is tagged.
		h, err := e.Get(bucket, key)
		if err != nil {
			return err
		}
		o := h.Object
		o.Tags = tags
		_, err = e.put(ctx, &op{cond: Cond{Seq: o.Seq}}, o, h.body, flagQuiet)
		h.Close()
		if !errors.Is(err, ErrPrecondition) {
			return err
		}
	}
}
