package claims

import (
	"fmt"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// MaxScan bounds the claims that one page of a scan reads.
const MaxScan = 1000

// maxCursor bounds where a page begins: the longest agent and boot in hex, and more.
const maxCursor = 2048

// Scan asks for a page of the claims of all boots, in the order of their keys. It is how a reconciler finds what nobody goes
// on with: claims that were settled in time never concern it.
type Scan struct {
	// Home is the region whose claims are wanted; empty is every region.
	Home Region
	// States that are wanted, each once.
	States []State
	// Before: only claims that have been in their state since before this time, Unix nanoseconds by a coordinator's clock. One
	// whose clock was ahead waits until others' clocks are there.
	Before int64
	// After is where the page begins: the Next of the page before, or empty.
	After string
	// Limit is how many claims the page reads, 1 to MaxScan. Fewer are those that are wanted.
	Limit int
}

// Page of a scan.
type Page struct {
	Claims []Claim
	// Next is where the next page begins; empty behind the last claim.
	Next string
	// Read is how many claims were read for the page, Unreadable how many of them no release of this epoch wrote. These are
	// left out: one that is damaged must not keep all others from being seen.
	Read, Unreadable int
	// Epoch in which the page holds.
	Epoch uint64
}

// Validate refuses what can't be a scan. Errors wrap ErrInvalid.
func (s Scan) Validate() error {
	if s.Home != "" {
		if err := s.Home.Validate(); err != nil {
			return err
		}
	}
	switch {
	case len(s.States) == 0 || len(s.States) > int(Settled):
		return fmt.Errorf("%w: a scan for %d states, not 1 to %d", ErrInvalid, len(s.States), Settled)
	case s.Limit < 1 || s.Limit > MaxScan:
		return fmt.Errorf("%w: a page of %d claims, not 1 to %d", ErrInvalid, s.Limit, MaxScan)
	// Any text is a place among the claims, also the key of one that nobody can read.
	case len(s.After) > maxCursor:
		return fmt.Errorf("%w: a cursor of %d bytes, at most %d", ErrInvalid, len(s.After), maxCursor)
	case s.Before < 0:
		return fmt.Errorf("%w: time %d is negative", ErrInvalid, s.Before)
	}
	for i, st := range s.States {
		if st < Claimed || st > Settled || slices.Contains(s.States[:i], st) {
			return fmt.Errorf("%w: a scan for the states %v", ErrInvalid, s.States)
		}
	}
	return nil
}

// wants reports whether a claim is one of those that the scan is for.
func (s Scan) wants(e Epoch, c Claim) bool {
	if s.Home != "" && c.Home != s.Home {
		return false
	}
	since := c.DurableAt
	if c.State == Claimed {
		since = c.ClaimedAt
	}
	return slices.Contains(s.States, c.State) && since < s.Before
}

// Survey is a scan that is under way.
type Survey struct {
	Txn   Txn
	scan  Scan
	floor int64
}

// BeginScan gives the transaction of a page; EndScan takes its result. Errors wrap ErrInvalid or what stopped the Group.
func (g *Group) BeginScan(s Scan) (*Survey, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("scan claims: %w", err)
	}
	if g.stopped != nil {
		return nil, fmt.Errorf("scan claims: %w", g.stopped)
	}
	return g.survey(s, g.keys.Claims()), nil
}

// survey reads a page of the keys that begin with all.
func (g *Group) survey(s Scan, all string) *Survey {
	from := all
	if s.After != "" {
		from = after(all + s.After)
	}
	return &Survey{scan: s, floor: g.revision, Txn: Txn{
		Guards: []Guard{{Key: g.keys.Epoch(), Is: Holds, Value: g.mark}},
		Parts:  []Part{{Reads: []Range{{From: from, End: all[:len(all)-1] + "0", Limit: int64(s.Limit)}}}},
	}}
}

// EndScan reads the page. A scan that finds another epoch, or a store that has forgotten, stops the Group as every other
// transaction does.
func (g *Group) EndScan(v *Survey, res Result, err error) (Page, []Done, error) {
	entries, done, err := g.surveyed(v, res, err)
	if err != nil {
		return Page{}, done, err
	}
	return g.page(v.scan, entries), nil, nil
}

func (g *Group) surveyed(v *Survey, res Result, err error) ([]Entry, []Done, error) {
	switch {
	case err != nil:
		// Nothing was to be changed, so nothing is unknown.
		return nil, nil, fmt.Errorf("scan claims: %w: %v", ErrUnavailable, err) //nolint:errorlint // ErrUnknown must not be found in it
	case g.remembers(res, v.floor) != nil:
		err = g.remembers(res, v.floor)
	case !res.Held:
		err = fmt.Errorf("the store's is not %d", g.epoch.Number)
	case len(res.Parts) != 1 || len(res.Parts[0].Reads) != 1:
		return nil, nil, fmt.Errorf("scan claims: %w: the store read no range", ErrUnavailable)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrEpoch, err)
		return nil, g.Stop(err), fmt.Errorf("scan claims: %w", err)
	}
	g.revision = max(g.revision, res.Revision)
	return res.Parts[0].Reads[0], nil, nil
}

// Known is a boot of which the store knows heads of folds.
type Known struct {
	Boot identity.Boot
	// Modified is the revision at which they were noted last.
	Modified int64
}

// BeginBoots gives the transaction of a page of the boots of which the store knows heads; EndBoots takes its result. Of the scan only
// After and Limit count.
func (g *Group) BeginBoots(s Scan) (*Survey, error) {
	s.States = []State{Settled}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("scan boots: %w", err)
	}
	if g.stopped != nil {
		return nil, fmt.Errorf("scan boots: %w", g.stopped)
	}
	return g.survey(s, g.keys.Folded()), nil
}

// EndBoots reads the page. revision is that of the store, and next where the next page begins; empty behind the last boot.
func (g *Group) EndBoots(v *Survey, res Result, err error) (boots []Known, next string, revision int64, done []Done, _ error) {
	entries, done, err := g.surveyed(v, res, err)
	if err != nil {
		return nil, "", 0, done, err
	}
	for _, e := range entries {
		// What no release wrote stays.
		if b, err := g.keys.ParseHeads(e.Key); err == nil {
			boots = append(boots, Known{b, e.Modified})
		}
	}
	if len(entries) == v.scan.Limit {
		next = strings.TrimPrefix(entries[len(entries)-1].Key, g.keys.Folded())
	}
	return boots, next, res.Revision, nil, nil
}

func (g *Group) page(s Scan, entries []Entry) Page {
	p := Page{Read: len(entries), Epoch: g.epoch.Number}
	for _, e := range entries {
		boot, start, err := g.keys.ParseClaim(e.Key)
		var c Claim
		if err == nil {
			c, err = ParseClaim(boot, start, e.Value)
		}
		if err != nil || c.Stamp.Epoch != g.epoch.Number {
			p.Unreadable++
			continue
		}
		if s.wants(g.epoch, c) {
			p.Claims = append(p.Claims, stamped(c, e.Modified))
		}
	}
	if len(entries) == s.Limit {
		p.Next = strings.TrimPrefix(entries[len(entries)-1].Key, g.keys.Claims())
	}
	return p
}
