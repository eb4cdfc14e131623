package regions_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The simulation of movers has operators and coordinators only, that add, retire and dissolve at once, die between any two requests, and
// whose requests come late. There are no collectors: each region has decided one identity when it begins, which nothing may forget.
// The simulation of everything rarely has two changes under way at once.

var four = []claims.Region{"africa", "asia", "eu", "us"}

// movers is one schedule.
type movers struct {
	*sim
	// first are the regions of the first epoch, each with one identity that it has decided.
	first []claims.Region
	// asked are regions that somebody wanted to retire; out those of which an operator heard that they are, with the epoch; in those of which
	// one heard that they take part.
	asked   map[claims.Region]bool
	out, in map[claims.Region]uint64
	// losses are regions whose buckets did not answer any more, or were emptied. lacking are the copies of etcd that were made while a recovery was on;
	// restored: etcd was, to one of them. forgot: somebody has retired a region whatever etcd knows.
	losses           map[claims.Region]bool
	lacking          map[*kv.Store]bool
	restored, forgot bool
	// wiped is a region whose bucket was emptied while it took part.
	wiped claims.Region
	// dissolved is the number of the record that says so, and begun: somebody adds a region who has seen it.
	dissolved uint64
	begun     bool
	adding    map[*actor]int // how many requests an actor had made when its addition began
	sleeps    map[*actor]int // until which step an actor is slow
	at        *actor         // whose turn it is
	ends      map[string]int
}

// mover is an operator, or a coordinator that leads.
func (m *movers) mover(a *actor) {
	ctx := context.Background()
	for a.pause() {
		k := a.keeper(m.settings(a)...)
		name := four[a.rnd.IntN(len(four))]
		a.keeping = true
		n := a.rnd.IntN(20)
		if a.seed%4 == 3 && n >= 5 {
			// Of a linearizer that is dissolved again and again.
			n += a.rnd.IntN(20)
		}
		switch {
		case n < 5:
			m.adding[a] = a.requests
			m.begun = m.begun || m.dissolved > 0
			o, err := k.Add(ctx, name)
			delete(m.adding, a)
			a.logf("%p: add %s: %v %v", a, name, o.Epoch, err)
			if err == nil && !a.dead {
				m.opens(o)
				m.in[name] = max(m.in[name], o.Epoch.Number)
			}
		case n < 12:
			lost := cmp.Or(m.wiped, a.gone)
			if lost != "" && a.rnd.IntN(2) == 0 {
				name = lost
			}
			m.asked[name] = true
			o, err := k.Retire(ctx, name, false)
			if errors.Is(err, regions.ErrForgets) && name == lost && !a.dead && a.rnd.IntN(3) == 0 {
				m.forgot = true
				o, err = k.Retire(ctx, name, true)
			}
			a.logf("%p: retire %s: %v %v", a, name, o.Epoch, err)
			if err == nil && !a.dead {
				m.out[name] = max(m.out[name], o.Epoch.Number)
				if !slices.Contains(o.Retired, name) {
					m.fail("the retirement of %s succeeded, and epoch %d retires %v", name, o.Epoch.Number, o.Retired)
				}
				m.opens(o)
			}
		case n == 12 && a.rnd.IntN(3) == 0, n >= 28:
			if a.seed%4 == 3 && len(a.lived.Epoch.Regions) == 1 {
				name = a.lived.Epoch.Regions[0]
			}
			_, err := k.Dissolve(ctx, name)
			a.logf("%p: dissolve %s: %v", a, name, err)
		case n == 13:
			_, _, _ = k.Prepare(ctx, name, goOn)
		default:
			o, err := k.Open(ctx, true)
			a.logf("%p: open: %v %v", a, o.Epoch, err)
			if err == nil && !a.dead {
				m.opens(o)
			}
		}
	}
}

// settings are those of a coordinator, which may lack a region, but not the only one that knows of the linearizer.
func (m *movers) settings(a *actor) []claims.Region {
	lacks := four[a.rnd.IntN(len(four))]
	if a.rnd.IntN(6) > 0 || len(a.lived.Epoch.Regions) < 2 {
		lacks = ""
	}
	return slices.DeleteFunc(slices.Clone(four), func(n claims.Region) bool { return n == lacks })
}

// fills: an epoch can be opened from now on, if this was noted as filled. Whoever was slow, and whose request comes late, fills none with a region that
// is retired.
func (m *movers) fills(t claims.Txn) {
	for _, p := range t.Parts[0].Puts {
		if p.Key != keys.Filled() {
			continue
		}
		e, err := claims.ParseEpoch(p.Value)
		if err != nil {
			m.fail("%v", err)
		}
		for r := range m.out {
			if slices.Contains(e.Regions, r) {
				m.fail("epoch %d is filled, and has %s, which was retired in epoch %d", e.Number, r, m.out[r])
			}
		}
	}
}

// opens: an epoch was open.
func (m *movers) opens(o regions.Opened) {
	e := o.Epoch
	for r, n := range m.out {
		if e.Number >= n && slices.Contains(e.Regions, r) {
			m.fail("epoch %d has %s, which was retired in epoch %d", e.Number, r, n)
		}
	}
	for r, n := range m.in {
		if e.Number > n && !slices.Contains(e.Regions, r) && !m.asked[r] {
			m.fail("epoch %d lacks %s, which takes part since epoch %d", e.Number, r, n)
		}
	}
	if m.dissolved > 0 && e.Number > m.dissolved && !m.begun {
		m.fail("epoch %d is open, and the linearizer was dissolved in %d", e.Number, m.dissolved)
	}
	if e.Number >= m.last {
		m.last, m.lived = e.Number, o
	}
}

// record is called when one was written.
func (m *movers) record(of claims.Region, key string, body []byte) {
	if key != layout.RegionsKey {
		return
	}
	r, err := regions.ParseRecord(body)
	if err != nil {
		m.fail("%v", err)
	}
	m.logf("%s: %d %v, retired %v, dissolved %v", of, r.Number, r.Regions, r.Retired, r.Dissolved)
	if m.at != nil && m.rnd.IntN(6) == 0 {
		// Others come in between where it matters.
		m.sleeps[m.at] = m.step + m.rnd.IntN(300)
	}
	if r.Dissolved {
		// Whoever has read all records by then does not know of it. The first request is to etcd, and the last may not have been there yet.
		m.dissolved, m.begun = r.Number, false
		for a, began := range m.adding {
			m.begun = m.begun || !a.dead && a.requests-began <= 1+len(four)
		}
	}
}

// complete: etcd has everything that was decided.
func (m *movers) complete() bool {
	s, err := m.calmly(four...).Status(context.Background())
	newest := s.Newest
	// With the only region that has a record everything is lost, or that has all folds.
	has := slices.DeleteFunc(slices.Clone(newest.Regions), func(n claims.Region) bool { return s.Records[n].Number == 0 })
	return err == nil && len(has) > 1 && len(s.Epoch.Regions) > 1 && m.filled() && m.cluster == newest.Cluster
}

// filled: etcd has everything that was decided in its epoch.
func (m *movers) filled() bool {
	r, _ := m.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: keys.Epoch()}, {From: keys.Filled()}}}}})
	e, f := r.Parts[0].Reads[0], r.Parts[0].Reads[1]
	return len(e) > 0 && len(f) > 0 && string(e[0].Value) == string(f[0].Value)
}

func (m *movers) calmly(names ...claims.Region) *regions.Keeper {
	c := regions.Config{KV: m.kv, Keys: keys, Rand: simRand{m.rnd}, Now: func() int64 { return 7 }, SealAt: 4}
	for _, r := range names {
		c.Regions = append(c.Regions, regions.Region{Name: r, Store: calmBucket{m.sim, r}})
	}
	k, err := regions.New(c)
	if err != nil {
		m.t.Fatal(err)
	}
	return k
}

// calmBucket is a bucket whose requests never fail, but where it is gone, or away.
type calmBucket struct {
	w  *sim
	of claims.Region
}

func (b calmBucket) lost() error {
	if b.w.gone == b.of || b.w.away == b.of {
		return errDown
	}
	return nil
}

func (b calmBucket) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := b.lost(); err != nil {
		return nil, objstore.Info{}, err
	}
	return b.w.buckets[b.of].Get(ctx, key, o)
}

func (b calmBucket) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := b.lost(); err != nil {
		return objstore.Page{}, err
	}
	return b.w.buckets[b.of].List(ctx, o)
}

func (b calmBucket) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := b.lost(); err != nil {
		return objstore.Info{}, err
	}
	return b.w.buckets[b.of].Create(ctx, key, body, o)
}

func (b calmBucket) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if err := b.lost(); err != nil {
		return objstore.Info{}, err
	}
	return b.w.buckets[b.of].Replace(ctx, key, body, etag, o)
}

func decidedIn(r claims.Region) identity.Batch { return batch("of-"+string(r), 1, 5) }

func simulateMovers(t testing.TB, seed uint64, ends map[string]int) {
	rnd := rand.New(rand.NewPCG(seed, 15))
	w := &sim{t: t, rnd: rnd, seed: seed, faulty: 40, now: time.Unix(1000, 0), kv: kv.New(), cluster: 1, trace: os.Getenv("REGIONS_SIM_TRACE") != "", buckets: map[claims.Region]*mem.Store{}, faults: map[string]int{}}
	m := &movers{sim: w, asked: map[claims.Region]bool{}, out: map[claims.Region]uint64{}, in: map[claims.Region]uint64{}, adding: map[*actor]int{}, sleeps: map[*actor]int{}, lacking: map[*kv.Store]bool{}, losses: map[claims.Region]bool{}, ends: ends}
	w.wrote, w.committed = m.record, m.fills
	defer func() {
		for _, a := range w.actors {
			a.stop()
		}
		if w.failed != "" {
			t.Fatal(w.failed)
		}
	}()
	for _, r := range four {
		w.buckets[r] = mem.New(nil)
	}
	m.first = slices.Clone(four)
	rnd.Shuffle(len(m.first), func(i, j int) { m.first[i], m.first[j] = m.first[j], m.first[i] })
	if m.first = m.first[:1+rnd.IntN(3)]; seed%4 == 3 {
		m.first = m.first[:1]
	}
	m.begin()
	for range 2 + rnd.IntN(3) {
		w.spawn("", m.mover)
	}
	for steps := 150 + rnd.IntN(500); w.step < steps && w.failed == ""; {
		m.one()
	}
	w.quiet, w.away = true, ""
	for _, l := range w.late {
		l.fn()
	}
	for _, a := range w.actors {
		a.stop()
	}
	if w.failed == "" {
		m.end()
	}
}

// begin opens the first epoch. Each of its regions has decided an identity.
func (m *movers) begin() {
	o, err := m.calmly(m.first...).Open(context.Background(), true)
	if err != nil {
		m.t.Fatal(err)
	}
	m.opens(o)
	for _, r := range m.first {
		m.in[r] = o.Epoch.Number
		c := claims.Claim{Identity: decidedIn(r), Hash: identity.Digest{7}, State: claims.Settled, ID: claims.ID{9}, Home: r, Stamp: claims.Stamp{Epoch: 1, Fence: 1}, DurableAt: 1}
		put := claims.Put{Key: keys.Claim(c.Identity.BootOf(), 1), Value: c.Marshal()}
		if _, err := m.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{put}}}}); err != nil {
			m.t.Fatal(err)
		}
		f := manifestOf(r, c.Identity, c.Hash, accepted.Stamp{Epoch: 1, Fence: 1})
		if _, err := m.buckets[r].Create(context.Background(), f.Key(), f.Marshal(), objstore.PutOptions{}); err != nil {
			m.t.Fatal(err)
		}
	}
}

// one lets one thing happen.
func (m *movers) one() {
	m.step++
	switch n := m.rnd.IntN(100); {
	case n < 4:
		m.actors[m.rnd.IntN(len(m.actors))].kill()
	case n < 10 && len(m.late) > 0:
		i := m.rnd.IntN(len(m.late))
		l := m.late[i]
		m.late = slices.Delete(m.late, i, i+1)
		l.fn()
	case n == 10:
		m.away = ""
		if m.rnd.IntN(2) == 0 {
			m.away = four[m.rnd.IntN(len(four))]
		}
	case n == 11 && m.seed%2 == 0 && (m.gone == "" || m.out[m.gone] > 0) && m.complete():
		// The next one, once the one before is retired, whose bucket is there again, with what it had.
		m.gone = m.lived.Epoch.Regions[m.rnd.IntN(len(m.lived.Epoch.Regions))]
		m.losses[m.gone] = true
		m.logf("%s is gone", m.gone)
		if m.seed%6 == 0 && m.wiped == "" {
			// What was on the way to it is lost with it.
			m.gone, m.wiped, m.late = "", m.gone, nil
			m.buckets[m.wiped] = mem.New(nil)
			m.logf("%s is empty", m.wiped)
		}
	case n == 12 && (m.seed%4 == 1 || m.seed%8 == 0):
		c := m.kv.Copy()
		m.copies, m.lacking[c] = append(m.copies, c), !m.filled()
	case n == 13 && len(m.copies) > 0 && m.rnd.IntN(3) == 0:
		c := m.copies[m.rnd.IntN(len(m.copies))]
		m.restored = m.restored || m.lacking[c]
		if m.wiped != "" {
			// Etcd and a region are lost together: nobody knows that the region had a record.
			m.restored, m.asked[m.wiped] = true, true
		}
		if m.rnd.IntN(2) == 0 {
			m.cluster++
		}
		m.logf("etcd is restored as cluster %d", m.cluster)
		m.kv.Restore(c, m.cluster)
		if err := m.calmly(four...).Distrust(context.Background(), m.lived); err != nil {
			m.fail("%v", err)
		}
	default:
		a := m.actors[m.rnd.IntN(len(m.actors))]
		if m.step < m.sleeps[a] {
			return
		}
		m.at = a
		if _, ok := a.resume(); !ok {
			a.restart()
		}
		m.at = nil
	}
}

// end: an epoch opens, it keeps what was decided, and stays open while any one region is away. Or it says what an operator has to do.
func (m *movers) end() {
	ctx := context.Background()
	k := m.calmly(four...)
	o, err := k.Open(ctx, true)
	var of *regions.RegionError
	// Of two that are lost at once the one whose bucket is empty is retired last.
	for _, lost := range []claims.Region{m.wiped, m.gone, m.wiped} {
		if lost == "" || !(errors.As(err, &of) && of.Region == lost || errors.Is(err, regions.ErrForgets) || err == nil && slices.Contains(o.Epoch.Regions, lost)) {
			continue
		}
		m.asked[lost] = true
		if o, err = k.Retire(ctx, lost, false); errors.Is(err, regions.ErrForgets) || errors.Is(err, regions.ErrRegionSettings) && m.wiped != "" && lost == m.gone {
			m.forgot = true
			o, err = k.Retire(ctx, lost, true)
		} else if errors.Is(err, regions.ErrRetiring) {
			// Nobody else retires the other one any more, and nothing is forgotten by this, but what an empty bucket had.
			m.ends["forced"]++
			m.forgot = m.forgot || m.wiped != ""
			o, err = k.Retire(ctx, lost, true)
		}
	}
	switch {
	case errors.Is(err, regions.ErrDissolved):
		m.ends["dissolved"]++
		return
	case errors.Is(err, regions.ErrRegionSettings) && m.allAreLost():
		m.ends["all are lost"]++
		return
	case err != nil && m.lastIsGone():
		m.ends["the last region is gone"]++
		return
	case errors.Is(err, regions.ErrRegionSettings) && (m.forgot || m.gone+m.wiped != ""):
		// Of two that retire each other's region, or the region that both have is the one that is gone.
		m.ends["settings"]++
		m.logf("%v", err)
		for _, r := range four {
			names := slices.DeleteFunc(slices.Clone(four), func(n claims.Region) bool { return n == r })
			left := m.calmly(names...)
			_, err = left.Open(ctx, true)
			if errors.Is(err, regions.ErrForgets) {
				_, err = left.Retire(ctx, r, true)
			}
			if errors.As(err, &of) && (of.Region == m.gone || of.Region == m.wiped) {
				_, err = left.Retire(ctx, of.Region, true)
			}
			if lost := m.gone; lost != "" && errors.Is(err, regions.ErrForgets) {
				_, err = left.Retire(ctx, r, true)
				if errors.As(err, &of) && of.Region == lost {
					// Etcd was restored, too, so each of the two waits for the other one. It goes on as where two regions are lost at once.
					m.gone, m.buckets[lost] = "", mem.New(nil)
					if _, err = left.Retire(ctx, r, true); err == nil {
						_, err = left.Retire(ctx, lost, false)
					}
				}
			}
			m.logf("without %s: %v", r, err)
			if err == nil || errors.Is(err, regions.ErrDissolved) {
				return
			}
		}
	}
	if err != nil {
		m.fail("in the end: %v", err)
		return
	}
	m.opens(o)
	m.ends[fmt.Sprintf("%d regions", len(o.Epoch.Regions))]++
	for _, r := range o.Epoch.Regions {
		if r == m.gone || r == m.wiped && !m.restored {
			m.fail("%s is lost, and takes part: %v", r, o.Epoch)
		}
	}
	for _, r := range m.first {
		if got := m.said(k, o, decidedIn(r)); got != "" && !(((m.restored || m.forgot) && m.losses[r] || m.dissolved > 0) && m.asked[r]) {
			m.fail("what %s had decided is %s in epoch %d with %v", r, got, o.Epoch.Number, o.Epoch.Regions)
		}
	}
	for _, r := range o.Epoch.Regions {
		if len(o.Epoch.Regions) == 1 {
			break
		}
		m.away = r
		if now, err := k.Open(ctx, false); err != nil || now.Epoch.ID != o.Epoch.ID {
			m.fail("epoch %d with %v is not open while %s is away: %v", o.Epoch.Number, o.Epoch.Regions, r, err)
		}
		m.away = ""
	}
}

// allAreLost: the regions of etcd's epoch are the two that were lost at once. The record of one that was retired long ago is no reason to begin anything.
func (m *movers) allAreLost() bool {
	s, err := m.calmly(four...).Status(context.Background())
	return err == nil && len(s.Epoch.Regions) > 0 && !slices.ContainsFunc(s.Epoch.Regions, func(n claims.Region) bool { return n != m.gone && n != m.wiped })
}

// lastIsGone: of the region that is gone nobody who answers says that it is retired, but of all others.
func (m *movers) lastIsGone() bool {
	if m.gone == "" {
		return false
	}
	was := m.gone
	m.gone = ""
	defer func() { m.gone = was }()
	s, err := m.calmly(four...).Status(context.Background())
	return err == nil && slices.Equal(s.Newest.Regions, []claims.Region{was})
}

// said is what is wrong about an identity that was decided.
func (m *movers) said(k *regions.Keeper, o regions.Opened, id identity.Batch) string {
	for _, c := range m.all() {
		if c.Identity == id {
			if c.Hash != (identity.Digest{7}) {
				return "another frame's"
			}
			return ""
		}
	}
	known := claims.Folds{At: 1 << 40, Epoch: o.Epoch.Number}
	a, looked, err := k.Folded(k.Folder(o.Epoch, o.Retired)).Decide(context.Background(), claims.Op{Kind: claims.DoClaim, Identity: id, Hash: identity.Digest{7}}, known)
	switch {
	case err != nil:
		return err.Error()
	case a.Outcome == claims.Decided || looked.Bound:
		return ""
	case a.Outcome != 0:
		return "another frame's"
	}
	return "free"
}

func TestSimulationOfMovers(t *testing.T) {
	seeds, first := simulated(t, 1500)
	ends := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		simulateMovers(t, seed, ends)
	}
	t.Logf("%d schedules: %v", seeds, ends)

}
