package coordinator

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
)

// That another coordinator opens the linearizer is no warning, until it lasts; whatever else keeps it closed is one.
func TestWhatFollowersLog(t *testing.T) {
	var text bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	v := &identities{log: slog.New(slog.NewTextHandler(&text, nil)), now: func() time.Time { return now }, m: newIdentityMetrics()}
	v.closed(errNotOpened)
	follows, away := fmt.Errorf("open: %w", regions.ErrMustRecover), &regions.RegionError{Op: "read", Region: "eu", Err: errors.New("no answer")}
	for i, step := range []struct {
		err  error
		wait time.Duration
		want string // "" is nothing
	}{
		{follows, 0, "INFO"}, {follows, time.Second, ""}, {follows, followPatience / 2, ""}, {follows, followPatience, "WARN"}, {follows, time.Second, "WARN"},
		{away, time.Second, "WARN"}, {follows, time.Second, "INFO"}, {follows, time.Second, ""},
		{fmt.Errorf("open: %w", regions.ErrDissolved), time.Second, "INFO"}, {fmt.Errorf("open: %w", regions.ErrDissolved), time.Second, ""},
	} {
		now = now.Add(step.wait)
		text.Reset()
		v.notOpened(step.err)
		if got := text.String(); (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("step %d, %v: logged %q, want %q", i, step.err, got, step.want)
		}
	}
}
