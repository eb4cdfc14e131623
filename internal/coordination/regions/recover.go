package regions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// txnWrites bounds the writes of one transaction of a recovery; etcd allows 128.
const txnWrites = 100

// recover moves the epoch, and fills etcd from what the regions have. Each of its transactions compares the epoch, so that a
// recovery that was overtaken writes nothing more. One that dies is begun again by whoever opens next: the epoch is not noted
// as filled before the end, and what is in etcd is dropped first.
func (k *Keeper) recover(ctx context.Context, s *state, c change) (Opened, error) {
	if newest, ok := s.newest(); ok {
		// Before anything is written: a recovery that can't end only takes the epoch away from others.
		needed := slices.DeleteFunc(slices.Clone(newest.Regions), func(n claims.Region) bool { return n == c.retire })
		if err := k.answered(s, needed); err != nil {
			return Opened{}, err
		}
	}
	if err := k.mayFill(ctx, s, c); err != nil {
		return Opened{}, err
	}
	e, err := k.move(ctx, s, c)
	if err != nil {
		return Opened{}, err
	}
	f := &filler{k: k, epoch: e, retired: names(s.retired), value: e.Marshal(), cluster: s.cluster, progress: Progress{Epoch: e.Number}}
	leaving := s.leaving()
	f.reserved, f.reads = s.reserved(leaving, c)
	if err := f.begin(ctx, s); err != nil {
		return Opened{}, err
	}
	// Only now: whoever moves the records behind this finds etcd's epoch, and replaces it. Where etcd had none it may have had others since, and
	// lost them: this epoch is over then, and has regions that were retired.
	if err := k.holds(ctx, e); err != nil {
		return Opened{}, err
	}
	k.cfg.Progress(f.progress)
	if len(leaving) > 0 {
		// What etcd has of a region that is gone for good nobody else has.
		if err := f.keep(ctx); err != nil {
			return Opened{}, fmt.Errorf("keep what retired regions had: %w", err)
		}
	}
	if err := f.empty(ctx); err != nil {
		return Opened{}, err
	}
	if err := k.scan(ctx, e, f.retired, s.joins, f.boot); err != nil {
		return Opened{}, err
	}
	if err := f.flush(ctx); err != nil {
		return Opened{}, err
	}
	if len(s.joins)+len(leaving) > 0 {
		// Before the epoch can be open: from then on what is prepared has no force, whatever is added to it; and what etcd had of a retired region is
		// needed no more.
		if err := k.noteFolded(ctx, s); err != nil {
			return Opened{}, err
		}
	}
	revision, err := f.end(ctx)
	if err != nil {
		return Opened{}, err
	}
	k.cfg.Progress(f.progress)
	return Opened{Epoch: e, Retired: f.retired, Cluster: f.cluster, Revision: revision, Recovered: f.progress}, nil
}

// filler writes what a recovery found.
type filler struct {
	k       *Keeper
	epoch   claims.Epoch
	retired []claims.Region
	// reserved are the regions that are being retired of which etcd has everything; reads are those whose buckets are read, because it has not.
	reserved, reads []claims.Region
	value           []byte
	at              int64 // the revision at which value was put into etcd
	cluster         uint64
	puts            []claims.Put
	progress        Progress
	// dissolved: there is no epoch any more, and what is left in etcd is dropped.
	dissolved bool
	// last is what was written last: an etcd without it was restored since, also where it has the epoch. The claims' ids are random.
	last claims.Put
}

// begin puts the epoch into etcd. From here on nothing of an earlier epoch is applied.
func (f *filler) begin(ctx context.Context, s *state) error {
	key := f.k.cfg.Keys.Epoch()
	g := []claims.Guard{{Key: key, Is: claims.Absent}}
	if s.value != nil {
		// The revision, too: somebody who retires a region may have reserved what is there. From here on that is over, or gone on with: the
		// records of all its regions were replaced.
		g = []claims.Guard{{Key: key, Is: claims.Holds, Value: s.value}, {Key: key, Is: claims.Modified, Revision: s.epochAt}}
	}
	part := claims.Part{Puts: []claims.Put{{Key: key, Value: f.value}}, Deletes: []string{f.k.cfg.Keys.Filled(), f.k.cfg.Keys.Dissolving()}}
	if len(f.reserved) > 0 {
		// Nothing is dropped before it is kept: whoever goes on with this finds the same.
		part.Puts = append(part.Puts, f.k.retiring(f.reserved))
	} else {
		part.Deletes = append(part.Deletes, f.k.cfg.Keys.Retiring())
	}
	// A lost answer leaves the next open to find out: the epoch that is there then is not noted as filled.
	r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: g, Parts: []claims.Part{part}})
	f.at = r.Revision
	return f.judge(r, err, "put the epoch into etcd")
}

// judge checks that a transaction was done, by the etcd that the recovery began on.
func (f *filler) judge(r claims.Result, err error, op string) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	case r.Cluster != f.cluster:
		return fmt.Errorf("%s: %w: etcd is cluster %x now, and was %x", op, ErrOvertaken, r.Cluster, f.cluster)
	case !r.Held:
		return fmt.Errorf("%s: %w: etcd has another epoch now, or has forgotten what was written", op, ErrOvertaken)
	}
	return nil
}

// guard holds in this recovery alone: before its end, so that a transaction which arrives late, or twice, undoes nothing of what was
// decided in the epoch.
func (f *filler) guard() []claims.Guard {
	if f.dissolved {
		return []claims.Guard{{Key: f.k.cfg.Keys.Epoch(), Is: claims.Absent}}
	}
	// The revision, too: the request that put the epoch there may come a second time, into a copy of etcd out of which the epoch was taken.
	g := []claims.Guard{
		{Key: f.k.cfg.Keys.Epoch(), Is: claims.Holds, Value: f.value}, {Key: f.k.cfg.Keys.Epoch(), Is: claims.Modified, Revision: f.at},
		{Key: f.k.cfg.Keys.Filled(), Is: claims.Absent},
	}
	if f.last.Key != "" {
		g = append(g, claims.Guard{Key: f.last.Key, Is: claims.Holds, Value: f.last.Value})
	}
	return g
}

// empty drops everything that etcd has of another epoch, and notes it: a copy is not believed, not even what is durable in it.
func (f *filler) empty(ctx context.Context) error {
	keys := f.k.cfg.Keys
	all := []string{keys.Claims(), keys.Folded(), keys.Forgottens()}
	g := f.guard()
	for _, prefix := range all {
		if err := f.drop(ctx, prefix); err != nil {
			return err
		}
		g = append(g, claims.Guard{Key: prefix, End: beyond(prefix), Is: claims.Absent})
	}
	f.last = claims.Put{Key: keys.Emptied(), Value: f.value}
	r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: g, Parts: []claims.Part{{Puts: []claims.Put{f.last}}}})
	return f.judge(r, err, "note that nothing is left")
}

// beyond follows all keys that begin with a prefix, which ends with a slash.
func beyond(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// drop deletes everything below a prefix that ends with a slash.
func (f *filler) drop(ctx context.Context, prefix string) error {
	for {
		r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Reads: []claims.Range{{From: prefix, End: beyond(prefix), Limit: txnWrites}}}}})
		if err := f.judge(r, err, "read "+prefix); err != nil {
			return err
		}
		var old claims.Part
		for _, e := range r.Parts[0].Reads[0] {
			// As it was read: a request that comes a second time must not delete what was inserted meanwhile.
			old.Guards = append(old.Guards, claims.Guard{Key: e.Key, Is: claims.Modified, Revision: e.Modified})
			old.Deletes = append(old.Deletes, e.Key)
		}
		if len(old.Deletes) == 0 {
			return nil
		}
		r, err = f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{old}})
		if err := f.judge(r, err, "drop "+prefix); err != nil {
			return err
		}
	}
}

// boot inserts what counts of a boot.
func (f *filler) boot(ctx context.Context, found []manifest) error {
	for _, m := range choose(found) {
		if f.progress.Claims+uint64(len(f.puts)) >= f.k.cfg.MaxClaims {
			return fmt.Errorf("%w: more than %d, that of boot %s among them", ErrTooManyClaims, f.k.cfg.MaxClaims, m.id.BootOf())
		}
		c := claims.Claim{
			Identity: m.id, Hash: m.hash, State: claims.Claimed, Recovered: true, Home: m.region,
			Stamp: claims.Stamp{Epoch: f.epoch.Number}, ClaimedAt: max(f.k.cfg.Now(), 0),
		}
		if _, err := io.ReadFull(f.k.cfg.Rand, c.ID[:]); err != nil {
			return fmt.Errorf("read randomness: %w", err)
		}
		f.puts = append(f.puts, claims.Put{Key: f.k.cfg.Keys.Claim(m.id.BootOf(), m.id.SeqStart), Value: c.Marshal()})
		if len(f.puts) == txnWrites {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
	f.progress.Manifests += uint64(len(found))
	f.progress.Boots++
	if f.progress.Boots%100 == 0 {
		f.k.cfg.Progress(f.progress)
	}
	return nil
}

// flush writes the claims that wait. To write the same claims twice, after a lost answer, is harmless: nobody has seen them.
func (f *filler) flush(ctx context.Context) error {
	if len(f.puts) == 0 {
		return nil
	}
	txn := claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Puts: f.puts}}}
	var r claims.Result
	var err error
	for range 3 {
		if r, err = f.k.cfg.KV.Commit(ctx, txn); err == nil || ctx.Err() != nil || !errors.Is(err, claims.ErrUnknown) && !errors.Is(err, claims.ErrUnavailable) {
			break
		}
	}
	if err := f.judge(r, err, "insert claims"); err != nil {
		return err
	}
	f.progress.Claims += uint64(len(f.puts))
	f.last = f.puts[len(f.puts)-1]
	f.puts = f.puts[:0]
	return nil
}

// end notes that the epoch is filled.
func (f *filler) end(ctx context.Context) (int64, error) {
	r, err := f.k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{
		Puts: []claims.Put{{Key: f.k.cfg.Keys.Filled(), Value: f.value}}, Deletes: []string{f.k.cfg.Keys.Emptied(), f.k.cfg.Keys.Retiring()},
	}}})
	return r.Revision, f.judge(r, err, "note that the epoch is filled")
}

// choose takes the manifests of a boot that count, by descending stamp: what was completed last has the highest of all that
// contradict each other, and what contradicts one that was taken is left out. The result is in the order of the ranges.
func choose(found []manifest) []manifest {
	slices.SortFunc(found, manifest.before)
	var taken []manifest // in order, without overlaps
	for _, m := range found {
		i, _ := slices.BinarySearchFunc(taken, m, func(a, b manifest) int {
			if a.id.SeqEnd < b.id.SeqStart {
				return -1
			}
			return 1
		})
		if i < len(taken) && taken[i].id.SeqStart <= m.id.SeqEnd {
			continue // the same identity, of which the higher stamp tells the home; or one that meets it
		}
		taken = slices.Insert(taken, i, m)
	}
	return taken
}
