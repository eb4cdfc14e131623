package claims

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Span is a run of sequence numbers without a gap, all of durable identities with the same home.
type Span struct {
	Start, End uint64
	Home       Region
}

// Summary is what is folded of a boot: in order, without overlaps, and no two spans could be one.
type Summary struct {
	Spans []Span
	// Count of identities that were folded.
	Count uint64
}

// MaxSpans bounds the spans of a boot: a boot whose batches went to and fro between regions, or have gaps, has many.
const MaxSpans = 1024

// Marshal is the summary's value.
func (s Summary) Marshal() []byte {
	homes := s.homes()
	b := append(make([]byte, 0, 16+8*len(s.Spans)), version)
	b = binary.AppendUvarint(b, s.Count)
	b = append(b, byte(len(homes)))
	for _, r := range homes {
		b = append(append(b, byte(len(r))), r...)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Spans)))
	at := uint64(0)
	for _, p := range s.Spans {
		b = binary.AppendUvarint(b, p.Start-at)
		b = binary.AppendUvarint(b, p.End-p.Start)
		b = append(b, byte(slices.Index(homes, p.Home)))
		at = p.End
	}
	return b
}

// ParseSummary reads the value of a boot's summary. Errors wrap ErrCorrupt or ErrNewer.
func ParseSummary(boot identity.Boot, value []byte) (Summary, error) {
	d := decoder{b: value}
	d.version()
	s := Summary{Count: d.uvarint()}
	homes := d.regions(MaxHomes)
	n := d.uvarint()
	if d.err == nil && (n == 0 || n > MaxSpans) {
		d.fail("%d spans", n)
	}
	used := 0
	at := uint64(0)
	for i := uint64(0); i < n && d.err == nil; i++ {
		p := Span{Start: at + d.uvarint()}
		p.End = p.Start + d.uvarint()
		h := int(d.byte())
		switch {
		case d.err != nil:
		case p.Start < at || p.End < p.Start || i > 0 && p.Start == at:
			d.fail("span %d does not follow the one before", i)
		case h >= len(homes) || h > used:
			d.fail("span %d has home %d of %d", i, h, len(homes))
		default:
			used = max(used, h+1)
			p.Home = homes[h]
			if last := len(s.Spans) - 1; last >= 0 && s.Spans[last].Home == p.Home && s.Spans[last].End+1 == p.Start {
				d.fail("span %d is part of the one before", i)
			}
			s.Spans, at = append(s.Spans, p), p.End
		}
	}
	if d.err == nil && (used != len(homes) || s.Count < n) {
		d.fail("%d identities, %d spans, %d of %d homes", s.Count, n, used, len(homes))
	}
	if err := d.end(); err != nil {
		return Summary{}, fmt.Errorf("summary of boot %s: %w", boot, err)
	}
	return s, nil
}

// homes are those of the spans, in the order in which they come.
func (s Summary) homes() []Region {
	var homes []Region
	for _, p := range s.Spans {
		if !slices.Contains(homes, p.Home) {
			homes = append(homes, p.Home)
		}
	}
	return homes
}

// MaxHomes bounds the home regions of one boot.
const MaxHomes = 16

// Intersecting are the spans that share a sequence number with start to end.
func (s Summary) Intersecting(start, end uint64) []Span {
	from := sort.Search(len(s.Spans), func(i int) bool { return s.Spans[i].End >= start })
	to := from
	for to < len(s.Spans) && s.Spans[to].Start <= end {
		to++
	}
	return s.Spans[from:to]
}

// With is the summary with one more identity, which intersects none of its spans. The receiver stays as it is.
func (s Summary) With(p Span) Summary {
	i := sort.Search(len(s.Spans), func(i int) bool { return s.Spans[i].Start > p.Start })
	out := Summary{Spans: slices.Insert(slices.Clone(s.Spans), i, p), Count: s.Count + 1}
	// The later neighbour first, so that i stays what it is.
	out.join(i)
	out.join(i - 1)
	return out
}

// join makes one span of i and its follower where they touch and have the same home.
func (s *Summary) join(i int) {
	if i < 0 || i+1 >= len(s.Spans) {
		return
	}
	a, b := s.Spans[i], s.Spans[i+1]
	if a.End+1 == b.Start && a.Home == b.Home {
		s.Spans[i].End = b.End
		s.Spans = slices.Delete(s.Spans, i+1, i+2)
	}
}
