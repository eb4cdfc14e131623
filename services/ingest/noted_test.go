package ingest_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// notes counts the requests about what is recorded for operators, and refuses them while down.
type notes struct {
	objstore.Store
	asked atomic.Int64
	down  atomic.Bool
}

func (n *notes) count(key string) error {
	if !strings.HasPrefix(key, layout.ClashPrefix) && !strings.HasPrefix(key, layout.ParkedPrefix) {
		return nil
	}
	n.asked.Add(1)
	if n.down.Load() {
		return &objstore.Error{Op: "request", Key: key, Err: objstore.ErrUnavailable}
	}
	return nil
}

func (n *notes) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := n.count(o.Prefix); err != nil {
		return objstore.Page{}, err
	}
	return n.Store.List(ctx, o)
}

func (n *notes) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := n.count(key); err != nil {
		return objstore.Info{}, err
	}
	return n.Store.Create(ctx, key, b, o)
}

// recorded are the spools that are recorded of a boot.
func recorded(t testing.TB, s objstore.Store, b identity.Boot) (spools []string) {
	t.Helper()
	for o, err := range objstore.List(bound(t), s, objstore.ListOptions{Prefix: layout.ClashesOf(b)}) {
		fatal(t, err)
		body, _, err := s.Get(bound(t), o.Key, objstore.GetOptions{})
		fatal(t, err)
		c, err := resolution.ParseClash(o.Key, body)
		fatal(t, err)
		if c.CollectorID != "collector-a" || c.ObservedAt == 0 || c.AuthorityID == "" || c.Peer != "127.0.0.1" {
			t.Errorf("%+v", c)
		}
		spools = append(spools, c.SpoolID)
	}
	return spools
}

// A spool that uses the boot id of another one is refused, and recorded once, without a request for those that may use it.
func TestClashesAreRecorded(t *testing.T) {
	for _, mode := range []string{"s3_manifest", "local_spool"} {
		t.Run(mode, func(t *testing.T) {
			store := newStore()
			n := &notes{Store: store.Store}
			store.Store = n
			dir := t.TempDir()
			c := start(t, store, func(c *ingest.Config) { c.Acceptance, c.Spool.Dir = mode, dir })
			st, _ := c.mustOpen(t, boot, 0)
			if r := st.ask(encode(t, boot, 1, 3, 1)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
				t.Fatalf("%v", r)
			}
			if n.asked.Load() != 0 {
				t.Errorf("%d requests without a clash", n.asked.Load())
			}
			use := func(spool string) {
				t.Helper()
				h := hello(boot)
				h.SpoolId = spool
				if _, _, err := c.open(t, h); rpc.Reason(err) != "BOOT_ID_CLASH" {
					t.Fatalf("spool %q: %v", spool, err)
				}
			}
			n.down.Store(true)
			use("copy") // refused, though it can't be recorded
			n.down.Store(false)
			use("copy")
			if got := recorded(t, store, boot); len(got) != 1 || got[0] != "copy" {
				t.Errorf("recorded: %q", got)
			}
			before := n.asked.Load()
			use("copy")
			if got := n.asked.Load(); got != before {
				t.Errorf("%d requests for a clash that is recorded", got-before)
			}
			for i := range resolution.MaxClashes + 3 {
				use(fmt.Sprint("copy ", i))
			}
			if got := recorded(t, store, boot); len(got) != resolution.MaxClashes {
				t.Errorf("%d are recorded", len(got))
			}
			before = n.asked.Load()
			use("another copy")
			if got := n.asked.Load(); got != before {
				t.Errorf("%d requests for a boot of which enough is recorded", got-before)
			}
		})
	}
}

// A batch without a stream says its spool, too.
func TestClashesOfBatchesAreRecorded(t *testing.T) {
	store := newStore()
	c := start(t, store, nil)
	for i, spool := range []string{"first", "copy"} {
		_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, uint64(1+3*i), 3, 1), SpoolId: spool})
		if (rpc.Reason(err) == "BOOT_ID_CLASH") != (i == 1) {
			t.Fatalf("spool %q: %v", spool, err)
		}
	}
	if got := recorded(t, store, boot); len(got) != 1 || got[0] != "copy" {
		t.Errorf("recorded: %q", got)
	}
}

// Where an agent has a frame that lost a conflict is recorded once, as long as nothing is decided about it.
func TestWhereaboutsAreRecorded(t *testing.T) {
	store := newStore()
	n := &notes{Store: store.Store}
	store.Store = n
	c := start(t, store, nil)
	st, _ := c.mustOpen(t, boot, 0)
	st.ask(encode(t, boot, 1, 3, 1))
	lost := encode(t, boot, 1, 3, 2)
	if r := st.ask(lost); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
		t.Fatalf("%v", r)
	}
	sum, other := identity.Sum(lost), identity.Sum([]byte("a frame that met a boot clash"))
	req := &ingestv1.SettleConflictsRequest{AgentId: boot.Agent, Parked: []*ingestv1.ParkedBatch{
		{BootId: boot.Boot, SeqStart: 1, SeqEnd: 3, FrameSha256: sum[:]}, {BootId: boot.Boot, SeqStart: 4, SeqEnd: 6, FrameSha256: other[:]}}}
	ask := func() {
		t.Helper()
		if _, err := c.client.SettleConflicts(bound(t), req); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	if n.asked.Load() != 0 {
		t.Error("an agent of a former release says nothing, and something is recorded")
	}
	req.Host, req.Page, req.Directory = "db-7", "http://127.0.0.1:4320", "/q/parked"
	n.down.Store(true)
	ask() // answered, though it can't be recorded
	n.down.Store(false)
	ask()
	before := n.asked.Load()
	ask()
	if got := n.asked.Load(); got != before {
		t.Errorf("%d requests for what is recorded", got-before)
	}
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 3}
	b, _, err := store.Get(bound(t), layout.Parked(id, sum), objstore.GetOptions{})
	fatal(t, err)
	p, err := resolution.ParseParked(layout.Parked(id, sum), b)
	if err != nil || p.Host != "db-7" || p.Page != "http://127.0.0.1:4320" || p.Directory != "/q/parked" || p.Peer != "127.0.0.1" || p.CollectorID != "collector-a" {
		t.Errorf("%+v, %v", p, err)
	}
	id.SeqStart, id.SeqEnd = 4, 6
	if _, err := store.Head(bound(t), layout.Parked(id, other)); err == nil {
		t.Error("a frame that lost no conflict is recorded")
	}
}
