package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Quota bounds what a bucket holds: all versions, and the parts of open uploads. 0: no bound.
type Quota struct {
	Bytes   int64 `json:"bytes"`
	Objects int64 `json:"objects"` // versions are objects; delete markers and uploads are not
}

// Usage is what a bucket holds, and its quota.
type Usage struct {
	Bucket  string `json:"bucket"`
	Bytes   int64  `json:"bytes"`
	Objects int64  `json:"objects"`
	Quota   Quota  `json:"quota"`
}

// settingQuota is the setting of a bucket that has its Quota.
const settingQuota = "quota"

// Quota gives the quota of the bucket.
func (b *Bucket) Quota() (q Quota) {
	if v := b.Settings[settingQuota]; v != nil {
		s := scannerOf(v)
		q = Quota{int64(s.Num()), int64(s.Num())}
	}
	return q
}

// SetQuota bounds a bucket. What is there stays, whatever its size.
func (e *Engine) SetQuota(ctx context.Context, bucket string, q Quota) error {
	if q.Bytes < 0 || q.Objects < 0 {
		return fmt.Errorf("set quota of %q: %d bytes and %d objects: want no negative number", bucket, q.Bytes, q.Objects)
	}
	var v []byte
	if q != (Quota{}) {
		v = binary.AppendUvarint(binary.AppendUvarint(nil, uint64(q.Bytes)), uint64(q.Objects))
	}
	return e.SetSetting(ctx, bucket, settingQuota, v)
}

// Usage gives what each bucket holds, by name.
func (e *Engine) Usage() (list []Usage) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for name, b := range e.buckets {
		u := e.usage[name]
		list = append(list, Usage{Bucket: name, Bytes: u.bytes, Objects: u.records, Quota: b.Quota()})
	}
	slices.SortFunc(list, func(a, b Usage) int { return strings.Compare(a.Bucket, b.Bucket) })
	return list
}

// CheckQuota gives ErrQuota when a write of so many bytes would not fit into a bucket now. It saves reading the body of a
// write that will be refused; the write itself decides again.
func (e *Engine) CheckQuota(bucket, key string, bytes int64) error {
	return e.checkQuota(bucket, key, &entry{size: bytes})
}

// CheckPartQuota is CheckQuota of a part.
func (e *Engine) CheckPartQuota(bucket, id string, number int, bytes int64) error {
	return e.checkQuota(bucket, partKey(id, number), &entry{size: bytes})
}

func (e *Engine) checkQuota(bucket, record string, x *entry) error {
	b, err := e.Bucket(bucket)
	if err != nil || b.Quota() == (Quota{}) {
		return err
	}
	var prev *entry
	if isInternal(record) || b.Versioning() != Enabled {
		if prev, err = e.idx.record(bucket, record); err != nil {
			return err
		}
	}
	grows := growth(x, prev)
	if isInternal(record) {
		grows.records = 0
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return b.Quota().check(bucket, e.usage[bucket], grows)
}

// check refuses what lets a bucket grow beyond its quota. What makes it smaller, or leaves it, is never refused.
func (q Quota) check(bucket string, now, grows usage) error {
	if q.Bytes > 0 && grows.bytes > 0 && grows.bytes > q.Bytes-now.bytes {
		return fmt.Errorf("%w: bucket %q has %d of %d bytes, and would get %d more", ErrQuota, bucket, now.bytes, q.Bytes, grows.bytes)
	}
	if q.Objects > 0 && grows.records > 0 && grows.records > q.Objects-now.records {
		return fmt.Errorf("%w: bucket %q has %d of %d objects", ErrQuota, bucket, now.records, q.Objects)
	}
	return nil
}

// growth is by how much a bucket grows when a record of x takes the place of one of prev; nil: there is none.
func growth(x, prev *entry) (u usage) {
	if x != nil && !x.isMarker() {
		u.add(1, x.size)
	}
	if prev != nil && !prev.isMarker() {
		u.add(-1, -prev.size)
	}
	return u
}

// growthBy is by how much an operation lets its bucket grow. Of an upload that is aborted it does not count the parts.
func growthBy(o *op) usage {
	r := &o.rec
	var x *entry
	if r.kind == kindPut {
		x = &entry{size: o.obj.Size, flags: r.flags}
	}
	grows := growth(x, o.prev)
	_, _, isPart := parsePartKey(r.key)
	switch {
	case isPart && r.kind == kindDelete:
		return usage{} // its upload has ended, and the bucket does not have its bytes any more
	case isPart:
		grows.records = 0
	case isInternal(r.key):
		return usage{}
	case o.then != nil:
		grows.bytes -= o.obj.Size // of its parts, which are in the bucket and end to be parts
	}
	return grows
}

// decideQuota refuses a write of a client that does not fit into its bucket, and notes for those behind it in the batch
// what it adds. Everything else about o is decided.
func (v *overlay) decideQuota(o *op) error {
	bucket := o.rec.bucket
	b, err := v.e.Bucket(bucket)
	if err != nil || b.Quota() == (Quota{}) {
		return err
	}
	grows, pending := growthBy(o), v.grown[bucket]
	v.e.mu.RLock()
	now := v.e.usage[bucket]
	v.e.mu.RUnlock()
	now.add(pending.records, pending.bytes)
	if err := b.Quota().check(bucket, now, grows); err != nil {
		return err
	}
	if v.grown == nil {
		v.grown = map[string]usage{}
	}
	pending.add(grows.records, grows.bytes)
	v.grown[bucket] = pending
	return nil
}
