package trace

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// usualRecords is how far before the range batches that reach into it are looked for first: agents close a batch at 10,000 records.
	// longestRecords is how far at most, since a frame has no more by default.
	usualRecords, longestRecords = 10_000, 1_000_000
	// maxKeysBefore bounds the keys that are listed for it, of each prefix.
	maxKeysBefore = 50_000
)

var errManyKeys = fmt.Errorf("not all batches were looked for that begin before the range: there are more than %d", maxKeysBefore)

// prefixes of the records that have a key for each identity.
var prefixes = []string{layout.AcceptedPrefix, layout.AffirmedPrefix, layout.QuarantinePrefix}

// list finds the records that have a key for each identity. begins are numbers before the range at which identities begin that are
// known to reach into it.
func (f *finder) list(ctx context.Context, begins []uint64) error {
	found, errs := make([][]Record, len(prefixes)), make([]error, len(prefixes))
	f.q.Parallel(len(prefixes), func(i int) {
		l := lister{finder: f, prefix: prefixes[i], seen: map[string]bool{}}
		errs[i] = l.all(ctx, begins)
		found[i] = l.records
		f.q.Parallel(len(l.records), func(k int) { f.read(ctx, &l.records[k], l.infos[k]) })
	})
	for i, records := range found {
		for _, r := range records {
			if err := f.add(r); err != nil {
				return errors.Join(append(errs[:i], err)...)
			}
		}
	}
	return errors.Join(errs...)
}

// lister finds the keys of one prefix.
type lister struct {
	*finder
	prefix  string
	records []Record
	infos   []objstore.Info
	seen    map[string]bool
	before  int // keys that were listed of batches that begin before the range
}

// all lists what begins in the range, and then what begins before it and reaches into it: first where such a beginning is known, then
// near the range, then as far away as the longest batches are. What claims and folds do not know lost against what they do, or was
// accepted in a region that does not take part yet.
func (l *lister) all(ctx context.Context, begins []uint64) error {
	from := l.q.Identity.SeqStart
	if err := l.within(ctx); err != nil {
		return err
	}
	back := func(n uint64) uint64 { return from - min(from, n) }
	for _, seq := range begins {
		if err := l.reaching(ctx, seq, seq+1); err != nil {
			return err
		}
	}
	if err := l.reaching(ctx, back(usualRecords), from); err != nil {
		return err
	}
	return l.reaching(ctx, back(longestRecords), back(usualRecords))
}

// within lists the keys of identities that begin in the range, and foreign ones among them.
func (l *lister) within(ctx context.Context) error {
	id := l.q.Identity
	for info, err := range l.keys(ctx, id.SeqStart) {
		if err != nil {
			return err
		}
		r, err := parseKey(l.prefix, info.Key)
		if r.Err = err; err == nil && r.Identity.SeqStart > id.SeqEnd {
			return nil
		}
		if err := l.found(r, info); err != nil {
			return err
		}
	}
	return nil
}

// reaching lists the keys of identities that begin at from or later, below end, and reach into the range.
func (l *lister) reaching(ctx context.Context, from, end uint64) error {
	if from >= end {
		return nil
	}
	behind := layout.BootFrom(l.prefix, l.q.Identity.BootOf(), end)
	for info, err := range l.keys(ctx, from) {
		if err != nil {
			return err
		}
		if info.Key >= behind {
			return nil
		}
		if l.before++; l.before > maxKeysBefore {
			return errManyKeys
		}
		// Foreign keys far from the range say nothing of it; fsck reports them.
		r, err := parseKey(l.prefix, info.Key)
		if err != nil || !r.Identity.Intersects(l.q.Identity) || l.seen[info.Key] {
			continue
		}
		if err := l.found(r, info); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) keys(ctx context.Context, from uint64) func(func(objstore.Info, error) bool) {
	boot := l.q.Identity.BootOf()
	return objstore.List(ctx, l.Store, objstore.ListOptions{Prefix: layout.OfBoot(l.prefix, boot), StartAfter: layout.BootFrom(l.prefix, boot, from)})
}

func (l *lister) found(r Record, info objstore.Info) error {
	if len(l.records) >= MaxRecords {
		return errMany
	}
	l.seen[info.Key] = true
	l.records, l.infos = append(l.records, r), append(l.infos, info)
	return nil
}

// parseKey gives what the key of a record says.
func parseKey(prefix, key string) (r Record, err error) {
	r.Key = key
	switch prefix {
	case layout.AcceptedPrefix:
		r.Kind = Manifest
		r.Identity, err = layout.ParseAccepted(key)
	case layout.AffirmedPrefix:
		r.Kind = Affirmation
		r.Identity, r.Stamp, err = layout.ParseAffirmation(key)
	default:
		var hash identity.Digest
		r.Kind = Quarantine
		if r.Identity, hash, err = layout.ParseQuarantine(key); err == nil {
			r.Hash = hash[:]
		}
	}
	return r, err
}

// read reads a record as far as its kind needs it. What its key says stays where the object can't be read, or is another's.
func (f *finder) read(ctx context.Context, r *Record, info objstore.Info) {
	if r.Err != nil {
		return
	}
	b, _, err := f.Store.Get(ctx, r.Key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if err != nil {
		r.Err = err
		return
	}
	if whole, err := recordOf(*r, b, info); err != nil {
		r.Err = err
	} else {
		*r = whole
	}
}

// recordOf completes what the key of a record says by its object.
func recordOf(r Record, b []byte, info objstore.Info) (Record, error) {
	// A whole record under the key of another one was copied there.
	is := func(kind record.Kind, ok bool) error {
		if !ok {
			return kind.Corrupt(r.Key, "it is another one than its key says")
		}
		return nil
	}
	switch r.Kind {
	case Manifest:
		m, err := accept.ParseManifest(b)
		r.Hash, r.Stamp, r.Home, r.At = m.FrameSHA256[:], m.Stamp(), claims.Region(m.HomeRegion), m.AcceptedAt
		return r, errors.Join(err, is(accept.ManifestKind, err != nil || m.Identity == r.Identity))
	case Affirmation:
		a, err := accept.ParseAffirmation(b)
		r.Hash, r.Home = a.FrameSHA256[:], claims.Region(a.HomeRegion)
		if !info.LastModified.IsZero() {
			r.At = info.LastModified.UnixNano()
		}
		return r, errors.Join(err, is(accept.AffirmationKind, err != nil || a.Identity == r.Identity && a.Stamp == r.Stamp))
	}
	c, err := accept.ParseConflictRecord(b)
	r.At = c.ObservedAt
	return r, errors.Join(err, is(accept.ConflictKind, err != nil || c.Identity == r.Identity && c.SubmittedSHA256 == identity.Digest(r.Hash)))
}
