package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

const lease = time.Minute

func send(t *testing.T, l *Ledger, n int, at time.Time) {
	t.Helper()
	if err := l.Send(body(n), "test", at); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, l *Ledger, now time.Time) (Message, bool) {
	t.Helper()
	m, ok, err := l.Take(now, lease)
	if err != nil {
		t.Fatal(err)
	}
	return m, ok
}

// TestQueueOrder: the first due comes first, once, and no earlier than it is due.
func TestQueueOrder(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	send(t, l, 1, t0.Add(3*time.Second))
	send(t, l, 2, t0.Add(time.Second))
	send(t, l, 1, t0.Add(2*time.Second)) // earlier than before: counts
	send(t, l, 2, t0.Add(time.Hour))     // later: does not
	if _, ok := take(t, l, t0); ok {
		t.Error("a message was given out before it was due")
	}
	for _, want := range []string{body(2), body(1)} {
		if m, ok := take(t, l, t0.Add(2*time.Second)); !ok || m.Body != want || m.Attempts != 1 {
			t.Errorf("%+v; want %s", m, want)
		}
	}
	if m, ok := take(t, l, t0.Add(2*time.Second)); ok {
		t.Errorf("%+v was given out twice", m)
	}
	if got := l.Totals().Queued; got != 2 {
		t.Errorf("%d are queued", got)
	}
}

// TestMessagesComeBack: a message whose worker died is given out again, and who had it first cannot end it then.
func TestMessagesComeBack(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	send(t, l, 1, t0)
	first, _ := take(t, l, t0)
	second, ok := take(t, l, t0.Add(lease))
	if !ok || second.Attempts != 2 {
		t.Fatalf("%+v, %t", second, ok)
	}
	if err := l.Done(first, t0.Add(lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Later(first, t0, errors.New("late"), DefaultBackoff); err != nil {
		t.Fatal(err)
	}
	if l.Totals().Queued != 1 {
		t.Fatal("the first worker has ended the message of the second")
	}
	if err := l.Done(second, t0.Add(lease)); err != nil {
		t.Fatal(err)
	}
	if l.Totals().Queued != 0 {
		t.Error("a message that is done is still there")
	}
}

// TestNewsWhileAtWork: what is sent while a worker has the body is not lost with that worker's Done.
func TestNewsWhileAtWork(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	send(t, l, 1, t0)
	m, _ := take(t, l, t0)
	send(t, l, 1, t0.Add(time.Second))
	if err := l.Done(m, t0.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	again, ok := take(t, l, t0.Add(2*time.Second))
	if !ok || again.Attempts != 1 {
		t.Errorf("%+v, %t", again, ok)
	}
}

// TestBackoffEndsInADeadLetter: waits grow to their bound, attempts are counted in the message, the last one ends it, and only
// an operator brings it back.
func TestBackoffEndsInADeadLetter(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	b := Backoff{Base: time.Second, Max: 5 * time.Second, Attempts: 5}
	send(t, l, 1, t0)
	now := t0
	for i, wait := range []time.Duration{1, 2, 4, 5} {
		m, ok := take(t, l, now)
		if !ok || m.Attempts != i+1 {
			t.Fatalf("attempt %d: %+v, %t", i+1, m, ok)
		}
		if dead, err := l.Later(m, now, fmt.Errorf("attempt %d", i+1), b); err != nil || dead {
			t.Fatal(dead, err)
		}
		if _, ok := take(t, l, now.Add(wait*time.Second-1)); ok {
			t.Fatalf("attempt %d came early", i+2)
		}
		now = now.Add(wait * time.Second)
	}
	m, _ := take(t, l, now)
	if dead, err := l.Later(m, now, errors.New("the end"), b); err != nil || !dead {
		t.Fatal(dead, err)
	}
	list := must[[]Message](t)(l.Dead("", 10))
	if len(list) != 1 || list[0].Error != "the end" || list[0].Attempts != 5 || list[0].Reason != "test" {
		t.Fatalf("%+v", list)
	}
	send(t, l, 1, now)
	if tot := l.Totals(); tot.Queued != 0 || tot.Dead != 1 {
		t.Errorf("a dead letter was queued by itself: %+v", tot)
	}
	if ok, err := l.Redrive(body(1), now); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if m, ok := take(t, l, now); !ok || m.Attempts != 1 || l.Totals().Dead != 0 {
		t.Errorf("%+v, %t", m, ok)
	}
	if ok, err := l.Redrive(body(1), now); err != nil || ok {
		t.Errorf("there is no such dead letter: %t, %v", ok, err)
	}
}

// TestAwaitDoesNotCount: a place that is away does not use up the attempts of a body.
func TestAwaitDoesNotCount(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	send(t, l, 1, t0)
	now := t0
	for range 100 {
		m, ok := take(t, l, now)
		if !ok || m.Attempts != 1 {
			t.Fatalf("%+v, %t", m, ok)
		}
		now = now.Add(time.Minute)
		if err := l.Await(m, t0, now, errors.New("away")); err != nil {
			t.Fatal(err)
		}
	}
	since, ok, err := l.Waiting()
	if err != nil || !ok || !since.Equal(t0) {
		t.Errorf("waits since %v, %t, %v; want %v", since, ok, err, t0)
	}
}

// TestNewsEndAWait: what comes while a worker has the body may be what the worker is about to wait for.
func TestNewsEndAWait(t *testing.T) {
	for name, news := range map[string]func(*Ledger) error{
		"queued": func(l *Ledger) error { return l.Send(body(1), "a file turned up", t0.Add(time.Second)) },
		"a place is back": func(l *Ledger) error {
			n, err := l.Hasten(t0.Add(time.Second))
			if n != 1 {
				return fmt.Errorf("%d messages: %w", n, err)
			}
			return err
		},
	} {
		for _, failed := range []bool{false, true} {
			l := open(t, pebblevfs.NewMem())
			send(t, l, 1, t0)
			m, _ := take(t, l, t0)
			if err := news(l); err != nil {
				t.Fatal(name, err)
			}
			now := t0.Add(2 * time.Second)
			if failed {
				_, err := l.Later(m, now, errors.New("a place failed"), Backoff{Base: time.Second, Max: time.Hour, Attempts: 1})
				if err != nil {
					t.Fatal(err)
				}
				now = now.Add(time.Second) // the first wait, which is the shortest
			} else if err := l.Await(m, now, now.Add(time.Hour), errors.New("a place is away")); err != nil {
				t.Fatal(err)
			}
			if again, ok := take(t, l, now); !ok || again.Attempts != 1 {
				t.Errorf("%s, failed %t: %+v, %t", name, failed, again, ok)
			}
		}
	}
}

// TestQueueNeverForgets plays random workers, who die, are late, and are told twice: while a body waits, somebody gets it in the
// end, and what was never ended is never gone.
func TestQueueNeverForgets(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		fsys := pebblevfs.NewCrashableMem()
		l := open(t, fsys)
		now := t0
		owed := map[string]bool{} // sent, and not looked at since
		var held []Message
		for range 300 {
			now = now.Add(time.Duration(rng.IntN(20)) * time.Second)
			switch rng.IntN(5) {
			case 0:
				n := rng.IntN(4)
				send(t, l, n, now)
				owed[body(n)] = true
			case 1, 2:
				if m, ok := take(t, l, now); ok {
					owed[m.Body] = false // this worker looks now
					held = append(held, m)
				}
			case 3:
				if len(held) > 0 {
					m := held[rng.IntN(len(held))] // may be over, may be told twice
					if err := l.Done(m, now); err != nil {
						t.Fatal(err)
					}
				}
			case 4:
				if len(held) > 0 {
					if _, err := l.Later(held[rng.IntN(len(held))], now, errors.New("failed"), DefaultBackoff); err != nil {
						t.Fatal(err)
					}
				}
			}
			for b, o := range owed {
				if _, ok, err := l.message(b); err != nil || o && !ok {
					t.Fatalf("seed %d: %s was sent, nobody has looked since, and it is not queued: %v", seed, b, err)
				}
			}
		}
	}
}

// TestRecall: what waits for a time before the clock was set back is due; what a worker has, and what waits no longer than anything
// does, is left alone.
func TestRecall(t *testing.T) {
	l := open(t, pebblevfs.NewMem())
	future := t0.Add(1000 * time.Hour)
	send(t, l, 1, future)
	held, _ := take(t, l, future)
	send(t, l, 2, future)
	send(t, l, 3, t0.Add(lease))
	send(t, l, 4, t0.Add(lease+1))
	if n, err := l.Recall(t0, lease); n != 2 || err != nil {
		t.Errorf("%d recalled, %v", n, err)
	}
	if n, err := l.Recall(t0, lease); n != 0 || err != nil {
		t.Errorf("%d recalled again, %v", n, err)
	}
	for _, want := range []string{body(2), body(4)} {
		if m, ok := take(t, l, t0); !ok || m.Body != want {
			t.Errorf("%+v, want %s", m, want)
		}
	}
	if m, ok := take(t, l, t0); ok {
		t.Errorf("%+v is due", m)
	}
	if err := l.Done(held, future); err != nil {
		t.Error(err)
	}
	if n := l.Totals().Queued; n != 3 {
		t.Errorf("%d are queued", n)
	}
}
