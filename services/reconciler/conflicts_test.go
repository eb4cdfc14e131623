package reconciler

import (
	"fmt"
	"slices"
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

// Where another region has the accepted frame, the bucket's manifest may have the one that lost: it is not compared with itself.
func TestAFrameThatLostToAnotherRegionIsNotComparedWithItself(t *testing.T) {
	s := newStore()
	id, b := batch("a", 1, 2), identity.Boot{Agent: "a", Boot: "boot"}
	won, lost := encoded(t, b, 1, 1, 2), encoded(t, b, 1, 1, 3)
	w, l := identity.Sum(won), identity.Sum(lost)
	m, _ := manifest(id)
	m.FrameSHA256, m.FrameBytes, m.RawBlobKey = l, uint64(len(lost)), layout.Blob(l, 0)
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "eu", 1, 7
	c := accept.ConflictRecord{AuthorityID: testAuthority, Identity: id, AcceptedBlobKey: layout.Blob(w, 0), AcceptedSHA256: w,
		SubmittedBlobKey: layout.Blob(l, 0), SubmittedSHA256: l, AcceptedManifestKey: layout.Accepted(id), ObservedAt: 9, CollectorID: "c2"}
	create(t, s, layout.Blob(l, 0), lost)
	create(t, s, layout.Accepted(id), m.Marshal())
	create(t, s, layout.Quarantine(id, l), c.Marshal())
	one, err := start(t, quiet(), s).client().GetConflict(bg, &reconcilerv1.GetConflictRequest{AgentId: "a", BootId: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSha256: l.String()})
	must(t, err)
	if one.GetSame() != 0 || !strings.Contains(one.GetAccepted().GetError(), "another region") || one.GetSubmitted().GetRecords() != 2 {
		t.Errorf("%v", one)
	}
}

// A frame that lost because of another identity of its boot is shown with that one's numbers, and compared with its frame, if this bucket
// has it.
func TestConflictsNameTheRangeMet(t *testing.T) {
	s := newStore()
	id, b := batch("a", 3, 4), identity.Boot{Agent: "a", Boot: "boot"}
	won, lost := encoded(t, b, 2, 1, 2), encoded(t, b, 3, 1, 3)
	w, l := identity.Sum(won), identity.Sum(lost)
	m, _ := manifest(batch("a", 2, 3))
	m.FrameSHA256, m.FrameBytes, m.RawBlobKey = w, uint64(len(won)), layout.Blob(w, 0)
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "eu", 1, 7
	c := accept.ConflictRecord{AuthorityID: testAuthority, Identity: id, AcceptedBlobKey: layout.Blob(w, 0), AcceptedSHA256: w,
		SubmittedBlobKey: layout.Blob(l, 0), SubmittedSHA256: l, AcceptedManifestKey: layout.Accepted(id), ObservedAt: 9, CollectorID: "c2", Met: m.Identity}
	create(t, s, layout.Blob(l, 0), lost)
	create(t, s, layout.Quarantine(id, l), c.Marshal())
	cfg := quiet()
	r := start(t, cfg, s)
	list, err := r.client().ListConflicts(bg, &reconcilerv1.ListConflictsRequest{AgentId: "a"})
	must(t, err)
	if cs := list.GetConflicts(); len(cs) != 1 || cs[0].AcceptedSeqStart == nil || cs[0].GetAcceptedSeqStart() != 2 || cs[0].GetAcceptedSeqEnd() != 3 || cs[0].GetAcceptedManifestKey() != layout.Accepted(m.Identity) {
		t.Errorf("%v", cs)
	}
	show := func() *reconcilerv1.GetConflictResponse {
		t.Helper()
		one, err := r.client().GetConflict(bg, &reconcilerv1.GetConflictRequest{AgentId: "a", BootId: "boot", SeqStart: 3, SeqEnd: 4, SubmittedSha256: l.String()})
		must(t, err)
		return one
	}
	if one := show(); one.GetAccepted().GetError() == "" || one.GetSubmitted().GetRecords() != 2 {
		t.Errorf("%v", one)
	}
	create(t, s, layout.Blob(w, 0), won)
	create(t, s, layout.Accepted(m.Identity), m.Marshal())
	if one := show(); one.GetAccepted().GetError() != "" || one.GetAccepted().GetRecords() != 2 || one.GetConflict().GetAcceptedSeqEnd() != 3 {
		t.Errorf("%v", one)
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

// Spools that used a boot id of another one stand behind the conflicts, page by page.
func TestConflictsListBootClashes(t *testing.T) {
	s := newStore()
	owner := accept.BootRecord{AuthorityID: testAuthority, Boot: identity.Boot{Agent: "a", Boot: "boot"}, SpoolID: "first", Mode: accept.ModeS3Manifest, FirstSeen: 3, CollectorID: "c1"}
	create(t, s, layout.Boot(owner.Boot), owner.Marshal())
	b := identity.Boot{Agent: "a", Boot: "boot"}
	for seq := uint64(1); seq < 5; seq += 2 {
		plantConflict(t, s, batch("a", seq, seq+1), false, encoded(t, b, seq, 1, 2), encoded(t, b, seq, 1, 3))
	}
	for _, of := range []resolution.Clash{{AgentID: "a", BootID: "boot", SpoolID: "s1"}, {AgentID: "a", BootID: "boot", SpoolID: "s2", Peer: "192.0.2.7"}, {AgentID: "b", BootID: "x", SpoolID: "s3"}} {
		of.AuthorityID, of.ObservedAt, of.CollectorID = testAuthority, 7, "c2"
		must(t, resolution.RecordClash(bg, s, of))
	}
	create(t, s, layout.Clash(identity.Boot{Agent: "c", Boot: "x"}, "s"), []byte("{"))
	create(t, s, layout.ClashPrefix+"foreign", nil)
	api := start(t, quiet(), s).client()
	for size := int32(1); size < 8; size++ {
		for agent, want := range map[string]string{"": "2 conflicts; a s1, a s2, b s3, c ", "a": "2 conflicts; a s1, a s2", "b": "0 conflicts; b s3", "z": "0 conflicts; "} {
			conflicts := 0
			var clashes []string
			for token := ""; ; {
				page, err := api.ListConflicts(bg, &reconcilerv1.ListConflictsRequest{AgentId: agent, PageSize: size, PageToken: token})
				must(t, err)
				conflicts += len(page.GetConflicts())
				if len(page.GetConflicts())+len(page.GetClashes()) > int(size) {
					t.Errorf("a page of %d has %v", size, page)
				}
				for _, c := range page.GetClashes() {
					clashes = append(clashes, c.GetAgentId()+" "+c.GetSpoolId())
					switch {
					case c.GetAgentId() == "c":
						if c.GetError() == "" {
							t.Errorf("%v", c)
						}
					case c.GetObservedAtUnixNs() != 7 || c.GetCollectorId() != "c2" || c.GetClashKey() == "":
						t.Errorf("%v", c)
					case c.GetAgentId() == "a" && (c.GetOwnerSpoolId() != "first" || c.GetOwnerSeenAtUnixNs() != 3 || c.GetOwnerCollectorId() != "c1"), c.GetAgentId() == "b" && c.GetOwnerCollectorId() != "":
						t.Errorf("%v", c)
					}
				}
				if token = page.GetNextPageToken(); token == "" {
					break
				}
			}
			slices.Sort(clashes)
			if got := fmt.Sprintf("%d conflicts; %s", conflicts, strings.Join(clashes, ", ")); got != want {
				t.Errorf("agent %q, pages of %d: %s, want %s", agent, size, got, want)
			}
		}
	}
}

// A conflict says where its agent has the frame.
func TestConflictsSayWhereAFrameIsParked(t *testing.T) {
	s := newStore()
	b, id := identity.Boot{Agent: "a", Boot: "boot"}, batch("a", 1, 2)
	sum := plantConflict(t, s, id, false, encoded(t, b, 1, 1, 2), encoded(t, b, 1, 1, 3))
	api := start(t, quiet(), s).client()
	get := func() *reconcilerv1.Conflict {
		t.Helper()
		page, err := api.ListConflicts(bg, &reconcilerv1.ListConflictsRequest{})
		must(t, err)
		return page.GetConflicts()[0]
	}
	if at := get().GetParkedAt(); at != nil {
		t.Errorf("nobody has said so: %v", at)
	}
	must(t, resolution.RecordParked(bg, s, resolution.Parked{AuthorityID: testAuthority, AgentID: "a", BootID: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSHA256: sum,
		Host: "db-7", Page: "http://127.0.0.1:4320", Directory: "/q/parked", ObservedAt: 9, CollectorID: "c2"}))
	if at, want := get().GetParkedAt(), "/q/parked/"+layout.SeqName(1, 2)+"-"+sum.String()[:16]+".lmbatch"; at.GetHost() != "db-7" || at.GetPage() != "http://127.0.0.1:4320" || at.GetFile() != want || at.GetObservedAtUnixNs() != 9 {
		t.Errorf("%v, want the file %s", at, want)
	}
}

// Which of the batches with one number counts is the rule of all readers, and they are compared number by number.
func TestOverlapsAreCompared(t *testing.T) {
	s := newStore()
	b := identity.Boot{Agent: "a", Boot: "boot"}
	plant := func(start uint64, at int64, values ...float64) {
		body := encoded(t, b, start, values...)
		id := batch("a", start, start+uint64(len(values))-1)
		m, _ := manifest(id)
		m.FrameSHA256, m.FrameBytes, m.RawBlobKey, m.AcceptedAt = identity.Sum(body), uint64(len(body)), layout.Blob(identity.Sum(body), 0), at
		create(t, s, m.RawBlobKey, body)
		create(t, s, layout.Accepted(id), m.Marshal())
	}
	plant(15_001, 50, 1, 2, 3, 4) // m0 to m3
	plant(15_003, 40, 5, 6)       // the earlier one counts
	plant(15_004, 60, 4, 7)       // behind the number
	plant(15_000, 10, 8)          // ends before it
	wide := make([]float64, 11_000)
	plant(5_000, 70, wide...) // begins far before it
	gone := batch("a", 15_003, 15_009)
	m, _ := manifest(gone)
	m.AcceptedAt = 80
	create(t, s, layout.Accepted(gone), m.Marshal()) // its frame is not there
	create(t, s, layout.Accepted(batch("a", 15_003, 15_010)), []byte("{"))
	api := start(t, quiet(), s).client()
	r, err := api.GetOverlap(bg, &reconcilerv1.GetOverlapRequest{AgentId: "a", BootId: "boot", Seq: 15_003, Differences: 3})
	must(t, err)
	var got []string
	for _, o := range r.GetBatches() {
		got = append(got, fmt.Sprintf("%d-%d shares %d-%d: %d same, %d not, readable %v", o.GetSeqStart(), o.GetSeqEnd(), o.GetShared().GetStart(), o.GetShared().GetEnd(), o.GetSame(), o.GetDifferent(), o.GetFrame().GetError() == ""))
	}
	want := []string{
		"15003-15004 shares 0-0: 0 same, 0 not, readable true",
		"15001-15004 shares 15003-15004: 0 same, 2 not, readable true",
		"5000-15999 shares 15003-15004: 0 same, 2 not, readable true",
		"15003-15009 shares 15003-15004: 0 same, 0 not, readable false",
		"15003-15010 shares 0-0: 0 same, 0 not, readable false",
	}
	if !slices.Equal(got, want) || r.GetIncomplete() {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if d := r.GetDifferences(); len(d) != 3 || d[0].GetSeq() != 15_003 || d[0].GetCounts().GetValue() != "5" || d[0].GetOther().GetValue() != "3" || d[0].GetOtherBatch() != 1 || d[2].GetOtherBatch() != 2 {
		t.Errorf("%v", d)
	}
	if r, err := api.GetOverlap(bg, &reconcilerv1.GetOverlapRequest{AgentId: "a", BootId: "none", Seq: 1}); err != nil || len(r.GetBatches()) != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := api.GetOverlap(bg, &reconcilerv1.GetOverlapRequest{BootId: "none"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
}
