package sharedid_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var begin = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// sends gives batches of ten seconds, as a machine sends them from start to end. The machine's
// clock is off by clock. Until online what is read is queued, and then sent at once.
func sends(boot string, start, end, online time.Duration, clock time.Duration) []sharedid.Batch {
	var out []sharedid.Batch
	for at := start; at < end; at += 10 * time.Second {
		newest := begin.Add(at + 10*time.Second)
		accepted := newest.Add(200 * time.Millisecond)
		if at+10*time.Second < online {
			accepted = begin.Add(online)
		}
		out = append(out, sharedid.Batch{
			Boot: identity.Boot{Agent: "web-1", Boot: boot}, AcceptedAt: accepted.UnixNano(),
			MinTime: begin.Add(at + clock).UnixNano(), MaxTime: newest.Add(clock).UnixNano(),
		})
	}
	return out
}

// play adds batches in the order of their acceptance and gives what was found at any time.
func play(d *sharedid.Detector, batches ...[]sharedid.Batch) (found [][]string) {
	var all []sharedid.Batch
	for _, b := range batches {
		all = append(all, b...)
	}
	for len(all) > 0 {
		first := 0
		for i := range all {
			if all[i].AcceptedAt < all[first].AcceptedAt {
				first = i
			}
		}
		b := all[first]
		all = append(all[:first], all[first+1:]...)
		if boots := d.Add(time.Unix(0, b.AcceptedAt), b); boots != nil {
			found = append(found, boots)
		}
	}
	return found
}

// TestTwoMachinesWithOneID: they are found within six minutes, once, and are no finding any
// more soon after one of them stops.
func TestTwoMachinesWithOneID(t *testing.T) {
	d := sharedid.New()
	one, two := sends("one", 0, time.Hour, 0, 0), sends("two", 20*time.Minute, 25*time.Minute+30*time.Second, 0, -40*time.Second)
	found := play(d, one[:25*6+3], two)
	now := begin.Add(26 * time.Minute)
	if want := []string{"one", "two"}; len(found) != 1 || !reflect.DeepEqual(found[0], want) {
		t.Fatalf("found %q, want %q once", found, want)
	}
	if got := d.All(now); len(got) != 1 || got[0].Agent != "web-1" || len(got[0].Boots) != 2 {
		t.Errorf("all: %+v", got)
	}
	for boot, other := range map[string]string{"one": "two", "two": "one"} {
		if got := d.With(identity.Boot{Agent: "web-1", Boot: boot}, now); len(got) != 1 || got[0] != other {
			t.Errorf("with %s: %q", boot, got)
		}
	}
	if got := d.With(identity.Boot{Agent: "web-2", Boot: "one"}, now); got != nil {
		t.Errorf("with a boot of another agent: %q", got)
	}
	play(d, one[25*6+3:36*6])
	if got := d.All(begin.Add(36 * time.Minute)); got != nil {
		t.Errorf("the second machine stopped more than ten minutes ago: %+v", got)
	}
	play(d, one[36*6:])
	// It comes back, and is found once more.
	if found := play(d, sends("one", time.Hour, 70*time.Minute, 0, 0), sends("two", time.Hour, 70*time.Minute, 0, 0)); len(found) != 1 {
		t.Errorf("found %q when it came back", found)
	}
}

// TestARestartIsNoFinding: boots that follow each other are never concurrent, whatever was
// queued, however the clock was set between them, and however often it happens.
func TestARestartIsNoFinding(t *testing.T) {
	for name, batches := range map[string][][]sharedid.Batch{
		"plain":               {sends("one", 0, 30*time.Minute, 0, 0), sends("two", 30*time.Minute, time.Hour, 0, 0)},
		"within a minute":     {sends("one", 0, 30*time.Minute+20*time.Second, 0, 0), sends("two", 30*time.Minute+30*time.Second, time.Hour, 0, 0)},
		"the queue drains":    {sends("one", 0, 30*time.Minute, 34*time.Minute, 0), sends("two", 30*time.Minute, time.Hour, 34*time.Minute, 0)},
		"it drains for long":  {sends("one", 0, 25*time.Minute, 26*time.Minute, 0), sends("two", 25*time.Minute, time.Hour, 0, 0)},
		"the first goes back": {sends("one", 0, 30*time.Minute, 0, 0), sends("two", 30*time.Minute, 31*time.Minute, 0, 0), sends("one", 31*time.Minute, time.Hour, 0, 0)},
	} {
		if found := play(sharedid.New(), batches...); found != nil {
			t.Errorf("%s: %q", name, found)
		}
	}
	for back := time.Minute; back < 90*time.Minute; back += 30 * time.Second {
		for _, queued := range []time.Duration{0, 30 * time.Minute, 31 * time.Minute} {
			d := sharedid.New()
			if found := play(d, sends("one", 0, 30*time.Minute, queued, 0), sends("two", 30*time.Minute, time.Hour, queued, -back)); found != nil {
				t.Errorf("clock set back by %s, queued until %s: %q", back, queued, found)
			}
		}
	}
	d := sharedid.New()
	for i := range 200 {
		at := time.Duration(i) * 20 * time.Second
		if found := play(d, sends(fmt.Sprint(i), at, at+20*time.Second, 0, 0)); found != nil {
			t.Fatalf("restart %d: %q", i, found)
		}
	}
}

// TestTheOrderMakesNoDifference: batches come twice and in any order, as audits find them.
func TestTheOrderMakesNoDifference(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	all := append(sends("one", 0, 20*time.Minute, 0, 0), sends("two", 3*time.Minute, 20*time.Minute, 0, time.Minute)...)
	all = append(all, sends("three", 0, time.Minute, 0, 0)...)
	all = append(all, all[:50]...)
	now := begin.Add(21 * time.Minute)
	for range 50 {
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		d := sharedid.New()
		for _, b := range all {
			d.Add(now, b)
		}
		if got, want := d.All(now), []sharedid.Shared{{Agent: "web-1", Boots: []string{"one", "two"}}}; !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
}

// TestOldBatchesSayNothing: what an audit reads of yesterday is no finding.
func TestOldBatchesSayNothing(t *testing.T) {
	d := sharedid.New()
	for _, b := range append(sends("one", 0, 20*time.Minute, 0, 0), sends("two", 0, 20*time.Minute, 0, 0)...) {
		if boots := d.Add(begin.Add(24*time.Hour), b); boots != nil {
			t.Fatal(boots)
		}
	}
}
