package compact

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Copier keeps copies of the records of blocks, an object for each day. Nothing depends on them but the requests of
// readers, so two copiers at once, or one that stops in the middle, are harmless. It is for one caller at a time.
type Copier struct {
	store     CopierStore
	authority string
	// each calls fn for 0 to n-1, possibly in parallel.
	each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
	// copied has the digest of the listing that the copies of a day were made of.
	copied map[layout.Day]identity.Digest
}

// CopierStore is what copies need of an object store.
type CopierStore interface {
	objstore.Reader
	objstore.Putter
}

// NewCopier makes one that has copied nothing yet. each calls fn for 0 to n-1, possibly in parallel.
func NewCopier(s CopierStore, authority string, each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error) *Copier {
	return &Copier{s, authority, each, map[layout.Day]identity.Digest{}}
}

// Copy makes the copies of a day as new as the records of its hours up to last. It reports whether it wrote them.
// Where nothing has changed since the last call it costs the listing.
func (c *Copier) Copy(ctx context.Context, day layout.Day, last timegrid.Hour) (written bool, err error) {
	slots, sum, err := c.list(ctx, day, last)
	if err != nil || len(slots) == 0 || c.copied[day] == sum {
		return false, err
	}
	old, err := catalog.ReadCopies(ctx, c.store, c.authority, day)
	if err != nil && !catalog.Unreadable(err) {
		return false, err
	}
	next := &catalog.Copies{AuthorityID: c.authority, Day: day}
	records, err := c.records(ctx, old, slots)
	if err != nil {
		return false, err
	}
	next.Records = records
	next.Sort()
	if old == nil || !slices.EqualFunc(old.Records, next.Records, func(a, b catalog.Copy) bool { return a.Name == b.Name && a.ETag == b.ETag }) {
		if err := c.write(ctx, next); err != nil {
			return false, err
		}
		written = true
	}
	c.copied[day] = sum
	return written, nil
}

// Forget drops what is known of days before the given one.
func (c *Copier) Forget(before layout.Day) {
	for d := range c.copied {
		if d < before {
			delete(c.copied, d)
		}
	}
}

// list gives the slots of the day's hours up to last, and a digest of what the listing said about them.
func (c *Copier) list(ctx context.Context, day layout.Day, last timegrid.Hour) (out []catalog.Slot, sum identity.Digest, err error) {
	h := sha256.New()
	for of, err := range slots(ctx, c.store, day.First(), min(day.Last(), last)) {
		if err != nil {
			return nil, sum, err
		}
		if of.Name.Span > 0 {
			continue // they are found through the blocks that redirect to them
		}
		for _, l := range of.Listed {
			fmt.Fprintf(h, "%s %s\n", l.Info.Key, l.Info.ETag)
		}
		out = append(out, of)
	}
	h.Sum(sum[:0])
	return out, sum, nil
}

// records gives the copies of the records that decide the slots: of each down to the generation that counts. A record
// that can't be read is left out, for readers to find it themselves.
func (c *Copier) records(ctx context.Context, old *catalog.Copies, of []catalog.Slot) ([]catalog.Copy, error) {
	found := make([][]catalog.Copy, len(of))
	err := c.each(ctx, len(of), func(ctx context.Context, i int) error {
		for _, l := range slices.Backward(of[i].Listed) {
			x, err := c.record(ctx, old, l)
			if catalog.Unreadable(err) {
				continue
			}
			if err != nil {
				return err
			}
			if x.ETag != "" {
				found[i] = append(found[i], x)
			}
			if x.Record.Aborted == nil {
				break
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := slices.Concat(found...)
	more, err := c.compactions(ctx, old, out)
	return append(out, more...), err
}

// record copies one record, or takes the copy that there is.
func (c *Copier) record(ctx context.Context, old *catalog.Copies, l catalog.Listed) (catalog.Copy, error) {
	if x := old.Find(l.Name); x != nil && x.ETag != "" && x.ETag == l.Info.ETag {
		return *x, nil
	}
	r, info, err := catalog.Read(ctx, c.store, c.authority, l.Info.Key)
	if err != nil {
		return catalog.Copy{}, err
	}
	// The ETag is that of the read, as the record may have been replaced since it was listed.
	return catalog.Copy{Name: l.Name, ETag: info.ETag, Record: catalog.CopyOf(r)}, nil
}

// compactions copies those that the copied blocks redirect to.
func (c *Copier) compactions(ctx context.Context, old *catalog.Copies, of []catalog.Copy) ([]catalog.Copy, error) {
	var names []catalog.Name
	seen := map[catalog.Name]bool{}
	for _, x := range of {
		if b := x.Record.Block; b != nil && b.Redirect != nil && !seen[b.Redirect.Name] {
			seen[b.Redirect.Name] = true
			names = append(names, b.Redirect.Name)
		}
	}
	found := make([]*catalog.Copy, len(names))
	err := c.each(ctx, len(names), func(ctx context.Context, i int) error {
		if x := old.Find(names[i]); x != nil {
			found[i] = x
			return nil
		}
		r, _, err := catalog.Read(ctx, c.store, c.authority, names[i].Key())
		if catalog.Unreadable(err) || err == nil && r.Block == nil {
			return nil // readers find it themselves
		}
		if err != nil {
			return err
		}
		found[i] = &catalog.Copy{Name: names[i], Record: catalog.CopyOf(r)}
		return nil
	})
	var out []catalog.Copy
	for _, x := range found {
		if x != nil {
			out = append(out, *x)
		}
	}
	return out, err
}

// write writes the copies. Of a day with more than fits it writes the first hours, and the others are read one by one.
func (c *Copier) write(ctx context.Context, next *catalog.Copies) error {
	for {
		body, err := next.Marshal()
		if errors.Is(err, catalog.ErrCopiesTooLarge) {
			next.Records = next.Records[:len(next.Records)/2]
			continue
		}
		if err != nil {
			return err
		}
		_, err = c.store.Put(ctx, layout.RollupCopies(next.Day), body, objstore.PutOptions{ContentType: "application/octet-stream"})
		return err
	}
}
