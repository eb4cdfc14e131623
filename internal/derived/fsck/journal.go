package fsck

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// maxCompared bounds the marks in memory of each side, of 16 bytes each.
	maxCompared = 32 << 20
	// maxMissing bounds the records in memory that the first reading of the journal did not have.
	maxMissing = 100_000
	// DefaultUnjournalled is longer than a reconciler's audits of what is new leave a record out of the journal.
	DefaultUnjournalled = 72 * time.Hour
)

// mark stands for a record, or for an entry of the journal about one: a hash of the record's key, and
// a part of the frame's, which is 0 where the record can't be read.
type mark struct {
	key   uint64
	frame uint32
	// unasked: the manifest has no entry, and counts only with one, since several regions accept: it may be a copy of a batch that
	// another region counts, have lost, or be nobody's yet. Of records only.
	unasked bool
}

func (c *checker) mark(key string, d identity.Digest) mark {
	return mark{key: maphash.String(c.seed, key), frame: binary.LittleEndian.Uint32(d[:])}
}

// remember adds a mark of a record, or of an entry, until there are too many to compare.
func (c *checker) remember(to *[]mark, m mark) {
	if len(*to) >= maxCompared {
		c.r.Journal.NotCompared = true
		return
	}
	*to = append(*to, m)
}

// recordKey is the key of the record that an entry is about.
func recordKey(e *journal.Entry) string {
	if e.Outcome.Conflict() {
		return layout.Quarantine(e.ID, e.SHA256)
	}
	return layout.Accepted(e.ID)
}

// Journal is what a run found of the acceptance journal.
type Journal struct {
	// Complete: journal/v1/begin.json says that it has every batch that was answered.
	Complete bool
	// Entries of accepted batches and of frames in quarantine, each counted once.
	Entries uint64
	// NotJournalled counts manifests and quarantine records without an entry. A collector that died between
	// the record and its segment leaves one, which the next audit enters; so only old ones are findings. It is 0
	// while the journal is not complete.
	NotJournalled uint64
	// Unasked counts manifests of a region of several without an entry: copies of batches that another region counts, losers, and what
	// nobody has decided. They are no findings, and nothing else of the report counts them but Manifests.
	Unasked uint64
	// NotCompared: there are too many batches to compare records with entries in memory. In a region of several what it does not
	// count is counted then.
	NotCompared bool
}

// journalReading is one reading of the whole journal, in the order of no follower: every object that is there is
// read, also behind one that stops a follower.
type journalReading struct {
	c *checker
	// report says that what is wrong is a finding; a second reading reports nothing twice.
	report bool
	each   func(*journal.Entry)

	head journal.Head
	// present are the segments of each run by their numbers, and whether one ends the run.
	present map[journal.RunID]map[uint64]bool
}

func (r *journalReading) found(p Problem, key, format string, args ...any) {
	if r.report {
		r.c.found(p, key, format, args...)
	}
}

// read reads segments first and the head last, as every follower does: what is folded and deleted meanwhile is in
// the files of that head.
func (r *journalReading) read(ctx context.Context) error {
	r.present = map[journal.RunID]map[uint64]bool{}
	// Segments before openings: a run that begins in between would seem to have no beginning.
	for _, prefix := range []string{layout.JournalRunPrefix, layout.JournalOpenPrefix} {
		for i, err := range objstore.List(ctx, r.c.store, objstore.ListOptions{Prefix: prefix}) {
			if err != nil {
				return err
			}
			run, n, err := layout.ParseJournalSegment(i.Key)
			if err != nil {
				r.found(UnknownKey, i.Key, "%v", err)
				continue
			}
			if r.present[run] == nil {
				r.present[run] = map[uint64]bool{}
			}
			if err := r.segment(ctx, journal.Position{Run: run, Segment: n}); err != nil {
				return err
			}
		}
	}
	if err := r.folded(ctx); err != nil {
		return err
	}
	return r.runs(ctx)
}

func (r *journalReading) segment(ctx context.Context, at journal.Position) error {
	s, _, err := record.Read(ctx, r.c.store, at.Key(), journal.FileKind, journal.ParseSegment)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil // folded and deleted since it was listed
	case record.Opaque(err):
		r.present[at.Run][at.Segment] = false
		r.foundOpaque(at.Key(), err)
		return nil
	case err != nil:
		return err
	case s.Position != at:
		r.found(JournalUnreadable, at.Key(), "it is segment %s", s.Position)
	case s.Opening != nil && r.c.o.AuthorityID != "" && s.Opening.Authority != r.c.o.AuthorityID:
		r.found(JournalUnreadable, at.Key(), "it is of the authority %q", s.Opening.Authority)
	}
	r.present[at.Run][at.Segment] = s.Ends()
	for i := range s.Entries {
		r.each(&s.Entries[i])
	}
	return nil
}

func (r *journalReading) foundOpaque(key string, err error) {
	if errors.Is(err, record.ErrNewerVersion) {
		r.found(NewerRecord, key, "%v", err)
		return
	}
	r.found(JournalUnreadable, key, "%v", err)
}

// folded reads the head and the files that it names.
func (r *journalReading) folded(ctx context.Context) error {
	for {
		head, _, err := journal.ReadHead(ctx, r.c.store)
		if record.Opaque(err) {
			r.foundOpaque(layout.JournalHeadKey, err)
			return nil
		}
		if err != nil {
			return err
		}
		// A file that is gone was merged into another if the head has moved meanwhile. Else it is lost.
		moved := head.Number != r.head.Number
		r.head = head
		lost, err := r.files(ctx)
		if err != nil {
			return err
		}
		if len(lost) == 0 {
			return nil
		}
		if !moved {
			for _, key := range lost {
				r.found(JournalUnreadable, key, "the head of the journal names it, and it is not there")
			}
			return nil
		}
	}
}

// files reads the files of the head, and returns the keys of those that are not there.
func (r *journalReading) files(ctx context.Context) (lost []string, err error) {
	files := slices.Clone(r.head.Files)
	for _, l := range r.head.Lists {
		listed, _, err := record.Read(ctx, r.c.store, l.Key, journal.ListKind, journal.ParseList)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			lost = append(lost, l.Key)
		case record.Opaque(err):
			r.foundOpaque(l.Key, err)
		case err != nil:
			return nil, err
		}
		for _, f := range listed {
			if f.First < l.First || f.Last > l.Last || f.MinAt < l.MinAt || f.MaxAt > l.MaxAt || f.MinTime < l.MinTime || f.MaxTime > l.MaxTime {
				r.found(JournalSpan, l.Key, "its file %s lies outside the list's span, so readers of a range miss it", f.Key)
			}
		}
		files = append(files, listed...)
	}
	for _, f := range files {
		es, err := journal.ReadFile(ctx, r.c.store, f)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			lost = append(lost, f.Key)
		case record.Opaque(err):
			r.foundOpaque(f.Key, err)
		case err != nil:
			return nil, err
		}
		r.entries(f, es)
	}
	return lost, nil
}

// entries checks the entries of a file against its span.
func (r *journalReading) entries(f journal.FoldedFile, es []journal.Entry) {
	outside := 0
	for i := range es {
		e := &es[i]
		if e.At < f.MinAt || e.At > f.MaxAt || e.MinTime < f.MinTime || e.MaxTime > f.MaxTime {
			outside++
		}
		r.each(e)
	}
	if outside > 0 {
		r.found(JournalSpan, f.Key, "%d of its %d entries lie outside its span, so readers of a range miss them", outside, len(es))
	}
}

// next is the first segment of a run that no follower can have read.
func (r *journalReading) next(run journal.RunID) (n uint64, known bool) {
	h, there := r.head.Run(run), r.present[run]
	if h != nil {
		n = h.Folded
	}
	for {
		if _, ok := there[n]; !ok {
			return n, h != nil || len(there) > 0
		}
		n++
	}
}

// runs checks what every follower relies on: a run has no segment behind one that is missing, nor behind
// its end. Nobody would read it.
func (r *journalReading) runs(ctx context.Context) error {
	for _, run := range slices.SortedFunc(maps.Keys(r.present), journal.RunID.Compare) {
		var folded uint64
		ended := false
		if h := r.head.Run(run); h != nil {
			folded, ended = h.Folded, h.Ended > 0
		} else if _, ok := r.present[run][0]; !ok && r.head.Forgotten > 0 {
			// The head has forgotten it. What is left is its fence, and requests that came late.
			continue
		}
		next, _ := r.next(run)
		for _, n := range slices.Sorted(maps.Keys(r.present[run])) {
			at := journal.Position{Run: run, Segment: n}
			switch {
			// What is left below the head waits for its delete, is a fence, or came late.
			case n < folded:
			case ended:
				r.found(JournalPastEnd, at.Key(), "the run had ended before it")
			case n > next:
				// The listing's pages may have missed one that came meanwhile.
				_, err := r.c.store.Head(ctx, journal.Position{Run: run, Segment: next}.Key())
				if errors.Is(err, objstore.ErrNotFound) {
					r.found(JournalGap, at.Key(), "segment %d of its run is missing, so nobody reads it", next)
				} else if err != nil {
					return err
				}
			default:
				ended = r.present[run][n]
			}
		}
	}
	return nil
}

// positions compares what others say that they have read with what is there. They were read before the journal.
func (r *journalReading) positions(of map[string]journal.Positions) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		p := of[key]
		if p.Head > r.head.Number {
			r.found(PositionsAhead, key, "it has read the head through move %d, which is at %d", p.Head, r.head.Number)
			continue
		}
		for _, at := range p.Runs {
			next, known := r.next(at.Run)
			if at.Next > next && (known || r.head.Forgotten == 0) {
				r.found(PositionsAhead, key, "it has read run %s before segment %d, the journal has it before %d", at.Run, at.Next, next)
			}
		}
	}
}

// readPositions reads those of the ledgers, and those that the caller knows.
func (c *checker) readPositions(ctx context.Context) (map[string]journal.Positions, error) {
	of := map[string]journal.Positions{}
	root, _, err := record.Read(ctx, c.store, layout.LedgersKey, ledgers.RootKind, ledgers.ParseRoot)
	switch {
	case err == nil:
		of[layout.LedgersKey] = root.Positions
	case record.Opaque(err):
		c.foundRecord(BadLedgers, layout.LedgersKey, err)
	case !errors.Is(err, objstore.ErrNotFound):
		return nil, err
	}
	if c.o.Positions == nil {
		return of, nil
	}
	more, err := c.o.Positions(ctx)
	maps.Copy(of, more)
	return of, err
}

// journalBefore reads the journal before the records: each entry that it has then is about one that is there.
func (c *checker) journalBefore(ctx context.Context) error {
	of, err := c.readPositions(ctx)
	if err != nil {
		return err
	}
	switch c.r.Journal.Complete, err = journal.IsComplete(ctx, c.store); {
	case record.Opaque(err):
		c.foundRecord(JournalUnreadable, layout.JournalBeginKey, err)
	case err != nil:
		return err
	}
	r := &journalReading{c: c, report: true, each: func(e *journal.Entry) {
		if e.Outcome != journal.Elsewhere { // there need not be a record
			c.remember(&c.entries, c.mark(recordKey(e), e.SHA256))
		}
	}}
	if err := r.read(ctx); err != nil {
		return err
	}
	r.positions(of)
	c.entries = sortMarks(c.entries)
	return nil
}

// find gives the mark of a key among sorted ones.
func find(ms []mark, key uint64) (mark, bool) {
	i, ok := slices.BinarySearchFunc(ms, key, func(m mark, key uint64) int { return cmp.Compare(m.key, key) })
	if !ok {
		return mark{}, false
	}
	return ms[i], true
}

// sortMarks sorts marks, and leaves one of each.
func sortMarks(ms []mark) []mark {
	slices.SortFunc(ms, func(a, b mark) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.frame, b.frame)) })
	return slices.Compact(ms)
}

// journalAfter compares the entries with the records, which were read after them.
func (c *checker) journalAfter(ctx context.Context) error {
	if c.r.Journal.NotCompared {
		return nil
	}
	entries, records := c.entries, sortMarks(c.records)
	missing, wrong := map[uint64]bool{}, map[mark]bool{}
	for i, e := range entries {
		if i == 0 || entries[i-1].key != e.key {
			c.r.Journal.Entries++
		}
		if m, ok := find(records, e.key); (!ok || m.frame != 0 && m.frame != e.frame) && len(wrong) < maxMissing {
			wrong[e] = true
		}
	}
	for _, m := range records {
		// The bytes of one bucket don't say whose batch it is that is unasked; audits ask the linearizer.
		if _, ok := find(entries, m.key); !ok && c.r.Journal.Complete && !m.unasked && len(missing) < maxMissing {
			missing[m.key] = true
		}
	}
	if len(wrong)+len(missing)+len(c.unasked) == 0 {
		return nil
	}
	// Once more: for the names of entries, and for those of records that came after the first reading.
	again := &journalReading{c: c, each: func(e *journal.Entry) {
		if e.Outcome == journal.Elsewhere {
			return
		}
		key := recordKey(e)
		m := c.mark(key, e.SHA256)
		delete(missing, m.key)
		if n, ok := c.unasked[m.key]; ok { // it came while the bucket was read
			delete(c.unasked, m.key)
			c.r.Journal.Unasked--
			if n.boot != (identity.Boot{}) { // else a finding says what is wrong with its frame
				c.count(mark{}, n)
			}
		}
		if wrong[m] {
			delete(wrong, m)
			c.found(EntryWrong, key, "the journal has it as %s, with the frame %s, and the record is not there or is of another frame", e.Outcome, e.SHA256)
		}
	}}
	if err := again.read(ctx); err != nil {
		return err
	}
	return c.notJournalled(ctx, missing)
}

// notJournalled names the records that have no entry.
func (c *checker) notJournalled(ctx context.Context, missing map[uint64]bool) error {
	if len(missing) == 0 {
		return nil
	}
	for _, prefix := range []string{layout.AcceptedPrefix, layout.QuarantinePrefix} {
		o := objstore.ListOptions{Prefix: prefix}
		for {
			page, err := c.store.List(ctx, o)
			if err != nil {
				return err
			}
			for _, i := range page.Objects {
				if !missing[maphash.String(c.seed, i.Key)] {
					continue
				}
				c.r.Journal.NotJournalled++
				// By the store's time on both sides.
				if age := page.Date.Sub(i.LastModified); age > cmp.Or(c.o.Unjournalled, DefaultUnjournalled) {
					c.found(NotJournalled, i.Key, "no entry of the journal is about it, for %v: readers of the journal do not know it", age.Round(time.Second))
				}
			}
			if o.StartAfter = page.Next; page.Next == "" {
				break
			}
		}
	}
	return nil
}

// derivedKeys checks the keys that follow from a record, where reconcilers write them.
func (c *checker) derivedKeys(ctx context.Context, of string, keys ...string) error {
	if !c.o.DerivedKeys {
		return nil
	}
	for _, key := range keys {
		if _, err := c.store.Head(ctx, key); errors.Is(err, objstore.ErrNotFound) {
			c.found(DerivedMissing, key, "it follows from %s", of)
		} else if err != nil {
			return fmt.Errorf("derived keys: %w", err)
		}
	}
	return nil
}
