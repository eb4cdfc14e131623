package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// The engine counts how many bytes are sealed with each version of a key, and how many objects and bytes each bucket has.
// The counts follow the index: what an entry adds when it comes is taken off when it goes, in the batch of the index that
// has both, so that they are exact after every crash.
//
// A bucket has the bytes of all its versions, and those of the parts of its open uploads. So an upload has a count of its
// own, which is the bucket's too while the upload's record is there, in whatever order reclaiming has put the records of
// the upload and of its parts.

// usage is a count of records and of bytes.
type usage struct{ records, bytes int64 }

func (u *usage) add(records, bytes int64) { u.records, u.bytes = u.records+records, u.bytes+bytes }

// sealedBytes are the stored bytes of an object's body that are sealed with a version; the zero version: as they are.
type sealedBytes struct {
	version seal.Version
	bytes   int64
}

// sealedBytesOf gives what is stored of the body of a record, by version. It is nil where nothing is sealed.
func sealedBytesOf(r *record, o *Object) (list []sealedBytes) {
	add := func(s *Seal, bytes int64) {
		v := seal.Version{}
		if s != nil {
			v = s.Key
		}
		i := slices.IndexFunc(list, func(b sealedBytes) bool { return b.version == v })
		if i < 0 {
			i, list = len(list), append(list, sealedBytes{version: v})
		}
		list[i].bytes += bytes
	}
	if r.kind == kindPut && len(o.Extents) == 0 && o.Seal != nil {
		add(o.Seal, int64(r.bodyLen))
	}
	if slices.ContainsFunc(o.Extents, func(x Extent) bool { return x.Seal != nil }) {
		for _, x := range o.Extents {
			add(x.Seal, x.Size)
		}
	}
	return list
}

// eachStored calls fn for the stored bytes of an entry by version. One without a list has its size as it is.
func (e *entry) eachStored(fn func(v seal.Version, bytes int64)) {
	if len(e.sealed) == 0 && e.flags&flagLost == 0 {
		fn(seal.Version{}, e.size)
	}
	for _, s := range e.sealed {
		fn(s.version, s.bytes)
	}
}

func appendSealed(b []byte, list []sealedBytes) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendText(b, s.version.ID)
		b = append(b, s.version.Check[:]...)
		b = binary.AppendUvarint(b, uint64(s.bytes))
	}
	return b
}

func (s *scanner) sealed() (list []sealedBytes) {
	for n := s.Num(); n > 0 && !s.Bad; n-- {
		x := sealedBytes{version: seal.Version{ID: s.Text()}}
		copy(x.version.Check[:], s.take(seal.CheckSize))
		x.bytes = int64(s.Num())
		list = append(list, x)
	}
	return list
}

// tally is what a batch of the index changes of the counts.
type tally struct {
	idx     *index
	keys    []change[seal.Version]
	buckets []change[string]
	uploads map[name]*uploadUsage // by bucket and id; as they are after the batch
	scratch []byte
}

// change is what is added to the usage of something, of which a batch has few.
type change[K comparable] struct {
	of K
	usage
}

// changeOf finds the change of something, to be changed.
func changeOf[K comparable](list *[]change[K], of K) *change[K] {
	for i := range *list {
		if (*list)[i].of == of {
			return &(*list)[i]
		}
	}
	*list = append(*list, change[K]{of: of})
	return &(*list)[len(*list)-1]
}

// reset makes an empty tally for the next batch.
func (t *tally) reset(idx *index) *tally {
	t.idx, t.keys, t.buckets, t.uploads = idx, t.keys[:0], t.buckets[:0], nil
	return t
}

// uploadUsage is the sum of the parts of an upload, and whether its record is there.
type uploadUsage struct {
	open  bool
	bytes int64
}

// count adds the entry of a record, with sign 1, or takes it off, with -1.
func (t *tally) count(bucket, record string, x *entry, sign int64) error {
	t.countKeys(x, sign)
	if !isInternal(record) {
		if !x.isMarker() {
			changeOf(&t.buckets, bucket).add(sign, sign*x.size)
		}
		return nil
	}
	id, _, isPart := parsePartKey(record)
	if !isPart {
		var ok bool
		if _, id, ok = parseUploadKey(record); !ok {
			return nil
		}
	}
	u, err := t.upload(name{bucket, id})
	switch {
	case err != nil:
		return err
	case !isPart:
		u.open = sign > 0
		changeOf(&t.buckets, bucket).add(0, sign*u.bytes)
	default:
		u.bytes += sign * x.size
		if u.open {
			changeOf(&t.buckets, bucket).add(0, sign*x.size)
		}
	}
	return nil
}

// upload gives the count of an upload, to be changed.
func (t *tally) upload(n name) (*uploadUsage, error) {
	if u := t.uploads[n]; u != nil {
		return u, nil
	}
	u := &uploadUsage{}
	err := t.idx.get(uploadUsageKey(n), func(v []byte) error {
		s := scannerOf(v)
		u.open, u.bytes = s.Num() == 1, int64(s.Num())
		return nil
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if t.uploads == nil {
		t.uploads = map[name]*uploadUsage{}
	}
	t.uploads[n] = u
	return u, nil
}

func uploadUsageKey(n name) []byte { return spaceKey(spaceUploadUsage, n.bucket+"\x00"+n.key) }

func (t *tally) countKeys(x *entry, sign int64) {
	x.eachStored(func(v seal.Version, bytes int64) {
		if bytes != 0 {
			changeOf(&t.keys, v).add(sign, sign*bytes)
		}
	})
}

// applyTally adds a tally to the counts and writes those that change. The caller holds mu.
func (e *Engine) applyTally(b *pebble.Batch, t *tally) error {
	for _, d := range t.keys {
		u := e.sealedBy[d.of]
		u.add(d.records, d.bytes)
		if e.sealedBy[d.of] = u; u == (usage{}) {
			delete(e.sealedBy, d.of)
		}
		t.scratch = append(append(append(t.scratch[:0], spaceKeyUsage), d.of.ID...), d.of.Check[:]...)
		if err := t.set(b, u); err != nil {
			return err
		}
	}
	for _, d := range t.buckets {
		u := e.usage[d.of]
		u.add(d.records, d.bytes)
		if e.usage[d.of] = u; u == (usage{}) {
			delete(e.usage, d.of)
		}
		t.scratch = append(append(t.scratch[:0], spaceBucketUsage), d.of...)
		if err := t.set(b, u); err != nil {
			return err
		}
	}
	for n, u := range t.uploads {
		key, err := uploadUsageKey(n), error(nil)
		if *u == (uploadUsage{}) {
			err = b.Delete(key, nil)
		} else {
			open := byte(0)
			if u.open {
				open = 1
			}
			err = b.Set(key, binary.AppendUvarint([]byte{open}, uint64(u.bytes)), nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// set writes a count under the key that scratch has.
func (t *tally) set(b *pebble.Batch, u usage) error {
	n := len(t.scratch)
	t.scratch = binary.AppendUvarint(binary.AppendUvarint(t.scratch, uint64(u.records)), uint64(u.bytes))
	return b.Set(t.scratch[:n], t.scratch[n:], nil)
}

// loadUsage reads the counts from the index.
func (e *Engine) loadUsage() error {
	err := e.idx.scan(spaceBucketUsage, func(name, value []byte) error {
		s := scannerOf(value)
		if u := (usage{int64(s.Num()), int64(s.Num())}); u != (usage{}) {
			e.usage[string(name)] = u
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.idx.scan(spaceKeyUsage, func(name, value []byte) error {
		s := scannerOf(value)
		u := usage{int64(s.Num()), int64(s.Num())}
		at := len(name) - seal.CheckSize
		if s.Bad || at < 0 {
			return fmt.Errorf("%w: the usage of a key", errForeignIndex)
		}
		v := seal.Version{ID: string(name[:at])}
		copy(v.Check[:], name[at:])
		if u != (usage{}) {
			e.sealedBy[v] = u
		}
		return nil
	})
}

// KeyUsage says how much is sealed with a version of a key.
type KeyUsage struct {
	// Key has the id of the version; empty: stored as it is.
	Key string `json:"key"`
	// Check tells secrets of one id apart; hexadecimal.
	Check string `json:"check"`
	// Records of objects and of parts that have bytes of it, and how many bytes are stored.
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
	// Given: the store has the key. Current: new bodies are sealed with it.
	Given   bool `json:"given"`
	Current bool `json:"current"`
}

// KeyUsage lists the versions that are in use or were given, and what is stored as it is, by id.
func (e *Engine) KeyUsage() (list []KeyUsage) {
	e.mu.RLock()
	counts := make(map[seal.Version]usage, len(e.sealedBy))
	for v, u := range e.sealedBy {
		counts[v] = u
	}
	e.mu.RUnlock()
	for _, v := range e.opt.Keys.Versions() {
		if _, used := counts[v]; !used {
			counts[v] = usage{}
		}
	}
	current := seal.Version{}
	if k := e.opt.Keys.Current(); k != nil {
		current = k.Version()
	}
	for v, u := range counts {
		_, err := e.opt.Keys.Find(v)
		plain := v == (seal.Version{})
		list = append(list, KeyUsage{Key: v.ID, Check: v.CheckText(), Records: u.records, Bytes: u.bytes, Given: err == nil || plain, Current: v == current && (!plain || e.opt.Keys == nil)})
	}
	slices.SortFunc(list, func(a, b KeyUsage) int {
		return strings.Compare(a.Key+"/"+a.Check, b.Key+"/"+b.Check)
	})
	return list
}
