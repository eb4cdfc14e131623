package repair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Problem is a stable code of a finding.
type Problem string

// Problems.
const (
	RecordUnreadable     Problem = "RECORD_UNREADABLE"     // the record that decides which generation counts
	RecordMissing        Problem = "RECORD_MISSING"        // of a generation that other records name
	PlanMissing          Problem = "PLAN_MISSING"          // of the block that counts: no late batch can be added
	PlanUnreadable       Problem = "PLAN_UNREADABLE"       // of the block that counts, or of an undecided generation
	ObjectMissing        Problem = "OBJECT_MISSING"        // a chunk or an index of the block that counts
	ObjectDamaged        Problem = "OBJECT_DAMAGED"        // its bytes or rows are not what the record says
	CompactionUnreadable Problem = "COMPACTION_UNREADABLE" // the record to which a block redirects
	DeltaUnreadable      Problem = "DELTA_UNREADABLE"      // late batches of the hour, which no block may have
	CountedTwice         Problem = "COUNTED_TWICE"         // batches that share sequence numbers are not inputs of the same hours
)

// Finding is one defect of a shard's hour.
type Finding struct {
	Problem    Problem
	Hour       timegrid.Hour
	Shard      shard.ID
	Resolution timegrid.Resolution
	Key        string
	Detail     string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s shard %s %s %s: %s", f.Problem, f.Hour, f.Shard, f.Resolution, f.Key, f.Detail)
}

// maxFindings bounds the findings that are listed; Report.Found counts all.
const maxFindings = 10_000

// Report is the result of a check.
type Report struct {
	Hours  int
	Blocks int // that count, compactions included
	Plans  int
	Deltas int
	// Batches that were accepted, and pairs of them that share sequence numbers.
	Batches  uint64
	Overlaps uint64
	Objects  int
	Bytes    uint64
	Found    uint64
	Findings []Finding
	// Superseded records that can't be read: no reader uses them, so they are no findings.
	Superseded int
}

// Options of a check.
type Options struct {
	// From and To are the hours that are checked, both included.
	From, To timegrid.Hour
	// Shard that is checked, nil for all.
	Shard *shard.ID
	// Heads compares sizes and the store's checksums without reading objects: it misses what has rotted since it
	// was written.
	Heads bool
	// Progress is called after every hour; it may be nil.
	Progress func(timegrid.Hour, Report)
}

// Verify checks what readers and workers rely on. Of every shard's hour and resolution these are the records down
// to the block that counts, its plan, and its chunks and indexes, of which every row is decoded; and the plans of
// undecided generations. Over all hours of a boot: whether batches that share sequence numbers are inputs of the same
// ones, so that no record counts twice. An error means that the store could not be asked, or that a newer release wrote
// something: record.ErrNewerVersion, chunk.UnknownEncoding and chunk.UnsupportedVersion.
func (r *Repairer) Verify(ctx context.Context, o Options) (Report, error) {
	v := &verifier{r: r, o: o, tops: map[place]uint64{}}
	err := v.verifyHours(ctx)
	if err == nil {
		err = v.verifyUndecided(ctx)
	}
	if err == nil {
		err = v.verifyDeltas(ctx)
	}
	if err == nil {
		err = v.verifyOverlaps(ctx)
	}
	if err != nil {
		return v.rep, fmt.Errorf("verify: %w", err)
	}
	return v.rep, nil
}

type place struct {
	hour  timegrid.Hour
	shard shard.ID
}

type slot struct {
	shard      shard.ID
	resolution timegrid.Resolution
}

type verifier struct {
	r   *Repairer
	o   Options
	rep Report
	// tops is the lowest of the resolutions' highest generations.
	tops     map[place]uint64
	coverage *Coverage // nil: no two batches overlap so far
}

func (v *verifier) addFinding(f Finding) {
	v.rep.Found++
	if len(v.rep.Findings) < maxFindings {
		v.rep.Findings = append(v.rep.Findings, f)
	}
}

// verifyDeltas reads the deltas with samples of the hours. One that can't be read is a finding of every hour of its
// name.
func (v *verifier) verifyDeltas(ctx context.Context) error {
	return v.r.eachDelta(ctx, v.o.Shard, func(key string, n layout.DeltaName) error {
		if n.To < v.o.From || n.From > v.o.To {
			return nil
		}
		d, bad, err := v.r.readDelta(ctx, key, !v.o.Heads)
		if err != nil {
			return err
		}
		if d != nil || bad != nil {
			v.rep.Deltas++
		}
		if d != nil && !v.o.Heads {
			v.rep.Bytes += uint64(d.Size())
		}
		for h := max(n.From, v.o.From); bad != nil && h <= min(n.To, v.o.To, max(n.From, v.o.From)+maxDeltaHours); h++ {
			v.addFinding(Finding{DeltaUnreadable, h, n.Shard, timegrid.Raw, key, bad.Error()})
		}
		return nil
	})
}

// maxDeltaHours bounds the findings of one delta: a batch of a broken clock spans years.
const maxDeltaHours = 1000

// verifyHours checks hour after hour.
func (v *verifier) verifyHours(ctx context.Context) error {
	at, slots := v.o.From, map[slot]catalog.Slot{}
	flush := func() error {
		if len(slots) == 0 {
			return nil
		}
		if err := v.verifyHour(ctx, at, slots); err != nil {
			return err
		}
		v.rep.Hours++
		if v.o.Progress != nil {
			v.o.Progress(at, v.rep)
		}
		return nil
	}
	o := objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(v.o.From)}
	for of, err := range catalog.Slots(ctx, v.r.cfg.Store, o) {
		if err != nil {
			return err
		}
		n := of.Name
		if n.Hour > v.o.To {
			break
		}
		if n.Span > 0 || v.o.Shard != nil && n.Shard != *v.o.Shard {
			continue
		}
		if n.Hour != at {
			if err := flush(); err != nil {
				return err
			}
			at, slots = n.Hour, map[slot]catalog.Slot{}
		}
		slots[slot{n.Shard, n.Resolution}] = of
	}
	return flush()
}

// verifyHour checks all shards of an hour.
func (v *verifier) verifyHour(ctx context.Context, h timegrid.Hour, slots map[slot]catalog.Slot) error {
	shards := map[shard.ID]bool{}
	for k := range slots {
		shards[k.shard] = true
	}
	for s := range shards {
		plans := map[string]bool{} // resolutions share their plan
		least, most := ^uint64(0), uint64(0)
		for _, res := range timegrid.Resolutions() {
			of := slots[slot{s, res}]
			least, most = min(least, of.Top()), max(most, of.Top())
			if err := v.verifySlot(ctx, of, plans); err != nil {
				return err
			}
		}
		v.tops[place{h, s}] = least
		if least < most {
			if err := v.checkUnfinished(ctx, h, s, slots, most); err != nil {
				return err
			}
		}
	}
	return nil
}

// unfinishedFor is how long a worker may take between the resolutions of a generation.
const unfinishedFor = time.Hour

// checkUnfinished reports a generation that only some resolutions have, unless a worker may still be making the
// others: then a record was lost, or nobody works on the hour.
func (v *verifier) checkUnfinished(ctx context.Context, h timegrid.Hour, s shard.ID, slots map[slot]catalog.Slot, most uint64) error {
	top := func(res timegrid.Resolution) uint64 { return slots[slot{s, res}].Top() }
	since := int64(math.MinInt64)
	for _, res := range timegrid.Resolutions() {
		if top(res) < most {
			continue
		}
		rec, err := v.r.record(ctx, layout.BlockManifest(h, s, res, most))
		switch {
		case record.Unreadable(err):
			return nil // a finding already, and its repair decides the others as well
		// It was removed since it was listed, so the listing says nothing about its age.
		case errors.Is(err, objstore.ErrNotFound):
			continue
		case err != nil:
			return err
		case rec.Block != nil:
			since = max(since, rec.Block.CreatedAt)
		case rec.Aborted != nil:
			since = max(since, rec.Aborted.AbortedAt)
		case rec.Removed != nil:
			since = max(since, rec.Removed.RemovedAt)
		}
	}
	if v.r.cfg.Now().Sub(time.Unix(0, since)) < unfinishedFor {
		return nil
	}
	for _, res := range timegrid.Resolutions() {
		if gen := top(res) + 1; gen <= most {
			v.addFinding(Finding{RecordMissing, h, s, res, layout.BlockManifest(h, s, res, gen), fmt.Sprintf("other resolutions have generation %d", most)})
		}
	}
	return nil
}

// verifySlot checks the records from the highest generation down to the one that counts.
func (v *verifier) verifySlot(ctx context.Context, of catalog.Slot, plans map[string]bool) error {
	records := v.r.records()
	st, err := records.State(ctx, of)
	if err != nil {
		return err
	}
	f := Finding{Hour: of.Name.Hour, Shard: of.Name.Shard, Resolution: of.Name.Resolution}
	for _, g := range st.Unreadable {
		switch {
		case record.Unreadable(g.Err): // a lower generation may count, and is checked below
			bad := f
			bad.Problem, bad.Key, bad.Detail = RecordUnreadable, g.Name.Key(), g.Err.Error()
			v.addFinding(bad)
		case !errors.Is(g.Err, objstore.ErrNotFound): // gone since it was listed
			return g.Err
		}
	}
	// A Removed record names its successor, so a successor that is not there was lost.
	if by := st.Missing(); by > 0 {
		lost := f
		lost.Problem, lost.Key, lost.Detail = RecordMissing, layout.BlockManifest(f.Hour, f.Shard, f.Resolution, by), "it superseded the highest one that there is"
		v.addFinding(lost)
	}
	if st.Block != nil {
		v.rep.Blocks++
		f.Key = st.Block.Name.Key()
		if err := v.verifyBlock(ctx, f, st.Block, plans); err != nil {
			return err
		}
	}
	return v.countBelow(ctx, records, of, st.Committed)
}

// countBelow counts superseded records that can't be read.
func (v *verifier) countBelow(ctx context.Context, records *catalog.Reader, of catalog.Slot, committed uint64) error {
	for _, l := range of.Listed {
		if l.Name.Generation >= committed {
			break
		}
		g, err := records.Generation(ctx, l)
		switch {
		case err != nil:
			return err
		case record.Unreadable(g.Err):
			v.rep.Superseded++
		case g.Err != nil && !errors.Is(g.Err, objstore.ErrNotFound):
			return g.Err
		}
	}
	return nil
}

// verifyBlock checks a block's plan and objects, or the compaction that has its rows.
func (v *verifier) verifyBlock(ctx context.Context, f Finding, block *catalog.Block, plans map[string]bool) error {
	if block.Name.Span == 0 && !plans[block.PlanKey] {
		plans[block.PlanKey] = true
		if err := v.verifyPlan(ctx, f, block.PlanKey, block.PlanSHA256); err != nil {
			return err
		}
	}
	if block.Redirect != nil {
		c, err := v.verifyCompaction(ctx, block.Redirect.Name)
		if err != nil {
			return err
		}
		for _, wrong := range c.findings {
			g := f
			g.Problem, g.Key, g.Detail = wrong.Problem, wrong.Key, wrong.Detail
			v.addFinding(g)
		}
		return nil
	}
	for i := range block.Objects {
		wrong, err := v.verifyObject(ctx, &block.Objects[i])
		if err != nil {
			return err
		}
		for _, g := range wrong {
			f.Problem, f.Key, f.Detail = g.Problem, g.Key, g.Detail
			v.addFinding(f)
		}
	}
	return nil
}

func (v *verifier) verifyPlan(ctx context.Context, f Finding, key string, want identity.Digest) error {
	v.rep.Plans++
	_, body, err := v.r.plan(ctx, key)
	f.Key = key
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		f.Problem, f.Detail = PlanMissing, "no late batch can be added to the hour"
	case record.Unreadable(err):
		f.Problem, f.Detail = PlanUnreadable, err.Error()
	case err != nil:
		return err
	case !want.IsZero() && identity.Sum(body) != want:
		f.Problem, f.Detail = PlanUnreadable, "it is another plan than the block's"
	default:
		return nil
	}
	v.addFinding(f)
	return nil
}

// checked is the result of checking a compaction.
type checked struct{ findings []Finding }

// maxChecked bounds the compactions whose results are cached.
const maxChecked = 10_000

func (v *verifier) verifyCompaction(ctx context.Context, n catalog.Name) (checked, error) {
	key := n.Key()
	if c, ok := v.r.compactions[key]; ok {
		return c, nil
	}
	var c checked
	rec, err := v.r.record(ctx, key)
	switch {
	case record.Unreadable(err) || errors.Is(err, objstore.ErrNotFound):
		c.findings = []Finding{{Problem: CompactionUnreadable, Key: key, Detail: err.Error()}}
	case err != nil:
		return c, err
	case rec.Block == nil:
		c.findings = []Finding{{Problem: CompactionUnreadable, Key: key, Detail: "it is not committed, or removed"}}
	default:
		v.rep.Blocks++
		for i := range rec.Block.Objects {
			wrong, err := v.verifyObject(ctx, &rec.Block.Objects[i])
			if err != nil {
				return c, err
			}
			c.findings = append(c.findings, wrong...)
		}
	}
	if len(v.r.compactions) >= maxChecked {
		clear(v.r.compactions)
	}
	v.r.compactions[key] = c
	return c, nil
}

// verifyObject checks a chunk and its index: first that each has the bytes that the record says, then that they
// are a chunk and an index of the rows that the record counts.
func (v *verifier) verifyObject(ctx context.Context, o *catalog.Object) ([]Finding, error) {
	var out []Finding
	var bodies [2][]byte
	for i, part := range [...]struct {
		key   string
		bytes uint64
		sha   identity.Digest
	}{{o.ChunkKey, o.ChunkBytes, o.ChunkSHA256}, {o.IndexKey, o.IndexBytes, o.IndexSHA256}} {
		v.rep.Objects++
		v.rep.Bytes += part.bytes
		f := Finding{Key: part.key}
		var err error
		if v.o.Heads {
			f.Problem, f.Detail, err = v.head(ctx, part.key, part.bytes, part.sha)
		} else {
			bodies[i], f.Problem, f.Detail, err = v.readObject(ctx, part.key, part.bytes, part.sha)
		}
		if err != nil {
			return nil, err
		}
		if f.Problem != "" {
			out = append(out, f)
		}
	}
	if len(out) > 0 || v.o.Heads {
		return out, nil
	}
	x, err := chunk.Verify(bodies[0], bodies[1], chunk.Limits{})
	switch {
	case errors.Is(err, chunk.UnknownEncoding) || errors.Is(err, chunk.UnsupportedVersion):
		// Its hash is right, so a newer release wrote it. Rebuilding it with this release would lose what the new
		// encoding holds.
		return nil, fmt.Errorf("%s: %w: upgrade this program", o.ChunkKey, err)
	case err != nil:
		out = append(out, Finding{Problem: ObjectDamaged, Key: o.ChunkKey, Detail: err.Error()})
	case uint64(x.Len()) != o.Series || x.Samples() != o.Samples || uint64(x.FooterOffset) != o.FooterOffset:
		out = append(out, Finding{Problem: ObjectDamaged, Key: o.IndexKey, Detail: fmt.Sprintf("%d series, %d samples, footer at %d; the record says %d, %d, %d",
			x.Len(), x.Samples(), x.FooterOffset, o.Series, o.Samples, o.FooterOffset)})
	}
	return out, nil
}

// head compares an object's size and hash as the store reports them.
func (v *verifier) head(ctx context.Context, key string, size uint64, sha identity.Digest) (Problem, string, error) {
	info, err := v.r.cfg.Store.Head(ctx, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return ObjectMissing, "no such object", nil
	case err != nil && !objstore.Unreadable(err):
		return "", "", err
	case err != nil || uint64(info.Size) != size || !info.SHA256.IsZero() && info.SHA256 != sha:
		return ObjectDamaged, fmt.Sprintf("%d bytes of %s, want %d of %s", info.Size, info.SHA256, size, sha), nil
	}
	return "", "", nil
}

// readObject reads an object and compares its hash.
func (v *verifier) readObject(ctx context.Context, key string, size uint64, sha identity.Digest) ([]byte, Problem, string, error) {
	// One byte more than expected, so that an object that has grown is noticed without reading all of it.
	body, _, err := v.r.get(ctx, key, int64(size)+1)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, ObjectMissing, "no such object", nil
	case err != nil && objstore.Unreadable(err):
		return nil, ObjectDamaged, err.Error(), nil
	case err != nil:
		return nil, "", "", err
	case identity.Sum(body) != sha:
		return nil, ObjectDamaged, fmt.Sprintf("%d bytes that hash to %s, want %d of %s", len(body), identity.Sum(body), size, sha), nil
	}
	return body, "", "", nil
}

// verifyUndecided checks the plans of generations that some resolution has not decided.
func (v *verifier) verifyUndecided(ctx context.Context) error {
	for s := range shard.ID(v.r.cfg.Shards) {
		if v.o.Shard != nil && s != *v.o.Shard {
			continue
		}
		prefix := layout.PlansPrefix + "shard=" + s.String() + "/"
		for i, err := range objstore.List(ctx, v.r.cfg.Store, objstore.ListOptions{Prefix: prefix, StartAfter: layout.RollupPlans(v.o.From, s)}) {
			if err != nil {
				return err
			}
			h, id, gen, err := layout.ParseRollupPlan(i.Key)
			if err == nil && id == s && h > v.o.To {
				break
			}
			if err != nil || id != s || gen <= v.tops[place{h, s}] {
				continue
			}
			if err := v.verifyPlan(ctx, Finding{Hour: h, Shard: s, Resolution: timegrid.Raw}, i.Key, identity.Digest{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Published calls fn for every shard's hour of the range that has records, hour by hour, shards ascending.
func (r *Repairer) Published(ctx context.Context, o Options, fn func(timegrid.Hour, shard.ID) error) error {
	last := place{}
	first := true
	for i, err := range objstore.List(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(o.From)}) {
		if err != nil {
			return fmt.Errorf("published hours: %w", err)
		}
		n, err := layout.ParseBlockManifest(i.Key)
		if err != nil || n.Span > 0 || o.Shard != nil && n.Shard != *o.Shard {
			continue
		}
		if n.Hour > o.To {
			return nil
		}
		at := place{n.Hour, n.Shard}
		if !first && at == last {
			continue
		}
		first, last = false, at
		if err := fn(n.Hour, n.Shard); err != nil {
			return fmt.Errorf("published hours: %w", err)
		}
	}
	return nil
}
