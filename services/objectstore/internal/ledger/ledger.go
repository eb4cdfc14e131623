package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/scan"
)

// Errors that decide what a worker does next.
var (
	// ErrRaced: the row has changed since it was read, or is gone. Somebody else has it.
	ErrRaced = errors.New("the row has changed meanwhile")
	// ErrExists: there is a row of this key.
	ErrExists = errors.New("there is such a row")
)

// Ledger is an open ledger. All methods may be called at the same time.
type Ledger struct {
	db    *db
	fresh bool

	mu     sync.Mutex // of changes: read, decide, write
	counts map[State]int64
	uses   map[string]Use // by place
	queued int64
	dead   int64
	lost   int64
	serial uint64 // the last number that a row's version or a message's receipt was
}

// Open opens the ledger in a directory, and begins a new one where there is none that can be read.
func Open(fsys pebblevfs.FS, dir string) (*Ledger, error) {
	d, fresh, err := openDB(fsys, dir)
	if err != nil {
		return nil, err
	}
	l := &Ledger{db: d, fresh: fresh, counts: map[State]int64{}, uses: map[string]Use{}}
	if err := l.load(); err != nil {
		return nil, errors.Join(err, d.shut())
	}
	return l, nil
}

// load reads the totals.
func (l *Ledger) load() error {
	for _, s := range States() {
		n, err := l.number([]byte{spaceCount, byte(s)})
		if err != nil {
			return err
		}
		l.counts[s] = n
	}
	var err error
	if l.queued, err = l.number([]byte{spaceTotals, spaceDue}); err != nil {
		return err
	}
	if l.dead, err = l.number([]byte{spaceTotals, spaceDead}); err != nil {
		return err
	}
	if l.lost, err = l.number([]byte{spaceTotals, spaceState}); err != nil {
		return err
	}
	n, err := l.number([]byte{spaceTotals, spaceRow})
	l.serial = uint64(n)
	return errors.Join(err, l.loadUses())
}

func (l *Ledger) number(key []byte) (n int64, err error) {
	_, err = l.db.get(key, func(v []byte) error {
		s := scan.New(v)
		if n = int64(s.Num()); s.Bad {
			return fmt.Errorf("%w: a total", ErrCorrupt)
		}
		return nil
	})
	return n, err
}

// Fresh reports whether the ledger was begun by Open: it knows nothing until the places were listed.
func (l *Ledger) Fresh() bool { return l.fresh }

// Err is why the ledger takes no changes; nil while it does.
func (l *Ledger) Err() error { return l.db.err() }

// Close closes the ledger, when the calls that are under way have ended. Calls that come later answer ErrDown.
func (l *Ledger) Close() error {
	l.db.use.Lock()
	defer l.db.use.Unlock()
	if l.db.closed {
		return nil
	}
	l.db.closed = true
	return l.db.shut()
}

// change is a batch that is being decided on, with what it does to the totals.
type change struct {
	l            *Ledger
	b            *pebble.Batch
	counts       map[State]int64
	uses         map[string]Use
	queued, dead int64
	lost         int64
	serial       uint64
}

// next gives a number that was never used before: what was removed and made again is not what it was.
func (c *change) next() uint64 {
	c.serial++
	return c.serial
}

// update runs fn with the lock held and commits what it has put into the batch. fn reads the ledger as it is before.
func (l *Ledger) update(fn func(*change) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.db.do(func() error {
		c := &change{l: l, b: l.db.NewBatch(), counts: map[State]int64{}, uses: map[string]Use{}, serial: l.serial}
		defer c.b.Close()
		if err := fn(c); err != nil {
			return err
		}
		if c.b.Empty() {
			return nil
		}
		if err := c.totals(); err != nil {
			return err
		}
		if err := c.b.Commit(pebble.NoSync); err != nil {
			return fmt.Errorf("write the ledger: %w", err)
		}
		for s, n := range c.counts {
			l.counts[s] += n
		}
		for p, u := range c.uses {
			if l.uses[p] = l.uses[p].plus(u); l.uses[p] == (Use{}) {
				delete(l.uses, p)
			}
		}
		l.queued, l.dead, l.lost, l.serial = l.queued+c.queued, l.dead+c.dead, l.lost+c.lost, c.serial
		return nil
	})
}

func (c *change) totals() error {
	err := c.set([]byte{spaceTotals, spaceRow}, binary.AppendUvarint(nil, c.serial))
	for s, n := range c.counts {
		err = errors.Join(err, c.set([]byte{spaceCount, byte(s)}, binary.AppendUvarint(nil, uint64(c.l.counts[s]+n))))
	}
	for p, u := range c.uses {
		err = errors.Join(err, c.setUse(p, c.l.uses[p].plus(u)))
	}
	if c.queued != 0 {
		err = errors.Join(err, c.set([]byte{spaceTotals, spaceDue}, binary.AppendUvarint(nil, uint64(c.l.queued+c.queued))))
	}
	if c.dead != 0 {
		err = errors.Join(err, c.set([]byte{spaceTotals, spaceDead}, binary.AppendUvarint(nil, uint64(c.l.dead+c.dead))))
	}
	if c.lost != 0 {
		err = errors.Join(err, c.set([]byte{spaceTotals, spaceState}, binary.AppendUvarint(nil, uint64(c.l.lost+c.lost))))
	}
	return err
}

func (c *change) set(key, value []byte) error { return c.b.Set(key, value, nil) }
func (c *change) del(key []byte) error        { return c.b.Delete(key, nil) }

func rowKey(k Key) ([]byte, error) { return appendKey([]byte{spaceRow}, k) }

func stateKey(s State, k Key) ([]byte, error) { return appendKey([]byte{spaceState, byte(s)}, k) }

func placeKey(place string, k Key) ([]byte, error) { return appendKey(placePrefix(place), k) }

func placePrefix(place string) []byte {
	return append(append([]byte{spacePlace}, place...), 0)
}

// row reads a row; false when there is none.
func (l *Ledger) row(k Key) (r Row, ok bool, err error) {
	key, err := rowKey(k)
	if err != nil {
		return r, false, err
	}
	ok, err = l.db.get(key, func(v []byte) (err error) {
		r, err = decodeRow(k, v)
		return err
	})
	return r, ok, err
}

// put writes a row under a new version, and takes the index entries of the one before away.
func (c *change) put(before *Row, r *Row) error {
	r.Version = c.next()
	if before != nil {
		if err := c.unindex(*before); err != nil {
			return err
		}
	}
	key, err := rowKey(r.Key)
	if err != nil {
		return err
	}
	sk, _ := stateKey(r.State, r.Key) // rowKey has checked the key
	pk, _ := placeKey(r.Place, r.Key)
	c.counts[r.State]++
	c.use(*r, 1)
	if r.Lost {
		c.lost++
	}
	return errors.Join(c.set(key, r.encode()), c.set(sk, nil), c.set(pk, nil))
}

func (c *change) unindex(r Row) error {
	sk, err := stateKey(r.State, r.Key)
	if err != nil {
		return err
	}
	pk, _ := placeKey(r.Place, r.Key)
	c.counts[r.State]--
	c.use(r, -1)
	if r.Lost {
		c.lost--
	}
	return errors.Join(c.del(sk), c.del(pk))
}

// Insert adds a row in the state that it has; ErrExists when there is one of its key.
func (l *Ledger) Insert(r Row, now time.Time) (Row, error) {
	r.Created, r.Changed = now.UnixNano(), now.UnixNano()
	if !r.State.valid() || len(r.Place) == 0 || len(r.Place) > 200 {
		return r, fmt.Errorf("insert row %s: no state, or no place", r.Key)
	}
	err := l.update(func(c *change) error {
		if _, ok, err := l.row(r.Key); err != nil {
			return err
		} else if ok {
			return ErrExists
		}
		return c.put(nil, &r)
	})
	if err != nil {
		return r, fmt.Errorf("insert row %s: %w", r.Key, err)
	}
	return r, nil
}

// Apply moves a row by an event, if it is still the version that was read: ErrRaced otherwise. edit, when
// not nil, changes what else the row says: its place, its size, its checksum.
func (l *Ledger) Apply(r Row, e Event, now time.Time, cause error, edit func(*Row)) (Row, error) {
	next, err := r.Next(e, now, cause)
	if err != nil {
		return r, err
	}
	if edit != nil {
		edit(&next)
	}
	if err := l.swap(r, &next); err != nil {
		return r, fmt.Errorf("%s of %s: %w", e, r.Key, err)
	}
	return next, nil
}

// Assign gives a file that is not there another place, if the row is still the version that was read.
func (l *Ledger) Assign(r Row, place string, now time.Time) (Row, error) {
	if r.State != Staged {
		return r, fmt.Errorf("%w: another place for %s, which is %s", ErrTransition, r.Key, r.State)
	}
	next := r
	next.Place, next.Changed = place, now.UnixNano()
	if err := l.swap(r, &next); err != nil {
		return r, fmt.Errorf("another place for %s: %w", r.Key, err)
	}
	return next, nil
}

// Forget removes a row, if it is still the version that was read.
func (l *Ledger) Forget(r Row) error {
	if err := l.swap(r, nil); err != nil {
		return fmt.Errorf("forget %s: %w", r.Key, err)
	}
	return nil
}

// swap is the one place where a row changes.
func (l *Ledger) swap(r Row, next *Row) error {
	return l.update(func(c *change) error {
		now, ok, err := l.row(r.Key)
		if err != nil {
			return err
		}
		if !ok || now.Version != r.Version {
			return ErrRaced
		}
		if next != nil {
			return c.put(&now, next)
		}
		key, err := rowKey(r.Key)
		if err != nil {
			return err
		}
		return errors.Join(c.unindex(now), c.del(key))
	})
}

// Rows gives the rows of a body, by policy, kind and index.
func (l *Ledger) Rows(body string) (rows []Row, err error) {
	prefix, err := appendBody([]byte{spaceRow}, body)
	if err != nil {
		return nil, err
	}
	err = l.db.do(func() error {
		return l.db.scan(prefix, prefix, func(key, value []byte) error {
			r, err := decodeStored(key[1:], value)
			rows = append(rows, r)
			return err
		})
	})
	return rows, err
}

func decodeStored(key, value []byte) (Row, error) {
	k, err := decodeKey(key)
	if err != nil {
		return Row{}, err
	}
	return decodeRow(k, value)
}

// page is the most rows that one call gives.
const page = 1000

// List gives up to limit rows behind a key, in their order; the zero key is before all.
func (l *Ledger) List(behind Key, limit int) (rows []Row, err error) {
	return l.list([]byte{spaceRow}, behind, limit, func(key, value []byte) (Row, error) { return decodeStored(key[1:], value) })
}

// InState gives up to limit rows in a state behind a key.
func (l *Ledger) InState(s State, behind Key, limit int) ([]Row, error) {
	return l.list([]byte{spaceState, byte(s)}, behind, limit, func(key, _ []byte) (Row, error) { return l.byIndex(key[2:]) })
}

// AtPlace gives up to limit rows of a place behind a key.
func (l *Ledger) AtPlace(place string, behind Key, limit int) ([]Row, error) {
	prefix := placePrefix(place)
	return l.list(prefix, behind, limit, func(key, _ []byte) (Row, error) { return l.byIndex(key[len(prefix):]) })
}

// Places gives the places that rows name.
func (l *Ledger) Places() (places []string, err error) {
	err = l.db.do(func() error {
		lower := []byte{spacePlace}
		for more := true; more; {
			more = false
			err := l.db.scan([]byte{spacePlace}, lower, func(key, _ []byte) error {
				place, _, _ := bytes.Cut(key[1:], []byte{0})
				places, lower, more = append(places, string(place)), after(placePrefix(string(place))), true
				return errStop
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return places, err
}

// byIndex reads the row that an index entry names. It may have changed since the scan began.
func (l *Ledger) byIndex(key []byte) (Row, error) {
	k, err := decodeKey(key)
	if err != nil {
		return Row{}, err
	}
	r, ok, err := l.row(k)
	if err == nil && !ok {
		err = errGone
	}
	return r, err
}

// errGone: the row went between the index and itself.
var errGone = errors.New("the row is gone")

func (l *Ledger) list(prefix []byte, behind Key, limit int, read func(key, value []byte) (Row, error)) (rows []Row, err error) {
	limit = min(max(limit, 1), page)
	lower := prefix
	if behind != (Key{}) {
		if lower, err = appendKey(append([]byte{}, prefix...), behind); err != nil {
			return nil, err
		}
		lower = append(lower, 0)
	}
	err = l.db.do(func() error {
		return l.db.scan(prefix, lower, func(key, value []byte) error {
			r, err := read(key, value)
			if errors.Is(err, errGone) {
				return nil
			}
			if err != nil {
				return err
			}
			if rows = append(rows, r); len(rows) == limit {
				return errStop
			}
			return nil
		})
	})
	return rows, err
}

// Totals are how much the ledger has.
type Totals struct {
	Rows map[State]int64
	// Lost files, which were there and are to be made again.
	Lost int64
	// Queued messages, and Dead ones that were tried too often.
	Queued, Dead int64
}

// Totals gives the totals now.
func (l *Ledger) Totals() Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := Totals{Rows: map[State]int64{}, Lost: l.lost, Queued: l.queued, Dead: l.dead}
	for _, s := range States() {
		t.Rows[s] = l.counts[s]
	}
	return t
}

// Value gives what SetValue has kept under a name; nil when there is nothing.
func (l *Ledger) Value(name string) (value []byte, err error) {
	err = l.db.do(func() error {
		_, err := l.db.get(append([]byte{spaceValue}, name...), func(v []byte) error {
			value = append([]byte{}, v...)
			return nil
		})
		return err
	})
	return value, err
}

// SetValue keeps bytes under a name: how far a pass is, and what a policy means.
func (l *Ledger) SetValue(name string, value []byte) error {
	return l.update(func(c *change) error { return c.set(append([]byte{spaceValue}, name...), value) })
}
