package redundancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// scrubDue reads files back until the pass is through, or has done what is due by now: the files of a period are spread
// over it, as far as the rate allows.
func (k *Keeper) scrubDue(ctx context.Context) error {
	p, epoch, ok := k.resume(&k.scrub, func(p Pass) time.Time { return p.Began }, k.opt.ScrubPeriod)
	if !ok {
		return nil
	}
	for ctx.Err() == nil {
		rows, err := k.ledger.List(p.After, scrubPage)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			p.Ended, p.Last, p.After = k.now(), k.now(), ledger.Key{}
			_, err := k.save(valueOfScrub, &k.scrub, p, epoch)
			return err
		}
		for _, r := range rows {
			if err := k.scrubOne(ctx, r, &p); err != nil {
				return err
			}
			p.After = r.Key
		}
		if current, err := k.save(valueOfScrub, &k.scrub, p, epoch); err != nil || !current {
			return err
		}
		if k.ahead(p) {
			return nil
		}
	}
	return nil
}

const scrubPage = 64

// ahead: more of the files were read than of the period has passed.
func (k *Keeper) ahead(p Pass) bool {
	total := k.ledger.Totals().Rows[ledger.Durable]
	passed := float64(k.now().Sub(p.Began)) / float64(k.opt.ScrubPeriod)
	return float64(p.Files) > passed*scrubLead*float64(total)
}

// scrubLead makes a pass end before its period does: files come meanwhile.
const scrubLead = 1.25

// scrubOne reads one file back. What is damaged is only noted: the file stays where it is until a new one takes its place,
// since its other blocks may be what the body is mended from.
func (k *Keeper) scrubOne(ctx context.Context, r ledger.Row, p *Pass) error {
	// What was read back since the pass began is not read again; a time that is still to come says nothing.
	read := r.Verified > p.Began.UnixNano() && r.Verified <= k.now().UnixNano()
	if r.State != ledger.Durable || !k.isUp(r.Place) || read {
		return nil
	}
	if err := k.scrubs.WaitN(ctx, int(min(max(r.Size, 1), scrubBurst))); err != nil {
		return err
	}
	got, err := k.files.Verify(ctx, fileOf(r))
	p.Files++
	p.Bytes += got.Bytes
	k.count.read(got.Bytes)
	switch {
	case err == nil && r.Checksum != 0 && got.Checksum != r.Checksum:
		err = fmt.Errorf("%w: its checksum is %08x, and was %08x", ErrDamaged, got.Checksum, r.Checksum)
		fallthrough
	case errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist):
		p.Found++
		k.count.lost(err)
		k.opt.Log.Error("a scrub found a file that is missing or damaged", "place", k.tracker.name(r.Place), "file", r.Key.String(), "error", err)
		if err := notRaced(k.apply(r, ledger.Lost, err, nil)); err != nil {
			return err
		}
		k.Needed(r.Body, "a scrub found a file that is missing or damaged")
		return nil
	case err != nil:
		k.failed(r.Place, err)
		return nil
	}
	return notRaced(k.apply(r, ledger.Found, nil, nil))
}

func (k *Keeper) isUp(place string) bool {
	for _, p := range k.tracker.places() {
		if p.ID == place {
			return p.Up
		}
	}
	return false
}

// Scrub makes a pass over all files begin now, also while one is under way.
func (k *Keeper) Scrub() error {
	p, epoch := k.renew(&k.scrub)
	_, err := k.save(valueOfScrub, &k.scrub, p, epoch)
	k.begin(passScrub)
	return err
}
