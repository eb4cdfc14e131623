package frame

import (
	"math"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Validate checks everything that Decode guarantees about a batch. Errors are *Error.
func (b *Batch) Validate(lim Limits) error {
	lim = lim.orDefault()
	if err := b.Identity.Validate(); err != nil {
		return refuse(IdentityInvalid, "%v", err)
	}
	if n := b.Identity.Count(); n > uint64(lim.Records) {
		return refuse(TooManyRecords, "%d records, at most %d", n, lim.Records)
	}
	if len(b.Strings) == 0 || b.Strings[0] != "" {
		return refuse(BadPayload, "string 0 is not the empty string")
	}
	for i, s := range b.Strings[1:] {
		if s == "" || !validText(s) {
			return refuse(BadLabels, "string %d is empty or not UTF-8", i+1)
		}
	}
	if err := b.validateLabels(b.Resource, false, &lim); err != nil {
		return err
	}
	if n := b.tableCost(); n > lim.DecodedBytes {
		return refuse(DecodedTooLarge, "tables need %d bytes of memory, at most %d", n, lim.DecodedBytes)
	}
	var records uint64
	for i := range b.Groups {
		g := &b.Groups[i]
		if err := b.validateGroup(g, &lim); err != nil {
			return err
		}
		n := uint64(len(g.Series)) * uint64(len(g.Timestamps))
		// Enough to know that the counts differ. Further groups could overflow the sum.
		if records += n; n > uint64(lim.Records) || records > b.Identity.Count() {
			break
		}
	}
	if records != b.Identity.Count() {
		return refuse(RecordCountMismatch, "%d records or more, the identity has %d", records, b.Identity.Count())
	}
	return b.validateHelps(&lim)
}

// tableCost is the memory, in bytes, that a reader counts against DecodedBytes. It has to equal the sum of all spend calls, so that a sender refuses what its receiver would.
func (b *Batch) tableCost() int {
	n := len(b.Strings)*stringCost + len(b.Resource)*labelCost
	for _, s := range b.Strings {
		n += len(s)
	}
	for _, h := range b.Helps {
		n += helpCost + len(h.Text)
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		n += groupCost + len(g.Series)*seriesCost + len(g.Histograms)*histogramCost
		for k := range g.Series {
			n += len(g.Series[k].Labels) * labelCost
		}
		for k := range g.Histograms {
			h := &g.Histograms[k]
			n += 8*(len(h.PositiveBuckets)+len(h.NegativeBuckets)+len(h.CustomValues)) + 4*(len(h.PositiveSpans)+len(h.NegativeSpans))
		}
	}
	return n
}

func (b *Batch) validateGroup(g *Group, lim *Limits) error {
	rows := len(g.Timestamps)
	if rows == 0 || len(g.Series) == 0 {
		return refuse(BadPayload, "group of %d series and %d rows", len(g.Series), rows)
	}
	for i := 1; i < rows; i++ {
		if g.Timestamps[i] <= g.Timestamps[i-1] {
			return refuse(BadColumn, "timestamps: row %d is not after row %d", i, i-1)
		}
	}
	n := rows * len(g.Series)
	if len(g.Values)+len(g.Histograms) != n || (len(g.Values) > 0 && len(g.Histograms) > 0) {
		return refuse(BadColumn, "%d values and %d histograms for %d records", len(g.Values), len(g.Histograms), n)
	}
	for i := range g.Series {
		if err := b.validateSeries(&g.Series[i], len(g.Histograms) > 0, lim); err != nil {
			return err
		}
	}
	for i := range g.Histograms {
		if err := validateHistogram(&g.Histograms[i]); err != nil {
			return err
		}
	}
	return nil
}

func validateHistogram(h *series.Histogram) error {
	custom := h.Schema == series.CustomBounds
	if !custom && (h.Schema < -9 || h.Schema > 52) {
		return refuse(BadHistogram, "schema %d", h.Schema)
	}
	if !custom && len(h.CustomValues) > 0 {
		return refuse(BadHistogram, "schema %d with %d custom bounds", h.Schema, len(h.CustomValues))
	}
	if custom && len(h.PositiveSpans) > 0 && h.PositiveSpans[0] < 0 {
		return refuse(BadHistogram, "bucket before the first custom bound")
	}
	if custom && len(h.NegativeSpans)+len(h.NegativeBuckets) > 0 {
		return refuse(BadHistogram, "negative buckets with custom bounds")
	}
	for i, v := range h.CustomValues {
		if math.IsNaN(v) || math.IsInf(v, 0) || (i > 0 && v <= h.CustomValues[i-1]) {
			return refuse(BadHistogram, "custom bound %d is not finite or not above the one before", i)
		}
	}
	if !(h.ZeroThreshold >= 0) || math.IsInf(h.ZeroThreshold, 0) {
		return refuse(BadHistogram, "zero threshold %v", h.ZeroThreshold)
	}
	if !validCount(h.ZeroCount) || !validCount(h.Count) {
		return refuse(BadHistogram, "zero count %v, count %v", h.ZeroCount, h.Count)
	}
	if err := validateBuckets(h.PositiveSpans, h.PositiveBuckets); err != nil {
		return err
	}
	if custom && spansEnd(h.PositiveSpans) > int64(len(h.CustomValues))+1 {
		return refuse(BadHistogram, "bucket beyond the %d custom bounds", len(h.CustomValues))
	}
	if err := validateBuckets(h.NegativeSpans, h.NegativeBuckets); err != nil || custom {
		return err
	}
	most := farthestBucket(h.Schema)
	for _, spans := range [][]int32{h.PositiveSpans, h.NegativeSpans} {
		if at := farthest(spans); at > most {
			return refuse(BadHistogram, "bucket %d of schema %d: at most %d, which no float64 lies beyond", at, h.Schema, most)
		}
	}
	return nil
}

// farthestBucket bounds the index of a bucket, in either direction: all values of float64 lie within. Evaluation counts in 32 bits,
// and would not come out at the bucket that was meant, or at none, in every query that meets the series.
func farthestBucket(schema int32) int64 {
	const exponents = 11 // float64 has values from 2^-1074 to 2^1024
	return 1 << max(10, min(exponents+schema, 30))
}

// farthest is the largest distance from 0 that spans reach, those without buckets included.
func farthest(spans []int32) (most int64) {
	at := int64(0)
	for i, v := range spans {
		// From the first bucket of a span to its last one, and behind it.
		if at += int64(v); i%2 == 0 || v > 0 {
			most = max(most, at, -at)
		}
	}
	return most
}

func validCount(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

func spansEnd(spans []int32) int64 {
	var n int64
	for _, v := range spans {
		n += int64(v)
	}
	return n
}

func validateBuckets(spans []int32, buckets []float64) error {
	if len(spans)%2 != 0 {
		return refuse(BadHistogram, "span without a length")
	}
	n := int64(0)
	for i := 0; i < len(spans); i += 2 {
		if spans[i+1] < 0 || (i > 0 && spans[i] < 0) {
			return refuse(BadHistogram, "span %d has offset %d and length %d", i/2, spans[i], spans[i+1])
		}
		n += int64(spans[i+1])
	}
	if n != int64(len(buckets)) {
		return refuse(BadHistogram, "spans of %d buckets, %d counts", n, len(buckets))
	}
	for i, v := range buckets {
		if !validCount(v) {
			return refuse(BadHistogram, "bucket %d has count %v", i, v)
		}
	}
	return nil
}
