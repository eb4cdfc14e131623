package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// frameView is a frame as data.
type frameView struct {
	AgentID      string          `json:"agent_id"`
	BootID       string          `json:"boot_id"`
	SeqStart     uint64          `json:"seq_start"`
	SeqEnd       uint64          `json:"seq_end"`
	SHA256       identity.Digest `json:"sha256"`
	FrameBytes   int             `json:"frame_bytes"`
	DecodedBytes int             `json:"decoded_bytes"`
	Records      uint64          `json:"records"`
	Series       int             `json:"series"`
	Helps        int             `json:"helps"`
	MinTime      time.Time       `json:"min_time"`
	MaxTime      time.Time       `json:"max_time"`
}

func frameCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "frame", Short: "Inspect batch frames"}
	cmd.AddCommand(&cobra.Command{
		Use:   "inspect FILE",
		Short: "Decode and validate a frame (- is standard input)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			lim := frame.DefaultLimits()
			// One byte more than the limit, so that the decoder sees that a longer file is too large and
			// does not report it as cut off.
			b, err := io.ReadAll(io.LimitReader(in, int64(lim.EncodedBytes)+1))
			if err != nil {
				return err
			}
			var batch frame.Batch
			s, err := frame.NewDecoder().DecodeSummary(b, &batch, lim)
			if err != nil {
				return err
			}
			v := frameView{AgentID: s.Identity.Agent, BootID: s.Identity.Boot, SeqStart: s.Identity.SeqStart, SeqEnd: s.Identity.SeqEnd,
				SHA256: identity.Sum(b), FrameBytes: s.FrameBytes, DecodedBytes: s.DecodedBytes, Records: s.Records, Helps: len(batch.Helps),
				MinTime: time.Unix(0, s.MinTime).UTC(), MaxTime: time.Unix(0, s.MaxTime).UTC()}
			for _, g := range batch.Groups {
				v.Series += len(g.Series)
			}
			return out.write(cmd.OutOrStdout(), v, table{header: []string{"FIELD", "VALUE"}, rows: [][]string{
				{"agent", v.AgentID}, {"boot", v.BootID}, {"sequence", fmt.Sprintf("%d..%d", v.SeqStart, v.SeqEnd)},
				{"sha256", v.SHA256.String()}, {"bytes", fmt.Sprintf("%d (decoded %d)", v.FrameBytes, v.DecodedBytes)},
				{"records", fmt.Sprint(v.Records)}, {"series", fmt.Sprint(v.Series)}, {"helps", fmt.Sprint(v.Helps)},
				{"from", v.MinTime.Format(time.RFC3339Nano)}, {"to", v.MaxTime.Format(time.RFC3339Nano)},
			}})
		},
	})
	return cmd
}
