package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// pass compares keys of a shard with what the journal has, over the agents whose entries fit into memory.
type pass struct {
	a        *Auditor
	s        *Stored // the shard's record
	known    *known
	follower *journal.Follower
	// missing are keys that were listed and of which no entry is known yet.
	missing []missing
	// settles are called once the entries that were added are durable.
	settles []func(context.Context) error
	// requests since the record was last moved.
	requests int
}

type missing struct {
	f   *family
	key string
}

func (a *Auditor) newPass(s *Stored, from, until string, active bool) (*pass, error) {
	k, err := newKnown(a.Rand, from, until, cmp.Or(a.MaxInMemory, defaultMaxInMemory), active)
	return &pass{a: a, s: s, known: k}, err
}

// readSince reads what was folded after a move, 0 being the beginning, and what is not folded. Segments that are folded and
// not deleted yet do not count: the file that has them may be one that was lost and dropped.
func (p *pass) readSince(ctx context.Context, since uint64) error {
	store := p.a.paced()
	head, _, err := journal.ReadHead(ctx, store)
	if err != nil {
		return err
	}
	files, err := head.FilesAfter(ctx, store, since)
	if err != nil {
		return err
	}
	fan := p.a.Fan
	if fan == nil {
		fan = journal.OneByOne
	}
	err = fan(ctx, len(files), func(ctx context.Context, i int) error {
		es, err := journal.ReadFile(ctx, store, files[i])
		p.known.add(es)
		return err
	})
	if err != nil {
		return err // a file that was merged into another one meanwhile too: the next try reads the new head
	}
	if p.follower, err = p.known.follow(p.a, head.Positions()); err != nil {
		return err
	}
	_, err = p.follower.Poll(ctx)
	p.known.keep()
	return err
}

// list goes through the keys after the cursor and the first, and before the second, to which the cursor is then moved.
func (p *pass) list(ctx context.Context, f *family, after, before string) error {
	o := objstore.ListOptions{Prefix: f.prefix, StartAfter: max(p.s.Cursor, after)}
	for {
		page, err := p.a.paced().List(ctx, o)
		if err != nil {
			return err
		}
		ended := page.Next == ""
		for _, i := range page.Objects {
			if i.Key >= before {
				ended = true
				break
			}
			p.key(f, i.Key)
			o.StartAfter = i.Key
		}
		if ended {
			return p.moved(ctx, before, page.Date)
		}
		if err := p.moved(ctx, o.StartAfter, page.Date); err != nil {
			return err
		}
	}
}

// moved notes that everything up to the cursor was listed. The record follows from time to time.
func (p *pass) moved(ctx context.Context, cursor string, now time.Time) error {
	p.s.Cursor = max(p.s.Cursor, cursor)
	p.requests++
	aged := !now.IsZero() && now.Sub(time.Unix(p.s.UpdatedAt, 0)) > p.a.Lease/4
	if p.requests < requestsPerSave && len(p.missing) < maxMissing && !aged {
		return nil
	}
	return p.save(ctx)
}

// save moves the record, once what was missing is durable in the journal.
func (p *pass) save(ctx context.Context) error {
	if err := p.resolve(ctx); err != nil {
		return err
	}
	p.requests = 0
	return p.a.save(ctx, p.s)
}

// key deals with one key.
func (p *pass) key(f *family, key string) {
	id, d, err := f.parse(key)
	if err != nil {
		p.s.Foreign++
		if p.a.Foreign != nil {
			p.a.Foreign(key)
		}
		return
	}
	*f.count(&p.s.Record)++
	sum := sha256.Sum256([]byte(key))
	for i := range sum {
		p.s.Digest[i] ^= sum[i]
	}
	if !p.known.has(id, d) {
		p.missing = append(p.missing, missing{f, key})
	}
}

// resolve writes an entry for each key that is missing, after another poll: its collector may have written
// one since the last.
func (p *pass) resolve(ctx context.Context) error {
	if len(p.missing) == 0 {
		return nil
	}
	if _, err := p.follower.Poll(ctx); err != nil {
		return err
	}
	for _, m := range p.missing {
		id, d, err := m.f.parse(m.key)
		if err != nil {
			return err
		}
		if p.known.has(id, d) || p.journalledBefore(m.f, id) {
			continue
		}
		if err := p.journal(ctx, m, id, d); err != nil {
			return err
		}
	}
	for p.a.Writer.Waiting() > 0 {
		if _, _, err := p.a.Writer.Flush(ctx); err != nil {
			return err
		}
	}
	p.settle(ctx)
	p.missing = p.missing[:0]
	return nil
}

// journalledBefore: a news audit has read what was journalled lately; the ledgers know what was before.
func (p *pass) journalledBefore(f *family, id identity.Batch) bool {
	return p.s.Scope == News && f == &acceptedFamily && p.a.Ledgers != nil && p.a.Ledgers.Seen(id)
}

// journal adds the entry of one record.
func (p *pass) journal(ctx context.Context, m missing, id identity.Batch, d identity.Digest) error {
	b, _, err := p.a.paced().Get(ctx, m.key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil // an operator deleted it after the listing
	}
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	if err == nil && p.a.Judge != nil && m.f == &acceptedFamily {
		return p.judge(ctx, m.key, b, id)
	}
	var e journal.Entry
	foreign := false
	if err == nil {
		var authority string
		if e, authority, err = m.f.entry(b, id, d); err == nil && authority != p.a.Authority {
			err, foreign = fmt.Errorf("it is of the authority %.80q", authority), true
		}
	}
	if err == nil {
		_, err = p.a.Writer.Add(e)
	}
	if err != nil {
		p.unusable(m.key, foreign, m.f)
		return nil
	}
	p.s.Journalled++
	return nil
}

// unusable counts and reports a record that can't be read, or is of another authority.
func (p *pass) unusable(key string, foreign bool, f *family) {
	p.s.Unusable++
	if !foreign && f == &acceptedFamily {
		p.s.Unread++
	}
	if p.a.Unusable != nil {
		p.a.Unusable(key)
	}
}
