// Package frame reads and writes batch frames (.lmbatch), byte for byte as in
// docs/format/frame.md: a header with the identity within the first KiB, and a
// protobuf payload (proto/lightmetrics/frame/v1). The payload is encoded and decoded by
// hand, without an allocation per sample. Every bound is checked before memory is allocated.
package frame

import (
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Batch is a decoded payload. Its parts share memory, which a Decoder reuses: a Batch is
// valid until the next Decode into it. Its strings stay valid after that, but each keeps
// the memory of the batch's whole string table.
type Batch struct {
	Identity identity.Batch
	series.Table
	// Groups in record order.
	Groups []Group
	// Helps by ascending Name. Most batches have none: see docs/format/frame.md.
	Helps []Help

	arena arena
}

// arena is the memory that the parts of a Batch share, and which the next Decode reuses.
type arena struct {
	table                         []byte // the columns that Strings was built from; empty if there are none
	prefixLen, lengthLen, textLen int    // bytes of the table's first two columns, and of all strings
	text                          []byte // scratch
	kept                          keptTables
	refs                          []series.LabelRef
	floats                        []float64
	spans                         []int32
}

// Group is a dense matrix: every series has one record in every row. Record order
// in a batch is group by group, series by series, row by row; record k of the batch
// has the sequence number SeqStart + k.
type Group struct {
	// Timestamps of the rows, Unix nanoseconds, strictly increasing.
	Timestamps []int64
	Series     []series.Ref
	// Values, series-major, len(Series)*len(Timestamps); nil in a group of histograms.
	Values []float64
	// Histograms, series-major; nil in a group of samples.
	Histograms []series.Histogram
}

// Common returns the table of strings and resource labels.
func (b *Batch) Common() *series.Table { return &b.Table }

// Parts is the number of groups, for internal/series/shapes.
func (b *Batch) Parts() int { return len(b.Groups) }

// Part returns the series of group i, and whether it has histograms.
func (b *Batch) Part(i int) (refs []series.Ref, histograms bool) {
	return b.Groups[i].Series, len(b.Groups[i].Histograms) > 0
}

// Records counts the records: the sum over groups of series times rows.
func (b *Batch) Records() uint64 {
	var n uint64
	for i := range b.Groups {
		n += uint64(len(b.Groups[i].Series)) * uint64(len(b.Groups[i].Timestamps))
	}
	return n
}
