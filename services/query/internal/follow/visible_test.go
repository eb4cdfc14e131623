package follow

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
)

// TestUnknownTokens: a token that was given is visible, of a run that the node has never heard of too; one that was not
// given is refused after one poll, however long a token may be waited for.
func TestUnknownTokens(t *testing.T) {
	w := newWorld(t, 1, time.Time{})
	w.cfg.PollInterval, w.cfg.IdleInterval, w.cfg.TokenTimeout = time.Hour, time.Hour, time.Hour
	w.restart()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.follow.Run(ctx) // until cancel
	}()
	defer func() { cancel(); <-ended }()
	given := w.accept(false)
	w.must(w.follow.WaitFor(ctx, []journal.Position{given.token}, false))
	if !w.visible(given, w.shown()) {
		t.Error("a batch whose token is visible is not")
	}
	for _, never := range []journal.Position{{Run: journal.RunID{1, 2, 3}}, {Run: given.token.Run, Segment: given.token.Segment + 1}} {
		var unknown *UnknownTokenError
		if err := w.follow.WaitFor(ctx, []journal.Position{given.token, never}, false); !errors.As(err, &unknown) || unknown.Token != never {
			t.Errorf("%s: %v", never, err)
		}
	}
	next := w.accept(false)
	w.must(w.follow.WaitFor(ctx, []journal.Position{next.token}, true))
	if !w.visible(next, w.shown()) {
		t.Error("everything is visible, and a batch is not")
	}
}
