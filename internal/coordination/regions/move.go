package regions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// moveTries bounds how often a mover begins again because another one was there, or an outcome is unknown.
const moveTries = 16

// move takes the next epoch: its record is in the bucket of every region that takes part when it returns. A mover replaces only what it
// has read, in the order of the regions' names, so of two only one has all of them; regions without a record come last, and take part from
// this epoch on. So a mover that was overtaken, by a retirement or a dissolution too, leaves no record where none would contradict it.
func (k *Keeper) move(ctx context.Context, s *state, c change) (claims.Epoch, error) {
	for try := 0; ; try++ {
		e, err := k.tryMove(ctx, s, c)
		if err == nil || try == moveTries || !passes(err) && !errors.Is(err, errChanged) || ctx.Err() != nil {
			return e, err
		}
		// The records are read again, and the next number is higher than all of them.
		again, err := k.look(ctx)
		if err == nil {
			err = c.allowed(k, again)
		}
		if err != nil {
			return claims.Epoch{}, err
		}
		*s = *again
	}
}

// passes reports whether a write of a record failed because of another mover, or nobody knows whether it did.
func passes(err error) bool {
	return errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) ||
		errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknown)
}

// change of the regions with a new epoch; empty where they stay.
type change struct {
	add, retire claims.Region
	// again is the record of a linearizer that was dissolved, and begins again; zero where there is none.
	again claims.ID
	// forget is the region that is retired whatever etcd knows, by this change or one that died; empty where nothing may be forgotten.
	forget claims.Region
}

// allowed: what was decided in a region that is retired is in etcd and nowhere else, where its bucket is gone. A record that is newer than
// etcd's epoch alone is of a mover that died before it touched etcd.
func (c change) allowed(k *Keeper, s *state) error {
	if c.retire == "" {
		return nil
	}
	newest, _ := s.newest()
	if err := s.last(newest, c.retire); err != nil {
		return err
	}
	if c.forget != "" {
		return nil
	}
	if !s.filled || s.cluster != newest.Cluster {
		_, err := k.agreed(s)
		return fmt.Errorf("%w: %w", ErrForgets, err)
	}
	// Each head of folds is in two regions, or in the only one, of the last epoch that was filled.
	left := slices.DeleteFunc(slices.Clone(s.epoch.Regions), func(n claims.Region) bool { return n == c.retire || newest.retired(n) })
	if len(left) < max(1, len(s.epoch.Regions)-1) {
		return fmt.Errorf("%w: epoch %d, with the regions %v, was the last one that everything was brought to; the next one has to be open first", ErrForgets, s.epoch.Number, s.epoch.Regions)
	}
	if e, last := s.epoch.Regions, s.lastRetiring(s.epoch.Regions); len(e) == 2 && last != "" && last != c.retire && slices.Contains(e, c.retire) {
		// The records of these two may have no region in common, in which one of them finds out about the other: of a region that is added since,
		// the other one need not know.
		return fmt.Errorf("%w: region %s, of the two in etcd's epoch; retire that one again, or forget, if nobody is at it", ErrRetiring, last)
	}
	return nil
}

// last checks that the newest record is the last one, where a region does not have to answer: what is left may be the bucket of a region that was
// retired long ago, which knows of nothing since. Etcd's epoch says so; else whoever does not answer may know of a later one.
func (s *state) last(newest Record, but claims.Region) error {
	if s.current(newest) {
		return nil
	}
	for _, u := range s.unread {
		if u.Region != but && !newest.retired(u.Region) {
			return u
		}
	}
	return s.latest(newest)
}

// latest refuses records of which etcd has a later epoch: those of its regions were lost, and what is left may bring back one that was retired.
func (s *state) latest(newest Record) error {
	if s.epoch.Number > 0 && s.epoch.Number >= newest.Number && !s.current(newest) {
		return fmt.Errorf("%w: etcd has epoch %d of the regions %v, and no record that can be read is later than epoch %d; the settings need the buckets of those regions, with what they had",
			ErrRegionSettings, s.epoch.Number, s.epoch.Regions, newest.Number)
	}
	return nil
}

func (k *Keeper) tryMove(ctx context.Context, s *state, c change) (claims.Epoch, error) {
	next, err := k.next(ctx, s, c)
	if err != nil {
		return claims.Epoch{}, err
	}
	// Whatever forbids the epoch in one bucket is found before another one has its record: from then on nobody decides.
	if err := s.exchanged(next.Regions); err != nil {
		return claims.Epoch{}, err
	}
	for _, name := range k.added(s, c) {
		if err := k.mayWrite(ctx, s, name); err != nil {
			return claims.Epoch{}, &RegionError{"move the epoch", name, err}
		}
	}
	if err := k.noteInEtcd(ctx, s, c); err != nil {
		return claims.Epoch{}, err
	}
	s.retired, s.joins, s.moved = next.Retired, next.Joining, nil
	for _, name := range s.order(next.Regions) {
		rec := next
		rec.Region = name
		etag, err := writeRecord(ctx, k.store(name), s.found[name].etag, rec)
		if err != nil {
			return claims.Epoch{}, &RegionError{"move the epoch", name, err}
		}
		s.moved = append(s.moved, stored{rec, etag})
	}
	return next.Epoch(), nil
}

// next is the record of the next epoch, but for the region whose bucket it lies in. All its regions have answered.
func (k *Keeper) next(ctx context.Context, s *state, c change) (Record, error) {
	if err := s.related(); err != nil {
		return Record{}, err
	}
	newest, known := s.newest()
	if newest.Dissolved && newest.ID != c.again {
		return Record{}, ErrDissolved
	}
	if known {
		if err := s.latest(newest); err != nil {
			return Record{}, err
		}
	}
	added := k.added(s, c)
	if err := s.mayTake(added); err != nil {
		return Record{}, err
	}
	r := Record{Number: max(newest.Number, s.epoch.Number), Regions: slices.Concat(newest.Regions, added), Retired: slices.Clone(newest.Retired), Cluster: s.cluster}
	if !known && s.epoch.Number > 0 {
		// The records were lost, or these settings have none of the buckets that have them.
		r.Regions = append(r.Regions, s.epoch.Regions...)
	}
	slices.Sort(r.Regions)
	r.Regions = slices.Compact(r.Regions)
	for _, f := range s.found {
		// Also of records that do not count: no two epochs that anybody has seen have one number.
		r.Number = max(r.Number, f.Number)
	}
	r.Number++
	// In an epoch that was filled after it everybody has what etcd had of a retired region.
	if s.filled && s.current(newest) {
		r.Retired = done(r.Retired)
	}
	if i := slices.Index(r.Regions, c.retire); i >= 0 {
		if len(r.Regions) == 1 {
			return Record{}, fmt.Errorf("%w: region %s is the last one, by now", ErrRegionSettings, c.retire)
		}
		r.Regions = slices.Delete(r.Regions, i, i+1)
		r.Retired = append(r.Retired, Retired{Name: c.retire})
	} else if c.retire != "" && !newest.retired(c.retire) {
		// Its addition had died, and was not gone on with.
		return Record{}, fmt.Errorf("%w: region %s takes no part, by now", ErrRegionSettings, c.retire)
	}
	if len(r.Retired) > maxRetired {
		return Record{}, fmt.Errorf("%w: %d regions were retired, and the record of the epoch has room for no more", ErrRegionSettings, maxRetired)
	}
	if _, err := io.ReadFull(k.cfg.Rand, r.ID[:]); err != nil {
		return Record{}, fmt.Errorf("read randomness: %w", err)
	}
	if err := r.Epoch().Validate(); err != nil {
		return Record{}, err
	}
	if err := k.answered(s, r.Regions); err != nil {
		return Record{}, err
	}
	if err := s.emptied(r.Regions); err != nil && c.forget == "" {
		return Record{}, err
	}
	if err := s.mayLeave(r, c); err != nil {
		return Record{}, err
	}
	var err error
	r.Joining, err = k.joining(ctx, s, c)
	return r, err
}

// order is that in which records are written: by the names of the regions, and last those that have none yet, whoever added them. So a region
// gets its first record from somebody who has replaced those of all others, and each further mover, as one that retires a region, meets them.
func (s *state) order(of []claims.Region) []claims.Region {
	has := func(n claims.Region) int {
		if s.found[n].Number > 0 {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(slices.Values(of), func(a, b claims.Region) int { return cmp.Or(has(a)-has(b), cmp.Compare(a, b)) })
}

// mayTake refuses regions that were retired, and those whose buckets had a linearizer of their own, although it was dissolved: its folds and stamps
// would count as if they were of this one, and win over what its regions have decided.
func (s *state) mayTake(added []claims.Region) error {
	newest, _ := s.newest()
	for _, n := range added {
		if s.isRetired(n) {
			return fmt.Errorf("%w: region %s was retired, and its name is never used again", ErrRegionSettings, n)
		}
		if f := s.found[n]; f.Dissolved && f.ID != newest.ID {
			return fmt.Errorf("%w: the bucket of region %s has had an identity linearizer of its own, which decided by itself; take an empty bucket", ErrRegionSettings, n)
		}
	}
	return nil
}

// emptied is an error where the bucket of a region of etcd's epoch has no record. It had one before etcd had the epoch: so the bucket was emptied,
// or is another one, and a recovery that reads it would forget what was decided in the region.
func (s *state) emptied(of []claims.Region) error {
	for _, n := range s.absent {
		if slices.Contains(of, n) && slices.Contains(s.epoch.Regions, n) {
			return &RegionError{"check the epoch", n, fmt.Errorf("%w: it takes part in etcd's epoch %d, and its bucket has no record: the bucket was emptied, or is another one; put the right one into the settings, or retire the region",
				ErrRegionSettings, s.epoch.Number)}
		}
	}
	return nil
}

// exchanged is an error where the bucket of a region has the record of another one.
func (s *state) exchanged(of []claims.Region) error {
	for _, n := range of {
		if there := s.found[n]; there.Number > 0 && there.Region != n {
			return &RegionError{"check the epoch", n, fmt.Errorf("%w: its bucket is that of region %s", ErrRegionSettings, there.Region)}
		}
	}
	return nil
}

// mayWrite asks for the permission to write a record where there is none, by a write that no object can fit: it changes nothing.
func (k *Keeper) mayWrite(ctx context.Context, s *state, n claims.Region) error {
	if s.found[n].Number > 0 {
		return nil // it was written before
	}
	_, err := k.store(n).Replace(ctx, layout.RegionsKey, []byte("{}"), noETag, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrNotFound) || passes(err) {
		return nil
	}
	return err
}

// noETag is none that a store gives.
const noETag = `"00000000000000000000000000000000"`

// noteInEtcd does what has to be in etcd before any record is written.
func (k *Keeper) noteInEtcd(ctx context.Context, s *state, c change) error {
	newest, _ := s.newest()
	switch {
	case s.cluster != newest.Cluster && (s.filled || s.value != nil && len(s.retiring) > 0):
		// Also one that is not filled: the request which began its epoch may have come into a copy, behind the name of a region that is retired.
		return k.doubt(ctx, s)
	case s.filled && c.retire != "":
		return k.reserve(ctx, s, c.retire)
	}
	return nil
}

// errChanged: etcd has changed since it was looked at. Look again.
var errChanged = errors.New("etcd has changed since")

// reserve writes the epoch's value once more, and which region is retired. Whoever has looked before can't put another epoch there any more, and
// so drops nothing: what is in etcd now is there until whoever looks after this, and finds the retirement in the records, or makes it fail there.
func (k *Keeper) reserve(ctx context.Context, s *state, name claims.Region) error {
	key := k.cfg.Keys.Epoch()
	retiring := append(slices.DeleteFunc(slices.Clone(s.retiring), func(n claims.Region) bool { return n == name }), name)
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{
		Guards: []claims.Guard{
			{Key: key, Is: claims.Holds, Value: s.value}, {Key: key, Is: claims.Modified, Revision: s.epochAt}, {Key: k.cfg.Keys.Filled(), Is: claims.Holds, Value: s.value},
		},
		Parts: []claims.Part{{Puts: []claims.Put{{Key: key, Value: s.value}, k.retiring(retiring)}}},
	})
	switch {
	case err != nil:
		return fmt.Errorf("reserve etcd for a retirement: %w", err)
	case r.Cluster != s.cluster || !r.Held:
		return fmt.Errorf("reserve etcd for a retirement: %w", errChanged)
	}
	s.epochAt, s.retiring = r.Revision, retiring
	return nil
}

// doubt notes in an etcd that is not the records' that it may lack claims, before the records name it: if this mover dies then, nothing else
// says that it was restored, and a region could be retired whose bucket alone has what was decided there last. The epoch's value is written once more:
// the request that noted its recovery's end may come a second time, and does nothing then.
func (k *Keeper) doubt(ctx context.Context, s *state) error {
	key := k.cfg.Keys.Epoch()
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{
		Guards: []claims.Guard{{Key: key, Is: claims.Holds, Value: s.value}, {Key: key, Is: claims.Modified, Revision: s.epochAt}},
		Parts:  []claims.Part{{Puts: []claims.Put{{Key: key, Value: s.value}}, Deletes: []string{k.cfg.Keys.Filled(), k.cfg.Keys.Retiring()}}},
	})
	if err := held(r, err, s.cluster, "note that etcd was restored"); err != nil {
		return err
	}
	s.epochAt, s.retiring = r.Revision, nil
	return nil
}

// added are the regions that did not take part before: all of the settings in the first epoch. The last region of a linearizer that was
// dissolved has accepted on its own since.
func (k *Keeper) added(s *state, c change) []claims.Region {
	newest, known := s.newest()
	switch {
	case !known && s.epoch.Number == 0:
		return k.names
	case newest.Dissolved:
		return slices.Compact(append(slices.Clone(newest.Regions), c.add))
	case c.add != "" && !slices.Contains(newest.Regions, c.add):
		return []claims.Region{c.add}
	}
	return nil
}

// joining are the regions of the next epoch that were prepared, and of which that is not known to be folded.
func (k *Keeper) joining(ctx context.Context, s *state, c change) ([]claims.Region, error) {
	out := s.joining()
	for _, n := range k.added(s, c) {
		p, err := k.preparation(ctx, n)
		if err != nil {
			return nil, err
		}
		if p.Through > 0 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out, nil
}

// noteFolded notes in the buckets of all regions, one after the other, that everything is folded of regions which were prepared, and of those that
// were retired. Whoever moved the epoch since has another record there.
func (k *Keeper) noteFolded(ctx context.Context, s *state) error {
	for _, m := range s.moved {
		m.Joining, m.Retired = nil, done(m.Retired)
		_, err := writeRecord(ctx, k.store(m.Region), m.etag, m.Record)
		if errors.Is(err, objstore.ErrPreconditionFailed) {
			err = fmt.Errorf("%w: %w", ErrOvertaken, err)
		}
		if err != nil {
			return &RegionError{"note that everything is folded", m.Region, err}
		}
	}
	return nil
}

// holds checks that nobody has moved the epoch since: whoever does so writes all records before anything else. It reads those of all regions,
// because the next epoch may be one without some of them, whose records stay as they are.
func (k *Keeper) holds(ctx context.Context, e claims.Epoch) error {
	return k.each(len(e.Regions), func(i int) error {
		r, _, err := readRecord(ctx, k.store(e.Regions[i]))
		if err == nil && (r.Number != e.Number || r.ID != e.ID) {
			err = fmt.Errorf("%w: it has epoch %d, and this one is %d", ErrOvertaken, r.Number, e.Number)
		}
		if err != nil {
			return &RegionError{"check the epoch", e.Regions[i], err}
		}
		return nil
	})
}

// store is the bucket of a region of the settings.
func (k *Keeper) store(n claims.Region) Store {
	return k.cfg.Regions[slices.Index(k.names, n)].Store
}

// answered checks that the records of all these regions were read, and that the settings have their buckets.
func (k *Keeper) answered(s *state, regions []claims.Region) error {
	for _, n := range regions {
		if !slices.Contains(k.names, n) {
			return fmt.Errorf("%w: region %s has no bucket in the settings of this coordinator", ErrRegionSettings, n)
		}
	}
	for _, u := range s.unread {
		if slices.Contains(regions, u.Region) {
			return u
		}
	}
	return nil
}
