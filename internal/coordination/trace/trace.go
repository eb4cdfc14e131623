// Package trace finds every record of identities in the buckets of all regions, for people: manifests, affirmations, quarantine
// records, folds and entries of the journal. It decides nothing, and writes nothing.
//
// The core is deterministic: no goroutines, no clock and no randomness.
package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kinds of records, in the order in which they come into being.
const (
	Manifest    = "MANIFEST"
	Affirmation = "AFFIRMATION"
	Quarantine  = "QUARANTINE"
	Journal     = "JOURNAL"
	Fold        = "FOLD"
)

var kindOrder = []string{Manifest, Affirmation, Quarantine, Journal, Fold}

// MaxRecords bounds the records of one region, entries of the journal among them.
const MaxRecords = 1000

// Store is the bucket of a region, which is only read.
type Store interface {
	objstore.Getter
	objstore.Lister
}

// Region is a region and its bucket.
type Region struct {
	Name  claims.Region
	Store Store
}

// Query names sequence numbers of a boot.
type Query struct {
	// Identity is the boot and the range: records of every identity that shares numbers with it are wanted.
	Identity identity.Batch
	// Claims that are known of it. Their times say where in the journals to look, and their ranges where identities begin.
	Claims []claims.Claim
	// After is how long after a time that is known folded files of the journals are searched. It finds entries of senders that came again
	// elsewhere, whose time no record has.
	After time.Duration
	// Parallel calls fn for 0 to n-1, at once as far as it likes, and returns when all calls have; nil is one after the other.
	Parallel func(n int, fn func(i int))
}

// Record of an identity in the bucket of a region.
type Record struct {
	Region   claims.Region
	Key      string // of the object; of an entry, where it stands; empty where that was folded while the trace was read
	Kind     string
	Identity identity.Batch
	// Hash of the frame that the record is about; of a conflict, of the one that lost. Of a fold it is the first 16 bytes of it.
	Hash []byte
	// Stamp that it was written under, or stands for; of an entry only the epoch is known, of a fold nothing.
	Stamp identity.Stamp
	// Home is the region that counts the batch, where the record says so.
	Home claims.Region
	// Outcome of an entry of the journal.
	Outcome string
	// At is when what it says happened, Unix nanoseconds by the clock of the collector that wrote it; of an affirmation, which says no
	// time, by the store's. 0: nothing says when.
	At int64
	// Err is why it can't be read.
	Err error
}

// Searched is what was searched of the journal of a region.
type Searched struct {
	Region claims.Region
	// From and To are the times of acceptance, Unix nanoseconds, between which folded files were searched: not all of them, but around
	// each time that is known. Both 0: no time is known, and only what is not folded was searched.
	From, To        int64
	Files, Segments int
	// Err says why something of it was not searched; nil: all of that was.
	Err error
}

// Unread is a region of whose records, beside the journal, not all could be read.
type Unread struct {
	Region claims.Region
	Err    error
}

// Result of a trace.
type Result struct {
	// Records in the order in which they happened, by Compare.
	Records []Record
	// Journals, one of each region, in the order of the regions.
	Journals []Searched
	Unread   []Unread
}

// Compare orders records by time, and those of one time by stamp, then as they come into being. What has no time is last.
func Compare(a, b Record) int {
	last := func(r Record) int {
		if r.At == 0 {
			return 1
		}
		return 0
	}
	// Claims, which are none of these kinds, precede what is written under them.
	kind := func(r Record) int { return slices.Index(kindOrder, r.Kind) }
	return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.At, b.At), stampOf(a).Compare(stampOf(b)), cmp.Compare(kind(a), kind(b)),
		a.Identity.Compare(b.Identity), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Key, b.Key))
}

// stampOf is the stamp by which a record has its place: an entry of the journal follows all else of its epoch.
func stampOf(r Record) identity.Stamp {
	if r.Kind == Journal {
		r.Stamp.Fence = math.MaxUint64
	}
	return r.Stamp
}

// errMany ends a reading that has found as much as is shown.
var errMany = fmt.Errorf("there are more than %d records", MaxRecords)

// Find reads what all regions have. It gives no error: what could not be read is in the result.
func Find(ctx context.Context, regions []Region, q Query) Result {
	if q.Parallel == nil {
		q.Parallel = func(n int, fn func(int)) {
			for i := range n {
				fn(i)
			}
		}
	}
	var out Result
	found := make([]finder, len(regions))
	// Folds and claims say where identities begin that reach into the range: keys are in the order of beginnings.
	q.Parallel(len(regions), func(i int) {
		found[i] = finder{Region: regions[i], q: &q}
		found[i].note("read folds", found[i].folds(ctx))
	})
	begins := beginningsOf(q, found)
	q.Parallel(len(regions), func(i int) { found[i].note("list records", found[i].list(ctx, begins)) })
	times := timesOf(q, found)
	q.Parallel(len(regions), func(i int) { found[i].journal(ctx, times) })
	for _, f := range found {
		out.Records = append(out.Records, f.records...)
		out.Journals = append(out.Journals, f.searched)
		if err := errors.Join(f.errs...); err != nil {
			out.Unread = append(out.Unread, Unread{f.Name, err})
		}
	}
	slices.SortStableFunc(out.Records, Compare)
	return out
}

// beginningsOf are the numbers before the range at which identities begin that are known to reach into it, in order.
func beginningsOf(q Query, found []finder) (begins []uint64) {
	for _, c := range q.Claims {
		begins = append(begins, c.Identity.SeqStart)
	}
	for _, f := range found {
		for _, r := range f.records {
			begins = append(begins, r.Identity.SeqStart)
		}
	}
	begins = slices.DeleteFunc(begins, func(seq uint64) bool { return seq >= q.Identity.SeqStart })
	slices.Sort(begins)
	return slices.Compact(begins)
}

// timesOf are the times that are known of the identities, in order.
func timesOf(q Query, found []finder) (times []int64) {
	for _, c := range q.Claims {
		times = append(times, c.ClaimedAt, c.DurableAt)
	}
	for _, f := range found {
		for _, r := range f.records {
			times = append(times, r.At)
		}
	}
	slices.Sort(times)
	times = slices.DeleteFunc(times, func(t int64) bool { return t <= 0 })
	return slices.Compact(times)
}

// finder finds what one region has.
type finder struct {
	Region
	q        *Query
	records  []Record
	searched Searched
	errs     []error
}

func (f *finder) note(op string, err error) {
	if err != nil {
		f.errs = append(f.errs, fmt.Errorf("%s: %w", op, err))
	}
}

func (f *finder) add(r Record) error {
	if len(f.records) >= MaxRecords {
		return errMany
	}
	r.Region = f.Name
	f.records = append(f.records, r)
	return nil
}

// folds finds what the head of the boot has in this region.
func (f *finder) folds(ctx context.Context) error {
	id := f.q.Identity
	boot := id.BootOf()
	h, err := folds.Read(ctx, f.Store, boot)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	add := func(key string, es []folds.Entry) error {
		for _, e := range es {
			of := e.Identity(boot)
			if !of.Intersects(id) {
				continue
			}
			if err := f.add(Record{Key: key, Kind: Fold, Identity: of, Hash: e.Digest[:], Home: e.Home}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(layout.FoldHead(boot), h.Tail); err != nil {
		return err
	}
	for _, p := range h.Meeting(id.SeqStart, id.SeqEnd) {
		key := layout.FoldPart(boot, p.Name)
		es, err := folds.ReadPart(ctx, f.Store, boot, p)
		if err == nil {
			err = add(key, es)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
	}
	return nil
}

// entryOf is an entry of the journal as a record.
func entryOf(key string, e *journal.Entry) Record {
	sum := e.SHA256
	return Record{
		Key: key, Kind: Journal, Identity: e.ID, Hash: sum[:], Stamp: identity.Stamp{Epoch: e.ClaimEpoch}, Home: claims.Region(e.HomeRegion),
		Outcome: e.Outcome.String(), At: e.At,
	}
}
