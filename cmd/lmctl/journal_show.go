package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// segmentView is one object of the journal.
type segmentView struct {
	Key   string `json:"key"`
	Bytes int64  `json:"bytes"`
	At    string `json:"written_at"`
	// Of a segment.
	Position  string      `json:"position,omitempty"`
	Writer    string      `json:"writer,omitempty"`
	Role      string      `json:"role,omitempty"`
	Authority string      `json:"authority_id,omitempty"`
	Closed    bool        `json:"closed,omitempty"`
	Fenced    bool        `json:"fenced,omitempty"`
	Entries   []entryView `json:"entries"`
	// Record is the content of an object that is no file of entries.
	Record any `json:"record,omitempty"`
}

type entryView struct {
	AgentID    string `json:"agent_id"`
	BootID     string `json:"boot_id"`
	SeqStart   uint64 `json:"seq_start"`
	SeqEnd     uint64 `json:"seq_end"`
	Outcome    string `json:"outcome"`
	AcceptedAt string `json:"accepted_at"`
	MinTime    string `json:"min_time"`
	MaxTime    string `json:"max_time"`
	Bytes      uint64 `json:"frame_bytes"`
	// Key is where the frame is first looked for, or the quarantine record of a conflict.
	Key        string `json:"key"`
	HomeRegion string `json:"home_region,omitempty"`
	ClaimEpoch uint64 `json:"claim_epoch,omitempty"`
}

func journalShow(out *format) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "show URL RUN[:N] | KEY",
		Short: "Decode an object of the journal",
		Long: "Shows what stands in segment N of RUN (0 when only the run is named; \"journal_position\" of an answer is RUN:N), or in\n" +
			"the object KEY below journal/v1/: a segment, a folded file, a list of folded files, the head, begin.json. The entries of a\n" +
			"segment that was folded and deleted are in a folded file.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := journalKey(args[1])
			if err != nil {
				return usageError("%w", err)
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := showObject(cmd.Context(), store, key, agent)
			if err != nil {
				return reached(err)
			}
			if v.Record != nil && out.String() == "table" {
				as := format("yaml") // it has no rows
				return as.write(cmd.OutOrStdout(), v, table{})
			}
			t := table{header: []string{"AGENT", "BOOT", "SEQUENCE", "OUTCOME", "ACCEPTED AT", "FROM", "TO", "BYTES", "KEY"}}
			for _, e := range v.Entries {
				t.rows = append(t.rows, []string{e.AgentID, e.BootID, fmt.Sprintf("%d..%d", e.SeqStart, e.SeqEnd), e.Outcome, e.AcceptedAt, e.MinTime, e.MaxTime, fmt.Sprint(e.Bytes), e.Key})
			}
			if out.String() == "table" {
				fmt.Fprintln(cmd.ErrOrStderr(), v.title())
			}
			return out.write(cmd.OutOrStdout(), v, t)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only the entries of this agent")
	return cmd
}

func (v *segmentView) title() string {
	s := fmt.Sprintf("%s: %d entries, %d bytes, written at %s", v.Key, len(v.Entries), v.Bytes, orDash(v.At))
	if v.Writer != "" {
		s += fmt.Sprintf(", opened by the %s %s", v.Role, v.Writer)
	}
	if v.Closed {
		s += ", closes the run"
	}
	if v.Fenced {
		s += ", a fence: the run was ended here"
	}
	return s
}

// journalKey is the key that a run, a position or a key means.
func journalKey(text string) (string, error) {
	if strings.HasPrefix(text, layout.JournalPrefix) {
		return text, nil
	}
	if run, err := journal.ParseRunID(text); err == nil {
		return journal.Position{Run: run}.Key(), nil
	}
	p, err := journal.ParsePosition(text)
	if err != nil {
		return "", fmt.Errorf("%q is neither <run>, <run>:<segment> nor a key below %s", text, layout.JournalPrefix)
	}
	return p.Key(), nil
}

func showObject(ctx context.Context, store objstore.Store, key, agent string) (segmentView, error) {
	v := segmentView{Key: key, Entries: []entryView{}}
	var entries []journal.Entry
	var info objstore.Info
	var err error
	switch {
	case key == layout.JournalHeadKey:
		v.Record, info, err = readAny(ctx, store, key, journal.HeadKind, journal.ParseHead)
	case key == layout.JournalBeginKey:
		v.Record, info, err = readAny(ctx, store, key, journal.BeginKind, journal.ParseBegin)
	case strings.HasPrefix(key, layout.JournalFoldedPrefix) && strings.HasSuffix(key, ".json"):
		v.Record, info, err = readAny(ctx, store, key, journal.ListKind, journal.ParseList)
	case strings.HasPrefix(key, layout.JournalFoldedPrefix):
		entries, info, err = record.Read(ctx, store, key, journal.FileKind, journal.ParseFolded)
	default:
		var s *journal.Segment
		s, info, err = record.Read(ctx, store, key, journal.FileKind, journal.ParseSegment)
		if errors.Is(err, objstore.ErrNotFound) {
			return v, whyAbsent(ctx, store, key, err)
		}
		if err != nil {
			return v, err
		}
		v.Position, v.Closed, v.Fenced, entries = s.Position.String(), s.Closed, s.Fenced, s.Entries
		if o := s.Opening; o != nil {
			v.Writer, v.Role, v.Authority = o.Writer, o.Role.String(), o.Authority
		}
	}
	if err != nil {
		return v, err
	}
	v.Bytes, v.At = info.Size, at(info.LastModified)
	for i := range entries {
		if e := &entries[i]; agent == "" || e.ID.Agent == agent {
			v.Entries = append(v.Entries, viewEntry(e))
		}
	}
	return v, nil
}

func readAny[T any](ctx context.Context, g objstore.Getter, key string, k record.Kind, parse func([]byte) (T, error)) (any, objstore.Info, error) {
	got, info, err := record.Read(ctx, g, key, k, parse)
	return got, info, err
}

// whyAbsent says whether a segment that is not there was folded.
func whyAbsent(ctx context.Context, g objstore.Getter, key string, err error) error {
	run, n, perr := layout.ParseJournalSegment(key)
	if perr != nil {
		return err
	}
	head, _, herr := journal.ReadHead(ctx, g)
	if herr != nil {
		return errors.Join(err, herr)
	}
	switch h := head.Run(run); {
	case h == nil:
		return fmt.Errorf("%w: the head does not name the run: it never began, or has ended and is forgotten", err)
	case n < h.Folded:
		return fmt.Errorf("%w: it was folded, and deleted; its entries are in a folded file (lmctl journal show URL %s names them)", err, layout.JournalHeadKey)
	default:
		return fmt.Errorf("%w: the run of %s %q is folded up to segment %d", err, h.Role, h.Writer, h.Folded)
	}
}

func viewEntry(e *journal.Entry) entryView {
	v := entryView{
		AgentID: e.ID.Agent, BootID: e.ID.Boot, SeqStart: e.ID.SeqStart, SeqEnd: e.ID.SeqEnd, Outcome: e.Outcome.String(),
		AcceptedAt: exact(e.At), MinTime: exact(e.MinTime), MaxTime: exact(e.MaxTime), Bytes: e.Bytes, HomeRegion: e.HomeRegion, ClaimEpoch: e.ClaimEpoch,
	}
	switch {
	case e.Outcome.Conflict():
		v.Key = layout.Quarantine(e.ID, e.SHA256)
	// The batch is another region's, and so is its frame.
	case e.Outcome != journal.Elsewhere:
		v.Key = e.FrameKey()
	}
	return v
}

func exact(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }
