package chunk

import "fmt"

// Reason says why bytes or series are refused. Reasons are stable. A Reason is itself an
// error, so that errors.Is(err, chunk.ChecksumMismatch) works.
type Reason string

// Reasons.
const (
	Truncated          Reason = "CHUNK_TRUNCATED"
	BadMagic           Reason = "CHUNK_BAD_MAGIC"
	UnsupportedVersion Reason = "CHUNK_UNSUPPORTED_VERSION"
	// UnknownEncoding is of a block whose encoding byte names no codec of this program: a
	// newer one wrote it.
	UnknownEncoding  Reason = "CHUNK_UNKNOWN_ENCODING"
	ChecksumMismatch Reason = "CHUNK_CHECKSUM_MISMATCH"
	TooLarge         Reason = "CHUNK_TOO_LARGE"
	BadCompression   Reason = "CHUNK_BAD_COMPRESSION"
	BadBlock         Reason = "CHUNK_BAD_BLOCK"
	BadColumn        Reason = "CHUNK_BAD_COLUMN"
	BadHistogram     Reason = "CHUNK_BAD_HISTOGRAM"
	BadFooter        Reason = "CHUNK_BAD_FOOTER"
	BadIndex         Reason = "CHUNK_BAD_INDEX"
	// BadSeries is returned by writers, for series that no chunk can hold.
	BadSeries Reason = "CHUNK_BAD_SERIES"
	// MissingRange is returned by a Decoder that was not given bytes that Plan names.
	MissingRange Reason = "CHUNK_MISSING_RANGE"
)

func (r Reason) Error() string { return string(r) }

// Error is every error of this package: a stable reason, and a detail for people.
type Error struct {
	Reason Reason
	Detail string
}

func (e *Error) Error() string { return "chunk: " + string(e.Reason) + ": " + e.Detail }

// Unwrap gives the reason.
func (e *Error) Unwrap() error { return e.Reason }

func refuse(r Reason, format string, args ...any) error {
	return &Error{Reason: r, Detail: fmt.Sprintf(format, args...)}
}

// Limits bound what is read. The zero value of a field means its default. Each is
// checked before memory is taken.
type Limits struct {
	BlockBytes   int // of a block as stored, and decompressed: 16 MiB
	IndexBytes   int // of an index as stored, and decompressed: 256 MiB
	IndexMemory  int // of the tables that are built from an index: 1 GiB
	FooterBytes  int // 4 MiB
	BlockSeries  int // slots of a block: 65,536
	Rows         int // of a series in one block: 65,536
	SeriesRows   int // of a series that is read, all its blocks together: 16,777,216
	Series       int // of an index: 4,000,000
	SeriesLabels int // 128
	StringBytes  int // of a label name, value, agent or unit: 64 KiB
	// HistogramValues bounds the buckets and bounds of one histogram column of a series
	// in a block, all rows together: 4,000,000.
	HistogramValues int
}

// DefaultLimits are the limits that the zero value stands for.
func DefaultLimits() Limits {
	return Limits{
		BlockBytes: 16 << 20, IndexBytes: 256 << 20, IndexMemory: 1 << 30, FooterBytes: 4 << 20,
		BlockSeries: 1 << 16, Rows: 1 << 16, SeriesRows: 1 << 24, Series: 4_000_000, SeriesLabels: 128, StringBytes: 64 << 10,
		HistogramValues: 4_000_000,
	}
}

func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.BlockBytes, d.BlockBytes)
	set(&l.IndexBytes, d.IndexBytes)
	set(&l.IndexMemory, d.IndexMemory)
	set(&l.FooterBytes, d.FooterBytes)
	set(&l.BlockSeries, d.BlockSeries)
	set(&l.Rows, d.Rows)
	set(&l.SeriesRows, d.SeriesRows)
	set(&l.Series, d.Series)
	set(&l.SeriesLabels, d.SeriesLabels)
	set(&l.StringBytes, d.StringBytes)
	set(&l.HistogramValues, d.HistogramValues)
	return l
}
