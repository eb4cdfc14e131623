// Package regions keeps the epoch of the identity linearizer: which life of etcd counts, and which regions take part. etcd
// forgets when it is restored; the record of the epoch lies in the bucket of every region, which does not. What was decided is
// found again in the manifests of all regions. docs/protocol/linearizer.md is the specification.
//
// The core is deterministic: no goroutines, no clock and no randomness of its own.
package regions

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Store is the bucket of a region.
type Store interface {
	objstore.Getter
	objstore.Lister
	objstore.Creator
	objstore.Replacer
}

// Region is one of the settings.
type Region struct {
	Name  claims.Region
	Store Store
}

// Config of a Keeper; the fields up to Now are required.
type Config struct {
	KV   claims.KV
	Keys claims.Keys
	// Regions of the settings, 1 to claims.MaxRegions, each once.
	Regions []Region
	Rand    io.Reader
	// Now is Unix nanoseconds, for people who read claims.
	Now func() int64
	// Parallel calls fn for 0 to n-1, at once as far as it likes, and may leave out the rest when it has given false; it returns when all
	// calls have. nil is one after the other.
	Parallel func(n int, fn func(i int) bool)
	// Progress is told how far a recovery is; nil is nobody.
	Progress func(Progress)
	// MaxUnprepared and MaxClaims bound what an addition, and any recovery, enters into etcd; 0 are the defaults.
	MaxUnprepared, MaxClaims uint64
	// PrepareEntries is how many batches of a preparation are in memory at once; 0 is the default.
	PrepareEntries int
	// SealAt is folds.Folder.SealAt.
	SealAt int
}

// Progress of a recovery.
type Progress struct {
	Epoch uint64
	// Manifests that were read in all regions, and Claims that were inserted.
	Manifests, Claims uint64
	// Boots that are done.
	Boots uint64
}

// Keeper opens epochs. It has no state but its settings: any number of them may work at once, and one that dies leaves
// nothing that another would trust.
type Keeper struct {
	cfg   Config
	names []claims.Region // of the settings, in order
}

// Opened is an epoch that etcd and the buckets agree on.
type Opened struct {
	Epoch claims.Epoch
	// Retired are the regions of earlier epochs that are gone for good.
	Retired []claims.Region
	// Cluster that the epoch was opened on: what another one answers is no answer.
	Cluster uint64
	// Revision of etcd.
	Revision int64
	// Recovered is what a recovery found, if there was one.
	Recovered Progress
}

// Errors that callers branch on.
var (
	// ErrMustRecover: etcd has another epoch than the buckets, or is another one. Somebody has to recover it.
	ErrMustRecover = errors.New("etcd does not have the epoch that the regions have")
	// ErrOvertaken: another epoch was opened meanwhile, or etcd was restored. Open again.
	ErrOvertaken = errors.New("overtaken by another epoch, or by another restore of etcd")
	// ErrRegionSettings: the settings and the regions of the epoch contradict each other.
	ErrRegionSettings = errors.New("the settings do not fit the regions of the epoch")
)

// RegionError says that a region did not do what everything waits for.
type RegionError struct {
	Op     string // "read the epoch", "list manifests", …
	Region claims.Region
	Err    error
}

func (e *RegionError) Error() string { return fmt.Sprintf("region %s: %s: %v", e.Region, e.Op, e.Err) }

// Unwrap returns the cause.
func (e *RegionError) Unwrap() error { return e.Err }

// New checks the settings; it makes no request.
func New(c Config) (*Keeper, error) {
	if c.KV == nil || c.Rand == nil || c.Now == nil {
		return nil, errors.New("regions: a store of claims, randomness and a clock are needed")
	}
	if n := len(c.Regions); n == 0 || n > claims.MaxRegions {
		return nil, fmt.Errorf("regions: %d, not 1 to %d", n, claims.MaxRegions)
	}
	if c.Parallel == nil {
		c.Parallel = func(n int, fn func(int) bool) {
			for i := range n {
				if !fn(i) {
					return
				}
			}
		}
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	c.MaxUnprepared, c.MaxClaims = cmp.Or(c.MaxUnprepared, DefaultMaxUnprepared), cmp.Or(c.MaxClaims, DefaultMaxClaims)
	c.PrepareEntries = cmp.Or(c.PrepareEntries, DefaultPrepareEntries)
	c.Regions = slices.Clone(c.Regions)
	// Every mover of the epoch writes in the order of the names, and last where there is no record yet.
	slices.SortFunc(c.Regions, func(a, b Region) int { return strings.Compare(string(a.Name), string(b.Name)) })
	k := &Keeper{cfg: c}
	for _, r := range c.Regions {
		if err := r.Name.Validate(); err != nil {
			return nil, fmt.Errorf("regions: %w", err)
		}
		if r.Store == nil {
			return nil, fmt.Errorf("regions: %s has no store", r.Name)
		}
		if slices.Contains(k.names, r.Name) {
			return nil, fmt.Errorf("regions: %s is there twice", r.Name)
		}
		k.names = append(k.names, r.Name)
	}
	return k, nil
}

// Names are the regions of the settings, in their order.
func (k *Keeper) Names() []claims.Region { return slices.Clone(k.names) }

// state is what etcd and the buckets say.
type state struct {
	epoch    claims.Epoch    // of etcd; its number is 0 where there is none
	value    []byte          // as it is there
	epochAt  int64           // the revision at which it was written
	filled   bool            // its recovery ended: what etcd has is all that the regions had
	mark     []byte          // of a dissolution; nil where there is none
	retiring []claims.Region // whose retirement etcd was reserved for, in this epoch; the last one last
	cluster  uint64
	revision int64
	// found are the records, by region; absent the regions that have none, unread those that did not answer.
	found  map[claims.Region]stored
	absent []claims.Region
	unread []*RegionError
	// retired and joins are those of the epoch that was moved to, and moved its records as they were written.
	retired []Retired
	joins   []claims.Region
	moved   []stored
}

// stored is a record as it lies in a bucket.
type stored struct {
	Record
	etag string
}

// joining are the regions of which not everything that was prepared is known to be folded. Once it is, that is noted in all records of the
// epoch. Where it is noted in some of them only, either record says enough: everything is folded before the first note, and to go through it
// once more changes nothing.
func (s *state) joining() []claims.Region {
	newest, _ := s.newest()
	return slices.Clone(newest.Joining)
}

// Open gives the epoch that holds. Where etcd does not have the one of the buckets it recovers, if it may; else the error wraps
// ErrMustRecover. A region that everything waits for is a *RegionError.
func (k *Keeper) Open(ctx context.Context, recover bool) (Opened, error) {
	s, err := k.look(ctx)
	if err != nil {
		return Opened{}, fmt.Errorf("open the epoch: %w", err)
	}
	return k.openBy(ctx, s, recover, change{})
}

// openBy is Open by what was looked at; a recovery makes a change of no regions.
func (k *Keeper) openBy(ctx context.Context, s *state, recover bool, c change) (Opened, error) {
	if o, err := k.agreed(s); err == nil {
		return o, nil
	} else if recover && (errors.Is(err, ErrDissolved) || errors.Is(err, ErrDissolving)) {
		return k.openDissolved(ctx, s, err)
	} else if !recover || !errors.Is(err, ErrMustRecover) {
		return Opened{}, fmt.Errorf("open the epoch: %w", err)
	}
	if err := k.mayJoin(ctx, s, c, false); err != nil {
		return Opened{}, fmt.Errorf("open the epoch: %w", err)
	}
	o, err := k.recover(ctx, s, c)
	if err != nil {
		return Opened{}, fmt.Errorf("recover the epoch: %w", err)
	}
	return o, nil
}

// Distrust takes the epoch out of an etcd that was seen to have forgotten revisions of it: it was restored, although its cluster id
// may be the same, and may have an earlier epoch. From then on nobody decides anything by it, and whoever opens recovers. A later epoch,
// which was opened since, stays. One that was not may have come into the copy by a request that was late.
func (k *Keeper) Distrust(ctx context.Context, was Opened) error {
	s := &state{}
	err := k.readEpoch(ctx, s)
	g, e := claims.Guard{Key: k.cfg.Keys.Epoch(), Is: claims.Holds, Value: s.value}, s.epoch
	if m := len(s.mark) - markBytes; s.value == nil && m > 0 {
		// A dissolution that is refused would bring its epoch back. A mark that can't be read means nothing.
		g = claims.Guard{Key: k.cfg.Keys.Dissolving(), Is: claims.Holds, Value: s.mark}
		e, _ = claims.ParseEpoch(s.mark[:m])
	}
	guards, began := []claims.Guard{g}, s.value != nil && !s.filled
	if began {
		guards = append(guards, claims.Guard{Key: k.cfg.Keys.Filled(), Is: claims.Absent})
	}
	if err == nil && e.Number > 0 && (began || e.Number < was.Epoch.Number || e.ID == was.Epoch.ID) {
		_, err = k.cfg.KV.Commit(ctx, claims.Txn{Guards: guards, Parts: []claims.Part{{Deletes: []string{g.Key}}}})
	}
	if err != nil {
		return fmt.Errorf("take epoch %d out of etcd, which has forgotten: %w", was.Epoch.Number, err)
	}
	return nil
}

// Check says whether an epoch that was opened still holds: nil, ErrMustRecover, claims.ErrForgot (then Distrust it), or why nobody
// knows.
func (k *Keeper) Check(ctx context.Context, o Opened) error {
	s, err := k.look(ctx)
	if err != nil {
		return fmt.Errorf("check the epoch: %w", err)
	}
	now, err := k.agreed(s)
	if err == nil && (now.Epoch.Number != o.Epoch.Number || now.Epoch.ID != o.Epoch.ID || now.Cluster != o.Cluster) {
		err = ErrOvertaken
	}
	if err == nil && s.revision < o.Revision {
		err = fmt.Errorf("%w: revision %d, before %d", claims.ErrForgot, s.revision, o.Revision)
	}
	if err != nil {
		return fmt.Errorf("check the epoch: %w", err)
	}
	return nil
}

// Add takes a region of the settings into the epoch, by a new one: what the region accepted before is found by its recovery.
func (k *Keeper) Add(ctx context.Context, name claims.Region) (Opened, error) {
	if err := k.mayAdd(name); err != nil {
		return Opened{}, fmt.Errorf("add region %s: %w", name, err)
	}
	s, err := k.look(ctx)
	if err != nil {
		return Opened{}, fmt.Errorf("add region %s: %w", name, err)
	}
	if o, err := k.agreed(s); err == nil && slices.Contains(o.Epoch.Regions, name) {
		return o, nil
	}
	r, _ := s.newest()
	if s.marked(r) {
		return Opened{}, fmt.Errorf("add region %s: %w", name, ErrDissolving)
	}
	if err := s.mayTake([]claims.Region{name}); err != nil {
		return Opened{}, fmt.Errorf("add region %s: %w", name, err)
	}
	// Whoever adds a region to a linearizer that was dissolved begins it again; whoever finds out only on the way that it was, does not.
	c := change{add: name}
	if r.Dissolved {
		c.again = r.ID
	}
	if err := k.mayJoin(ctx, s, c, true); err != nil {
		return Opened{}, fmt.Errorf("add region %s: %w", name, err)
	}
	o, err := k.recover(ctx, s, c)
	if err != nil {
		return Opened{}, fmt.Errorf("add region %s: %w", name, err)
	}
	return o, nil
}

func (k *Keeper) mayAdd(name claims.Region) error {
	if err := name.Validate(); err != nil {
		return err
	}
	if !slices.Contains(k.names, name) {
		return fmt.Errorf("%w: it has no bucket in the settings of this coordinator", ErrRegionSettings)
	}
	return nil
}

// Status is what the regions and etcd say, for people.
type Status struct {
	Epoch   claims.Epoch // of etcd
	Cluster uint64
	Records map[claims.Region]Record
	// Newest of them is the one that counts; its number is 0 where there is none.
	Newest Record
	Unread []*RegionError
	// Prepared is how far what regions have accepted is prepared to be folded, or folded from their journals.
	Prepared map[claims.Region]Preparation
	// Open is nil where an epoch could be opened without a recovery.
	Open error
}

// Status reads everything, and changes nothing.
func (k *Keeper) Status(ctx context.Context) (Status, error) {
	s, err := k.look(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("status of the regions: %w", err)
	}
	out := Status{Epoch: s.epoch, Cluster: s.cluster, Records: map[claims.Region]Record{}, Prepared: map[claims.Region]Preparation{}, Unread: s.unread}
	for n, f := range s.found {
		out.Records[n] = f.Record
	}
	for _, n := range k.names {
		if slices.ContainsFunc(s.unread, func(u *RegionError) bool { return u.Region == n }) {
			continue
		}
		p, err := k.preparation(ctx, n)
		var of *RegionError
		switch {
		case errors.As(err, &of):
			out.Unread = append(out.Unread, of)
		case p.UpdatedAt > 0:
			out.Prepared[n] = p
		}
	}
	out.Newest, _ = s.newest()
	_, out.Open = k.agreed(s)
	return out, nil
}

// look reads etcd's epoch and the records of all regions.
func (k *Keeper) look(ctx context.Context) (*state, error) {
	s := &state{found: map[claims.Region]stored{}}
	if err := k.readEpoch(ctx, s); err != nil {
		return nil, err
	}
	for _, r := range k.cfg.Regions {
		rec, etag, err := readRecord(ctx, r.Store)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			s.absent = append(s.absent, r.Name)
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			s.unread = append(s.unread, &RegionError{"read the epoch", r.Name, err})
		default:
			s.found[r.Name] = stored{rec, etag}
		}
	}
	return s, nil
}

// readEpoch reads what etcd says.
func (k *Keeper) readEpoch(ctx context.Context, s *state) error {
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: k.cfg.Keys.Epoch()}, {From: k.cfg.Keys.Filled()}, {From: k.cfg.Keys.Dissolving()}, {From: k.cfg.Keys.Retiring()}}}}})
	if err != nil {
		return fmt.Errorf("read the epoch from etcd: %w", err)
	}
	s.cluster, s.revision, s.epoch, s.value, s.mark, s.retiring = r.Cluster, r.Revision, claims.Epoch{}, nil, nil, nil
	filled := r.Parts[0].Reads[1]
	if m := r.Parts[0].Reads[2]; len(m) > 0 {
		s.mark = m[0].Value
	}
	if t := r.Parts[0].Reads[3]; len(t) > 0 {
		for _, name := range strings.Split(string(t[0].Value), ",") {
			s.retiring = append(s.retiring, claims.Region(name))
		}
	}
	if e := r.Parts[0].Reads[0]; len(e) > 0 {
		s.value, s.epochAt = e[0].Value, e[0].Modified
		if s.epoch, err = claims.ParseEpoch(s.value); err != nil {
			return fmt.Errorf("read the epoch from etcd: %w", err)
		}
	}
	s.filled = s.value != nil && len(filled) > 0 && bytes.Equal(filled[0].Value, s.value)
	return nil
}

// agreed is the epoch of etcd, if it is that of the buckets. One region that was read is enough: an epoch is taken when all
// regions have it, so one that was taken meanwhile would be seen in any.
func (k *Keeper) agreed(s *state) (Opened, error) {
	if err := s.related(); err != nil {
		return Opened{}, err
	}
	newest, ok := s.newest()
	if !ok {
		// Without a record nothing tells a first start from one in which the regions with a record do not answer.
		if len(s.unread) > 0 {
			return Opened{}, s.unread[0]
		}
		return Opened{}, fmt.Errorf("%w: no region has an epoch yet", ErrMustRecover)
	}
	for _, n := range newest.Regions {
		if !slices.Contains(k.names, n) {
			return Opened{}, fmt.Errorf("%w: region %s has no bucket in the settings of this coordinator", ErrRegionSettings, n)
		}
	}
	if err := s.exchanged(newest.Regions); err != nil {
		return Opened{}, err
	}
	switch {
	case newest.Dissolved:
		return Opened{}, fmt.Errorf("%w in epoch %d; its last region was %s", ErrDissolved, newest.Number, newest.Region)
	case s.marked(newest):
		return Opened{}, fmt.Errorf("%w in epoch %d", ErrDissolving, newest.Number)
	case !s.current(newest):
		return Opened{}, fmt.Errorf("%w: etcd has epoch %d, the regions %d", ErrMustRecover, s.epoch.Number, newest.Number)
	case !s.filled:
		return Opened{}, fmt.Errorf("%w: the recovery of epoch %d did not end", ErrMustRecover, newest.Number)
	case s.cluster != newest.Cluster:
		return Opened{}, fmt.Errorf("%w: etcd is cluster %x, epoch %d was opened on %x", ErrMustRecover, s.cluster, newest.Number, newest.Cluster)
	}
	return Opened{Epoch: s.epoch, Retired: names(newest.Retired), Cluster: s.cluster, Revision: s.revision}, nil
}
