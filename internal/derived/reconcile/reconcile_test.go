package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var ctx = context.Background()

func TestDerivedKeys(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch(10, 19))
	r := newCore(s)
	res, err := r.Reconcile(ctx, layout.Accepted(m.Identity), Options{})
	must(t, err)
	if diff := cmp.Diff([]Kind{AcceptedByBlob, RawBlobByTime, AcceptedByTime}, res.Created); diff != "" {
		t.Error(diff)
	}
	if res.Cause != "" || res.Manifest == nil || string(res.Bytes) != string(m.Marshal()) {
		t.Errorf("%+v", res)
	}
	state := derivedState(t, s)
	want := map[string]string{}
	for _, d := range DerivedOf(m, m.Marshal()) {
		want[d.Key] = string(d.Body)
	}
	if diff := cmp.Diff(want, state); diff != "" {
		t.Error(diff)
	}
	if got := state[layout.AcceptedByTime(m.AcceptedTime(), m.Identity)]; got != string(m.Marshal()) {
		t.Errorf("accepted-by-time is not the manifest: %s", got)
	}
	for _, look := range []bool{false, true} {
		res, err = r.Reconcile(ctx, layout.Accepted(m.Identity), Options{HeadFirst: look})
		must(t, err)
		if len(res.Created) != 0 {
			t.Errorf("a repeat wrote %v", res.Created)
		}
	}
	if diff := cmp.Diff(want, derivedState(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestMissingKeyIsRepaired(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch(1, 5))
	r := newCore(s)
	_, err := r.Reconcile(ctx, layout.Accepted(m.Identity), Options{})
	must(t, err)
	want := derivedState(t, s)
	for _, d := range DerivedOf(m, m.Marshal()) {
		must(t, s.Delete(ctx, d.Key))
		res, err := r.Reconcile(ctx, layout.Accepted(m.Identity), Options{HeadFirst: true})
		must(t, err)
		if diff := cmp.Diff([]Kind{d.Kind}, res.Created); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff(want, derivedState(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestQuarantine(t *testing.T) {
	s := newStore()
	c, loser := conflict(batch(1, 5))
	put(t, s, c.SubmittedBlobKey, loser)
	key := layout.Quarantine(c.Identity, c.SubmittedSHA256)
	put(t, s, key, c.Marshal())
	res, err := newCore(s).Reconcile(ctx, key, Options{})
	must(t, err)
	if diff := cmp.Diff([]Kind{QuarantineByBlob}, res.Created); diff != "" || res.Conflict == nil {
		t.Error(diff)
	}
	if _, ok := derivedState(t, s)[layout.QuarantineByBlob(c.SubmittedSHA256, c.Identity)]; !ok {
		t.Error("no quarantine-by-blob")
	}
	must(t, s.Delete(ctx, c.SubmittedBlobKey))
	res, err = newCore(s).Reconcile(ctx, key, Options{})
	must(t, err)
	if res.Cause != CauseMissing || !res.Opened {
		t.Errorf("%+v", res)
	}
	if _, ok := derivedState(t, s)[layout.RepairQuarantine(c.Identity, c.SubmittedSHA256)]; !ok {
		t.Error("no repair record")
	}
}

func TestBlobRepairOpensAndHeals(t *testing.T) {
	type world struct {
		s objstore.Store
		m accept.Manifest
		b []byte
	}
	for name, c := range map[string]struct {
		spoil func(w world)
		cause Cause
		heal  func(w world)
	}{
		"missing": {
			spoil: func(w world) { must(t, w.s.Delete(ctx, w.m.RawBlobKey)) },
			cause: CauseMissing,
			heal:  func(w world) { put(t, w.s, w.m.RawBlobKey, w.b) },
		},
		"missing, next generation comes": {
			spoil: func(w world) { must(t, w.s.Delete(ctx, w.m.RawBlobKey)) },
			cause: CauseMissing,
			heal:  func(w world) { put(t, w.s, layout.Blob(w.m.FrameSHA256, 3), w.b) },
		},
		"garbage of the same length": {
			spoil: func(w world) {
				_, err := w.s.Put(ctx, w.m.RawBlobKey, []byte(strings.Repeat("x", len(w.b))), objstore.PutOptions{})
				must(t, err)
			},
			cause: CauseCorrupt,
			heal:  func(w world) { put(t, w.s, layout.Blob(w.m.FrameSHA256, 1), w.b) },
		},
		"truncated": {
			spoil: func(w world) {
				_, err := w.s.Put(ctx, w.m.RawBlobKey, w.b[:3], objstore.PutOptions{})
				must(t, err)
			},
			cause: CauseCorrupt,
			heal: func(w world) {
				_, err := w.s.Put(ctx, w.m.RawBlobKey, w.b, objstore.PutOptions{})
				must(t, err)
			},
		},
	} {
		for _, sums := range []bool{true, false} {
			s := objstore.Store(newStore())
			if !sums {
				s = noSums{s}
			}
			w := world{s: s, m: acceptBatch(t, s, batch(10, 19))}
			_, w.b = manifest(w.m.Identity)
			r, key := newCore(s), layout.Accepted(w.m.Identity)
			c.spoil(w)
			res, err := r.Reconcile(ctx, key, Options{})
			must(t, err)
			if res.Cause != c.cause || !res.Opened || len(res.Created) != 3 {
				t.Fatalf("%s: %+v", name, res)
			}
			body, _, err := s.Get(ctx, layout.Repair(w.m.Identity), objstore.GetOptions{})
			must(t, err)
			rec, err := ParseRepair(body)
			must(t, err)
			if rec.Cause != c.cause || rec.FirstSeen != epoch.UnixNano() || rec.ManifestKey != key || rec.FrameSHA256 != w.m.FrameSHA256 {
				t.Errorf("%s: %+v", name, rec)
			}
			res, err = r.Reconcile(ctx, key, Options{Recheck: true})
			must(t, err)
			if res.Opened || res.Healed || res.Cause != c.cause {
				t.Errorf("%s: a second look: %+v", name, res)
			}
			c.heal(w)
			res, err = r.Reconcile(ctx, key, Options{Recheck: true})
			must(t, err)
			if !res.Healed || res.Cause != "" {
				t.Errorf("%s: after the blob is back: %+v", name, res)
			}
			if _, err := s.Head(ctx, layout.Repair(w.m.Identity)); !errors.Is(err, objstore.ErrNotFound) {
				t.Errorf("%s: the record is still there: %v", name, err)
			}
		}
	}
}

// noSums is a store that keeps no checksums.
type noSums struct{ objstore.Store }

func (n noSums) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := n.Store.Head(ctx, key)
	i.SHA256 = identity.Digest{}
	return i, err
}

func TestRepairKeepsFirstSeenWhenTheCauseChanges(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch(10, 19))
	r, key := newCore(s), layout.Accepted(m.Identity)
	must(t, s.Delete(ctx, m.RawBlobKey))
	_, err := r.Reconcile(ctx, key, Options{})
	must(t, err)
	put(t, s, m.RawBlobKey, []byte("garbage"))
	later := newCore(s)
	now := epoch.Add(3600e9)
	later.Now = func() time.Time { return now }
	_, err = later.Reconcile(ctx, key, Options{})
	must(t, err)
	body, _, err := s.Get(ctx, layout.Repair(m.Identity), objstore.GetOptions{})
	must(t, err)
	rec, err := ParseRepair(body)
	must(t, err)
	if rec.Cause != CauseCorrupt || rec.FirstSeen != epoch.UnixNano() {
		t.Errorf("%+v", rec)
	}
}

func TestBadManifestsAreReportedAndNotTrusted(t *testing.T) {
	id := batch(10, 19)
	m, _ := manifest(id)
	foreign := m
	foreign.AuthorityID = "another"
	other, _ := manifest(batch(10, 20))
	for name, c := range map[string]struct {
		body  []byte
		cause Cause
	}{
		"empty":            {nil, CauseBadManifest},
		"cut":              {m.Marshal()[:50], CauseBadManifest},
		"spaces":           {append([]byte(" "), m.Marshal()...), CauseBadManifest},
		"huge":             {[]byte(strings.Repeat("x", accept.MaxRecordBytes+1)), CauseBadManifest},
		"another identity": {other.Marshal(), CauseBadManifest},
		"foreign":          {foreign.Marshal(), CauseForeign},
	} {
		s := newStore()
		put(t, s, layout.Accepted(id), c.body)
		res, err := newCore(s).Reconcile(ctx, layout.Accepted(id), Options{})
		if err != nil || res.Cause != c.cause || res.Manifest != nil || len(res.Created) != 0 {
			t.Errorf("%s: %+v %v", name, res, err)
		}
		if state := derivedState(t, s); len(state) != 1 || state[layout.Repair(id)] == "" {
			t.Errorf("%s: %v", name, state)
		}
	}
}

func TestBadConflictsAreReportedAndNotTrusted(t *testing.T) {
	id := batch(10, 19)
	c, loser := conflict(id)
	foreign := c
	foreign.AuthorityID = "another"
	other, _ := conflict(batch(10, 20))
	swapped := c // of the same identity, and of another frame
	swapped.SubmittedSHA256 = other.SubmittedSHA256
	swapped.SubmittedBlobKey = layout.Blob(other.SubmittedSHA256, 0)
	for name, bad := range map[string]struct {
		body  []byte
		cause Cause
	}{
		"cut":              {c.Marshal()[:50], CauseBadManifest},
		"another identity": {other.Marshal(), CauseBadManifest},
		"another frame":    {swapped.Marshal(), CauseBadManifest},
		"foreign":          {foreign.Marshal(), CauseForeign},
	} {
		s := newStore()
		key := layout.Quarantine(id, c.SubmittedSHA256)
		put(t, s, c.SubmittedBlobKey, loser)
		put(t, s, key, bad.body)
		res, err := newCore(s).Reconcile(ctx, key, Options{})
		if err != nil || res.Cause != bad.cause || res.Conflict != nil || len(res.Created) != 0 {
			t.Errorf("%s: %+v %v", name, res, err)
		}
		if state := derivedState(t, s); len(state) != 1 || state[layout.RepairQuarantine(id, c.SubmittedSHA256)] == "" {
			t.Errorf("%s: %v", name, state)
		}
	}
}

// The manifest's length is compared too, though the hash is right.
func TestBlobOfAnotherLength(t *testing.T) {
	s := newStore()
	m, frame := manifest(batch(10, 19))
	m.FrameBytes++
	put(t, s, m.RawBlobKey, frame)
	put(t, s, layout.Accepted(m.Identity), m.Marshal())
	res, err := newCore(s).Reconcile(ctx, layout.Accepted(m.Identity), Options{})
	if err != nil || res.Cause != CauseCorrupt {
		t.Errorf("%+v %v", res, err)
	}
}

func TestTheStoresOwnAuthority(t *testing.T) {
	s := newStore()
	m := acceptBatch(t, s, batch(1, 2))
	put(t, s, layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "another"}.Marshal())
	r := newCore(s)
	r.AuthorityID = ""
	res, err := r.Reconcile(ctx, layout.Accepted(m.Identity), Options{})
	if err != nil || res.Cause != CauseForeign {
		t.Errorf("%+v %v", res, err)
	}
	var diff *accept.AuthorityError
	if err := newCore(s).CheckAuthority(ctx); !errors.As(err, &diff) {
		t.Errorf("configured and stored authority differ: %v", err)
	}
}

func TestUnknownAndAbsent(t *testing.T) {
	r := newCore(newStore())
	if _, err := r.Reconcile(ctx, "accepted/v1/nonsense", Options{}); !errors.Is(err, ErrUnknownKey) {
		t.Error(err)
	}
	if _, err := r.Reconcile(ctx, layout.Accepted(batch(1, 2)), Options{}); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

func TestReferenceBodiesAreCanonical(t *testing.T) {
	m, _ := manifest(batch(10, 19))
	for _, d := range DerivedOf(m, m.Marshal()) {
		var v map[string]any
		must(t, json.Unmarshal(d.Body, &v))
		if again := DerivedOf(m, m.Marshal()); string(again[0].Body) == "" || v["schema"] == "" {
			t.Errorf("%s: %s", d.Kind, d.Body)
		}
	}
}

// TestDamagedAtRest: the store finds that bytes are not those that it took; that is
// the object's cause, and no failure of the store.
func TestDamagedAtRest(t *testing.T) {
	for _, prefix := range []string{layout.AcceptedPrefix, layout.RawBlobsPrefix} {
		s := newStore()
		m := acceptBatch(t, s, batch(10, 19))
		bad := noSums{fault.New(s, 1, fault.Refused("get", prefix, objstore.ErrChecksum))}
		want := CauseCorrupt
		if prefix == layout.AcceptedPrefix {
			want = CauseBadManifest
		}
		res, err := newCore(bad).Reconcile(ctx, layout.Accepted(m.Identity), Options{})
		if err != nil || res.Cause != want || !res.Opened {
			t.Errorf("%s: %+v, %v", prefix, res, err)
		}
	}
}

// A record that carries its frame is checked with it, by a pass and by the scrub, and its derived keys have no copy of the frame.
func TestRecordsThatCarryFrames(t *testing.T) {
	s, id := newStore(), batch(1, 10)
	m, frame := manifest(id)
	m.Inline, m.RawBlobKey = true, ""
	c, loser := conflict(id)
	c.AcceptedBlobKey, c.SubmittedBlobKey, c.SubmittedBytes = "", "", uint64(len(loser))
	put(t, s, layout.Accepted(id), m.MarshalWith(frame))
	put(t, s, layout.Quarantine(id, c.SubmittedSHA256), c.MarshalWith(loser))
	r := newCore(s)
	entries := map[string]journal.Entry{layout.Accepted(id): m.Entry(journal.Accepted), layout.Quarantine(id, c.SubmittedSHA256): c.Entry()}
	for key, e := range entries {
		res, err := r.Reconcile(t.Context(), key, Options{})
		if err != nil || res.Cause != "" || len(res.Created) == 0 {
			t.Errorf("%s: %+v, %v", key, res, err)
		}
		if ok, err := r.HasFrame(t.Context(), &e, false); err != nil || !ok {
			t.Errorf("%s: the scrub finds %v, %v", key, ok, err)
		}
	}
	for key, body := range derivedState(t, s) {
		if strings.Contains(body, "frame of ") {
			t.Errorf("%s has a copy of the frame", key)
		}
	}
	for key, e := range entries {
		b, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
		must(t, err)
		whole := slices.Clone(b)
		b[len(b)-1] ^= 1
		_, err = s.Put(t.Context(), key, b, objstore.PutOptions{})
		must(t, err)
		if ok, err := r.HasFrame(t.Context(), &e, false); err != nil || ok {
			t.Errorf("%s, damaged: the scrub finds %v, %v", key, ok, err)
		}
		if res, err := r.Reconcile(t.Context(), key, Options{}); err != nil || res.Cause != CauseBadManifest || !res.Opened {
			t.Errorf("%s, damaged: %+v, %v", key, res, err)
		}
		_, err = s.Put(t.Context(), key, whole, objstore.PutOptions{})
		must(t, err)
		if res, err := r.Reconcile(t.Context(), key, Options{Recheck: true}); err != nil || res.Cause != "" || !res.Healed {
			t.Errorf("%s, restored: %+v, %v", key, res, err)
		}
	}
}
