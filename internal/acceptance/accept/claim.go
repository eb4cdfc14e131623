package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ClaimBoot makes the boot this spool's, or finds that it is. The first spool that
// uses a boot id has it for ever: any other gets a *RefusedError with
// ReasonBootIDClash and must start a new boot. Errors else are as those of Accept.
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

// bootOwner returns the spool id in the boot's record, ours if it had none. A boot
// record never changes, so the answer can be kept.
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
	case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) && ctx.Err() == nil:
		return "", p.corrupt(StepBoot, key, ReasonCorruptBootRecord, err)
	case err != nil:
		return "", p.failed(ctx, StepBoot, err)
	}
	return p.ownerIn(key, stored, boot)
}

func (p *Protocol) ownerIn(key string, stored []byte, boot identity.Boot) (string, error) {
	r, err := ParseBootRecord(stored)
	switch {
	case err != nil:
	case r.Boot != boot:
		err = BootKind.Corrupt("", "it names the boot %s", r.Boot)
	case r.AuthorityID != p.authorityID:
		err = BootKind.Corrupt("", "it is of the authority %q, ours is %q", r.AuthorityID, p.authorityID)
	default:
		return r.SpoolID, nil
	}
	return "", p.corrupt(StepBoot, key, ReasonCorruptBootRecord, err)
}
