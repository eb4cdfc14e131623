package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// TestNonPartialAnswersAreComplete kills collectors, reconciler, query and store while
// answers are sampled. An answer that is not marked partial has every sample that was
// acknowledged before its complete_through, and no answer counts a sample twice.
func TestNonPartialAnswersAreComplete(t *testing.T) {
	t.Parallel()
	rounds := size(t, "ROUNDS", 14, 300)
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("SEED=%d ROUNDS=%d", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 2))
	c := newCluster(t, cluster.Options{Collectors: 2, Adjust: func(process string, s map[string]any) {
		switch process {
		case "query":
			// Polls often, so that complete_through is close behind.
			f := s["follow"].(map[string]any)
			f["poll_interval"], f["idle_interval"] = "200ms", "1s"
			s["stale_after"] = "3s"
		case "reconciler":
			s["journal"] = map[string]any{"poll_interval": "1s"}
		}
	}})
	ctx := within(t, time.Duration(rounds)*10*time.Second+2*time.Minute)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))

	w := &witness{c: c, fleet: load.StartFleet(ctx, c, load.FleetOptions{Seed: seed})}
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for sctx.Err() == nil {
			w.look(sctx, t)
		}
	}()
	victims := []struct {
		process **proc.Process
		restart func(context.Context) error
	}{
		{&c.Collectors[0], func(ctx context.Context) error { return c.StartCollector(ctx, 0) }},
		{&c.Collectors[1], func(ctx context.Context) error { return c.StartCollector(ctx, 1) }},
		{&c.Reconciler, c.StartReconciler},
		{&c.Query, c.StartQuery},
		{&c.Store, c.StartStore},
	}
	for round := range rounds {
		time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
		v := victims[rnd.IntN(len(victims))]
		cluster.Kill(v.process)
		time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		if err := v.restart(ctx); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	sent, err := w.fleet.Stop()
	must(t, err)
	// In the end an answer must promise, and have, everything.
	all := time.Now()
	must(t, cluster.Poll(ctx, "an answer that has everything", func() (bool, error) {
		a, err := w.ask(ctx)
		if err != nil {
			return false, err
		}
		return !a.partial && a.through.After(all), fmt.Errorf("partial %v, complete through %s", a.partial, a.through)
	}))
	stop()
	wg.Wait()
	w.look(ctx, t)
	t.Logf("%d batches acknowledged; %d answers, %d partial, %d failed, %d promised something", len(sent.Acked), w.answers, w.partial, w.failed, w.proofs)
	if w.proofs == 0 {
		t.Error("no answer promised anything")
	}
}

// witness holds answers against what was acknowledged.
type witness struct {
	c     *cluster.Cluster
	fleet *load.Fleet

	answers, partial, failed, proofs int
}

type countAnswer struct {
	partial bool
	through time.Time
	hosts   map[string]int
}

// look asks once and judges the answer.
func (w *witness) look(ctx context.Context, t *testing.T) {
	before := w.fleet.AckedAt()
	a, err := w.ask(ctx)
	after := w.fleet.AckedAt()
	if err != nil {
		w.failed++
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		return
	}
	w.answers++
	const n = 2 * load.DefaultRows // samples of a batch
	most := map[string]int{}
	for id := range after {
		most[id.Agent] += n
	}
	for host, got := range a.hosts {
		// One batch of each sender may be accepted and not acknowledged yet.
		if got > most[host]+n {
			t.Errorf("%s: an answer counts %d samples, but %d are acknowledged and %d are on their way", host, got, most[host], n)
		}
	}
	if a.partial {
		w.partial++
		return
	}
	promised := map[string]int{}
	for id, at := range before {
		if at.Before(a.through) {
			promised[id.Agent] += n
		}
	}
	if len(promised) > 0 {
		w.proofs++
	}
	for host, want := range promised {
		if a.hosts[host] < want {
			t.Errorf("%s: an answer that is not partial has %d samples; %d were acknowledged before its complete_through %s",
				host, a.hosts[host], want, a.through.Format(time.RFC3339Nano))
		}
	}
}

// ask counts the fleet's samples by host.
func (w *witness) ask(ctx context.Context) (countAnswer, error) {
	a := countAnswer{hosts: map[string]int{}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	u := "http://" + w.c.Addr.QueryHTTP + "/api/v1/query?query=" + url.QueryEscape(`sum by (host) (count_over_time(fleet[2h]))`)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return a, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	var body struct {
		Status string
		Data   struct {
			Result []struct {
				Metric struct{ Host string }
				Value  [2]any
			}
		}
		Lightmetrics *struct {
			Partial bool
			Through time.Time `json:"complete_through"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return a, err
	}
	if body.Status != "success" || body.Lightmetrics == nil {
		return a, fmt.Errorf("status %q", body.Status)
	}
	a.partial, a.through = body.Lightmetrics.Partial, body.Lightmetrics.Through
	for _, r := range body.Data.Result {
		n, err := strconv.Atoi(fmt.Sprint(r.Value[1]))
		if err != nil {
			return a, err
		}
		a.hosts[r.Metric.Host] = n
	}
	return a, nil
}
