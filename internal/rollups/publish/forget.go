package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Forgotten is what a call of Forget found and did.
type Forgotten struct {
	// Records that are left, and those of them that are condemned.
	Records, Condemned int
	// Dropped records of condemned objects.
	Dropped int
	// Era of the epoch that counts now; Began says that this call began it.
	Era   uint32
	Began bool
}

// Forget drops the records of objects that were condemned in an earlier era than this one, and begins the next era where
// Policy.Condemned others are left. It reads all records, and is to be called now and then, by anybody. rand gives the id
// of the next epoch, for when this one has had all of its eras.
//
// A condemned record keeps a transaction that has seen the object from referring to it, and its key from being used again
// while a delete may be under way. Both end with the era in which it was condemned: references of earlier eras are
// refused, so whoever adds one has looked for its objects since, and objects that are made have keys that no earlier era
// had. An object that a late request makes after that is in no block, and is found by a sweep.
func (c *Collector) Forget(ctx context.Context, rand io.Reader) (Forgotten, error) {
	r, err := c.forget(ctx, rand)
	if err != nil {
		return r, fmt.Errorf("forget condemned objects: %w", err)
	}
	return r, nil
}

func (c *Collector) forget(ctx context.Context, rand io.Reader) (Forgotten, error) {
	var r Forgotten
	f, err := c.epoch(ctx)
	if err != nil {
		return r, err
	}
	if !f.Decided {
		return r, ErrEpochOpen
	}
	for after := ""; ; {
		page, next, err := c.cfg.Refs.List(ctx, after, forgetPage)
		if err != nil {
			return r, err
		}
		var old []Record
		for _, rec := range page {
			switch {
			case f.outlived(rec):
				old = append(old, rec)
				continue
			case rec.Condemned:
				r.Condemned++
			}
			r.Records++
		}
		for part := range slices.Chunk(old, MaxAdd) {
			// One that has changed meanwhile was dropped by another collector, or is condemned once more.
			changed, err := c.cfg.Refs.Delete(ctx, f.Token(), part...)
			if err != nil {
				return r, err
			}
			r.Dropped += len(part) - len(changed)
		}
		if after = next; next == "" {
			break
		}
	}
	if r.Era = f.Era; r.Condemned < max(c.cfg.Policy.Condemned, 1) {
		return r, nil
	}
	return r, c.nextEra(ctx, rand, f, &r)
}

// forgetPage is how many records are read at once.
const forgetPage = 1000

// nextEra begins the next era of the epoch, or the next epoch after the last one.
func (c *Collector) nextEra(ctx context.Context, rand io.Reader, f Epoch, r *Forgotten) error {
	if f.Era+1 >= MaxEras {
		next, err := c.initEpoch(ctx, rand, true)
		r.Era, r.Began = next.Era, err == nil
		return err
	}
	next := f
	next.Era++
	err := c.cfg.Refs.InitEpoch(ctx, &f, next)
	if errors.Is(err, ErrChanged) {
		return nil // this call's own after a lost answer, or another collector's
	}
	r.Era, r.Began = next.Era, err == nil
	return err
}
