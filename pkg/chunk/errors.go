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
	ChecksumMismatch   Reason = "CHUNK_CHECKSUM_MISMATCH"
	TooLarge           Reason = "CHUNK_TOO_LARGE"
	BadCompression     Reason = "CHUNK_BAD_COMPRESSION"
	BadBlock           Reason = "CHUNK_BAD_BLOCK"
	BadColumn          Reason = "CHUNK_BAD_COLUMN"
	BadHistogram       Reason = "CHUNK_BAD_HISTOGRAM"
	BadFooter          Reason = "CHUNK_BAD_FOOTER"
	BadIndex           Reason = "CHUNK_BAD_INDEX"
	// BadSeries is of the writer: series that no chunk can hold.
	BadSeries Reason = "CHUNK_BAD_SERIES"
	// MissingRange is of the decoder: bytes that Plan names were not handed in.
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
