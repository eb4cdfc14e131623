package reconciler

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	claimsmem "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// linear is a linearizer of two regions in memory, which may be away.
type linear struct {
	t testing.TB
	l *linearizer.Linearizer
	// away: nothing is answered. asked counts what was asked meanwhile.
	away  atomic.Bool
	asked atomic.Int64
	// denies: it refuses the caller.
	denies atomic.Bool
}

func newLinear(t testing.TB) *linear {
	t.Helper()
	const keys = claims.Keys("/t/")
	kv, epoch := claimsmem.New(), claims.Epoch{Number: 3, ID: claims.ID{1}, Regions: []claims.Region{"east", "west"}}
	_, err := kv.Commit(bg, claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: epoch.Marshal()}}}}})
	must(t, err)
	l, err := linearizer.New(kv, linearizer.Options{Config: claims.DefaultConfig(), Keys: keys, Epoch: epoch, Folds: claimsmem.NoFolds{Epoch: epoch.Number}})
	must(t, err)
	t.Cleanup(l.Close)
	return &linear{t: t, l: l}
}

func (l *linear) Do(ctx context.Context, ops []claims.Op) []linearizer.Result {
	if l.away.Load() {
		l.asked.Add(1)
		return []linearizer.Result{{Err: claims.ErrUnavailable}}
	}
	for i := range ops {
		if ops[i].At == 0 {
			ops[i].At = time.Now().UnixNano()
		}
	}
	return l.l.Do(ctx, ops)
}

func (l *linear) Scan(ctx context.Context, s claims.Scan, age time.Duration) (claims.Page, error) {
	if l.away.Load() {
		l.asked.Add(1)
		return claims.Page{}, claims.ErrUnavailable
	}
	if l.denies.Load() {
		return claims.Page{}, claims.ErrDenied
	}
	s.Before = time.Now().Add(-age).UnixNano()
	return l.l.Scan(ctx, s)
}

// do makes a change that has to have an outcome.
func (l *linear) do(want claims.Outcome, k claims.Kind, m accept.Manifest, region claims.Region, id byte) claims.Claim {
	l.t.Helper()
	r := l.Do(bg, []claims.Op{{Kind: k, Identity: m.Identity, Hash: m.FrameSHA256, ID: claims.ID{id}, Region: region, Epoch: 3}})[0]
	if r.Err != nil || r.Answer.Outcome != want {
		l.t.Fatalf("%s: %+v, want %s", k, r, want)
	}
	return r.Answer.Claim
}

// state of the claim of an identity; 0 is none.
func (l *linear) state(id identity.Batch) claims.State {
	l.t.Helper()
	r := l.l.Do(bg, []claims.Op{{Kind: claims.DoLookup, Identity: id}})[0]
	must(l.t, r.Err)
	if len(r.Answer.Claims) == 0 {
		return 0
	}
	return r.Answer.Claims[0].State
}

func regional(region claims.Region) Config {
	c := following()
	c.Journal.Folding.Interval = time.Hour
	c.Region, c.Coordinator.Addresses = region, []string{"127.0.0.1:1"}
	c.Claims = ClaimsConfig{Interval: 5 * time.Millisecond, Age: time.Millisecond, TakeOver: time.Hour, Workers: 4}
	c.Events.CheckAfter = 20 * time.Millisecond
	return c
}

// other is another frame of the same identity: its manifest and its bytes.
func other(id identity.Batch) (accept.Manifest, []byte) {
	m, _ := manifest(id)
	frame := []byte("another frame of " + id.String())
	m.FrameSHA256, m.FrameBytes = identity.Sum(frame), uint64(len(frame))
	m.RawBlobKey = layout.Blob(m.FrameSHA256, 0)
	return m, frame
}

func (r *running) claimsOf(action string) float64 {
	return testutil.ToFloat64(r.journal.m.claims.rolled.WithLabelValues(action))
}

// TestClaimsAreRolledForward: of collectors that died after each of their steps.
func TestClaimsAreRolledForward(t *testing.T) {
	l, s := newLinear(t), newStore()
	absent, _ := manifest(batch("absent", 0, 9))
	l.do(claims.Held, claims.DoClaim, absent, "east", 1)
	written := plantBatch(t, s, batch("written", 0, 9))
	l.do(claims.Held, claims.DoClaim, written, "east", 2)
	durable := plantBatch(t, s, batch("durable", 0, 9))
	l.do(claims.Held, claims.DoClaim, durable, "east", 3)
	l.do(claims.Decided, claims.DoComplete, durable, "east", 3)
	replaced := plantBatch(t, s, batch("replaced", 0, 9))
	lost, _ := other(replaced.Identity)
	l.do(claims.Held, claims.DoClaim, lost, "east", 4)
	elsewhere, _ := manifest(batch("elsewhere", 0, 9))
	l.do(claims.Held, claims.DoClaim, elsewhere, "west", 5)
	damaged := batch("damaged", 0, 9)
	create(t, s, layout.Accepted(damaged), []byte("{}"))
	of, _ := manifest(damaged)
	l.do(claims.Held, claims.DoClaim, of, "east", 6)

	r := startWith(t, regional("east"), Deps{Store: s, Claims: l})
	for _, m := range []accept.Manifest{written, durable, replaced} {
		eventually(t, m.Identity.Agent+" is settled", func() bool { return l.state(m.Identity) == claims.Settled })
	}
	eventually(t, "the claim without a manifest is released", func() bool { return l.state(absent.Identity) == 0 })
	if st := l.state(elsewhere.Identity); st != claims.Claimed {
		t.Errorf("the other region's claim is %s", st)
	}
	c := r.client()
	for _, agent := range []string{"written", "durable", "replaced"} {
		eventually(t, agent+" is counted", func() bool { return r.ledgerOf(c, agent).GetRecordCount() == 10 })
	}
	eventually(t, "the damaged one is reported", func() bool {
		return r.claimsOf("stuck") > 0 && testutil.ToFloat64(r.journal.m.claims.left.WithLabelValues("stuck")) == 1 && testutil.ToFloat64(r.journal.m.claims.oldest) > 0
	})
	// An audit that is under way may have found two of them first.
	m := r.journal.m.claims
	if n := r.claimsOf("completed") + testutil.ToFloat64(m.judged.WithLabelValues("ours")); n < 2 || r.claimsOf("released") != 1 || testutil.ToFloat64(m.replaced) != 1 || testutil.ToFloat64(m.settled) < 1 {
		t.Errorf("completed %v, released %v, replaced %v, settled %v", n, r.claimsOf("released"), testutil.ToFloat64(m.replaced), testutil.ToFloat64(m.settled))
	}
}

// TestAuditsAskTheLinearizer: what another region counts, or nobody has decided, gets no entry; what is ours is entered and
// settled; and while the linearizer is away the audit waits.
func TestAuditsAskTheLinearizer(t *testing.T) {
	l, s := newLinear(t), newStore()
	nobody := plantBatch(t, s, batch("nobody", 0, 9))
	copied := plantBatch(t, s, batch("copied", 0, 9))
	l.do(claims.Held, claims.DoClaim, copied, "west", 1)
	l.do(claims.Decided, claims.DoComplete, copied, "west", 1)
	loser := plantBatch(t, s, batch("loser", 0, 9))
	winner, _ := other(loser.Identity)
	l.do(claims.Held, claims.DoClaim, winner, "west", 2)
	l.do(claims.Decided, claims.DoComplete, winner, "west", 2)
	open := plantBatch(t, s, batch("open", 0, 9))
	l.do(claims.Held, claims.DoClaim, open, "west", 3)
	l.away.Store(true)

	cfg := regional("east")
	cfg.Audit.AtStart = true
	r := startWith(t, cfg, Deps{Store: s, Claims: l})
	eventually(t, "the linearizer is asked", func() bool { return l.asked.Load() > 4 })
	c := r.client()
	if n := entriesOf(t, s); n != 0 {
		t.Errorf("%d entries while nobody answers", n)
	}
	l.away.Store(false)
	eventually(t, "the audit has finished", func() bool {
		full, err := audit.History(bg, s, audit.Full, 1)
		must(t, err)
		return len(full) == 1 && full[0].Finished()
	})
	eventually(t, "what is ours is counted", func() bool { return r.ledgerOf(c, "nobody").GetRecordCount() == 10 })
	eventually(t, "and settled", func() bool { return l.state(nobody.Identity) == claims.Settled })
	full, err := audit.History(bg, s, audit.Full, 1)
	must(t, err)
	if f := full[0]; f.Journalled != 1 || f.Copies != 1 || f.CopyBytes != copied.FrameBytes || f.Quarantined != 1 || f.Undecided != 1 {
		t.Errorf("%+v", f.Record)
	}
	if _, err := s.Head(bg, layout.Quarantine(loser.Identity, loser.FrameSHA256)); err != nil {
		t.Errorf("the loser: %v", err)
	}
	for _, agent := range []string{"copied", "loser", "open"} {
		if n := r.ledgerOf(c, agent).GetRecordCount(); n != 0 {
			t.Errorf("%s: %d records are counted", agent, n)
		}
	}
	// The other region gives its claim up; the check that follows the audit finds that.
	l.do(claims.Released, claims.DoRelease, open, "west", 3)
	eventually(t, "what was open is ours", func() bool { return r.ledgerOf(c, "open").GetRecordCount() == 10 })
	eventually(t, "and settled", func() bool { return l.state(open.Identity) == claims.Settled })
	if n := r.checked("entered"); n != 1 {
		t.Errorf("%v were entered by a check", n)
	}
}

// TestALinearizerThatDenies: a reconciler whose credentials are refused, or bound to other regions, is not ready: nobody goes on with the
// claims of its region. One that is away is no such thing.
func TestALinearizerThatDenies(t *testing.T) {
	l, s := newLinear(t), newStore()
	l.denies.Store(true)
	r := startWith(t, regional("east"), Deps{Store: s, Claims: l})
	ready := func() string {
		resp, err := http.Get(r.url("/-/ready"))
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return fmt.Sprintf("%d %s", resp.StatusCode, b)
	}
	eventually(t, "it to say so", func() bool {
		got := ready()
		return strings.HasPrefix(got, "503 ") && strings.Contains(got, "linearizer")
	})
	l.away.Store(true)
	l.denies.Store(false)
	asked := l.asked.Load()
	eventually(t, "another scan", func() bool { return l.asked.Load() > asked })
	if got := ready(); !strings.HasPrefix(got, "503 ") {
		t.Errorf("no answer is no permission: %s", got)
	}
	l.away.Store(false)
	eventually(t, "it to be ready", func() bool { return strings.HasPrefix(ready(), "200 ") })
	l.away.Store(true)
	asked = l.asked.Load()
	eventually(t, "further scans", func() bool { return l.asked.Load() > asked+2 })
	if got := ready(); !strings.HasPrefix(got, "200 ") {
		t.Errorf("one that is away: %s", got)
	}
}

// entriesOf counts the entries of a journal.
func entriesOf(t testing.TB, s objstore.Store) (n int) {
	t.Helper()
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: testAuthority,
		Segment: func(_ context.Context, seg *journal.Segment) error { n += len(seg.Entries); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { n += len(es); return nil },
	})
	must(t, err)
	_, err = f.Poll(bg)
	must(t, err)
	return n
}

// TestTwoRegionsCountEachBatchOnce: both have the manifest of each batch, whose collectors died; the reconcilers of both, two of
// one region, go on with them at the same time.
func TestTwoRegionsCountEachBatchOnce(t *testing.T) {
	l, east, west := newLinear(t), newStore(), newStore()
	const n = 60
	for i := range n {
		id := batch(fmt.Sprint("a", i), 0, 9)
		m := plantBatch(t, east, id)
		plantBatch(t, west, id)
		if i%3 > 0 {
			l.do(claims.Held, claims.DoClaim, m, []claims.Region{"", "east", "west"}[i%3], byte(i+1))
		}
	}
	var all []*running
	for _, r := range []struct {
		region claims.Region
		s      objstore.Store
	}{{"east", east}, {"west", west}, {"west", west}} {
		cfg := regional(r.region)
		cfg.Audit.AtStart = true
		all = append(all, startWith(t, cfg, Deps{Store: r.s, Claims: l}))
	}
	eventually(t, "everything is settled", func() bool {
		for i := range n {
			if l.state(batch(fmt.Sprint("a", i), 0, 9)) != claims.Settled {
				return false
			}
		}
		return true
	})
	ce, cw := all[0].client(), all[1].client()
	for i := range n {
		agent := fmt.Sprint("a", i)
		eventually(t, agent+" is counted", func() bool {
			return all[0].ledgerOf(ce, agent).GetRecordCount()+all[1].ledgerOf(cw, agent).GetRecordCount() >= 10
		})
		if e, w := all[0].ledgerOf(ce, agent).GetRecordCount(), all[1].ledgerOf(cw, agent).GetRecordCount(); e+w != 10 {
			t.Errorf("%s: %d in one region and %d in the other", agent, e, w)
		}
	}
}

// TestWhatIsElsewhere counts nothing, has no derived keys, and is not looked for.
func TestWhatIsElsewhere(t *testing.T) {
	s := newStore()
	m, _ := manifest(batch("a", 0, 9))
	e := m.Entry(journal.Elsewhere)
	e.HomeRegion, e.Generation = "west", 0
	must(t, journaltest.Append(bg, s, testAuthority, e))
	must(t, journaltest.Append(bg, s, testAuthority, plantBatch(t, s, batch("b", 0, 9)).Entry(journal.Accepted)))
	cfg := busy()
	r := start(t, cfg, s)
	c := r.client()
	eventually(t, "the other batch is counted", func() bool { return r.ledgerOf(c, "b").GetRecordCount() == 10 })
	eventually(t, "the scrub has checked the other frame, in two passes", func() bool { return r.scrubber.Checked() >= 2 })
	if n := r.scrubber.Suspects(); n != 0 {
		t.Errorf("%d frames are missed", n)
	}
	if n := r.ledgerOf(c, "a").GetRecordCount(); n != 0 {
		t.Errorf("%d records", n)
	}
	if d := derived(t, s); len(d) != 3 {
		t.Errorf("derived keys: %v", d)
	}
}

// TestRegionsAreOff: without a region nothing is asked, and no metric of claims is there.
func TestRegionsAreOff(t *testing.T) {
	s := newStore()
	plantBatch(t, s, batch("a", 0, 9))
	cfg := following()
	cfg.Audit.AtStart = true
	r := start(t, cfg, s)
	c := r.client()
	eventually(t, "the audit enters what it finds", func() bool { return r.ledgerOf(c, "a").GetRecordCount() == 10 })
	if r.journal.m.claims != nil || r.journal.checks.m != nil {
		t.Error("there are metrics of claims")
	}
	if n, err := testutil.GatherAndCount(r.tel.Registry, "lightmetrics_reconciler_claims_total"); n != 0 || err != nil {
		t.Errorf("%d metrics, %v", n, err)
	}
}

func TestSettingsOfRegions(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a region without a coordinator": func(c *Config) { c.Coordinator.Addresses = nil }, "a coordinator without a region": func(c *Config) { c.Region = "" },
		"a region of capitals": func(c *Config) { c.Region = "East" }, "no interval": func(c *Config) { c.Claims.Interval = 0 }, "no age": func(c *Config) { c.Claims.Age = 0 },
		"no time of take-over": func(c *Config) { c.Claims.TakeOver = -1 }, "no workers": func(c *Config) { c.Claims.Workers = 0 },
	} {
		c := regional("east")
		must(t, c.Validate())
		change(&c)
		if c.Validate() == nil {
			t.Error(name)
		}
	}
}

// TestCrashAtClaims ends a reconciler at each of the moments between the steps of a claim, at its first and its second hit. The
// next scans bring every claim to its end, and the journal has each batch.
func TestCrashAtClaims(t *testing.T) {
	points := 0
	for _, p := range failpoint.Points() {
		if !strings.HasPrefix(p.Name, "reconciler.claims.") {
			continue
		}
		points++
		for nth := 1; nth <= 2; nth++ {
			l, s := newLinear(t), newStore()
			var all []accept.Manifest
			for i := range 3 {
				m := plantBatch(t, s, batch(fmt.Sprint("a", i), 0, 9))
				l.do(claims.Held, claims.DoClaim, m, "east", byte(i+1))
				all = append(all, m)
			}
			must(t, failpoint.Arm(fmt.Sprintf("%s=%s@%d", p.Name, failpoint.Panic, nth)))
			cfg := regional("east")
			cfg.Claims.Workers = 1
			crashes := 0
			life := func() (died bool) {
				defer func() {
					if r := recover(); r != nil {
						if !strings.Contains(fmt.Sprint(r), p.Name) {
							panic(r)
						}
						died = true
					}
				}()
				tel := telemetry.Discard()
				k := newJournalKeeper(cfg, "r1", s, tel.Log, newJournalMetrics(tel.Registry, func() int { return 0 }), sinks{linearizer: l, removed: func(context.Context, identity.Batch) (bool, error) { return false, nil }})
				k.m.claims = newClaimMetrics(tel.Registry)
				c, err := k.openClaims(testAuthority)
				must(t, err)
				// Twice, so that every moment is hit twice.
				for range 2 {
					must(t, c.pass(bg, fitting))
					m := plantBatch(t, s, batch(fmt.Sprint("b", crashes, len(all)), 0, 9))
					l.do(claims.Held, claims.DoClaim, m, "east", byte(100+len(all)))
					all = append(all, m)
					time.Sleep(2 * time.Millisecond) // claims of this age are looked at
				}
				must(t, c.pass(bg, fitting))
				return false
			}
			time.Sleep(2 * time.Millisecond)
			for life() {
				if crashes++; crashes > 1 {
					t.Fatalf("%s: %d crashes", p.Name, crashes)
				}
			}
			_ = failpoint.Arm("")
			if crashes != 1 {
				t.Errorf("%s at hit %d: %d crashes", p.Name, nth, crashes)
			}
			for _, m := range all {
				if st := l.state(m.Identity); st != claims.Settled {
					t.Errorf("%s at hit %d: %s is %s", p.Name, nth, m.Identity, st)
				}
			}
			if n := entriesOf(t, s); n < len(all) {
				t.Errorf("%s at hit %d: %d entries of %d batches", p.Name, nth, n, len(all))
			}
		}
	}
	if points != 3 {
		t.Errorf("%d points", points)
	}
}

// TestABucketThatWasARegions: where the linearizer was dissolved, manifests that lost against another region's are not entered, which
// their quarantine records tell; all others are, whoever asks for them: an audit, or the check of an event.
func TestABucketThatWasARegions(t *testing.T) {
	ended := regions.Record{Region: "east", Number: 4, ID: claims.ID{1}, Regions: []claims.Region{"east"}, Retired: []regions.Retired{{Name: "west", Done: true}}, Cluster: 7, Dissolved: true}
	plant := func(s objstore.Store, agent string, body func(accept.ConflictRecord) []byte) {
		m := plantBatch(t, s, batch(agent, 0, 9))
		w, _ := other(m.Identity)
		c := accept.ConflictRecord{
			AuthorityID: m.AuthorityID, Identity: m.Identity, AcceptedBlobKey: w.RawBlobKey, AcceptedSHA256: w.FrameSHA256, SubmittedBlobKey: m.RawBlobKey, SubmittedSHA256: m.FrameSHA256,
			AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 9, CollectorID: "c",
		}
		create(t, s, layout.Quarantine(m.Identity, m.FrameSHA256), body(c))
	}
	run := func(s objstore.Store) *running {
		cfg := following()
		cfg.Audit.AtStart = true
		r := start(t, cfg, s)
		eventually(t, "the audit has finished", func() bool {
			full, err := audit.History(bg, s, audit.Full, 1)
			must(t, err)
			return len(full) == 1 && full[0].Finished()
		})
		eventually(t, "what nobody has refused is counted", func() bool { return r.ledgerOf(r.client(), "ours").GetRecordCount() == 10 })
		return r
	}
	for _, dissolved := range []bool{true, false} {
		s := newStore()
		plantBatch(t, s, batch("ours", 0, 9))
		plant(s, "loser", accept.ConflictRecord.Marshal)
		plant(s, "opaque", func(accept.ConflictRecord) []byte { return []byte("{") })
		if dissolved {
			create(t, s, layout.RegionsKey, ended.Marshal())
		}
		r := run(s)
		want := uint64(10)
		if dissolved {
			want = 0
		}
		for _, agent := range []string{"loser", "opaque"} {
			if n := r.ledgerOf(r.client(), agent).GetRecordCount(); n != want {
				t.Errorf("dissolved %v: %d records of the %s batch are counted, want %d", dissolved, n, agent, want)
			}
		}
	}
}
