package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ClaimBoot claims the boot for the spool, or finds that it was claimed for it before. The first
// spool that uses a boot id owns it for ever: any other gets a *RefusedError with
// ReasonBootIDClash and must start a new boot. Other errors are those of Accept.
func (p *Protocol) ClaimBoot(ctx context.Context, boot identity.Boot, spoolID string) error {
	if err := boot.Validate(); err != nil {
		return &RefusedError{Reason: ReasonInvalidSubmission, Err: fmt.Errorf("claim boot: %w", err)}
	}
	if err := ValidSpoolID(spoolID); err != nil {
		return &RefusedError{Reason: ReasonInvalidSubmission, Err: fmt.Errorf("claim boot %s: %w", boot, err)}
	}
	if err := p.claimBoot(ctx, boot, spoolID); err != nil {
		return wrap("claim boot "+boot.String(), err)
	}
	return nil
}

func (p *Protocol) claimBoot(ctx context.Context, boot identity.Boot, spoolID string) error {
	owner, ok := p.boots.Get(boot)
	if !ok {
		var err error
		if owner, err = p.bootOwner(ctx, boot, spoolID); err != nil {
			return err
		}
		p.boots.Put(boot, owner, 1)
	}
	if owner != spoolID {
		p.events.bootClash(layout.Boot(boot))
		return &RefusedError{Reason: ReasonBootIDClash, Err: fmt.Errorf("boot %s belongs to another spool", boot)}
	}
	return nil
}

// bootOwner returns the spool id in the boot's record, which it creates for spoolID if there is none. A boot
// record never changes, so the caller may cache the answer.
func (p *Protocol) bootOwner(ctx context.Context, boot identity.Boot, spoolID string) (string, error) {
	key := layout.Boot(boot)
	body := BootRecord{
		AuthorityID: p.authorityID, Boot: boot, SpoolID: spoolID, Mode: p.mode,
		FirstSeen: max(p.clock.Now().UnixNano(), 0), CollectorID: p.collectorID,
	}.Marshal()
	stored, created, err := objstore.CreateOrGet(ctx, p.store, key, body, MaxRecordBytes, jsonContent)
	switch {
	case created:
		p.events.bootClaimed(key)
		return spoolID, nil
	// The record exists but can't be read. If the context ended, the case below returns its
	// error, as every other step does.
	case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) && ctx.Err() == nil:
		return "", p.corrupt(StepBoot, key, ReasonCorruptBootRecord, err)
	case err != nil:
		return "", p.failed(ctx, StepBoot, err)
	}
	return p.parseOwner(key, stored, boot)
}

func (p *Protocol) parseOwner(key string, stored []byte, boot identity.Boot) (string, error) {
	r, err := ParseBootRecord(stored)
	switch {
	case err != nil:
	// A whole record of another boot or authority under this key was copied there. To trust
	// its spool id could let two machines share one boot.
	case r.Boot != boot:
		err = BootKind.Corrupt("", "it names the boot %s", r.Boot)
	case r.AuthorityID != p.authorityID:
		err = BootKind.Corrupt("", "it is of the authority %q, ours is %q", r.AuthorityID, p.authorityID)
	default:
		return r.SpoolID, nil
	}
	return "", p.corrupt(StepBoot, key, ReasonCorruptBootRecord, err)
}
