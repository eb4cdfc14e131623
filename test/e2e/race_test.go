package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// racers is how many identities are raced for at once, each by two senders.
const racers = 16

// TestTwoCollectorsRaceOneIdentity: each identity is sent to two collectors at the same
// time, with equal frames every other time, else with different ones.
func TestTwoCollectorsRaceOneIdentity(t *testing.T) {
	t.Parallel()
	n := size(t, "RACES", 10_000, 100_000)
	c := newCluster(t, cluster.Options{Collectors: 2})
	must(t, c.StartStore(within(t, time.Minute)))
	race(t, c, n)
}

// TestTwoCollectorsRaceOneIdentityOverVersityGW is the same over a store of other hands.
func TestTwoCollectorsRaceOneIdentityOverVersityGW(t *testing.T) {
	t.Parallel()
	n := size(t, "RACES", 4_000, 50_000)
	gw := peers.StartVersityGW(t)
	race(t, newCluster(t, cluster.Options{Collectors: 2, Bucket: peers.Bucket,
		StoreEndpoint: gw.Endpoint, AccessKeyID: gw.AccessKeyID, SecretAccessKey: config.Secret(gw.SecretAccessKey)}), n)
}

// inline lets the named collectors have their manifests carry frames.
func inline(collectors ...string) func(string, map[string]any) {
	return func(process string, settings map[string]any) {
		if slices.Contains(collectors, process) {
			settings["inline_below"] = "16KiB"
		}
	}
}

// TestTwoCollectorsRaceOneIdentityInline is the same where one collector lets manifests carry frames and the other writes
// blobs, and where both do: both race for the same keys.
func TestTwoCollectorsRaceOneIdentityInline(t *testing.T) {
	t.Parallel()
	for name, collectors := range map[string][]string{"one": {"collector-2"}, "both": {"collector-1", "collector-2"}} {
		t.Run(name, func(t *testing.T) {
			n := size(t, "RACES", 2_000, 50_000)
			c := newCluster(t, cluster.Options{Collectors: 2, Adjust: inline(collectors...)})
			must(t, c.StartStore(within(t, time.Minute)))
			race(t, c, n)
			inlined := 0.0
			for i := range c.Collectors {
				inlined += metric(within(t, time.Minute), t, c.Addr.Collectors[i].HTTP, "lightmetrics_ingest_inlined_total")
			}
			if most := float64(n / racers * racers); inlined == 0 || inlined > most || len(collectors) == 2 && inlined < most*9/10 {
				t.Errorf("%v of %v manifests carry their frames", inlined, most)
			}
		})
	}
}

// tally counts outcomes of a pair, and answers that were lost.
type tally struct {
	equal, different map[string]int
	lost             int
}

func race(t *testing.T, c *cluster.Cluster, n int) {
	for i := range c.Collectors {
		must(t, c.StartCollector(within(t, time.Minute), i))
	}
	start := time.Now()
	ctx := within(t, 10*time.Minute)
	var mu sync.Mutex
	total := tally{equal: map[string]int{}, different: map[string]int{}}
	var wg sync.WaitGroup
	for r := range racers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got := raceOneBoot(ctx, t, c, r, n/racers)
			mu.Lock()
			defer mu.Unlock()
			for k, v := range got.equal {
				total.equal[k] += v
			}
			for k, v := range got.different {
				total.different[k] += v
			}
			total.lost += got.lost
		}()
	}
	wg.Wait()
	pairs := n / racers * racers
	t.Logf("%d identities in %v: equal frames %v, different frames %v; %d acceptances were told again", pairs,
		time.Since(start).Round(time.Millisecond), total.equal, total.different, total.lost)
	if len(total.equal) != 1 || total.equal["ACCEPTED+DUPLICATE"] == 0 {
		t.Errorf("equal frames: %v, want only ACCEPTED+DUPLICATE", total.equal)
	}
	if len(total.different) != 1 || total.different["ACCEPTED+IDENTITY_CONFLICT"] == 0 {
		t.Errorf("different frames: %v, want only ACCEPTED+IDENTITY_CONFLICT", total.different)
	}
	store, err := c.OpenStore(ctx)
	must(t, err)
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	conflicts := total.different["ACCEPTED+IDENTITY_CONFLICT"]
	if report.Manifests != uint64(pairs) || report.Quarantined != uint64(conflicts) {
		t.Errorf("bucket has %d manifests and %d quarantine records, want %d and %d", report.Manifests, report.Quarantined, pairs, conflicts)
	}
}

// raceOneBoot races the identities of one boot, one after the other.
func raceOneBoot(ctx context.Context, t *testing.T, c *cluster.Cluster, r, n int) tally {
	boot := identity.Boot{Agent: fmt.Sprintf("racer-%d", r), Boot: "boot"}
	senders := [2]*load.Sender{load.NewSender(boot, c.Addr.Collectors[0].GRPC), load.NewSender(boot, c.Addr.Collectors[1].GRPC)}
	defer senders[0].Close()
	defer senders[1].Close()
	got := tally{equal: map[string]int{}, different: map[string]int{}}
	at := time.Unix(1_700_000_000, 0)
	for i := range n {
		seq := uint64(i*4 + 1)
		frames := [2][]byte{makeFrame(t, boot, "race", seq, 2, at, float64(i))}
		into := got.equal
		if frames[1] = frames[0]; i%2 == 1 {
			frames[1], into = makeFrame(t, boot, "race", seq, 2, at, float64(-i)), got.different
		}
		var results [2]*ingestv1.BatchResult
		var again [2]bool
		var errs [2]error
		var wg sync.WaitGroup
		for k := range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				results[k], again[k], errs[k] = send(ctx, senders[k], frames[k])
			}()
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Errorf("%s %d: %v", boot, seq, err)
				return got
			}
		}
		name, lost := pair(results, again)
		into[name]++
		if lost {
			got.lost++
		}
		checkConflict(t, results, frames)
	}
	return got
}

// send sends until there is an outcome, and says whether it was sent more than once: on a
// slow machine an answer comes too late.
func send(ctx context.Context, s *load.Sender, f []byte) (r *ingestv1.BatchResult, again bool, err error) {
	for {
		r, err := s.Try(ctx, f)
		if err == nil && r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
			return r, again, nil
		}
		if err != nil {
			s.Close()
		}
		again = true
		select {
		case <-ctx.Done():
			return nil, again, errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pair names both outcomes, the smaller status first. Where nobody is told ACCEPTED it
// was said in an answer that was lost: who sent again is told DUPLICATE of its own.
func pair(rs [2]*ingestv1.BatchResult, again [2]bool) (name string, lost bool) {
	const accepted, duplicate = ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	is := [2]ingestv1.BatchStatus{rs[0].GetStatus(), rs[1].GetStatus()}
	for k := range is {
		if is[0] != accepted && is[1] != accepted && is[k] == duplicate && again[k] {
			is[k], lost = accepted, true
		}
	}
	a, b := min(is[0], is[1]), max(is[0], is[1])
	const prefix = len("BATCH_STATUS_")
	return a.String()[prefix:] + "+" + b.String()[prefix:], lost
}

// checkConflict: a conflict names both hashes, the winner's and its own.
func checkConflict(t *testing.T, rs [2]*ingestv1.BatchResult, frames [2][]byte) {
	for k, r := range rs {
		if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
			continue
		}
		mine, other := identity.Sum(frames[k]), identity.Sum(frames[1-k])
		cf := r.GetConflict()
		if string(cf.GetSubmittedSha256()) != string(mine[:]) || string(cf.GetAcceptedSha256()) != string(other[:]) {
			t.Errorf("conflict names submitted %x, accepted %x; want %s, %s", cf.GetSubmittedSha256(), cf.GetAcceptedSha256(), mine, other)
		}
	}
}
