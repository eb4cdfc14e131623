// Package folds keeps settled identities of the identity linearizer in the buckets of the regions, so that etcd may forget their
// claims: of each boot a head, which is moved by If-Match, and immutable parts that it names. docs/protocol/linearizer.md has the
// protocol, docs/format/folds.md the bytes.
//
// The core is deterministic: no goroutines, no clock and no randomness. Any number of folders may work at once.
package folds

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Digest stands for the hash of a frame: the first 128 bits of its SHA-256. Whoever wants another frame taken for one that is
// folded needs a second preimage of them, 2^128 attempts. A sender that finds two frames of its own with the same digest, 2^64
// attempts, gets the answer that the second is a duplicate of the first.
type Digest [16]byte

// DigestOf shortens a hash.
func DigestOf(hash identity.Digest) (d Digest) {
	copy(d[:], hash[:])
	return d
}

// Entry is one identity that is folded.
type Entry struct {
	Start, End uint64
	Home       claims.Region
	Digest     Digest
}

func (e Entry) same(o Entry) bool {
	return e.Start == o.Start && e.End == o.End && e.Digest == o.Digest
}
func (e Entry) meets(o Entry) bool  { return e.Start <= o.End && o.Start <= e.End }
func compareEntries(a, b Entry) int { return cmp.Compare(a.Start, b.Start) }

// EntryOf is the entry of a settled claim.
func EntryOf(c claims.Claim) (Entry, error) {
	if c.State != claims.Settled {
		return Entry{}, fmt.Errorf("%w: claim %s is %s, and only what is settled is folded", claims.ErrInvalid, c.Identity, c.State)
	}
	return Entry{Start: c.Identity.SeqStart, End: c.Identity.SeqEnd, Home: c.Home, Digest: DigestOf(c.Hash)}, nil
}

// Part names an immutable object with entries by the SHA-256 of its bytes.
type Part struct {
	Name identity.Digest
	// Start of its first entry and end of its last; other parts may have entries between them.
	Start, End uint64
	Count      uint64
}

// Head is what is folded of a boot. Every head has all that the head before it had.
type Head struct {
	Boot identity.Boot
	// Generation grows with each move in its region; those of other regions have generations of their own. 0 is no head.
	Generation uint64
	// Parts in the order of their starts, and of their names where these are equal.
	Parts []Part
	// Tail has the entries that are in no part, in order and without overlaps. It may also have entries of a part, and its home
	// of such a one is the later one.
	Tail []Entry
}

// Bounds of a head.
const (
	// SealAt is how many entries of the tail become a part, unless a Folder says otherwise.
	SealAt = 2048
	// MaxEntries of a part, or of a tail: two tails that are united.
	MaxEntries = 2 * SealAt
	// MaxParts of a head: 134 million identities of one boot.
	MaxParts = 1 << 16
	// MaxAdd bounds the entries that one fold adds.
	MaxAdd = 512
)

// Errors that callers branch on.
var (
	// ErrContradiction: two hashes of an identity, or two identities whose ranges meet. Nothing was written; somebody has to look.
	ErrContradiction = errors.New("folds contradict each other")
	// ErrUnknownHome: an identity has two homes of which the epoch does not know one: another epoch was opened since. Nothing was written.
	ErrUnknownHome = errors.New("folds have a home that is not of this epoch")
	// ErrBehind: the regions that answer may lack something that was folded.
	ErrBehind = errors.New("no head of folds that has everything can be read")
	// ErrFull: the boot has as many parts as a head can name.
	ErrFull = errors.New("the head of folds is full")
	// ErrCopies: too few regions have the head. etcd has to keep its claims.
	ErrCopies = errors.New("too few regions have the head of folds")
)

// Homes is what an epoch knows of a region, which decides between two homes of an identity: the one that is not retired counts. A region that
// the epoch does not know may have been added since, so that whoever goes by the epoch can decide nothing about it.
type Homes func(claims.Region) (retired, known bool)

// retired reports that a region is none of the epoch.
func (h Homes) retired(r claims.Region) bool {
	gone, _ := h(r)
	return gone
}

func (h Homes) knows(r claims.Region) bool {
	_, known := h(r)
	return known
}

// later is the entry of an identity that two folds have.
func (h Homes) later(a, b Entry) (Entry, error) {
	switch {
	case a.Home == b.Home:
		return a, nil
	case !h.knows(a.Home) || !h.knows(b.Home):
		return Entry{}, fmt.Errorf("%w: %d-%d has the homes %s and %s", ErrUnknownHome, a.Start, a.End, a.Home, b.Home)
	case h.retired(b.Home) && !h.retired(a.Home):
		return a, nil
	case h.retired(a.Home) && !h.retired(b.Home):
		return b, nil
	case h.retired(a.Home):
		// Re-homed twice: the frame has to be accepted again whichever it is, and all regions must say the same.
		if a.Home < b.Home {
			return a, nil
		}
		return b, nil
	}
	return Entry{}, fmt.Errorf("%w: %d-%d has the homes %s and %s", ErrContradiction, a.Start, a.End, a.Home, b.Home)
}

// unite gives the entries of both, which are in order. Errors wrap ErrContradiction.
func unite(a, b []Entry, homes Homes) ([]Entry, error) {
	if len(b) == 0 {
		return a, nil
	}
	return Merge(homes, a, b)
}

// Merge gives the entries of all lists, in order. Errors wrap ErrContradiction.
func Merge(homes Homes, lists ...[]Entry) ([]Entry, error) {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, compareEntries)
	out := all[:0]
	for _, e := range all {
		n := len(out)
		if n == 0 || !out[n-1].meets(e) {
			out = append(out, e)
			continue
		}
		if !out[n-1].same(e) {
			return nil, contradiction(out[n-1], e)
		}
		var err error
		if out[n-1], err = homes.later(out[n-1], e); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func contradiction(a, b Entry) error {
	return fmt.Errorf("%w: %d-%d of %s with digest %x, and %d-%d of %s with digest %x", ErrContradiction,
		a.Start, a.End, a.Home, a.Digest[:4], b.Start, b.End, b.Home, b.Digest[:4])
}

// Unite is the merge of two heads of a boot: it has everything that either has, and no generation. Errors wrap ErrContradiction or ErrFull.
func Unite(a, b Head, homes Homes) (Head, error) {
	if a.Boot != b.Boot {
		return Head{}, fmt.Errorf("%w: heads of boots %s and %s", claims.ErrInvalid, a.Boot, b.Boot)
	}
	out := Head{Boot: a.Boot, Parts: slices.Clone(a.Parts)}
	for _, p := range b.Parts {
		if !slices.ContainsFunc(a.Parts, func(o Part) bool { return o.Name == p.Name }) {
			out.Parts = append(out.Parts, p)
		}
	}
	slices.SortFunc(out.Parts, compareParts)
	if len(out.Parts) > MaxParts {
		return Head{}, fmt.Errorf("%w: %d parts", ErrFull, len(out.Parts))
	}
	var err error
	out.Tail, err = unite(a.Tail, b.Tail, homes)
	return out, err
}

func compareParts(a, b Part) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), slices.Compare(a.Name[:], b.Name[:]))
}

// equal reports whether two heads of a boot say the same, whatever their generation.
func (h Head) equal(o Head) bool {
	return slices.Equal(h.Parts, o.Parts) && slices.Equal(h.Tail, o.Tail)
}

// Meeting are the parts that may have an entry which meets start to end.
func (h Head) Meeting(start, end uint64) []Part {
	var out []Part
	for _, p := range h.Parts {
		if p.Start > end {
			break
		}
		if p.End >= start {
			out = append(out, p)
		}
	}
	return out
}

// meeting are the entries, which are in order, that meet start to end.
func meeting(all []Entry, start, end uint64) []Entry {
	from := sort.Search(len(all), func(i int) bool { return all[i].End >= start })
	to := from
	for to < len(all) && all[to].Start <= end {
		to++
	}
	return all[from:to]
}

// Count is how many entries the head has, those of its parts among them. One that two of them have counts twice.
func (h Head) Count() uint64 {
	n := uint64(len(h.Tail))
	for _, p := range h.Parts {
		n += p.Count
	}
	return n
}

// Above is the number from which on the head has nothing; the greatest of all where it may have any.
func (h Head) Above() uint64 {
	last := uint64(0)
	for _, p := range h.Parts {
		last = max(last, p.End)
	}
	if n := len(h.Tail); n > 0 {
		last = max(last, h.Tail[n-1].End)
	} else if len(h.Parts) == 0 {
		return 0
	}
	if last == math.MaxUint64 {
		return last
	}
	return last + 1
}

// Meet reports whether an identity shares sequence numbers with one of these entries of its boot, which are in order.
func Meet(all []Entry, id identity.Batch) bool { return len(meeting(all, id.SeqStart, id.SeqEnd)) > 0 }

// Exact is the entry of these, which are in order, that is the identity's.
func Exact(all []Entry, id identity.Batch) (Entry, bool) {
	for _, e := range meeting(all, id.SeqStart, id.SeqEnd) {
		if e.Start == id.SeqStart && e.End == id.SeqEnd {
			return e, true
		}
	}
	return Entry{}, false
}

// seal moves a tail of so many entries into a part; nil where it is short.
func (h Head) seal(at int) (Head, []byte, error) {
	if len(h.Tail) < at {
		return h, nil, nil
	}
	if len(h.Parts) >= MaxParts {
		return h, nil, fmt.Errorf("%w: %d parts", ErrFull, len(h.Parts))
	}
	p, body := sealed(h.Boot, h.Tail)
	if h.Tail = nil; h.names(p) {
		return h, nil, nil
	}
	h.Parts = append(slices.Clone(h.Parts), p)
	slices.SortFunc(h.Parts, compareParts)
	return h, body, nil
}
