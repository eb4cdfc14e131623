package regions

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
)

// Sizes: histories, operations of each, and how many histories there are at once, under the same faults; in CI and in
// make soak.
const (
	fewHistories, allHistories   = 1, 500
	fewOperations, allOperations = 300, 2_000
	fewTogether, allTogether     = 1, 10
)

// TestOneAnswerOverRegions: clients submit the same identities to the collectors of three regions at once, with equal
// bytes, with other bytes and with ranges that overlap, while links between regions are cut, processes are killed and
// stopped, and etcd is wiped and restored from three copies of different age. For each history all answers are those of
// one register for each identity; afterwards every acknowledged batch is in its home region, counted there and
// nowhere else, and no claim is held. Collectors' writes to their stores are late, doubled or not answered meanwhile;
// claims are folded, and idle boots forgotten, within seconds.
func TestOneAnswerOverRegions(t *testing.T) {
	t.Parallel()
	histories, operations := size(t, "HISTORIES", fewHistories, allHistories), size(t, "OPERATIONS", fewOperations, allOperations)
	together := size(t, "TOGETHER", fewTogether, allTogether)
	seed, rnd := seeded(t)
	late := newLateStores(t, rnd)
	r := newRegions(t, cluster.RegionsOptions{Between: late.between, Options: cluster.Options{Adjust: foldSoon}})
	rounds := (histories + together - 1) / together
	ctx := within(t, time.Duration(rounds)*15*time.Minute)
	must(t, r.Start(ctx))
	total := map[string]int{}
	done := 0
	for n := range rounds {
		f := newFaults(t, r, rnd, total)
		contests := make([]load.ContestOptions, min(together, histories-done))
		for i := range contests {
			contests[i] = contestOptions(t, r, seed+uint64(done), fmt.Sprintf("history-%d", done), operations)
			contests[i].Pause = time.Duration(together) * contests[i].Pause
			done++
		}
		began := time.Now()
		oneRound(ctx, t, f, contests)
		t.Logf("round %d of %d: %d histories after %v", n+1, rounds, done, time.Since(began).Round(time.Second))
		if t.Failed() {
			t.FailNow()
		}
	}
	checkMetrics(t, r)
	t.Logf("%d histories of %d operations and more; faults %v; writes to the stores %v", histories, operations, total, late.counts())
	if c := late.counts(); c["late"] == 0 || c["twice"] == 0 || c["answer lost"] == 0 {
		t.Errorf("no write to a store came late, twice or without an answer: %v", c)
	}
}

// contestOptions of a history under faults. PAUSE is the milliseconds between two submissions of a client: a machine with nothing else to do
// plays more histories in the same time with fewer.
func contestOptions(t *testing.T, r *cluster.Regions, seed uint64, name string, operations int) load.ContestOptions {
	return load.ContestOptions{Seed: seed, Name: name, Operations: operations, Across: true, Pause: time.Duration(size(t, "PAUSE", 30, 30)) * time.Millisecond, Addresses: addresses(r)}
}

// foldSoon has claims folded and idle boots forgotten while a history lasts.
func foldSoon(_ string, s map[string]any) {
	if id, ok := s["identity"].(map[string]any); ok {
		id["settle_horizon"], id["idle"] = "3s", "10s"
	}
}

// oneRound is some contests under every kind of fault, with three copies of etcd that are taken between them and restored
// later.
func oneRound(ctx context.Context, t *testing.T, f *faults, of []load.ContestOptions) {
	t.Helper()
	over := make(chan struct{})
	var contests []*load.Contest
	for _, o := range of {
		o.Until = over
		contests = append(contests, load.StartContest(ctx, o))
	}
	kinds := f.kinds()
	f.rnd.Shuffle(len(kinds), func(i, k int) { kinds[i], kinds[k] = kinds[k], kinds[i] })
	third := len(kinds) / 3
	var todo []fault
	for k := range 3 {
		todo = append(todo, fault{fmt.Sprintf("copy %d of etcd", k), f.takeCopy})
		todo = append(todo, kinds[k*third:(k+1)*third]...)
	}
	err := f.run(ctx, append(todo, f.restores(0)...))
	must(t, f.r.Heal())
	close(over)
	if err != nil {
		for _, c := range contests {
			c.Stop()
		}
		t.Fatal(err)
	}
	for _, c := range contests {
		judge(ctx, t, f.r, c)
	}
}

// judge waits until every submission is answered, and compares the system with the answers.
func judge(ctx context.Context, t *testing.T, r *cluster.Regions, contest *load.Contest) {
	t.Helper()
	fctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	began := time.Now()
	seen, err := contest.Finish(fctx)
	if err != nil {
		t.Error(err)
	}
	answered := time.Since(began)
	stats, _ := seen.Calls.Check() // its error is in Finish's
	report, err := load.CheckRegions(ctx, r, seen)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d submissions, %d late; %d identities acknowledged, %d told duplicate, %d conflict; histories %+v; the last answer after %v; %+v after %v",
		seen.Submissions, seen.Late, len(seen.Acked), seen.Duplicates, seen.Conflicts, stats, answered.Round(time.Millisecond),
		report, time.Since(began).Round(time.Millisecond))
	if len(seen.Acked) == 0 || seen.Duplicates == 0 || seen.Conflicts == 0 || stats.Dropped > 0 {
		t.Error("the load shows too little")
	}
	homes := 0
	for _, n := range report.Counted {
		if n > 0 {
			homes++
		}
	}
	if homes < 2 && !t.Failed() {
		t.Errorf("all batches are counted in %d region: %v", homes, report.Counted)
	}
}

// TestTheJudgeSeesTwoAnswers: without a linearizer each region has its own answer, and the same load and the same judge
// must see that. Otherwise what they do not find would prove nothing.
func TestTheJudgeSeesTwoAnswers(t *testing.T) {
	t.Parallel()
	seed, _ := seeded(t)
	r := newRegions(t, cluster.RegionsOptions{Acceptance: "s3_manifest"})
	ctx := within(t, 10*time.Minute)
	must(t, r.Start(ctx))
	contest := load.StartContest(ctx, load.ContestOptions{Seed: seed, Name: "apart", Operations: 150, Addresses: addresses(r)})
	seen, err := contest.Finish(ctx)
	if err == nil || !strings.Contains(err.Error(), "not those of a write-once register") || !strings.Contains(err.Error(), "was acknowledged with") {
		t.Errorf("the history says %v", err)
	}
	err = load.CompareRegions(ctx, r, seen)
	if err == nil || !strings.Contains(err.Error(), "is counted by 3 regions") && !strings.Contains(err.Error(), "is counted by 2 regions") {
		t.Errorf("the regions' journals say %v", err)
	}
}

// checkMetrics: what the dashboard and the alerts want to know of several regions is there.
func checkMetrics(t *testing.T, r *cluster.Regions) {
	t.Helper()
	var there strings.Builder
	for _, i := range r.Left() {
		c := r.Of[i]
		addrs := []string{c.Addr.CoordinatorHTTP, c.Addr.ReconcilerHTTP, c.Addr.QueryHTTP}
		for _, a := range c.Addr.Collectors {
			addrs = append(addrs, a.HTTP)
		}
		for _, addr := range addrs {
			resp, err := http.Get("http://" + addr + "/metrics")
			must(t, err)
			_, err = io.Copy(&there, resp.Body)
			resp.Body.Close()
			must(t, err)
		}
	}
	if n := strings.Count(there.String(), "\nlightmetrics_coordinator_identity_open 1\n"); n != len(r.Left()) {
		t.Errorf("%d coordinators decide identities", n)
	}
	wanted := map[string]bool{}
	for _, file := range []string{"dashboards/lightmetrics.json", "alerts/lightmetrics.yaml"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "deploy", filepath.FromSlash(file)))
		must(t, err)
		for _, n := range regexp.MustCompile(`\blightmetrics_[a-z_]+`).FindAllString(string(b), -1) {
			wanted[n] = cluster.OfRegions.MatchString(n)
		}
	}
	n := 0
	for name, of := range wanted {
		if !of {
			continue
		}
		if n++; !strings.Contains(there.String(), "\n"+name+"{") && !strings.Contains(there.String(), "\n"+name+" ") {
			t.Errorf("no process of the regions has %s", name)
		}
	}
	if n < 20 {
		t.Errorf("%d metrics of several regions", n)
	}
}
