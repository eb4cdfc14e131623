package ledgers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Loaded is a checkpoint that was read.
type Loaded struct {
	Set *Set
	// Positions through which the journal is applied: a follower from here finds the rest.
	Positions journal.Positions
	root      Root
	etag      string
}

// loadTries bounds how often a root is read again because a part that it names is gone.
const loadTries = 4

// LoadCheckpoint reads the checkpoint. Without one the set is empty, and the positions are the beginning. Errors that
// wrap record.ErrCorrupt say that the checkpoint is of no use, a root whose parts are gone among them, as a copy of a
// bucket may have; the journal has everything that it had.
func LoadCheckpoint(ctx context.Context, g objstore.Getter, fan journal.Fan) (Loaded, error) {
	var out Loaded
	var err error
	before := ""
	for range loadTries {
		out = Loaded{Set: NewSet()}
		var info objstore.Info
		out.root, info, err = record.Read(ctx, g, layout.LedgersKey, RootKind, ParseRoot)
		if errors.Is(err, objstore.ErrNotFound) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("load the ledgers: %w", err)
		}
		out.etag, out.Positions = info.ETag, out.root.Positions
		if err = out.readParts(ctx, g, fan); err == nil {
			return out, nil
		}
		if !errors.Is(err, objstore.ErrNotFound) {
			break
		}
		// The root has moved meanwhile, long enough ago for its former parts to be deleted. One that has not
		// moved since its part was missing will never have it.
		if out.etag == before {
			err = RootKind.Corrupt(layout.LedgersKey, "it names a part that is not there: %v", err)
			break
		}
		before = out.etag
	}
	return out, fmt.Errorf("load the ledgers: %w", err)
}

func (o *Loaded) readParts(ctx context.Context, g objstore.Getter, fan journal.Fan) error {
	if fan == nil {
		fan = journal.OneByOne
	}
	n := len(o.root.Parts)
	s := newSet(n)
	err := fan(ctx, n, func(ctx context.Context, i int) error {
		p := o.root.Parts[i]
		s.parts[i].stored = p
		if p.Key == "" {
			return nil
		}
		ls, _, err := record.Read(ctx, g, p.Key, PartKind, ParsePart)
		if err != nil {
			return err
		}
		if uint64(len(ls)) != p.Boots {
			return PartKind.Corrupt(p.Key, "%d boots, the root says %d", len(ls), p.Boots)
		}
		boots := make(map[identity.Boot]*ledger.Ledger, len(ls))
		for _, l := range ls {
			if indexOf(l.Boot(), n) != i {
				return PartKind.Corrupt(p.Key, "boot %s belongs to another part", l.Boot())
			}
			boots[l.Boot()] = l
		}
		s.parts[i].boots = boots // each call has a part of its own
		return nil
	})
	for i := range s.parts {
		s.boots += len(s.parts[i].boots)
		for _, l := range s.parts[i].boots {
			s.sort(l)
		}
	}
	o.Set = s
	return err
}

// Store is what a Saver needs of the store.
type Store interface {
	objstore.Getter
	objstore.Header
	objstore.Lister
	objstore.Creator
	objstore.Replacer
	objstore.Deleter
}

// Saver writes checkpoints of a set. Any number may work on one store: each move of the root is an
// If-Match, and every root is whole by itself. Not for concurrent use.
type Saver struct {
	store     Store
	rand      io.Reader
	retention int64
	set       *Set
	root      Root
	etag      string
	// retired are parts that no root names any more, and since when.
	retired map[string]int64
	// partLimit bounds the bytes of a part. Only tests have another than maxPartBytes.
	partLimit int
}

// NewSaver continues from what was loaded. retention is how long parts stay after others took their place, in
// nanoseconds: it spares readers a second reading, and has nothing to do with safety. rand is the source of the
// ids in the keys of parts.
func NewSaver(s Store, rand io.Reader, retention int64, from Loaded) *Saver {
	return &Saver{store: s, rand: rand, retention: retention, set: from.Set, root: from.root, etag: from.etag, retired: map[string]int64{}, partLimit: maxPartBytes}
}

// Save writes the parts that changed, and then the root. at are positions that were applied to the set
// before the call. now is any monotonic time. It reports whether the root has moved: it does not where
// neither a ledger nor the head has changed, and where another reconciler has moved it since the last call, because one
// checkpoint is enough. After an error nothing is lost, and the next call begins again.
func (s *Saver) Save(ctx context.Context, at journal.Positions, now int64) (moved bool, err error) {
	other, err := s.adopt(ctx)
	if err != nil {
		return false, fmt.Errorf("save the ledgers: %w", err)
	}
	if !other {
		if moved, err = s.move(ctx, at, now); err != nil {
			return false, fmt.Errorf("save the ledgers: %w", err)
		}
	}
	return moved, s.deleteRetired(ctx, now)
}

// adopt reads the root if another one has moved it. The parts of this one may be deleted then.
func (s *Saver) adopt(ctx context.Context) (other bool, err error) {
	info, err := s.store.Head(ctx, layout.LedgersKey)
	if errors.Is(err, objstore.ErrNotFound) && s.etag == "" {
		return false, nil
	}
	if err != nil || info.ETag == s.etag {
		return false, err
	}
	root, info, err := record.Read(ctx, s.store, layout.LedgersKey, RootKind, ParseRoot)
	damaged := record.Unreadable(err)
	if damaged {
		root, info, err = s.afterDamage(ctx)
	}
	if err != nil {
		return false, err
	}
	s.root, s.etag = root, info.ETag
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	for i := range s.set.parts {
		p := &s.set.parts[i]
		if i >= len(root.Parts) || len(root.Parts) != len(s.set.parts) || root.Parts[i] != p.stored {
			p.changed = true
		}
	}
	return !damaged, nil
}

// afterDamage finds the number after which a root can continue whose record can't be read: that of no part is
// higher than the root's.
func (s *Saver) afterDamage(ctx context.Context) (Root, objstore.Info, error) {
	var root Root
	for o, err := range objstore.List(ctx, s.store, objstore.ListOptions{Prefix: layout.LedgersPrefix}) {
		if err != nil {
			return root, objstore.Info{}, err
		}
		if n, _, _, err := layout.ParseLedgersPart(o.Key); err == nil {
			root.Number = max(root.Number, n)
		}
	}
	info, err := s.store.Head(ctx, layout.LedgersKey)
	return root, info, err
}

func (s *Saver) move(ctx context.Context, at journal.Positions, now int64) (bool, error) {
	// Each move has an id of its own: a key that an attempt has written is never written again.
	id, err := journal.NewRunID(s.rand)
	if err != nil {
		return false, err
	}
	next, bodies, err := s.encode(at, id)
	if err != nil {
		s.undo(next) // of the parts before the one that can't be written
		return false, err
	}
	if bodies == nil {
		return false, nil
	}
	for _, key := range slices.Sorted(maps.Keys(bodies)) {
		// Only this move writes this key, so what is there is an attempt of its own.
		_, _, err := objstore.CreateOrGet(ctx, s.store, key, bodies[key], int64(len(bodies[key])), objstore.PutOptions{ContentType: "application/vnd.lightmetrics.ledgers"})
		if err != nil {
			s.undo(next)
			return false, err
		}
	}
	old := s.root
	if err := s.replace(ctx, next); err != nil {
		s.undo(next)
		return false, err
	}
	named := map[string]bool{}
	for _, p := range next.Parts {
		named[p.Key] = true
	}
	for _, p := range old.Parts {
		if p.Key != "" && !named[p.Key] {
			s.retired[p.Key] = now
		}
	}
	return true, nil
}

// encode makes the next root, and the bytes of the parts that changed. Changes during the write are
// of the next round.
func (s *Saver) encode(at journal.Positions, id journal.RunID) (Root, map[string][]byte, error) {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	next := Root{Number: s.root.Number + 1, Positions: at, Boots: uint64(s.set.boots), Parts: make([]Part, len(s.set.parts))}
	bodies := map[string][]byte{}
	// With an older head a restart would read again what was folded since.
	changed := at.Head != s.root.Positions.Head
	for i := range s.set.parts {
		p := &s.set.parts[i]
		if p.changed && len(p.boots) > 0 {
			b, err := marshalPart(p.boots, s.partLimit)
			if err != nil {
				return next, nil, err
			}
			key := layout.LedgersPart(next.Number, id, i)
			p.stored = Part{Key: key, Boots: uint64(len(p.boots)), Bytes: uint64(len(b))}
			bodies[key] = b
		}
		changed = changed || p.changed
		p.changed = false
		next.Parts[i] = p.stored
	}
	if !changed {
		return next, nil, nil
	}
	return next, bodies, nil
}

// undo marks what was not written.
func (s *Saver) undo(next Root) {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	for i := range s.set.parts {
		if number, _, _, err := layout.ParseLedgersPart(s.set.parts[i].stored.Key); err == nil && number == next.Number {
			s.set.parts[i].changed = true
		}
	}
	// An unknown outcome may be a root that stands there after all, with another ETag: the next call reads it.
}

func (s *Saver) replace(ctx context.Context, next Root) error {
	b := next.Marshal()
	o := objstore.PutOptions{ContentType: "application/json"}
	var info objstore.Info
	var err error
	if s.etag == "" {
		info, err = s.store.Create(ctx, layout.LedgersKey, b, o)
	} else {
		info, err = s.store.Replace(ctx, layout.LedgersKey, b, s.etag, o)
	}
	if err != nil {
		there, got, gerr := s.store.Get(ctx, layout.LedgersKey, objstore.GetOptions{Limit: int64(RootKind.MaxBytes)})
		if gerr != nil || !bytes.Equal(there, b) {
			return err
		}
		info = got
	}
	s.root, s.etag = next, info.ETag
	return nil
}

func (s *Saver) deleteRetired(ctx context.Context, now int64) error {
	for _, key := range slices.Sorted(maps.Keys(s.retired)) {
		if now-s.retired[key] < s.retention {
			continue
		}
		if err := s.store.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete ledgers that no root names: %w", err)
		}
		delete(s.retired, key)
	}
	return nil
}

// Sweep finds parts that no root names: of writers that died, and of moves that were lost. Save deletes
// them after the retention.
func (s *Saver) Sweep(ctx context.Context, now int64) error {
	// The listing comes first. A part that it shows, with a number that the root has reached, and that the
	// root does not name, will never be named: a root names parts of its own number and those of the root before.
	var keys []string
	for o, err := range objstore.List(ctx, s.store, objstore.ListOptions{Prefix: layout.LedgersPrefix}) {
		if err != nil {
			return fmt.Errorf("sweep ledgers: %w", err)
		}
		keys = append(keys, o.Key)
	}
	if _, err := s.adopt(ctx); err != nil {
		return fmt.Errorf("sweep ledgers: %w", err)
	}
	named := map[string]bool{}
	for _, p := range s.root.Parts {
		named[p.Key] = true
	}
	for _, key := range keys {
		number, _, _, err := layout.ParseLedgersPart(key)
		if _, known := s.retired[key]; err == nil && number <= s.root.Number && !named[key] && !known {
			s.retired[key] = now
		}
	}
	return nil
}
