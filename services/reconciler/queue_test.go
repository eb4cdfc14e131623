package reconciler

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestQueueHoldsEachKeyOnce(t *testing.T) {
	q := newQueue(2, 1)
	if o := q.offer(&item{key: "a"}); o != offerQueued {
		t.Error(o)
	}
	if o := q.offer(&item{key: "a"}); o != offerKnown {
		t.Error(o)
	}
	it, err := q.take(bg)
	must(t, err)
	if o := q.offer(&item{key: "a"}); o != offerKnown { // in work
		t.Error(o)
	}
	now := time.Unix(100, 0)
	if !q.retryAt(it, now.Add(time.Second)) {
		t.Error("no room for a retry")
	}
	if o := q.offer(&item{key: "a"}); o != offerKnown { // waits for its retry
		t.Error(o)
	}
	q.offer(&item{key: "b"})
	if o := q.offer(&item{key: "c"}); o != offerFull {
		t.Error(o)
	}
	b, err := q.take(bg)
	must(t, err)
	if q.retryAt(b, now) {
		t.Error("more retries than there is room for")
	}
	q.promote(now)
	if q.head < len(q.ready) {
		t.Error("a retry is ready before its time")
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := q.take(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("not due yet: %v", err)
	}
	q.promote(now.Add(time.Second))
	if it, err = q.take(bg); err != nil || it.key != "a" {
		t.Errorf("%v %v", it, err)
	}
	q.finish(it, true)
	if n, _ := q.length(); n != 0 {
		t.Errorf("%d left", n)
	}
}

// A scan that finds what waits already waits for it too, and hears of a failure.
func TestRoundsJoinWhatIsKnown(t *testing.T) {
	q := newQueue(8, 8)
	q.offer(&item{key: "a"})
	r := newRound()
	must(t, q.put(bg, &item{key: "a", rounds: []*round{r}}))
	must(t, q.put(bg, &item{key: "b", rounds: []*round{r}}))
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := r.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ended before its work: %v", err)
	}
	for range 2 {
		select {
		case <-r.over:
			t.Error("ended before its work")
		default:
		}
		it, err := q.take(bg)
		must(t, err)
		q.finish(it, it.key == "a")
	}
	if err := r.wait(bg); err == nil {
		t.Error("one was given up, and the round is well")
	}
	if err := newRound().wait(bg); err != nil {
		t.Errorf("a round that found nothing: %v", err)
	}
}

func TestScansWaitForRoomAndLeaveSomeToHints(t *testing.T) {
	q := newQueue(4, 4)
	for _, k := range []string{"a", "b", "c"} {
		must(t, q.put(bg, &item{key: k}))
	}
	ctx, cancel := context.WithCancel(bg)
	waits := make(chan error, 1)
	go func() { waits <- q.put(ctx, &item{key: "d"}) }()
	if o := q.offer(&item{key: "hint"}); o != offerQueued {
		t.Errorf("no room is left to hints: %v", o)
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() { waits <- q.put(bg, &item{key: "d"}) }()
	for range 2 {
		it, err := q.take(bg)
		must(t, err)
		q.finish(it, true)
	}
	must(t, <-waits)
}

func TestSeenForgetsTheOldestHalf(t *testing.T) {
	s := newSeen(4)
	for _, k := range []string{"a", "b", "c"} {
		s.add(k)
	}
	if !s.has("a") || !s.has("c") || s.has("d") {
		t.Error("wrong memory")
	}
	s.add("d")
	s.add("e")
	if s.has("a") || !s.has("c") || !s.has("e") {
		t.Error("wrong memory after it turned")
	}
}
