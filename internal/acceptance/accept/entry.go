package accept

import (
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// Entry is what the journal says of the batch of this manifest. outcome is not a conflict.
func (m Manifest) Entry(outcome journal.Outcome) journal.Entry {
	return journal.Entry{
		ID: m.Identity, Outcome: outcome, SHA256: m.FrameSHA256, Bytes: m.FrameBytes, Generation: generationOf(m.RawBlobKey),
		At: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime, HomeRegion: m.HomeRegion, ClaimEpoch: m.ClaimEpoch,
	}
}

// Entry is what the journal says of the frame of this record, as far as an audit knows it.
func (c ConflictRecord) Entry() journal.Entry {
	return journal.Entry{
		ID: c.Identity, Outcome: journal.AuditedConflict, SHA256: c.SubmittedSHA256, Generation: generationOf(c.SubmittedBlobKey),
		At: c.ObservedAt, MinTime: c.ObservedAt, MaxTime: c.ObservedAt,
	}
}

// generationOf is where a reader looks first, so a key that names none costs it a listing and nothing else.
func generationOf(key string) uint32 {
	_, gen, err := layout.ParseBlob(key)
	if err != nil {
		return 0
	}
	return gen
}
