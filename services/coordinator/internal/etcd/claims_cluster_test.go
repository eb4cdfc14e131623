package etcd

import (
	"context"
	"crypto/rand"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// manifests are the regions' records: the first create of a key wins.
type manifests struct {
	mu sync.Mutex
	of map[claims.Region]map[identity.Batch]identity.Digest
}

func (m *manifests) create(r claims.Region, id identity.Batch, hash identity.Digest) identity.Digest {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[r] == nil {
		m.of[r] = map[identity.Batch]identity.Digest{}
	}
	if _, there := m.of[r][id]; !there {
		m.of[r][id] = hash
	}
	return m.of[r][id]
}

// serveIdentities serves IdentityService over an etcd, each with a linearizer of its own, as coordinators do.
func serveIdentities(t *testing.T, kv claims.KV, keys claims.Keys, epoch claims.Epoch) *coordinator.Claims {
	t.Helper()
	lin, err := linearizer.New(kv, linearizer.Options{Config: claims.DefaultConfig(), Keys: keys, Epoch: epoch, Folds: mem.NoFolds{Epoch: epoch.Number}})
	must(t, err)
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := grpc.NewServer()
	coordinator.NewIdentityServer(lin, time.Now).Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(listen) }()
	conn, err := rpc.Dial(listen.Addr().String(), rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-done
		lin.Close()
	})
	return coordinator.NewClaims(conn, 30*time.Second)
}

// collector has batches accepted in one region.
type collector struct {
	*coordinator.Claims
	region claims.Region
	of     *manifests
	epoch  uint64
}

func newClaimID() (id claims.ID) {
	_, _ = rand.Read(id[:])
	return id
}

func (c collector) change(ctx context.Context, kind claims.Kind, op claims.Op, hash identity.Digest) (claims.Answer, bool) {
	op.Kind, op.Hash = kind, hash
	r := c.Do(ctx, []claims.Op{op})[0]
	return r.Answer, r.Err == nil
}

// submit follows the protocol once; the zero Reply is "try again". Only an answer that the home region has settled, or
// decided itself, is one.
func (c collector) submit(ctx context.Context, id identity.Batch, hash identity.Digest) history.Reply {
	op := claims.Op{Identity: id, ID: newClaimID(), Region: c.region, Epoch: c.epoch}
	a, ok := c.change(ctx, claims.DoClaim, op, hash)
	if ok && a.Outcome == claims.Pending {
		op.Expect, op.ID = a.Claim.ID, newClaimID()
		a, ok = c.change(ctx, claims.DoTakeOver, op, hash)
	}
	mine := hash
	if ok && a.Outcome == claims.Held {
		// The region's key may be another frame's: then that one is completed, and this one is refused.
		if there := c.of.create(c.region, id, hash); there != hash {
			mine = there
			if a, ok = c.change(ctx, claims.DoReplace, op, there); !ok || a.Outcome != claims.Held {
				return history.Reply{}
			}
		}
		a, ok = c.change(ctx, claims.DoComplete, op, mine)
	}
	if !ok {
		return history.Reply{}
	}
	switch {
	case a.Outcome == claims.Conflict:
		return history.Reply{Outcome: accept.Conflict, Holder: a.Claim.Hash}
	case a.Outcome != claims.Decided:
		return history.Reply{}
	case mine != hash:
		return history.Reply{Outcome: accept.Conflict, Holder: mine}
	case a.Claim.ID == op.ID && c.region == a.Claim.Home:
		return history.Reply{Outcome: accept.Accepted, Holder: hash}
	}
	return history.Reply{Outcome: accept.Duplicate, Holder: hash}
}

// judge has many collectors submit the same identities with different frames through several coordinators, while
// trouble goes on, and judges their answers.
func judge(t *testing.T, servers []*coordinator.Claims, rounds int, trouble func(stop <-chan struct{})) {
	t.Helper()
	const clients = 12
	log, of := history.NewLog(1<<20), &manifests{of: map[claims.Region]map[identity.Batch]identity.Digest{}}
	stop := make(chan struct{})
	var troubles, wg sync.WaitGroup
	troubles.Go(func() { trouble(stop) })
	regions := []claims.Region{"east", "west", "north"}
	for n := range clients {
		wg.Go(func() {
			c := collector{servers[n%len(servers)], regions[n%len(regions)], of, 1}
			for round := range rounds {
				id := identity.Batch{Agent: "a", Boot: string(rune('a' + round%4)), SeqStart: uint64(10 * round), SeqEnd: uint64(10*round + 9)}
				hash := identity.Sum([]byte{byte(n % 2)})
				// Until it is answered, as a sender does: to its end nothing is known of a submission that failed.
				for end := time.Now().Add(2 * time.Minute); ; {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					call := log.Call(n, id, hash)
					r := c.submit(ctx, id, hash)
					call.End(r)
					cancel()
					if r.Outcome != 0 {
						break
					}
					if time.Now().After(end) {
						t.Errorf("client %d gets no answer for %s", n, id)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	troubles.Wait()
	stats, err := log.Check()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", stats)
	if stats.Identities != rounds {
		t.Errorf("%d identities, want %d", stats.Identities, rounds)
	}
}

var firstEpoch = claims.Epoch{Number: 1, ID: claims.ID{1}, Regions: []claims.Region{"east", "west", "north"}}

func claimStores(t *testing.T, members []clusterMember, keys claims.Keys, n int) []claims.KV {
	t.Helper()
	var out []claims.KV
	for range n {
		out = append(out, NewClaimStore(&Client{Etcd: dial(t, members), Timeout: 10 * time.Second}))
	}
	_, err := out[0].Commit(t.Context(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: firstEpoch.Marshal()}}}}})
	must(t, err)
	return out
}

// TestIdentitiesAreRegisters: over one member, with two coordinators that overtake each other.
func TestIdentitiesAreRegisters(t *testing.T) {
	t.Parallel()
	const keys = claims.Keys("/t/")
	var servers []*coordinator.Claims
	for _, kv := range claimStores(t, startMembers(t, 1), keys, 2) {
		servers = append(servers, serveIdentities(t, kv, keys, firstEpoch))
	}
	judge(t, servers, 40, func(<-chan struct{}) {})
	// What the reconcilers of the regions find: each identity in one region, and none that is only claimed.
	found := map[identity.Batch]claims.Region{}
	for _, home := range firstEpoch.Regions {
		s := claims.Scan{Home: home, States: []claims.State{claims.Durable}, Limit: 7}
		for {
			p, err := servers[1].Scan(t.Context(), s, 0)
			must(t, err)
			if p.Read > 7 || p.Unreadable > 0 {
				t.Errorf("%+v", p)
			}
			for _, c := range p.Claims {
				if other, twice := found[c.Identity]; twice || c.Home != home {
					t.Errorf("%s is %s's, %s's and found for %s", c.Identity, other, c.Home, home)
				}
				found[c.Identity] = home
			}
			if s.After = p.Next; p.Next == "" {
				break
			}
		}
	}
	if len(found) != 40 {
		t.Errorf("%d durable identities, want 40", len(found))
	}
}

// TestIdentitiesOutliveLeaders: the leader of three members stops and comes back, again and again.
func TestIdentitiesOutliveLeaders(t *testing.T) {
	t.Parallel()
	const keys = claims.Keys("/t/")
	members := startMembers(t, 3)
	var servers []*coordinator.Claims
	for _, kv := range claimStores(t, members, keys, 2) {
		servers = append(servers, serveIdentities(t, kv, keys, firstEpoch))
	}
	judge(t, servers, 30, func(stop <-chan struct{}) {
		for range 2 {
			i := leaderOf(t, members)
			members[i].stop()
			select {
			case <-stop:
			case <-time.After(time.Second): // what goes on meanwhile decides nothing
			}
			members[i].restart(t)
			select {
			case <-members[i].Server.ReadyNotify():
			case <-time.After(time.Minute):
				t.Error("a member does not come back")
			}
		}
	})
}
