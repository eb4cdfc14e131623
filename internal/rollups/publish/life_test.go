package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// life is one schedule of the whole life of blocks: workers that roll up what was
// accepted, with late batches, compactors and retentions with stale views, collectors, and
// readers that opened a view before.
type life struct {
	*sim
	ledger      *ledger
	settings    compact.Settings
	resolutions []timegrid.Resolution
	expires     bool
	views       []*catalog.View // that somebody may still go by
	cat         *catalog.Catalog
	reads       int // that were whole
	replaced    int // that were told so
	turned      int
	expired     int
}

// playLife plays one schedule to its end.
func playLife(seed uint64) *life {
	rng := rand.New(rand.NewPCG(seed, 2))
	w := newSim(rng)
	l := &life{sim: w, ledger: newLedger(w), settings: compact.DefaultSettings(), resolutions: []timegrid.Resolution{timegrid.Raw}}
	w.ledger = l.ledger
	w.chaos = min(w.chaos, 0.15) // a compaction makes many requests, and is to get far
	l.settings.Spans = map[timegrid.Resolution][]uint16{timegrid.Raw: {2, 4}, timegrid.OneMinute: {4}}
	l.settings.After = 0
	l.settings.ObjectBytes = []int64{1, 1 << 20}[rng.IntN(2)]
	if rng.IntN(4) == 0 {
		l.resolutions = append(l.resolutions, timegrid.OneMinute)
	}
	l.expires = rng.IntN(3) == 0
	w.clock.now = (hour0 + 1).End().Add(time.Duration(rng.IntN(3)) * time.Hour)
	w.initEpoch(false)
	if rng.IntN(6) == 0 {
		l.spoil()
	}
	l.begin()
	w.play(10+rng.IntN(30), rng.IntN(3) == 0, rng.IntN(2) == 0, l.spawn, l.event)
	l.finish()
	return l
}

// begin publishes most hours in peace.
func (l *life) begin() {
	l.calm = true
	for h := hour0; h < hour0+lifeHours; h++ {
		for s := range shard.ID(lifeShards) {
			at := place{h, s}
			l.ledger.accepted[at] = 1 + l.rng.IntN(3)
			for _, res := range l.resolutions {
				if l.rng.IntN(4) > 0 {
					l.roll(&port{w: l.sim, name: "first"}, at, res, 0, l.look(&port{w: l.sim}))
				}
			}
		}
	}
	if l.rng.IntN(2) == 0 { // and some are compacted
		l.compactRest(&port{w: l.sim, name: "first"}, 0)
	}
	l.calm, l.cat = false, nil
}

func (l *life) spawn() {
	name := fmt.Sprint(l.n)
	switch l.rng.IntN(10) {
	case 0, 1:
		l.start("p"+name, l.work)
	case 2, 3, 4:
		l.start("m"+name, l.compact)
	case 5, 6:
		l.start("c"+name, l.collectAny)
	case 7, 8:
		l.start("r"+name, l.read)
	default:
		if l.expires {
			l.start("t"+name, l.retain)
		} else {
			l.start("c"+name, l.collectAny)
		}
	}
}

// event is something from outside: an hour goes by, a late batch is accepted, or somebody
// reads everything while all others stand still.
func (l *life) event() {
	switch l.rng.IntN(4) {
	case 0:
		l.clock.now = l.clock.now.Add(time.Hour)
	case 1:
		l.calm = true
		l.read(&port{w: l.sim, name: "reader"})
		l.calm = false
	default:
		if at := l.anyPlace(); l.ledger.accepted[at] < 30 {
			l.ledger.accepted[at]++
		}
	}
}

func (l *life) anyPlace() place {
	return place{hour0 + timegrid.Hour(l.rng.IntN(lifeHours)), shard.ID(l.rng.IntN(lifeShards))}
}

func (l *life) anyResolution() timegrid.Resolution {
	return l.resolutions[l.rng.IntN(len(l.resolutions))]
}

// spoil puts other bytes where a chunk belongs.
func (l *life) spoil() {
	at := l.anyPlace()
	o := lifeOutputs(at, 1+l.rng.IntN(3))[0]
	if _, err := l.store.Put(context.Background(), layout.RollupChunk(timegrid.Raw, at.hour, o.Metric, sum(load(o.Chunk)), 0), []byte("rotten"), objstore.PutOptions{}); err != nil {
		panic(err)
	}
}

// look reads the catalog; nil when it could not.
func (l *life) look(p *port) *catalog.View {
	if l.calm && l.cat != nil { // nobody stands still with it
		v, err := l.cat.Refresh(context.Background(), hour0, hour0+lifeHours-1)
		if err != nil {
			l.violated("end: %v", err)
		}
		return v
	}
	cat, err := catalog.New(catalog.Config{Reader: p, AuthorityID: "a"})
	if err != nil {
		panic(err)
	}
	if l.calm {
		l.cat = cat
	}
	v, err := cat.Refresh(context.Background(), hour0, hour0+lifeHours-1)
	if err != nil {
		return nil
	}
	if l.views = append(l.views, v); len(l.views) > 40 {
		l.views = l.views[1:]
	}
	return v
}

// lookOrGuess is a view of now, or of some time ago.
func (l *life) lookOrGuess(p *port) *catalog.View {
	if len(l.views) > 0 && l.rng.IntN(3) == 0 {
		return l.views[l.rng.IntN(len(l.views))]
	}
	return l.look(p)
}

// work is a worker that rolls up an hour.
func (l *life) work(p *port) {
	res, fence := l.anyResolution(), uint64(l.n)
	at := l.anyPlace()
	if _, records := l.ledger.tops(res); l.rng.IntN(4) > 0 { // one with late batches
		late := slices.DeleteFunc(l.ledger.places(), func(at place) bool { return records[at] == l.ledger.accepted[at] })
		if len(late) > 0 {
			at = late[l.rng.IntN(len(late))]
		}
	}
	for range 3 {
		v := l.lookOrGuess(p)
		if v == nil {
			continue
		}
		if err := l.roll(p, at, res, fence, v); err == nil || errors.Is(err, publish.ErrFenced) {
			return
		}
	}
}

// lifePlan is the plan of a generation: the first Records of its hour.
type lifePlan struct{ Records int }

var errNothingNew = errors.New("nothing new")

// roll publishes the next generation from its plan, which is the one that is there.
func (l *life) roll(p *port, at place, res timegrid.Resolution, fence uint64, v *catalog.View) error {
	ctx := context.Background()
	gen := v.Top(at.hour, at.shard, res) + 1
	plan := lifePlan{l.ledger.accepted[at]}
	pub := publish.Publication{Name: catalog.Name{Hour: at.hour, Shard: at.shard, Resolution: res, Generation: gen}, Shards: lifeShards, Fence: fence}
	if s := v.Block(at.hour, at.shard, res); s != nil {
		pub.Supersedes = s.Name.Generation
		if int(s.Inputs.Records()) == plan.Records {
			return errNothingNew
		}
	}
	body, err := json.Marshal(plan)
	if err != nil {
		panic(err)
	}
	key := layout.RollupPlan(at.hour, at.shard, gen)
	if _, err := p.Create(ctx, key, body, objstore.PutOptions{}); err != nil {
		if body, _, err = p.Get(ctx, key, objstore.GetOptions{}); err != nil {
			return err
		}
		if err := json.Unmarshal(body, &plan); err != nil {
			panic(err)
		}
	}
	pub.PlanSHA256 = identity.Sum(body)
	pub.Inputs = lifeInputs(at, plan.Records)
	pub.Counts = catalog.Counts{Records: uint64(plan.Records), Published: uint64(plan.Records)}
	pub.Outputs = lifeOutputs(at, plan.Records)
	done, err := p.publisher().Publish(ctx, pub)
	l.note(p.name, fmt.Sprintf("published %s", pub.Name.Key()), err)
	l.checkAnswer(pub.Name.Key(), string(publish.NewTxn(pub.Name.Key(), pub.PlanSHA256)), done, err)
	return err
}

// compact is a worker that merges what it believes to be there.
func (l *life) compact(p *port) {
	res, fence := l.anyResolution(), uint64(l.n)
	c := l.compactor(p)
	for range 1 + l.rng.IntN(2) {
		var blocks []*catalog.Block
		if l.rng.IntN(2) == 0 {
			seen, err := compact.NewScanner(p, "a").Scan(context.Background(), res, hour0, hour0+lifeHours-1, func(shard.ID) bool { return true })
			if err != nil {
				continue
			}
			blocks = seen.Blocks
			ask := seen.Orphaned()
			if k := len(seen.Compactions); k > 0 && l.rng.IntN(2) == 0 { // an item proves nothing
				ask = append(ask, seen.Compactions[l.rng.IntN(k)])
			}
			for _, n := range ask {
				l.note(p.name, "released "+n.Key(), p.publisher().Release(context.Background(), n))
			}
		} else if v := l.lookOrGuess(p); v != nil {
			blocks = setsOf(v, res)
		}
		cands := l.settings.Choose(res, blocks, 0, l.clock.now)
		if len(cands) == 0 {
			continue
		}
		cand := cands[l.rng.IntN(len(cands))]
		res, err := c.Compact(context.Background(), cand, fence)
		l.note(p.name, fmt.Sprintf("compacted %s: %d turned, %d not", cand.Name.SlotPrefix(), res.Redirected, res.Skipped), err)
		l.turned += res.Redirected
		if errors.Is(err, compact.ErrNotConserved) {
			l.violated("conserved: %v", err)
		}
	}
}

func (l *life) compactor(p *port) *compact.Compactor {
	c, err := compact.NewCompactor(compact.Config{Store: p, Publisher: p.publisher(), AuthorityID: "a", Settings: l.settings})
	if err != nil {
		panic(err)
	}
	return c
}

func setsOf(v *catalog.View, res timegrid.Resolution) []*catalog.Block {
	var blocks []*catalog.Block
	for _, h := range v.Hours() {
		blocks = append(blocks, v.Blocks(h, res)...)
	}
	return blocks
}

// retain moves the end of what is kept on, and removes what lies behind it.
func (l *life) retain(p *port) {
	res := l.resolutions[0] // raw: the others stay
	to := max(l.ledger.horizon[res], hour0+timegrid.Hour(l.rng.IntN(lifeHours-1)))
	l.ledger.horizon[res] = to
	rep, err := l.retainer(p).Expire(context.Background(), res, hour0-5, to)
	l.note(p.name, fmt.Sprintf("retained up to hour %d: %d removed", to-hour0, rep.Blocks), err)
	l.expired += rep.Blocks
}

func (l *life) retainer(p *port) *compact.Expirer {
	r, err := compact.NewExpirer(compact.ExpirerConfig{Store: p, Publisher: p.publisher(), AuthorityID: "a", WorkerID: p.name, Now: l.clock.Now})
	if err != nil {
		panic(err)
	}
	return r
}

func (l *life) collectAny(p *port) {
	c := p.collector()
	for range 1 + l.rng.IntN(3) {
		if l.rng.IntN(2) == 0 {
			_, err := c.Sweep(context.Background(), hour0+timegrid.Hour(l.rng.IntN(lifeHours)))
			l.note(p.name, "swept", err)
		}
		if l.rng.IntN(4) == 0 {
			l.note(p.name, "swept plans", l.sweepPlans(c, shard.ID(l.rng.IntN(lifeShards))))
		}
		l.forget(p, c)
		_, err := c.Step(context.Background(), 1+l.rng.IntN(40))
		l.note(p.name, "stepped", err)
	}
}

// read opens a view and then reads all that it names, one object after the other. It gets
// everything, or it is reported: by a problem of the view, an error, or an object that is not
// there, which then is replaced.
func (l *life) read(p *port) {
	res := l.anyResolution()
	_, least := l.ledger.tops(res) // what is there by now can't be missing
	newest := l.ledger.newest(res) // and what it replaced does not come back
	v := (*catalog.View)(nil)
	if !l.calm && len(l.views) > 0 && l.rng.IntN(2) == 0 {
		v, least, newest = l.views[l.rng.IntN(len(l.views))], nil, nil
	} else if v = l.look(p); v == nil {
		return
	}
	for _, h := range v.Hours() {
		if len(v.Problems(h)) > 0 {
			l.note(p.name, "a view with problems", v.Problems(h)[0].Err)
			return
		}
	}
	blocks := setsOf(v, res)
	records := map[place]int{}
	for _, s := range blocks {
		at := place{s.Name.Hour, s.Name.Shard}
		records[at] = int(s.Inputs.Records())
		if gen := newest[at].Generation; s.Name.Generation < gen {
			l.violated("old: a view has generation %d of hour %d, shard %s, and %d was published before it was opened", s.Name.Generation, at.hour-hour0, at.shard, gen)
		}
	}
	for at, n := range least {
		if h, ok := l.ledger.horizon[res]; ok && at.hour <= h {
			continue // it may be gone
		}
		if records[at] < n {
			l.violated("silent: a view has %d records of hour %d, shard %s, %d were published before it was opened", records[at], at.hour-hour0, at.shard, n)
		}
	}
	seen := map[row]int{}
	for _, piece := range catalog.Pieces(blocks) {
		for i := range piece.Block.Objects {
			o := &piece.Block.Objects[i]
			for _, get := range []struct {
				key string
				sum identity.Digest
			}{{o.IndexKey, o.IndexSHA256}, {o.ChunkKey, o.ChunkSHA256}} {
				b, _, err := p.Get(context.Background(), get.key, objstore.GetOptions{})
				switch {
				case errors.Is(err, objstore.ErrNotFound):
					l.gone(piece.Block, get.key)
					return
				case err != nil:
					return
				case identity.Sum(b) != get.sum:
					l.violated("bytes: %s is not what its block says", get.key)
					return
				}
			}
			l.ledger.count(seen, &piece, l.ledger.chunkRows(o))
		}
	}
	l.ledger.compare("read", res.String(), seen, records)
	l.reads++
}

// gone: an object that a view named is not there; so the block that named it gave way.
func (l *life) gone(s *catalog.Block, key string) {
	l.replaced++
	if r := l.record(s.Name.Key()); r != nil && r.Block != nil && r.Block.Names(key) {
		l.violated("missing: a reader does not find %s, and %s names it", key, s.Name.Key())
	}
}

// finish lets everything land, does all that is due in peace, and checks what is left.
func (l *life) finish() {
	for len(l.late) > 0 {
		l.land()
	}
	if len(l.violations) > 0 {
		return
	}
	l.calm = true
	ctx := context.Background()
	p := &port{w: l.sim, name: "end"}
	if _, err := p.collector().InitEpoch(ctx, &l.ids, false); err != nil {
		l.violated("end: %v", err)
	}
	if due := dueAt().Add(time.Hour); l.clock.now.Before(due) {
		l.clock.now = due
	}
	l.rollRest(p)
	l.compactRest(p, 1<<30)
	if last, ok := l.ledger.horizon[timegrid.Raw]; ok {
		if _, err := l.retainer(p).Expire(ctx, timegrid.Raw, hour0-5, last); err != nil {
			l.violated("end: retention: %v", err)
		}
	}
	for range 5 {
		for h := hour0; h < hour0+lifeHours; h++ {
			if _, err := p.collector().Sweep(ctx, h); err != nil {
				l.violated("end: %v", err)
			}
		}
		for s := range shard.ID(lifeShards) {
			if err := l.sweepPlans(p.collector(), s); err != nil {
				l.violated("end: %v", err)
			}
		}
		l.clock.now = l.clock.now.Add(time.Hour)
		if _, err := p.collector().Step(ctx, 10_000); err != nil {
			l.violated("end: %v", err)
		}
	}
	l.checkEnd()
}

// rollRest rolls up what was accepted and is not published.
func (l *life) rollRest(p *port) {
	for _, at := range l.ledger.places() {
		for _, res := range l.resolutions {
			if last, ok := l.ledger.horizon[res]; ok && at.hour <= last {
				continue
			}
			err := error(nil)
			for try := 0; err != errNothingNew; try++ {
				if err = l.roll(p, at, res, 1<<30, l.look(p)); try == 200 {
					l.violated("end: hour %d of shard %s: %v", at.hour-hour0, at.shard, err)
					return
				}
			}
		}
	}
}

// compactRest compacts what is due, and asks for what is needed no more.
func (l *life) compactRest(p *port, fence uint64) {
	looker := compact.NewScanner(p, "a")
	for _, res := range l.resolutions {
		for round := 0; ; round++ {
			seen, err := looker.Scan(context.Background(), res, hour0, hour0+lifeHours-1, func(shard.ID) bool { return true })
			if err != nil || seen.Skipped > 0 {
				l.violated("end: %d hours are skipped, %v", seen.Skipped, err)
				return
			}
			cands := l.settings.Choose(res, seen.Blocks, 0, l.clock.now)
			if len(cands) == 0 {
				for _, n := range seen.Orphaned() {
					if err := p.publisher().Release(context.Background(), n); err != nil {
						l.violated("end: %v", err)
					}
				}
				break
			}
			if round == 200 {
				l.violated("end: there is always something to compact: %s", cands[0].Name.SlotPrefix())
				return
			}
			if _, err := l.compactor(p).Compact(context.Background(), cands[0], fence); err != nil && !errors.Is(err, compact.ErrAborted) && !errors.Is(err, publish.ErrAborted) {
				l.violated("end: compaction: %v", err)
				return
			}
		}
	}
}

// checkEnd: what was accepted is published or expired, and nothing is left over.
func (l *life) checkEnd() {
	p := &port{w: l.sim, name: "end"}
	v := l.look(p)
	for _, h := range v.Hours() {
		if ps := v.Problems(h); len(ps) > 0 {
			l.violated("end: hour %d: %v", h-hour0, ps[0].Err)
		}
	}
	for _, res := range l.resolutions {
		_, records := l.ledger.tops(res)
		for at, n := range l.ledger.accepted {
			last, ok := l.ledger.horizon[res]
			if want := n; ok && at.hour <= last {
				if records[at] > 0 {
					l.violated("end: hour %d of shard %s is over, and there", at.hour-hour0, at.shard)
				}
			} else if records[at] != want {
				l.violated("end: hour %d of shard %s has %d records, %d are accepted", at.hour-hour0, at.shard, records[at], want)
			}
		}
	}
	l.read(p)
	l.checkPlans()
	l.forgetAll()
	named := map[string]bool{}
	for n, r := range l.ledger.last {
		if r.Block == nil {
			continue
		}
		if n.Span == 0 && l.ledger.top(n) != n {
			l.violated("collected: %s is superseded, and there", n.Key())
		}
		if n.Span > 0 && !slices.ContainsFunc(r.Block.Sources, func(src catalog.Name) bool {
			s := l.ledger.last[src]
			return s != nil && s.Block != nil && s.Block.Redirect != nil && s.Block.Redirect.Name == n
		}) {
			l.violated("collected: nobody needs %s", n.Key())
		}
		for _, k := range r.Block.Keys() {
			named[k] = true
		}
	}
	ctx := context.Background()
	for _, prefix := range []string{layout.RollupPrefix + "window=", layout.IndexPrefix, layout.DelayedPrefix} {
		err := storetest.Each(ctx, l.store, prefix, func(i objstore.Info) error {
			if !named[i.Key] {
				l.violated("collected: %s is left", i.Key)
			}
			delete(named, i.Key)
			return nil
		})
		if err != nil {
			l.violated("end: %v", err)
		}
	}
	for k := range named {
		l.violated("missing: %s at the end", k)
	}
}

const lifeSchedules = 200

func TestLifeSchedules(t *testing.T) {
	first, schedules := fromEnv("LIGHTMETRICS_SEED", 1), fromEnv("LIGHTMETRICS_SCHEDULES", lifeSchedules)
	published, requests, reads, replaced, turned, expired := 0, 0, 0, 0, 0, 0
	for seed := first; seed < first+schedules; seed++ {
		l := playLife(seed)
		published += l.published
		requests += len(l.trace)
		reads, replaced, turned, expired = reads+l.reads, replaced+l.replaced, turned+l.turned, expired+l.expired
		if len(l.violations) > 0 {
			from := max(0, len(l.trace)-200)
			t.Fatalf("seed %d: %s\n%s", seed, l.violations[0], strings.Join(l.trace[from:], "\n"))
		}
	}
	t.Logf("from seed %d: %d publications, %d requests, %d blocks compacted, %d expired, %d views read, %d replaced meanwhile", first, published, requests, turned, expired, reads, replaced)
	for what, n := range map[string]int{"published": published, "compacted": turned, "expired": expired, "read": reads, "replaced": replaced} {
		if n == 0 && schedules >= lifeSchedules {
			t.Errorf("nothing was %s", what)
		}
	}
}

// A seed is a schedule: the same requests in the same order.
func TestSchedulesReplay(t *testing.T) {
	for seed := range uint64(5) {
		if a, b := runSim(seed, timegrid.Raw).trace, runSim(seed, timegrid.Raw).trace; !slices.Equal(a, b) {
			t.Errorf("seed %d of the first kind differs", seed)
		}
		a, b := playLife(seed).trace, playLife(seed).trace
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("seed %d differs at request %d: %s", seed, i, a[i])
			}
		}
	}
}
