package fsck

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// resolutions checks the log of decisions, then boot clashes, then what agents did about decisions.
func (c *checker) resolutions(ctx context.Context) error {
	decided := map[string]resolution.Resolution{} // by the key of the settled record
	next := uint64(1)
	err := c.each(ctx, layout.ResolutionPrefix, func(key string) error {
		if _, _, err := layout.ParseSettled(key); err == nil {
			return nil // below, when all decisions are known
		}
		if _, _, err := layout.ParseParked(key); err == nil {
			return checkNote(ctx, c, key, resolution.ParseParked)
		}
		n, err := layout.ParseResolution(key)
		if err != nil {
			c.found(UnknownKey, key, "%v", err)
			return nil
		}
		if n != next {
			c.found(ResolutionGap, key, "number %d follows %d: collectors read nothing behind the gap", n, next-1)
		}
		next = n + 1
		raw, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
		if err != nil && !objstore.Unreadable(err) {
			return err
		}
		var r resolution.Resolution
		if err == nil {
			r, err = resolution.Parse(key, raw)
		}
		if err != nil {
			c.foundRecord(BadResolution, key, err)
			return nil
		}
		if c.o.AuthorityID != "" && r.AuthorityID != c.o.AuthorityID {
			c.found(BadResolution, key, "authority %q", r.AuthorityID)
		}
		for _, f := range r.Conflicts {
			at := layout.Settled(f.Of(r.AgentID), f.SubmittedSHA256)
			if _, ok := decided[at]; !ok { // the first decision stands
				decided[at] = r
			}
			of := layout.Quarantine(f.Of(r.AgentID), f.SubmittedSHA256)
			if _, err := c.store.Head(ctx, of); errors.Is(err, objstore.ErrNotFound) {
				c.found(BadResolution, key, "it decides about %s, which is not there", of)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.each(ctx, layout.ClashPrefix, func(key string) error {
		if _, _, err := layout.ParseClash(key); err != nil {
			c.found(UnknownKey, key, "%v", err)
			return nil
		}
		return checkNote(ctx, c, key, resolution.ParseClash)
	})
	if err != nil {
		return err
	}
	return c.each(ctx, layout.SettledPrefix, func(key string) error {
		if _, _, err := layout.ParseSettled(key); err != nil {
			return nil // reported above
		}
		raw, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
		if err != nil && !objstore.Unreadable(err) {
			return err
		}
		var s resolution.Settled
		if err == nil {
			s, err = resolution.ParseSettled(key, raw)
		}
		if err != nil {
			c.foundRecord(BadResolution, key, err)
			return nil
		}
		if d, ok := decided[key]; !ok || d.Number != s.Number || d.Action != s.Action {
			c.found(BadResolution, key, "an agent has done %s by resolution %d, which does not say so", s.Action, s.Number)
		}
		return nil
	})
}

// checkNote checks a record that is for people.
func checkNote[T any](ctx context.Context, c *checker, key string, parse func(string, []byte) (T, error)) error {
	raw, _, err := c.store.Get(ctx, key, objstore.GetOptions{})
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	if err == nil {
		_, err = parse(key, raw)
	}
	if err != nil {
		c.foundRecord(BadResolution, key, err)
	}
	return nil
}

// each calls fn with every key under prefix.
func (c *checker) each(ctx context.Context, prefix string, fn func(key string) error) error {
	for i, err := range objstore.List(ctx, c.store, objstore.ListOptions{Prefix: prefix}) {
		if err == nil {
			err = fn(i.Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
