// Package shapes recognises the tables of series that many batches share. An agent mostly
// sends the same series again: what was found out for the first batch of a shape (which
// series each place of its groups is) holds for all that follow, and costs one hash of their
// tables instead of a look-up for each series.
package shapes

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"iter"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Key tells shapes apart: the agent where it does, strings, resource labels, and of every
// group its kind and its series with their types and units. Start times are not in it.
type Key [sha256.Size]byte

// Batch is what a shape is made of; frame.Batch is one.
type Batch interface {
	// Common are the strings and the resource labels.
	Common() *series.Table
	// SeriesGroups yields the series of each group, and whether it has histograms.
	SeriesGroups() iter.Seq2[[]series.Ref, bool]
}

// Table finds what its user keeps of each shape, an S. Not for concurrent use.
type Table[S any] struct {
	shapes map[Key]*S
	hash   hash.Hash
	buf    []byte
}

// Place is where a series stands in a shape: in one of its groups, which are G.
type Place[G any] struct {
	Group *G
	At    uint32
}

// NewTable returns an empty table.
func NewTable[S any]() *Table[S] {
	return &Table[S]{shapes: map[Key]*S{}, hash: sha256.New()}
}

// Find gives the shape of b and its key; nil when there is none yet. agent is empty where it
// does not tell series apart.
func (t *Table[S]) Find(agent string, b Batch) (Key, *S) {
	k := t.key(agent, b)
	return k, t.shapes[k]
}

// Set enters a shape.
func (t *Table[S]) Set(k Key, s *S) { t.shapes[k] = s }

// Drop takes a shape out.
func (t *Table[S]) Drop(k Key) { delete(t.shapes, k) }

// Len is the number of shapes.
func (t *Table[S]) Len() int { return len(t.shapes) }

// Clear takes all shapes out.
func (t *Table[S]) Clear() { clear(t.shapes) }

func (t *Table[S]) key(agent string, b Batch) (k Key) {
	common := b.Common()
	buf := appendText(t.buf[:0], agent)
	buf = binary.AppendUvarint(buf, uint64(len(common.Strings)))
	for _, v := range common.Strings {
		buf = appendText(buf, v)
	}
	buf = appendRefs(buf, common.Resource)
	for refs, histograms := range b.SeriesGroups() {
		buf = binary.AppendUvarint(buf, uint64(len(refs)))
		if histograms {
			buf = append(buf, 1)
		} else {
			buf = append(buf, 0)
		}
		for i := range refs {
			r := &refs[i]
			buf = appendRefs(buf, r.Labels)
			buf = append(buf, byte(r.Type))
			buf = binary.AppendUvarint(buf, uint64(r.Unit))
		}
	}
	t.buf = buf
	t.hash.Reset()
	t.hash.Write(buf)
	t.hash.Sum(k[:0])
	return k
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendRefs(dst []byte, refs []series.LabelRef) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(refs)))
	for _, r := range refs {
		dst = binary.AppendUvarint(dst, uint64(r.Name))
		dst = binary.AppendUvarint(dst, uint64(r.Value))
	}
	return dst
}
