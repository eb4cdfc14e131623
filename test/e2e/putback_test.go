package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// framesArePutBack damages a frame that its collector still has in memory, and one that an agent has parked: the scrub finds
// both, they are put back, and a query that reads the store has all samples. parked is the conflict of the second.
func framesArePutBack(ctx context.Context, t *testing.T, c *cluster.Cluster, reader, operator reconcilerv1.ReconcilerServiceClient, parked *reconcilerv1.Conflict) {
	t.Helper()
	store, err := c.OpenStore(ctx)
	must(t, err)
	s := load.NewSender(identity.Boot{Agent: "rotten", Boot: "boot"}, c.Addr.Collectors[0].GRPC)
	defer s.Close()
	at := time.Now().Add(-time.Minute)
	for i := range 3 {
		r, err := s.Send(ctx, makeFrame(t, s.Boot, "rotten", uint64(2*i+1), 1, at.Add(time.Duration(i)*time.Second), 1))
		must(t, err)
		if r.GetStatus().String() != load.Accepted {
			t.Fatalf("answered %v", r)
		}
	}
	page, err := store.List(ctx, objstore.ListOptions{Prefix: layout.OfAgent(layout.AcceptedPrefix, "rotten"), Limit: 1})
	must(t, err)
	ref, err := accept.ReadReference(ctx, store, cluster.Authority, page.Objects[0].Key)
	must(t, err)
	lost, err := identity.ParseDigest(parked.GetSubmittedSha256())
	must(t, err)
	damaged := map[string]identity.Digest{ref.FrameKey: ref.SHA256, parked.GetSubmittedBlobKey(): lost}
	for key := range damaged {
		_, err := store.Put(ctx, key, []byte("damaged"), objstore.PutOptions{})
		must(t, err)
	}
	// Nothing has the accepted frame once the collector has forgotten it, but it has not; the parked one comes with the
	// agent's next question.
	for key, sum := range damaged {
		must(t, cluster.Poll(ctx, "a frame to be put back: "+key, func() (bool, error) {
			got, _, err := store.Get(ctx, layout.Blob(sum, 1), objstore.GetOptions{})
			return err == nil && identity.Sum(got) == sum, err
		}))
		got, _, err := store.Get(ctx, key, objstore.GetOptions{})
		if err != nil || !bytes.Equal(got, []byte("damaged")) {
			t.Errorf("%s was changed: %v", key, err)
		}
	}
	must(t, cluster.Poll(ctx, "no repair to be open", func() (bool, error) {
		list, err := reader.ListRepairs(ctx, &reconcilerv1.ListRepairsRequest{})
		return err == nil && len(list.GetRepairs()) == 0, fmt.Errorf("%v, %w", list, err)
	}))
	// The other one was put back by the reconciler: its sender has no copy.
	if n := metric(ctx, t, c.Addr.Collectors[0].HTTP, "lightmetrics_ingest_frames_put_back_total"); n < 1 {
		t.Errorf("%v frames put back by the collector, want that which the agent has parked", n)
	}
	st, err := reader.GetStatus(ctx, &reconcilerv1.GetStatusRequest{})
	if err != nil || st.GetScrub().GetPass() == 0 || !st.GetScrub().GetHashesBytes() {
		t.Errorf("%v, %v", st.GetScrub(), err)
	}

	res, err := operator.RetryRepairs(ctx, &reconcilerv1.RetryRepairsRequest{Keys: []string{layout.Repair(ref.ID)}})
	if err != nil || res.GetResults()[0].GetResult() != "absent" {
		t.Errorf("%v, %v", res, err)
	}

	must(t, c.StartQuery(ctx))
	must(t, cluster.Poll(ctx, "the samples of the frame to be in answers", func() (bool, error) {
		v, w, err := c.Scalar(ctx, "sum(count_over_time(rotten[3h]))", time.Now())
		return v == 6 && len(w) == 0, fmt.Errorf("%v samples, %v, %w", v, w, err)
	}))
}
