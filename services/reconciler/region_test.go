package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// fitting says that the bucket fits.
func fitting(context.Context) error { return nil }

func regionRecord(region claims.Region, dissolved bool) []byte {
	r := regions.Record{Region: region, Number: 4, ID: claims.ID{1}, Regions: []claims.Region{"east", "west"}, Cluster: 7}
	if dissolved {
		r.Regions, r.Retired, r.Dissolved = []claims.Region{region}, []regions.Retired{{Name: "south", Done: true}}, true
	}
	return r.Marshal()
}

// TestABucketOfARegion: which settings fit the record that a bucket has.
func TestABucketOfARegion(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		ours claims.Region
		want any // nil, a judge, or the error
	}{
		"no record":                      {"", "", nil},
		"no record yet":                  {"", "east", nil},
		"its own":                        {string(regionRecord("east", false)), "east", nil},
		"a region's, and none is set":    {string(regionRecord("east", false)), "", &RegionError{Region: "east"}},
		"another one's":                  {string(regionRecord("west", false)), "east", &RegionError{Region: "west", Ours: "east"}},
		"dissolved":                      {string(regionRecord("east", true)), "", formerRegion{}},
		"dissolved, and it is still set": {string(regionRecord("east", true)), "east", &RegionError{Region: "east", Ours: "east", Dissolved: true}},
		"unreadable":                     {"{", "", record.ErrCorrupt},
		"unreadable, with a region":      {"{", "east", record.ErrCorrupt},
	} {
		s := newStore()
		if c.body != "" {
			create(t, s, layout.RegionsKey, []byte(c.body))
		}
		j, err := openRegion(bg, s, c.ours, slog.New(slog.DiscardHandler))
		switch want := c.want.(type) {
		case nil:
			if j != nil || err != nil {
				t.Errorf("%s: %v, %v", name, j, err)
			}
		case formerRegion:
			if _, ok := j.(formerRegion); !ok || err != nil {
				t.Errorf("%s: %v, %v", name, j, err)
			}
		case *RegionError:
			if e := (*RegionError)(nil); !errors.As(err, &e) || *e != *want || j != nil {
				t.Errorf("%s: %v, %v", name, j, err)
			}
		case error:
			if !errors.Is(err, want) || j != nil {
				t.Errorf("%s: %v, %v", name, j, err)
			}
		}
	}
	if j, err := openRegion(bg, fault.New(newStore(), 1, fault.Refused("get", layout.RegionsKey, objstore.ErrDenied)), "", slog.New(slog.DiscardHandler)); err != nil || j != nil {
		t.Errorf("denied: %v, %v", j, err)
	}
	if _, err := openRegion(bg, fault.New(newStore(), 1, fault.NotApplied("get", layout.RegionsKey)), "", slog.New(slog.DiscardHandler)); err == nil || unfit(err) {
		t.Errorf("a store that does not answer is no region's: %v", err)
	}
}

// unfits reports that a reconciler is not ready because of the bucket's region.
func unfits(r *running) bool {
	e := (*RegionError)(nil)
	return errors.As(r.notRead(), &e)
}

// TestABucketThatDoesNotFit: over the bucket of a region that the settings do not fit nothing is entered and no claim is changed, whether
// the record was there at the start or came later; and it goes on once the record fits.
func TestABucketThatDoesNotFit(t *testing.T) {
	t.Run("at the start", func(t *testing.T) {
		s := newStore()
		plantBatch(t, s, batch("a", 0, 9))
		create(t, s, layout.RegionsKey, regionRecord("east", false))
		r := start(t, following(), s)
		eventually(t, "it says so", func() bool { return unfits(r) })
		if n := entriesOf(t, s); n != 0 {
			t.Errorf("%d entries", n)
		}
		_, err := s.Put(bg, layout.RegionsKey, regionRecord("east", true), objstore.PutOptions{})
		must(t, err)
		eventually(t, "it is ready once the linearizer was dissolved", func() bool { return r.notRead() == nil })
		eventually(t, "what nobody has refused is counted", func() bool { return r.ledgerOf(r.client(), "a").GetRecordCount() == 10 })
	})
	t.Run("another region's, and claims of this one", func(t *testing.T) {
		l, s := newLinear(t), newStore()
		create(t, s, layout.RegionsKey, regionRecord("west", false))
		m, _ := manifest(batch("a", 0, 9))
		l.do(claims.Held, claims.DoClaim, m, "east", 1)
		r := startWith(t, regional("east"), Deps{Store: s, Claims: l})
		eventually(t, "it says so", func() bool { return unfits(r) })
		if st := l.state(m.Identity); st != claims.Claimed {
			t.Errorf("the claim, whose manifest may be elsewhere, is %s", st)
		}
	})
	t.Run("before claims are changed", func(t *testing.T) {
		l, s := newLinear(t), newStore()
		r := startWith(t, regional("east"), Deps{Store: s, Claims: l})
		eventually(t, "it is ready", func() bool { return r.notRead() == nil })
		create(t, s, layout.RegionsKey, regionRecord("west", false))
		m, _ := manifest(batch("a", 0, 9))
		l.do(claims.Held, claims.DoClaim, m, "east", 1)
		eventually(t, "it says so", func() bool { return unfits(r) || l.state(m.Identity) == 0 })
		if st := l.state(m.Identity); st != claims.Claimed {
			t.Errorf("the claim is %s", st)
		}
	})
	t.Run("before an audit", func(t *testing.T) {
		s := newStore()
		plantBatch(t, s, batch("a", 0, 9))
		create(t, s, layout.RegionsKey, regionRecord("east", false))
		// The life begins before there is a record.
		r := start(t, following(), fault.New(s, 1, fault.Refused("get", layout.RegionsKey, objstore.ErrNotFound).Once()))
		eventually(t, "it says so", func() bool { return unfits(r) || entriesOf(t, s) > 0 })
		if n := entriesOf(t, s); n != 0 {
			t.Errorf("%d entries", n)
		}
	})
	for _, dissolved := range []bool{false, true} {
		t.Run("before the check of an event", func(t *testing.T) {
			s := newStore()
			plantBatch(t, s, batch("before", 0, 9))
			cfg := following()
			cfg.Events.Webhook, cfg.Events.CheckAfter, cfg.Journal.Folding.Interval = true, 1, time.Hour
			r := start(t, cfg, s)
			eventually(t, "the first audit has finished", func() bool {
				full, err := audit.History(bg, s, audit.Full, 1)
				must(t, err)
				return len(full) == 1 && full[0].Finished() && r.notRead() == nil
			})
			before := entriesOf(t, s)
			// It lost against another region's.
			create(t, s, layout.RegionsKey, regionRecord("east", dissolved))
			m := plantBatch(t, s, batch("lost", 0, 9))
			w, _ := other(m.Identity)
			create(t, s, layout.Quarantine(m.Identity, m.FrameSHA256), accept.ConflictRecord{
				AuthorityID: m.AuthorityID, Identity: m.Identity, AcceptedBlobKey: w.RawBlobKey, AcceptedSHA256: w.FrameSHA256, SubmittedBlobKey: m.RawBlobKey, SubmittedSHA256: m.FrameSHA256,
				AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 9, CollectorID: "c",
			}.Marshal())
			r.journal.check(m.Identity)
			if dissolved {
				eventually(t, "the conflict is entered, by the check", func() bool { return r.checked("quarantined") == 1 && entriesOf(t, s) > before })
			} else {
				eventually(t, "it says so", func() bool { return unfits(r) || entriesOf(t, s) > before })
				if n := entriesOf(t, s); n != before {
					t.Errorf("%d entries", n-before)
				}
				return
			}
			eventually(t, "it is ready again", func() bool { return r.notRead() == nil })
			if n := r.ledgerOf(r.client(), "lost").GetRecordCount(); n != 0 {
				t.Errorf("%d records of what lost are counted", n)
			}
		})
	}
}
