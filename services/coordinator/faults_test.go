package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
)

// TestWorkersKilledAndPaused: kill -9, and SIGSTOP past the lease. The others take over
// at most ceil(K/n) shards each time; who wakes up again gets shards under new epochs.
func TestWorkersKilledAndPaused(t *testing.T) {
	t.Parallel()
	s := start(t, brief(t.TempDir()), nil)
	c := s.client()
	b := newBook(t, 32)
	ps := map[string]*process{}
	names := []string{"w0", "w1", "w2"}
	for _, n := range names {
		ps[n] = b.workProcess(n, s.addr())
	}
	until(t, "three workers with all shards", func() bool { return b.balanced(names...) })

	ps["w1"].kill()
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w2") })
	ps["w1"] = b.workProcess("w1", s.addr())
	until(t, "the killed one to be back", func() bool { return b.balanced(names...) })

	ps["w2"].signal(syscall.SIGSTOP)
	until(t, "the paused one's shards to be taken over", func() bool { return b.balanced("w0", "w1") })
	ps["w2"].signal(syscall.SIGCONT)
	until(t, "the paused one to be back", func() bool { return b.balanced(names...) })

	ms := moves(t, c)
	if len(ms) < 4 {
		t.Errorf("only %d moves", len(ms))
	}
	checkMoves(t, 32, ms)
}

// TestCoordinatorKilledMovesNothing: kill -9 of the only coordinator, with the etcd member in it.
func TestCoordinatorKilledMovesNothing(t *testing.T) {
	t.Parallel()
	cfg := brief(t.TempDir())
	p := ports(t, 2)
	cfg.HTTP.Listen, cfg.GRPC.Listen = p[0], p[1]
	cfg.Lease.Worker = 30 * time.Second // longer than a restart on a busy machine
	first := coordinate(t, cfg)
	b := newBook(t, 32)
	b.work("w0", cfg.GRPC.Listen)
	b.work("w1", cfg.GRPC.Listen)
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w1") })
	given := b.grants()
	for range 2 {
		first.kill()
		first = coordinate(t, cfg)
	}
	// A third worker shows that the new coordinator leads; only its own shards are granted again.
	b.work("w2", cfg.GRPC.Listen)
	until(t, "three workers with all shards", func() bool { return b.balanced("w0", "w1", "w2") })
	if n := b.grants() - given; n != 10 {
		t.Errorf("%d grants for the 10 shards of the third worker", n)
	}
	conn, err := rpc.Dial(cfg.GRPC.Listen, rpc.ClientConfig{})
	must(t, err)
	defer conn.Close()
	checkMoves(t, 32, moves(t, coordinatorv1.NewOwnershipServiceClient(conn)))
}

// TestThreeMembers: three coordinators with a member each. The leader is killed: nothing
// moves, and others lead; it comes back, and another one may be killed.
func TestThreeMembers(t *testing.T) {
	t.Parallel()
	const n = 3
	p, dir := ports(t, 3*n), t.TempDir()
	members, addrs := []string{}, []string{}
	ca := newAuthority(t)
	cert, key := ca.issue("member")
	var cfgs [n]Config
	for i := range n {
		members = append(members, fmt.Sprintf("m%d=%s", i, p[3*i+2]))
		addrs = append(addrs, p[3*i+1])
	}
	for i := range n {
		c := brief(filepath.Join(dir, fmt.Sprint(i)))
		c.HTTP.Listen, c.GRPC.Listen, c.Etcd.Embedded.Peer = p[3*i], p[3*i+1], p[3*i+2]
		c.Etcd.Embedded.PeerTLS = rpc.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.file}
		c.Etcd.Embedded.Name, c.Etcd.Embedded.Cluster = fmt.Sprintf("m%d", i), members
		c.Lease.Worker, c.ID = 60*time.Second, fmt.Sprintf("m%d", i)
		cfgs[i] = c
	}
	var ps [n]*process
	for i := range n {
		ps[i] = spawn(t, "coordinator", cfgs[i])
	}
	for i := range n {
		ps[i].ready()
	}
	for i := range n {
		nobodysMember(t, cfgs[i].Etcd.Embedded.Peer, ca)
	}
	b := newBook(t, 12)
	b.work("w0", addrs...)
	b.work("w1", addrs[1], addrs[2], addrs[0])
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w1") })

	given, names := b.grants(), []string{"w0", "w1"}
	for round := range n {
		ps[round].kill()
		// Two of three members are enough for a worker to come.
		names = append(names, fmt.Sprintf("x%d", round))
		b.work(names[len(names)-1], addrs...)
		until(t, "the new worker's shards, with a member killed", func() bool { return b.balanced(names...) })
		given += 12 / len(names)
		if got := b.grants(); got != given {
			t.Errorf("round %d: %d grants, want %d: only the new worker's shards move", round, got, given)
		}
		ps[round] = coordinate(t, cfgs[round])
	}
}

// nobodysMember: who has no certificate of the members' authority may not speak to a peer's port.
func nobodysMember(t *testing.T, peer string, ca *authority) {
	t.Helper()
	cert, key := newAuthority(t).issue("stranger")
	stranger := tlsfile.Client{Enabled: true, CAFile: ca.file, CertFile: cert, KeyFile: key}
	without := stranger
	without.CertFile, without.KeyFile = "", ""
	for what, c := range map[string]tlsfile.Client{"a certificate of another authority": stranger, "no certificate": without, "no TLS": {}} {
		cfg, err := c.Config()
		must(t, err)
		tr := &http.Transport{TLSClientConfig: cfg}
		scheme := "https://"
		if cfg == nil {
			scheme = "http://"
		}
		req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, scheme+peer+"/members", nil)
		must(t, err)
		if resp, err := tr.RoundTrip(req); err == nil {
			t.Errorf("%s: a member answers %s", what, resp.Status)
			resp.Body.Close()
		}
		tr.CloseIdleConnections()
	}
}

// external is an etcd that coordinators share.
func external(t testing.TB, dir string) *etcd.Embedded {
	t.Helper()
	c := brief(dir).Etcd.Embedded
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := etcd.StartEmbedded(ctx, c, slog.New(slog.DiscardHandler))
	must(t, err)
	return m
}

func shared(m *etcd.Embedded) Config {
	c := brief("")
	c.Etcd.Endpoints = []string{m.Endpoint()}
	return c
}

// TestEtcdLost: owners go on until their leases end by their own clocks, then stop; and
// they own again when etcd is back.
// A member that ends by itself takes its process along: whoever watches the process starts it
// again, and a coordinator without etcd is of no use.
func TestMemberThatEndsEndsTheProcess(t *testing.T) {
	r := start(t, quick(t.TempDir()), nil)
	r.closers[0]() // the member's Close, of which nobody else here knows
	select {
	case err := <-r.done:
		close(r.done)
		if err == nil || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("%v", err)
		}
	case <-time.After(patience):
		t.Fatal("it continues without etcd")
	}
}

func TestEtcdLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := external(t, dir)
	t.Cleanup(func() { m.Close() }) // after the workers and coordinators, which need it to leave
	s1, s2 := start(t, shared(m), nil), start(t, shared(m), nil)
	b := newBook(t, 8)
	b.work("w0", s1.addr(), s2.addr())
	b.work("w1", s2.addr(), s1.addr())
	until(t, "two workers with all shards", func() bool { return b.balanced("w0", "w1") })
	m.Close()
	until(t, "all to stop", func() bool { return len(b.loads()) == 0 })
	until(t, "the coordinators not to be ready", func() bool { return s1.notReady() != nil && s2.notReady() != nil })
	given := b.grants()
	if _, err := s1.client().ListShards(context.Background(), &coordinatorv1.ListShardsRequest{Kind: "rollup"}); rpc.Reason(err) != coordinator.ReasonEtcd {
		t.Errorf("a list without etcd: %v", err)
	}
	m = external(t, dir)
	until(t, "two workers with all shards, again", func() bool { return b.balanced("w0", "w1") })
	if b.grants() < given+8 { // more where one of them came late
		t.Errorf("%d grants, want 8 more than %d", b.grants(), given)
	}
	checkMoves(t, 8, moves(t, s1.client()))
	until(t, "one leader", func() bool { return s1.Leading() != s2.Leading() })
	// The other one leads when it goes.
	leader, other := s1, s2
	if s2.Leading() {
		leader, other = s2, s1
	}
	leader.end()
	until(t, "another leader", other.Leading)
	b.work("w2", other.addr())
	until(t, "three workers with all shards", func() bool { return b.balanced("w0", "w1", "w2") })
}

// TestEtcdRestored: etcd forgets a time in which shards were granted. Epochs and fences
// grow all the same, by the terms in the object store.
func TestEtcdRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	terms := mem.New(time.Now)
	m := external(t, dir)
	t.Cleanup(func() { m.Close() }) // after the workers and coordinators, which need it to leave
	s := start(t, shared(m), terms)
	b := newBook(t, 8)
	b.work("w0", s.addr())
	until(t, "the first worker's shards", func() bool { return b.balanced("w0") })

	m.Close()
	backup := t.TempDir()
	must(t, os.CopyFS(backup, os.DirFS(dir)))
	m = external(t, dir)
	until(t, "the first worker's shards, again", func() bool { return b.balanced("w0") })
	for i := range 3 {
		w := b.work(fmt.Sprintf("v%d", i), s.addr())
		until(t, "another worker's shards", func() bool { return b.balanced("w0", w.name) })
		w.end(t)
		until(t, "the first worker's shards, after all", func() bool { return b.balanced("w0") })
	}
	given := b.grants()
	m.Close()
	must(t, os.RemoveAll(dir))
	must(t, os.CopyFS(dir, os.DirFS(backup)))
	m = external(t, dir)
	b.work("w9", s.addr())
	until(t, "two workers with all shards after the restore", func() bool { return b.balanced("w0", "w9") })
	if b.grants() == given { // the book has checked them
		t.Error("nothing was granted after the restore")
	}
}
