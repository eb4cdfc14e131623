package objectstore_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// search looks for an order of one key's requests that keyModel allows. Porcupine does the same for any model, but with
// dozens of requests at the same time it tries all sets of those that changed nothing. Such a request can be put first
// wherever it may be next and its answer is right: that takes nothing from the others.
type search struct {
	ops  []porcupine.Operation // by their begin
	seen map[string]bool
	// deepest is what was next when the most requests had a place, for the report.
	deepest []int
	most    int
}

// mostStates bounds a search.
const mostStates = 1 << 18

// orderExplains reports whether an order explains the answers; the text says where none goes on.
func orderExplains(ops []porcupine.Operation) (bool, string) {
	s := &search{ops: slices.SortedFunc(slices.Values(ops), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }), seen: map[string]bool{}, most: -1}
	if s.from(make([]byte, len(ops)), keyState("")) {
		return true, ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tried %d orders; the best has %d of %d requests, and none of these can be next:", len(s.seen), s.most, len(ops))
	for _, i := range s.deepest[:min(len(s.deepest), 30)] {
		o := s.ops[i]
		fmt.Fprintf(&b, "\n  %+v from %d to %d: %v", o.Input, o.Call, o.Return, o.Output)
	}
	return false, b.String()
}

// changes reports whether a request may have changed the key.
func changes(o porcupine.Operation) bool {
	return o.Input.(keyOp).kind != "read" && o.Output == any(200)
}

// next gives the requests that may be the next one: none that is left ended before they began.
func (s *search) next(done []byte) (list []int) {
	end := int64(math.MaxInt64)
	for i, o := range s.ops {
		if o.Call > end {
			break
		}
		if done[i] == 0 {
			list, end = append(list, i), min(end, o.Return)
		}
	}
	return slices.DeleteFunc(list, func(i int) bool { return s.ops[i].Call > end })
}

// from goes on where the requests in done have an order that ends in a state. It changes done.
func (s *search) from(done []byte, now any) bool {
	list := s.next(done)
	for again := true; again; {
		again = false
		for _, i := range list {
			if changes(s.ops[i]) {
				continue
			}
			if ok, _ := keyModel.Step(now, s.ops[i].Input, s.ops[i].Output); ok {
				done[i], again = 1, true
			}
		}
		list = s.next(done)
	}
	if len(list) == 0 {
		return true
	}
	if n := strings.Count(string(done), "\x01"); n > s.most {
		s.most, s.deepest = n, list
	}
	at := string(done) + string(now.(keyState))
	if s.seen[at] || len(s.seen) == mostStates {
		return false
	}
	s.seen[at] = true
	for _, i := range list {
		if !changes(s.ops[i]) {
			continue
		}
		if ok, then := keyModel.Step(now, s.ops[i].Input, s.ops[i].Output); ok {
			further := slices.Clone(done)
			further[i] = 1
			if s.from(further, then) {
				return true
			}
		}
	}
	return false
}

// TestOrderSearchAgreesWithPorcupine: on random histories of few requests, right ones and wrong ones.
func TestOrderSearchAgreesWithPorcupine(t *testing.T) {
	var right, wrong int
	for seed := range uint64(3000) {
		ops := randomHistory(rand.New(rand.NewPCG(seed, 1)))
		want := porcupine.CheckOperations(keyModel, ops)
		if got, why := orderExplains(ops); got != want {
			t.Fatalf("seed %d: an order explains it: %v, porcupine says %v: %s\n%+v", seed, got, want, why, ops)
		}
		if want {
			right++
		} else {
			wrong++
		}
	}
	if right < 900 || wrong < 900 {
		t.Errorf("%d right histories, %d wrong ones", right, wrong)
	}
}

// randomHistory plays requests in some order, each within a span of time, and gives some of them another answer.
func randomHistory(rng *rand.Rand) (ops []porcupine.Operation) {
	now := keyState("")
	for i := range 2 + rng.IntN(8) {
		op := keyOp{kind: []string{"put", "delete", "read"}[rng.IntN(3)]}
		if op.kind == "put" {
			op.etag = fmt.Sprint("e", i)
			op.none = rng.IntN(3) == 0
		}
		if op.kind != "read" && !op.none && rng.IntN(2) == 0 {
			op.match = fmt.Sprint("e", rng.IntN(i+1))
		}
		var out any = now
		if op.kind != "read" {
			for _, answer := range []int{200, 404, 412} {
				if ok, then := keyModel.Step(now, op, answer); ok {
					out, now = answer, then.(keyState)
					break
				}
			}
		}
		if rng.IntN(10) == 0 {
			out = []any{200, 404, 412}[rng.IntN(3)]
			if op.kind == "read" {
				out = keyState(fmt.Sprint("e", rng.IntN(i+1)))
			}
		}
		at := int64(10 * (i + 1))
		ops = append(ops, porcupine.Operation{ClientId: i, Input: op, Call: at - rng.Int64N(30), Return: at + rng.Int64N(30), Output: out})
	}
	return ops
}
