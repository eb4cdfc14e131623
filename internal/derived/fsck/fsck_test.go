package fsck

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

var boot = identity.Boot{Agent: "a", Boot: "b"}

// encode makes a frame of n records from seq on; salt makes its bytes differ.
func encode(t *testing.T, seq uint64, n int, salt float64) ([]byte, identity.Batch) {
	t.Helper()
	b := frame.NewBuilder()
	id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := b.Append(id, int64(i+1)*1e9, salt+float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(boot, seq)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f, batch.Identity
}

// accepted lays an accepted batch down as the protocol would.
func accepted(t *testing.T, s objstore.Store, f []byte, id identity.Batch, n int) accept.Manifest {
	t.Helper()
	d := identity.Sum(f)
	m := accept.Manifest{AuthorityID: "auth", Identity: id, FrameSHA256: d, FrameBytes: uint64(len(f)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1, CollectorID: "c", WireVersion: 1, FrameVersion: 1,
		AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: uint64(n), MinTime: 1e9, MaxTime: int64(n) * 1e9}
	put(t, s, layout.Boot(boot), []byte("{}"))
	put(t, s, m.RawBlobKey, f)
	put(t, s, layout.Accepted(id), m.Marshal())
	return m
}

func put(t *testing.T, s objstore.Store, key string, body []byte) {
	t.Helper()
	if _, err := s.Put(context.Background(), key, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, s objstore.Reader) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := Run(ctx, s, Options{AuthorityID: "auth"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAWholeBucketIsHealthy(t *testing.T) {
	s := mem.New(time.Now)
	f1, id1 := encode(t, 1, 5, 0)
	f2, id2 := encode(t, 6, 3, 0)
	accepted(t, s, f1, id1, 5)
	accepted(t, s, f2, id2, 3)
	loser, _ := encode(t, 1, 5, 100)
	q := accept.ConflictRecord{AuthorityID: "auth", Identity: id1, AcceptedBlobKey: layout.Blob(identity.Sum(f1), 0),
		AcceptedSHA256: identity.Sum(f1), SubmittedBlobKey: layout.Blob(identity.Sum(loser), 0), SubmittedSHA256: identity.Sum(loser),
		AcceptedManifestKey: layout.Accepted(id1), ObservedAt: 2, CollectorID: "c"}
	put(t, s, q.SubmittedBlobKey, loser)
	put(t, s, layout.Quarantine(id1, q.SubmittedSHA256), q.Marshal())

	r := check(t, s)
	if !r.Healthy() {
		t.Fatalf("findings: %v", r.Findings)
	}
	if r.Manifests != 2 || r.Records != 8 || r.Samples != 8 || r.Quarantined != 1 {
		t.Errorf("counts: %+v", r)
	}
	if through, ok := r.Ledgers[boot].AcceptedThrough(); !ok || through != 8 {
		t.Errorf("accepted through %d, %v", through, ok)
	}
}

func TestEveryProblemIsFound(t *testing.T) {
	for want, damage := range map[Problem]func(*testing.T, objstore.Store, accept.Manifest, []byte){
		UnknownKey: func(t *testing.T, s objstore.Store, _ accept.Manifest, _ []byte) {
			put(t, s, "accepted/v1/agent=61/boot=62/5-1.json", []byte("{}"))
		},
		BadManifest: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			put(t, s, layout.Accepted(m.Identity), []byte("{}"))
		},
		ForeignManifest: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			m.AuthorityID = "other"
			put(t, s, layout.Accepted(m.Identity), m.Marshal())
		},
		BlobMissing: func(t *testing.T, s objstore.Store, m accept.Manifest, f []byte) {
			put(t, s, m.RawBlobKey, f[:len(f)-1])
		},
		BootMissing: func(t *testing.T, s objstore.Store, _ accept.Manifest, _ []byte) {
			if err := s.Delete(context.Background(), layout.Boot(boot)); err != nil {
				t.Fatal(err)
			}
		},
		FrameMismatch: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			f, _ := encode(t, 50, 5, 7)
			m.FrameSHA256, m.FrameBytes, m.RawBlobKey = identity.Sum(f), uint64(len(f)), layout.Blob(identity.Sum(f), 0)
			put(t, s, m.RawBlobKey, f)
			put(t, s, layout.Accepted(m.Identity), m.Marshal())
		},
		FrameInvalid: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			f := []byte("not a frame at all, but its hash is right")
			m.FrameSHA256, m.FrameBytes, m.RawBlobKey = identity.Sum(f), uint64(len(f)), layout.Blob(identity.Sum(f), 0)
			put(t, s, m.RawBlobKey, f)
			put(t, s, layout.Accepted(m.Identity), m.Marshal())
		},
		BadQuarantine: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			put(t, s, layout.Quarantine(m.Identity, identity.Sum([]byte("x"))), []byte("{}"))
		},
		WinnerMissing: func(t *testing.T, s objstore.Store, m accept.Manifest, _ []byte) {
			loser, id := encode(t, 90, 2, 3)
			d := identity.Sum(loser)
			q := accept.ConflictRecord{AuthorityID: "auth", Identity: id, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
				SubmittedBlobKey: layout.Blob(d, 0), SubmittedSHA256: d, AcceptedManifestKey: layout.Accepted(id), ObservedAt: 1, CollectorID: "c"}
			put(t, s, q.SubmittedBlobKey, loser)
			put(t, s, layout.Quarantine(id, d), q.Marshal())
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			s := mem.New(time.Now)
			f, id := encode(t, 1, 5, 0)
			m := accepted(t, s, f, id, 5)
			damage(t, s, m, f)
			r := check(t, s)
			if r.Found != 1 || r.Findings[0].Problem != want {
				t.Errorf("found %v, want one %s", r.Findings, want)
			}
		})
	}
}

// In a region's bucket the winner of a conflict may be another region's, and the manifest that of the loser.
func TestWinnersOfOtherRegionsAreNoFinding(t *testing.T) {
	for _, left := range []bool{false, true} {
		s := mem.New(time.Now)
		f, id := encode(t, 1, 5, 0)
		accepted(t, s, f, id, 5)
		loser, of := encode(t, 90, 2, 3)
		if left {
			accepted(t, s, loser, of, 2)
		}
		d := identity.Sum(loser)
		q := accept.ConflictRecord{AuthorityID: "auth", Identity: of, AcceptedBlobKey: layout.Blob(identity.Sum([]byte("w")), 0), AcceptedSHA256: identity.Sum([]byte("w")),
			SubmittedBlobKey: layout.Blob(d, 0), SubmittedSHA256: d, AcceptedManifestKey: layout.Accepted(of), ObservedAt: 1, CollectorID: "c"}
		put(t, s, q.SubmittedBlobKey, loser)
		put(t, s, layout.Quarantine(of, d), q.Marshal())
		if r := check(t, s); r.Found != 1 {
			t.Errorf("in one region alone: %v", r.Findings)
		}
		put(t, s, layout.RegionsKey, []byte("{}"))
		if r := check(t, s); !r.Healthy() || r.Quarantined != 1 {
			t.Errorf("left %v: %v", left, r.Findings)
		}
	}
}

func TestAnotherGenerationIsAsGood(t *testing.T) {
	s := mem.New(time.Now)
	f, id := encode(t, 1, 5, 0)
	m := accepted(t, s, f, id, 5)
	if err := s.Delete(context.Background(), m.RawBlobKey); err != nil {
		t.Fatal(err)
	}
	put(t, s, layout.Blob(m.FrameSHA256, 3), f)
	if r := check(t, s); !r.Healthy() || r.Records != 5 {
		t.Errorf("%+v", r)
	}
}

// failing answers every read with an error.
type failing struct{ objstore.Store }

func (failing) List(context.Context, objstore.ListOptions) (objstore.Page, error) {
	return objstore.Page{}, &objstore.Error{Op: "list", Err: objstore.ErrUnavailable}
}

func TestAStoreThatCannotBeReadIsAnErrorAndNotAnEmptyBucket(t *testing.T) {
	if r, err := Run(context.Background(), failing{mem.New(time.Now)}, Options{}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("got %v, %v", r, err)
	}
}

// TestDamagedObjectsAreFindings: one object that is damaged at rest does not hide the rest of the bucket.
func TestDamagedObjectsAreFindings(t *testing.T) {
	f1, id1 := encode(t, 1, 5, 0)
	f2, id2 := encode(t, 6, 3, 0)
	for want, key := range map[Problem]string{
		BlobMissing: layout.Blob(identity.Sum(f1), 0),
		BadManifest: layout.Accepted(id1),
	} {
		s := mem.New(time.Now)
		accepted(t, s, f1, id1, 5)
		accepted(t, s, f2, id2, 3)
		r := check(t, fault.New(s, 1, fault.Refused("get", key, objstore.ErrChecksum)))
		if len(r.Findings) != 1 || r.Findings[0].Problem != want || r.Manifests != 2 || r.Records != 3 {
			t.Errorf("%s: %+v", key, r)
		}
		// Another generation with the right bytes is as good.
		put(t, s, layout.Blob(identity.Sum(f1), 1), f1)
		r = check(t, fault.New(s, 1, fault.Refused("get", key, objstore.ErrChecksum)))
		if want == BlobMissing && !r.Healthy() {
			t.Errorf("with a second generation: %v", r.Findings)
		}
	}
}

// A frame that an operator removed, and that is written down, is counted and no finding;
// one that nothing names is.
func TestFramesRemovedByRetentionAreNoFinding(t *testing.T) {
	s := mem.New(time.Now)
	f1, id1 := encode(t, 1, 5, 0)
	f2, id2 := encode(t, 6, 3, 0)
	f3, id3 := encode(t, 9, 2, 0)
	m1 := accepted(t, s, f1, id1, 5)
	m2 := accepted(t, s, f2, id2, 3)
	accepted(t, s, f3, id3, 2)
	l := framelog.Log{AuthorityID: "auth", By: "test", Before: 1, RemovedAt: 2, Frames: []framelog.Frame{{
		Identity: id1, FrameSHA256: m1.FrameSHA256, FrameBytes: m1.FrameBytes, Keys: []string{m1.RawBlobKey}}}}
	body, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, l.Key(body), body)
	remove := func(key string) {
		t.Helper()
		if err := s.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if r := check(t, s); r.Removed != 0 || !r.Healthy() { // about to be removed
		t.Errorf("%+v", r)
	}
	remove(m1.RawBlobKey)
	r := check(t, s)
	if r.Removed != 1 || !r.Healthy() || r.Manifests != 3 || r.Records != 5 {
		t.Errorf("%+v", r)
	}
	if through, ok := r.Ledgers[boot].AcceptedThrough(); !ok || through != 10 {
		t.Errorf("accepted through %d, %v", through, ok)
	}
	remove(m2.RawBlobKey)
	if r := check(t, s); r.Removed != 1 || r.Found != 1 || r.Findings[0].Problem != BlobMissing || r.Findings[0].Key != layout.Accepted(id2) {
		t.Errorf("%+v", r)
	}
	put(t, s, l.Key(body), body[1:])
	if r := check(t, s); r.Removed != 0 || r.Found != 3 || r.Findings[2].Problem != BadFrameLog {
		t.Errorf("%+v", r)
	}
}

// Records that carry their frames are as whole as their frames are.
func TestRecordsThatCarryFrames(t *testing.T) {
	build := func() (*mem.Store, accept.Manifest, accept.ConflictRecord) {
		s := mem.New(time.Now)
		f, id := encode(t, 1, 5, 0)
		d := identity.Sum(f)
		m := accept.Manifest{AuthorityID: "auth", Identity: id, FrameSHA256: d, FrameBytes: uint64(len(f)), Inline: true, AcceptedAt: 1, CollectorID: "c",
			WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef", RecordCount: 5, MinTime: 1e9, MaxTime: 5e9}
		put(t, s, layout.Boot(boot), []byte("{}"))
		put(t, s, layout.Accepted(id), m.MarshalWith(f))
		loser, _ := encode(t, 1, 5, 100)
		q := accept.ConflictRecord{AuthorityID: "auth", Identity: id, AcceptedSHA256: d, SubmittedSHA256: identity.Sum(loser), SubmittedBytes: uint64(len(loser)),
			AcceptedManifestKey: layout.Accepted(id), ObservedAt: 2, CollectorID: "c"}
		put(t, s, layout.Quarantine(id, q.SubmittedSHA256), q.MarshalWith(loser))
		return s, m, q
	}
	s, m, q := build()
	if r := check(t, s); !r.Healthy() || r.Manifests != 1 || r.Records != 5 || r.Quarantined != 1 || r.FrameBytes != m.FrameBytes {
		t.Errorf("%+v", r)
	}
	for key, want := range map[string]Problem{layout.Accepted(m.Identity): BadManifest, layout.Quarantine(q.Identity, q.SubmittedSHA256): BadQuarantine} {
		s, _, _ := build()
		b, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-1] ^= 1
		put(t, s, key, b)
		if r := check(t, s); r.Found == 0 || r.Findings[0].Problem != want || r.Findings[0].Key != key {
			t.Errorf("%s: %v", key, r.Findings)
		}
	}
}
