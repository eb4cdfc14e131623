package redundancy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// OldPlace is the name and the identity under which the bodies of the time before places are in the ledger. No place of the
// settings has it: those have identities of 32 hex digits.
const OldPlace = "before-places"

// LogPlace is the name and the identity under which segments of the log that are offered as bodies are in the ledger. No
// place of the settings can have it. It gets no files, as the one of the time before places: a segment is given up there when the
// policy wants others, and has read them back.
const LogPlace = "(log)"

// Segments are those of the log that are offered as bodies, and the size of each.
type Segments interface {
	Offered() map[string]int64
	// Settle makes a segment the body that the places have. It is fs.ErrNotExist when the segment is not offered any more.
	Settle(ctx context.Context, body string) error
}

// Spread is Files over the places of a store.
type Spread struct {
	Store *spread.Store
	// Old has the bodies of the time before places; nil: none.
	Old *body.Files
	// Log has segments that are to be bodies; nil: none.
	Log Segments
}

var _ Files = (*Spread)(nil)

// Status implements Files. It also tries to reach places that are out.
func (s *Spread) Status(ctx context.Context) (list []PlaceState) {
	s.Store.Retry(ctx)
	for _, p := range s.Store.Stats(ctx).Places {
		list = append(list, PlaceState{Name: p.Name, ID: p.ID, Local: p.Local, Err: p.Err, Free: p.Free, Capacity: p.Capacity, State: p.State})
	}
	if s.Old != nil {
		list = append(list, PlaceState{Name: OldPlace, ID: OldPlace, Local: true, Old: true, Free: -1})
	}
	if s.Log != nil {
		list = append(list, PlaceState{Name: LogPlace, ID: LogPlace, Local: true, Old: true, Free: -1})
	}
	return list
}

// located gives the file as the places know it.
func (s *Spread) located(f File) (spread.Located, error) {
	l := spread.Located{Fragment: erasure.CopyOf(f.Body)}
	if f.Kind != ledger.Copy {
		l.Fragment = erasure.Fragment{Body: f.Body, Policy: f.Policy, K: int(f.K), M: int(f.M), Index: int(f.Index)}
	}
	if name, ok := s.Store.NameOf(f.Place); ok {
		l.Place = name
		return l, nil
	}
	return l, fmt.Errorf("%w: there is none with the identity %s", ErrAway, f.Place)
}

// Make implements Files. Shards of one policy are made in one pass; a file alone is made from its like.
func (s *Spread) Make(ctx context.Context, id string, size int64, p Policy, want []File) []error {
	errs := make([]error, len(want))
	coding := spread.Coding{Policy: p.Version, Params: erasure.Params{K: p.Data, M: p.Parity, MinChunk: p.MinChunk, MaxChunk: p.MaxChunk}}
	targets := make([]string, p.Data+p.Parity)
	var shards []int
	for i, f := range want {
		l, err := s.located(f)
		switch {
		case err != nil:
			errs[i] = err
		case l.IsCopy() || len(want) == 1:
			_, err := s.Store.Heal(ctx, l, coding)
			errs[i] = translate(err)
		default:
			targets[l.Index] = l.Place
			shards = append(shards, i)
		}
	}
	if len(shards) == 0 {
		return errs
	}
	placed, err := s.Store.Encode(ctx, id, coding, targets)
	for _, i := range shards {
		if err != nil {
			errs[i] = translate(err)
		} else {
			errs[i] = translate(placed[want[i].Index].Err)
		}
	}
	return errs
}

// translate gives errors of the places the names by which plans are made.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, erasure.ErrTooFew), errors.Is(err, body.ErrUnavailable), errors.Is(err, body.ErrDamaged):
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	case vfs.IsFull(err), errors.Is(err, spread.ErrLeaving):
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	case errors.Is(err, place.ErrOut), errors.Is(err, place.ErrUnknown):
		return fmt.Errorf("%w: %w", ErrAway, err)
	case errors.Is(err, erasure.ErrCorrupt):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Verify implements Files.
func (s *Spread) Verify(ctx context.Context, f File) (Verified, error) {
	l, err := s.located(f)
	if err != nil {
		return Verified{}, err
	}
	info, err := s.Store.Verify(ctx, l)
	if err != nil {
		return Verified{}, translate(err)
	}
	digest := info.Digest()
	return Verified{BodySize: info.Layout.Size, Bytes: info.FileSize(), Checksum: binary.BigEndian.Uint32(digest[:])}, nil
}

// Stat implements Files.
func (s *Spread) Stat(ctx context.Context, f File) error {
	if f.Place == OldPlace {
		_, err := s.Old.Size(f.Body)
		return err
	}
	if f.Place == LogPlace {
		if _, ok := s.segments()[f.Body]; !ok {
			return fmt.Errorf("segment %s: %w", f.Body, fs.ErrNotExist)
		}
		return nil
	}
	l, err := s.located(f)
	if err != nil {
		return err
	}
	return translate(s.Store.StatFile(ctx, l))
}

// Remove implements Files.
func (s *Spread) Remove(ctx context.Context, f File) error {
	var err error
	switch f.Place {
	case OldPlace:
		err = s.Old.Remove(f.Body)
	case LogPlace:
		if s.Log != nil {
			err = s.Log.Settle(ctx, f.Body)
		}
	default:
		var l spread.Located
		if l, err = s.located(f); err == nil {
			err = s.Store.RemoveFile(ctx, l)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return translate(err)
}

// Tidy implements Files. Neither the time before places nor the log has writers of files here.
func (s *Spread) Tidy(ctx context.Context, id string) error {
	if id == OldPlace || id == LogPlace {
		return nil
	}
	l, err := s.located(File{Place: id})
	if err != nil {
		return err
	}
	return translate(s.Store.Tidy(ctx, l.Place))
}

// List implements Files.
func (s *Spread) List(ctx context.Context, id, behind string, fn func(Listed) error) error {
	switch id {
	case OldPlace:
		return s.listOld(behind, fn)
	case LogPlace:
		return s.listLog(behind, fn)
	}
	l, err := s.located(File{Key: ledger.Key{}, Place: id})
	if err != nil {
		return err
	}
	return translate(s.Store.Files(ctx, l.Place, behind, func(l spread.Located, size int64) error {
		return fn(Listed{File: fileAt(l.Fragment, id), Bytes: size})
	}))
}

// SetState implements Files.
func (s *Spread) SetState(place string, to spread.State) error { return s.Store.SetState(place, to) }

// Writing implements Files.
func (s *Spread) Writing(place string) int { return s.Store.Writing(place) }

// fileAt gives the file of a fragment.
func fileAt(f erasure.Fragment, place string) File {
	return File{Key: ledger.Key{Body: f.Body, Policy: f.Policy, Kind: ledger.Kind(f.Kind()), Index: uint16(f.Index)},
		K: uint8(f.K), M: uint8(f.M), Place: place}
}

// listOld lists the bodies of the time before places. They come in no order, and are few enough to be sorted: each is large.
func (s *Spread) listOld(behind string, fn func(Listed) error) error {
	var ids []string
	err := s.Old.List(func(id string) error {
		if len(id) == 32 && id > behind {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(ids)
	for _, id := range ids {
		size, err := s.Old.Size(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := fn(Listed{File: fileAt(erasure.CopyOf(id), OldPlace), Bytes: size}); err != nil {
			return err
		}
	}
	return nil
}

// segments are those that are offered.
func (s *Spread) segments() map[string]int64 {
	if s.Log == nil {
		return nil
	}
	return s.Log.Offered()
}

// listLog lists the segments that are offered.
func (s *Spread) listLog(behind string, fn func(Listed) error) error {
	offered := s.segments()
	for _, id := range slices.Sorted(maps.Keys(offered)) {
		if id <= behind {
			continue
		}
		if err := fn(Listed{File: fileAt(erasure.CopyOf(id), LogPlace), Bytes: offered[id]}); err != nil {
			return err
		}
	}
	return nil
}

// Hooks tell the keeper what happens in the store. get gives it, nil before it is there.
func Hooks(get func() *Keeper) spread.Hooks {
	return spread.Hooks{
		Staged: func(id string, size int64, names []string) {
			if k := get(); k != nil {
				k.Written(id, size, k.tracker.ids(names))
			}
		},
		Removed: func(id string) {
			if k := get(); k != nil {
				k.Removed(id)
			}
		},
		Degraded: func(l spread.Located, err error) {
			k := get()
			if k == nil || errors.Is(err, place.ErrOut) {
				return
			}
			for _, id := range k.tracker.ids([]string{l.Place}) {
				k.Degraded(fileAt(l.Fragment, id), translate(err))
			}
		},
		Standing: func(name string) spread.Standing {
			if k := get(); k != nil {
				return k.tracker.standing(name)
			}
			return spread.Standing{}
		},
		Locate: func(id string) ([]spread.Located, bool) {
			if k := get(); k != nil {
				return k.locate(id)
			}
			return nil, false
		},
	}
}

// locate says where the ledger has files of a body; false when it knows of none.
func (k *Keeper) locate(id string) (list []spread.Located, ok bool) {
	rows, err := k.ledger.Rows(id)
	if err != nil {
		return nil, false
	}
	for _, r := range rows {
		if !r.State.Readable() || r.Place == OldPlace || r.Place == LogPlace {
			continue
		}
		f := erasure.CopyOf(id)
		if r.Kind != ledger.Copy {
			f = erasure.Fragment{Body: id, Policy: r.Policy, K: int(r.K), M: int(r.M), Index: int(r.Index)}
		}
		list = append(list, spread.Located{Place: k.tracker.name(r.Place), Fragment: f})
	}
	return list, len(list) > 0
}
