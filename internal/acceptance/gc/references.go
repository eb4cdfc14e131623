package gc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrJournalIncomplete: batches were accepted before the journal began, or a file of it was lost, and no full audit has
// finished since. All their frames would be candidates, and each proof would leave a marker.
var ErrJournalIncomplete = errors.New("the journal does not name every accepted batch yet: a reconciler's first full audit completes it")

// Names are the hashes of a range that the journal names, of accepted batches, of duplicates and of conflicts, wherever the
// reconcilers keep derived keys. They select candidates and
// prove nothing: what the journal does not name yet costs a proof, and what it wrongly names keeps an orphan.
//
// Of each hash there are the first 8 bytes, in their order, which is that of the keys of blobs: 8 bytes of memory a
// hash. An orphan that shares them with another frame is kept, one in 10^12 for 10^7 frames.
type Names struct {
	// from and until bound the range; until is past only where full is false.
	from, until uint64
	full        bool // the range goes to the end
	limit       int

	mu sync.Mutex
	// prints are sorted once all are read.
	prints []uint64
	// sorted are the prints that are in order, without repetitions.
	sorted int
	// sample are some accepted batches, for a check that the manifests can be seen.
	sample [witnesses]witness
}

// witness is an accepted batch that the journal names; those with the least prints are kept, which are an even sample.
type witness struct {
	print uint64
	id    identity.Batch
}

// witnesses is how many accepted batches are asked for before anything is condemned.
const witnesses = 4

// DefaultMaxNames bounds the names in memory: 32 MB.
const DefaultMaxNames = 4_000_000

// NamesOptions select a range.
type NamesOptions struct {
	// StartAfter is the key behind which the range begins; empty is the beginning.
	StartAfter string
	// Max bounds the names in memory; the range ends where they would be more. 0 means DefaultMaxNames.
	Max int
	// Fan reads parts of the journal side by side; nil one after the other.
	Fan journal.Fan
}

// ReadNames reads the whole journal once, whatever the range is. An error means
// that it could not be read, or is not complete: then there is no plan.
func (c *Collector) ReadNames(ctx context.Context, o NamesOptions) (*Names, error) {
	begin, err := journal.ReadBegin(ctx, c.cfg.Store)
	if err != nil {
		return nil, err
	}
	if begin.By == "" {
		return nil, ErrJournalIncomplete
	}
	n := &Names{from: position(o.StartAfter), full: true, limit: o.Max}
	if n.limit <= 0 {
		n.limit = DefaultMaxNames
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: c.cfg.Store, Authority: c.cfg.AuthorityID, Fan: o.Fan,
		Segment: func(_ context.Context, s *journal.Segment) error { n.add(s.Entries); return nil },
		Folded:  func(_ context.Context, e []journal.Entry) error { n.add(e); return nil },
	})
	if err != nil {
		return nil, err
	}
	polled, err := f.Poll(ctx)
	if err != nil {
		return nil, err
	}
	if !begin.Covers(polled.Lost) {
		return nil, ErrJournalIncomplete
	}
	n.sort()
	return n, nil
}

// position is the place of a key in the order of hashes: at or before that of every hash whose keys come behind it. Of a
// key that is none of a blob it is only roughly known.
func position(key string) uint64 {
	if hash, ok := strings.CutPrefix(key, blobHashes); ok && len(hash) >= 6+64 {
		if d, err := identity.ParseDigest(hash[6 : 6+64]); err == nil {
			return printOf(d)
		}
	}
	next := sort.Search(1<<16, func(i int) bool { return fmt.Sprintf("%s%02x/%02x/", blobHashes, i>>8, i&0xff) > key })
	return uint64(max(next-1, 0)) << 48
}

const blobHashes = layout.RawBlobsPrefix + "sha256/"

func printOf(d identity.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

func (n *Names) add(entries []journal.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range entries {
		// Nobody promises the frame of a batch that another region counts. Where there is a manifest of it, the proof finds that.
		if entries[i].Outcome == journal.Elsewhere {
			continue
		}
		p := printOf(entries[i].SHA256)
		if !entries[i].Outcome.Conflict() {
			n.witness(p, &entries[i])
		}
		// A manifest that carries its frame is no reference to a blob; a quarantine record always is, by its key.
		if entries[i].Inline && !entries[i].Outcome.Conflict() {
			continue
		}
		if p < n.from || !n.full && p >= n.until {
			continue
		}
		n.prints = append(n.prints, p)
		// Sorting drops repetitions, so it is asked for only when there are as many again.
		if len(n.prints) > n.limit && len(n.prints) >= n.sorted+n.limit/4 {
			n.sort()
			n.drop()
		}
	}
}

func (n *Names) sort() {
	slices.Sort(n.prints)
	n.prints = slices.Compact(n.prints)
	n.sorted = len(n.prints)
}

// drop ends the range where three quarters of the room are full. One hash always stays.
func (n *Names) drop() {
	if len(n.prints) <= n.limit {
		return
	}
	at := max(n.limit*3/4, 1)
	n.until, n.full = n.prints[at], false
	n.prints, n.sorted = n.prints[:at], at
}

// witness keeps the entry where its print is among the least.
func (n *Names) witness(p uint64, e *journal.Entry) {
	at := 0
	for i := range n.sample {
		w := &n.sample[i]
		switch {
		case w.id == e.ID:
			return
		case w.id == identity.Batch{}:
			n.sample[i] = witness{p, e.ID}
			return
		case w.print > n.sample[at].print:
			at = i
		}
	}
	if p < n.sample[at].print {
		n.sample[at] = witness{p, e.ID}
	}
}

// Witnesses are the keys of manifests that must be there, in no order.
func (n *Names) Witnesses() (keys []string) {
	for _, w := range n.sample {
		if w.id != (identity.Batch{}) {
			keys = append(keys, layout.Accepted(w.id))
		}
	}
	return keys
}

// Reaches reports whether a plan that goes on behind the key can use the names.
func (n *Names) Reaches(after string) bool {
	at := position(after)
	return n.from <= at && (n.full || at < n.until)
}

// covers reports whether the hash lies before the end of the range.
func (n *Names) covers(d identity.Digest) bool { return n.full || printOf(d) < n.until }

func (n *Names) has(d identity.Digest) bool {
	_, named := slices.BinarySearch(n.prints, printOf(d))
	return named
}

// next is the key behind which the next range begins: before all keys of its hashes.
func (n *Names) next() string {
	var d identity.Digest
	binary.BigEndian.PutUint64(d[:8], n.until)
	return layout.BlobStem(d)
}
