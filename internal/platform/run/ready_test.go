package run

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func answerOf(r *Readiness) (int, string) {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "/-/ready", nil))
	return w.Code, w.Body.String()
}

// TestOneSlowRequestChangesNothing: two failures in a row do, and two successes after them;
// the answer names the part and since when.
func TestOneSlowRequestChangesNothing(t *testing.T) {
	down := errors.New("connection refused")
	r := NewReadiness(slog.New(slog.DiscardHandler))
	p := r.Probed("store")
	if code, body := answerOf(r); code != 503 || !strings.Contains(body, `"part":"store","ready":false`) {
		t.Errorf("before the first report: %d %s", code, body)
	}
	for i, step := range []struct {
		err  error
		want int
	}{
		{nil, 200}, {down, 200}, {nil, 200}, {down, 200}, {down, 503}, {nil, 503}, {down, 503}, {nil, 503}, {nil, 200}, {down, 200}, {nil, 200},
	} {
		p.Report(step.err)
		if code, body := answerOf(r); code != step.want {
			t.Errorf("step %d: %d %s", i, code, body)
		}
	}
	p.Report(down)
	p.Report(down)
	if err := r.Err(); err == nil || !strings.HasPrefix(err.Error(), "store since 20") || !strings.Contains(err.Error(), down.Error()) {
		t.Error(err)
	}
	first := NewReadiness(slog.New(slog.DiscardHandler))
	first.Probed("store").Report(down)
	if code, body := answerOf(first); code != 503 || !strings.Contains(body, down.Error()) {
		t.Errorf("down from the start: %d %s", code, body)
	}
}

func TestPartsKnowSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		r := NewReadiness(slog.New(slog.DiscardHandler))
		r.Check("etcd", func() error { return err })
		time.Sleep(time.Minute)
		if code, _ := answerOf(r); code != 200 {
			t.Error(code)
		}
		err = errors.New("no quorum")
		began := time.Now()
		_ = r.Status()
		time.Sleep(time.Hour)
		if st := r.Status(); st[0].Ready || !st[0].Since.Equal(began) || st[0].Error != "no quorum" {
			t.Errorf("%+v", st)
		}
	})
}

// TestProbesAskAgainSoon: a store that hangs is noticed by the deadline, and one that is
// back within seconds.
func TestProbesAskAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		var asked atomic.Int64
		r := NewReadiness(slog.New(slog.DiscardHandler))
		p := r.Probed("store")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- p.Probe(ctx, func(ctx context.Context) error {
				asked.Add(1)
				if hangs.Load() {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
		}()
		time.Sleep(time.Minute)
		if n := asked.Load(); r.Err() != nil || n > 14 {
			t.Errorf("%d probes in a minute: %v", n, r.Err())
		}
		hangs.Store(true)
		time.Sleep(probeInterval + 2*probeTimeout + probeAgain + time.Second)
		if r.Err() == nil {
			t.Error("a store that hangs is ready")
		}
		hangs.Store(false)
		time.Sleep(probeTimeout + 3*probeAgain + time.Second)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
