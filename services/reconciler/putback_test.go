package reconciler

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/derived/putback"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// counted counts the frames that are asked for.
type counted struct {
	*mem.Store
	gets atomic.Int64
}

func (c *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.gets.Add(1)
	return c.Store.Get(ctx, key, o)
}

// withReplica runs a reconciler with a replica.
func withReplica(t *testing.T, cfg Config, s objstore.Store, replica objstore.Reader) *running {
	t.Helper()
	tel := telemetry.Discard()
	svc, err := New(cfg, Deps{Store: s, Telemetry: tel, Replica: replica})
	must(t, err)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	<-svc.Ready()
	return &running{Service: svc, tel: tel, t: t}
}

// What the scrub finds damaged is put back from a replica, of accepted batches and of conflicts; damaged objects stay, the
// record goes, and of two reconcilers one asks.
func TestFramesArePutBackFromAReplica(t *testing.T) {
	s, replica := newStore(), &counted{Store: newStore()}
	m := acceptBatch(t, s, batch("a", 0, 9))
	_, frame := manifest(m.Identity)
	loser := []byte("another frame")
	c := accept.ConflictRecord{AuthorityID: testAuthority, Identity: m.Identity, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(identity.Sum(loser), 0), SubmittedSHA256: identity.Sum(loser), AcceptedManifestKey: layout.Accepted(m.Identity), CollectorID: "c1"}
	create(t, s, layout.Quarantine(m.Identity, c.SubmittedSHA256), c.Marshal())
	must(t, journaltest.Append(bg, s, testAuthority, c.Entry()))
	for key, b := range map[string][]byte{m.RawBlobKey: frame, c.SubmittedBlobKey: loser} {
		create(t, replica, key, b)
	}
	_, err := s.Put(bg, m.RawBlobKey, []byte("damaged"), objstore.PutOptions{})
	must(t, err)
	cfg := busy()
	cfg.Derived = DerivedSegments
	withReplica(t, cfg, s, replica)
	withReplica(t, cfg, s, replica)
	has := func(key string, want []byte) func() bool {
		return func() bool {
			got, _, err := s.Get(bg, key, objstore.GetOptions{})
			return err == nil && bytes.Equal(got, want)
		}
	}
	eventually(t, "both are whole", func() bool {
		return has(layout.Blob(m.FrameSHA256, 1), frame)() && has(layout.Blob(c.SubmittedSHA256, 0), loser)()
	})
	eventually(t, "no record is open", func() bool {
		p, err := s.List(bg, objstore.ListOptions{Prefix: layout.RepairPrefix})
		return err == nil && len(p.Objects) == 0
	})
	if !has(m.RawBlobKey, []byte("damaged"))() {
		t.Error("what was damaged was changed")
	}
	if n := replica.gets.Load(); n > 4 {
		t.Errorf("the replica was asked %d times for two frames", n)
	}
}

// An operator lists what is open, sees who was asked and what was said, and has all places asked again.
func TestRepairsAreListedAndRetried(t *testing.T) {
	s, replica := newStore(), newStore()
	cfg := quiet()
	cfg.Derived = DerivedSegments
	r := withReplica(t, cfg, s, replica)
	c := r.client()
	var ms []accept.Manifest
	for i := range uint64(5) {
		m := plantBatch(t, s, batch(fmt.Sprintf("a%d", i%2), i*10, i*10+9))
		ms = append(ms, m)
		must(t, s.Delete(bg, m.RawBlobKey))
	}
	create(t, s, layout.Blob(ms[4].FrameSHA256, 7), []byte("rubbish"))
	create(t, s, layout.Condemned(ms[4].FrameSHA256, 7), []byte("x"))
	bad := batch("a0", 900, 909)
	create(t, s, layout.Accepted(bad), []byte("{}"))
	for _, id := range []identity.Batch{ms[0].Identity, ms[1].Identity, ms[2].Identity, ms[3].Identity, ms[4].Identity, bad} {
		must(t, r.process(bg, &item{key: layout.Accepted(id), src: fromScrub, read: true}))
	}

	list := func(req *reconcilerv1.ListRepairsRequest) (out []*reconcilerv1.Repair) {
		t.Helper()
		for {
			p, err := c.ListRepairs(bg, req)
			must(t, err)
			out = append(out, p.GetRepairs()...)
			if req.PageToken = p.GetNextPageToken(); req.PageToken == "" {
				return out
			}
		}
	}
	if n := len(list(&reconcilerv1.ListRepairsRequest{PageSize: 2})); n != 6 {
		t.Errorf("%d repairs", n)
	}
	if n := len(list(&reconcilerv1.ListRepairsRequest{AgentId: "a1"})); n != 2 {
		t.Errorf("%d repairs of an agent", n)
	}
	if got := list(&reconcilerv1.ListRepairsRequest{Cause: "bad_manifest"}); len(got) != 1 || got[0].GetSeqStart() != 900 || got[0].GetFrameSha256() != "" {
		t.Errorf("%v", got)
	}
	key := layout.Repair(ms[4].Identity)
	one, err := c.GetRepair(bg, &reconcilerv1.GetRepairRequest{Key: key})
	must(t, err)
	v := one.GetRepair()
	if v.GetCause() != "corrupt_blob" || v.GetTries() != 1 || len(v.GetAnswers()) != 1 || v.GetAnswers()[0].GetPlace() != "replica" || v.GetAnswers()[0].GetSaid() != "none" ||
		len(v.GetHistory()) != 1 || v.GetHistory()[0].GetWhat() != reconcile.EventAsked {
		t.Errorf("%v", v)
	}
	if g := one.GetGenerations(); len(g) != 1 || g[0].GetFault() == "" || !g[0].GetCondemned() || one.GetPlaces()[0] != "replica" {
		t.Errorf("%v", one)
	}

	// It is not asked again before its time, but when an operator wants it.
	must(t, r.process(bg, &item{key: layout.Accepted(ms[4].Identity), src: fromRepair, read: true, recheck: true}))
	_, frame := manifest(ms[4].Identity)
	create(t, replica, ms[4].RawBlobKey, frame)
	must(t, r.process(bg, &item{key: layout.Accepted(ms[4].Identity), src: fromRepair, read: true, recheck: true}))
	_, frame0 := manifest(ms[0].Identity)
	create(t, s, layout.Blob(ms[0].FrameSHA256, 2), frame0)
	absent := layout.Repair(batch("a0", 5000, 5001))
	res, err := c.RetryRepairs(bg, &reconcilerv1.RetryRepairsRequest{Keys: []string{key, layout.Repair(ms[0].Identity), layout.Repair(ms[1].Identity), layout.Repair(bad), absent}})
	must(t, err)
	var got []string
	for _, x := range res.GetResults() {
		got = append(got, x.GetResult())
	}
	if s := strings.Join(got, " "); s != "put_back healed open open absent" {
		t.Errorf("%s: %v", s, res)
	}
	if x := res.GetResults()[0]; x.GetFrom() != "replica" || x.GetBlobKey() != layout.Blob(ms[4].FrameSHA256, 0) {
		t.Errorf("%v", x)
	}
	if x := res.GetResults()[3]; !strings.Contains(x.GetError(), "no place can mend") {
		t.Errorf("%v", x)
	}
	one, err = c.GetRepair(bg, &reconcilerv1.GetRepairRequest{Key: layout.Repair(ms[1].Identity)})
	must(t, err)
	if h := one.GetRepair().GetHistory(); one.GetRepair().GetTries() != 2 || len(h) != 3 || h[1].GetWhat() != reconcile.EventRetry || h[1].GetBy() == "" {
		t.Errorf("%v", h)
	}
	if _, err := c.GetRepair(bg, &reconcilerv1.GetRepairRequest{Key: key}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	for _, keys := range [][]string{nil, {"accepted/v1/x"}, {"repair/v1/x"}, make([]string, 101)} {
		if _, err := c.RetryRepairs(bg, &reconcilerv1.RetryRepairsRequest{Keys: keys}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%.80q: %v", keys, err)
		}
	}
	if _, err := c.GetRepair(bg, &reconcilerv1.GetRepairRequest{Key: "accepted/v1/x"}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// silent is a place that never answers.
type silent struct{}

func (silent) Name() string { return "silent" }

func (silent) Find(ctx context.Context, _ accept.Reference) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Places that do not answer leave time for those behind them.
func TestSilentPlacesLeaveTime(t *testing.T) {
	s, replica := newStore(), newStore()
	cfg := quiet()
	cfg.Derived = DerivedSegments
	r := withReplica(t, cfg, s, replica)
	r.putBacks.places = append([]putback.Place{silent{}, silent{}, silent{}}, r.putBacks.places...)
	m := plantBatch(t, s, batch("a", 0, 9))
	must(t, s.Delete(bg, m.RawBlobKey))
	_, frame := manifest(m.Identity)
	create(t, replica, m.RawBlobKey, frame)
	ctx, cancel := context.WithTimeout(bg, time.Second)
	defer cancel()
	must(t, r.process(ctx, &item{key: layout.Accepted(m.Identity), src: fromScrub, read: true}))
	if _, err := s.Head(bg, m.RawBlobKey); err != nil {
		t.Errorf("the replica has it, behind others that are silent: %v", err)
	}
}

// The waits between questions double, up to a bound.
func TestAskWait(t *testing.T) {
	last := time.Duration(-1)
	for tries := range uint64(100) {
		w := askWait(tries)
		if w < last || w > askAgainMax || tries > 0 && w < askAgain {
			t.Fatalf("%d: %v", tries, w)
		}
		last = w
	}
	if last != askAgainMax || askWait(0) != 0 || askWait(1) != askAgain {
		t.Error(last)
	}
}
