package worktest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// Table checks the tables that open gives. A failure names the promise that is broken.
func Table(t *testing.T, open Open) {
	run(t, open, []testCase{
		{"create only if absent", Options{}, (*suite).create},
		{"create with a claim", Options{}, (*suite).createClaimed},
		{"claim an inactive row", Options{}, (*suite).claim},
		{"claim after the hold", Options{}, (*suite).expiry},
		{"a checkpoint holds on", Options{}, (*suite).renew},
		{"checkpoints only go forward", Options{}, (*suite).forward},
		{"release", Options{}, (*suite).release},
		{"touch", Options{}, (*suite).touch},
		{"done", Options{}, (*suite).done},
		{"cancel", Options{}, (*suite).cancelJob},
		{"fences", Options{}, (*suite).fences},
		{"rows by prefix and pages", Options{}, (*suite).rows},
		{"logs and forget", Options{}, (*suite).logs},
		{"a row that comes again is another", Options{}, (*suite).again},
		{"bounds of states", Options{}, (*suite).states},
		{"bad input of the table", Options{}, (*suite).badTable},
		{"racing creators", Options{}, (*suite).raceCreate},
		{"racing claimers", Options{}, (*suite).raceClaim},
		{"racing checkpoints and ends", Options{}, (*suite).raceEnd},
		{"done and a late duplicate race", Options{}, (*suite).raceLate},
		{"cancelled context of the table", Options{}, (*suite).cancelledTable},
	})
}

func key(log string, n uint64) work.Key { return work.Key{Log: log, Number: n} }

func row(log string, n uint64) work.Row {
	return work.Row{Key: key(log, n), Topic: "jobs", Body: []byte("body")}
}

func by(owner string, hold time.Duration) work.Claim { return work.Claim{Owner: owner, Hold: hold} }

func (t *suite) mustCreate(r work.Row, c *work.Claim) work.Row {
	t.Helper()
	n, err := t.Table.Create(t.ctx, r, c)
	t.ok(err, "create "+r.Key.String())
	return n
}

func (t *suite) mustGet(k work.Key) work.Row {
	t.Helper()
	r, err := t.Table.Get(t.ctx, k)
	t.ok(err, "get "+k.String())
	return r
}

func (t *suite) create() {
	k := key("log/a", 7)
	_, err := t.Table.Get(t.ctx, k)
	t.want(err, work.ErrNotFound, "get an absent row")
	in := row("log/a", 7)
	in.State = []byte("start")
	r := t.mustCreate(in, nil)
	if r.Increment == 0 || r.Active || r.Live || r.Attempts != 0 || r.Created.IsZero() || r.Modified.Before(r.Created) {
		t.Fatalf("created %+v", r)
	}
	_, err = t.Table.Create(t.ctx, row("log/a", 7), nil)
	t.want(err, work.ErrExists, "create again")
	got := t.mustGet(k)
	if got.Key != k || got.Topic != "jobs" || got.Increment != r.Increment || got.Active || got.Live || !got.Created.Equal(r.Created) || !got.Modified.Equal(r.Modified) {
		t.Fatalf("got %+v, created %+v", got, r)
	}
	t.equal(got.Body, []byte("body"), "body")
	t.equal(got.State, []byte("start"), "state")
	_, err = t.Table.Get(t.ctx, key("log", 7))
	t.want(err, work.ErrNotFound, "get of another log")
	_, err = t.Table.Get(t.ctx, key("log/a", 8))
	t.want(err, work.ErrNotFound, "get of another number")
}

func (t *suite) createClaimed() {
	c := by("w1", long)
	r := t.mustCreate(row("log", 1), &c)
	if !r.Active || !r.Live || r.Owner != "w1" || r.Attempts != 1 {
		t.Fatalf("created %+v", r)
	}
	got := t.mustGet(r.Key)
	if !got.Active || !got.Live || got.Owner != "w1" || got.Attempts != 1 || got.Increment != r.Increment {
		t.Fatalf("got %+v", got)
	}
	_, err := t.Table.Claim(t.ctx, got, by("w2", long))
	t.want(err, work.ErrLive, "claim a live row")
}

func (t *suite) claim() {
	r := t.mustCreate(row("log", 1), nil)
	c, err := t.Table.Claim(t.ctx, r, by("w1", long))
	t.ok(err, "claim")
	if !c.Active || !c.Live || c.Owner != "w1" || c.Attempts != 1 || c.Increment <= r.Increment {
		t.Fatalf("claimed %+v", c)
	}
	_, err = t.Table.Claim(t.ctx, r, by("w2", long))
	t.want(err, work.ErrMoved, "claim by what was known before")
	_, err = t.Table.Claim(t.ctx, c, by("w2", long))
	t.want(err, work.ErrLive, "claim a live row")
	_, err = t.Table.Claim(t.ctx, row("log", 2), by("w2", long))
	t.want(err, work.ErrMoved, "claim an absent row")
}

func (t *suite) expiry() {
	c := by("w1", t.Short)
	old := t.mustCreate(row("log", 1), &c)
	t.eventually("no longer live", func() bool { return !t.mustGet(old.Key).Live })
	seen := t.mustGet(old.Key)
	if !seen.Active || seen.Owner != "w1" || seen.Increment != old.Increment {
		t.Fatalf("expired %+v", seen)
	}
	n, err := t.Table.Claim(t.ctx, seen, by("w2", long))
	t.ok(err, "claim after the hold")
	if n.Owner != "w2" || n.Attempts != 2 || !n.Live {
		t.Fatalf("claimed %+v", n)
	}
	_, err = t.Table.Checkpoint(t.ctx, old, []byte("late"), long)
	t.want(err, work.ErrMoved, "the old owner's checkpoint")
	_, err = t.Table.Release(t.ctx, old, true)
	t.want(err, work.ErrMoved, "the old owner's release")
	t.want(t.Table.Done(t.ctx, old), work.ErrMoved, "the old owner's end")
	if got := t.mustGet(old.Key); got.Increment != n.Increment || got.Owner != "w2" {
		t.Fatalf("after refusals %+v", got)
	}
}

func (t *suite) renew() {
	c := by("w1", 3*t.Short)
	r := t.mustCreate(row("log", 1), &c)
	r, err := t.Table.Checkpoint(t.ctx, r, []byte("1"), long)
	t.ok(err, "checkpoint")
	t.Wait(5 * t.Short)
	_, err = t.Table.Claim(t.ctx, t.mustGet(r.Key), by("w2", long))
	t.want(err, work.ErrLive, "claim after a checkpoint that holds on")
	r, err = t.Table.Checkpoint(t.ctx, r, []byte("2"), t.Short)
	t.ok(err, "checkpoint with a shorter hold")
	t.eventually("no longer live", func() bool { return !t.mustGet(r.Key).Live })
	// Nobody claimed it: the owner was only slow, and may go on.
	r, err = t.Table.Checkpoint(t.ctx, r, []byte("3"), long)
	t.ok(err, "checkpoint of a row that nobody claimed")
	if got := t.mustGet(r.Key); !got.Live || string(got.State) != "3" {
		t.Fatalf("got %+v", got)
	}
}

func (t *suite) forward() {
	c := by("w1", long)
	r0 := t.mustCreate(row("log", 1), &c)
	r1, err := t.Table.Checkpoint(t.ctx, r0, []byte("1"), long)
	t.ok(err, "checkpoint")
	if r1.Increment <= r0.Increment || string(r1.State) != "1" || r1.Attempts != 0 || !r1.Live {
		t.Fatalf("checkpointed %+v", r1)
	}
	_, err = t.Table.Checkpoint(t.ctx, r0, []byte("again"), long)
	t.want(err, work.ErrMoved, "checkpoint from an older one")
	r2, err := t.Table.Checkpoint(t.ctx, r1, nil, long)
	t.ok(err, "checkpoint of an empty state")
	if got := t.mustGet(r2.Key); len(got.State) != 0 || got.Increment != r2.Increment || got.Modified.Before(r0.Modified) || !got.Created.Equal(r0.Created) {
		t.Fatalf("got %+v", got)
	}
	forged := r2
	forged.Owner = "w2"
	_, err = t.Table.Checkpoint(t.ctx, forged, []byte("x"), long)
	t.want(err, work.ErrMoved, "checkpoint by another owner")
	r3, err := t.Table.Release(t.ctx, r2, false)
	t.ok(err, "release")
	_, err = t.Table.Checkpoint(t.ctx, r3, []byte("x"), long)
	t.want(err, work.ErrMoved, "checkpoint of an inactive row")
	_, err = t.Table.Checkpoint(t.ctx, row("log", 2), []byte("x"), long)
	t.want(err, work.ErrMoved, "checkpoint of an absent row")
}

func (t *suite) release() {
	c := by("w1", long)
	r := t.mustCreate(row("log", 1), &c)
	r, err := t.Table.Release(t.ctx, r, false)
	t.ok(err, "release")
	if r.Active || r.Live || r.Attempts != 1 {
		t.Fatalf("released %+v", r)
	}
	_, err = t.Table.Release(t.ctx, r, false)
	t.want(err, work.ErrMoved, "release an inactive row")
	r, err = t.Table.Claim(t.ctx, r, by("w2", long))
	t.ok(err, "claim at once")
	if r.Attempts != 2 {
		t.Fatalf("claimed %+v", r)
	}
	r, err = t.Table.Release(t.ctx, r, true)
	t.ok(err, "hand over")
	if got := t.mustGet(r.Key); got.Attempts != 0 || got.Active || got.Live {
		t.Fatalf("handed over %+v", got)
	}
}

func (t *suite) touch() {
	r := t.mustCreate(row("log", 1), nil)
	n, err := t.Table.Touch(t.ctx, r)
	t.ok(err, "touch")
	if n.Increment <= r.Increment || n.Active || n.Live {
		t.Fatalf("touched %+v", n)
	}
	_, err = t.Table.Touch(t.ctx, r)
	t.want(err, work.ErrMoved, "touch what was known before")
	n, err = t.Table.Claim(t.ctx, n, by("w1", long))
	t.ok(err, "claim")
	_, err = t.Table.Touch(t.ctx, n)
	t.want(err, work.ErrLive, "touch a live row")
	n, err = t.Table.Checkpoint(t.ctx, n, nil, t.Short)
	t.ok(err, "checkpoint")
	t.eventually("no longer live", func() bool { return !t.mustGet(n.Key).Live })
	m, err := t.Table.Touch(t.ctx, n)
	t.ok(err, "touch an expired row")
	if got := t.mustGet(m.Key); !got.Active || got.Live || got.Owner != "w1" {
		t.Fatalf("a touch revived or released %+v", got)
	}
}

func (t *suite) done() {
	l, err := t.Table.Log(t.ctx, "log")
	t.ok(err, "log")
	if l.Name != "log" || l.Last != 0 {
		t.Fatalf("log at first %+v", l)
	}
	c := by("w1", long)
	r := t.mustCreate(row("log", 3), &c)
	t.ok(t.Table.Done(t.ctx, r), "done")
	_, err = t.Table.Get(t.ctx, r.Key)
	t.want(err, work.ErrNotFound, "get after done")
	l, err = t.Table.Log(t.ctx, "log")
	t.ok(err, "log")
	if l.Last != 3 || l.Completed.IsZero() || l.Increment == 0 {
		t.Fatalf("log %+v", l)
	}
	t.want(t.Table.Done(t.ctx, r), work.ErrMoved, "done again")
	t.result()
	for _, n := range []uint64{1, 3} {
		_, err = t.Table.Create(t.ctx, row("log", n), &c)
		t.want(err, work.ErrCompleted, "create a late duplicate")
	}
	r5, r4 := t.mustCreate(row("log", 5), &c), t.mustCreate(row("log", 4), &c)
	t.ok(t.Table.Done(t.ctx, r5), "done 5")
	t.ok(t.Table.Done(t.ctx, r4), "done 4")
	if l, err = t.Table.Log(t.ctx, "log"); err != nil || l.Last != 5 {
		t.Fatalf("log %+v, %v: the last completed went back", l, err)
	}
	if l, err = t.Table.Log(t.ctx, "log/below"); err != nil || l.Last != 0 {
		t.Fatalf("another log %+v, %v", l, err)
	}
}

// result: a log keeps the last state of its last job, where that is short.
func (t *suite) result() {
	for n, state := range [][]byte{[]byte("all of it"), nil, bytes.Repeat([]byte("x"), work.MaxResult), bytes.Repeat([]byte("x"), work.MaxResult+1)} {
		c := by("w1", long)
		r := t.mustCreate(row("results", uint64(n+1)), &c)
		if state != nil {
			var err error
			r, err = t.Table.Checkpoint(t.ctx, r, state, long)
			t.ok(err, "checkpoint")
		}
		t.ok(t.Table.Done(t.ctx, r), "done")
		l, err := t.Table.Log(t.ctx, "results")
		t.ok(err, "log")
		if want := state; len(state) > work.MaxResult && len(l.Result) > 0 || len(state) <= work.MaxResult && !bytes.Equal(l.Result, want) {
			t.Fatalf("job %d: the log keeps %d bytes of %d", n+1, len(l.Result), len(state))
		}
	}
}

func (t *suite) cancelJob() {
	c := by("w1", long)
	r := t.mustCreate(row("log", 1), &c)
	t.ok(t.Table.Done(t.ctx, t.mustGet(r.Key)), "cancel")
	_, err := t.Table.Checkpoint(t.ctx, r, []byte("x"), long)
	t.want(err, work.ErrMoved, "the owner's checkpoint")
	_, err = t.Table.Create(t.ctx, row("log", 1), &c)
	t.want(err, work.ErrCompleted, "create what was cancelled")
}

func (t *suite) fences() {
	claim := func(owner string, fence uint64) *work.Claim {
		return &work.Claim{Owner: owner, Fence: fence, Hold: long}
	}
	r := t.mustCreate(row("log", 1), claim("w5", 5))
	if r.Fence != 5 {
		t.Fatalf("created %+v", r)
	}
	_, err := t.Table.Claim(t.ctx, r, *claim("w4", 4))
	t.want(err, work.ErrFenced, "claim with a smaller fence")
	_, err = t.Table.Claim(t.ctx, r, *claim("w5b", 5))
	t.want(err, work.ErrLive, "claim with the same fence")
	n, err := t.Table.Claim(t.ctx, r, *claim("w6", 6))
	t.ok(err, "claim of the next owner of the shard")
	if n.Fence != 6 || n.Owner != "w6" {
		t.Fatalf("claimed %+v", n)
	}
	_, err = t.Table.Checkpoint(t.ctx, r, []byte("x"), long)
	t.want(err, work.ErrMoved, "the former owner's checkpoint")
	t.ok(t.Table.Done(t.ctx, n), "done")
	if l, err := t.Table.Log(t.ctx, "log"); err != nil || l.Fence != 6 {
		t.Fatalf("log %+v, %v", l, err)
	}
	_, err = t.Table.Create(t.ctx, row("log", 2), claim("w5", 5))
	t.want(err, work.ErrFenced, "create below the log's fence")
	r = t.mustCreate(row("log", 2), nil) // a message's row has no owner yet
	if r.Fence != 6 {
		t.Fatalf("created %+v", r)
	}
	r = t.mustCreate(row("log", 3), claim("w6", 6))
	r, err = t.Table.Release(t.ctx, r, true)
	t.ok(err, "release")
	_, err = t.Table.Claim(t.ctx, r, *claim("w5", 5))
	t.want(err, work.ErrFenced, "claim an inactive row with a smaller fence")
}

func (t *suite) rows() {
	want := []string{}
	for _, k := range []work.Key{key("a", 9), key("a", 10), key("a", 100), key("a", 1<<40), key("a/b", 2), key("a/b/c", 1),
		key("ab", 1), key("a-b", 1), key("b/2026-01-01T15:00", 3)} {
		t.mustCreate(work.Row{Key: k, Topic: "jobs", Body: []byte("x")}, nil)
		want = append(want, k.String())
	}
	list := func(prefix string, limit int) []string {
		t.Helper()
		var got []string
		last := map[string]uint64{}
		for after, pages := "", 0; ; pages++ {
			rs, next, err := t.Table.Rows(t.ctx, prefix, after, limit)
			t.ok(err, "rows")
			if len(rs) > limit || pages > 20 {
				t.Fatalf("page %d has %d rows, at most %d wanted", pages, len(rs), limit)
			}
			for _, r := range rs {
				if r.Number <= last[r.Log] {
					t.Fatalf("%s after number %d", r.Key, last[r.Log])
				}
				last[r.Log] = r.Number
				got = append(got, r.Key.String())
			}
			if after = next; after == "" {
				break
			}
		}
		slices.Sort(got)
		return got
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 4, work.MaxPage} {
		if got := list("", limit); !slices.Equal(got, want) {
			t.Fatalf("all by %d: %v, want %v", limit, got, want)
		}
		if got := list("a", limit); !slices.Equal(got, []string{"a#10", "a#100", "a#1099511627776", "a#9", "a/b#2", "a/b/c#1"}) {
			t.Fatalf("a by %d: %v", limit, got)
		}
		if got := list("a/b", limit); !slices.Equal(got, []string{"a/b#2", "a/b/c#1"}) {
			t.Fatalf("a/b by %d: %v", limit, got)
		}
	}
	if got := list("b/2026-01-01T15:00", 5); len(got) != 1 {
		t.Fatalf("an hour: %v", got)
	}
	if got := list("c", 5); len(got) != 0 {
		t.Fatalf("nothing: %v", got)
	}
	c := by("w", long)
	t.mustCreate(row("live", 1), &c)
	rs, _, err := t.Table.Rows(t.ctx, "live", "", 5)
	t.ok(err, "rows")
	if len(rs) != 1 || !rs[0].Live || rs[0].Owner != "w" || string(rs[0].Body) != "body" {
		t.Fatalf("a live row is listed as %+v", rs)
	}
}

func (t *suite) logs() {
	finish := func(log string, n uint64) {
		t.Helper()
		c := by("w", long)
		t.ok(t.Table.Done(t.ctx, t.mustCreate(row(log, n), &c)), "done")
	}
	for _, l := range []string{"a", "a/b", "ab", "c"} {
		finish(l, 1)
	}
	t.mustCreate(row("d", 1), nil) // nothing completed
	list := func(prefix string) (got []work.Log) {
		t.Helper()
		for after := ""; ; {
			ls, next, err := t.Table.Logs(t.ctx, prefix, after, 2)
			t.ok(err, "logs")
			if len(ls) > 2 || len(got) > 20 {
				t.Fatalf("a page of %d logs", len(ls))
			}
			got = append(got, ls...)
			if after = next; after == "" {
				return got
			}
		}
	}
	names := func(ls []work.Log) string {
		var s []string
		for _, l := range ls {
			if l.Last != 1 || l.Completed.IsZero() {
				t.Fatalf("listed %+v", l)
			}
			s = append(s, l.Name)
		}
		slices.Sort(s)
		return strings.Join(s, " ")
	}
	if got := names(list("")); got != "a a/b ab c" {
		t.Fatalf("logs %s", got)
	}
	if got := names(list("a")); got != "a a/b" {
		t.Fatalf("logs of a %s", got)
	}
	old, err := t.Table.Log(t.ctx, "c")
	t.ok(err, "log")
	finish("c", 2)
	t.want(t.Table.Forget(t.ctx, old), work.ErrMoved, "forget a log that went on")
	now, err := t.Table.Log(t.ctx, "c")
	t.ok(err, "log")
	t.ok(t.Table.Forget(t.ctx, now), "forget")
	if l, err := t.Table.Log(t.ctx, "c"); err != nil || l.Last != 0 {
		t.Fatalf("forgotten log %+v, %v", l, err)
	}
	t.want(t.Table.Forget(t.ctx, now), work.ErrMoved, "forget again")
}

// again: a worker sleeps while its row is done, its log forgotten and the row made again.
func (t *suite) again() {
	c := by("w1", long)
	sleeper := t.mustCreate(row("log", 1), &c)
	t.ok(t.Table.Done(t.ctx, sleeper), "done")
	l, err := t.Table.Log(t.ctx, "log")
	t.ok(err, "log")
	t.ok(t.Table.Forget(t.ctx, l), "forget")
	c2 := by("w2", long)
	now := t.mustCreate(row("log", 1), &c2)
	_, err = t.Table.Checkpoint(t.ctx, sleeper, []byte("x"), long)
	t.want(err, work.ErrMoved, "the sleeper's checkpoint")
	t.want(t.Table.Done(t.ctx, sleeper), work.ErrMoved, "the sleeper's end")
	_, err = t.Table.Checkpoint(t.ctx, now, []byte("y"), long)
	t.ok(err, "the owner's checkpoint")
}

func (t *suite) states() {
	c := by("w1", long)
	full := bytes.Repeat([]byte{0xfe, 0, '<'}, work.MaxState/3+1)[:work.MaxState]
	in := row("log", 1)
	in.Body = full
	r := t.mustCreate(in, &c)
	r, err := t.Table.Checkpoint(t.ctx, r, full, long)
	t.ok(err, "checkpoint of the greatest state")
	got := t.mustGet(r.Key)
	t.equal(got.State, full, "state")
	t.equal(got.Body, full, "body")
	_, err = t.Table.Checkpoint(t.ctx, r, append(full, 0), long)
	t.want(err, work.ErrInvalid, "checkpoint of a state that is too long")
}

func (t *suite) badTable() {
	ctx, tab := t.ctx, t.Table
	for _, log := range []string{"", "/a", "a/", "a//b", "a b", "a\x00b", "é", strings.Repeat("a", work.MaxName+1)} {
		what := fmt.Sprintf("log %q", log)
		_, err := tab.Create(ctx, row(log, 1), nil)
		t.want(err, work.ErrInvalid, what)
		_, err = tab.Get(ctx, key(log, 1))
		t.want(err, work.ErrInvalid, what)
		_, err = tab.Log(ctx, log)
		t.want(err, work.ErrInvalid, what)
		t.want(tab.Forget(ctx, work.Log{Name: log}), work.ErrInvalid, what)
		if log != "" {
			_, _, err = tab.Rows(ctx, log, "", 1)
			t.want(err, work.ErrInvalid, what)
			_, _, err = tab.Logs(ctx, log, "", 1)
			t.want(err, work.ErrInvalid, what)
		}
	}
	r := t.mustCreate(row("log", 1), nil)
	bad := func(what string, change func(*work.Row, *work.Claim)) {
		t.Helper()
		n, c := row("log", 2), by("w", long)
		change(&n, &c)
		_, err := tab.Create(ctx, n, &c)
		t.want(err, work.ErrInvalid, what)
	}
	bad("number 0", func(n *work.Row, _ *work.Claim) { n.Number = 0 })
	bad("a number beyond", func(n *work.Row, _ *work.Claim) { n.Number = work.MaxNumber + 1 })
	bad("no topic", func(n *work.Row, _ *work.Claim) { n.Topic = "" })
	bad("no body", func(n *work.Row, _ *work.Claim) { n.Body = nil })
	bad("a body that is too long", func(n *work.Row, _ *work.Claim) { n.Body = make([]byte, work.MaxBody+1) })
	bad("a state that is too long", func(n *work.Row, _ *work.Claim) { n.State = make([]byte, work.MaxState+1) })
	bad("no owner", func(_ *work.Row, c *work.Claim) { c.Owner = "" })
	bad("an owner that is too long", func(_ *work.Row, c *work.Claim) { c.Owner = strings.Repeat("w", work.MaxName+1) })
	bad("a fence beyond", func(_ *work.Row, c *work.Claim) { c.Fence = work.MaxNumber + 1 })
	bad("no hold", func(_ *work.Row, c *work.Claim) { c.Hold = 0 })
	bad("a hold that is too long", func(_ *work.Row, c *work.Claim) { c.Hold = work.MaxHold + 1 })
	_, err := tab.Claim(ctx, r, work.Claim{})
	t.want(err, work.ErrInvalid, "claim by nobody")
	_, err = tab.Checkpoint(ctx, r, nil, 0)
	t.want(err, work.ErrInvalid, "checkpoint without hold")
	for what, err := range map[string]error{
		"release": func() error { _, err := tab.Release(ctx, work.Row{}, true); return err }(),
		"touch":   func() error { _, err := tab.Touch(ctx, work.Row{}); return err }(),
		"done":    tab.Done(ctx, work.Row{}),
	} {
		t.want(err, work.ErrInvalid, what+" nothing")
	}
	for _, limit := range []int{-1, 0, work.MaxPage + 1} {
		_, _, err := tab.Rows(ctx, "log", "", limit)
		t.want(err, work.ErrInvalid, "page of rows")
		_, _, err = tab.Logs(ctx, "log", "", limit)
		t.want(err, work.ErrInvalid, "page of logs")
	}
	if got := t.mustGet(r.Key); got.Increment != r.Increment {
		t.Fatalf("a refusal changed the row: %+v", got)
	}
}

// racers is how many go for one thing at once.
const racers = 8

func (t *suite) oneWinner(what string, answers map[string]int, losers ...error) {
	t.Helper()
	n := answers[""]
	for _, l := range losers {
		n += answers[l.Error()]
	}
	if answers[""] != 1 || n != racers {
		t.Fatalf("%s: %v, want one winner of %d", what, answers, racers)
	}
}

func (t *suite) raceCreate() {
	for n := range uint64(5) {
		t.oneWinner("create", together(racers, func(i int) error {
			c := by(fmt.Sprint("w", i), long)
			_, err := t.Table.Create(t.ctx, row("log", n+1), &c)
			return err
		}), work.ErrExists)
	}
}

func (t *suite) raceClaim() {
	for n := range uint64(5) {
		r := t.mustCreate(row("log", n+1), nil)
		t.oneWinner("claim", together(racers, func(i int) error {
			_, err := t.Table.Claim(t.ctx, r, by(fmt.Sprint("w", i), long))
			return err
		}), work.ErrMoved, work.ErrLive)
	}
}

func (t *suite) raceEnd() {
	for n := range uint64(5) {
		c := by("w", long)
		r := t.mustCreate(row("log", n+1), &c)
		t.oneWinner("change", together(racers, func(i int) error {
			switch i % 4 {
			case 0:
				_, err := t.Table.Checkpoint(t.ctx, r, []byte(fmt.Sprint(i)), long)
				return err
			case 1:
				_, err := t.Table.Release(t.ctx, r, true)
				return err
			case 2:
				_, err := t.Table.Claim(t.ctx, r, work.Claim{Owner: fmt.Sprint("v", i), Fence: 1, Hold: long})
				return err
			}
			return t.Table.Done(t.ctx, r)
		}), work.ErrMoved)
	}
}

// raceLate: while a job ends, its duplicate tries to create the row again.
func (t *suite) raceLate() {
	for n := range uint64(5) {
		c := by("w", long)
		r := t.mustCreate(row("log", n+1), &c)
		answers := together(racers, func(i int) error {
			if i == 0 {
				return t.Table.Done(t.ctx, r)
			}
			d := by(fmt.Sprint("late", i), long)
			_, err := t.Table.Create(t.ctx, row("log", n+1), &d)
			return err
		})
		t.oneWinner("done or create", answers, work.ErrExists, work.ErrCompleted)
		if _, err := t.Table.Get(t.ctx, r.Key); err == nil {
			t.Fatalf("job %d came back after it was done", n+1)
		}
	}
}

func (t *suite) cancelledTable() {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	_, create := t.Table.Create(ctx, row("log", 1), nil)
	_, get := t.Table.Get(ctx, key("log", 1))
	_, _, rows := t.Table.Rows(ctx, "", "", 1)
	for what, err := range map[string]error{"create": create, "get": get, "rows": rows} {
		if err == nil {
			t.Errorf("%s went through with a context that had ended", what)
		}
	}
}
