package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

const aBody = "ab000000000000000000000000000001"

var t0 = time.Unix(1_800_000_000, 0)

func aRow(s State) Row {
	return Row{Key: Key{Body: aBody, Policy: 1, Kind: Data, Index: 2}, Place: "p", Size: 10, State: s, Version: 7,
		Created: t0.UnixNano(), Changed: t0.UnixNano(), Verified: t0.UnixNano(), Checksum: 5}
}

// TestEveryStep plays each event in each state, against the table written as people read it.
func TestEveryStep(t *testing.T) {
	want := map[string]State{
		"begin staged":    Uploading,
		"wrote uploading": Uploaded,
		"check uploaded":  Verifying,
		"found verifying": Durable, "found durable": Durable,
		"retry uploading": Staged, "retry verifying": Uploaded,
		"lost uploaded": Staged, "lost verifying": Staged, "lost durable": Staged,
		"give up staged": Failed, "give up uploading": Failed, "give up uploaded": Failed, "give up verifying": Failed,
		"redrive failed": Staged,
		"drop staged":    Removing, "drop uploading": Removing, "drop uploaded": Removing, "drop verifying": Removing, "drop durable": Removing, "drop failed": Removing,
		"turned up staged": Uploaded, "turned up failed": Uploaded,
	}
	allowed := 0
	for _, s := range States() {
		for e := Begin; e <= Turned; e++ {
			before := aRow(s)
			after, err := before.Next(e, t0.Add(time.Hour), errors.New("cause"))
			to, ok := want[fmt.Sprintf("%s %s", e, s)]
			if !ok {
				if !errors.Is(err, ErrTransition) || after != before {
					t.Errorf("%s of %s: %+v, %v; want a refusal that changes nothing", e, s, after, err)
				}
				continue
			}
			allowed++
			if err != nil || after.State != to || after.Version != 7 || after.Error != "cause" || after.Key != before.Key {
				t.Errorf("%s of %s: %+v, %v; want %s", e, s, after, err, to)
			}
			if moved := after.Changed != before.Changed; moved != (to != s) {
				t.Errorf("%s of %s: the time of the state moved: %t", e, s, moved)
			}
			if to == Staged && (after.Verified != 0 || after.Checksum != 0) {
				t.Errorf("%s of %s: what is not there counts as verified", e, s)
			}
			if after.Lost != (e == Lost) {
				t.Errorf("%s of %s: lost %t", e, s, after.Lost)
			}
			if e == Found && after.Verified != t0.Add(time.Hour).UnixNano() {
				t.Errorf("%s of %s: verified at %d", e, s, after.Verified)
			}
		}
	}
	if allowed != len(want) {
		t.Errorf("%d steps are allowed; the table has %d", allowed, len(want))
	}
}

// TestEveryStateEnds: from each state a row can become durable, and can go.
func TestEveryStateEnds(t *testing.T) {
	reach := func(from State) map[State]bool {
		seen := map[State]bool{from: true}
		for changed := true; changed; {
			changed = false
			for s := range seen {
				for _, to := range steps {
					if n, ok := to[s]; ok && !seen[n] {
						seen[n], changed = true, true
					}
				}
			}
		}
		return seen
	}
	for _, s := range States() {
		r := reach(s)
		if s != Removing && (!r[Durable] || !r[Removing]) {
			t.Errorf("from %s: %v", s, r)
		}
		if s == Removing && len(r) != 1 {
			t.Errorf("what is being removed comes back: %v", r)
		}
	}
}

func TestStuck(t *testing.T) {
	for _, s := range States() {
		r := aRow(s)
		if r.Stuck(t0.Add(time.Minute), time.Minute) {
			t.Errorf("%s is stuck at its lease's end", s)
		}
		if got := r.Stuck(t0.Add(time.Minute+1), time.Minute); got != (s == Uploading || s == Verifying) {
			t.Errorf("%s behind its lease: stuck %t", s, got)
		}
	}
}
