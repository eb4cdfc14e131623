package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// showBoot is a boot whose overlap or clashes are shown.
type showBoot struct {
	agent, boot string
	seq         uint64
}

type overlappingView struct {
	SeqStart    uint64   `json:"seq_start"`
	SeqEnd      uint64   `json:"seq_end"`
	FrameSHA256 string   `json:"frame_sha256"`
	ManifestKey string   `json:"manifest_key"`
	FrameKey    string   `json:"frame_key"`
	Frame       sideView `json:"frame"`
	SharedStart uint64   `json:"shared_start,omitempty"`
	SharedEnd   uint64   `json:"shared_end,omitempty"`
	Same        uint64   `json:"same"`
	Different   uint64   `json:"different"`
}

type numberedView struct {
	Series     string `json:"series"`
	TimeUnixNs int64  `json:"time_unix_ns"`
	Value      string `json:"value"`
}

func (v numberedView) String() string {
	return v.Series + " at " + time.Unix(0, v.TimeUnixNs).UTC().Format(time.RFC3339Nano) + " = " + v.Value
}

func viewNumbered(r *reconcilerv1.NumberedRecord) numberedView {
	return numberedView{r.GetSeries(), r.GetTimeUnixNs(), r.GetValue()}
}

type numberDifferenceView struct {
	Seq        uint64       `json:"seq"`
	Counts     numberedView `json:"counts"`
	Other      numberedView `json:"other"`
	OtherBatch uint32       `json:"other_batch"`
}

type overlapComparison struct {
	AgentID     string                 `json:"agent_id"`
	BootID      string                 `json:"boot_id"`
	Seq         uint64                 `json:"seq"`
	Batches     []overlappingView      `json:"batches"`
	Incomplete  bool                   `json:"incomplete"`
	Differences []numberDifferenceView `json:"differences"`
}

// overlap shows the batches that cover a number.
func (b showBoot) overlap(cmd *cobra.Command, s *settler, out *format, limit int) error {
	var r *reconcilerv1.GetOverlapResponse
	err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) (err error) {
		r, err = c.GetOverlap(ctx, &reconcilerv1.GetOverlapRequest{AgentId: b.agent, BootId: b.boot, Seq: b.seq, Differences: int32(min(max(limit, 1), 1000))})
		return err
	})
	if err != nil {
		return err
	}
	v := overlapComparison{b.agent, b.boot, b.seq, []overlappingView{}, r.GetIncomplete(), []numberDifferenceView{}}
	t := table{header: []string{"BATCH", "SEQUENCE", "ACCEPTED", "COLLECTOR", "RECORDS", "SHARED", "SAME", "DIFFERENT", "FRAME", "STATE"}}
	for i, o := range r.GetBatches() {
		one := overlappingView{o.GetSeqStart(), o.GetSeqEnd(), o.GetFrameSha256(), o.GetManifestKey(), o.GetFrameKey(), viewSide(o.GetFrame()), o.GetShared().GetStart(), o.GetShared().GetEnd(), o.GetSame(), o.GetDifferent()}
		v.Batches = append(v.Batches, one)
		row := []string{fmt.Sprint(i), fmt.Sprintf("%d-%d", one.SeqStart, one.SeqEnd), one.Frame.At, one.Frame.CollectorID, fmt.Sprint(one.Frame.Records), "", "", "", one.FrameKey, "counts"}
		if i > 0 {
			row[5], row[6], row[7], row[9] = fmt.Sprintf("%d-%d", one.SharedStart, one.SharedEnd), fmt.Sprint(one.Same), fmt.Sprint(one.Different), "does not count there"
		}
		if one.Frame.Error != "" {
			row[9] = one.Frame.Error
		}
		t.rows = append(t.rows, row)
	}
	for _, d := range r.GetDifferences() {
		one := numberDifferenceView{d.GetSeq(), viewNumbered(d.GetCounts()), viewNumbered(d.GetOther()), d.GetOtherBatch()}
		v.Differences = append(v.Differences, one)
		t.rows = append(t.rows, []string{"0", strconv.FormatUint(one.Seq, 10), "", "", "", "", "", "", one.Counts.String(), "counts"},
			[]string{fmt.Sprint(one.OtherBatch), strconv.FormatUint(one.Seq, 10), "", "", "", "", "", "", one.Other.String(), "does not count"})
	}
	if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
		return err
	}
	if v.Incomplete {
		return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("not all batches before %d could be looked at: another one may count", b.seq)}
	}
	return nil
}

// clashes shows who has used a boot id.
func (b showBoot) clashes(cmd *cobra.Command, s *settler, out *format) error {
	var all conflictsView
	err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
		return all.read(ctx, c, b.agent, true)
	})
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(all.Clashes, func(c clashView) bool { return c.BootID != b.boot })
	if len(list) == 0 {
		return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("no other spool has used the boot id %q of %q", b.boot, b.agent)}
	}
	t := table{header: []string{"SPOOL", "FIRST SEEN", "COLLECTOR", "ADDRESS", "STATE", "RECORD"}}
	t.rows = append(t.rows, []string{list[0].OwnerSpoolID, list[0].OwnerSeenAt, list[0].OwnerCollectorID, "", "owns the boot id", ""})
	for _, c := range list {
		state := "refused"
		if c.Error != "" {
			state = c.Error
		}
		t.rows = append(t.rows, []string{c.SpoolID, c.ObservedAt, c.CollectorID, c.Peer, state, c.ClashKey})
	}
	return out.write(cmd.OutOrStdout(), list, t)
}
