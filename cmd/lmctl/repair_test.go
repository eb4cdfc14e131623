package main

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

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

// fakeRepairs answers questions about repairs from a list, two on a page.
type fakeRepairs struct {
	reconcilerv1.ReconcilerServiceClient
	list []*reconcilerv1.Repair
}

func (f fakeRepairs) ListRepairs(_ context.Context, r *reconcilerv1.ListRepairsRequest, _ ...grpc.CallOption) (*reconcilerv1.ListRepairsResponse, error) {
	from, _ := strconv.Atoi(r.GetPageToken())
	to := min(from+2, len(f.list))
	out := &reconcilerv1.ListRepairsResponse{Repairs: f.list[from:to]}
	if to < len(f.list) {
		out.NextPageToken = strconv.Itoa(to)
	}
	return out, nil
}

func TestRepairsAreNamedByTheirEnd(t *testing.T) {
	c := fakeRepairs{}
	for _, k := range []string{"agent=61/boot=62/1-2.json", "agent=61/boot=62/3-4.json", "agent=63/boot=62/3-4.json"} {
		c.list = append(c.list, &reconcilerv1.Repair{Key: "repair/v1/" + k, Cause: "missing_blob"})
	}
	list, err := listRepairs(t.Context(), c, "", "", 0)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	if list, err := listRepairs(t.Context(), c, "", "", 2); err != nil || len(list) != 2 {
		t.Error(list, err)
	}
	for name, want := range map[string]string{"1-2.json": "repair/v1/agent=61/boot=62/1-2.json", "agent=63/boot=62/3-4.json": "repair/v1/agent=63/boot=62/3-4.json", "repair/v1/x": "repair/v1/x", "3-4.json": "", "nothing": "", "": ""} {
		keys, err := repairKeys(t.Context(), c, []string{name})
		if (err == nil) != (want != "") || err == nil && keys[0] != want {
			t.Errorf("%q: %v, %v", name, keys, err)
		}
	}
}

func TestRepairViews(t *testing.T) {
	v, tab := viewShownRepair(&reconcilerv1.GetRepairResponse{
		Repair: &reconcilerv1.Repair{Key: "repair/v1/k", Cause: "corrupt_blob", Tries: 2, Answers: []*reconcilerv1.PlaceAnswer{{Place: "replica", Said: "failed", Detail: "no route"}},
			History: []*reconcilerv1.RepairEvent{{AtUnixNs: 1e9, What: "retry", By: "ann"}}},
		Generations: []*reconcilerv1.BlobGeneration{{Key: "g0", Fault: "hashes to x", Condemned: true}, {Key: "g1"}}, Places: []string{"replica"},
	})
	var b strings.Builder
	for _, row := range tab.rows {
		b.WriteString(strings.Join(row, ": ") + "\n")
	}
	for _, want := range []string{"generation g0: hashes to x; condemned", "generation g1: it is the frame", "answer of replica: failed: no route", "1970-01-01T00:00:01Z: retry by ann\n", "asked: 2 times"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if len(v.Generations) != 2 {
		t.Errorf("%+v", v)
	}
	results, _, open := viewResults([]*reconcilerv1.RepairResult{{Key: "a", Result: "put_back", From: "replica"}, {Key: "b", Result: "open", Error: "no place"}, {Key: "c", Result: "absent"}})
	if len(results) != 3 || open != 1 {
		t.Errorf("%+v, %d open", results, open)
	}
}
