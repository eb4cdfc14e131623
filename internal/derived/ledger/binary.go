package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The form of a ledger in a checkpoint, docs/format/ledgers.md. What follows from other fields is not
// stored: all intervals are the union of the folded ones and the recent identities.

const (
	flagInexact = 1 << 0
	flagTime    = 1 << 1
)

// AppendBinary appends the ledger to b. Equal ledgers give equal bytes.
func (l *Ledger) AppendBinary(b []byte) []byte {
	b = appendText(appendText(b, l.boot.Agent), l.boot.Boot)
	var flags byte
	if l.inexact {
		flags |= flagInexact
	}
	if l.timed {
		flags |= flagTime
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, l.batches)
	b = binary.AppendUvarint(b, l.dropped)
	b = binary.AppendVarint(b, l.lastAt)
	if l.timed {
		b = binary.AppendVarint(b, l.firstTime)
	}
	b = appendRanges(b, l.folded)
	b = appendEntries(b, l.recent, l.lastAt)
	b = appendEntries(b, l.overlapping, l.lastAt)
	return appendRanges(b, l.overlaps)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendRanges writes distances, because neighbours are near to each other. They wrap around, so that
// every value has an encoding.
func appendRanges(b []byte, s intervals) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	next := uint64(0)
	for _, o := range s {
		b = binary.AppendUvarint(b, o.Start-next)
		b = binary.AppendUvarint(b, o.End-o.Start)
		next = o.End
	}
	return b
}

func appendEntries(b []byte, es []Entry, at int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(es)))
	last := uint64(0)
	for _, e := range es {
		b = binary.AppendUvarint(b, e.Start-last)
		b = binary.AppendUvarint(b, e.End-e.Start)
		b = binary.AppendVarint(b, e.AcceptedAt-at)
		last, at = e.Start, e.AcceptedAt
	}
	return b
}

// ReadBinary reads a ledger that AppendBinary wrote from the start of b, and returns what follows it.
func ReadBinary(b []byte) (*Ledger, []byte, error) {
	d := decoder{b: b}
	l := &Ledger{window: CheckpointWindow}
	l.boot = identity.Boot{Agent: d.text(identity.MaxAgentIDBytes), Boot: d.text(identity.MaxBootIDBytes)}
	flags := d.byte()
	if flags&^(flagInexact|flagTime) != 0 {
		d.fail(fmt.Errorf("flags %#x", flags))
	}
	l.inexact, l.timed = flags&flagInexact != 0, flags&flagTime != 0
	l.batches, l.dropped, l.lastAt = d.uvarint(), d.uvarint(), d.varint()
	if l.timed {
		l.firstTime = d.varint()
	}
	l.folded = d.ranges()
	l.recent = d.entries(l.lastAt, Window)
	l.overlapping = d.entries(l.lastAt, MaxOverlapping)
	l.overlaps = d.ranges()
	if d.err == nil {
		d.fail(l.boot.Validate())
	}
	if d.err != nil {
		return nil, nil, d.err
	}
	l.all = append(intervals(nil), l.folded...)
	for _, e := range l.recent {
		l.all.add(e.Range())
	}
	return l, d.b, l.check()
}

// decoder reads a ledger. After the first error it returns zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	if d.err != nil {
		d.b = nil
	}
}

var errShort = errors.New("cut short")

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail(errShort)
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text(limit uint64) string {
	n := d.uvarint()
	if n > limit {
		d.fail(fmt.Errorf("a text of %d bytes, at most %d", n, limit))
		return ""
	}
	return string(d.take(n))
}

// count reads a number of items, each of which has at least so many bytes.
func (d *decoder) count(limit, bytes int) int {
	n := d.uvarint()
	if n > uint64(limit) || n > uint64(len(d.b)/bytes) {
		d.fail(fmt.Errorf("%d items", n))
		return 0
	}
	return int(n)
}

func (d *decoder) ranges() intervals {
	n := d.count(maxRanges, 2)
	out := make(intervals, 0, n)
	next := uint64(0)
	for i := range n {
		start := next + d.uvarint()
		end := start + d.uvarint()
		if end < start || i > 0 && (start <= next || start-1 == next) {
			d.fail(fmt.Errorf("range %d-%d is not after its neighbour", start, end))
		}
		out = append(out, Range{start, end})
		next = end
	}
	return out
}

func (d *decoder) entries(at int64, limit int) []Entry {
	n := d.count(limit, 3)
	out := make([]Entry, 0, n)
	last := uint64(0)
	for i := range n {
		e := Entry{Start: last + d.uvarint()}
		e.End = e.Start + d.uvarint()
		at += d.varint()
		e.AcceptedAt = at
		if e.End < e.Start || e.Start < last || i > 0 && out[i-1].compare(e) >= 0 {
			d.fail(fmt.Errorf("range %d-%d is not after its neighbour", e.Start, e.End))
		}
		out = append(out, e)
		last = e.Start
	}
	return out
}

// check refuses a ledger whose parts contradict each other, which the merging code does not expect.
func (l *Ledger) check() error {
	if len(l.overlaps) > MaxOverlapping {
		return fmt.Errorf("%d overlaps, at most %d", len(l.overlaps), MaxOverlapping)
	}
	for _, r := range l.overlaps {
		if !l.all.contains(r) {
			return fmt.Errorf("overlap %d-%d was not accepted", r.Start, r.End)
		}
	}
	for _, e := range l.overlapping {
		if !l.all.contains(e.Range()) {
			return fmt.Errorf("overlapping %d-%d was not accepted", e.Start, e.End)
		}
	}
	if l.batches < uint64(len(l.recent)) {
		return fmt.Errorf("batch_count %d, but %d are recent", l.batches, len(l.recent))
	}
	return nil
}
