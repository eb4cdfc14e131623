package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const replayBatch = 1000

func decodeSegmentKey(name []byte) uint64 { return binary.BigEndian.Uint64(name) }

// decodeUse gives a segment's bytes of live records and of tombstones; an index of an
// earlier version has none of the latter.
func decodeUse(v []byte) (live, tombs int64) {
	l, n := binary.Uvarint(v)
	t, _ := binary.Uvarint(v[max(n, 0):])
	return int64(l), int64(t)
}

// replay brings the index from its checkpoint to the end of the log, and makes the
// first segment of a new store.
func (e *Engine) replay(numbers []uint64) error {
	if len(numbers) == 0 {
		s, err := createSegment(e.fs, 1, 1)
		if err != nil {
			return err
		}
		e.segments[1], e.active = s, s
		e.head.pos, e.head.salt = position{1, segHeaderSize}, s.salt
		e.end, e.endSeq = e.head.pos, e.head.nextSeq
		return nil
	}
	for i, num := range numbers {
		seg := e.segments[num]
		size, err := seg.file.Size()
		if err != nil {
			return err
		}
		last := i == len(numbers)-1
		if !last {
			e.length[num] = size
		}
		if num < e.head.pos.seg {
			continue
		}
		from := int64(segHeaderSize)
		if num == e.head.pos.seg {
			from = e.head.pos.off
		} else {
			if i > 0 && numbers[i-1] == num-1 && seg.firstSeq != e.head.nextSeq {
				return &CorruptError{segName(num - 1), e.head.pos.off,
					fmt.Sprintf("ends before record %d, but the next segment begins with %d", e.head.nextSeq, seg.firstSeq)}
			}
			e.head.nextSeq = seg.firstSeq
		}
		e.active = seg
		e.head.pos, e.head.salt = position{num, from}, seg.salt
		if err := e.replaySegment(seg, from, size, last); err != nil {
			return err
		}
	}
	e.end, e.endSeq = e.head.pos, e.head.nextSeq
	e.counts.objects.Store(e.head.objects)
	e.counts.bytes.Store(e.head.bytes)
	return nil
}

func (e *Engine) replaySegment(seg *segment, from, size int64, last bool) error {
	sc := newScanner(seg, from, size)
	keys := map[string]*entry{}
	view := &overlay{e: e, keys: keys}
	var ops []*op
	next := e.head
	flush := func(to int64) error {
		next.pos.off = to
		err := e.apply(ops, next)
		clear(keys)
		ops = ops[:0]
		next = e.head
		return err
	}
	for {
		r, at, err := sc.next()
		if errors.Is(err, io.EOF) {
			return flush(at)
		}
		var bad *CorruptError
		if errors.As(err, &bad) && last {
			if terr := tornTail(seg, at, size, bad); terr != nil {
				return terr
			}
			e.opt.Log.Warn("cut off a torn tail", "file", bad.File, "offset", at, "bytes", size-at, "reason", bad.Reason)
			if err := errors.Join(seg.file.Truncate(at), seg.file.Sync()); err != nil {
				return fmt.Errorf("cut off torn tail: %w", err)
			}
			return flush(at)
		}
		if err != nil {
			return err
		}
		if r.seq != next.nextSeq {
			return &CorruptError{segName(seg.number), at, fmt.Sprintf("record %d where %d was due", r.seq, next.nextSeq)}
		}
		next.nextSeq++
		o, err := view.replayed(r, position{seg.number, at})
		if err != nil {
			return fmt.Errorf("%s at byte %d: %w", segName(seg.number), at, err)
		}
		if ops = append(ops, o); len(ops) >= replayBatch {
			if err := flush(at + r.size()); err != nil {
				return err
			}
		}
	}
}

// replayed makes of a record the operation that wrote it.
func (v *overlay) replayed(r record, pos position) (*op, error) {
	if r.kind == kindBuckets {
		r.body = append([]byte(nil), r.body...)
		return &op{rec: r}, nil
	}
	r.body = nil
	o := &op{rec: r}
	var err error
	if o.prev, err = v.get(r.bucket, r.key); err != nil {
		return nil, err
	}
	if r.kind == kindPut {
		if o.obj, err = decodeMeta(r.meta); err != nil {
			return nil, err
		}
		o.entry = entryOf(&r, &o.obj, pos)
	}
	v.keys[r.bucket+"\x00"+r.key] = o.entry
	return o, nil
}
