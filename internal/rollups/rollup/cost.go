package rollup

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// The memory of an hour from its first frame to its last chunk: the series being built, their rows as they arrive
// and as they are written, the rows of all resolutions, and the tables and buffers of the encoder. Measured on the
// live heap (TestCostOfAnHour): random values, which do not compress, cost what these constants say, others down
// to half of it.
const (
	// seriesCost is the cost of a series without rows, labelCost that of each byte of its agent, labels and unit:
	// stored, in the lookup table, and encoded.
	seriesCost = 2000
	labelCost  = 3
	// recordCost of a record, and rowCost of the records that make a row of 1m: the first rolledRows of a series.
	recordCost = 30
	rowCost    = 69
	rolledRows = 60
	// histogramCost of a record that is a histogram, without its buckets; once raw, and once for each of its three
	// rolled columns.
	histogramCost = 250
	histogramRows = 4
)

// ErrTooLarge: the part of the hour does not fit into the memory of the builder.
var ErrTooLarge = errors.New("the hour does not fit into memory")

// TooLargeError says what limit was exceeded, with how many parts. It wraps ErrTooLarge.
type TooLargeError struct {
	Limit int64
	Parts uint32
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: in %d parts, one takes more than %d bytes", ErrTooLarge, max(e.Parts, 1), e.Limit)
}

// Unwrap gives ErrTooLarge.
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// Cost estimates the bytes of memory of series that together have that many records; their identities (agent,
// labels, unit) have keyBytes each.
func Cost(series, records uint64, keyBytes int) int64 {
	return int64(series)*int64(seriesCost+labelCost*keyBytes) + int64(records)*recordCost + int64(min(records, rolledRows*series))*rowCost
}

// costOfHistogram is the cost of one record; rolled says whether it becomes a row of 1m.
func costOfHistogram(h *series.Histogram, rolled bool) int64 {
	n := int64(histogramCost + 8*(len(h.PositiveBuckets)+len(h.NegativeBuckets)+len(h.CustomValues)) + 4*(len(h.PositiveSpans)+len(h.NegativeSpans)))
	if rolled {
		return histogramRows * n
	}
	return n
}
