package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/scan"
)

// Use is what the files of a place take, as far as the ledger knows. It follows the rows, in the batch that changes them.
type Use struct {
	Files, Bytes int64
}

func (u Use) plus(o Use) Use { return Use{u.Files + o.Files, u.Bytes + o.Bytes} }

func (u Use) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(u.Files)), uint64(u.Bytes))
}

// Bytes is the length of the row's file without header and footer, which are small; 0 when it is not there, or its size is not
// known yet.
func (r Row) Bytes() int64 {
	if r.Size <= 0 || !r.takes() {
		return 0
	}
	k := max(int64(r.K), 1)
	return (r.Size + k - 1) / k
}

// takes: there is a file as far as the ledger knows.
func (r Row) takes() bool { return r.State.Readable() || r.State == Removing }

// use adds a row to what its place has, n times.
func (c *change) use(r Row, n int64) {
	if r.takes() {
		c.uses[r.Place] = c.uses[r.Place].plus(Use{n, n * r.Bytes()})
	}
}

func useKey(place string) []byte { return append([]byte{spaceUse}, place...) }

// setUse writes what a place has; of one that has nothing, nothing is kept.
func (c *change) setUse(place string, u Use) error {
	if u == (Use{}) {
		return c.del(useKey(place))
	}
	return c.set(useKey(place), u.encode())
}

// loadUses reads what places have. A ledger of an earlier release has no counts: all rows are read then, once.
func (l *Ledger) loadUses() error {
	counted, err := l.db.get([]byte{spaceTotals, spaceUse}, func([]byte) error { return nil })
	if err != nil {
		return err
	}
	if counted {
		return l.db.scan([]byte{spaceUse}, []byte{spaceUse}, func(key, value []byte) error {
			s := scan.New(value)
			u := Use{int64(s.Num()), int64(s.Num())}
			if s.Bad || len(s.B) > 0 {
				return fmt.Errorf("%w: what a place has", ErrCorrupt)
			}
			l.uses[string(key[1:])] = u
			return nil
		})
	}
	c := &change{l: l, b: l.db.NewBatch(), uses: map[string]Use{}}
	defer c.b.Close()
	err = l.db.scan([]byte{spaceRow}, []byte{spaceRow}, func(key, value []byte) error {
		r, err := decodeStored(key[1:], value)
		c.use(r, 1)
		return err
	})
	for p, u := range c.uses {
		l.uses[p] = u
		err = errors.Join(err, c.setUse(p, u))
	}
	if err = errors.Join(err, c.set([]byte{spaceTotals, spaceUse}, nil)); err != nil {
		return err
	}
	return c.b.Commit(pebble.NoSync)
}

// Use gives what a place has.
func (l *Ledger) Use(place string) Use {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uses[place]
}

// Recount counts what a place has from its rows, and corrects what Use says; it gives by how much that was wrong. An earlier release
// that was put back for a while has changed rows without counting. Rows may change meanwhile: the count is as of one moment, and what
// comes behind it is added as always.
func (l *Ledger) Recount(place string) (off Use, err error) {
	var before, now Use
	l.mu.Lock()
	unlock := sync.OnceFunc(l.mu.Unlock)
	defer unlock()
	err = l.db.do(func() (err error) {
		at := l.db.NewSnapshot()
		defer func() { err = errors.Join(err, at.Close()) }()
		before = l.uses[place]
		unlock()
		now, err = count(at, place)
		return err
	})
	unlock()
	if err != nil {
		return off, fmt.Errorf("count the files of place %s: %w", place, err)
	}
	off = before.plus(Use{-now.Files, -now.Bytes})
	if off == (Use{}) {
		return off, nil
	}
	err = l.update(func(c *change) error {
		c.uses[place] = Use{-off.Files, -off.Bytes}
		return c.setUse(place, l.uses[place].plus(c.uses[place])) // an empty batch is not written
	})
	if err != nil {
		return Use{}, fmt.Errorf("correct what place %s has: %w", place, err)
	}
	return off, nil
}

// count counts the rows of a place.
func count(at *pebble.Snapshot, place string) (u Use, err error) {
	prefix := placePrefix(place)
	it, err := at.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		key := it.Key()[len(prefix):]
		v, closer, err := at.Get(append([]byte{spaceRow}, key...))
		if err != nil {
			return u, err
		}
		r, err := decodeStored(key, v)
		if err = errors.Join(err, closer.Close()); err != nil {
			return u, err
		}
		if r.takes() {
			u = u.plus(Use{1, r.Bytes()})
		}
	}
	return u, it.Error()
}
