package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/internal/cli"
)

// answerView is an answer with what is missing from it.
type answerView struct {
	Type            string        `json:"type"`
	Series          []seriesView  `json:"series"`
	Text            string        `json:"text,omitempty"`
	Partial         bool          `json:"partial"`
	CompleteThrough string        `json:"complete_through,omitempty"`
	Reasons         []string      `json:"reasons"`
	Missing         []missingView `json:"missing"`
	Notes           []string      `json:"notes"`
	// Regions of an answer of several.
	Regions []regionView `json:"regions,omitempty"`
}

// regionView says what of one region is in an answer.
type regionView struct {
	Region          string   `json:"region"`
	Answered        bool     `json:"answered"`
	Reason          string   `json:"reason,omitempty"`
	Detail          string   `json:"detail,omitempty"`
	Partial         bool     `json:"partial"`
	CompleteThrough string   `json:"complete_through,omitempty"`
	Reasons         []string `json:"reasons,omitempty"`
}

func regionViews(list []client.RegionState) (out []regionView) {
	for _, r := range list {
		v := regionView{Region: r.Region, Reason: r.Reason, Detail: r.Detail, Partial: true}
		if c := r.Completeness; c != nil {
			v.Answered, v.Partial = true, c.Partial
			if !c.CompleteThrough.IsZero() {
				v.CompleteThrough = c.CompleteThrough.Format(time.RFC3339)
			}
			for _, x := range c.Reasons {
				v.Reasons = append(v.Reasons, x.String())
			}
		}
		out = append(out, v)
	}
	return out
}

// String is a line for people.
func (v regionView) String() string {
	text := "region " + v.Region + ": "
	switch {
	case !v.Answered:
		return text + "not in the answer: " + v.Reason + ": " + v.Detail
	case v.CompleteThrough == "":
		text += "complete through an unknown time"
	default:
		text += "complete through " + v.CompleteThrough
	}
	if len(v.Reasons) > 0 {
		text += "; partial: " + strings.Join(v.Reasons, "; ")
	}
	return text
}

type seriesView struct {
	Labels map[string]string `json:"labels"`
	Time   string            `json:"time"`
	// Value is text, because JSON has no NaN and no infinities.
	Value string `json:"value"`
}

// missingView says how much is missing for one reason.
type missingView struct {
	Code       string      `json:"code"`
	Batches    uint64      `json:"batches,omitempty"`
	AtLeast    bool        `json:"at_least,omitempty"`
	Hours      [][2]string `json:"hours,omitempty"`
	MoreHours  int         `json:"more_hours,omitempty"`
	Shards     []uint32    `json:"shards,omitempty"`
	MoreShards int         `json:"more_shards,omitempty"`
}

func viewOf(a *client.Answer) answerView {
	v := answerView{Type: a.Type, Series: []seriesView{}, Text: a.Text, Partial: a.Completeness.Partial, Reasons: []string{}, Missing: []missingView{}, Notes: []string{}}
	if t := a.Completeness.CompleteThrough; !t.IsZero() {
		v.CompleteThrough = t.Format(time.RFC3339)
	}
	for _, s := range a.Series {
		for _, p := range s.Points {
			value := strconv.FormatFloat(p.Value, 'g', -1, 64)
			if h := p.Histogram; h != nil {
				value = fmt.Sprintf("histogram of %v, sum %v", h.Count, h.Sum)
			}
			v.Series = append(v.Series, seriesView{s.Labels, p.Time.Format(time.RFC3339Nano), value})
		}
	}
	for _, r := range a.Completeness.Reasons {
		v.Reasons = append(v.Reasons, r.String())
	}
	for _, n := range a.Completeness.Notes {
		v.Notes = append(v.Notes, n.String())
	}
	for _, m := range a.Completeness.Missing {
		x := missingView{Code: m.Code, Batches: m.Batches, AtLeast: m.AtLeast, MoreHours: m.MoreHours, Shards: m.Shards, MoreShards: m.MoreShards}
		for _, h := range m.Hours {
			x.Hours = append(x.Hours, [2]string{h.Start.Format(time.RFC3339), h.End.Format(time.RFC3339)})
		}
		v.Missing = append(v.Missing, x)
	}
	v.Regions = regionViews(a.Completeness.Regions)
	return v
}

func (v answerView) table() table {
	t := table{header: []string{"SERIES", "TIME", "VALUE"}}
	if v.Type == "string" {
		t.rows = append(t.rows, []string{"-", "-", v.Text})
	}
	for _, s := range v.Series {
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
			if name != "__name__" {
				labels = append(labels, fmt.Sprintf("%s=%q", name, s.Labels[name]))
			}
		}
		t.rows = append(t.rows, []string{s.Labels["__name__"] + "{" + strings.Join(labels, ", ") + "}", s.Time, s.Value})
	}
	return t
}

func evaluateCommand(out *format) *cobra.Command {
	s := &server{}
	var at string
	var tokens []string
	var w client.Wanted
	cmd := &cobra.Command{
		Use:   "query EXPRESSION",
		Short: "Evaluate PromQL at one time, and say what is missing from the answer",
		Long: "Evaluates a PromQL expression. An answer from which something is missing exits 3, and says on stderr\n" +
			"why, and how many accepted batches of which hours and shards that is, as far as it is known. Of an answer\n" +
			"of several regions it says for each through when it is complete, or why nothing of it is there.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var when time.Time
			if at != "" {
				var err error
				if when, err = time.Parse(time.RFC3339, at); err != nil {
					return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--at: %w", err)}
				}
			}
			for _, t := range tokens {
				w.Tokens = append(w.Tokens, client.Token(t))
			}
			var a *client.Answer
			err := s.query(cmd.Context(), func(ctx context.Context, q *client.Querier) (err error) {
				a, err = q.InstantOf(ctx, w, args[0], when)
				return err
			})
			if err != nil {
				return err
			}
			v := viewOf(a)
			if err := out.write(cmd.OutOrStdout(), v, v.table()); err != nil {
				return err
			}
			for _, n := range v.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), n)
			}
			for _, r := range v.Regions {
				fmt.Fprintln(cmd.ErrOrStderr(), r)
			}
			if v.Partial {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the answer is partial: " + strings.Join(v.Reasons, "; "))}
			}
			return nil
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&at, "at", "", "time of the evaluation, RFC 3339; now if empty")
	cmd.Flags().StringArrayVar(&tokens, "min-token", nil, "position of a batch that must be visible, as in an answer of a collector; may be repeated")
	cmd.Flags().BoolVar(&w.Everything, "strong", false, "wait until everything that was accepted before is visible")
	cmd.Flags().BoolVar(&w.Complete, "require-complete", false, "fail where the answer would be partial")
	regionsFlag(cmd, &w.Regions)
	return cmd
}

// regionsFlag adds the flag that says which regions are asked.
func regionsFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringSliceVar(to, "regions", nil, "regions to ask: names, all, or local; empty: as the service's settings say")
}
