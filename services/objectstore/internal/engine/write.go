package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

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
	o.Seal = nil // of the object that o was made from
	if len(o.Extents) > 0 {
		if err := checkNames(o.Bucket, o.Key, o.Extents); err != nil {
			return o, fmt.Errorf("put %q: %w", o.Key, err)
		}
		return e.put(ctx, &op{cond: c, byRule: true}, o, nil, 0)
	}
	stored, memory, err := e.sealBody(&o, body)
	if err != nil {
		return o, fmt.Errorf("put %q: %w", o.Key, err)
	}
	defer returnMemory(memory)
	return e.put(ctx, &op{cond: c, byRule: true}, o, stored, 0)
}

// put gives w its record and object, and submits it. body is what is stored: where o.Seal is set, it is sealed.
func (e *Engine) put(ctx context.Context, w *op, o Object, body []byte, flags uint8) (Object, error) {
	o.Extents = widen(o.Extents, e.opt.mostSums)
	r := record{kind: kindPut, flags: flags, bucket: o.Bucket, key: recordKey(o.Key, o.Version), meta: encodeMeta(&o)}
	if len(o.Extents) > 0 {
		r.flags |= flagFile
	} else {
		r.body, r.bodyLen, r.bodyCRC = body, uint32(len(body)), crc32.Checksum(body, castagnoli)
	}
	// What decodeHead would refuse must never be written: the record could not be read back.
	if len(o.Key) > maxHiddenLen || len(r.meta) > maxMetaLen-binary.MaxVarintLen64-2 || len(r.body) > maxStoredBytes {
		return o, fmt.Errorf("put %q: %w", o.Key, ErrTooLarge)
	}
	w.rec, w.obj = r, o
	if err := e.submit(ctx, w); err != nil {
		return o, fmt.Errorf("put %q: %w", o.Key, err)
	}
	for i := range o.Extents {
		e.awaited.end(o.Extents[i].File)
	}
	failpoint.Hit("objectstore.put.answer.before")
	o.Seq, o.Version = w.entry.seq, w.entry.version
	return o, nil
}

// Deletion is what to delete, and what became of it.
type Deletion struct {
	Key string
	// Version is an id, or NullVersion: that version is removed, delete markers too. Empty: the object is deleted as its
	// bucket's versioning has it, for good or by a delete marker.
	Version  string
	Cond     Cond      // on the current version, or on the one that is named
	Modified time.Time // of the delete marker
	Expired  bool      // by a rule of the bucket, and not by a client
	Err      error     // set by the caller: it is skipped; afterwards the outcome

	// Marker: a delete marker was made, or removed. Made is its id, or that of the version that was removed; empty where
	// the bucket has no versions.
	Marker bool
	Made   string
}

// Delete deletes one object. An absent one is no error, unless d.Cond asks for one.
func (e *Engine) Delete(ctx context.Context, bucket string, d Deletion) (Deletion, error) {
	failpoint.Hit("objectstore.delete.submit.before")
	w, err := deletion(bucket, &d)
	if err == nil {
		err = e.submit(ctx, w)
	}
	if err != nil {
		return d, fmt.Errorf("delete %q: %w", d.Key, err)
	}
	d.became(w)
	failpoint.Hit("objectstore.delete.answer.before")
	return d, nil
}

// noVersion is the id of no version: no sequence is that high.
var noVersion = strings.Repeat("0", versionIDLen)

// deletion makes the operation of a deletion by a client.
func deletion(bucket string, d *Deletion) (*op, error) {
	if err := checkKey(d.Key); err != nil {
		return nil, err
	}
	w := &op{rec: record{kind: kindDelete, bucket: bucket, key: d.Key}, cond: d.Cond}
	if d.Expired {
		w.rec.flags |= flagExpired
	}
	switch d.Version {
	case "":
		w.byRule, w.obj.Modified = true, d.Modified
	case NullVersion:
	default:
		id := d.Version
		if !ValidVersionID(id) {
			id = noVersion
		}
		w.rec.key = recordKey(d.Key, id)
	}
	return w, nil
}

// became notes the outcome of an operation that was committed.
func (d *Deletion) became(w *op) {
	switch {
	case w.entry != nil: // a delete marker
		d.Marker, d.Made = true, orNull(w.entry.version)
	case d.Version != "":
		d.Made, d.Marker = d.Version, w.prev != nil && w.prev.isMarker()
	}
}

func orNull(id string) string {
	if id == "" {
		return NullVersion
	}
	return id
}

// DeleteMany deletes objects, each on its own. All are enqueued before the first is waited for, so that they share fsyncs.
// The outcomes are in the list.
func (e *Engine) DeleteMany(ctx context.Context, bucket string, list []Deletion) {
	ops := make([]*op, len(list))
	for i := range list {
		d := &list[i]
		if d.Err == nil {
			ops[i], d.Err = deletion(bucket, d)
		}
	}
	e.deleteAll(ctx, ops, func(i int, err error) {
		if list[i].Err = err; err == nil {
			list[i].became(ops[i])
		}
	})
}

// deleteAll submits operations together, and gives the outcome of each. Those that are nil are left out.
func (e *Engine) deleteAll(ctx context.Context, ops []*op, outcome func(i int, err error)) {
	errs := make([]error, len(ops))
	for i, o := range ops {
		if o != nil {
			errs[i] = e.enqueue(ctx, o)
		}
	}
	for i, o := range ops {
		if o == nil {
			continue
		}
		if errs[i] == nil {
			errs[i] = e.wait(o)
		}
		outcome(i, errs[i])
	}
}

// SetTags replaces the tags of a version, or of the current one when version is empty, and gives its id; body, ETag, times
// and order stay.
func (e *Engine) SetTags(ctx context.Context, bucket, key, version string, tags []Pair) (id string, err error) {
	return e.rewrite(ctx, bucket, key, version, func(o *Object) error {
		o.Tags = tags
		return nil
	})
}

// rewrite changes the metadata of a version, or of the current one when version is empty, and gives its id. Metadata is
// part of the record, so it is written again with its own sequence as the condition. If somebody else wrote it in between,
// change gets the new one.
func (e *Engine) rewrite(ctx context.Context, bucket, key, version string, change func(*Object) error) (id string, err error) {
	for {
		h, err := e.GetVersion(bucket, key, version)
		if err != nil {
			return "", err
		}
		o := h.Object
		if err = change(&o); err == nil {
			if o.Version == "" && version == NullVersion && o.Order == 0 {
				// Its sequence says no more that it was the newest: see entry.made.
				o.Order = 1
			}
			_, err = e.put(ctx, &op{cond: Cond{Seq: o.Seq}, rewrites: true}, o, h.body, flagQuiet)
		}
		h.Close()
		switch {
		case errors.Is(err, ErrPrecondition):
		case errors.Is(err, ErrNotFound) && version == "": // another one may be current now
		default:
			return o.Version, err
		}
	}
}
