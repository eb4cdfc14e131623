package gc

// Reason says why a blob was kept. Values are stable.
type Reason string

// Reasons of a plan.
const (
	Young   Reason = "YOUNG"       // newer than the minimum age
	Named   Reason = "JOURNALLED"  // an entry of the journal names it
	Foreign Reason = "UNKNOWN_KEY" // not a blob key: reported, never touched
)

// Reasons of an execution.
const (
	Accepted         Reason = "ACCEPTED"          // the identity's manifest has this hash
	Quarantined      Reason = "QUARANTINED"       // a quarantine record has this hash
	FrameUnreadable  Reason = "FRAME_UNREADABLE"  // no valid header, or another length: an operator must check it
	RecordUnreadable Reason = "RECORD_UNREADABLE" // a manifest is there and can't be used: an operator must check it
	MarkerUnknown    Reason = "MARKER_UNKNOWN"    // the condemned marker could not be confirmed
	EpochAwaited     Reason = "EPOCH_AWAITED"     // a collector may not know yet that it is condemned
	StoreFailed      Reason = "STORE_FAILED"      // a read could not be answered
	Gone             Reason = "GONE"              // the object no longer exists
	DryRun           Reason = "DRY_RUN"           // would be condemned now
)

// Doubtful reports whether an operator must check the blob.
func (r Reason) Doubtful() bool {
	return r == FrameUnreadable || r == RecordUnreadable || r == Foreign
}

// undecided reports whether the same question may have another answer later, and nobody but the collection asks it.
func (r Reason) undecided() bool { return r == StoreFailed || r == MarkerUnknown }

// Kept is a blob that stays, and why.
type Kept struct {
	Key    string
	Reason Reason
	Detail string
}
