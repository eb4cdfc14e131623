package folds

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Verdict of a look-up.
type Verdict uint8

// Verdicts.
const (
	// Free: no identity that is folded meets this one.
	Free Verdict = iota + 1
	// Same: the identity is folded with this hash.
	Same
	// OtherHash: it is folded with another one.
	OtherHash
	// OtherRange: another identity that is folded shares sequence numbers with it.
	OtherRange
)

func (v Verdict) String() string {
	if v >= Free && v <= OtherRange {
		return [...]string{"", "free", "same", "other hash", "other range"}[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Found is what folds say about an identity.
type Found struct {
	Verdict Verdict
	// Looked is what says so. A claim that relies on it has it along.
	Looked claims.Looked
	// Entry that decided, unless Free.
	Entry Entry
}

// Looker looks identities up, with a bounded cache of heads and parts. It is safe for concurrent use.
type Looker struct {
	folder Folder

	mu    sync.Mutex
	heads *lru.Cache[identity.Boot, seen]
	parts *lru.Cache[identity.Digest, []Entry]
}

// seen is a head that was read, or several in one, and which.
type seen struct {
	Head
	claims.Looked
}

// NewLooker reads heads from the folder's regions, in their order: the nearest one first. cacheBytes bounds what is remembered.
func NewLooker(f Folder, cacheBytes int64) *Looker {
	return &Looker{folder: f, heads: lru.New[identity.Boot, seen](cacheBytes / 2), parts: lru.New[identity.Digest, []Entry](cacheBytes / 2)}
}

// Folder moves the heads that are looked at.
func (l *Looker) Folder() Folder { return l.folder }

// weights of what is cached, in bytes.
const headWeight, partWeight, entryWeight = 256, 64, 64

func (l *Looker) remember(s seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heads.Put(s.Boot, s, int64(headWeight+partWeight*len(s.Parts)+entryWeight*len(s.Tail)))
}

func (l *Looker) remembered(boot identity.Boot) (seen, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heads.Get(boot)
}

// Moved remembers a head that was moved.
func (l *Looker) Moved(m Moved) {
	g, _ := m.Heads.Of(m.Region)
	l.remember(seen{m.Head, claims.Looked{Heads: claims.Heads{{Region: m.Region, Generation: g}}, Above: m.Head.Above()}})
}

// Guess says what the last heads were that were looked at, if the identity is free in what is remembered of them. Whether that is
// enough the claim finds out.
func (l *Looker) Guess(id identity.Batch) (claims.Looked, bool) {
	s, ok := l.remembered(id.BootOf())
	if !ok || len(meeting(s.Tail, id.SeqStart, id.SeqEnd)) > 0 {
		return claims.Looked{}, false
	}
	for _, p := range s.Meeting(id.SeqStart, id.SeqEnd) {
		l.mu.Lock()
		es, ok := l.parts.Get(p.Name)
		l.mu.Unlock()
		if !ok || len(meeting(es, id.SeqStart, id.SeqEnd)) > 0 {
			return claims.Looked{}, false
		}
	}
	return s.Looked, true
}

// Look says what folds say about an identity with a hash, by heads that have everything that is folded of its boot: known is what etcd
// said before this call. What can't be read is an error, never an answer: it wraps ErrBehind, ErrCorrupt, ErrNewer or one of objstore.
func (l *Looker) Look(ctx context.Context, id identity.Batch, hash identity.Digest, known claims.Folds) (Found, error) {
	s, err := l.see(ctx, id.BootOf(), known)
	if err != nil {
		return Found{}, fmt.Errorf("look %s up in folds: %w", id, err)
	}
	f, err := l.find(ctx, s.Head, id, DigestOf(hash))
	if err != nil {
		return Found{}, fmt.Errorf("look %s up in folds: %w", id, err)
	}
	f.Looked = s.Looked
	return f, nil
}

// Meeting gives the entries that share sequence numbers with a range, up to a bound, by heads as for Look.
func (l *Looker) Meeting(ctx context.Context, id identity.Batch, known claims.Folds, most int) ([]Entry, error) {
	s, err := l.see(ctx, id.BootOf(), known)
	if err != nil {
		return nil, fmt.Errorf("list folds of %s: %w", id, err)
	}
	out := meeting(s.Tail, id.SeqStart, id.SeqEnd)
	for _, p := range s.Head.Meeting(id.SeqStart, id.SeqEnd) {
		if len(out) >= most {
			break
		}
		es, err := l.part(ctx, s.Boot, p)
		if err == nil {
			out, err = unite(out, meeting(es, id.SeqStart, id.SeqEnd), l.folder.Homes)
		}
		if err != nil {
			return nil, fmt.Errorf("list folds of %s: %w", id, err)
		}
	}
	return out[:min(len(out), most):min(len(out), most)], nil
}

// see gives heads that have everything, from the cache or fresh.
func (l *Looker) see(ctx context.Context, boot identity.Boot, known claims.Folds) (seen, error) {
	if s, ok := l.remembered(boot); ok && s.Suffices(known) {
		return s, nil
	}
	fetch := l.fetchAll
	if known.Modified > 0 {
		fetch = l.fetch
	}
	s, err := fetch(ctx, boot, known)
	if err == nil {
		l.remember(s)
	}
	return s, err
}

// fetch reads one of the heads that etcd knows of: each has everything.
func (l *Looker) fetch(ctx context.Context, boot identity.Boot, known claims.Folds) (seen, error) {
	errs := []error{ErrBehind}
	for _, r := range l.folder.Regions {
		g, named := known.Heads.Of(r.Name)
		if !named {
			continue
		}
		h, _, err := readOrNone(ctx, r.Store, boot)
		if err == nil && h.Generation >= g {
			return seen{h, claims.Looked{Heads: claims.Heads{{Region: r.Name, Generation: h.Generation}}, Above: h.Above()}}, nil
		}
		if err == nil {
			err = fmt.Errorf("generation %d, etcd knows of %d", h.Generation, g)
		}
		errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
	}
	return seen{}, errors.Join(errs...)
}

// fetchAll reads the heads of all regions that answer. Where they differ, all are brought to what any of them has, and read again: only
// of heads that are equal is it known that each has everything, and that who has seen one has seen them all.
func (l *Looker) fetchAll(ctx context.Context, boot identity.Boot, known claims.Folds) (seen, error) {
	for range tries {
		there, _, err := l.folder.read(ctx, boot, known)
		if err != nil {
			return seen{}, err
		}
		s := seen{there[0].head, claims.Looked{Since: known.At, Epoch: known.Epoch, Above: there[0].head.Above()}}
		for _, r := range there {
			if r.head.equal(s.Head) {
				s.Heads = append(s.Heads, claims.HeadAt{Region: r.Name, Generation: r.head.Generation})
			}
		}
		if len(s.Heads) == len(there) {
			sortHeads(s.Heads)
			return s, nil
		}
		if _, err := l.folder.Fold(ctx, boot, known, nil); err != nil {
			return seen{}, err
		}
	}
	return seen{}, fmt.Errorf("%w: others moved heads %d times", ErrBehind, tries)
}

func (l *Looker) find(ctx context.Context, h Head, id identity.Batch, d Digest) (Found, error) {
	want := Entry{Start: id.SeqStart, End: id.SeqEnd, Digest: d}
	found := Found{Verdict: Free}
	// An identity whose home was retired may be in a part and, with the later home, in the tail.
	add := func(es []Entry) error {
		for _, e := range meeting(es, id.SeqStart, id.SeqEnd) {
			switch {
			case e.same(want) && found.Verdict == Same:
				var err error
				if found.Entry, err = l.folder.Homes.later(found.Entry, e); err != nil {
					return err
				}
			case e.same(want):
				found = Found{Verdict: Same, Entry: e}
			case e.Start == id.SeqStart && e.End == id.SeqEnd:
				found = Found{Verdict: OtherHash, Entry: e}
			case found.Verdict == Free:
				found = Found{Verdict: OtherRange, Entry: e}
			}
		}
		return nil
	}
	if err := add(h.Tail); err != nil {
		return Found{}, err
	}
	for _, p := range h.Meeting(id.SeqStart, id.SeqEnd) {
		es, err := l.part(ctx, h.Boot, p)
		if err == nil {
			err = add(es)
		}
		if err != nil {
			return Found{}, err
		}
	}
	return found, nil
}

func (l *Looker) part(ctx context.Context, boot identity.Boot, p Part) ([]Entry, error) {
	l.mu.Lock()
	es, ok := l.parts.Get(p.Name)
	l.mu.Unlock()
	if ok {
		return es, nil
	}
	var errs []error
	for _, r := range l.folder.Regions {
		es, err := ReadPart(ctx, r.Store, boot, p)
		if err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.parts.Put(p.Name, es, int64(partWeight+entryWeight*len(es)))
			return es, nil
		}
		errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
	}
	return nil, errors.Join(errs...)
}

// Identity of an entry of a boot.
func (e Entry) Identity(boot identity.Boot) identity.Batch {
	return identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: e.Start, SeqEnd: e.End}
}

// Everywhere gives the head of a boot: each region has to answer, and has it when this returns. So nothing that is found is missed by
// whoever reads only some of the regions later. Of a boot without folds it has no generation.
func (l *Looker) Everywhere(ctx context.Context, boot identity.Boot) (Head, error) {
	s, err := l.fetchAll(ctx, boot, claims.Folds{})
	if err == nil && len(s.Heads) < len(l.folder.Regions) {
		err = fmt.Errorf("%w: %d of %d regions answer", ErrBehind, len(s.Heads), len(l.folder.Regions))
	}
	if err != nil {
		return Head{}, fmt.Errorf("read folds of boot %s: %w", boot, err)
	}
	return s.Head, nil
}

// Part gives the entries of a part that a head of the boot names.
func (l *Looker) Part(ctx context.Context, boot identity.Boot, p Part) ([]Entry, error) {
	es, err := l.part(ctx, boot, p)
	if err != nil {
		return nil, fmt.Errorf("read folds of boot %s: %w", boot, err)
	}
	return es, nil
}

// All gives every entry of a boot, by the head that Everywhere gives.
func (l *Looker) All(ctx context.Context, boot identity.Boot) ([]Entry, error) {
	h, err := l.Everywhere(ctx, boot)
	if err != nil {
		return nil, err
	}
	lists := [][]Entry{h.Tail}
	for _, p := range h.Parts {
		es, err := l.Part(ctx, boot, p)
		if err != nil {
			return nil, err
		}
		lists = append(lists, es)
	}
	out, err := Merge(l.folder.Homes, lists...)
	if err != nil {
		return nil, fmt.Errorf("read folds of boot %s: %w", boot, err)
	}
	return out, nil
}
