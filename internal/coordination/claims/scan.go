package claims

import (
	"fmt"
	"slices"
	"strings"
)

// MaxScan bounds the claims that one page of a scan reads.
const MaxScan = 1000

// maxCursor bounds where a page begins: the longest agent and boot in hex, and more.
const maxCursor = 2048

// Scan asks for a page of the claims of all boots, in the order of their keys. It is how a reconciler finds what nobody goes
// on with: claims that were settled in time never concern it.
type Scan struct {
	// Home is the region whose claims are wanted.
	Home Region
	// Retired: those of regions that are none of the epoch's, too. Nobody else looks for them.
	Retired bool
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
	if err := s.Home.Validate(); err != nil {
		return err
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
	if c.Home != s.Home && !(s.Retired && e.retired(c.Home)) {
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
	all := g.keys.Claims()
	from := all
	if s.After != "" {
		from = after(all + s.After)
	}
	return &Survey{scan: s, floor: g.revision, Txn: Txn{
		Guards: []Guard{{Key: g.keys.Epoch(), Is: Holds, Value: g.mark}},
		Parts:  []Part{{Reads: []Range{{From: from, End: all[:len(all)-1] + "0", Limit: int64(s.Limit)}}}},
	}}, nil
}

// EndScan reads the page. A scan that finds another epoch, or a store that has forgotten, stops the Group as every other
// transaction does.
func (g *Group) EndScan(v *Survey, res Result, err error) (Page, []Done, error) {
	switch {
	case err != nil:
		// Nothing was to be changed, so nothing is unknown.
		return Page{}, nil, fmt.Errorf("scan claims: %w: %v", ErrUnavailable, err) //nolint:errorlint // ErrUnknown must not be found in it
	case g.remembers(res, v.floor) != nil:
		err = g.remembers(res, v.floor)
	case !res.Held:
		err = fmt.Errorf("the store's is not %d", g.epoch.Number)
	case len(res.Parts) != 1 || len(res.Parts[0].Reads) != 1:
		return Page{}, nil, fmt.Errorf("scan claims: %w: the store read no range", ErrUnavailable)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrEpoch, err)
		return Page{}, g.Stop(err), fmt.Errorf("scan claims: %w", err)
	}
	g.revision = max(g.revision, res.Revision)
	return g.page(v.scan, res.Parts[0].Reads[0]), nil, nil
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
