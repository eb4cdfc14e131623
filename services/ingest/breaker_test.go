package ingest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestBreaker: a script of calls. Each step is a verb, and what follows is expected of it.
func TestBreaker(t *testing.T) {
	type step struct {
		do   string // ask, answered, failed, left, wait
		call int
		want bool // of ask
	}
	ask := func(n int, want bool) step { return step{"ask", n, want} }
	end := func(how string, n int) step { return step{do: how, call: n} }
	wait := step{do: "wait"}
	var opened []step
	for n := range breakerFailures {
		opened = append(opened, ask(n, true), end("failed", n))
	}
	for name, steps := range map[string][]step{
		"one less than opens it": append(opened[:2*(breakerFailures-1):2*(breakerFailures-1)], ask(10, true), ask(11, true)),
		"an answer between failures": append(opened[:2*(breakerFailures-1):2*(breakerFailures-1)],
			ask(10, true), end("answered", 10), ask(11, true), end("failed", 11), ask(12, true)),
		"open":                  append(opened[:len(opened):len(opened)], ask(10, false)),
		"one probe":             append(opened[:len(opened):len(opened)], wait, ask(10, true), ask(11, false), wait, ask(12, false)),
		"a probe that fails":    append(opened[:len(opened):len(opened)], wait, ask(10, true), end("failed", 10), ask(11, false), wait, ask(12, true)),
		"a probe that is left":  append(opened[:len(opened):len(opened)], wait, ask(10, true), end("left", 10), ask(11, false), wait, ask(11, true)),
		"a probe with answer":   append(opened[:len(opened):len(opened)], wait, ask(10, true), end("answered", 10), ask(11, true), ask(12, true)),
		"a call that is left":   append(opened[:2*(breakerFailures-1):2*(breakerFailures-1)], ask(10, true), end("left", 10), ask(11, true), ask(12, true)),
		"failures side by side": {ask(0, true), ask(1, true), ask(2, true), end("failed", 0), end("failed", 1), end("failed", 2), ask(3, false)},
		// What hung while the linearizer was away ends after it is back.
		"late failures":          {ask(0, true), ask(1, true), ask(2, true), ask(3, true), end("answered", 3), end("failed", 0), end("failed", 1), end("failed", 2), ask(4, true)},
		"a late answer":          append([]step{ask(10, true)}, append(opened[:len(opened):len(opened)], end("answered", 10), ask(11, true), ask(12, true))...),
		"late failure of others": append([]step{ask(20, true)}, append(opened[:len(opened):len(opened)], wait, ask(10, true), end("failed", 20), ask(11, false))...),
	} {
		t.Run(name, func(t *testing.T) {
			var b breaker
			now, calls := time.Unix(1000, 0), map[int]permit{}
			for i, s := range steps {
				switch s.do {
				case "wait":
					now = now.Add(breakerProbe)
				case "ask":
					could := b.allows(now)
					p, ok := b.ask(now)
					if ok != s.want || could != ok {
						t.Fatalf("step %d: call %d may be made: %v, allows says %v; want %v", i, s.call, ok, could, s.want)
					}
					calls[s.call] = p
				case "answered":
					b.answered(calls[s.call])
				case "failed":
					b.failed(calls[s.call], now)
				case "left":
					b.left(calls[s.call], now)
				}
			}
		})
	}
}

// TestBreakerNeverStaysOpen: whatever happened before, once calls have answers and nothing is under way, the first call after the wait
// has leave, and then all have. While it is open there is at most one call.
func TestBreakerNeverStaysOpen(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var b breaker
			now := time.Unix(1000, 0)
			var under []permit
			probes := 0
			finish := func(i int, how int) {
				p := under[i]
				under = append(under[:i], under[i+1:]...)
				if p.probe {
					probes--
				}
				switch how {
				case 0:
					b.answered(p)
				case 1:
					b.left(p, now)
				default:
					b.failed(p, now)
				}
			}
			for range 300 {
				now = now.Add(time.Duration(r.Int64N(int64(breakerProbe))))
				if len(under) > 0 && r.IntN(2) == 0 {
					finish(r.IntN(len(under)), r.IntN(12))
					continue
				}
				open := b.open()
				p, ok := b.ask(now)
				if !ok {
					continue
				}
				if open != p.probe {
					t.Fatalf("open: %v, and the call is a probe: %v", open, p.probe)
				}
				if under = append(under, p); p.probe {
					if probes++; probes > 1 {
						t.Fatalf("%d probes at once", probes)
					}
				}
			}
			for len(under) > 0 {
				finish(0, 1)
			}
			now = now.Add(breakerProbe)
			p, ok := b.ask(now)
			if !ok {
				t.Fatal("no call has leave, and none is under way")
			}
			b.answered(p)
			if _, ok := b.ask(now); !ok || b.open() {
				t.Fatal("it stays open after an answer")
			}
		})
	}
}
