package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// SnapshotKind is the kind of a ledger's snapshot. Its bound has room for about 400,000 gaps.
var SnapshotKind = record.Kind{Schema: "lightmetrics.ledger.v1", Title: "ledger snapshot", MaxBytes: 32 << 20}

type snapshot struct {
	Agent       string   `json:"agent_id"`
	Boot        string   `json:"boot_id"`
	Batches     uint64   `json:"batch_count"`
	Inexact     bool     `json:"batch_count_is_lower_bound,omitempty"`
	LastAt      int64    `json:"last_accepted_at_unix_ns"`
	Intervals   []triple `json:"intervals"`   // start, end, oldest acceptance above the gap below
	Folded      []triple `json:"folded"`      // start, end, oldest acceptance
	Recent      []triple `json:"recent"`      // start, end, accepted at
	Overlapping []triple `json:"overlapping"` // start, end, accepted at
	Overlaps    []triple `json:"overlaps"`    // start, end, 0
	Dropped     uint64   `json:"overlaps_dropped,omitempty"`
}

// triple is [start, end, unix_ns].
type triple struct {
	start, end uint64
	at         int64
}

func (t triple) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d,%d]", t.start, t.end, t.at), nil
}

// UnmarshalJSON reads the numbers as text first, because one list has unsigned and signed ones.
func (t *triple) UnmarshalJSON(b []byte) error {
	var raw []json.Number
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if len(raw) != 3 {
		return fmt.Errorf("range has %d numbers, want 3", len(raw))
	}
	for i, dst := range []any{&t.start, &t.end, &t.at} {
		if err := json.Unmarshal([]byte(raw[i]), dst); err != nil {
			return err
		}
	}
	return nil
}

// Marshal writes the snapshot as canonical JSON. Equal ledgers give equal bytes.
func (l *Ledger) Marshal() []byte {
	return SnapshotKind.Marshal(snapshot{
		Agent: l.boot.Agent, Boot: l.boot.Boot,
		Batches: l.batches, Inexact: l.inexact, LastAt: l.lastAt,
		Intervals: fromSpans(l.all), Folded: fromSpans(l.folded),
		Recent: fromEntries(l.recent), Overlapping: fromEntries(l.overlapping),
		Overlaps: fromSpans(l.overlaps), Dropped: l.dropped,
	})
}

// Parse reads a snapshot and checks it: order, bounds, and that the parts fit together.
// Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (*Ledger, error) {
	l, err := parse(b)
	if err != nil {
		return nil, SnapshotKind.Wrap("", err)
	}
	return l, nil
}

func parse(b []byte) (*Ledger, error) {
	var s snapshot
	if err := SnapshotKind.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	boot := identity.Boot{Agent: s.Agent, Boot: s.Boot}
	if err := boot.Validate(); err != nil {
		return nil, err
	}
	l := &Ledger{boot: boot, batches: s.Batches, inexact: s.Inexact, lastAt: s.LastAt, dropped: s.Dropped, window: Window}
	var err error
	for name, p := range map[string]struct {
		from []triple
		to   *intervals
	}{"intervals": {s.Intervals, &l.all}, "folded": {s.Folded, &l.folded}, "overlaps": {s.Overlaps, &l.overlaps}} {
		if *p.to, err = toSpans(p.from); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if l.recent, err = toEntries(s.Recent, Window); err != nil {
		return nil, fmt.Errorf("recent: %w", err)
	}
	if l.overlapping, err = toEntries(s.Overlapping, MaxOverlapping); err != nil {
		return nil, fmt.Errorf("overlapping: %w", err)
	}
	return l, l.check()
}

// check refuses a snapshot whose parts contradict each other, which the merging code does not expect.
func (l *Ledger) check() error {
	union := slices.Clone(l.folded)
	for _, e := range l.recent {
		union.add(e.Range(), e.AcceptedAt)
	}
	if !slices.EqualFunc(union, l.all, func(a, b span) bool { return a.Range == b.Range }) {
		return errors.New("intervals are not the union of folded and recent")
	}
	if len(l.overlaps) > MaxOverlapping {
		return fmt.Errorf("%d overlaps, at most %d", len(l.overlaps), MaxOverlapping)
	}
	for _, r := range l.overlaps {
		if !l.all.contains(r.Range) {
			return fmt.Errorf("overlap %d-%d was not accepted", r.Start, r.End)
		}
	}
	for _, e := range l.overlapping {
		if !l.all.contains(e.Range()) {
			return fmt.Errorf("overlapping %d-%d was not accepted", e.Start, e.End)
		}
	}
	if l.batches < uint64(len(l.recent)) {
		return fmt.Errorf("batch_count %d, but %d are recent", l.batches, len(l.recent))
	}
	return nil
}

func fromSpans(s intervals) []triple {
	out := make([]triple, len(s))
	for i, o := range s {
		out[i] = triple{o.Start, o.End, o.since}
	}
	return out
}

func fromEntries(s []Entry) []triple {
	out := make([]triple, len(s))
	for i, o := range s {
		out[i] = triple{o.Start, o.End, o.AcceptedAt}
	}
	return out
}

func toSpans(in []triple) (intervals, error) {
	var out intervals
	for i, t := range in {
		if t.end < t.start {
			return nil, fmt.Errorf("range %d-%d is reversed", t.start, t.end)
		}
		if i > 0 && (in[i-1].end >= t.start || in[i-1].end+1 == t.start) {
			return nil, fmt.Errorf("range %d-%d is not after its neighbour", t.start, t.end)
		}
		out = append(out, span{Range{t.start, t.end}, t.at})
	}
	return out, nil
}

func toEntries(in []triple, limit int) ([]Entry, error) {
	if len(in) > limit {
		return nil, fmt.Errorf("%d identities, at most %d", len(in), limit)
	}
	var out []Entry
	for i, t := range in {
		e := Entry{t.start, t.end, t.at}
		if e.End < e.Start {
			return nil, fmt.Errorf("range %d-%d is reversed", t.start, t.end)
		}
		if i > 0 && out[i-1].compare(e) >= 0 {
			return nil, fmt.Errorf("range %d-%d is not after its neighbour", t.start, t.end)
		}
		out = append(out, e)
	}
	return out, nil
}
