package query_test

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// counters are the batches of an agent: some counters every 15 s from start to end, a batch of 5 minutes.
func counters(b testing.TB, agent string, n int, start, end time.Time) (out []built, batches []publishedtest.Batch) {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	seq := uint64(1)
	for at := start; at.Before(end); at = at.Add(5 * time.Minute) {
		w := frame.NewBuilder()
		must(w.SetResource(series.Label{Name: "instance", Value: agent}))
		for s := range n {
			id, err := w.AddSeries([]series.Label{{Name: "__name__", Value: "c_total"}, {Name: "s", Value: fmt.Sprint(s)}}, series.Counter, "", 0)
			must(err)
			for k := range 20 {
				t := at.Add(time.Duration(k) * 15 * time.Second)
				must(w.Append(id, t.UnixNano(), float64(t.Unix()-start.Unix())*float64(s+1)))
			}
		}
		batch, err := w.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
		must(err)
		seq = batch.Identity.SeqEnd + 1
		raw, err := frame.Encode(nil, batch)
		must(err)
		own := &frame.Batch{}
		must(frame.Decode(raw, own, frame.Limits{}))
		sum := identity.Sum(raw)
		out = append(out, built{frame: raw, manifest: accept.Manifest{AuthorityID: "test", Identity: own.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)),
			RawBlobKey: layout.Blob(sum, 0), AcceptedAt: at.UnixNano(), CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
			RecordCount: own.Identity.Count(), MinTime: at.UnixNano(), MaxTime: at.Add(5*time.Minute - 15*time.Second).UnixNano()}})
		batches = append(batches, publishedtest.Batch{Frame: own, AcceptedAt: at.UnixNano()})
	}
	return out, batches
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRegions: queries of one node that has everything beside the same over three regions with a third of the agents
// each, on one machine: what it costs all nodes together. The samples of 60 agents with 20 series, 6 h, of which 1.5 h are in memory.
func BenchmarkRegions(b *testing.B) {
	const agents, each = 60, 20
	end := time.Now().Truncate(time.Hour).Add(30 * time.Minute)
	now := func() time.Time { return end }
	fill := func(a *authority, mine func(i int) bool) {
		a.rollups()
		var batches []publishedtest.Batch
		for i := range agents {
			if mine(i) {
				bs, ps := counters(b, fmt.Sprintf("host%02d", i), each, end.Add(-6*time.Hour), end)
				a.accept(bs...)
				batches = append(batches, ps...)
			}
		}
		for _, h := range publishedtest.Hours(batches) {
			if h < timegrid.HourOf(end.UnixMilli())-1 {
				a.publish(h, 1, batches)
			}
		}
	}
	whole := newAuthority(b)
	fill(whole, func(int) bool { return true })
	one := startAt(b, whole, now, nil)
	<-one.Complete()
	<-one.BlocksRead()
	names := []string{"ap", "eu", "us"}
	f := newFleet(b, names, now, func(region string, a *authority) {
		fill(a, func(i int) bool { return names[i%3] == region })
	}, nil)
	for _, q := range []struct {
		name, expr   string
		from         time.Duration
		step, offset time.Duration
	}{
		{"instant selector", `sum(c_total)`, 0, 0, 0},
		{"instant, of memory", `sum(rate(c_total[5m]))`, 0, 0, 0},
		{"1 h by 1 m, of memory", `sum by (s) (rate(c_total[5m]))`, time.Hour, time.Minute, 0},
		{"1 h by 1 m, engine", `quantile by (s) (0.9, irate(c_total[5m]))`, time.Hour, time.Minute, 0},
		{"6 h by 1 m, of blocks", `sum by (s) (rate(c_total[5m30s]))`, 6 * time.Hour, time.Minute, 0},
		{"4 h by 1 h, of rows", `sum by (s) (rate(c_total[1h]))`, 4 * time.Hour, time.Hour, 90 * time.Minute},
	} {
		ask := func(n *node) {
			to := end.Add(-q.offset)
			params := []string{"query", q.expr, "time", unix(to)}
			path := "/api/v1/query"
			if q.step > 0 {
				path, params = "/api/v1/query_range", []string{"query", q.expr, "start", unix(to.Add(-q.from)), "end", unix(to), "step", strconv.Itoa(int(q.step.Seconds()))}
			}
			if e := n.get(path, params...); e.Status != "success" || e.Lightmetrics.Partial {
				b.Fatalf("%s %+v", e.Error, e.Lightmetrics)
			}
		}
		run := func(name string, n *node) {
			b.Run(q.name+"/"+name, func(b *testing.B) {
				ask(n)
				sum := func(metric string) (v float64) {
					for _, r := range names {
						if n != one && r != "eu" {
							v += n.number(fmt.Sprintf("%s{region=%q}", metric, r))
						}
					}
					return v
				}
				bytes, values := sum("lightmetrics_query_region_bytes_total"), sum("lightmetrics_query_region_samples_total")
				used := cpu()
				for b.Loop() {
					ask(n)
				}
				b.ReportMetric(float64((cpu()-used).Microseconds())/float64(b.N)/1000, "cpu-ms/op")
				if n != one {
					b.ReportMetric((sum("lightmetrics_query_region_bytes_total")-bytes)/float64(b.N)/1024, "KiB/op")
					b.ReportMetric((sum("lightmetrics_query_region_samples_total")-values)/float64(b.N), "values/op")
				}
			})
		}
		run("one node", one)
		run("three regions", f.nodes["eu"])
	}
}
