package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// index is one of the prefixes of derived keys: what an entry says decides the key.
type index struct {
	prefix string
	// group is how many bytes of a key after the prefix name its group: an hour, or a part of the hash.
	group int
	key   func(e *journal.Entry) string
	// conflicts: the keys are those of conflicts, not of accepted batches.
	conflicts bool
}

// indexes are the shards of an audit of derived keys.
var indexes = []index{
	{layout.AcceptedByTimePrefix, len("date=2006-01-02/hour=15/"), func(e *journal.Entry) string { return layout.AcceptedByTime(time.Unix(0, e.At), e.ID) }, false},
	{layout.RawBlobsByTimePrefix, len("date=2006-01-02/hour=15/"), func(e *journal.Entry) string { return layout.RawBlobByTime(time.Unix(0, e.At), e.SHA256) }, false},
	{layout.AcceptedByBlobPrefix, len("sha256/hh/hh/"), func(e *journal.Entry) string { return layout.AcceptedByBlob(e.SHA256, e.ID) }, false},
	{layout.QuarantineByBlobPrefix, len("sha256/hh/hh/"), func(e *journal.Entry) string { return layout.QuarantineByBlob(e.SHA256, e.ID) }, true},
}

// BeginDerived creates the record of an audit of derived keys, whose shards begin over the time of spread: each lists one prefix and
// compares it with the keys that the journal's entries ask for.
func (a *Auditor) BeginDerived(ctx context.Context, spread time.Duration) (Stored, error) {
	r, err := a.plan(ctx, Derived)
	r.Spread = int64(spread / time.Second)
	return a.create(ctx, r, err)
}

// derived compares one prefix, in passes over ranges of keys that fit into memory.
func (a *Auditor) derived(ctx context.Context, shard int, s *Stored) error {
	x := &indexes[shard]
	p := &pass{a: a, s: s}
	end := prefixEnd(x.prefix)
	for s.Cursor < end {
		w, err := newWanted(a.Rand, x, s.Cursor, cmp.Or(a.MaxInMemory, defaultMaxInMemory))
		if err == nil {
			err = a.eachEntry(ctx, func(es []journal.Entry) error { w.add(es); return nil })
		}
		if err != nil {
			return err
		}
		whole := s.Record
		until := cmp.Or(w.until, end)
		if err := p.match(ctx, x, w, until, whole); err != nil {
			return err
		}
		if err := p.report(ctx, w); err != nil {
			return err
		}
		s.Cursor = until
		if err := a.save(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// eachEntry reads the whole journal. add may be called side by side.
func (a *Auditor) eachEntry(ctx context.Context, add func([]journal.Entry) error) error {
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: a.paced(), Authority: a.Authority, Fan: a.Fan,
		Segment: func(_ context.Context, s *journal.Segment) error { return add(s.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return add(es) },
	})
	if err == nil {
		_, err = f.Poll(ctx)
	}
	return err
}

// match strikes out what the listing shows.
func (p *pass) match(ctx context.Context, x *index, w *wanted, until string, whole Record) error {
	o := objstore.ListOptions{Prefix: x.prefix, StartAfter: max(x.prefix, w.from)}
	for {
		page, err := p.a.paced().List(ctx, o)
		if err != nil {
			return err
		}
		for _, i := range page.Objects {
			if i.Key >= until {
				return nil
			}
			p.s.Manifests++
			sum := sha256.Sum256([]byte(i.Key))
			for i := range sum {
				p.s.Digest[i] ^= sum[i]
			}
			w.found(i.Key)
		}
		if page.Next == "" {
			return nil
		}
		o.StartAfter = page.Next
		if p.requests++; p.requests%requestsPerSave == 0 {
			if err := p.renew(ctx, whole); err != nil {
				return err
			}
		}
	}
}

// report calls Underived with the entry of each key that the listing did not show. The journal is read a second time for
// them, where there are any, because keeping entries for what is seldom missing would take much memory.
func (p *pass) report(ctx context.Context, w *wanted) error {
	if w.count == 0 {
		return nil
	}
	var mu sync.Mutex
	return p.a.eachEntry(ctx, func(es []journal.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		for i := range es {
			if !w.take(&es[i]) {
				continue
			}
			p.s.Journalled++
			if p.a.Underived != nil {
				if err := p.a.Underived(ctx, &es[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// wanted are the keys of a range that entries ask for, as fingerprints in groups; see known.
type wanted struct {
	x     *index
	seed  [16]byte
	limit int

	mu sync.Mutex
	// from is the first group and until the first that is left out; empty where none is.
	from, until string
	groups      map[string]map[uint64]struct{}
	count       int
}

func newWanted(rand io.Reader, x *index, from string, limit int) (*wanted, error) {
	w := &wanted{x: x, from: from, limit: limit, groups: map[string]map[uint64]struct{}{}}
	_, err := io.ReadFull(rand, w.seed[:])
	return w, err
}

func (w *wanted) fingerprint(key string) uint64 {
	sum := sha256.Sum256(append(w.seed[:], key...))
	return binary.LittleEndian.Uint64(sum[:])
}

// of is the key that an entry asks for; empty where it asks for none of the range.
func (w *wanted) of(e *journal.Entry) (key, group string) {
	if e.Outcome == journal.Elsewhere || e.Outcome.Conflict() != w.x.conflicts {
		return "", ""
	}
	key = w.x.key(e)
	group = key[:len(w.x.prefix)+w.x.group]
	if group < w.from || w.until != "" && group >= w.until {
		return "", ""
	}
	return key, group
}

func (w *wanted) add(es []journal.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range es {
		key, group := w.of(&es[i])
		if key == "" {
			continue
		}
		m := w.groups[group]
		if m == nil {
			m = map[uint64]struct{}{}
			w.groups[group] = m
		}
		n := len(m)
		m[w.fingerprint(key)] = struct{}{}
		w.count += len(m) - n
	}
	if w.count > w.limit {
		w.drop()
	}
}

// drop leaves the last groups to another pass until a quarter of the room is free; one always stays.
func (w *wanted) drop() {
	names := slices.Sorted(maps.Keys(w.groups))
	for len(names) > 1 && w.count > w.limit-w.limit/4 {
		last := names[len(names)-1]
		w.count -= len(w.groups[last])
		delete(w.groups, last)
		w.until, names = last, names[:len(names)-1]
	}
}

// found strikes out a key that is there. From then on nothing is dropped.
func (w *wanted) found(key string) {
	w.limit = math.MaxInt
	if len(key) >= len(w.x.prefix)+w.x.group {
		w.strike(key, key[:len(w.x.prefix)+w.x.group])
	}
}

// take reports whether the entry's key is missing, once.
func (w *wanted) take(e *journal.Entry) bool {
	key, group := w.of(e)
	return key != "" && w.strike(key, group)
}

func (w *wanted) strike(key, group string) bool {
	m, f := w.groups[group], w.fingerprint(key)
	if _, ok := m[f]; !ok {
		return false
	}
	delete(m, f)
	w.count--
	return true
}
