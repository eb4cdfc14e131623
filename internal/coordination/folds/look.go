package folds

import (
	"context"
	"errors"
	"fmt"

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
	// Generation of the head that says so: a claim that relies on it is guarded by etcd's not being later.
	Generation uint64
	// Entry that decided, unless Free.
	Entry Entry
}

// Looker looks identities up, with a bounded cache of heads and parts. Not safe for concurrent use.
type Looker struct {
	regions []Region
	retired Homes
	heads   *lru.Cache[identity.Boot, Head]
	parts   *lru.Cache[identity.Digest, []Entry]
}

// NewLooker reads heads from the first region of the epoch's list, and from the others where that does not answer. cacheBytes bounds
// what is remembered.
func NewLooker(regions []Region, retired Homes, cacheBytes int64) *Looker {
	return &Looker{regions: regions, retired: retired, heads: lru.New[identity.Boot, Head](cacheBytes / 2), parts: lru.New[identity.Digest, []Entry](cacheBytes / 2)}
}

// weights of what is cached, in bytes.
const headWeight, partWeight, entryWeight = 256, 64, 64

// Look says what folds say about an identity with a hash, by a head of generation g or later: g is what etcd said of the boot before
// this call. What can't be read is an error, never an answer: it wraps ErrBehind, ErrCorrupt, ErrNewer or one of objstore.
func (l *Looker) Look(ctx context.Context, id identity.Batch, hash identity.Digest, g uint64) (Found, error) {
	boot := id.BootOf()
	h, ok := l.heads.Get(boot)
	if !ok || h.Generation < g {
		if g == 0 {
			return Found{Verdict: Free}, nil
		}
		var err error
		if h, err = l.fetch(ctx, boot, g); err != nil {
			return Found{}, fmt.Errorf("look %s up in folds: %w", id, err)
		}
		l.heads.Put(boot, h, int64(headWeight+partWeight*len(h.Parts)+entryWeight*len(h.Tail)))
	}
	f, err := l.find(ctx, h, id, DigestOf(hash))
	if err != nil {
		return Found{}, fmt.Errorf("look %s up in folds: %w", id, err)
	}
	f.Generation = h.Generation
	return f, nil
}

// fetch reads a head of generation g or later. Every copy of that generation has what the first region's has.
func (l *Looker) fetch(ctx context.Context, boot identity.Boot, g uint64) (Head, error) {
	var errs []error
	for _, r := range l.regions {
		h, _, err := readOrNone(ctx, r.Store, boot)
		if err == nil && h.Generation < g {
			err = fmt.Errorf("%w: generation %d, etcd's is %d", ErrBehind, h.Generation, g)
		}
		if err == nil {
			return h, nil
		}
		errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
	}
	return Head{}, errors.Join(errs...)
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
				if found.Entry, err = l.retired.later(found.Entry, e); err != nil {
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
	if es, ok := l.parts.Get(p.Name); ok {
		return es, nil
	}
	var errs []error
	for _, r := range l.regions {
		es, err := ReadPart(ctx, r.Store, boot, p)
		if err == nil {
			l.parts.Put(p.Name, es, int64(partWeight+entryWeight*len(es)))
			return es, nil
		}
		errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
	}
	return nil, errors.Join(errs...)
}

// Claim is the claim that an entry stands for, as far as it is known: a fold has a digest of the hash.
func (f Found) Claim(boot identity.Boot) claims.Claim {
	return claims.Claim{
		Identity: identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: f.Entry.Start, SeqEnd: f.Entry.End},
		State:    claims.Settled, Home: f.Entry.Home,
	}
}
