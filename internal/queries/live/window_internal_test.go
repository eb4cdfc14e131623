package live

import (
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestQuietWindowsAreClosed: windows for which no batch comes any more become one segment in time, without a further batch of
// their group; the one that a batch came for last does not.
func TestQuietWindowsAreClosed(t *testing.T) {
	s, err := New(Config{History: 24 * time.Hour, MaxBytes: 1 << 30, MaxSeries: 100})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0).Truncate(time.Hour)
	seq := uint64(1)
	// Two windows of ten minutes with three batches each, of two rows that are 10 s apart.
	for window := range 2 {
		for k := range 3 {
			fb := frame.NewBuilder()
			id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			for row := range 2 {
				at := now.Add(time.Duration(window)*10*time.Minute + time.Duration(2*k+row+1)*10*time.Second)
				if err := fb.Append(id, at.UnixNano(), float64(k)); err != nil {
					t.Fatal(err)
				}
			}
			b, err := fb.Build(identity.Boot{Agent: "a", Boot: "b"}, seq)
			if err != nil {
				t.Fatal(err)
			}
			seq = b.Identity.SeqEnd + 1
			if _, err := s.Insert(accepted.Batch{Identity: b.Identity}, b, now); err != nil {
				t.Fatal(err)
			}
		}
	}
	segments := func() string {
		out := ""
		for _, ser := range s.series {
			for _, seg := range ser.places[0].Group.segments {
				out += fmt.Sprint(len(seg.ms), " ")
			}
		}
		return out
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{closeQuiet*time.Millisecond - 1, "2 2 2 2 2 2 "}, {closeQuiet * time.Millisecond, "6 2 2 2 "}, {time.Hour, "6 2 2 2 "}} {
		if s.Expire(now.Add(step.after)); segments() != step.want {
			t.Errorf("after %s the segments have %s rows, want %s", step.after, segments(), step.want)
		}
	}
	if len(s.filling) != 0 {
		t.Errorf("%d groups are asked again, with nothing to close", len(s.filling))
	}
}
