package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxAdd is the most objects of one request to a metadata store.
const MaxAdd = 99

// MaxTxns is the most transactions in the reference set of one object.
const MaxTxns = 1000

// Decisions of a metadata store. Every error of a back end wraps exactly one of these,
// or is a context error that wraps ErrRefsUnknown.
var (
	// ErrNoRecord: there is no record of the key.
	ErrNoRecord = errors.New("no record")
	// ErrCondemned: an object of the batch is condemned; nothing was added.
	ErrCondemned = errors.New("condemned")
	// ErrChanged: the record, or epoch, is not as it was read; nothing was written.
	ErrChanged = errors.New("changed meanwhile")
	// ErrEpochMismatch: the metadata store has another epoch than the caller's, or none, so its sets can't be
	// trusted. Nothing was written.
	ErrEpochMismatch = errors.New("reference sets are not those of this epoch")
	// ErrRefsStale: a committed block is missing from the reference sets of this epoch, so the metadata store was
	// restored from an older copy. It wraps ErrEpochMismatch.
	ErrRefsStale = fmt.Errorf("%w: a committed block is missing, the metadata store is an older copy", ErrEpochMismatch)
	// ErrRefsFull: an object of the batch has MaxTxns references; nothing was added.
	ErrRefsFull = errors.New("too many references")
	// ErrRefsUnknown: the request failed; a write may have been applied, or may be at any later time.
	ErrRefsUnknown = errors.New("metadata outcome unknown")
	// ErrRefsInvalid: the request can never succeed.
	ErrRefsInvalid = errors.New("invalid metadata request")
)

// CondemnedError names the condemned objects of a batch. It wraps ErrCondemned.
type CondemnedError struct{ Keys []string }

func (e *CondemnedError) Error() string {
	return fmt.Sprintf("%d objects, %q first: %v", len(e.Keys), e.Keys[0], ErrCondemned)
}

// Unwrap gives ErrCondemned.
func (e *CondemnedError) Unwrap() error { return ErrCondemned }

// Record is the reference record of one object.
type Record struct {
	Key string
	// Txns that may name the object, now or later; sorted, each once.
	Txns []Txn
	// Condemned is permanent as long as there is a record: no transaction can refer to the object any more.
	Condemned bool
	// Since is FirstGeneration of the era in which it was condemned; 0 is the first era of some epoch.
	Since uint32
	// Version changes with every change of the record; "" stands for a record that does not exist.
	Version string
}

// Epoch identifies one life of the metadata store. A store that lost its content has none, or another.
type Epoch struct {
	// Number counts epochs from 0. Objects of epoch n are written from generation FirstGeneration(n) on, so that
	// no key that an older epoch condemned is used again.
	Number uint32 `json:"number"`
	// ID is 32 hex digits, random.
	ID string `json:"id"`
	// Decided means that every transaction of older epochs is decided, so that objects may be deleted.
	Decided bool `json:"decided"`
	// Era counts from 0 in each epoch. The reference sets stay as they are when the next one begins, but nothing is
	// added under an earlier one any more, and new objects have other keys. So what an earlier era condemned can be
	// forgotten.
	Era uint32 `json:"era,omitempty"`
}

// Bounds of an object's generation: 15 bits of the epoch, 10 of the era, and 6 of those that are tried.
const (
	// MaxEpochs: beyond that, generations would not fit.
	MaxEpochs = 1 << 15
	// MaxEras of an epoch.
	MaxEras = 1 << 10
	// MaxGenerations of an object in an era.
	MaxGenerations = 1 << 6
)

// FirstGeneration of objects that are made under the epoch, in its era.
func (f Epoch) FirstGeneration() uint32 { return f.Number<<16 | f.Era<<6 }

// Token is what requests carry: the id, and behind a dot FirstGeneration, where this is not the first era.
func (f Epoch) Token() string {
	if f.Era == 0 {
		return f.ID
	}
	return f.ID + "." + strconv.FormatUint(uint64(f.FirstGeneration()), 10)
}

// TokenGeneration is FirstGeneration of the era that a token is of; 0 for the first era of an epoch.
func TokenGeneration(token string) uint32 {
	_, text, _ := strings.Cut(token, ".")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// outlived reports whether no transaction of this era or a later one can meet the condemned object, so that its record
// may go: whoever could add a reference to it has an earlier token, and its key is made no more.
func (f Epoch) outlived(r Record) bool {
	// 0 is the first era of this epoch or of an earlier one.
	return r.Condemned && f.Decided && r.Since < f.FirstGeneration() && (f.Era > 0 || r.Since > 0)
}

// Refs is the metadata store of reference sets. Every operation is linearizable. Requests
// have the deadline of their context. The epoch that they carry is its Token.
type Refs interface {
	// Epoch reads the store's epoch; ErrNoRecord when there is none.
	Epoch(ctx context.Context) (Epoch, error)
	// InitEpoch replaces the epoch, if it still is old (nil: none); else ErrChanged.
	InitEpoch(ctx context.Context, old *Epoch, next Epoch) error
	// Add puts transactions into the sets of 1 to MaxAdd keys in all, in one transaction of the metadata store: all or
	// none. A set that already has one stays as it is. It is refused with a CondemnedError when one of the objects is
	// condemned, and with ErrEpochMismatch when the epoch is not the store's.
	Add(ctx context.Context, epoch string, add ...Addition) error
	// Get reads the records of 1 to MaxAdd keys, all at one moment, in the order of the keys. One that does not exist
	// has a Key and no Version.
	Get(ctx context.Context, keys ...string) ([]Record, error)
	// Condemn condemns the objects of 1 to MaxAdd records, each once, and drops their sets, if the epoch is the store's;
	// else ErrEpochMismatch. Each is condemned by itself, if its record still has the Version that was read: changed are
	// the keys of the others. After ErrRefsUnknown any of them may be condemned.
	Condemn(ctx context.Context, epoch string, read ...Record) (changed []string, err error)
	// Swap writes transactions and condemnation of next if the record still has old.Version and the epoch is the
	// store's; else ErrChanged or ErrEpochMismatch.
	Swap(ctx context.Context, epoch string, old, next Record) error
	// Delete drops 1 to MaxAdd records, each once and by itself, under the same conditions as Condemn. Collector.Forget
	// says which condemned ones may go.
	Delete(ctx context.Context, epoch string, read ...Record) (changed []string, err error)
	// List reads up to limit records with keys greater than after, in key order; next is "" at the end.
	List(ctx context.Context, after string, limit int) (records []Record, next string, err error)
}

// Addition is the objects that one transaction is to refer to.
type Addition struct {
	Txn Txn
	// Keys of the objects, each once.
	Keys []string
}

// CheckAdd refuses with ErrRefsInvalid what no back end accepts.
func CheckAdd(add []Addition) error {
	n := 0
	for _, a := range add {
		if err := a.Txn.Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrRefsInvalid, err)
		}
		sorted := slices.Sorted(slices.Values(a.Keys))
		for i, k := range sorted {
			if k == "" || i > 0 && k == sorted[i-1] {
				return fmt.Errorf("%w: key %q is empty or there twice", ErrRefsInvalid, k)
			}
		}
		if len(a.Keys) == 0 {
			return fmt.Errorf("%w: no key of %s", ErrRefsInvalid, a.Txn)
		}
		n += len(a.Keys)
	}
	for i := range add {
		if slices.ContainsFunc(add[:i], func(a Addition) bool { return a.Txn == add[i].Txn }) {
			return fmt.Errorf("%w: transaction %s is there twice", ErrRefsInvalid, add[i].Txn)
		}
	}
	if n < 1 || n > MaxAdd {
		return fmt.Errorf("%w: %d keys, 1 to %d", ErrRefsInvalid, n, MaxAdd)
	}
	return nil
}

// CheckKeys refuses with ErrRefsInvalid what no back end accepts as the keys of one request.
func CheckKeys(keys []string) error {
	if len(keys) < 1 || len(keys) > MaxAdd {
		return fmt.Errorf("%w: %d keys, 1 to %d", ErrRefsInvalid, len(keys), MaxAdd)
	}
	sorted := slices.Sorted(slices.Values(keys))
	for i, k := range sorted {
		if k == "" || i > 0 && k == sorted[i-1] {
			return fmt.Errorf("%w: key %q is empty or there twice", ErrRefsInvalid, k)
		}
	}
	return nil
}

// KeysOf gives the keys of records.
func KeysOf(records []Record) []string {
	keys := make([]string, len(records))
	for i := range records {
		keys[i] = records[i].Key
	}
	return keys
}

// With returns the record with t in its set; false when it was there.
func (r Record) With(t Txn) (Record, bool) {
	i, ok := slices.BinarySearch(r.Txns, t)
	if ok {
		return r, false
	}
	r.Txns = slices.Insert(slices.Clone(r.Txns), i, t)
	return r, true
}

// Without returns the record without ts.
func (r Record) Without(ts []Txn) Record {
	r.Txns = slices.DeleteFunc(slices.Clone(r.Txns), func(t Txn) bool { return slices.Contains(ts, t) })
	return r
}

func (r Record) String() string {
	s := make([]string, len(r.Txns))
	for i, t := range r.Txns {
		s[i] = string(t)
	}
	return fmt.Sprintf("%s condemned=%t [%s]", r.Key, r.Condemned, strings.Join(s, " "))
}
