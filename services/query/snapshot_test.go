package query_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query"
)

const snapShards = 2

// counted counts the requests of one node by the first part of their keys.
type counted struct {
	objstore.Reader
	latency time.Duration
	mu      sync.Mutex
	gets    map[string]int
	lists   int
}

func (c *counted) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	family, _, _ := strings.Cut(key, "/")
	c.mu.Lock()
	c.gets[family]++
	c.mu.Unlock()
	time.Sleep(c.latency)
	return c.Reader.Get(ctx, key, o)
}

func (c *counted) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	c.mu.Lock()
	c.lists++
	c.mu.Unlock()
	time.Sleep(c.latency)
	return c.Reader.List(ctx, o)
}

func (c *counted) of(family string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gets[family]
}

// startCounted runs a node to its first audit.
func startCounted(t testing.TB, a *authority, snapshots bool) (*node, *counted) {
	t.Helper()
	return startOver(t, &counted{Reader: a, gets: map[string]int{}}, snapshots)
}

func startOver(t testing.TB, c *counted, snapshots bool) (*node, *counted) {
	t.Helper()
	cfg := query.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	slowPolls(&cfg) // so that what is counted is the start
	cfg.Follow.Snapshots = snapshots
	s, err := query.New(cfg, query.Deps{Store: c, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-s.Complete():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return &node{s, t, "http://" + s.HTTPAddr()}, c
}

// chains are the snapshot makers of every shard, over what collectors accepted.
type chains struct {
	a      *authority
	chains []*snapshot.Chain
	frames map[identity.Digest][]byte
}

func newChains(a *authority) *chains {
	c := &chains{a: a, frames: map[identity.Digest][]byte{}}
	table := workmem.New(time.Now, workmem.Options{})
	for s := range shard.ID(snapShards) {
		ch, err := snapshot.NewChain(snapshot.Config{
			Store: a.Store, Table: table, AuthorityID: "test", Shard: s, Shards: snapShards, Fence: 1, Owner: "o", Now: time.Now,
			Frames: func(_ context.Context, es []accepted.Batch) ([][]byte, error) {
				out := make([][]byte, len(es))
				for i, e := range es {
					out[i] = c.frames[e.FrameSHA256]
				}
				return out, nil
			},
		})
		if err != nil {
			a.t.Fatal(err)
		}
		c.chains = append(c.chains, ch)
	}
	return c
}

func (c *chains) take(bs ...built) {
	c.a.t.Helper()
	for _, b := range bs {
		c.frames[b.manifest.FrameSHA256] = b.frame
		e := b.manifest.Batch()
		c.chains[shard.Of(e.Agent, snapShards)].Offer([]accepted.Batch{e})
	}
	for s, ch := range c.chains {
		if o, err := ch.Step(context.Background()); err != nil || o != work.Completed {
			c.a.t.Fatalf("snapshot of shard %d: %s, %v", s, o, err)
		}
	}
}

// history makes n batches of each of four agents, a second batch of some numbers among them.
func history(a *authority, n int, now time.Time) []built {
	var out []built
	for i := range n {
		at := now.Add(time.Duration(i-n) * 10 * time.Second)
		for k := range 4 {
			boot := identity.Boot{Agent: fmt.Sprint("agent", k), Boot: "b"}
			out = append(out, a.build(boot, uint64(1+2*i), at, point{"requests_total", float64(i * (k + 1)), at}, point{"up", 1, at}))
			if i%7 == 3 && k == 1 { // overlaps the last one and the next
				out = append(out, a.build(boot, uint64(2+2*i), at.Add(-time.Second), point{"requests_total", float64(i), at.Add(time.Second)}, point{"extra", 1, at}))
			}
		}
	}
	return out
}

var restoreQueries = []string{"sum(up)", "sum by (instance) (rate(requests_total[5m]))", "count_over_time(requests_total[1h])", "sum(sum_over_time(extra[1h]))", "max_over_time(up[30m])"}

func sameAnswers(t *testing.T, with, without *node, at time.Time) {
	t.Helper()
	for _, q := range restoreQueries {
		x := with.get("/api/v1/query", "query", q, "time", unix(at))
		y := without.get("/api/v1/query", "query", q, "time", unix(at))
		if string(x.Data) != string(y.Data) || len(x.Data) < 60 || x.Lightmetrics.Partial || x.Lightmetrics.AgentsWithGaps != y.Lightmetrics.AgentsWithGaps {
			t.Errorf("%s:\nwith a snapshot    %s %+v\nwithout a snapshot %s %+v", q, x.Data, x.Lightmetrics, y.Data, y.Lightmetrics)
		}
	}
}

func TestSnapshotStartGivesTheSameAnswers(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	all := history(a, 120, now)
	c := newChains(a)
	a.accept(all...)
	tail := 12
	c.take(all[:300]...)
	c.take(all[300 : len(all)-tail]...)

	without, gets := startCounted(t, a, false)
	if n := gets.of("raw-blobs"); n != len(all) || gets.of("live") != 0 || gets.of("accepted") != 0 {
		t.Errorf("without a snapshot: %d GETs of %d batches, %d of snapshots", n, len(all), gets.of("live"))
	}
	with, few := startCounted(t, a, true)
	if n := few.of("raw-blobs"); n != tail {
		t.Errorf("with a snapshot: %d GETs of %d batches of the tail", n, tail)
	}
	if n := few.of("live"); n != 3*snapShards { // a snapshot and two packs each
		t.Errorf("%d GETs of snapshots and packs", n)
	}
	if few.lists > gets.lists+1 {
		t.Errorf("%d lists, without a snapshot %d", few.lists, gets.lists)
	}
	sameAnswers(t, with, without, now)
	t.Logf("%d batches: %v GETs without, %v with", len(all), gets.gets, few.gets)
}

// Whatever is wrong with snapshots, the answers stay.
func TestDamagedSnapshotsCostOnlyRequests(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	all := history(a, 60, now)
	c := newChains(a)
	a.accept(all...)
	third := len(all) / 3
	for i := range 3 {
		c.take(all[i*third : (i+1)*third]...)
	}
	without, _ := startCounted(t, a, false)
	newest := func(s shard.ID) *snapshot.Snapshot {
		snap, err := snapshot.Read(context.Background(), a.Store, s, 3)
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	packOf := func(i int) string { return newest(0).Packs[i].Key(0) }
	get := func(key string) []byte {
		b, _, err := a.Store.Get(context.Background(), key, objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	flip := func(b []byte, i int) []byte {
		b = append([]byte(nil), b...)
		b[i] ^= 1
		return b
	}
	first := get(packOf(0))
	of0 := func(bs []built) (n int) {
		for _, b := range bs {
			if shard.Of(b.manifest.Identity.Agent, snapShards) == 0 {
				n++
			}
		}
		return n
	}
	head, last := of0(all[:third]), of0(all[2*third:])
	if head < 10 || last < 10 || of0(all) == len(all) {
		t.Fatalf("%d and %d batches of shard 0", head, last)
	}
	for _, c := range []struct {
		name, key string
		body      []byte // nil: deleted
		singly    int    // batches that are fetched one by one
	}{
		{"newest snapshot is corrupt", layout.LiveSnapshot(0, 3), []byte("{}"), last},
		{"newest snapshot is gone", layout.LiveSnapshot(0, 3), nil, last},
		{"newest snapshot is of another shard", layout.LiveSnapshot(0, 3), get(layout.LiveSnapshot(1, 3)), last},
		{"pack is gone", packOf(2), nil, last},
		{"pack is another one", packOf(2), first, last},
		{"header is damaged", packOf(0), flip(first, 30), head},
		{"last frame is damaged", packOf(0), flip(first, len(first)-1), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := get(c.key)
			if c.body == nil {
				if err := a.Delete(context.Background(), c.key); err != nil {
					t.Fatal(err)
				}
			} else {
				a.put(c.key, c.body)
			}
			with, gets := startCounted(t, a, true)
			sameAnswers(t, with, without, now)
			if n := gets.of("raw-blobs"); n != c.singly {
				t.Errorf("%d frames were fetched one by one, want %d", n, c.singly)
			}
			a.put(c.key, good)
		})
	}
}

// A merged pack is gone, or is another one: the packs that it was made of are still there.
func TestMergedPackIsReplacedByItsSources(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	all := history(a, 27, now)
	c := newChains(a)
	a.accept(all...)
	ninth := len(all) / 9
	for i := range 8 {
		c.take(all[i*ninth : (i+1)*ninth]...)
	}
	c.take(all[8*ninth:]...)
	without, _ := startCounted(t, a, false)
	for s := range shard.ID(snapShards) {
		snap, err := snapshot.Read(context.Background(), a.Store, s, 9)
		if err != nil || len(snap.Packs) != 2 || snap.Packs[0].Number != 9 {
			t.Fatalf("%+v, %v", snap, err)
		}
		other, _, err := a.Store.Get(context.Background(), snap.Packs[1].Key(s), objstore.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if s == 0 {
			a.put(snap.Packs[0].Key(s), other)
		} else if err := a.Delete(context.Background(), snap.Packs[0].Key(s)); err != nil {
			t.Fatal(err)
		}
	}
	with, gets := startCounted(t, a, true)
	sameAnswers(t, with, without, now)
	if n := gets.of("raw-blobs"); n != 0 {
		t.Errorf("%d frames were fetched one by one", n)
	}
}

// Of a snapshot only what the journal names is taken, with the hash that it names: a batch that was never
// accepted is not shown.
func TestUnacceptedBatchOfASnapshotIsNotShown(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	all := history(a, 10, now)
	a.accept(all[:3]...)
	newChains(a).take(all...)
	n, _ := startCounted(t, a, true)
	without, _ := startCounted(t, a, false)
	for _, q := range restoreQueries {
		if x, y := n.get("/api/v1/query", "query", q, "time", unix(now)), without.get("/api/v1/query", "query", q, "time", unix(now)); string(x.Data) != string(y.Data) || x.Lightmetrics.Partial {
			t.Errorf("%s: %s, want %s", q, x.Data, y.Data)
		}
	}
}

// BenchmarkStart compares the start of a node over an hour of four agents' batches, in
// memory and with the latency of a near object store.
func BenchmarkStart(b *testing.B) {
	a := newAuthority(b)
	all := history(a, 360, time.Now())
	a.accept(all...)
	newChains(a).take(all...)
	for _, latency := range []time.Duration{0, 10 * time.Millisecond} {
		for _, snapshots := range []bool{false, true} {
			b.Run(fmt.Sprintf("latency=%v/snapshots=%v", latency, snapshots), func(b *testing.B) {
				for range b.N {
					_, c := startOver(b, &counted{Reader: a, gets: map[string]int{}, latency: latency}, snapshots)
					b.ReportMetric(float64(c.of("journal")+c.of("raw-blobs")+c.of("live")), "GETs/op")
				}
			})
		}
	}
}
