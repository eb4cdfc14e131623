package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// current gives the entry of the current version of a key, as a request without a version sees it; nil when there is
// none, or a delete marker.
func (x *index) current(bucket, key string) (*entry, error) { return x.at(objectKey(bucket, key)) }

// record gives the entry of a record by its key; nil when the index names none.
func (x *index) record(bucket, key string) (*entry, error) {
	e, err := x.current(bucket, key)
	if err != nil || isHidden(key) || e != nil && e.version == "" {
		return e, err
	}
	return x.at(asideKey(bucket, key))
}

// at gives the entry under a key of the index; nil when there is none.
func (x *index) at(key []byte) (*entry, error) {
	var e *entry
	err := x.get(key, func(v []byte) error {
		d, err := decodeEntry(v)
		e = &d
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return e, err
}

// asideKey is the key of the index for a null version that is not the current one.
func asideKey(bucket, key string) []byte {
	b := objectKey(bucket, key)
	b[0] = spaceAside
	return b
}

// newest gives the newest version of a key, delete markers included, of those in the index that skip does not name;
// null is the null version.
func (x *index) newest(bucket, key string, null *entry, skip func(record string) bool) (best *entry, err error) {
	best = null
	base := len(objectKey(bucket, ""))
	err = x.eachVersion(bucket, key, "", func(k, v []byte) (bool, error) {
		if skip != nil && skip(string(k[base:])) {
			return true, nil
		}
		e, err := decodeEntry(v)
		if err == nil && e.newer(best) {
			best = &e
		}
		return false, err
	})
	return best, err
}

// eachVersion calls fn for the versions of a key that have an id, the newest first, behind the id after, until it gives
// false. An empty key is all keys of the bucket.
func (x *index) eachVersion(bucket, key, after string, fn func(k, v []byte) (bool, error)) error {
	prefix := objectKey(bucket, versionPrefix)
	if key != "" {
		prefix = objectKey(bucket, versionPrefix+key+"\x00")
	}
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: successor(prefix)})
	if err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	ok := it.First()
	if after != "" {
		ok = it.SeekGE(append(objectKey(bucket, recordKey(key, after)), 0))
	}
	for ok && err == nil {
		if ok, err = fn(it.Key(), it.Value()); ok {
			ok = it.Next()
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

// eachRecord calls fn for every record that the index names: the versions by their own keys, and so not the entries under
// which clients find the current ones. It reads the whole index.
func (e *Engine) eachRecord(fn func(bucket, record string, x *entry) error) error {
	for _, space := range [...]byte{spaceObject, spaceAside} {
		err := e.idx.scan(space, func(at, value []byte) error {
			x, err := decodeEntry(value)
			if err != nil {
				return err
			}
			bucket, record, _ := strings.Cut(string(at), "\x00")
			if x.version != "" && !isHidden(record) {
				return nil
			}
			return fn(bucket, record, &x)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// overlay is the state of records after the operations of a batch that were decided so far.
type overlay struct {
	e    *Engine
	keys map[name]*entry // by the key of the record
	// Of keys with versions, by the client's key: the records of this batch, and the newest version where it is known.
	touched map[name][]string
	newest  map[name]*entry
	newly   map[string]bool  // buckets that got their first version in this batch
	grown   map[string]usage // by bucket with a quota: what the accepted operations add
}

type name struct{ bucket, key string }

func (e *Engine) newOverlay(size int) *overlay {
	return &overlay{e: e, keys: make(map[name]*entry, size)}
}

// clear forgets the batch, which the index has now.
func (v *overlay) clear() {
	clear(v.keys)
	v.touched, v.newest, v.newly, v.grown = nil, nil, nil, nil
}

// versioned reports whether versions or delete markers of a bucket may be there.
func (v *overlay) versioned(bucket string) bool { return v.e.versioned[bucket] || v.newly[bucket] }

// set notes what an operation makes of a record; nil: it is gone.
func (v *overlay) set(bucket, record string, x *entry) {
	v.keys[name{bucket, record}] = x
	if isInternal(record) {
		return
	}
	key, id := clientKey(record)
	if id != "" || x != nil && x.isMarker() {
		if v.newly == nil {
			v.touched, v.newest, v.newly = map[name][]string{}, map[name]*entry{}, map[string]bool{}
		}
		v.newly[bucket] = true
	}
	if id != "" {
		v.touched[name{bucket, key}] = append(v.touched[name{bucket, key}], record)
	}
	delete(v.newest, name{bucket, key})
}

// record gives the entry of a record by its key; nil when there is none.
func (v *overlay) record(bucket, key string) (*entry, error) {
	if n, ok := v.keys[name{bucket, key}]; ok {
		return n, nil
	}
	if v.e.versioned[bucket] {
		return v.e.idx.record(bucket, key)
	}
	return v.e.idx.current(bucket, key) // no null version is aside
}

// current gives the entry of the current version of a client's key; nil when there is none, or a delete marker.
func (v *overlay) current(bucket, key string) (*entry, error) {
	if !v.versioned(bucket) {
		return v.record(bucket, key)
	}
	n := name{bucket, key}
	if _, plain := v.keys[n]; !plain && len(v.touched[n]) == 0 {
		return v.e.idx.current(bucket, key)
	}
	x, err := v.newestOf(n)
	return visible(x), err
}

// newestOf gives the newest version of a client's key, delete markers included.
func (v *overlay) newestOf(n name) (*entry, error) {
	if x, ok := v.newest[n]; ok {
		return x, nil
	}
	best, err := v.record(n.bucket, n.key)
	if err != nil {
		return nil, err
	}
	for _, record := range v.touched[n] {
		if x := v.keys[name{n.bucket, record}]; x != nil && x.newer(best) {
			best = x
		}
	}
	best, err = v.e.idx.newest(n.bucket, n.key, best, func(record string) bool {
		_, touched := v.keys[name{n.bucket, record}]
		return touched
	})
	if err == nil && v.newest != nil {
		v.newest[n] = best
	}
	return best, err
}

// applyVersions brings the index's view of the keys with versions among ops up to date: which version is current, and
// whether the null version is another one.
func (e *Engine) applyVersions(b *pebble.Batch, v *overlay, ops []*op, next *checkpoint) error {
	done := map[name]bool{}
	for _, o := range ops {
		if !o.rec.isObject() || isInternal(o.rec.key) || !v.versioned(o.rec.bucket) {
			continue
		}
		key, _ := clientKey(o.rec.key)
		n := name{o.rec.bucket, key}
		if done[n] {
			continue
		}
		done[n] = true
		if err := e.applyCurrent(b, v, n, next); err != nil {
			return err
		}
	}
	for bucket := range v.newly {
		if e.versioned[bucket] {
			continue
		}
		e.versioned[bucket] = true
		if err := b.Set(spaceKey(spaceVersioned, bucket), nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// applyCurrent writes the entry of a key's current version to where clients look, and the null version aside if it is not
// that one.
func (e *Engine) applyCurrent(b *pebble.Batch, v *overlay, n name, next *checkpoint) error {
	was, err := e.idx.current(n.bucket, n.key)
	if err != nil {
		return err
	}
	x, err := v.newestOf(n)
	if err != nil {
		return err
	}
	now := visible(x)
	if was != nil {
		next.count(-1, -was.size)
	}
	if now != nil {
		next.count(1, now.size)
	}
	key := objectKey(n.bucket, n.key)
	switch {
	case now != nil:
		err = b.Set(key, now.encode(nil), nil)
	case was != nil:
		err = b.Delete(key, nil)
	}
	if err != nil {
		return err
	}
	return e.applyAside(b, v, n, was, x)
}

// applyAside writes the null version of a key aside, if there is one that clients do not see, or removes it from there. was
// is what they saw before, and x the newest version now.
func (e *Engine) applyAside(b *pebble.Batch, v *overlay, n name, was, x *entry) error {
	if _, touched := v.keys[n]; !touched && x != nil && x.version != "" && (was == nil || was.version != "") {
		return nil // it was aside, if there is one, and stays there
	}
	null, err := v.record(n.bucket, n.key)
	if err != nil {
		return err
	}
	if null != nil && (null.isMarker() || x.version != "") {
		return b.Set(asideKey(n.bucket, n.key), null.encode(nil), nil)
	}
	return b.Delete(asideKey(n.bucket, n.key), nil)
}

// count notes that versions became visible, or stopped to be.
func (c *checkpoint) count(objects, bytes int64) {
	c.objects, c.bytes = c.objects+objects, c.bytes+bytes
	c.hidden, c.hiddenBytes = c.hidden-objects, c.hiddenBytes-bytes
}
