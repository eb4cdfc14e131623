package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const testAuthority = "authority-1"

var epoch = time.Date(2026, 3, 4, 5, 59, 59, 0, time.UTC)

// manifest of a made-up frame; the frame's bytes are a function of the identity.
func manifest(id identity.Batch) (accept.Manifest, []byte) {
	frame := []byte("frame of " + id.String())
	d := identity.Sum(frame)
	return accept.Manifest{
		AuthorityID: testAuthority, Identity: id, FrameSHA256: d, FrameBytes: uint64(len(frame)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: epoch.Add(time.Duration(id.SeqStart) * time.Millisecond).UnixNano(),
		CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: fmt.Sprintf("%032x", id.SeqStart),
		RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
	}, frame
}

func batch(start, end uint64) identity.Batch {
	return identity.Batch{Agent: "host/ü", Boot: "boot-1", SeqStart: start, SeqEnd: end}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put creates an object that must not be there.
func put(t testing.TB, s objstore.Store, key string, body []byte) {
	t.Helper()
	_, err := s.Create(context.Background(), key, body, objstore.PutOptions{})
	must(t, err)
}

// acceptBatch does what a collector does.
func acceptBatch(t testing.TB, s objstore.Store, id identity.Batch) accept.Manifest {
	t.Helper()
	m, frame := manifest(id)
	put(t, s, m.RawBlobKey, frame)
	put(t, s, layout.Accepted(id), m.Marshal())
	return m
}

func conflict(id identity.Batch) (accept.ConflictRecord, []byte) {
	m, _ := manifest(id)
	loser := []byte("another frame of " + id.String())
	d := identity.Sum(loser)
	return accept.ConflictRecord{
		AuthorityID: testAuthority, Identity: id, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(d, 0), SubmittedSHA256: d, AcceptedManifestKey: layout.Accepted(id),
		ObservedAt: epoch.UnixNano(), CollectorID: "c2",
	}, loser
}

func newCore(s objstore.Store) *Reconciler {
	return &Reconciler{Store: s, AuthorityID: testAuthority, ID: "r1", Now: func() time.Time { return epoch }}
}

// derivedState is every object that is not an acceptance record or a blob.
func derivedState(t testing.TB, s objstore.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	ctx := context.Background()
	for _, p := range []string{layout.AcceptedByBlobPrefix, layout.AcceptedByTimePrefix, layout.RawBlobsByTimePrefix,
		layout.QuarantineByBlobPrefix, layout.RepairPrefix} {
		must(t, storetest.Each(ctx, s, p, func(o objstore.Info) error {
			b, _, err := s.Get(ctx, o.Key, objstore.GetOptions{})
			out[o.Key] = string(b)
			return err
		}))
	}
	return out
}

func newStore() *mem.Store { return mem.New(func() time.Time { return epoch }) }
