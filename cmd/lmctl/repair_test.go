package main

import (
	"strings"
	"testing"
	"time"

	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func TestScrubView(t *testing.T) {
	r := &reconcilerv1.GetStatusResponse{OpenRepairs: 2, Scrub: &reconcilerv1.ScrubStatus{
		Pass: 3, BeganAtUnixS: 1000, DueAtUnixS: 5000, Checked: 40, Frames: 100, CheckedBytes: 4000, Suspects: 1, VerifiedSinceUnixS: 500, FramesPerSecond: 2.5, HashesBytes: true,
	}}
	v := viewScrub(r, time.Unix(4999, 0))
	if v.Overdue || v.Ended != "" || v.Checked != 40 || !v.HashesBytes || v.VerifiedSince != "1970-01-01T00:08:20Z" {
		t.Errorf("%+v", v)
	}
	if v := viewScrub(r, time.Unix(5001, 0)); !v.Overdue {
		t.Errorf("%+v", v)
	}
	var b strings.Builder
	for _, row := range scrubTable(v).rows {
		b.WriteString(strings.Join(row, ": ") + "\n")
	}
	for _, want := range []string{"open repairs: 2", "40 of 100 frames, 4000 bytes hashed", "ended: -", "2.5 frames a second"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if got := scrubTable(viewScrub(&reconcilerv1.GetStatusResponse{}, time.Time{})); len(got.rows) != 2 {
		t.Errorf("%+v", got)
	}
	if openRepairs(0) != nil || openRepairs(1) == nil {
		t.Error("the exit does not say whether repairs are open")
	}
}
