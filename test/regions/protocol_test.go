package regions

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// region is one region as the protocol of docs/protocol/linearizer.md sees it: its coordinator and bucket are real, the
// collectors and the reconciler are this process, and its journal is a map.
type region struct {
	name      claims.Region
	authority string
	claims    *coordinator.Claims
	store     objstore.Store

	mu      sync.Mutex
	journal map[identity.Batch]identity.Digest
	wrong   []error
}

func newRegion(ctx context.Context, t *testing.T, r *cluster.Regions, i int) *region {
	t.Helper()
	conn, err := rpc.Dial(r.Of[i].Addr.CoordinatorGRPC, rpc.ClientConfig{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	store, err := r.Of[i].OpenStore(ctx)
	must(t, err)
	return &region{name: claims.Region(r.Names[i]), authority: r.Of[i].AuthorityID(), claims: coordinator.NewClaims(conn, 3*time.Second), store: store,
		journal: map[identity.Batch]identity.Digest{}}
}

func newClaimID() (id claims.ID) {
	_, _ = rand.Read(id[:])
	return id
}

// change makes one change of the claim; false is an unknown outcome, or a refusal.
func (x *region) change(ctx context.Context, kind claims.Kind, c claims.Claim, hash identity.Digest) (claims.Answer, bool) {
	op := claims.Op{Kind: kind, Identity: c.Identity, Hash: hash, ID: c.ID, Region: x.name, Epoch: c.Stamp.Epoch}
	switch kind {
	case claims.DoClaim:
		op.Epoch, op.ID = 0, newClaimID()
	case claims.DoTakeOver:
		op.Expect, op.ID = c.ID, newClaimID()
	}
	r := x.claims.Do(ctx, []claims.Op{op})[0]
	return r.Answer, r.Err == nil
}

// enter writes the entry of the region's journal.
func (x *region) enter(id identity.Batch, hash identity.Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, ok := x.journal[id]; ok && was != hash {
		x.wrong = append(x.wrong, fmt.Errorf("%s enters %s with %s and with %s", x.name, id, was, hash))
	}
	x.journal[id] = hash
}

func (x *region) manifest(c claims.Claim, hash identity.Digest) accept.Manifest {
	return accept.Manifest{
		AuthorityID: x.authority, Identity: c.Identity, FrameSHA256: hash, FrameBytes: 100, RawBlobKey: layout.Blob(hash, 0),
		AcceptedAt: time.Now().UnixNano(), CollectorID: "test", WireVersion: 1, FrameVersion: 1, AttemptID: fmt.Sprintf("%x", c.ID[:]),
		RecordCount: c.Identity.Count(), MinTime: 1, MaxTime: 2, HomeRegion: string(x.name), ClaimEpoch: c.Stamp.Epoch, ClaimFence: c.Stamp.Fence,
	}
}

// there reads the manifest of an identity; false is none, or an unknown one.
func (x *region) there(ctx context.Context, id identity.Batch) (accept.Manifest, bool, error) {
	body, _, err := x.store.Get(ctx, layout.Accepted(id), objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return accept.Manifest{}, false, nil
	}
	if err != nil {
		return accept.Manifest{}, false, err
	}
	m, err := accept.ParseManifest(body)
	return m, err == nil, err
}

// stand makes the region's manifest stand for the claim: creates it, or affirms the one of the same hash. It gives the
// hash that the key has, which may be another frame's.
func (x *region) stand(ctx context.Context, c claims.Claim) (has identity.Digest, created bool, err error) {
	m := x.manifest(c, c.Hash)
	_, err = x.store.Create(ctx, layout.Accepted(c.Identity), m.Marshal(), objstore.PutOptions{})
	if err == nil {
		return c.Hash, true, nil
	}
	if !errors.Is(err, objstore.ErrExists) {
		return has, false, err
	}
	old, ok, err := x.there(ctx, c.Identity)
	if err != nil || !ok {
		return has, false, fmt.Errorf("read the manifest back: %v %w", ok, err)
	}
	if old.FrameSHA256 != c.Hash {
		return old.FrameSHA256, false, nil
	}
	return c.Hash, false, x.affirm(ctx, old, c)
}

func (x *region) affirm(ctx context.Context, m accept.Manifest, c claims.Claim) error {
	stamp := accepted.Stamp{Epoch: c.Stamp.Epoch, Fence: c.Stamp.Fence}
	if m.Stamp().Compare(stamp) >= 0 {
		return nil
	}
	a := accept.Affirmation{AuthorityID: x.authority, Identity: c.Identity, FrameSHA256: m.FrameSHA256, Stamp: stamp, HomeRegion: string(x.name)}
	_, err := x.store.Create(ctx, a.Key(), a.Marshal(), objstore.PutOptions{})
	if errors.Is(err, objstore.ErrExists) {
		body, _, rerr := x.store.Get(ctx, a.Key(), objstore.GetOptions{})
		if rerr == nil && bytes.Equal(body, a.Marshal()) {
			return nil
		}
	}
	return err
}

// fate is what happens to a process on its way: dies says where it ends, 1 after Complete and 2 after the entry; stalls is
// how long it stands still before each step, so that others take over what it goes on with later.
type fate struct {
	dies   int
	stalls [2]time.Duration
}

func newFate(rnd *mathrand.Rand) (f fate) {
	if rnd.IntN(10) == 0 {
		f.dies = 1 + rnd.IntN(2)
	}
	for i := range f.stalls {
		if rnd.IntN(4) == 0 {
			f.stalls[i] = time.Duration(rnd.IntN(1000)) * time.Millisecond
		}
	}
	return f
}

// complete goes from a claim that is held to an entry of the journal, as far as it gets.
func (x *region) complete(ctx context.Context, c claims.Claim, f fate) (done bool, hash identity.Digest, created bool) {
	time.Sleep(f.stalls[0])
	has, created, err := x.stand(ctx, c)
	if err != nil {
		return false, has, false
	}
	if has != c.Hash {
		if c.Recovered || c.Bound {
			return false, has, false
		}
		a, ok := x.change(ctx, claims.DoReplace, c, has)
		if !ok || a.Outcome != claims.Held {
			return false, has, false
		}
		c = a.Claim
		m, ok, err := x.there(ctx, c.Identity)
		if err != nil || !ok || m.FrameSHA256 != c.Hash || x.affirm(ctx, m, c) != nil {
			return false, has, false
		}
	}
	time.Sleep(f.stalls[1])
	a, ok := x.change(ctx, claims.DoComplete, c, c.Hash)
	if !ok || a.Outcome != claims.Decided || a.Claim.Home != x.name || f.dies == 1 {
		return false, has, false
	}
	x.enter(c.Identity, c.Hash)
	if f.dies == 2 {
		return false, has, false
	}
	return true, c.Hash, created
}

// submit is what a collector does once; the zero Reply is RETRY, or an answer that is lost.
func (x *region) submit(ctx context.Context, id identity.Batch, hash identity.Digest, f fate) history.Reply {
	a, ok := x.change(ctx, claims.DoClaim, claims.Claim{Identity: id}, hash)
	if ok && a.Outcome == claims.Pending && !a.Claim.Recovered && !a.Claim.Bound {
		a, ok = x.change(ctx, claims.DoTakeOver, a.Claim, hash)
	}
	if !ok {
		return history.Reply{}
	}
	switch c := a.Claim; a.Outcome {
	case claims.Held:
		done, has, created := x.complete(ctx, c, f)
		switch {
		case !done:
			return history.Reply{}
		case has != hash:
			return history.Reply{Outcome: accept.Conflict, Holder: has}
		case created:
			return history.Reply{Outcome: accept.Accepted, Holder: hash}
		}
		return history.Reply{Outcome: accept.Duplicate, Holder: hash}
	case claims.Decided:
		switch {
		case c.Home == x.name:
			x.enter(id, hash)
		case c.State != claims.Settled:
			return history.Reply{} // the home's reconciler settles it
		}
		return history.Reply{Outcome: accept.Duplicate, Holder: hash}
	case claims.Conflict, claims.RangeConflict:
		return history.Reply{Outcome: accept.Conflict, Holder: c.Hash}
	}
	return history.Reply{}
}

// reconcile rolls the region's claims forward that are older than this, and says how many it has met that are not settled.
func (x *region) reconcile(ctx context.Context, olderThan time.Duration) (int, error) {
	open := 0
	s := claims.Scan{Home: x.name, States: []claims.State{claims.Claimed, claims.Durable}, Limit: 100}
	for {
		p, err := x.claims.Scan(ctx, s, olderThan)
		if err != nil {
			return open, err
		}
		for _, c := range p.Claims {
			open++
			if c.State == claims.Claimed {
				m, there, err := x.there(ctx, c.Identity)
				if err != nil {
					continue
				}
				if !there && !c.Recovered && !c.Bound {
					x.change(ctx, claims.DoRelease, c, c.Hash)
					continue
				}
				if there && m.FrameSHA256 != c.Hash && (c.Recovered || c.Bound) {
					x.mu.Lock()
					x.wrong = append(x.wrong, fmt.Errorf("%s: %s is recovered for %s, and its key has %s", x.name, c.Identity, c.Hash, m.FrameSHA256))
					x.mu.Unlock()
					continue
				}
				_, _, _ = x.complete(ctx, c, fate{}) // settled by the next look: it is DURABLE then
				continue
			}
			x.enter(c.Identity, c.Hash)
			x.change(ctx, claims.DoSettle, c, c.Hash)
		}
		if s.After = p.Next; s.After == "" {
			return open, nil
		}
	}
}

// TestTheProtocolOverRealCoordinators: three regions' coordinators and stores are processes; collectors and reconcilers
// follow the specification in this one. Under partitions between regions, kills and pauses of coordinators and stores, and
// three restores of etcd from different copies, the answers of each identity are those of one register, and at the end
// each acknowledged batch has its entry in one region's journal, and each claim is settled.
func TestTheProtocolOverRealCoordinators(t *testing.T) {
	t.Parallel()
	rounds := size(t, "ROUNDS_OF_FAULTS", 1, 20)
	seed, rnd := seeded(t)
	r := newRegions(t, cluster.RegionsOptions{Options: cluster.Options{Adjust: func(_ string, s map[string]any) {
		if id, ok := s["identity"].(map[string]any); ok {
			id["settle_horizon"] = "1h" // claims stay to be judged
		}
	}}})
	ctx := within(t, time.Duration(rounds)*8*time.Minute)
	must(t, cluster.SideBySide(r.Of, func(c *cluster.Cluster) error { return c.StartStore(ctx) }))
	must(t, startCoordinators(ctx, r))
	var of []*region
	for i := range r.Of {
		of = append(of, newRegion(ctx, t, r, i))
	}
	log := history.NewLog(1 << 19)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked, submitted := map[identity.Batch]identity.Digest{}, map[identity.Batch]bool{}
	const clients = 9
	for n := range clients {
		wg.Go(func() {
			rnd := mathrand.New(mathrand.NewPCG(seed, uint64(n)))
			for slot := 0; ; slot++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				at := slot
				if rnd.IntN(5) == 0 {
					at = rnd.IntN(slot + 1)
				}
				id := identity.Batch{Agent: "agent", Boot: fmt.Sprint("boot-", at%4), SeqStart: uint64(at/4)*16 + 1, SeqEnd: uint64(at/4)*16 + 8}
				if rnd.IntN(8) == 0 {
					id.SeqStart, id.SeqEnd = id.SeqStart+4, id.SeqEnd+4
				}
				slotID := id
				slotID.SeqStart, slotID.SeqEnd = uint64(at/4)*16+1, uint64(at/4)*16+16
				hash := identity.Sum(fmt.Append(nil, id, rnd.IntN(3)/2))
				mu.Lock()
				submitted[id] = true
				mu.Unlock()
				// About as long as a fault lasts; then it is left to the reconcilers, and to who comes again later.
				for range 30 {
					sctx, cancel := context.WithTimeout(ctx, 5*time.Second)
					call := log.Call(n, slotID, hash)
					reply := of[rnd.IntN(len(of))].submit(sctx, id, hash, newFate(rnd))
					call.End(reply)
					cancel()
					if reply.Outcome == accept.Accepted || reply.Outcome == accept.Duplicate {
						mu.Lock()
						acked[id] = hash
						mu.Unlock()
					}
					if reply.Outcome != 0 {
						break
					}
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(rnd.IntN(200)) * time.Millisecond):
					}
				}
			}
		})
	}
	reconcilers := make(chan struct{})
	var rwg sync.WaitGroup
	for _, x := range of {
		rwg.Go(func() {
			for {
				select {
				case <-reconcilers:
					return
				case <-time.After(200 * time.Millisecond):
				}
				rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				_, _ = x.reconcile(rctx, time.Second) // it comes back
				cancel()
			}
		})
	}
	f := &faults{t: t, r: r, rnd: rnd, copies: &copies{r: r, dir: t.TempDir()}, lasts: 2 * time.Second, done: map[string]int{}}
	var err error
	for range rounds {
		if err = f.run(ctx, f.protocolFaults()); err != nil {
			break
		}
	}
	must(t, r.Heal())
	close(stop)
	wg.Wait()
	must(t, err)
	// Promise 4: with recovery and reconcilers running each claim is settled or released.
	sctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	must(t, cluster.Poll(sctx, "every claim to be settled or released", func() (bool, error) {
		open := 0
		for _, x := range of {
			n, err := x.reconcile(sctx, 0)
			if err != nil {
				return false, err
			}
			open += n
		}
		return open == 0, fmt.Errorf("%d claims are held", open)
	}))
	close(reconcilers)
	rwg.Wait()
	stats, err := log.Check()
	if err != nil {
		t.Error(err)
	}
	counted := map[identity.Batch]int{}
	for _, x := range of {
		for _, err := range x.wrong {
			t.Error(err)
		}
		for id, hash := range x.journal {
			counted[id]++
			if want, ok := acked[id]; ok && want != hash {
				t.Errorf("%s enters %s with %s, acknowledged with %s", x.name, id, hash, want)
			}
			if m, there, err := x.there(ctx, id); err != nil || !there || m.FrameSHA256 != hash {
				t.Errorf("%s enters %s with %s; its manifest: %v %s %v", x.name, id, hash, there, m.FrameSHA256, err)
			}
		}
	}
	for id := range acked {
		if counted[id] != 1 {
			t.Errorf("%s was acknowledged and is counted by %d regions", id, counted[id])
		}
	}
	for id, n := range counted {
		if n > 1 {
			t.Errorf("%s is counted by %d regions", id, n)
		}
	}
	t.Logf("%d identities submitted, %d acknowledged; %+v; faults %v", len(submitted), len(acked), stats, f.done)
	if len(acked) == 0 || stats.Answers == 0 || stats.Open == 0 {
		t.Error("the load shows too little")
	}
}

// protocolFaults are the faults of coordinators, stores and links, with copies between them and three restores at the end.
func (f *faults) protocolFaults() []fault {
	n := len(f.copies.paths)
	kinds := []fault{
		{"a link in one direction", f.cutOneWay},
		{"a region, from all others", f.isolate},
		{"the leading coordinator, killed", func(ctx context.Context) error { return f.killCoordinator(ctx, f.leading(ctx)) }},
		{"the leading coordinator, stopped", func(ctx context.Context) error { return f.pauseCoordinator(ctx, f.leading(ctx)) }},
		{"a store, killed", func(ctx context.Context) error {
			c := f.r.Of[f.region()]
			cluster.Kill(&c.Store)
			return errors.Join(f.wait(ctx), c.StartStore(ctx))
		}},
	}
	f.rnd.Shuffle(len(kinds), func(i, k int) { kinds[i], kinds[k] = kinds[k], kinds[i] })
	todo := []fault{{"copy 0 of etcd", f.takeCopy}, kinds[0], kinds[1], {"copy 1 of etcd", f.takeCopy}, kinds[2], kinds[3], {"copy 2 of etcd", f.takeCopy}, kinds[4]}
	return append(todo, f.restores(n)...)
}
