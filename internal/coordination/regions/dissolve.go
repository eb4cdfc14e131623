package regions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Errors of a linearizer that ends.
var (
	// ErrDissolved: nobody decides identities any more; collectors accept in the bucket of the last region without a linearizer. To add
	// a region begins the next epoch.
	ErrDissolved = errors.New("the identity linearizer was dissolved")
	// ErrDissolving: an operator has begun to dissolve it, and whoever leads goes on.
	ErrDissolving = errors.New("the identity linearizer is being dissolved")
)

// UndecidedError says that claims are left which somebody has to complete or release first.
type UndecidedError struct {
	// Claimed and Durable are how many there are in these states, Other those that can't be read or are of no region that takes part.
	Claimed, Durable, Other int
	// First of them.
	First identity.Batch
}

func (e *UndecidedError) Error() string {
	first := ""
	if e.First != (identity.Batch{}) {
		first = "; the first: " + e.First.String()
	}
	return fmt.Sprintf("claims are left that nobody has finished: %d CLAIMED, %d DURABLE, %d that can't be read%s", e.Claimed, e.Durable, e.Other, first)
}

func (e *UndecidedError) any() bool { return e.Claimed+e.Durable+e.Other > 0 }

// Dissolve ends the linearizer of a region that is the only one left: from then on its bucket is an authority of its own again. What
// was decided there has a manifest in it. What regions decided that were retired is known to nobody any more who accepts. It gives the
// record that says so; to dissolve it twice is harmless.
//
// All claims are folded: what the region accepts from then on may meet what was decided, and a linearizer that begins again knows by the folds
// which of them counts. Then etcd is frozen: its epoch goes, and a mark takes its place, so that no change of a claim is applied any more. All
// claims are read once more, and only if each of them is settled, and folded, the record says that the linearizer is dissolved; else the epoch
// comes back as it was. Last, etcd's keys go. One that dies is gone on with by whoever opens next.
func (k *Keeper) Dissolve(ctx context.Context, name claims.Region) (Record, error) {
	fail := func(err error) (Record, error) {
		return Record{}, fmt.Errorf("dissolve the linearizer of region %s: %w", name, err)
	}
	if err := name.Validate(); err != nil {
		return fail(err)
	}
	for try := 0; ; try++ {
		r, err := k.tryDissolve(ctx, name)
		if err == nil {
			return r, nil
		}
		// What became of a request nobody knows, and what another one did meanwhile, is found out by looking again.
		if try == moveTries || ctx.Err() != nil || !errors.Is(err, claims.ErrUnknown) && !errors.Is(err, ErrOvertaken) && !passes(err) {
			return fail(err)
		}
	}
}

func (k *Keeper) tryDissolve(ctx context.Context, name claims.Region) (Record, error) {
	s, err := k.look(ctx)
	if err != nil {
		return Record{}, err
	}
	newest, ok := s.newest()
	for _, u := range s.unread {
		// It may know of a later epoch, in which it takes part.
		if !slices.ContainsFunc(newest.Retired, func(t Retired) bool { return t.Name == u.Region }) {
			return Record{}, u
		}
	}
	switch {
	case !ok:
		return Record{}, fmt.Errorf("%w: no region has an epoch", ErrRegionSettings)
	case !slices.Equal(newest.Regions, []claims.Region{name}):
		return Record{}, fmt.Errorf("%w: the regions that take part are %v; retire all but one first, and name that one", ErrRegionSettings, newest.Regions)
	case newest.Dissolved:
		return newest, k.clear(ctx, s)
	}
	if _, err := k.agreed(s); errors.Is(err, ErrDissolving) {
		return k.finish(ctx, s)
	} else if err != nil {
		return Record{}, err
	}
	// Before etcd is frozen: to be refused costs nothing then, and there is little left to fold.
	if err := k.foldSettled(ctx, s, []claims.Guard{{Key: k.cfg.Keys.Epoch(), Is: claims.Holds, Value: s.value}}); err != nil {
		return Record{}, err
	}
	if s.mark, err = k.freeze(ctx, s); err != nil {
		return Record{}, err
	}
	s.value, s.filled = nil, false
	return k.finish(ctx, s)
}

// openDissolved is Open, by who leads, of a linearizer that was dissolved or is being it: it goes on with that.
func (k *Keeper) openDissolved(ctx context.Context, s *state, why error) (Opened, error) {
	fail := func(err error) (Opened, error) { return Opened{}, fmt.Errorf("open the epoch: %w", err) }
	if errors.Is(why, ErrDissolved) {
		if err := k.clear(ctx, s); err != nil {
			return fail(fmt.Errorf("%w; what etcd has of it is still there: %w", why, err))
		}
		return fail(why)
	}
	r, err := k.finish(ctx, s)
	switch {
	case errors.Is(err, errRefused):
		// It goes on as before.
		return k.Open(ctx, false)
	case err != nil:
		return fail(fmt.Errorf("%w: %w", why, err))
	}
	return fail(fmt.Errorf("%w in epoch %d; its last region was %s", ErrDissolved, r.Number, r.Region))
}

// markBytes are the random bytes behind the epoch in the mark of a dissolution.
const markBytes = 16

// marked: etcd is frozen in the epoch of the newest record, by a dissolution that did not end. A mark of another epoch, or in another
// etcd, is of a copy, and means nothing.
func (s *state) marked(newest Record) bool {
	e := newest.Epoch().Marshal()
	return s.value == nil && s.cluster == newest.Cluster && len(s.mark) == len(e)+markBytes && bytes.HasPrefix(s.mark, e)
}

// freeze puts a mark in the place of the epoch. It compares the revision of the epoch's key, beside its value: after a dissolution that
// was refused, a request for the freezing that comes late finds another one.
func (k *Keeper) freeze(ctx context.Context, s *state) ([]byte, error) {
	mark := append(slices.Clone(s.value), make([]byte, markBytes)...)
	if _, err := io.ReadFull(k.cfg.Rand, mark[len(s.value):]); err != nil {
		return nil, fmt.Errorf("read randomness: %w", err)
	}
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{
		Guards: []claims.Guard{
			{Key: k.cfg.Keys.Epoch(), Is: claims.Holds, Value: s.value}, {Key: k.cfg.Keys.Epoch(), Is: claims.Modified, Revision: s.epochAt},
			{Key: k.cfg.Keys.Filled(), Is: claims.Holds, Value: s.value},
		},
		Parts: []claims.Part{{Puts: []claims.Put{{Key: k.cfg.Keys.Dissolving(), Value: mark}}, Deletes: []string{k.cfg.Keys.Epoch(), k.cfg.Keys.Filled()}}},
	})
	return mark, held(r, err, s.cluster, "freeze etcd")
}

// held checks that a transaction was done, by the etcd that was looked at.
func held(r claims.Result, err error, cluster uint64, op string) error {
	f := filler{cluster: cluster}
	return f.judge(r, err, op)
}

// frozen holds as long as nothing can change a claim, and nobody has ended that.
func (k *Keeper) frozen(s *state) []claims.Guard {
	return []claims.Guard{{Key: k.cfg.Keys.Dissolving(), Is: claims.Holds, Value: s.mark}, {Key: k.cfg.Keys.Epoch(), Is: claims.Absent}}
}

// errRefused: a dissolution had frozen etcd, which has its epoch again.
var errRefused = errors.New("the epoch is there again")

// finish goes on with a dissolution while etcd is frozen. Whoever does so finds the same claims, and comes to the same end.
func (k *Keeper) finish(ctx context.Context, s *state) (Record, error) {
	err := k.foldSettled(ctx, s, k.frozen(s))
	var u *UndecidedError
	if errors.As(err, &u) || errors.Is(err, folds.ErrFull) {
		// Nobody who tries again comes further.
		if err2 := k.thaw(ctx, s); err2 != nil {
			return Record{}, errors.Join(err, err2)
		}
		return Record{}, fmt.Errorf("%w: %w", errRefused, err)
	}
	if err != nil {
		return Record{}, err
	}
	r, err := k.writeDissolved(ctx, s)
	if err != nil {
		return Record{}, err
	}
	return r, k.clear(ctx, s)
}

// thaw puts the epoch back. Nothing has changed since it went, so it is the same as if it had never gone.
func (k *Keeper) thaw(ctx context.Context, s *state) error {
	value := s.mark[:len(s.mark)-markBytes]
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{Guards: k.frozen(s), Parts: []claims.Part{{
		Puts:    []claims.Put{{Key: k.cfg.Keys.Epoch(), Value: value}, {Key: k.cfg.Keys.Filled(), Value: value}},
		Deletes: []string{k.cfg.Keys.Dissolving()},
	}}})
	return held(r, err, s.cluster, "put the epoch back into etcd")
}

// foldSettled folds all claims, which it reads under guards that say in which epoch. If one of them is not settled in the region that is left, it folds
// none, and gives an *UndecidedError.
func (k *Keeper) foldSettled(ctx context.Context, s *state, guards []claims.Guard) error {
	newest, _ := s.newest()
	var u UndecidedError
	if err := k.eachPage(ctx, s, guards, func(entries []claims.Entry) error {
		for _, e := range entries {
			if c, settled := u.count(k, newest, e); !settled && u.First == (identity.Batch{}) {
				u.First = c.Identity
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if u.any() {
		return &u
	}
	folder := k.Folder(newest.Epoch(), names(newest.Retired))
	// What contradicts a fold has lost against it before.
	folder.Lenient = true
	return k.eachPage(ctx, s, guards, func(entries []claims.Entry) error {
		var boots []foldable
		for _, e := range entries {
			c, settled := u.count(k, newest, e)
			if !settled {
				continue // new since, which nothing is once etcd is frozen
			}
			if n := len(boots); n == 0 || boots[n-1].boot != c.Identity.BootOf() {
				boots = append(boots, foldable{boot: c.Identity.BootOf()})
			}
			last := &boots[len(boots)-1]
			last.entries = append(last.entries, folds.Entry{Start: c.Identity.SeqStart, End: c.Identity.SeqEnd, Home: c.Home, Digest: folds.DigestOf(c.Hash)})
		}
		return k.each(len(boots), func(i int) error {
			for n := range slices.Chunk(boots[i].entries, folds.MaxAdd) {
				if _, err := folder.Fold(ctx, boots[i].boot, claims.Folds{}, n); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// foldable are entries of a boot, in order.
type foldable struct {
	boot    identity.Boot
	entries []folds.Entry
}

// eachPage reads all claims under guards, page by page.
func (k *Keeper) eachPage(ctx context.Context, s *state, guards []claims.Guard, fn func([]claims.Entry) error) error {
	all := k.cfg.Keys.Claims()
	for from := all; ; {
		r, err := k.cfg.KV.Commit(ctx, claims.Txn{Guards: guards, Parts: []claims.Part{{Reads: []claims.Range{{From: from, End: beyond(all), Limit: claims.MaxScan}}}}})
		if err := held(r, err, s.cluster, "read "+all); err != nil {
			return err
		}
		entries := r.Parts[0].Reads[0]
		if err := fn(entries); err != nil || len(entries) < claims.MaxScan {
			return err
		}
		from = entries[len(entries)-1].Key + "\x00"
	}
}

// count reads a claim, and counts it if it is not settled.
func (e *UndecidedError) count(k *Keeper, newest Record, of claims.Entry) (c claims.Claim, settled bool) {
	boot, start, err := k.cfg.Keys.ParseClaim(of.Key)
	if err != nil {
		e.Other++
		return claims.Claim{}, false
	}
	c, err = claims.ParseClaim(boot, start, of.Value)
	switch {
	case err != nil:
		e.Other++
		return claims.Claim{Identity: identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: start, SeqEnd: start}}, false
	case c.State == claims.Claimed:
		e.Claimed++
	case c.State == claims.Durable:
		e.Durable++
	case c.Home != newest.Regions[0] || c.Stamp.Epoch != newest.Number:
		e.Other++
	default:
		return c, true
	}
	return c, false
}

// writeDissolved replaces the record by one that says that the linearizer is dissolved. Another one that goes on may have done it.
func (k *Keeper) writeDissolved(ctx context.Context, s *state) (Record, error) {
	was, _ := s.newest()
	name := was.Regions[0]
	r := Record{Region: name, Number: was.Number + 1, Regions: was.Regions, Retired: done(was.Retired), Cluster: s.cluster, Dissolved: true} // the epoch was filled
	if _, err := io.ReadFull(k.cfg.Rand, r.ID[:]); err != nil {
		return Record{}, fmt.Errorf("read randomness: %w", err)
	}
	if !slices.Contains(k.names, name) {
		return Record{}, fmt.Errorf("%w: region %s has no bucket in the settings of this coordinator", ErrRegionSettings, name)
	}
	if _, err := writeRecord(ctx, k.store(name), s.found[name].etag, r); err != nil {
		return Record{}, &RegionError{"dissolve the linearizer", name, err}
	}
	return r, nil
}

// clear drops what etcd has of a linearizer that the records say is dissolved. None of its transactions does anything once there is an
// epoch again.
func (k *Keeper) clear(ctx context.Context, s *state) error {
	if s.value != nil {
		// Of a copy from before it was dissolved.
		g := claims.Guard{Key: k.cfg.Keys.Epoch(), Is: claims.Holds, Value: s.value}
		r, err := k.cfg.KV.Commit(ctx, claims.Txn{Guards: []claims.Guard{g}, Parts: []claims.Part{{Deletes: []string{k.cfg.Keys.Epoch(), k.cfg.Keys.Filled(), k.cfg.Keys.Emptied()}}}})
		if err := held(r, err, s.cluster, "take the epoch out of etcd"); err != nil {
			return err
		}
	}
	f := &filler{k: k, cluster: s.cluster, dissolved: true}
	for _, all := range []string{k.cfg.Keys.Claims(), k.cfg.Keys.Folded(), k.cfg.Keys.Forgottens()} {
		if err := f.drop(ctx, all); err != nil {
			return err
		}
	}
	if s.mark == nil {
		return nil
	}
	r, err := k.cfg.KV.Commit(ctx, claims.Txn{Guards: f.guard(), Parts: []claims.Part{{Deletes: []string{k.cfg.Keys.Dissolving(), k.cfg.Keys.Retiring()}}}})
	return held(r, err, s.cluster, "take the mark out of etcd")
}
