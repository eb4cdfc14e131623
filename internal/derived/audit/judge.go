package audit

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Judgement is what becomes of a manifest that stands in no run of the journal.
type Judgement struct {
	// Finding says what the manifest is.
	Finding Finding
	// Entry is to be written, of a Counted one and of a Quarantined one.
	Entry journal.Entry
	// Settle is called once the entry is durable; nil is nothing. Where it fails, somebody else does it later.
	Settle func(context.Context) error
}

// Finding is what a manifest is.
type Finding uint8

// Findings.
const (
	// Counted: the batch was accepted, and this authority counts it.
	Counted Finding = iota + 1
	// Copy: another region counts the batch, and this is a second copy of it.
	Copy
	// Quarantined: the batch lost to another one; its quarantine record was written.
	Quarantined
	// Undecided: nobody has it yet, or its frame is lost. It is asked about again later.
	Undecided
)

// judge deals with an identity manifest that stands in no run, where a judge is asked.
func (p *pass) judge(ctx context.Context, key string, b []byte, id identity.Batch) error {
	m, err := accept.ParseManifest(b)
	if err == nil && m.Identity != id {
		err = accept.ManifestKind.Corrupt("", "it is of %s", m.Identity)
	}
	if err != nil || m.AuthorityID != p.a.Authority {
		p.unusable(key, err == nil, &acceptedFamily)
		return nil
	}
	j, err := p.a.Judge(ctx, m)
	if err != nil {
		return err
	}
	switch j.Finding {
	case Copy:
		p.s.Copies++
		p.s.CopyBytes += m.FrameBytes
		return nil
	case Undecided:
		p.s.Undecided++
		return nil
	}
	if j.Finding == Quarantined {
		p.s.Quarantined++
		if p.known.has(id, m.FrameSHA256) {
			return nil // as a conflict, since an earlier audit
		}
	}
	if _, err := p.a.Writer.Add(j.Entry); err != nil {
		return err
	}
	if j.Finding == Counted {
		p.s.Journalled++
	}
	if j.Settle != nil {
		p.settles = append(p.settles, j.Settle)
	}
	return nil
}

// settle is called when the entries are durable.
func (p *pass) settle(ctx context.Context) {
	for _, fn := range p.settles {
		// Whoever follows the claims of this region settles what this leaves.
		_ = fn(ctx)
	}
	p.settles = nil
}
