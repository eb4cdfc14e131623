package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// settling is a reconciler with a conflict, boot clashes and an overlap.
type settling struct {
	reconcilerv1.UnimplementedReconcilerServiceServer
	list    *reconcilerv1.ListConflictsResponse
	one     *reconcilerv1.GetConflictResponse
	overlap *reconcilerv1.GetOverlapResponse
	denied  bool
	asked   []string
}

func (s *settling) serve(_ context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	s.asked = append(s.asked, info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:])
	if s.denied {
		return nil, rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden, Message: "principal \"rob\" has no role operator"}.Err()
	}
	return h(context.Background(), req)
}

func (s *settling) ListConflicts(context.Context, *reconcilerv1.ListConflictsRequest) (*reconcilerv1.ListConflictsResponse, error) {
	return s.list, nil
}

func (s *settling) GetConflict(context.Context, *reconcilerv1.GetConflictRequest) (*reconcilerv1.GetConflictResponse, error) {
	return s.one, nil
}

func (s *settling) GetOverlap(_ context.Context, req *reconcilerv1.GetOverlapRequest) (*reconcilerv1.GetOverlapResponse, error) {
	if req.GetAgentId() != "a" || req.GetBootId() != "b" || req.GetSeq() != 7 {
		return nil, errors.New("another number")
	}
	return s.overlap, nil
}

// conflicts runs `lmctl conflicts` against s.
func (s *settling) conflicts(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(s.serve))
	reconcilerv1.RegisterReconcilerServiceServer(g, s)
	go func() { _ = g.Serve(l) }() // until Stop
	t.Cleanup(g.Stop)
	return func(args ...string) (string, error) {
		var b bytes.Buffer
		cmd := conflictsCommand(new(format))
		cmd.SetArgs(append(args, "--addr", l.Addr().String()))
		cmd.SetOut(&b)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.ExecuteContext(t.Context())
		return b.String(), err
	}
}

const lost = "aa11223344556677889900112233445566778899001122334455667788990011"

func newSettling() *settling {
	c := &reconcilerv1.Conflict{AgentId: "a", BootId: "b", SeqStart: 1, SeqEnd: 9, SubmittedSha256: lost, ParkedId: "the-id"}
	now := time.Now()
	return &settling{
		list: &reconcilerv1.ListConflictsResponse{
			Conflicts: []*reconcilerv1.Conflict{c},
			Clashes: []*reconcilerv1.BootClash{
				{AgentId: "a", BootId: "b", SpoolId: "new-copy", OwnerSpoolId: "original", ObservedAtUnixNs: now.Add(-time.Hour).UnixNano(), CollectorId: "c2", OwnerCollectorId: "c1", Peer: "192.0.2.7"},
				{AgentId: "a", BootId: "b", SpoolId: "old-copy", OwnerSpoolId: "original", ObservedAtUnixNs: now.Add(-60 * 24 * time.Hour).UnixNano(), CollectorId: "c2"},
			},
			Overlaps: []*reconcilerv1.OverlappingBoot{{AgentId: "a", BootId: "b", Overlaps: []*reconcilerv1.SeqRange{{Start: 5, End: 8}}}},
		},
		one: &reconcilerv1.GetConflictResponse{Conflict: c},
		overlap: &reconcilerv1.GetOverlapResponse{
			Batches:     []*reconcilerv1.OverlappingBatch{{SeqStart: 1, SeqEnd: 9, Frame: &reconcilerv1.FrameSide{Records: 9}}, {SeqStart: 5, SeqEnd: 8, Shared: &reconcilerv1.SeqRange{Start: 5, End: 8}, Same: 3, Different: 1}},
			Differences: []*reconcilerv1.NumberDifference{{Seq: 7, Counts: &reconcilerv1.NumberedRecord{Series: "up", Value: "1"}, Other: &reconcilerv1.NumberedRecord{Series: "up", Value: "0"}, OtherBatch: 1}},
		},
	}
}

// Conflicts, boot clashes and overlaps are in one list. Clashes of long ago are in that with --all.
func TestConflictsListHasClashesAndOverlaps(t *testing.T) {
	run := newSettling().conflicts(t)
	out, err := run("list")
	var e *cli.ExitError
	if !errors.As(err, &e) || e.Code != cli.ExitFindings {
		t.Errorf("an open conflict: %v", err)
	}
	if !strings.Contains(out, "spool new-copy") || !strings.Contains(out, "boot clash") || strings.Contains(out, "old-copy") || !strings.Contains(out, "5-8") || !strings.Contains(out, "overlap") {
		t.Errorf("%s", out)
	}
	if out, _ := run("list", "--all"); !strings.Contains(out, "old-copy") {
		t.Errorf("--all: %s", out)
	}
}

// A frame that lost because of another batch's numbers is shown with these, and one of the same numbers without.
func TestConflictsNameTheRangeMet(t *testing.T) {
	s := newSettling()
	run := s.conflicts(t)
	if out, _ := run("list"); strings.Contains(out, " of ") {
		t.Errorf("%s", out)
	}
	first, last := uint64(0), uint64(4)
	c := s.list.Conflicts[0]
	c.AcceptedSeqStart, c.AcceptedSeqEnd, c.AcceptedSha256 = &first, &last, lost[1:]+"a"
	if out, _ := run("list"); !strings.Contains(out, c.AcceptedSha256+" of 0-4") || !strings.Contains(out, "1-9") {
		t.Errorf("%s", out)
	}
	out, err := run("show", lost)
	if err != nil || !regexp.MustCompile(`sequence +0-4 +1-9`).MatchString(out) {
		t.Errorf("%v: %s", err, out)
	}
	if v := viewConflict(c); v.AcceptedSeqStart == nil || *v.AcceptedSeqStart != 0 || *v.AcceptedSeqEnd != 4 {
		t.Errorf("%+v", v)
	}
}

// show says how to look at the frame where it is parked, and shows overlaps and boot clashes by their boot.
func TestConflictsShow(t *testing.T) {
	s := newSettling()
	run := s.conflicts(t)
	if out, err := run("show", lost[:6]); err != nil || !strings.Contains(out, "its agent has not said") || !strings.Contains(out, "lmctl agent status, on the machine of a") {
		t.Errorf("%v: %s", err, out)
	}
	s.one.Conflict.ParkedAt = &reconcilerv1.ParkedAt{Host: "db-7", Page: "http://127.0.0.1:4320", File: "/q/parked/the-id.lmbatch"}
	if out, err := run("show", lost); err != nil || !strings.Contains(out, "db-7:/q/parked/the-id.lmbatch") || !strings.Contains(out, "lmctl agent --addr http://127.0.0.1:4320 status, on db-7") {
		t.Errorf("%v: %s", err, out)
	}
	out, err := run("show", "--agent", "a", "--boot", "b", "--seq", "7")
	if err != nil || !strings.Contains(out, "does not count there") || !strings.Contains(out, "up at 1970-01-01T00:00:00Z = 0") {
		t.Errorf("%v: %s", err, out)
	}
	s.overlap.Incomplete = true
	var e *cli.ExitError
	if _, err := run("show", "--agent", "a", "--boot", "b", "--seq", "7"); !errors.As(err, &e) || e.Code != cli.ExitFindings {
		t.Errorf("incomplete: %v", err)
	}
	out, err = run("show", "--agent", "a", "--boot", "b")
	if rows := strings.Split(out, "\n"); err != nil || len(rows) < 4 || !strings.HasPrefix(rows[1], "original") || !strings.Contains(rows[1], "owns the boot id") || !strings.HasPrefix(rows[2], "new-copy") || !strings.HasPrefix(rows[3], "old-copy") {
		t.Errorf("%v: %s", err, out)
	}
	for _, args := range [][]string{{"show"}, {"show", lost, "--agent", "a", "--boot", "b"}, {"show", "--agent", "a"}, {"show", lost, "--boot", "b"}, {"show", "--agent", "a", "--boot", "another"}} {
		if _, err := run(args...); !errors.As(err, &e) || e.Code != cli.ExitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Who has not the role is told so by every command, and nothing is printed as if it were done.
func TestConflictsRefused(t *testing.T) {
	s := newSettling()
	s.denied = true
	run := s.conflicts(t)
	for want, args := range map[string][]string{
		"ListConflicts": {"list"},
		"GetOverlap":    {"show", "--agent", "a", "--boot", "b", "--seq", "7"},
		"SetQuarantine": {"release", "a"},
	} {
		s.asked = nil
		out, err := run(args...)
		if err == nil || !strings.Contains(err.Error(), "has no role operator") || strings.Contains(out, "a ") || len(s.asked) != 1 || s.asked[0] != want {
			t.Errorf("%v: asked %v, %v: %s", args, s.asked, err, out)
		}
	}
	// Those that look before they decide may be allowed to look.
	s.denied = false
	for _, args := range [][]string{{"resolve", "keep-both", lost}, {"resolve", "accept-existing", "--agent", "a", "--all"}, {"quarantine", "a"}} {
		out, err := run(args...)
		if err == nil || !strings.Contains(err.Error(), "may not decide") || strings.Contains(out, "keep_both") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}

// Decisions are refused.
func (s *settling) ResolveConflicts(context.Context, *reconcilerv1.ResolveConflictsRequest) (*reconcilerv1.ResolveConflictsResponse, error) {
	return nil, rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden, Message: "may not decide"}.Err()
}

func (s *settling) SetQuarantine(context.Context, *reconcilerv1.SetQuarantineRequest) (*reconcilerv1.SetQuarantineResponse, error) {
	return nil, rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden, Message: "may not decide"}.Err()
}
