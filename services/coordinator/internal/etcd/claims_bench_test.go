package etcd

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// benchFor is how long a way of claiming runs in a round.
const benchFor = time.Second

// benchMembers starts members that fsync, and gives a client of them, and one that hands claims to the first of them directly, as
// a coordinator does whose member it is.
func benchMembers(b *testing.B, n int) (dialled, inProcess *Client) {
	b.Helper()
	cfgs := make([]*embed.Config, n)
	var cluster []string
	peers := freePorts(b, n)
	for i := range cfgs {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprint("m", i), b.TempDir()
		client, peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}, url.URL{Scheme: "http", Host: peers[i]}
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		c.TickMs, c.ElectionMs, c.QuotaBackendBytes = 100, 5000, 4<<30
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		cluster = append(cluster, c.Name+"="+peer.String())
		cfgs[i] = c
	}
	cfg := DefaultConfig()
	var first *embed.Etcd
	for _, c := range cfgs {
		c.InitialCluster = strings.Join(cluster, ",")
		e, err := embed.StartEtcd(c)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(e.Close)
		if first == nil {
			first = e
		}
		cfg.Endpoints = append(cfg.Endpoints, "http://"+e.Clients[0].Addr().String())
	}
	cl, err := Dial(context.Background(), cfg, "", discard)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cl.Close() })
	cl.Timeout = time.Minute
	d := newDirect(first.Server)
	b.Cleanup(d.close)
	return cl, &Client{Etcd: cl.Etcd, Timeout: cl.Timeout, direct: d}
}

// BenchmarkClaims compares one client that makes one claim per transaction over gRPC with many whose claims share transactions,
// handed to the member directly and over gRPC, over one member that fsyncs and over three. Each iteration is a round of all, one
// after the other, with one that also completes and settles; the figures are medians of the rounds.
func BenchmarkClaims(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			c, direct := benchMembers(b, members)
			benchClaims(b, NewClaimStore(c), NewClaimStore(direct))
		})
	}
}

func benchClaims(b *testing.B, kv, direct claims.KV) {
	const keys = claims.Keys("/bench/")
	if _, err := kv.Commit(b.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: firstEpoch.Marshal()}}}}}); err != nil {
		b.Fatal(err)
	}
	// Each claim is the next batch of one of 10,000 boots, which are new in each run: nothing is folded here, and claims of a boot that are
	// not would become more from run to run than there are of a boot that is.
	const boots = 10_000
	var next, run atomic.Uint64
	// What senders have ready.
	hash := identity.Sum([]byte("frame"))
	agents := make([]string, boots)
	for i := range agents {
		agents[i] = fmt.Sprintf("host-%d", i)
	}
	var boot atomic.Pointer[string]
	op := func() claims.Op {
		n := next.Add(1)
		o := claims.Op{Kind: claims.DoClaim, Hash: hash, Region: "east",
			Identity: identity.Batch{Agent: agents[n%boots], Boot: *boot.Load(), SeqStart: n / boots * 100, SeqEnd: n/boots*100 + 99}}
		binary.BigEndian.PutUint64(o.ID[:], n)
		return o
	}
	claimFor := func(kv claims.KV, ops, flights, clients, batch int, then ...claims.Kind) claimed {
		b.Helper()
		name := fmt.Sprintf("b%d", run.Add(1))
		boot.Store(&name)
		return claimFor(b, kv, keys, ops, flights, clients, batch, op, then...)
	}
	// As a coordinator's collector is paced while little is alive.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	figures := map[string][]float64{}
	note := func(name string, v float64) { figures[name] = append(figures[name], v) }
	for b.Loop() {
		one := claimFor(kv, 1, 1, 1, 1)
		// The order changes, so that neither way always follows a full load.
		var many, socket claimed
		if len(figures["ratio"])%2 == 0 {
			many, socket = claimFor(direct, 128, 8, 64, 32), claimFor(kv, 128, 8, 64, 32)
		} else {
			socket, many = claimFor(kv, 128, 8, 64, 32), claimFor(direct, 128, 8, 64, 32)
		}
		note("one-claims/s", one.rate)
		note("grouped-claims/s", many.rate)
		note("ratio", many.rate/one.rate)
		note("grpc-claims/s", socket.rate)
		note("grpc-cpu-us/claim", socket.cpu)
		note("grpc-p50-ms", socket.p50)
		note("direct-over-grpc", many.rate/socket.rate)
		sent := peerBytes(b)
		life := claimFor(direct, 128, 8, 64, 32, claims.DoComplete, claims.DoSettle)
		note("batches/s", life.rate)
		note("cpu-us/batch", life.cpu)
		note("peer-B/batch", (peerBytes(b)-sent)/life.n)
		note("one-p50-ms", one.p50)
		note("p50-ms", many.p50)
		note("p99-ms", many.p99)
		note("cpu-us/claim", many.cpu)
		note("one-cpu-us/claim", one.cpu)
	}
	for name, vs := range figures {
		slices.Sort(vs)
		b.ReportMetric(vs[len(vs)/2], name)
		if name == "ratio" {
			b.ReportMetric(vs[0], "ratio-least")
			b.ReportMetric(vs[len(vs)-1], "ratio-most")
		}
	}
}

// claimed is what a way of claiming did, n claims: claims a second, quantiles of a call in ms, CPU of everything here, etcd included, a claim in us.
type claimed struct{ rate, p50, p99, cpu, n float64 }

// claimFor has clients claim for a while, so many operations a call, and then bring the claims further.
func claimFor(b *testing.B, kv claims.KV, keys claims.Keys, ops, flights, clients, batch int, op func() claims.Op, then ...claims.Kind) claimed {
	cfg := claims.DefaultConfig()
	cfg.MaxOps, cfg.MaxFlights, cfg.MaxClaims = ops, flights, 1<<20
	l, err := linearizer.New(kv, linearizer.Options{Config: cfg, Keys: keys, Epoch: firstEpoch, Folds: mem.NoFolds{Epoch: firstEpoch.Number}})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(b.Context(), benchFor)
	defer cancel()
	type calls struct {
		took []time.Duration
		err  error
	}
	done := make(chan calls, clients)
	began, used := time.Now(), processTime(b)
	for range clients {
		go func() {
			var c calls
			for ctx.Err() == nil {
				ops := make([]claims.Op, batch)
				for i := range ops {
					ops[i] = op()
				}
				at := time.Now()
				for _, r := range l.Do(b.Context(), ops) {
					if r.Err != nil || r.Answer.Outcome != claims.Held {
						c.err = fmt.Errorf("%s: %w", r.Answer.Outcome, r.Err)
					}
				}
				for _, k := range then {
					for i := range ops {
						ops[i].Kind, ops[i].Epoch = k, firstEpoch.Number
					}
					for _, r := range l.Do(b.Context(), ops) {
						if r.Err != nil || r.Answer.Outcome != claims.Decided {
							c.err = fmt.Errorf("%s: %s: %w", k, r.Answer.Outcome, r.Err)
						}
					}
				}
				c.took = append(c.took, time.Since(at))
			}
			done <- c
		}()
	}
	var took []time.Duration
	for range clients {
		c := <-done
		if c.err != nil {
			b.Fatal(c.err)
		}
		took = append(took, c.took...)
	}
	elapsed, n := time.Since(began).Seconds(), float64(len(took)*batch)
	slices.Sort(took)
	ms := func(q float64) float64 { return took[int(q*float64(len(took)-1))].Seconds() * 1e3 }
	return claimed{n: n, rate: n / elapsed, p50: ms(0.5), p99: ms(0.99), cpu: (processTime(b) - used) / n * 1e6}
}

// processTime is the CPU time of this process, s.
func processTime(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// peerBytes is what the members here have sent each other.
func peerBytes(b *testing.B) (total float64) {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "etcd_network_peer_sent_bytes_total" {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}
