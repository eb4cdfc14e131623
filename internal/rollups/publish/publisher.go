package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Output is one chunk and its index, to be published.
type Output struct {
	// Metric that the chunk is of, or layout.MixedMetrics.
	Metric string
	Chunk  Content
	Index  Content
	// FooterOffset in Chunk.
	FooterOffset    uint64
	Series, Samples uint64
	// MinTime and MaxTime of the rows, Unix nanoseconds.
	MinTime, MaxTime int64
}

// Content is the bytes of an object that is to be published, in memory or in temporary storage.
type Content struct {
	size uint64
	sum  identity.Digest
	load func() ([]byte, error)
}

// Bytes is content in memory. b must not change until it is published.
func Bytes(b []byte) Content {
	return Content{uint64(len(b)), identity.Sum(b), func() ([]byte, error) { return b, nil }}
}

// Stored is content of a known size and hash; load is called each time that it is needed.
func Stored(size int, sum identity.Digest, load func() ([]byte, error)) Content {
	return Content{uint64(size), sum, load}
}

// Size in bytes.
func (c Content) Size() uint64 { return c.size }

// Load gives the bytes.
func (c Content) Load() ([]byte, error) { return c.load() }

// Publication is one generation of a shard's hour in a resolution.
type Publication struct {
	Name   catalog.Name
	Shards uint32
	Fence  uint64
	// PlanSHA256 is the hash of the plan, whose object must be there.
	PlanSHA256 identity.Digest
	Inputs     catalog.Inputs
	// Counts without Series and Samples: these are summed up from the outputs.
	Counts  catalog.Counts
	Outputs []Output
	// Supersedes is the highest committed generation before this one, 0 for none. The caller takes it from its
	// catalog; Publish checks it.
	Supersedes uint64
	// Unrolled: there are no outputs, and readers are to take the samples.
	Unrolled bool
	// Sources of a compaction, whose Name has a span; else nil.
	Sources []catalog.Name
	// Journal are the positions of the plan, nil for none.
	Journal *journal.Positions
	// Verify reads objects that exist already instead of trusting the store's checksum, so that a damaged one gets
	// its next generation. It is for generations that replace damaged ones.
	Verify bool
	// Listed says that the caller has listed the hour's manifests, and that there was none of this generation: its key is
	// then not read before the commit, which decides all the same.
	Listed bool
	// Damaged are keys of earlier generations' records that can't be read and that a repair request allows to
	// supersede. Any other unreadable record refuses the publication.
	Damaged []string
}

// Result of a publication that is committed.
type Result struct {
	// Block as it is in the store.
	Block *catalog.Block
	// Created says that this call committed it; else the same transaction had committed before.
	Created bool
}

// Publisher publishes. It keeps nothing but the epoch that both stores agreed on last, and is safe for concurrent use.
type Publisher struct {
	core
	agreed atomic.Pointer[Epoch] // nil: none yet
}

// NewPublisher checks the settings; it makes no request.
func NewPublisher(c Config) (*Publisher, error) {
	k, err := newCore(c)
	if err != nil {
		return nil, err
	}
	return &Publisher{core: k}, nil
}

// Publish commits the generation, or finds it committed by the same plan. After any error it may be called again
// with the same publication, by any worker. Errors: ErrAborted and ErrConflict (this generation is decided against
// the caller), ErrFenced, ErrGap, ErrNoPlan, ErrInvalid, ErrEpochMismatch, ErrUndecided, and those of store and
// metadata store.
func (p *Publisher) Publish(ctx context.Context, pub Publication) (res Result, err error) {
	err = p.PublishAll(ctx, []Publication{pub}, func(_ int, r Result, err error) error {
		res = r
		return err
	})
	return res, err
}

// PublishAll publishes several generations one after the other, such as the resolutions of an hour, and asks only once
// for what they have in common: the epoch, the plan, and room in the reference sets. Nothing is committed before all of
// their objects are in the store and referred to. decided is called for each one that is decided, in whichever way: with
// no error, ErrAborted or ErrConflict. An error of decided, and any other error of one of them, ends the call, and leaves
// open what is not decided.
func (p *Publisher) PublishAll(ctx context.Context, pubs []Publication, decided func(i int, r Result, err error) error) error {
	b := &batch{p: p, decided: decided}
	for i := range pubs {
		b.open = append(b.open, &transaction{p: p, pub: pubs[i], id: NewTxn(pubs[i].Name.Key(), pubs[i].PlanSHA256), at: i})
	}
	err := b.run(ctx)
	for _, t := range b.open {
		t.queueLeftovers(ctx, nil)
		p.cfg.Events.published(t.pub.Name, outcome(Result{}, err), err)
	}
	return err
}

func outcome(r Result, err error) Outcome {
	switch {
	case err == nil && r.Created:
		return OutcomeCommitted
	case err == nil:
		return OutcomeFound
	case errors.Is(err, ErrConflict):
		return OutcomeConflict
	case errors.Is(err, ErrAborted):
		return OutcomeAborted
	case errors.Is(err, ErrFenced):
		return OutcomeFenced
	case errors.Is(err, ErrUndecided):
		return OutcomeUndecided
	}
	return OutcomeFailed
}

// batch is one call of PublishAll.
type batch struct {
	p       *Publisher
	decided func(i int, r Result, err error) error
	open    []*transaction // that are not decided, in the order in which they commit
	// outdated: a reference was refused because its epoch or era is over.
	outdated bool
}

// transaction publishes one generation.
type transaction struct {
	p   *Publisher
	pub Publication
	id  Txn
	at  int // among the publications of the call

	epoch  Epoch
	block  *catalog.Block
	before *catalog.Block // the block that is superseded, nil for none
	// objects in the order of outputs: chunk, index, chunk, …
	objects []*object
	// touched are objects that this call created or found: what a failure leaves behind.
	touched []string
}

func (b *batch) run(ctx context.Context) error {
	for _, t := range b.open {
		if err := t.draft(); err != nil {
			return t.named(fmt.Errorf("%w: %w", ErrInvalid, err))
		}
	}
	if err := b.phases(ctx); !b.outdated || err == nil || len(b.open) == 0 {
		return err
	}
	// Another epoch or era has begun: under that one everything is made once more. If it is the metadata store that was
	// lost, the check says so.
	return b.phases(ctx)
}

func (b *batch) phases(ctx context.Context) error {
	for _, phase := range []struct {
		name Phase
		do   func(context.Context) error
	}{{PhaseCheck, b.check}, {PhasePrepare, b.prepare}, {PhaseRefer, b.refer}, {PhaseCommit, b.commit}} {
		start := b.p.cfg.Clock.Now()
		// The order of the phases is the protocol: objects are in the store before they are referred to, and
		// referred to before the manifest names them.
		err := phase.do(ctx)
		b.p.cfg.Events.phase(phase.name, b.p.cfg.Clock.Now().Sub(start))
		if err != nil || len(b.open) == 0 {
			return err
		}
	}
	return nil
}

// end takes a transaction that is decided out of the open ones, and tells the caller. An error that decides nothing is
// given back.
func (b *batch) end(ctx context.Context, t *transaction, r Result, err error) error {
	if err != nil && !errors.Is(err, ErrAborted) && !errors.Is(err, ErrConflict) {
		return t.named(err)
	}
	if r.Created {
		t.afterCommit(ctx)
	}
	b.open = slices.DeleteFunc(b.open, func(o *transaction) bool { return o == t })
	t.queueLeftovers(ctx, r.Block)
	err = t.named(err)
	b.p.cfg.Events.published(t.pub.Name, outcome(r, err), err)
	return b.decided(t.at, r, err)
}

// named says which publication an error is of.
func (t *transaction) named(err error) error {
	if err != nil {
		err = fmt.Errorf("publish %s: %w", t.pub.Name.Key(), err)
	}
	return err
}

// draft builds the block, with the keys that the outputs have when no generation must be skipped.
func (t *transaction) draft() error {
	pub := &t.pub
	s := &catalog.Block{
		AuthorityID: t.p.cfg.AuthorityID, Name: pub.Name, Shards: pub.Shards, Fence: pub.Fence, TransactionID: string(t.id),
		PlanKey: layout.BlockPlan(pub.Name), PlanSHA256: pub.PlanSHA256,
		Counts: pub.Counts, Supersedes: pub.Supersedes, WorkerID: t.p.cfg.WorkerID, Inputs: pub.Inputs, Sources: pub.Sources, Journal: pub.Journal, Unrolled: pub.Unrolled,
		CreatedAt: max(t.p.cfg.Clock.Now().UnixNano(), 0),
	}
	s.Counts.Series, s.Counts.Samples = 0, 0
	for i := range pub.Outputs {
		o := &pub.Outputs[i]
		s.Counts.Series += o.Series
		s.Counts.Samples += o.Samples
		s.Objects = append(s.Objects, catalog.Object{
			Metric:   o.Metric,
			ChunkKey: layout.RollupChunk(pub.Name.Resolution, pub.Name.Hour, o.Metric, o.Chunk.sum, 0), ChunkBytes: o.Chunk.size, ChunkSHA256: o.Chunk.sum,
			FooterOffset: o.FooterOffset,
			IndexKey:     layout.RollupIndex(pub.Name.Hour, o.Index.sum, 0), IndexBytes: o.Index.size, IndexSHA256: o.Index.sum,
			Series: o.Series, Samples: o.Samples, MinTime: o.MinTime, MaxTime: o.MaxTime,
		})
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if err := t.id.Validate(); err != nil {
		return err
	}
	// Later generations have longer keys, and the manifest must still fit after the objects were written.
	if n := len(s.Marshal()) + maxSuffix*len(s.Objects); n > catalog.MaxRecordBytes {
		return fmt.Errorf("the manifest would have %d bytes, at most %d", n, catalog.MaxRecordBytes)
	}
	t.block = s
	seen := map[string]*object{}
	for i := range s.Objects {
		for _, x := range []*object{newObject(s.Objects[i].ChunkKey, pub.Outputs[i].Chunk), newObject(s.Objects[i].IndexKey, pub.Outputs[i].Index)} {
			// Two outputs with equal bytes are one object.
			if same := seen[x.name.Key()]; same != nil {
				x = same
			}
			seen[x.name.Key()] = x
			t.objects = append(t.objects, x)
		}
	}
	return nil
}

// check reports generations that are decided already, and checks the order of generations, the plans and the epoch.
func (b *batch) check(ctx context.Context) error {
	for _, t := range slices.Clone(b.open) {
		r, err := t.checkGeneration(ctx)
		if r == nil && err == nil {
			continue
		}
		if r == nil {
			r = &Result{}
		}
		if err := b.end(ctx, t, *r, err); err != nil {
			return err
		}
	}
	if len(b.open) == 0 {
		return nil
	}
	if err := b.checkPlans(ctx); err != nil || len(b.open) == 0 {
		return err
	}
	f, err := b.p.currentEpoch(ctx)
	if err != nil {
		return b.open[0].named(err)
	}
	for _, t := range b.open {
		t.epoch = f
		// Keys of an epoch begin at a generation that no earlier epoch could have condemned.
		for _, o := range t.objects {
			o.name.Generation, o.ready, o.referred = f.FirstGeneration(), false, false
		}
		t.startAtNamedGenerations()
		if err := t.checkReferences(ctx, f); err != nil {
			return t.named(err)
		}
	}
	return nil
}

// checkPlans makes sure that the plans are stored. One that is not was collected where its generation is decided.
func (b *batch) checkPlans(ctx context.Context) error {
	type plan struct {
		key string
		sum identity.Digest
	}
	var last plan
	var missing error
	for _, t := range slices.Clone(b.open) {
		// The resolutions of an hour have one plan.
		if at := (plan{t.block.PlanKey, t.pub.PlanSHA256}); at != last {
			last, missing = at, t.checkPlan(ctx)
		}
		if missing == nil {
			continue
		}
		if !errors.Is(missing, ErrNoPlan) {
			return t.named(missing)
		}
		r, err := t.decided(ctx)
		if r == nil {
			if err == nil {
				return t.named(missing)
			}
			r = &Result{}
		}
		if err := b.end(ctx, t, *r, err); err != nil {
			return err
		}
	}
	return nil
}

// checkGeneration reports whether the generation is decided already, and checks the order of generations.
func (t *transaction) checkGeneration(ctx context.Context) (*Result, error) {
	if !t.pub.Listed {
		if r, err := t.decided(ctx); r != nil || err != nil {
			return r, err
		}
	}
	if err := t.checkOrder(ctx); err != nil {
		return nil, err
	}
	return nil, nil
}

// startAtNamedGenerations starts objects that the superseded block has as well at the generation that it names: an earlier
// transaction had a reason to skip those below, and it may be one that the store's checksum does not show.
func (t *transaction) startAtNamedGenerations() {
	if t.before == nil {
		return
	}
	base := func(n layout.RollupObjectName) string {
		n.Generation = 0
		return n.Key()
	}
	named := map[string]uint32{}
	for _, key := range t.before.Keys() {
		// Objects of an earlier epoch are not reused: this epoch has no references to them.
		if n, err := layout.ParseRollupObject(key); err == nil && t.epoch.wrote(key) {
			named[base(n)] = n.Generation
		}
	}
	for _, o := range t.objects {
		if gen, ok := named[base(o.name)]; ok {
			o.name.Generation = gen
		}
	}
}

// decided reads the manifest's key. Without result and error the generation is undecided.
func (t *transaction) decided(ctx context.Context) (*Result, error) {
	r, _, err := t.p.record(ctx, t.pub.Name.Key())
	switch {
	case err != nil || r == nil:
		return nil, err
	case r.Aborted != nil:
		return nil, ErrAborted
	case r.Removed != nil:
		return nil, fmt.Errorf("%w: it is removed", ErrConflict)
	case r.Block.TransactionID != string(t.id):
		return nil, fmt.Errorf("%w: %s", ErrConflict, r.Block.TransactionID)
	}
	return &Result{Block: r.Block}, nil
}

// checkOrder makes sure that generations are decided one after the other, so that the highest committed one covers
// those before it, and that fences do not fall.
func (t *transaction) checkOrder(ctx context.Context) error {
	st, err := t.below(ctx)
	if err != nil {
		return err
	}
	fence := uint64(0)
	switch {
	case st.Block != nil && st.Committed != t.pub.Supersedes:
		return fmt.Errorf("%w: generation %d is committed, not superseded by this one", ErrGap, st.Committed)
	case st.Block != nil:
		fence = st.Block.Fence
	case st.Removed != nil:
		fence = st.Removed.Fence
	case t.pub.Supersedes != 0:
		return fmt.Errorf("%w: generation %d, to be superseded, is not committed", ErrGap, t.pub.Supersedes)
	}
	if fence > t.pub.Fence {
		return fmt.Errorf("%w: generation %d has fence %d, this is %d", ErrFenced, st.Committed, fence, t.pub.Fence)
	}
	t.before = st.Block
	return nil
}

// below says which of the generations below this one counts. Each one down to it is read by its name, as a
// listing would not show that one between is undecided.
func (t *transaction) below(ctx context.Context) (catalog.State, error) {
	records, n := t.p.records(), t.pub.Name
	var read []catalog.Generation
	for n.Generation--; n.Generation > 0; n.Generation-- {
		g, err := records.Generation(ctx, catalog.Listed{Name: n, Info: objstore.Info{Key: n.Key()}})
		switch {
		case err != nil:
			return catalog.State{}, err
		case errors.Is(g.Err, objstore.ErrNotFound):
			return catalog.State{}, fmt.Errorf("%w: generation %d is not decided", ErrGap, n.Generation)
		case record.Unreadable(g.Err) && slices.Contains(t.pub.Damaged, n.Key()):
			// It was decided somehow; what it named, and its fence, is lost.
		case g.Err != nil:
			return catalog.State{}, g.Err
		}
		if read = append(read, g); g.Committed() {
			break
		}
	}
	return catalog.Fold(read), nil
}

// checkPlan makes sure that the plan is stored. Every transaction has a plan before its first reference, so that a
// new epoch can find and decide all those of the one before.
func (t *transaction) checkPlan(ctx context.Context) error {
	info, err := t.p.cfg.Store.Head(ctx, t.block.PlanKey)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrNoPlan, err)
	case err == nil && !info.SHA256.IsZero() && info.SHA256 != t.pub.PlanSHA256:
		return fmt.Errorf("%w: %q has the hash %s", ErrNoPlan, t.block.PlanKey, info.SHA256)
	}
	return err
}

// commit commits one after the other.
func (b *batch) commit(ctx context.Context) error {
	for len(b.open) > 0 {
		t := b.open[0]
		r, err := t.commit(ctx)
		if r == nil {
			r = &Result{}
		}
		if err := b.end(ctx, t, *r, err); err != nil {
			return err
		}
	}
	return nil
}

// commit creates the manifest. Its key decides the generation.
// Condemned or damaged objects have moved to later generations since the draft.
func (t *transaction) commit(ctx context.Context) (*Result, error) {
	for i := range t.block.Objects {
		t.block.Objects[i].ChunkKey = t.objects[2*i].name.Key()
		t.block.Objects[i].IndexKey = t.objects[2*i+1].name.Key()
	}
	err := t.p.createRecord(ctx, t.pub.Name.Key(), catalog.Record{Block: t.block})
	if err == nil {
		return &Result{Block: t.block, Created: true}, nil
	}
	// An unknown outcome is no failure: the key tells. A key without a record is no answer either, since the
	// create may still be applied.
	r, e := t.decided(ctx)
	switch {
	case r != nil:
		r.Created = isOwn(r.Block, t.block)
		return r, nil
	case e != nil && (errors.Is(e, ErrAborted) || errors.Is(e, ErrConflict)):
		return nil, e
	}
	return nil, fmt.Errorf("%w: %w", ErrUndecided, errors.Join(err, e))
}

// isOwn reports whether the record is this call's own, found after a lost answer.
func isOwn(a, b *catalog.Block) bool {
	return a.WorkerID == b.WorkerID && a.CreatedAt == b.CreatedAt && a.Fence == b.Fence
}

// afterCommit runs once the commit is certain and nothing can fail any more: it queues the superseded block and tags the
// objects.
func (t *transaction) afterCommit(ctx context.Context) {
	start := t.p.cfg.Clock.Now()
	if t.pub.Supersedes != 0 {
		n := t.pub.Name
		n.Generation = t.pub.Supersedes
		err := t.p.push(ctx, "superseded", []string{n.Key()}, 0, t.p.cfg.Policy.Grace)
		t.p.cfg.Events.queued("superseded", 1, err)
	}
	t.promote(ctx)
	t.p.cfg.Events.phase(PhasePromote, t.p.cfg.Clock.Now().Sub(start))
}

// queueLeftovers sends objects that the call touched, and that the committed block (nil: none is known) does not
// name, to the delayed queue. Nothing is deleted here: another transaction may have found and used the same
// objects.
func (t *transaction) queueLeftovers(ctx context.Context, committed *catalog.Block) {
	named := map[string]bool{}
	if committed != nil {
		for _, key := range committed.Keys() {
			named[key] = true
		}
	}
	left := slices.DeleteFunc(t.touched, func(key string) bool { return named[key] })
	if len(left) == 0 {
		return
	}
	// The caller's context may be what ended the publication.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queueTimeout)
	defer cancel()
	err := t.p.push(ctx, "publication failed", left, 0, t.p.cfg.Policy.Delay)
	t.p.cfg.Events.queued("publication failed", len(left), err)
}

// maxSuffix is how many bytes a later generation adds to the keys of an output.
const maxSuffix = 2 * len(".g4294967295")

const queueTimeout = 5 * time.Second
