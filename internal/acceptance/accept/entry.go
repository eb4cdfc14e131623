package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// Journal takes what Accept found out, before Accept returns it.
type Journal interface {
	// Add takes an entry and does not wait for the store.
	Add(journal.Entry) (journal.Ticket, error)
}

// enter gives the journal the outcome of a call. It is called only after the manifest, or the
// quarantine record, was observed: an entry can't be taken back, and a create that is still under way
// may lose to another frame.
func (p *Protocol) enter(res Result, submitted Manifest) (journal.Ticket, error) {
	if p.journal == nil {
		return nil, nil
	}
	var e journal.Entry
	switch res.Outcome {
	case Accepted:
		e = res.Manifest.Entry(journal.Accepted)
	case Duplicate:
		// The collector that created the manifest may have died before its entry was durable.
		e = res.Manifest.Entry(journal.Duplicate)
	default:
		if err := p.enterHolder(res.Manifest); err != nil {
			return nil, err
		}
		e = submitted.Entry(journal.Conflict)
	}
	t, err := p.journal.Add(e)
	if err != nil {
		return nil, p.retry(ReasonJournalUnavailable, err)
	}
	return t, nil
}

// enterHolder gives the journal the batch that holds the identity of a conflict: the collector that created its manifest
// may have died before its entry was durable, and its sender never asks again where another one has taken its name. The
// entry stands before that of the conflict, so the answer waits for both, and it costs no request. Of an identity that
// conflicts again and again it is given once as long as it is remembered.
func (p *Protocol) enterHolder(m Manifest) error {
	if _, known := p.holders.Get(m.Identity); known {
		return nil
	}
	if _, err := p.journal.Add(m.Entry(journal.Duplicate)); err != nil {
		return p.retry(ReasonJournalUnavailable, err)
	}
	p.holders.Put(m.Identity, struct{}{}, 1)
	return nil
}

// maxHolders bounds the identities whose holders are remembered; some hundred bytes each.
const maxHolders = 4096

// awaitEntry waits until the entry is durable.
func (p *Protocol) awaitEntry(ctx context.Context, t journal.Ticket) (journal.Position, error) {
	if t == nil {
		return journal.Position{}, nil
	}
	at, err := t.Wait(ctx)
	if err == nil {
		return at, nil
	}
	// A caller that has left decided nothing. A deadline that passed did so because of the journal, and
	// the sender's answer names that.
	if e := ctx.Err(); e != nil && !errors.Is(e, context.DeadlineExceeded) {
		return journal.Position{}, fmt.Errorf("journal: %w (%v)", e, err)
	}
	return journal.Position{}, p.retry(ReasonJournalUnavailable, err)
}

// Entry is what the journal says of the batch of this manifest; for a conflict, the manifest is the
// one that the submitted frame would have got.
func (m Manifest) Entry(outcome journal.Outcome) journal.Entry {
	return journal.Entry{
		ID: m.Identity, Outcome: outcome, SHA256: m.FrameSHA256, Bytes: m.FrameBytes, Generation: generationOf(m.RawBlobKey), Inline: m.Inline,
		At: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime, HomeRegion: m.HomeRegion, ClaimEpoch: m.ClaimEpoch,
	}
}

// Entry is what the journal says of the frame of this record, as far as an audit knows it.
func (c ConflictRecord) Entry() journal.Entry {
	return journal.Entry{
		ID: c.Identity, Outcome: journal.AuditedConflict, SHA256: c.SubmittedSHA256, Bytes: c.SubmittedBytes,
		Generation: generationOf(c.SubmittedBlobKey), Inline: c.Inline(),
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
