package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Why an hour can't be ordered.
var (
	// ErrNothing: nothing is published of the hour, or not any more, and no generation is in work.
	ErrNothing = errors.New("nothing is published of this hour")
	// ErrUnknown: nothing tells which batches the damaged generation had, and there was no scan.
	ErrUnknown = errors.New("the inputs of the hour are not known")
	// ErrInWork: an older generation has to be decided first, by its owner. Give the order again.
	ErrInWork = errors.New("in work: wait until it is decided")
	// ErrLost: frames were removed by retention, and the raw rows that were made of them
	// can't be read: there is nothing left to make the hour of.
	ErrLost = errors.New("neither frames nor raw rows are left")
)

// Ordered is what an order says, or would say.
type Requested struct {
	Hour  timegrid.Hour
	Shard shard.ID
	// Generation that is to be made.
	Generation uint64
	Batches    int
	// Removed are batches whose frames retention removed: their rows come from the raw set.
	Removed int
	// Source of the inputs: plan (that of the generation is there already), plans,
	// manifests (identity manifests of what a set lists), scan.
	Source string
	// Damaged records that are superseded, and Aborted generations whose plan can't be read.
	Damaged []string
	Aborted []uint64
	// Pending: the same was ordered before and is not done yet.
	Pending bool
}

// state of a shard's hour.
type state struct {
	top     map[timegrid.Resolution]uint64
	sets    map[timegrid.Resolution]*catalog.Block // highest that can be read
	damaged []catalog.Name
}

// Order gives the order to make the hour anew: it fixes the plan of the next generation,
// with the inputs of all that was published of the hour, and creates the order. dry only
// tells. Repeats are harmless.
func (r *Repairer) Request(ctx context.Context, h timegrid.Hour, s shard.ID, reason string, dry bool) (Requested, error) {
	o := Requested{Hour: h, Shard: s}
	err := r.request(ctx, &o, reason, dry)
	if err != nil {
		err = fmt.Errorf("order hour %s of shard %s: %w", h, s, err)
	}
	return o, err
}

func (r *Repairer) request(ctx context.Context, o *Requested, reason string, dry bool) error {
	st, err := r.state(ctx, o.Hour, o.Shard)
	if err != nil {
		return err
	}
	least, most := ^uint64(0), uint64(0)
	for _, res := range timegrid.Resolutions() {
		least, most = min(least, st.top[res]), max(most, st.top[res])
	}
	// Plans of generations that are not decided everywhere: a damaged one can never be made.
	plans := map[uint64]*rollup.Plan{}
	var next *rollup.Plan
	for gen := least + 1; next == nil; gen++ {
		p, _, err := r.plan(ctx, layout.RollupPlan(o.Hour, o.Shard, gen))
		switch {
		case errors.Is(err, objstore.ErrNotFound) && gen > most:
			o.Generation = gen
		case errors.Is(err, objstore.ErrNotFound):
			continue
		case record.Unreadable(err):
			o.Aborted = append(o.Aborted, gen)
			if most = max(most, gen); dry {
				continue
			}
			if err := r.abort(ctx, o.Hour, o.Shard, gen, st.top); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case gen <= most:
			plans[gen] = p
			continue
		default:
			next, o.Generation, o.Source, o.Batches = p, gen, "plan", len(p.Inputs)
		}
		break
	}
	if most == 0 {
		return ErrNothing
	}
	for _, n := range st.damaged {
		o.Damaged = append(o.Damaged, n.Key())
	}
	if next == nil {
		if next, err = r.inputs(ctx, o, st, plans); err != nil {
			return err
		}
	}
	if err := r.possible(ctx, o, next, st); err != nil || dry {
		return err
	}
	ord := catalog.RepairRequest{AuthorityID: r.cfg.AuthorityID, Shard: o.Shard, Hour: o.Hour, Above: most, Damaged: o.Damaged,
		Reason: reason, By: r.cfg.By, RequestedAt: max(r.cfg.Now().UnixNano(), 0)}
	// Where the owner made the plan it may be making this generation now, without knowing
	// of the order: only the one after it counts. Over damaged records it can make none
	// without.
	if o.Source == "plan" {
		if len(o.Damaged) == 0 {
			ord.Above = o.Generation
		}
		return r.create(ctx, o, most, ord)
	}
	// The order comes first: whoever finds its plan finds it.
	if err := r.create(ctx, o, most, ord); err != nil {
		return err
	}
	if o.Removed > 0 {
		next.Parts = 1 // rows of a former set are not split up
	}
	if mine, err := r.createPlan(ctx, next); err != nil || mine || len(o.Damaged) > 0 {
		return err
	}
	ord.Above = o.Generation
	return r.create(ctx, o, o.Generation, ord)
}

// state reads the records of all resolutions down to the highest committed one.
func (r *Repairer) state(ctx context.Context, h timegrid.Hour, s shard.ID) (*state, error) {
	st := &state{top: map[timegrid.Resolution]uint64{}, sets: map[timegrid.Resolution]*catalog.Block{}}
	records := r.records()
	for of, err := range catalog.Slots(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(h)}) {
		if err != nil {
			return nil, err
		}
		if of.Name.Span > 0 || of.Name.Shard != s {
			continue
		}
		counts, err := records.State(ctx, of)
		if err != nil {
			return nil, err
		}
		st.top[of.Name.Resolution] = counts.Top
		for _, g := range counts.Doubt {
			if !record.Unreadable(g.Err) {
				return nil, g.Err // gone since, or of a newer release: nothing is repaired of it
			}
			st.damaged = append(st.damaged, g.Name)
		}
		if counts.Block != nil {
			st.sets[of.Name.Resolution] = counts.Block
		}
	}
	return st, nil
}

// abort decides a generation that can't be made, in the resolutions that have not decided it.
func (r *Repairer) abort(ctx context.Context, h timegrid.Hour, s shard.ID, gen uint64, top map[timegrid.Resolution]uint64) error {
	for _, res := range slices.Backward(timegrid.Resolutions()) {
		if top[res] >= gen {
			continue
		}
		if top[res] < gen-1 {
			return fmt.Errorf("generation %d of %s: %w", gen-1, res, ErrInWork)
		}
		n := catalog.Name{Hour: h, Shard: s, Resolution: res, Generation: gen}
		a := catalog.Record{Aborted: &catalog.Aborted{AuthorityID: r.cfg.AuthorityID, Name: n, Reason: "plan can not be read", WorkerID: r.cfg.By, AbortedAt: max(r.cfg.Now().UnixNano(), 0)}}
		_, err := r.cfg.Store.Create(ctx, n.Key(), a.Marshal(), objstore.PutOptions{ContentType: "application/json"})
		if err != nil && !errors.Is(err, objstore.ErrExists) {
			return err // unknown too: give the order again
		}
		top[res] = gen
	}
	return nil
}

// recordBytes is about what a worker takes of memory for a record of an hour, memory what
// it has for one by default: together they make the parts of a plan.
const (
	recordBytes = 48
	memory      = 256 << 20
)

// inputs makes the plan of the next generation: everything that a generation had, or may
// have had, which counts.
func (r *Repairer) inputs(ctx context.Context, o *Requested, st *state, plans map[uint64]*rollup.Plan) (*rollup.Plan, error) {
	if err := r.readPlans(ctx, o, st, plans); err != nil {
		return nil, err
	}
	o.Source = "plans"
	g := gathered{entries: map[identity.Batch]accepted.Batch{}, known: map[uint64]bool{}, parts: 1}
	for _, block := range st.sets {
		g.known[block.Name.Generation] = true
	}
	for _, p := range plans {
		g.add(p)
	}
	if err := r.addBlocks(ctx, o, st, g.entries); err != nil {
		return nil, err
	}
	unknown := slices.ContainsFunc(st.damaged, func(n catalog.Name) bool { return !g.known[n.Generation] })
	// Where nothing was found although generations were aborted, only their plans were there, and they are damaged.
	if unknown || len(o.Aborted) > 0 && len(g.entries) == 0 {
		if err := r.addAccepted(ctx, o, g.entries); err != nil {
			return nil, err
		}
	}
	if len(g.entries) == 0 {
		return nil, ErrNothing
	}
	p := &rollup.Plan{AuthorityID: r.cfg.AuthorityID, Shard: o.Shard, Shards: r.cfg.Shards, Hour: o.Hour, Generation: o.Generation}
	for _, e := range g.entries {
		p.Inputs = append(p.Inputs, e)
	}
	slices.SortFunc(p.Inputs, func(a, b accepted.Batch) int { return a.Identity.Compare(b.Identity) })
	p.Parts = min(max(g.parts, uint32(min((p.Records()*recordBytes+memory-1)/memory, rollup.MaxParts))), rollup.MaxParts)
	o.Batches = len(p.Inputs)
	return p, nil
}

// gathered is what is known of the batches of an hour.
type gathered struct {
	entries map[identity.Batch]accepted.Batch
	known   map[uint64]bool // generations whose inputs are known
	parts   uint32          // the most that a plan has
}

func (g *gathered) add(p *rollup.Plan) {
	for _, e := range p.Inputs {
		g.entries[e.Identity] = e
	}
	g.known[p.Generation], g.parts = true, max(g.parts, p.Parts)
}

// readPlans reads the plans of all generations that committed, or may have. One that is
// gone or damaged stays out.
func (r *Repairer) readPlans(ctx context.Context, o *Requested, st *state, plans map[uint64]*rollup.Plan) error {
	wanted := map[uint64]bool{}
	for _, block := range st.sets {
		wanted[block.Name.Generation] = true
	}
	for _, n := range st.damaged {
		wanted[n.Generation] = true
	}
	for gen := range wanted {
		if plans[gen] != nil {
			continue
		}
		p, _, err := r.plan(ctx, layout.RollupPlan(o.Hour, o.Shard, gen))
		switch {
		case err == nil:
			plans[gen] = p
		case !record.Unreadable(err) && !errors.Is(err, objstore.ErrNotFound):
			return err
		}
	}
	return nil
}

// addSets adds what the sets hold and no plan has, by the identity manifests.
func (r *Repairer) addBlocks(ctx context.Context, o *Requested, st *state, entries map[identity.Batch]accepted.Batch) error {
	for _, block := range st.sets {
		for id := range block.Inputs.All() {
			if _, ok := entries[id]; ok {
				continue
			}
			o.Source = "manifests"
			m, err := r.manifest(ctx, id)
			if err != nil {
				return err
			}
			entries[id] = m.Batch()
		}
	}
	return nil
}

// addAccepted adds every accepted batch of the shard that has samples in the hour.
func (r *Repairer) addAccepted(ctx context.Context, o *Requested, entries map[identity.Batch]accepted.Batch) error {
	if r.cfg.Scan == nil {
		return ErrUnknown
	}
	o.Source = "scan"
	return r.cfg.Scan(ctx, o.Hour, o.Shard, func(m accept.Manifest) error {
		e := m.Batch()
		if first, last := e.Hours(); shard.Of(e.Agent, r.cfg.Shards) == o.Shard && first <= o.Hour && o.Hour <= last {
			entries[e.Identity] = e
		}
		return nil
	})
}

func (r *Repairer) manifest(ctx context.Context, id identity.Batch) (accept.Manifest, error) {
	b, _, err := r.get(ctx, layout.Accepted(id), accept.MaxRecordBytes)
	if err != nil {
		return accept.Manifest{}, err
	}
	m, err := accept.ParseManifest(b)
	if err == nil && m.Identity != id {
		err = fmt.Errorf("%w: the manifest of %s is under the key of %s", record.ErrCorrupt, m.Identity, id)
	}
	return m, err
}

// possible refuses an order that can't be done: frames are gone for good, and the raw rows
// are not whole.
func (r *Repairer) possible(ctx context.Context, o *Requested, p *rollup.Plan, st *state) error {
	if err := r.removed.Scan(ctx); err != nil {
		return err
	}
	for _, e := range p.Inputs {
		if r.removed.Names(e.Identity) {
			o.Removed++
		}
	}
	if o.Removed == 0 {
		return nil
	}
	raw := st.sets[timegrid.Raw]
	lost := fmt.Errorf("%w: %d frames of %d were removed by retention", ErrLost, o.Removed, len(p.Inputs))
	if raw == nil || slices.ContainsFunc(st.damaged, func(n catalog.Name) bool { return n.Resolution == timegrid.Raw }) {
		return lost
	}
	v := &verifier{r: r}
	if err := v.block(ctx, Finding{}, raw, map[string]bool{raw.PlanKey: true}); err != nil {
		return err
	}
	if v.rep.Found > 0 {
		return lost
	}
	return nil
}

// createPlan reports whether the plan is surely not one that the shard's owner made: that
// has all that was published, too.
func (r *Repairer) createPlan(ctx context.Context, p *rollup.Plan) (mine bool, err error) {
	body, err := p.Marshal()
	if err != nil {
		return false, err
	}
	_, err = r.cfg.Store.Create(ctx, p.Key(), body, objstore.PutOptions{ContentType: "application/json"})
	if err == nil || errors.Is(err, objstore.ErrExists) {
		return err == nil, nil
	}
	if there, _, rerr := r.get(ctx, p.Key(), int64(rollup.PlanKind.MaxBytes)); rerr == nil && bytes.Equal(there, body) {
		return false, nil
	}
	return false, err
}

// create puts the order there, or adds what is damaged to the one that is. One that asks
// for a generation above those that are decided will do.
func (r *Repairer) create(ctx context.Context, o *Requested, decided uint64, ord catalog.RepairRequest) error {
	if err := ord.Validate(); err != nil {
		return err
	}
	put := objstore.PutOptions{ContentType: "application/json"}
	for range requestTries {
		_, err := r.cfg.Store.Create(ctx, ord.Key(), ord.Marshal(), put)
		if err == nil || !errors.Is(err, objstore.ErrExists) {
			return err
		}
		there, info, err := record.Read(ctx, r.cfg.Store, ord.Key(), catalog.RepairRequestKind, func(b []byte) (catalog.RepairRequest, error) {
			return catalog.ParseRepairRequest(ord.Key(), b)
		})
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			continue // done meanwhile
		case err != nil && !record.Unreadable(err):
			return err // one of a newer release is not ours to replace
		case err == nil && there.Above >= decided && contains(there.Damaged, ord.Damaged):
			o.Pending = true
			return nil
		}
		if info.ETag == "" { // a read that was refused may have none
			if info, err = r.cfg.Store.Head(ctx, ord.Key()); errors.Is(err, objstore.ErrNotFound) {
				continue
			} else if err != nil {
				return err
			}
		}
		_, err = r.cfg.Store.Replace(ctx, ord.Key(), ord.Marshal(), info.ETag, put)
		if !errors.Is(err, objstore.ErrPreconditionFailed) && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
	}
	return errors.New("the order changes again and again")
}

const requestTries = 5

func contains(all, some []string) bool {
	for _, s := range some {
		if !slices.Contains(all, s) {
			return false
		}
	}
	return true
}

// Orders lists the orders that are pending. One that can't be read is given to bad.
func (r *Repairer) Requests(ctx context.Context, bad func(key string, err error)) ([]catalog.RepairRequest, error) {
	var out []catalog.RepairRequest
	for i, err := range objstore.List(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.RepairRequestsPrefix}) {
		if err != nil {
			return out, fmt.Errorf("orders: %w", err)
		}
		ord, _, err := record.Read(ctx, r.cfg.Store, i.Key, catalog.RepairRequestKind, func(b []byte) (catalog.RepairRequest, error) {
			return catalog.ParseRepairRequest(i.Key, b)
		})
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if record.Unreadable(err) {
			bad(i.Key, err)
			continue
		}
		if err != nil {
			return out, fmt.Errorf("orders: %w", err)
		}
		out = append(out, ord)
	}
	return out, nil
}
