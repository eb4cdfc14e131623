package accept_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

var (
	home = objstore.Place{Endpoint: "minio.example:9000", Region: "north", Bucket: "metrics", Prefix: "prod/"}
	aws  = objstore.Place{Endpoint: objstore.EndpointAWS, Region: "eu-north-1", Bucket: "metrics"}
	// began is when the authorities of these tests were made, by their stores' clocks.
	began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
)

// placed is a store at a place whose clock stands still.
func placed(p objstore.Place, at time.Time) *mem.Store {
	s := mem.New(func() time.Time { return at })
	s.SetPlace(p)
	return s
}

func raw(t *testing.T, g objstore.Getter, key string) []byte {
	t.Helper()
	b, _, err := g.Get(t.Context(), key, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// authorityAt makes an authority and returns its record.
func authorityAt(t *testing.T, p objstore.Place) []byte {
	t.Helper()
	s := placed(p, began)
	if _, err := accept.EnsureAuthority(t.Context(), s, "authority-1", true); err != nil {
		t.Fatal(err)
	}
	return raw(t, s, layout.AuthorityKey)
}

// TestReplicasAreNoAuthority: a bucket that carries the record without being the one that it was
// written for is refused by collectors and by readers, with the reason, and is not written to.
func TestReplicasAreNoAuthority(t *testing.T) {
	at := func(p objstore.Place, change func(*objstore.Place)) objstore.Place { change(&p); return p }
	unbound := accept.AuthorityRecord{AuthorityID: "authority-1"}.Marshal()
	for name, c := range map[string]struct {
		record  []byte
		place   objstore.Place
		written time.Time
		replica bool
		want    accept.AuthorityReason
	}{
		"another bucket":                {authorityAt(t, home), at(home, func(p *objstore.Place) { p.Bucket = "metrics-copy" }), began, false, accept.AuthorityOtherBucket},
		"another prefix":                {authorityAt(t, home), at(home, func(p *objstore.Place) { p.Prefix = "" }), began, false, accept.AuthorityOtherPrefix},
		"another region of AWS":         {authorityAt(t, aws), at(aws, func(p *objstore.Place) { p.Region = "eu-west-1" }), began, false, accept.AuthorityOtherRegion},
		"copied to another store":       {authorityAt(t, home), at(home, func(p *objstore.Place) { p.Endpoint = "other.example" }), began.Add(time.Hour), false, accept.AuthorityCopied},
		"copied, the name leads there":  {authorityAt(t, home), home, began.Add(time.Hour), false, accept.AuthorityCopied},
		"replicated to another store":   {authorityAt(t, home), at(home, func(p *objstore.Place) { p.Endpoint = "other.example" }), began, true, accept.AuthorityReplica},
		"replicated, of an old release": {unbound, home, began, true, accept.AuthorityReplica},
	} {
		t.Run(name, func(t *testing.T) {
			s := placed(c.place, c.written)
			if c.replica {
				s.Replicate(layout.AuthorityKey, c.record, c.written)
			} else {
				put(t, s, layout.AuthorityKey, c.record)
			}
			_, read := accept.ReadAuthority(t.Context(), s)
			_, ensured := accept.EnsureAuthority(t.Context(), s, "authority-1", true)
			for who, err := range map[string]error{"reader": read, "collector": ensured, "check": accept.CheckAuthority(t.Context(), s, "")} {
				var e *accept.AuthorityError
				if !errors.As(err, &e) || e.Reason != c.want {
					t.Errorf("%s: %v, want %s", who, err, c.want)
				}
			}
			if got := raw(t, s, layout.AuthorityKey); !slices.Equal(got, c.record) || s.Len() != 1 {
				t.Errorf("the record is now %s", got)
			}
			// What the operator is shown is the record all the same.
			if a, err := accept.InspectAuthority(t.Context(), s); err != nil || a.AuthorityID != "authority-1" || a.Problem == nil {
				t.Errorf("inspected: %+v, %v", a, err)
			}
		})
	}
}

// TestAuthorityUnderOtherNames: host names, ports and region labels change without a change of the
// bucket, whose objects keep their times.
func TestAuthorityUnderOtherNames(t *testing.T) {
	for name, c := range map[string]struct {
		place   objstore.Place
		renamed []string
	}{
		"the same":        {home, nil},
		"behind a proxy":  {objstore.Place{Endpoint: "s3.example", Region: home.Region, Bucket: home.Bucket, Prefix: home.Prefix}, []string{"endpoint"}},
		"a renamed label": {objstore.Place{Endpoint: home.Endpoint, Region: "south", Bucket: home.Bucket, Prefix: home.Prefix}, []string{"region"}},
	} {
		s := placed(c.place, began)
		put(t, s, layout.AuthorityKey, authorityAt(t, home))
		a, err := accept.EnsureAuthority(t.Context(), s, "authority-1", true)
		if err != nil || !slices.Equal(a.Renamed, c.renamed) {
			t.Errorf("%s: renamed %v, %v", name, a.Renamed, err)
		}
	}
}

// TestUnboundRecordsAreBound: the record of an earlier release is accepted, and the first collector
// binds it; it keeps the time of its creation.
func TestUnboundRecordsAreBound(t *testing.T) {
	now := began
	s := mem.New(func() time.Time { return now })
	s.SetPlace(home)
	put(t, s, layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "authority-1"}.Marshal())
	now = now.AddDate(0, 2, 0)
	if a, err := accept.ReadAuthority(t.Context(), s); err != nil || a.Bound() {
		t.Errorf("read by others: %+v, %v", a, err)
	}
	denies := fault.New(s, 1, fault.Refused("replace", layout.AuthorityKey, objstore.ErrDenied))
	if a, err := accept.EnsureAuthority(t.Context(), denies, "authority-1", true); err != nil || a.Bound() {
		t.Errorf("a store that denies the binding: %+v, %v", a, err)
	}
	a, err := accept.EnsureAuthority(t.Context(), s, "authority-1", false)
	if err != nil || a.Place != home || a.CreatedAt != began.UnixNano() || a.BoundAt != now.UnixNano() {
		t.Errorf("bound: %+v, %v", a, err)
	}
	now = now.AddDate(1, 0, 0)
	if b, err := accept.EnsureAuthority(t.Context(), s, "authority-1", true); err != nil || b.AuthorityRecord != a.AuthorityRecord {
		t.Errorf("a year later: %+v, %v", b, err)
	}
}

// elsewhere is a store under another name.
type elsewhere struct {
	objstore.Store
	place objstore.Place
}

func (e elsewhere) Place() objstore.Place { return e.place }

// TestRacingBindings: collectors that reach one bucket by several names and start at once agree on
// one binding, also where answers to writes are lost.
func TestRacingBindings(t *testing.T) {
	for seed := range uint64(20) {
		s := placed(home, began)
		lost, missing := fault.LostAnswer("", layout.AuthorityKey), fault.NotApplied("", layout.AuthorityKey)
		lost.Chance, missing.Chance = 0.3, 0.2
		faults := fault.New(s, seed, lost, missing)
		results := make([]accept.Authority, 4)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() {
				p := home
				p.Endpoint = string(rune('a'+i)) + ".example"
				for range 50 {
					var err error
					var again *accept.RetryError
					if results[i], err = accept.EnsureAuthority(context.Background(), elsewhere{faults, p}, "authority-1", true); !errors.As(err, &again) {
						if err != nil {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		wg.Wait()
		for _, r := range results {
			if r.AuthorityRecord != results[0].AuthorityRecord || r.BoundAt == 0 {
				t.Fatalf("seed %d: %+v and %+v", seed, r.AuthorityRecord, results[0].AuthorityRecord)
			}
		}
	}
}

// TestMoveAuthority: an operator binds a copy to its bucket; a record that changed since the
// operator saw it stays.
func TestMoveAuthority(t *testing.T) {
	there := home
	there.Bucket, there.Endpoint = "metrics-2", "other.example"
	now := began.Add(48 * time.Hour)
	s := mem.New(func() time.Time { return now })
	s.SetPlace(there)
	s.Replicate(layout.AuthorityKey, authorityAt(t, home), began)
	from, err := accept.InspectAuthority(t.Context(), s)
	if err != nil || from.Problem == nil || from.Problem.Reason != accept.AuthorityReplica {
		t.Fatalf("%+v, %v", from, err)
	}
	lost := fault.New(s, 1, fault.LostAnswer("replace", layout.AuthorityKey).Once())
	to, err := accept.MoveAuthority(t.Context(), lost, from)
	if err != nil || to.Place != there || to.CreatedAt != began.UnixNano() || to.BoundAt != now.UnixNano() {
		t.Errorf("moved: %+v, %v", to, err)
	}
	if _, err := accept.EnsureAuthority(t.Context(), s, "authority-1", true); err != nil {
		t.Errorf("a collector after the move: %v", err)
	}
	before := raw(t, s, layout.AuthorityKey)
	now = now.Add(time.Hour)
	if _, err := accept.MoveAuthority(t.Context(), elsewhere{s, home}, from); !errors.Is(err, accept.ErrMoved) {
		t.Errorf("a move from what is no longer there: %v", err)
	}
	if !slices.Equal(before, raw(t, s, layout.AuthorityKey)) {
		t.Error("a refused move changed the record")
	}
	if _, err := accept.MoveAuthority(t.Context(), placed(home, began), from); !errors.Is(err, accept.ErrNoAuthority) {
		t.Errorf("a bucket without a record: %v", err)
	}
}

// TestReplicatedRecordsAreNotBelieved: a manifest or boot record that a replication brought after
// the authority was bound here was accepted by another bucket. Those of before moved here.
func TestReplicatedRecordsAreNotBelieved(t *testing.T) {
	sub := submission(testID, "a")
	source := mem.New(nil)
	mustAccept(t, protocol(t, source, "c1", nil), sub, accept.Accepted)
	for _, key := range []string{layout.Accepted(testID), layout.Boot(testID.BootOf())} {
		for _, c := range []struct {
			written time.Time
			refused bool
		}{{began.Add(-time.Hour), false}, {began.Add(time.Hour), true}} {
			s := mem.New(nil)
			for _, k := range []string{layout.Accepted(testID), layout.Boot(testID.BootOf()), layout.Blob(sub.SHA256, 0)} {
				put(t, s, k, raw(t, source, k))
			}
			s.Replicate(key, raw(t, source, key), c.written)
			reported := 0
			p := protocol(t, s, "c2", func(o *accept.Config) {
				o.BoundAt = began
				o.Events.CorruptRecord = func(accept.Step, string, error) { reported++ }
			})
			if !c.refused {
				mustAccept(t, p, sub, accept.Duplicate)
				continue
			}
			_, err := p.Accept(t.Context(), sub)
			wantRetry(t, err, accept.ReasonReplica)
			if reported != 1 || !errors.Is(err, accept.ErrReplica) {
				t.Errorf("%s: %d reports, %v", key, reported, err)
			}
		}
	}
}
