package claims_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// scanned is a store with claims of every kind, and the group that reads them.
func scanned(t *testing.T) (*claims.Group, *mem.Store, map[identity.Batch]claims.Claim) {
	t.Helper()
	const keys = claims.Keys("/scan/")
	store := mem.New()
	epoch := claims.Epoch{Number: 7, ID: claims.ID{1}, Regions: []claims.Region{"east", "west"}}
	all := map[identity.Batch]claims.Claim{}
	puts := []claims.Put{
		{Key: keys.Epoch(), Value: epoch.Marshal()},
		// Neighbours of the claims, which are none.
		{Key: "/scan/claims", Value: []byte("x")}, {Key: "/scan/claims0", Value: []byte("x")}, {Key: keys.Folded() + "61/62", Value: []byte("x")},
	}
	n := 0
	for _, home := range []claims.Region{"east", "west", "gone"} {
		for _, st := range []claims.State{claims.Claimed, claims.Durable, claims.Settled} {
			for _, at := range []int64{100, 200} {
				n++
				c := claims.Claim{
					Identity: identity.Batch{Agent: fmt.Sprint("a", n%5), Boot: "b", SeqStart: uint64(10 * n), SeqEnd: uint64(10*n + 9)}, Hash: identity.Digest{byte(n)}, State: st, ID: claims.ID{byte(n)},
					Stamp: claims.Stamp{Epoch: 7}, Home: home, ClaimedAt: at,
				}
				if st != claims.Claimed {
					// Claimed long ago: what counts is since when it is durable.
					c.Stamp.Fence, c.ClaimedAt, c.DurableAt = 3, 1, at
				}
				puts = append(puts, claims.Put{Key: keys.Claim(c.Identity.BootOf(), c.Identity.SeqStart), Value: c.Marshal()})
				if st == claims.Claimed {
					c.Stamp.Fence = 2
				}
				all[c.Identity] = c
			}
		}
	}
	old := claims.Claim{Identity: identity.Batch{Agent: "old", Boot: "b"}, Hash: identity.Digest{1}, State: claims.Claimed, ID: claims.ID{1}, Stamp: claims.Stamp{Epoch: 6}, Home: "east"}
	puts = append(puts, claims.Put{Key: keys.Claim(old.Identity.BootOf(), 0), Value: old.Marshal()}, claims.Put{Key: keys.Claims() + "zz/", Value: nil},
		claims.Put{Key: keys.Claim(identity.Boot{Agent: "damaged", Boot: "b"}, 4), Value: []byte{1, 2, 3}})
	if _, err := store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: puts}}}); err != nil {
		t.Fatal(err)
	}
	return claims.NewGroup(claims.DefaultConfig(), keys, epoch, 0), store, all
}

func scan(t *testing.T, g *claims.Group, kv claims.KV, s claims.Scan) claims.Page {
	t.Helper()
	v, err := g.BeginScan(s)
	if err != nil {
		t.Fatal(err)
	}
	res, err := kv.Commit(context.Background(), v.Txn)
	p, _, err := g.EndScan(v, res, err)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestScansFindWhatIsWanted: pages of every length have all claims of the home, the states and the age, each once, and no other.
func TestScansFindWhatIsWanted(t *testing.T) {
	g, store, all := scanned(t)
	for _, s := range []claims.Scan{
		{Home: "east", States: []claims.State{claims.Claimed, claims.Durable}, Before: 150},
		{Home: "west", States: []claims.State{claims.Claimed}, Before: 1000},
		{Home: "west", States: []claims.State{claims.Settled, claims.Claimed, claims.Durable}, Before: 200},
		{Home: "gone", States: []claims.State{claims.Durable}, Before: 1000},
		{Home: "nowhere", States: []claims.State{claims.Durable}, Before: 1000},
	} {
		want := map[identity.Batch]claims.Claim{}
		for id, c := range all {
			since := max(c.ClaimedAt, c.DurableAt)
			wanted := false
			for _, st := range s.States {
				wanted = wanted || st == c.State
			}
			if wanted && since < s.Before && c.Home == s.Home {
				want[id] = c
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 20, 21, 22, claims.MaxScan} {
			s.Limit, s.After = limit, ""
			got, read, unreadable, pages := map[identity.Batch]claims.Claim{}, 0, 0, 0
			for {
				p := scan(t, g, store, s)
				pages, read, unreadable = pages+1, read+p.Read, unreadable+p.Unreadable
				if p.Read > limit || len(p.Claims) > p.Read || p.Epoch != 7 || pages > 40 {
					t.Fatalf("page %d of %d: %+v", pages, limit, p)
				}
				for _, c := range p.Claims {
					if _, twice := got[c.Identity]; twice {
						t.Errorf("%s twice", c.Identity)
					}
					got[c.Identity] = c
				}
				if s.After = p.Next; p.Next == "" {
					break
				}
			}
			if len(got) != len(want) || read != len(all)+3 || unreadable != 3 {
				t.Errorf("%+v: %d claims, %d read, %d unreadable; want %d, %d, 3", s, len(got), read, unreadable, len(want), len(all)+3)
			}
			for id, c := range want {
				if got[id] != c {
					t.Errorf("%+v, want %+v", got[id], c)
				}
			}
		}
	}
}

// TestScansThatAreNone are refused before anything is asked.
func TestScansThatAreNone(t *testing.T) {
	g, store, _ := scanned(t)
	good := claims.Scan{Home: "east", States: []claims.State{claims.Claimed}, Limit: 1}
	for name, change := range map[string]func(*claims.Scan){
		"a region of capitals": func(s *claims.Scan) { s.Home = "EAST" },
		"no state":             func(s *claims.Scan) { s.States = nil }, "no such state": func(s *claims.Scan) { s.States = []claims.State{4} }, "state 0": func(s *claims.Scan) { s.States = []claims.State{0} },
		"a state twice": func(s *claims.Scan) { s.States = []claims.State{1, 1} }, "many states": func(s *claims.Scan) { s.States = []claims.State{1, 2, 3, 1} },
		"nothing": func(s *claims.Scan) { s.Limit = 0 }, "too much": func(s *claims.Scan) { s.Limit = claims.MaxScan + 1 }, "a time before 1970": func(s *claims.Scan) { s.Before = -1 },
		"a long cursor": func(s *claims.Scan) { s.After = strings.Repeat("6", 2049) },
	} {
		s := good
		change(&s)
		if _, err := g.BeginScan(s); !errors.Is(err, claims.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Wherever a cursor points, only claims are read.
	for _, at := range []string{"/", "../epoch", "\xff\xff", "61/62/00000000000000000001"} {
		good.After = at
		if p := scan(t, g, store, good); len(p.Claims) > 0 || p.Read > 1 {
			t.Errorf("behind %q: %+v", at, p)
		}
	}
}

// TestScansAreOfTheirEpoch: a scan that finds another epoch, or a store that went back, has no claims, and stops the group.
func TestScansAreOfTheirEpoch(t *testing.T) {
	s := claims.Scan{Home: "east", States: []claims.State{claims.Claimed}, Limit: 100, Before: 1000}
	for name, breaks := range map[string]func(*claims.Result){
		"another epoch": func(r *claims.Result) { r.Held, r.Parts = false, nil },
		"it went back":  func(r *claims.Result) { r.Revision = 1 },
	} {
		g, store, _ := scanned(t)
		scan(t, g, store, s) // tells of a revision
		v, err := g.BeginScan(s)
		if err != nil {
			t.Fatal(err)
		}
		waits := claims.Op{Kind: claims.DoLookup, Identity: identity.Batch{Agent: "a", Boot: "b"}}
		if _, err := g.Submit(time.Unix(1, 0), waits); err != nil {
			t.Fatal(err)
		}
		res, err := store.Commit(context.Background(), v.Txn)
		if err != nil {
			t.Fatal(err)
		}
		breaks(&res)
		p, ends, err := g.EndScan(v, res, nil)
		if !errors.Is(err, claims.ErrEpoch) || len(p.Claims) > 0 || !errors.Is(g.Stopped(), claims.ErrEpoch) || len(ends) != 1 {
			t.Errorf("%s: %+v, %d ends, %v; stopped: %v", name, p, len(ends), err, g.Stopped())
		}
		if _, err := g.BeginScan(s); !errors.Is(err, claims.ErrEpoch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g, _, _ := scanned(t)
	v, err := g.BeginScan(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.EndScan(v, claims.Result{}, claims.ErrUnknown); !errors.Is(err, claims.ErrUnavailable) || errors.Is(err, claims.ErrUnknown) || g.Stopped() != nil {
		t.Errorf("no answer: %v; stopped: %v", err, g.Stopped())
	}
	if _, _, err := g.EndScan(v, claims.Result{Held: true, Revision: 9}, nil); !errors.Is(err, claims.ErrUnavailable) {
		t.Errorf("no range: %v", err)
	}
}
