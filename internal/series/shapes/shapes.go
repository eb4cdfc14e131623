// Package shapes recognises tables of series that many batches share. An agent mostly sends
// the same series again. Which series is at each place of the groups is found out once for
// the first batch of a shape, and for every further one it takes one hash of its tables
// instead of a look-up for each series.
package shapes

import (
	"crypto/sha256"
	"encoding/binary"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Batch is the part of a batch that its shape depends on; frame.Batch implements it.
type Batch interface {
	// Common returns the strings and the resource labels.
	Common() *series.Table
	// Parts is the number of groups.
	Parts() int
	// Part returns the series of a group, and whether it has histograms.
	Part(i int) (refs []series.Ref, histograms bool)
}

// Table maps each shape to an S of its user. The key of a shape consists of the agent (where
// it distinguishes series), the strings, the resource labels and, for every group, its kind
// and its series with their types and units. Start times are not part of it, because each
// restart changes them. Not for concurrent use.
type Table[S any] struct {
	shapes map[string]*S
	digest bool
	key    []byte // of the last Find
	sum    [sha256.Size]byte
}

// Place is the position of a series in a shape: index At of a group, which is a G of the user.
type Place[G any] struct {
	Group *G
	At    uint32
}

// NewTable returns an empty table that keeps a SHA-256 of each key, which suits shapes that
// are kept for long: 32 bytes instead of some KiB each.
func NewTable[S any]() *Table[S] { return &Table[S]{shapes: map[string]*S{}, digest: true} }

// NewExactTable returns an empty table that keeps whole keys: a look-up needs no SHA-256, but
// a shape takes some KiB.
func NewExactTable[S any]() *Table[S] { return &Table[S]{shapes: map[string]*S{}} }

// Find returns the S of the shape of b; nil if there is none yet. agent is empty where it
// does not distinguish series.
func (t *Table[S]) Find(agent string, b Batch) *S {
	t.key = appendBatch(t.key[:0], agent, b)
	if t.digest {
		t.sum = sha256.Sum256(t.key)
		t.key = append(t.key[:0], t.sum[:]...)
	}
	return t.shapes[string(t.key)]
}

// Enter stores s for the shape of the last Find, and returns the key of the shape.
func (t *Table[S]) Enter(s *S) (key string) {
	key = string(t.key)
	t.shapes[key] = s
	return key
}

// Drop removes a shape.
func (t *Table[S]) Drop(key string) { delete(t.shapes, key) }

// Len is the number of shapes.
func (t *Table[S]) Len() int { return len(t.shapes) }

// Clear removes all shapes.
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
