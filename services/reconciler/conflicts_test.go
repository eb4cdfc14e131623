package reconciler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// encoded makes a frame of a record for each value.
func encoded(t *testing.T, b identity.Boot, seq uint64, values ...float64) []byte {
	t.Helper()
	fb := frame.NewBuilder()
	for i, v := range values {
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: fmt.Sprint("m", i)}}, series.Gauge, "", 0)
		must(t, err)
		must(t, fb.Append(id, 1000, v))
	}
	batch, err := fb.Build(b, seq)
	must(t, err)
	out, err := frame.Encode(nil, batch)
	must(t, err)
	return out
}

// plantConflict does what collectors do with two frames of one identity, which their records may carry.
func plantConflict(t *testing.T, s objstore.Store, id identity.Batch, inline bool, won, lost []byte) identity.Digest {
	t.Helper()
	w, l := identity.Sum(won), identity.Sum(lost)
	m, _ := manifest(id)
	m.FrameSHA256, m.FrameBytes, m.RawBlobKey = w, uint64(len(won)), layout.Blob(w, 0)
	c := accept.ConflictRecord{AuthorityID: testAuthority, Identity: id, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: w,
		SubmittedBlobKey: layout.Blob(l, 0), SubmittedSHA256: l, AcceptedManifestKey: layout.Accepted(id), ObservedAt: 9, CollectorID: "c2"}
	if inline {
		m.Inline, m.RawBlobKey = true, ""
		c.AcceptedBlobKey, c.SubmittedBlobKey, c.SubmittedBytes = "", "", uint64(len(lost))
		create(t, s, layout.Accepted(id), m.MarshalWith(won))
		create(t, s, layout.Quarantine(id, l), c.MarshalWith(lost))
		return l
	}
	create(t, s, m.RawBlobKey, won)
	create(t, s, layout.Blob(l, 0), lost)
	create(t, s, layout.Accepted(id), m.Marshal())
	create(t, s, layout.Quarantine(id, l), c.Marshal())
	return l
}

// Conflicts are listed in pages, compared, decided about once, and listed with what was decided and done.
func TestConflictsAreListedComparedAndSettled(t *testing.T) {
	for _, inline := range []bool{false, true} {
		t.Run(fmt.Sprintf("inline=%v", inline), func(t *testing.T) { testConflicts(t, inline) })
	}
}

func testConflicts(t *testing.T, inline bool) {
	s := newStore()
	b := identity.Boot{Agent: "a", Boot: "boot"}
	var lost []identity.Digest
	for seq := uint64(1); seq < 7; seq += 2 {
		lost = append(lost, plantConflict(t, s, batch("a", seq, seq+1), inline, encoded(t, b, seq, 1, 2), encoded(t, b, seq, 1, 3+float64(seq))))
	}
	r := start(t, quiet(), s)
	api := r.client()
	list := func(unresolved bool) (out []*reconcilerv1.Conflict) {
		t.Helper()
		for token := ""; ; {
			page, err := api.ListConflicts(bg, &reconcilerv1.ListConflictsRequest{AgentId: "a", PageSize: 2, PageToken: token, Unresolved: unresolved})
			must(t, err)
			out = append(out, page.GetConflicts()...)
			if token = page.GetNextPageToken(); token == "" {
				return out
			}
		}
	}
	all := list(false)
	if len(all) != 3 || all[0].GetSubmittedSha256() != lost[0].String() || all[0].GetObservedAtUnixNs() != 9 || all[0].GetResolution() != nil || all[0].GetSubmittedBlobKey() == "" ||
		all[0].GetParkedId() != layout.SeqName(1, 2)+"-"+lost[0].String()[:16] {
		t.Fatalf("%v", all)
	}
	get := &reconcilerv1.GetConflictRequest{AgentId: "a", BootId: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSha256: lost[0].String()}
	one, err := api.GetConflict(bg, get)
	must(t, err)
	if one.GetSame() != 1 || one.GetDifferent() != 1 || len(one.GetDifferences()) != 1 || one.GetDifferences()[0].GetAccepted() != "2" || one.GetDifferences()[0].GetSubmitted() != "4" ||
		one.GetAccepted().GetCollectorId() != "c1" || one.GetSubmitted().GetCollectorId() != "c2" || one.GetAccepted().GetRecords() != 2 {
		t.Errorf("%v", one)
	}
	get.SeqEnd = 9
	if _, err := api.GetConflict(bg, get); status.Code(err) != codes.NotFound {
		t.Errorf("no conflict: %v", err)
	}

	name := func(i int) *reconcilerv1.ConflictName {
		return &reconcilerv1.ConflictName{BootId: "boot", SeqStart: all[i].GetSeqStart(), SeqEnd: all[i].GetSeqEnd(), SubmittedSha256: all[i].GetSubmittedSha256()}
	}
	resolve := func(action string, of ...*reconcilerv1.ConflictName) (*reconcilerv1.ResolveConflictsResponse, error) {
		return api.ResolveConflicts(bg, &reconcilerv1.ResolveConflictsRequest{AgentId: "a", Action: action, Conflicts: of, Note: "why"})
	}
	wrong := name(0)
	wrong.SeqEnd = 9
	for action, of := range map[string]*reconcilerv1.ConflictName{"accept_existing": wrong, "quarantine": name(0), "drop": name(0)} {
		if _, err := resolve(action, of); status.Code(err) != codes.NotFound && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s of %v: %v", action, of, err)
		}
	}
	d, err := resolve("accept_existing", name(0), name(1))
	must(t, err)
	if !d.GetDecided() || d.GetResolution().GetNumber() != 1 || d.GetResolution().GetPrincipal() == "" || d.GetResolution().GetNote() != "why" {
		t.Errorf("%v", d)
	}
	if again, err := resolve("accept_existing", name(1)); err != nil || again.GetDecided() || again.GetResolution().GetNumber() != 1 {
		t.Errorf("again: %v, %v", again, err)
	}
	if _, err := resolve("keep_both", name(2), name(1)); status.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != ReasonResolutionStands || !strings.Contains(err.Error(), "resolution 1, accept_existing by") {
		t.Errorf("another decision: %v", err)
	}
	if open := list(true); len(open) != 1 || open[0].GetSubmittedSha256() != lost[2].String() {
		t.Errorf("open: %v", open)
	}
	done := resolution.Settled{AuthorityID: testAuthority, AgentID: "a", BootID: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSHA256: lost[0], Number: 1, Action: resolution.AcceptExisting, SettledAt: 11, CollectorID: "c3"}
	create(t, s, done.Key(), done.Marshal())
	if all = list(false); all[0].GetSettlement().GetSettledAtUnixNs() != 11 || all[1].GetSettlement() != nil || all[1].GetResolution().GetNumber() != 1 {
		t.Errorf("%v", all)
	}
}

// Who is in quarantine, and boots with overlaps, stand beside the conflicts.
func TestConflictsListSendersAndOverlaps(t *testing.T) {
	s := newStore()
	acceptBatch(t, s, batch("a", 1, 10))
	acceptBatch(t, s, batch("a", 5, 14))
	r := start(t, quiet(), s)
	api := r.client()
	if _, err := api.SetQuarantine(bg, &reconcilerv1.SetQuarantineRequest{AgentId: "a", Release: true}); status.Code(err) != codes.NotFound {
		t.Errorf("release of nothing: %v", err)
	}
	q, err := api.SetQuarantine(bg, &reconcilerv1.SetQuarantineRequest{AgentId: "a", BootId: "b", Note: "n"})
	must(t, err)
	if !q.GetDecided() || q.GetResolution().GetAction() != "quarantine" {
		t.Errorf("%v", q)
	}
	var page *reconcilerv1.ListConflictsResponse
	for end := time.Now().Add(patience); len(page.GetOverlaps()) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		page, err = api.ListConflicts(bg, &reconcilerv1.ListConflictsRequest{})
		must(t, err)
	}
	if len(page.GetOverlaps()) != 1 || page.GetOverlaps()[0].GetOverlaps()[0].GetStart() != 5 || len(page.GetQuarantined()) != 1 || page.GetQuarantined()[0].GetBootId() != "b" {
		t.Errorf("%v", page)
	}
	_, err = api.SetQuarantine(bg, &reconcilerv1.SetQuarantineRequest{AgentId: "a", BootId: "b", Release: true})
	must(t, err)
	if page, err = api.ListConflicts(bg, &reconcilerv1.ListConflictsRequest{}); err != nil || len(page.GetQuarantined()) != 0 {
		t.Errorf("%v, %v", page, err)
	}
}
