// Package shapes recognises the tables of series that many batches share. An agent mostly
// sends the same series again: what was found out for the first batch of a shape (which
// series each place of its groups is) holds for all that follow, and costs one hash of their
// tables instead of a look-up for each series.
package shapes

import (
	"crypto/sha256"
	"encoding/binary"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Batch is what a shape is made of; frame.Batch is one.
type Batch interface {
	// Common are the strings and the resource labels.
	Common() *series.Table
	// Parts is the number of groups.
	Parts() int
	// Part gives the series of a group, and whether it has histograms.
	Part(i int) (refs []series.Ref, histograms bool)
}

// Table finds what its user keeps of each shape, an S. Its key is made of the agent where
// that tells series apart, strings, resource labels, and of every group its kind and its
// series with their types and units. Start times are not in it. Not for concurrent use.
type Table[S any] struct {
	shapes map[string]*S
	digest bool
	key    []byte // of the last Find
	sum    [sha256.Size]byte
}

// Place is where a series stands in a shape: in one of its groups, which are G.
type Place[G any] struct {
	Group *G
	At    uint32
}

// NewTable returns an empty table that keeps a SHA-256 of each key: for shapes that stay long.
func NewTable[S any]() *Table[S] { return &Table[S]{shapes: map[string]*S{}, digest: true} }

// NewExactTable returns an empty table that keeps whole keys: a batch then costs no SHA-256,
// and a shape some KiB.
func NewExactTable[S any]() *Table[S] { return &Table[S]{shapes: map[string]*S{}} }

// Find gives the shape of b; nil when there is none yet. agent is empty where it does not
// tell series apart.
func (t *Table[S]) Find(agent string, b Batch) *S {
	t.key = appendBatch(t.key[:0], agent, b)
	if t.digest {
		t.sum = sha256.Sum256(t.key)
		t.key = append(t.key[:0], t.sum[:]...)
	}
	return t.shapes[string(t.key)]
}

// Enter keeps s for the batch of the last Find, and returns the key of the shape.
func (t *Table[S]) Enter(s *S) (key string) {
	key = string(t.key)
	t.shapes[key] = s
	return key
}

// Drop takes a shape out.
func (t *Table[S]) Drop(key string) { delete(t.shapes, key) }

// Len is the number of shapes.
func (t *Table[S]) Len() int { return len(t.shapes) }

// Clear takes all shapes out.
func (t *Table[S]) Clear() { clear(t.shapes) }

// KeyBytes is the size of the key of the last Find.
func (t *Table[S]) KeyBytes() int { return len(t.key) }

func appendBatch(buf []byte, agent string, b Batch) []byte {
	common := b.Common()
	buf = appendText(buf, agent)
	buf = binary.AppendUvarint(buf, uint64(len(common.Strings)))
	for _, v := range common.Strings {
		buf = appendText(buf, v)
	}
	buf = appendRefs(buf, common.Resource)
	for i := range b.Parts() {
		refs, histograms := b.Part(i)
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
	return buf
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
