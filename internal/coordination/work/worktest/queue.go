package worktest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// Queue checks the queues that open gives. A failure names the promise that is broken.
func Queue(t *testing.T, open Open) {
	run(t, open, []testCase{
		{"a message is delivered, hidden and deleted", Options{}, (*suite).deliver},
		{"bodies", Options{}, (*suite).bodies},
		{"messages come in order", Options{}, (*suite).order},
		{"visibility ends", Options{}, (*suite).visibility},
		{"extend", Options{}, (*suite).extend},
		{"terminate", Options{}, (*suite).terminate},
		{"defer does not count as a try", Options{}, (*suite).deferred},
		{"delay", Options{}, (*suite).delay},
		{"dedupe", Options{}, (*suite).dedupe},
		{"dead after too many tries", Options{MaxTries: 2}, (*suite).tries},
		{"bury, list, redrive", Options{}, (*suite).bury},
		{"dead letters by pages", Options{}, (*suite).deadPages},
		{"dead letters are bounded", Options{MaxDead: 2}, (*suite).deadBound},
		{"depth", Options{}, (*suite).depth},
		{"topics are apart", Options{}, (*suite).topics},
		{"bad input of the queue", Options{}, (*suite).badQueue},
		{"racing receivers", Options{}, (*suite).raceReceive},
		{"racing senders of one key", Options{}, (*suite).raceSend},
		{"cancelled context of the queue", Options{}, (*suite).cancelledQueue},
	})
}

func (t *suite) send(topic, body string) {
	t.Helper()
	t.ok(t.Queue.Send(t.ctx, topic, []byte(body), work.SendOptions{}), "send")
}

func (t *suite) receive(topic string, n int, visibility time.Duration) []work.Message {
	t.Helper()
	ms, err := t.Queue.Receive(t.ctx, topic, n, visibility)
	t.ok(err, "receive")
	if len(ms) > n {
		t.Fatalf("received %d messages, wanted at most %d", len(ms), n)
	}
	return ms
}

// one receives the only message, which is there.
func (t *suite) one(topic string, visibility time.Duration) work.Message {
	t.Helper()
	ms := t.receive(topic, 1, visibility)
	if len(ms) != 1 {
		t.Fatalf("received %d messages of %s, want 1", len(ms), topic)
	}
	return ms[0]
}

func (t *suite) none(topic, when string) {
	t.Helper()
	if ms := t.receive(topic, 1, long); len(ms) != 0 {
		t.Fatalf("%s: received %q", when, ms[0].Body)
	}
}

// comes waits for a message.
func (t *suite) comes(topic, what string) (m work.Message) {
	t.Helper()
	t.eventually(what, func() bool {
		ms := t.receive(topic, 1, long)
		if len(ms) == 1 {
			m = ms[0]
		}
		return len(ms) == 1
	})
	return m
}

func (t *suite) deliver() {
	t.none("jobs", "before anything was sent")
	t.send("jobs", "one")
	m := t.one("jobs", long)
	t.equal(m.Body, []byte("one"), "body")
	if m.ID == "" || m.Receipt == "" || m.Topic != "jobs" || m.Tries != 1 {
		t.Fatalf("delivered %+v", m)
	}
	t.none("jobs", "while it is hidden")
	t.ok(t.Queue.Delete(t.ctx, m), "delete")
	t.ok(t.Queue.Delete(t.ctx, m), "delete again")
	t.none("jobs", "after it was deleted")
	t.want(t.Queue.Extend(t.ctx, m, long), work.ErrGone, "extend after delete")
}

func (t *suite) bodies() {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, body := range [][]byte{{0}, all, []byte(`{"a":"<&>é"}`), bytes.Repeat([]byte{0xff}, work.MaxBody)} {
		sent := bytes.Clone(body)
		t.ok(t.Queue.Send(t.ctx, "bodies", sent, work.SendOptions{}), "send")
		clear(sent) // it belongs to the caller
		m := t.one("bodies", long)
		t.equal(m.Body, body, "body")
		t.ok(t.Queue.Delete(t.ctx, m), "delete")
	}
}

func (t *suite) order() {
	const n = 25
	for i := range n {
		t.send("ordered", fmt.Sprint(i))
	}
	var got []string
	for range 4 * n {
		for _, m := range t.receive("ordered", 10, long) {
			got = append(got, string(m.Body))
		}
		if len(got) >= n {
			break
		}
	}
	if len(got) != n {
		t.Fatalf("received %d messages, want %d", len(got), n)
	}
	for i, b := range got {
		if b != fmt.Sprint(i) {
			t.Fatalf("message %d is %s: %v", i, b, got)
		}
	}
}

func (t *suite) visibility() {
	t.send("jobs", "x")
	first := t.one("jobs", t.Short)
	second := t.comes("jobs", "visible again")
	if second.ID != first.ID || second.Receipt == first.Receipt || second.Tries != 2 {
		t.Fatalf("first %+v, then %+v", first, second)
	}
	t.want(t.Queue.Extend(t.ctx, first, long), work.ErrGone, "extend the old delivery")
	t.want(t.Queue.Terminate(t.ctx, first), work.ErrGone, "terminate the old delivery")
	t.want(t.Queue.Defer(t.ctx, first, 0), work.ErrGone, "defer the old delivery")
	t.want(t.Queue.Bury(t.ctx, first, "old"), work.ErrGone, "bury the old delivery")
	t.none("jobs", "after the old delivery was refused")
	t.ok(t.Queue.Delete(t.ctx, first), "delete by the old delivery")
	t.want(t.Queue.Extend(t.ctx, second, long), work.ErrGone, "extend after delete")
}

func (t *suite) extend() {
	t.send("jobs", "x")
	m := t.one("jobs", 3*t.Short)
	t.ok(t.Queue.Extend(t.ctx, m, long), "extend")
	t.Wait(4 * t.Short)
	t.none("jobs", "while it is extended")
	t.ok(t.Queue.Extend(t.ctx, m, t.Short), "extend for less")
	if again := t.comes("jobs", "visible after the shorter time"); again.ID != m.ID {
		t.Fatalf("came %+v", again)
	}
}

func (t *suite) terminate() {
	t.send("jobs", "x")
	m := t.one("jobs", long)
	t.ok(t.Queue.Terminate(t.ctx, m), "terminate")
	again := t.one("jobs", long)
	if again.ID != m.ID || again.Tries != 2 {
		t.Fatalf("came %+v", again)
	}
	t.want(t.Queue.Terminate(t.ctx, m), work.ErrGone, "terminate again")
}

func (t *suite) deferred() {
	t.send("jobs", "x")
	for range 4 {
		m := t.one("jobs", long)
		t.equal(m.Body, []byte("x"), "body")
		if m.Tries != 1 {
			t.Fatalf("a deferred message was tried %d times", m.Tries)
		}
		t.ok(t.Queue.Defer(t.ctx, m, 0), "defer")
	}
	m := t.one("jobs", long)
	t.ok(t.Queue.Defer(t.ctx, m, t.Short), "defer with a delay")
	t.none("jobs", "within the delay")
	if m = t.comes("jobs", "after the delay"); m.Tries != 1 {
		t.Fatalf("came %+v", m)
	}
}

func (t *suite) delay() {
	t.ok(t.Queue.Send(t.ctx, "jobs", []byte("later"), work.SendOptions{Delay: 2 * t.Short}), "send with a delay")
	t.none("jobs", "within the delay")
	t.equal(t.comes("jobs", "after the delay").Body, []byte("later"), "body")
}

func (t *suite) dedupe() {
	send := func(body, key string) {
		t.Helper()
		t.ok(t.Queue.Send(t.ctx, "jobs", []byte(body), work.SendOptions{DedupeKey: key}), "send")
	}
	send("a1", "a")
	send("a2", "a")
	send("b1", "b")
	send("plain", "")
	send("plain", "")
	var got []string
	for _, m := range t.receive("jobs", 10, long) {
		got = append(got, string(m.Body))
	}
	if s := strings.Join(got, " "); s != "a1 b1 plain plain" {
		t.Fatalf("received %s", s)
	}
	// A delivered one may have been decided by older facts: the next counts.
	send("a3", "a")
	send("a4", "a")
	t.equal(t.one("jobs", long).Body, []byte("a3"), "after the delivery")
	t.none("jobs", "the double")
	t.ok(t.Queue.Send(t.ctx, "jobs", []byte("c1"), work.SendOptions{DedupeKey: "c", Delay: long}), "send")
	send("c2", "c")
	t.none("jobs", "the double of a delayed one")
	t.ok(t.Queue.Send(t.ctx, "other", []byte("a"), work.SendOptions{DedupeKey: "a"}), "send")
	t.equal(t.one("other", long).Body, []byte("a"), "another topic")
}

func (t *suite) tries() {
	t.send("jobs", "poison")
	for i := 1; i <= 2; i++ {
		m := t.one("jobs", long)
		if m.Tries != i {
			t.Fatalf("try %d says %d", i, m.Tries)
		}
		t.ok(t.Queue.Terminate(t.ctx, m), "terminate")
	}
	t.none("jobs", "after the last try")
	d := t.letters("jobs", 1)[0]
	t.equal(d.Body, []byte("poison"), "dead body")
	if d.Tries != 2 || d.Reason == "" {
		t.Fatalf("dead letter %+v", d)
	}
	t.ok(t.Queue.Redrive(t.ctx, "jobs", d.ID), "redrive")
	if m := t.one("jobs", long); m.Tries != 1 || string(m.Body) != "poison" {
		t.Fatalf("redriven %+v", m)
	}
	t.letters("jobs", 0)
}

// letters reads the dead letters, of which there are n.
func (t *suite) letters(topic string, n int) []work.DeadLetter {
	t.Helper()
	ds, next, err := t.Queue.DeadLetters(t.ctx, topic, "", 10)
	t.ok(err, "dead letters")
	if len(ds) != n || next != "" {
		t.Fatalf("%d dead letters, next %q, want %d: %+v", len(ds), next, n, ds)
	}
	return ds
}

func (t *suite) bury() {
	t.send("jobs", "bad")
	m := t.one("jobs", long)
	t.ok(t.Queue.Bury(t.ctx, m, "cannot be read: "+strings.Repeat("x", 2*work.MaxReasonBytes)), "bury")
	t.none("jobs", "after it was buried")
	d := t.letters("jobs", 1)[0]
	t.equal(d.Body, []byte("bad"), "dead body")
	if d.ID == "" || d.Topic != "jobs" || d.Tries != 1 || !strings.HasPrefix(d.Reason, "cannot be read: x") || len(d.Reason) > work.MaxReasonBytes || d.Buried.IsZero() {
		t.Fatalf("dead letter %+v", d)
	}
	t.want(t.Queue.Extend(t.ctx, m, long), work.ErrGone, "extend a dead letter")
	t.want(t.Queue.Redrive(t.ctx, "jobs", d.ID+"0"), work.ErrNotFound, "redrive another id")
	t.ok(t.Queue.Redrive(t.ctx, "jobs", d.ID), "redrive")
	t.equal(t.one("jobs", long).Body, []byte("bad"), "redriven body")
	t.want(t.Queue.Redrive(t.ctx, "jobs", d.ID), work.ErrNotFound, "redrive again")
}

func (t *suite) deadPages() {
	const n = 5
	for i := range n {
		t.send("jobs", fmt.Sprint("bad", i))
		t.ok(t.Queue.Bury(t.ctx, t.one("jobs", long), "bad"), "bury")
	}
	seen := map[string]bool{}
	for after, pages := "", 0; ; pages++ {
		ds, next, err := t.Queue.DeadLetters(t.ctx, "jobs", after, 2)
		t.ok(err, "dead letters")
		if len(ds) > 2 || pages > n {
			t.Fatalf("page %d has %d letters", pages, len(ds))
		}
		for _, d := range ds {
			seen[string(d.Body)] = true
		}
		if after = next; after == "" {
			break
		}
	}
	if len(seen) != n {
		t.Fatalf("pages have %v", seen)
	}
}

func (t *suite) deadBound() {
	for i := range 4 {
		t.send("jobs", fmt.Sprint("bad", i))
		t.ok(t.Queue.Bury(t.ctx, t.one("jobs", long), "bad"), "bury")
	}
	ds := t.letters("jobs", 2)
	if a, b := string(ds[0].Body), string(ds[1].Body); a != "bad2" || b != "bad3" {
		t.Fatalf("kept %s and %s", a, b)
	}
}

func (t *suite) depth() {
	want := func(d work.Depth, when string) {
		t.Helper()
		got, err := t.Queue.Depth(t.ctx, "jobs")
		t.ok(err, "depth")
		if got != d {
			t.Fatalf("%s: depth %+v, want %+v", when, got, d)
		}
	}
	want(work.Depth{}, "at first")
	for range 4 {
		t.send("jobs", "x")
	}
	m := t.one("jobs", long)
	t.ok(t.Queue.Bury(t.ctx, t.one("jobs", long), "bad"), "bury")
	want(work.Depth{Ready: 2, Hidden: 1, Dead: 1}, "one received, one dead")
	t.ok(t.Queue.Delete(t.ctx, m), "delete")
	want(work.Depth{Ready: 2, Dead: 1}, "one deleted")
}

func (t *suite) topics() {
	t.send("a", "a")
	t.send("a-b", "ab")
	t.send("a_b", "a_b")
	t.equal(t.one("a-b", long).Body, []byte("ab"), "topic a-b")
	t.equal(t.one("a", long).Body, []byte("a"), "topic a")
	t.none("a", "of another topic")
	t.equal(t.one("a_b", long).Body, []byte("a_b"), "topic a_b")
}

func (t *suite) badQueue() {
	q, ctx := t.Queue, t.ctx
	for _, topic := range []string{"", "a/b", "a b", "é", strings.Repeat("a", work.MaxTopic+1)} {
		t.want(q.Send(ctx, topic, []byte("x"), work.SendOptions{}), work.ErrInvalid, fmt.Sprintf("topic %q", topic))
		_, err := q.Receive(ctx, topic, 1, long)
		t.want(err, work.ErrInvalid, "receive")
		_, _, err = q.DeadLetters(ctx, topic, "", 1)
		t.want(err, work.ErrInvalid, "dead letters")
		_, err = q.Depth(ctx, topic)
		t.want(err, work.ErrInvalid, "depth")
		t.want(q.Redrive(ctx, topic, "x"), work.ErrInvalid, "redrive")
	}
	t.want(q.Send(ctx, "jobs", nil, work.SendOptions{}), work.ErrInvalid, "no body")
	t.want(q.Send(ctx, "jobs", make([]byte, work.MaxBody+1), work.SendOptions{}), work.ErrInvalid, "body too long")
	t.want(q.Send(ctx, "jobs", []byte("x"), work.SendOptions{Delay: -1}), work.ErrInvalid, "delay in the past")
	t.want(q.Send(ctx, "jobs", []byte("x"), work.SendOptions{Delay: work.MaxDelay + 1}), work.ErrInvalid, "delay too long")
	t.want(q.Send(ctx, "jobs", []byte("x"), work.SendOptions{DedupeKey: "a b"}), work.ErrInvalid, "dedupe key")
	for _, n := range []int{-1, 0, work.MaxReceive + 1} {
		_, err := q.Receive(ctx, "jobs", n, long)
		t.want(err, work.ErrInvalid, "how many")
	}
	for _, d := range []time.Duration{-1, 0, work.MinVisibility - 1, work.MaxVisibility + 1} {
		_, err := q.Receive(ctx, "jobs", 1, d)
		t.want(err, work.ErrInvalid, "visibility")
	}
	t.send("jobs", "x")
	m := t.one("jobs", long)
	t.want(q.Extend(ctx, m, 0), work.ErrInvalid, "extend by nothing")
	t.want(q.Defer(ctx, m, -1), work.ErrInvalid, "defer into the past")
	for op, fn := range map[string]func(work.Message) error{
		"extend":    func(m work.Message) error { return q.Extend(ctx, m, long) },
		"terminate": func(m work.Message) error { return q.Terminate(ctx, m) },
		"defer":     func(m work.Message) error { return q.Defer(ctx, m, 0) },
		"delete":    func(m work.Message) error { return q.Delete(ctx, m) },
		"bury":      func(m work.Message) error { return q.Bury(ctx, m, "x") },
	} {
		t.want(fn(work.Message{}), work.ErrInvalid, op+" nothing")
		t.want(fn(work.Message{Topic: "jobs", ID: m.ID}), work.ErrInvalid, op+" without receipt")
	}
	for _, limit := range []int{-1, 0, work.MaxPage + 1} {
		_, _, err := q.DeadLetters(ctx, "jobs", "", limit)
		t.want(err, work.ErrInvalid, "page")
	}
	t.none("jobs", "after refusals")
}

func (t *suite) raceReceive() {
	const messages, receivers = 40, 8
	for i := range messages {
		t.send("jobs", fmt.Sprint(i))
	}
	var mu sync.Mutex
	seen := map[string]int{}
	answers := together(receivers, func(int) error {
		for idle := 0; idle < 3; {
			ms, err := t.Queue.Receive(t.ctx, "jobs", 3, long)
			if err != nil {
				return err
			}
			if len(ms) == 0 {
				idle++
			}
			for _, m := range ms {
				mu.Lock()
				seen[string(m.Body)]++
				mu.Unlock()
				if err := t.Queue.Delete(t.ctx, m); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if answers[""] != receivers {
		t.Fatalf("receivers answered %v", answers)
	}
	for _, m := range t.receive("jobs", 10, long) {
		seen[string(m.Body)]++ // a receiver may have given up while others had them
	}
	for b, n := range seen {
		if n != 1 {
			t.Errorf("message %s was delivered %d times", b, n)
		}
	}
	if len(seen) != messages {
		t.Errorf("%d messages of %d", len(seen), messages)
	}
}

func (t *suite) raceSend() {
	const n = 8
	if a := together(n, func(int) error {
		return t.Queue.Send(t.ctx, "jobs", []byte("x"), work.SendOptions{DedupeKey: "x"})
	}); a[""] != n {
		t.Fatalf("senders answered %v", a)
	}
	if ms := t.receive("jobs", 10, long); len(ms) != 1 {
		t.Fatalf("%d messages with one dedupe key", len(ms))
	}
}

func (t *suite) cancelledQueue() {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	for what, err := range map[string]error{
		"send": t.Queue.Send(ctx, "jobs", []byte("x"), work.SendOptions{}),
		"receive": func() error {
			_, err := t.Queue.Receive(ctx, "jobs", 1, long)
			return err
		}(),
		"depth": func() error {
			_, err := t.Queue.Depth(ctx, "jobs")
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s went through with a context that had ended", what)
		}
	}
}
