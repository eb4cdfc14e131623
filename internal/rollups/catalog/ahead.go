package catalog

import (
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// outcome is what the reading of a record gave.
type outcome struct {
	record Record
	info   objstore.Info
	err    error
}

// maxAhead is about how many records are read at once, so that those which wait for their turn take little memory.
const maxAhead = 512

// readAhead reads at once, in two rounds, what the next hours will most likely need: the highest generation of each
// slot that is not cached, and the compactions that these redirect to. It returns how many of the slots are in these
// hours, which are whole. Which records count is decided afterwards, slot by slot; one that is needed and is not here
// is read then.
func (c *Catalog) readAhead(ctx context.Context, slots []Slot) (n int) {
	c.ahead = map[string]outcome{}
	var keys, all []string
	for n < len(slots) && len(keys) < maxAhead {
		from := n
		for n < len(slots) && slots[n].Name.Hour == slots[from].Name.Hour {
			n++
		}
		// In the order in which they are used: when the budget ends, what was read is kept, and the next refresh
		// gets on.
		for _, of := range slices.Backward(slots[from:n]) {
			l := of.Listed[len(of.Listed)-1]
			if c.records.has(l) {
				continue
			}
			all = append(all, l.Info.Key)
			if _, ok := c.copied[l.Info.Key]; !ok {
				keys = append(keys, l.Info.Key)
			}
		}
	}
	c.readAll(ctx, keys)
	c.readAll(ctx, c.compactionsAhead(all))
	return n
}

// compactionsAhead are those that records which are not cached redirect to, and that are not cached either.
func (c *Catalog) compactionsAhead(of []string) (keys []string) {
	asked := map[Name]bool{}
	for _, key := range of {
		o, ok := c.copied[key]
		if !ok {
			o = c.ahead[key]
		}
		if o.record.Block == nil || o.record.Block.Redirect == nil {
			continue
		}
		// Most redirect to the same few.
		to := o.record.Block.Redirect.Name
		if asked[to] {
			continue
		}
		asked[to] = true
		if key := to.Key(); !c.records.hasCompaction(to) {
			if _, there := c.copied[key]; !there {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// readAll reads records in parallel. It leaves half of the budget for those that turn out to be needed.
func (c *Catalog) readAll(ctx context.Context, keys []string) {
	keys = keys[:min(int64(len(keys)), max(c.left.Load()/2, 0))]
	if len(keys) < 2 {
		return
	}
	c.left.Add(-int64(len(keys)))
	read := make([]outcome, len(keys))
	_ = c.cfg.Each(ctx, len(keys), func(ctx context.Context, i int) error {
		read[i].record, read[i].info, read[i].err = Read(ctx, c.cfg.Reader, c.cfg.AuthorityID, keys[i])
		return nil // errors are in read
	})
	for i, key := range keys {
		c.ahead[key] = read[i]
	}
}
