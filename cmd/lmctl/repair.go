package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func repairCommand(out *format) *cobra.Command {
	s := &settler{}
	cmd := &cobra.Command{Use: "repair", Short: "What is damaged or missing of what was accepted, and the check of all frames"}
	s.flags(cmd, "127.0.0.1:4771", "reconciler")
	cmd.AddCommand(repairStatus(s, out))
	return cmd
}

// scrubView is how far the check of all frames is.
type scrubView struct {
	OpenRepairs     uint64  `json:"open_repairs"`
	Pass            uint64  `json:"pass"`
	Began           string  `json:"began"`
	Ended           string  `json:"ended,omitempty"`
	Due             string  `json:"due,omitempty"`
	Overdue         bool    `json:"overdue"`
	Checked         uint64  `json:"checked"`
	Frames          uint64  `json:"frames"`
	CheckedBytes    uint64  `json:"checked_bytes"`
	Suspects        uint64  `json:"suspects"`
	VerifiedSince   string  `json:"verified_since"`
	FramesPerSecond float64 `json:"frames_per_second"`
	HashesBytes     bool    `json:"hashes_bytes"`
}

func viewScrub(r *reconcilerv1.GetStatusResponse, now time.Time) scrubView {
	v := scrubView{OpenRepairs: r.GetOpenRepairs()}
	s := r.GetScrub()
	if s == nil {
		return v
	}
	v.Pass, v.Began, v.Ended, v.Due = s.GetPass(), unixTime(s.GetBeganAtUnixS()), unixTime(s.GetEndedAtUnixS()), unixTime(s.GetDueAtUnixS())
	v.Overdue = s.GetDueAtUnixS() > 0 && now.Unix() > s.GetDueAtUnixS()
	v.Checked, v.Frames, v.CheckedBytes, v.Suspects = s.GetChecked(), s.GetFrames(), s.GetCheckedBytes(), s.GetSuspects()
	v.VerifiedSince, v.FramesPerSecond, v.HashesBytes = unixTime(s.GetVerifiedSinceUnixS()), s.GetFramesPerSecond(), s.GetHashesBytes()
	return v
}

func scrubTable(v scrubView) table {
	t := table{header: []string{"WHAT", "VALUE"}}
	add := func(what, value string) { t.rows = append(t.rows, []string{what, orDash(value)}) }
	add("open repairs", fmt.Sprint(v.OpenRepairs))
	if v.Pass == 0 {
		add("scrub", "this reconciler does not check frames, or has not asked yet")
		return t
	}
	add("pass", fmt.Sprintf("%d, began %s", v.Pass, v.Began))
	add("ended", v.Ended)
	add("due", v.Due)
	add("checked", fmt.Sprintf("%d of %d frames, %d bytes hashed", v.Checked, v.Frames, v.CheckedBytes))
	add("suspects", fmt.Sprint(v.Suspects))
	add("everything was checked since", v.VerifiedSince)
	add("pace", fmt.Sprintf("%.1f frames a second, of this reconciler", v.FramesPerSecond))
	return t
}

func repairStatus(s *settler, out *format) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "How many repairs are open, and how far the check of all frames is; exits 3 when one is open", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v scrubView
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				r, err := c.GetStatus(ctx, &reconcilerv1.GetStatusRequest{})
				v = viewScrub(r, time.Now())
				return err
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), v, scrubTable(v)); err != nil {
				return err
			}
			return openRepairs(v.OpenRepairs)
		},
	}
}

// openRepairs is the exit of commands while repairs are open.
func openRepairs(n uint64) error {
	if n == 0 {
		return nil
	}
	return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d repairs are open", n)}
}
