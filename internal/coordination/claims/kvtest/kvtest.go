// Package kvtest is the suite that every store of claims must pass.
package kvtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
)

// Open gives an empty part of a store, and the prefix of its keys, which ends with a slash.
type Open func(t *testing.T) (claims.KV, string)

// Run asks a store for everything that the linearizer relies on.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, store){
		"Guards": guards, "PartsDoNotSeeEachOther": apart, "RangesThatAreEmpty": empty, "CreationOutlivesChanges": creation,
		"ReadsWithLimit": limits, "WideTransactions": wide, "LikeTheModel": model,
	} {
		t.Run(name, func(t *testing.T) {
			kv, prefix := open(t)
			test(t, store{t, kv, prefix})
		})
	}
}

type store struct {
	t      *testing.T
	kv     claims.KV
	prefix string
}

func (s store) do(x claims.Txn) claims.Result {
	s.t.Helper()
	r, err := s.kv.Commit(context.Background(), x)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s store) put(key, value string) int64 {
	s.t.Helper()
	return s.do(claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: s.prefix + key, Value: []byte(value)}}}}}).Revision
}

func (s store) delete(key string) {
	s.t.Helper()
	s.do(claims.Txn{Parts: []claims.Part{{Deletes: []string{s.prefix + key}}}})
}

func (s store) get(key string) (claims.Entry, bool) {
	s.t.Helper()
	r := s.do(claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: s.prefix + key}}}}})
	if e := r.Parts[0].Reads[0]; len(e) > 0 {
		return e[0], true
	}
	return claims.Entry{}, false
}

// held asks whether a guard holds, as the transaction's own and as that of a part.
func (s store) held(g claims.Guard) bool {
	s.t.Helper()
	g.Key = s.prefix + g.Key
	if g.End != "" {
		g.End = s.prefix + g.End
	}
	whole := s.do(claims.Txn{Guards: []claims.Guard{g}, Parts: []claims.Part{{Reads: []claims.Range{{From: s.prefix}}}}})
	part := s.do(claims.Txn{Parts: []claims.Part{{Guards: []claims.Guard{g}, Reads: []claims.Range{{From: s.prefix + "a"}}}}})
	if whole.Held != part.Parts[0].Held {
		s.t.Fatalf("%+v holds for the whole: %v, for a part: %v", g, whole.Held, part.Parts[0].Held)
	}
	if (len(whole.Parts) > 0) != whole.Held || (part.Parts[0].Reads == nil) != part.Parts[0].Held {
		s.t.Fatalf("%+v: %+v, %+v", g, whole, part)
	}
	return whole.Held
}

func (s store) want(name string, got, want bool) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %v, want %v", name, got, want)
	}
}

func guards(t *testing.T, s store) {
	first := s.put("a", "1")
	s.want("created", s.held(claims.Guard{Key: "a", Is: claims.Created, Revision: first}), true)
	s.want("created at another revision", s.held(claims.Guard{Key: "a", Is: claims.Created, Revision: first - 1}), false)
	s.want("modified", s.held(claims.Guard{Key: "a", Is: claims.Modified, Revision: first}), true)
	s.want("modified at 0", s.held(claims.Guard{Key: "a", Is: claims.Modified}), false)
	s.want("a key that is not there, modified at 0", s.held(claims.Guard{Key: "b", Is: claims.Modified}), true)
	s.want("a key that is not there, created", s.held(claims.Guard{Key: "b", Is: claims.Created, Revision: first}), false)
	s.want("absent", s.held(claims.Guard{Key: "b", Is: claims.Absent}), true)
	s.want("absent, and there", s.held(claims.Guard{Key: "a", Is: claims.Absent}), false)
	s.want("has a value", s.held(claims.Guard{Key: "a", Is: claims.Holds, Value: []byte("1")}), true)
	s.want("has another value", s.held(claims.Guard{Key: "a", Is: claims.Holds, Value: []byte("10")}), false)
	s.want("a key that is not there, has a value", s.held(claims.Guard{Key: "b", Is: claims.Holds, Value: nil}), false)
	second := s.put("a", "2")
	if second <= first {
		t.Fatalf("revision %d after %d", second, first)
	}
	s.want("modified since", s.held(claims.Guard{Key: "a", Is: claims.Modified, Revision: first}), false)
}

func apart(t *testing.T, s store) {
	r := s.do(claims.Txn{Parts: []claims.Part{
		{Puts: []claims.Put{{Key: s.prefix + "x", Value: []byte("1")}}},
		{Guards: []claims.Guard{{Key: s.prefix + "x", Is: claims.Absent}}, Puts: []claims.Put{{Key: s.prefix + "y", Value: []byte("1")}}},
		{Guards: []claims.Guard{{Key: s.prefix + "z", Is: claims.Modified, Revision: 1}}, Puts: []claims.Put{{Key: s.prefix + "z", Value: []byte("1")}}},
	}})
	if !r.Held || len(r.Parts) != 3 || !r.Parts[0].Held || !r.Parts[1].Held || r.Parts[2].Held {
		t.Fatalf("%+v", r)
	}
	x, okx := s.get("x")
	y, oky := s.get("y")
	_, okz := s.get("z")
	if !okx || !oky || okz || x.Modified != r.Revision || y.Modified != r.Revision {
		t.Fatalf("x %v %+v, y %v %+v, z %v, at %d", okx, x, oky, y, okz, r.Revision)
	}
}

func empty(_ *testing.T, s store) {
	s.put("a", "1")
	s.put("d", "1")
	for _, c := range []struct {
		from, end string
		want      bool
	}{{"a", "b", false}, {"a\x00", "d", true}, {"b", "d", true}, {"b", "d\x00", false}, {"e", "f", true}, {"a", "z", false}} {
		s.want(fmt.Sprintf("nothing from %q to %q", c.from, c.end), s.held(claims.Guard{Key: c.from, End: c.end, Is: claims.Absent}), c.want)
	}
}

func creation(t *testing.T, s store) {
	first := s.put("a", "1")
	second := s.put("a", "2")
	if e, ok := s.get("a"); !ok || e.Created != first || e.Modified != second || string(e.Value) != "2" {
		t.Fatalf("%v %+v; written at %d and %d", ok, e, first, second)
	}
	s.want("created, changed since", s.held(claims.Guard{Key: "a", Is: claims.Created, Revision: first}), true)
	s.delete("a")
	s.want("created, deleted since", s.held(claims.Guard{Key: "a", Is: claims.Created, Revision: first}), false)
	third := s.put("a", "3")
	if e, ok := s.get("a"); !ok || e.Created != third {
		t.Fatalf("%v %+v; created anew at %d", ok, e, third)
	}
	s.want("created, and anew since", s.held(claims.Guard{Key: "a", Is: claims.Created, Revision: first}), false)
}

func limits(t *testing.T, s store) {
	for i := range 5 {
		s.put(fmt.Sprint("k", i), "v")
	}
	s.put("l", "v")
	r := s.do(claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{
		{From: s.prefix + "k", End: s.prefix + "l", Limit: 3}, {From: s.prefix + "k", End: s.prefix + "l"}, {From: s.prefix + "k"},
	}}}})
	got := r.Parts[0].Reads
	if len(got) != 3 || len(got[0]) != 3 || len(got[1]) != 5 || len(got[2]) != 0 || got[0][2].Key != s.prefix+"k2" {
		t.Fatalf("%+v", got)
	}
}

// wide: as large as the default of a Group.
func wide(t *testing.T, s store) {
	const parts, puts = 90, 38
	x := claims.Txn{Guards: []claims.Guard{{Key: s.prefix + "epoch", Is: claims.Absent}}}
	for i := range parts {
		var p claims.Part
		for j := range puts {
			key := fmt.Sprintf("%sw/%d/%d", s.prefix, i, j)
			p.Guards = append(p.Guards, claims.Guard{Key: key, Is: claims.Absent})
			p.Puts = append(p.Puts, claims.Put{Key: key, Value: []byte("v")})
		}
		p.Reads = []claims.Range{{From: s.prefix + "w"}, {From: s.prefix + "w/", End: s.prefix + "w0"}}
		x.Parts = append(x.Parts, p)
	}
	r := s.do(x)
	if !r.Held || len(r.Parts) != parts || slices.ContainsFunc(r.Parts, func(p claims.PartResult) bool { return !p.Held }) {
		t.Fatalf("held %v, %d parts", r.Held, len(r.Parts))
	}
	n := s.do(claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: s.prefix + "w/", End: s.prefix + "w0"}}}}})
	if got := len(n.Parts[0].Reads[0]); got != parts*puts {
		t.Errorf("%d keys of %d", got, parts*puts)
	}
}

// model compares random transactions with the store in memory.
func model(t *testing.T, s store) {
	const seed, steps = 7, 200
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := store{t, mem.New(), s.prefix}
	// Each part has keys of its own, which it alone writes and reads; guards are about any.
	own := func(part int) string { return fmt.Sprintf("%s%d%c", s.prefix, part, 'a'+rnd.IntN(4)) }
	key := func() string { return own(rnd.IntN(3)) }
	for n := range steps {
		var mine, its claims.Txn
		for part := range 1 + rnd.IntN(3) {
			var a, b claims.Part
			for range rnd.IntN(3) {
				g := claims.Guard{Key: key(), Is: claims.Condition(1 + rnd.IntN(3))}
				h := g
				if g.Is == claims.Absent && rnd.IntN(2) == 0 {
					g.End = key() + "x"
					h.End = g.End
				}
				if g.Is == claims.Created || g.Is == claims.Modified && rnd.IntN(4) > 0 {
					g.Revision, h.Revision = revisionOf(s, g), revisionOf(m, h)
				}
				if g.Is == claims.Created && g.Revision == 0 {
					continue // of a key that is there, only
				}
				a.Guards, b.Guards = append(a.Guards, g), append(b.Guards, h)
			}
			if rnd.IntN(3) == 0 {
				a.Deletes = []string{own(part)}
			} else {
				a.Puts = []claims.Put{{Key: own(part), Value: []byte(fmt.Sprint(n))}}
			}
			b.Deletes, b.Puts = a.Deletes, a.Puts
			a.Reads = []claims.Range{{From: fmt.Sprint(s.prefix, part), End: fmt.Sprint(s.prefix, part+1), Limit: int64(rnd.IntN(4))}}
			b.Reads = a.Reads
			mine.Parts, its.Parts = append(mine.Parts, a), append(its.Parts, b)
		}
		got, want := s.do(mine), m.do(its)
		strip(got)
		strip(want)
		if got.Held != want.Held || !reflect.DeepEqual(got.Parts, want.Parts) {
			t.Fatalf("step %d of seed %d: %+v\n got %+v\nwant %+v", n, seed, mine, got.Parts, want.Parts)
		}
	}
}

func revisionOf(s store, g claims.Guard) int64 {
	r := s.do(claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: g.Key}}}}})
	switch e := r.Parts[0].Reads[0]; {
	case len(e) == 0:
		return 0
	case g.Is == claims.Created:
		return e[0].Created
	default:
		return e[0].Modified
	}
}

// strip takes out what two stores have of their own: revisions, which guards compare.
func strip(r claims.Result) {
	for i := range r.Parts {
		for j, read := range r.Parts[i].Reads {
			if len(read) == 0 {
				r.Parts[i].Reads[j] = nil
			}
			for k := range read {
				read[k].Created, read[k].Modified = 0, 0
			}
		}
	}
}
