package frame

import "fmt"

// Reason says why a frame or a batch is refused. Reasons are stable, because they are
// sent to the sender. A Reason is itself an error, so that
// errors.Is(err, frame.ChecksumMismatch) works.
type Reason string

// Reasons.
const (
	Truncated           Reason = "FRAME_TRUNCATED"
	TrailingBytes       Reason = "FRAME_TRAILING_BYTES"
	BadMagic            Reason = "BAD_MAGIC"
	UnsupportedVersion  Reason = "UNSUPPORTED_VERSION"
	UnsupportedFlags    Reason = "UNSUPPORTED_FLAGS"
	BadHeader           Reason = "BAD_HEADER"
	TooLarge            Reason = "FRAME_TOO_LARGE"
	DecodedTooLarge     Reason = "DECODED_TOO_LARGE"
	RatioTooHigh        Reason = "RATIO_TOO_HIGH"
	ChecksumMismatch    Reason = "CHECKSUM_MISMATCH"
	IdentityMismatch    Reason = "IDENTITY_MISMATCH"
	IdentityInvalid     Reason = "IDENTITY_INVALID"
	RecordCountMismatch Reason = "RECORD_COUNT_MISMATCH"
	TooManyRecords      Reason = "TOO_MANY_RECORDS"
	BadLabels           Reason = "BAD_LABELS"
	BadColumn           Reason = "BAD_COLUMN"
	BadHistogram        Reason = "BAD_HISTOGRAM"
	BadHelp             Reason = "BAD_HELP"
	BadPayload          Reason = "BAD_PAYLOAD"
	BadCompression      Reason = "BAD_COMPRESSION"
	// BadJSON is for receivers that refuse the JSON form of a batch.
	BadJSON Reason = "BAD_JSON"
	// TimeSpanTooWide is for receivers: this package itself accepts any times.
	TimeSpanTooWide Reason = "TIME_SPAN_TOO_WIDE"
)

func (r Reason) Error() string { return string(r) }

// Error is the type of all errors of this package: a stable reason, and a detail for people.
type Error struct {
	Reason Reason
	Detail string
}

func (e *Error) Error() string { return "frame: " + string(e.Reason) + ": " + e.Detail }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

func refuse(r Reason, format string, args ...any) error {
	return &Error{Reason: r, Detail: fmt.Sprintf(format, args...)}
}
