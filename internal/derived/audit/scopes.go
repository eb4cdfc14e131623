package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// full goes through the agents of a shard, in passes. Both families are in the order of their keys, so one cursor
// says where the shard is.
func (a *Auditor) full(ctx context.Context, s *Stored, from, until string) error {
	for _, f := range families() {
		at := max(from, f.agentAt(s.Cursor))
		for s.Cursor < f.end(until) {
			p, err := a.newPass(s, at, until, false)
			if err == nil {
				err = p.readSince(ctx, 0)
			}
			if err != nil {
				return err
			}
			at = p.known.end()
			if err := p.list(ctx, f, f.start(from), f.end(at)); err != nil {
				return err
			}
			if err := p.save(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// news lists, of each boot of a shard that has something new, what comes from there on.
func (a *Auditor) news(ctx context.Context, r, s *Stored, from, until string) error {
	var p *pass
	for _, f := range families() {
		at := max(from, f.agentAt(s.Cursor))
		for s.Cursor < f.end(until) {
			// The same pass is good for both families where all of the shard fits into it.
			if p == nil || p.known.from > at || p.known.end() != until {
				var err error
				if p, err = a.newPass(s, at, until, true); err == nil {
					err = p.readSince(ctx, r.Since)
				}
				if err != nil {
					return err
				}
			}
			end := p.known.end()
			if err := p.newsOf(ctx, f, end); err != nil {
				return err
			}
			s.Cursor = max(s.Cursor, f.end(end))
			if err := p.save(ctx); err != nil {
				return err
			}
			at = end
		}
	}
	return nil
}

// newsOf lists the news of a pass in one family.
func (p *pass) newsOf(ctx context.Context, f *family, until string) error {
	boots, err := p.active(ctx, f, until)
	if err != nil {
		return err
	}
	for _, b := range boots {
		if end := layout.BootEnd(f.prefix, b.Boot); p.s.Cursor < end {
			if err := p.list(ctx, f, layout.BootFrom(f.prefix, b.Boot, b.first), end); err != nil {
				return err
			}
		}
	}
	return nil
}

// activeBoot is a boot that has news, and the first sequence number that is listed.
type activeBoot struct {
	identity.Boot
	first uint64
}

// active are the boots with entries of the family among those that were read, in the order of their keys; and those that the journal does not
// know: a boot's record is created before its first manifest.
func (p *pass) active(ctx context.Context, f *family, until string) ([]activeBoot, error) {
	var out []activeBoot
	boots := p.known.boots()
	for b, n := range boots {
		switch {
		case f == &conflictFamily && n.hasConflict:
			out = append(out, activeBoot{b, n.conflict})
		case f == &acceptedFamily && n.hasAccepted:
			first := n.accepted
			// What was in flight beside the first new batch may have come before it.
			if p.a.Ledgers != nil {
				first = p.a.Ledgers.GapBefore(b, first)
			}
			out = append(out, activeBoot{b, first})
		}
	}
	if f == &acceptedFamily {
		unknown, err := p.unknown(ctx, boots, until)
		if err != nil {
			return nil, err
		}
		out = append(out, unknown...)
	}
	slices.SortFunc(out, func(x, y activeBoot) int {
		return strings.Compare(layout.AcceptedBoot(x.Boot), layout.AcceptedBoot(y.Boot))
	})
	return out, nil
}

// unknown are the boots that have a record and no entry in the journal.
func (p *pass) unknown(ctx context.Context, known map[identity.Boot]firsts, until string) ([]activeBoot, error) {
	var out []activeBoot
	f := family{prefix: layout.BootsPrefix}
	for o, err := range objstore.List(ctx, p.a.paced(), objstore.ListOptions{Prefix: f.prefix, StartAfter: f.start(p.known.from)}) {
		if err != nil {
			return nil, err
		}
		if o.Key >= f.end(until) {
			break
		}
		b, err := layout.ParseBoot(o.Key)
		if n := known[b]; err == nil && !n.hasAccepted && (p.a.Ledgers == nil || !p.a.Ledgers.HasBoot(b)) {
			out = append(out, activeBoot{b, 0})
		}
	}
	return out, nil
}

// inventory goes through the files of a shard, in passes over ranges of agents: their keys are in no order.
func (a *Auditor) inventory(ctx context.Context, r *Stored, shard int, s *Stored) error {
	inv, err := a.Inventory(ctx, r.Inventory)
	if err != nil {
		return err
	}
	if inv.Files != r.Files {
		return fmt.Errorf("%w: the inventory %q has %d files, and had %d", objstore.ErrInvalid, r.Inventory, inv.Files, r.Files)
	}
	last := acceptedFamily.end("")
	for s.Cursor < last {
		from := acceptedFamily.agentAt(s.Cursor)
		p, err := a.newPass(s, from, "", false)
		if err == nil {
			err = p.readSince(ctx, 0)
		}
		if err != nil {
			return err
		}
		until := p.known.end()
		// The record keeps the counts of whole ranges.
		whole := s.Record
		for file := shard; file < inv.Files; file += r.ShardCount() {
			err := inv.Read(ctx, file, func(key string) error { return p.inventoried(ctx, key, from, until) })
			if err == nil {
				err = p.renew(ctx, whole)
			}
			if err != nil {
				return err
			}
		}
		s.Cursor = acceptedFamily.end(until)
		if err := p.save(ctx); err != nil {
			return err
		}
	}
	return nil
}

// inventoried deals with one key of an inventory.
func (p *pass) inventoried(ctx context.Context, key, from, until string) error {
	for _, f := range families() {
		if !strings.HasPrefix(key, f.prefix) {
			continue
		}
		// A key that has no agent belongs to the first range.
		if id, _, err := f.parse(key); id.Agent < from || err == nil && until != "" && id.Agent >= until {
			return nil
		}
		p.key(f, key)
		if len(p.missing) >= maxMissing {
			return p.resolve(ctx)
		}
	}
	return nil
}

// renew moves the record as it was, so that the shard stays this process's.
func (p *pass) renew(ctx context.Context, whole Record) error {
	now, err := p.a.date(ctx)
	if err != nil || now.Sub(time.Unix(p.s.UpdatedAt, 0)) <= p.a.Lease/4 {
		return err
	}
	counted := p.s.Record
	p.s.Record = whole
	err = p.a.save(ctx, p.s)
	counted.UpdatedAt = p.s.UpdatedAt
	p.s.Record = counted
	return err
}
