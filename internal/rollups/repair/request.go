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

// Why no repair can be requested.
var (
	// ErrNothing: nothing is published of the hour, or all of it was removed, and no generation is being made.
	ErrNothing = errors.New("nothing is published of this hour")
	// ErrUnknown: no record says which batches the damaged generation had, and Config has no Scan.
	ErrUnknown = errors.New("the inputs of the hour are not known")
	// ErrInWork: the owner has to decide an older generation first. Make the request again afterwards.
	ErrInWork = errors.New("in work: wait until it is decided")
	// ErrLost: retention removed frames, and the raw rows that were made of them can't be read, so nothing is left
	// to rebuild the hour from.
	ErrLost = errors.New("neither frames nor raw rows are left")
)

// Requested is what a request says, or with dry would say.
type Requested struct {
	Hour  timegrid.Hour
	Shard shard.ID
	// Generation that the rebuild makes.
	Generation uint64
	Batches    int
	// Removed are batches whose frames retention removed: their rows come from the raw block.
	Removed int
	// Uncounted are batches that a block lists, and that the journal of this region does not count: the rebuild leaves them out.
	Uncounted int
	// Source of the inputs: plan (the generation has a plan already), plans (of earlier generations), manifests
	// (identity manifests of the batches that a block lists) or scan.
	Source string
	// Damaged records that are superseded, and Aborted generations whose plan can't be read, or was deleted.
	Damaged []string
	Aborted []uint64
	// Pending: an earlier request asks for the same and is not done yet.
	Pending bool
}

// state of a shard's hour.
type state struct {
	top     map[timegrid.Resolution]uint64
	blocks  map[timegrid.Resolution]*catalog.Block // the highest that can be read
	damaged []catalog.Name
}

// Request asks the shard's owner to rebuild the hour: it fixes the plan of the next generation, with the inputs of
// everything that was published of the hour, and creates the request. With dry it only reports what it would do.
// Repeats are harmless.
func (r *Repairer) Request(ctx context.Context, h timegrid.Hour, s shard.ID, reason string, dry bool) (Requested, error) {
	o := Requested{Hour: h, Shard: s}
	err := r.request(ctx, &o, reason, dry)
	if err != nil {
		err = fmt.Errorf("request a repair of hour %s of shard %s: %w", h, s, err)
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
	// Walk the generations that are not decided at every resolution. One whose plan is damaged, or was deleted, can't
	// be made by anybody, so it is aborted; otherwise the rebuild would wait for it for ever.
	plans := map[uint64]*rollup.Plan{}
	var next *rollup.Plan
	for gen := least + 1; next == nil; gen++ {
		p, _, err := r.plan(ctx, layout.RollupPlan(o.Hour, o.Shard, gen))
		switch {
		// The first generation without a plan above all that are decided is free.
		case errors.Is(err, objstore.ErrNotFound) && gen > most:
			o.Generation = gen
		case errors.Is(err, objstore.ErrNotFound), record.Unreadable(err):
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
	// The owner may supersede exactly the unreadable records that are listed here; one that turns up later needs a
	// request of its own.
	for _, n := range st.damaged {
		o.Damaged = append(o.Damaged, n.Key())
	}
	if next == nil {
		if next, err = r.inputs(ctx, o, st, plans); err != nil {
			return err
		}
	}
	if err := r.checkPossible(ctx, o, next, st); err != nil || dry {
		return err
	}
	ord := catalog.RepairRequest{AuthorityID: r.cfg.AuthorityID, Shard: o.Shard, Hour: o.Hour, Above: most, Damaged: o.Damaged,
		Reason: reason, By: r.cfg.By, RequestedAt: max(r.cfg.Now().UnixNano(), 0)}
	// If the owner made the plan, it may be making that generation right now without having seen the request. Only
	// the generation after it is then surely a rebuild. With damaged records this can't happen: without a request
	// the owner refuses to publish above them.
	if o.Source == "plan" {
		if len(o.Damaged) == 0 {
			ord.Above = o.Generation
		}
		return r.createRequest(ctx, o, most, ord)
	}
	// The request is written before the plan, so that whoever finds the plan also finds the request.
	if err := r.createRequest(ctx, o, most, ord); err != nil {
		return err
	}
	if o.Removed > 0 {
		next.Parts = 1 // rows of an earlier block can't be divided into parts
	}
	// If another process created the plan first, that may be the owner, which has not seen the request: then the
	// request has to ask for the generation after it.
	if mine, err := r.createPlan(ctx, next); err != nil || mine || len(o.Damaged) > 0 {
		return err
	}
	ord.Above = o.Generation
	return r.createRequest(ctx, o, o.Generation, ord)
}

// state reads the records of all resolutions, down to the highest committed generation.
func (r *Repairer) state(ctx context.Context, h timegrid.Hour, s shard.ID) (*state, error) {
	st := &state{top: map[timegrid.Resolution]uint64{}, blocks: map[timegrid.Resolution]*catalog.Block{}}
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
		for _, g := range counts.Unreadable {
			if !record.Unreadable(g.Err) {
				return nil, g.Err // deleted since it was listed, or of a newer release, which this one must not supersede
			}
			st.damaged = append(st.damaged, g.Name)
		}
		if counts.Block != nil {
			st.blocks[of.Name.Resolution] = counts.Block
		}
	}
	return st, nil
}

// abort decides a generation that can't be made, in the resolutions that have not decided it.
func (r *Repairer) abort(ctx context.Context, h timegrid.Hour, s shard.ID, gen uint64, top map[timegrid.Resolution]uint64) error {
	// Raw is decided last, as workers do it: an hour counts as begun as soon as its raw block exists.
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
			return err // an unknown outcome included: make the request again
		}
		top[res] = gen
	}
	return nil
}

// recordBytes is roughly what a worker needs of memory for a record of an hour, and memory what it has for an hour
// by default. The number of parts of a plan follows from both.
const (
	recordBytes = 48
	memory      = 256 << 20
)

// inputs makes the plan of the next generation. It has everything that a committed generation had, or that an
// unreadable one may have had.
func (r *Repairer) inputs(ctx context.Context, o *Requested, st *state, plans map[uint64]*rollup.Plan) (*rollup.Plan, error) {
	if err := r.readPlans(ctx, o, st, plans); err != nil {
		return nil, err
	}
	o.Source = "plans"
	g := gathered{entries: map[identity.Batch]accepted.Batch{}, known: map[uint64]bool{}, parts: 1}
	for _, block := range st.blocks {
		g.known[block.Name.Generation] = true
	}
	for _, p := range plans {
		g.add(p)
	}
	if err := r.addBlocks(ctx, o, st, g.entries); err != nil {
		return nil, err
	}
	unknown := slices.ContainsFunc(st.damaged, func(n catalog.Name) bool { return !g.known[n.Generation] })
	if !unknown {
		var err error
		if unknown, err = r.damagedDelta(ctx, o.Hour, o.Shard); err != nil {
			return nil, err
		}
	}
	// If generations were aborted and nothing was found, their damaged plans were the only record of the inputs.
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

// gathered is what is known about the batches of an hour.
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

// readPlans reads the plans of all generations that are committed or may be. A plan that is missing or damaged is
// left out.
func (r *Repairer) readPlans(ctx context.Context, o *Requested, st *state, plans map[uint64]*rollup.Plan) error {
	wanted := map[uint64]bool{}
	for _, block := range st.blocks {
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

// addBlocks adds the batches that blocks list and no plan has; their identity manifests have the rest. In a region of several, those
// that its journal does not count are left out: another region counts them, or nobody.
func (r *Repairer) addBlocks(ctx context.Context, o *Requested, st *state, entries map[identity.Batch]accepted.Batch) error {
	var named []accepted.Batch
	for _, block := range st.blocks {
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
			named = append(named, m.Batch())
		}
	}
	if len(named) == 0 {
		return nil
	}
	counted, err := r.counted(ctx, named)
	if err != nil || counted == nil {
		return err
	}
	for _, b := range named {
		if !counted[b.Identity] {
			delete(entries, b.Identity)
			o.Uncounted++
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
	return r.cfg.Scan(ctx, o.Hour, o.Shard, func(e accepted.Batch) error {
		if first, last := e.Hours(); shard.Of(e.Agent, r.cfg.Shards) == o.Shard && first <= o.Hour && o.Hour <= last {
			entries[e.Identity] = e
		}
		return nil
	})
}

// manifest reads the identity manifest of an accepted batch.
func (r *Repairer) manifest(ctx context.Context, id identity.Batch) (accept.Manifest, error) {
	b, _, err := r.get(ctx, layout.Accepted(id), accept.MaxObjectBytes)
	if err != nil {
		return accept.Manifest{}, err
	}
	m, err := accept.ParseManifest(b)
	if err == nil && m.Identity != id {
		err = fmt.Errorf("%w: the manifest of %s is under the key of %s", record.ErrCorrupt, m.Identity, id)
	}
	return m, err
}

// checkPossible refuses a request that can't be carried out: frames are gone for good, and the raw rows that would
// replace them are damaged.
func (r *Repairer) checkPossible(ctx context.Context, o *Requested, p *rollup.Plan, st *state) error {
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
	raw := st.blocks[timegrid.Raw]
	lost := fmt.Errorf("%w: %d frames of %d were removed by retention", ErrLost, o.Removed, len(p.Inputs))
	if raw == nil || slices.ContainsFunc(st.damaged, func(n catalog.Name) bool { return n.Resolution == timegrid.Raw }) {
		return lost
	}
	v := &verifier{r: r}
	// The plan of the block does not matter here, so it is marked as checked: only the rows have to be whole.
	if err := v.verifyBlock(ctx, Finding{}, raw, map[string]bool{raw.PlanKey: true}); err != nil {
		return err
	}
	if v.rep.Found > 0 {
		return lost
	}
	return nil
}

// createPlan stores the plan. mine is true when it is certain that the shard's owner has not made one first; a
// plan of the owner also has all that was published.
func (r *Repairer) createPlan(ctx context.Context, p *rollup.Plan) (mine bool, err error) {
	body, err := p.Encode()
	if err != nil {
		return false, err
	}
	_, err = r.cfg.Store.Create(ctx, p.Key(), body, objstore.PutOptions{ContentType: "application/zstd"})
	if err == nil || errors.Is(err, objstore.ErrExists) {
		return err == nil, nil
	}
	// Equal bytes may be the owner's: it computes the same plan.
	if there, _, rerr := r.get(ctx, p.Key(), int64(rollup.PlanKind.MaxBytes)); rerr == nil && bytes.Equal(there, body) {
		return false, nil
	}
	return false, err
}

// createRequest writes the request, or adds the damaged records to the one that exists. A pending request for a
// generation above those that are decided is as good.
func (r *Repairer) createRequest(ctx context.Context, o *Requested, decided uint64, ord catalog.RepairRequest) error {
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
			continue // the owner is done with it
		case err != nil && !record.Unreadable(err):
			return err // a request of a newer release must not be replaced
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
	return errors.New("the request changes again and again")
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

// Requests lists the requests that are pending. bad is called for those that can't be read.
func (r *Repairer) Requests(ctx context.Context, bad func(key string, err error)) ([]catalog.RepairRequest, error) {
	out, err := list(ctx, r.cfg.Store, layout.RepairRequestsPrefix, catalog.RepairRequestKind, catalog.ParseRepairRequest, bad)
	if err != nil {
		return out, fmt.Errorf("repair requests: %w", err)
	}
	return out, nil
}
