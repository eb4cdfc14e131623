package trace_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const minute = int64(time.Minute)

// noon is when the first batch of these tests was accepted.
const noon = int64(1_700_000_000) * int64(time.Second)

// world is the buckets of some regions.
type world struct {
	t       *testing.T
	buckets map[claims.Region]*mem.Store
	stores  []trace.Region
}

func newWorld(t *testing.T, names ...claims.Region) *world {
	w := &world{t: t, buckets: map[claims.Region]*mem.Store{}}
	for _, n := range names {
		w.buckets[n] = mem.New(func() time.Time { return time.Unix(0, noon+2*minute) })
		w.stores = append(w.stores, trace.Region{Name: n, Store: w.buckets[n]})
		w.create(n, layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: authority(n)}.Marshal())
	}
	return w
}

func authority(r claims.Region) string { return "authority-" + string(r) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(r claims.Region, key string, body []byte) {
	w.t.Helper()
	_, err := w.buckets[r].Create(w.t.Context(), key, body, objstore.PutOptions{})
	w.must(err)
}

func batch(from, to uint64) identity.Batch {
	return identity.Batch{Agent: "agent", Boot: "boot", SeqStart: from, SeqEnd: to}
}

func manifest(r claims.Region, id identity.Batch, frame string, fence uint64, at int64) accept.Manifest {
	sum := identity.Sum([]byte(frame))
	return accept.Manifest{
		AuthorityID: authority(r), Identity: id, FrameSHA256: sum, FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(sum, 0), AcceptedAt: at,
		CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2, HomeRegion: string(r), ClaimEpoch: 3, ClaimFence: fence,
	}
}

func (w *world) accepted(r claims.Region, m accept.Manifest) {
	w.t.Helper()
	w.create(r, layout.Accepted(m.Identity), m.Marshal())
}

func (w *world) journal(r claims.Region, es ...journal.Entry) {
	w.t.Helper()
	w.must(journaltest.Append(w.t.Context(), w.buckets[r], authority(r), es...))
}

func (w *world) fold(r claims.Region) {
	w.t.Helper()
	_, err := journaltest.Fold(w.t.Context(), w.buckets[r], authority(r))
	w.must(err)
}

func elsewhere(m accept.Manifest, at int64) journal.Entry {
	e := m.Entry(journal.Elsewhere)
	e.At = at
	return e
}

// lines are records as a person would name them.
func lines(rs []trace.Record) (out []string) {
	for _, r := range rs {
		s := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Region, r.Kind, r.Outcome)) + fmt.Sprintf(" %d-%d", r.Identity.SeqStart, r.Identity.SeqEnd)
		if r.Err != nil {
			s += " unread"
		}
		out = append(out, s)
	}
	return out
}

func (w *world) want(got trace.Result, want ...string) {
	w.t.Helper()
	if l := lines(got.Records); !slices.Equal(l, want) {
		w.t.Errorf("found\n%s\nwant\n%s", strings.Join(l, "\n"), strings.Join(want, "\n"))
	}
}

// whole wants that everything was read.
func (w *world) whole(got trace.Result) {
	w.t.Helper()
	for _, u := range got.Unread {
		w.t.Errorf("%s: %v", u.Region, u.Err)
	}
	for _, j := range got.Journals {
		if j.Err != nil {
			w.t.Errorf("journal of %s: %v", j.Region, j.Err)
		}
	}
}

// A batch that was accepted in eu, whose sender got no answer and came to us, and another frame that came to asia.
func TestEveryRecordInOrder(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	id := batch(11, 20)
	m := manifest("eu", id, "x", 7, noon)
	w.accepted("eu", m)
	w.accepted("eu", manifest("eu", batch(1, 10), "before", 1, noon-minute))
	w.accepted("eu", manifest("eu", batch(21, 30), "behind", 9, noon+minute))
	stamp := identity.Stamp{Epoch: 3, Fence: 8}
	w.create("eu", layout.Affirmation(id, stamp), accept.Affirmation{AuthorityID: authority("eu"), Identity: id, FrameSHA256: m.FrameSHA256, Stamp: stamp, HomeRegion: "eu"}.Marshal())
	w.journal("eu", m.Entry(journal.Accepted))
	w.fold("eu")
	// An audit of the same, which is not folded.
	w.journal("eu", m.Entry(journal.AuditedAccepted))
	w.journal("us", elsewhere(m, noon+3*minute))
	w.fold("us")
	lost := manifest("asia", id, "y", 0, noon+4*minute)
	lost.HomeRegion, lost.ClaimEpoch = "", 0
	c := accept.ConflictRecord{
		AuthorityID: authority("asia"), Identity: id, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256, SubmittedBlobKey: lost.RawBlobKey,
		SubmittedSHA256: lost.FrameSHA256, AcceptedManifestKey: layout.Accepted(id), ObservedAt: noon + 4*minute + 1, CollectorID: "c",
	}
	w.create("asia", layout.Quarantine(id, lost.FrameSHA256), c.Marshal())
	w.journal("asia", lost.Entry(journal.Conflict))
	w.fold("asia")
	f := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }, Regions: []folds.Region{{Name: "eu", Store: w.buckets["eu"]}, {Name: "us", Store: w.buckets["us"]}}}
	_, err := f.Fold(t.Context(), id.BootOf(), claims.Folds{}, []folds.Entry{{Start: 11, End: 20, Home: "eu", Digest: folds.DigestOf(m.FrameSHA256)}})
	w.must(err)

	all := []string{
		"eu MANIFEST 11-20", "eu JOURNAL accepted 11-20", "eu JOURNAL audited_accepted 11-20", "eu AFFIRMATION 11-20", "us JOURNAL elsewhere 11-20",
		"asia JOURNAL conflict 11-20", "asia QUARANTINE 11-20", "eu FOLD 11-20", "us FOLD 11-20",
	}
	q := trace.Query{Identity: id, After: 10 * time.Minute}
	got := trace.Find(t.Context(), w.stores, q)
	w.want(got, all...)
	w.whole(got)
	for i, r := range got.Records {
		want := m.FrameSHA256[:]
		switch r.Kind {
		case trace.Fold:
			want = want[:16]
		case trace.Quarantine:
			want = lost.FrameSHA256[:]
		}
		if r.Outcome == "conflict" {
			want = lost.FrameSHA256[:]
		}
		if !slices.Equal(r.Hash, want) || r.Key == "" {
			t.Errorf("%s: hash %x of %q", all[i], r.Hash, r.Key)
		}
		if home := claims.Region("eu"); r.Home != home && r.Kind != trace.Quarantine && r.Outcome != "conflict" {
			t.Errorf("%s: home %q", all[i], r.Home)
		}
	}
	if r := got.Records[0]; r.Stamp != (identity.Stamp{Epoch: 3, Fence: 7}) || r.At != noon {
		t.Errorf("%+v", r)
	}
	if j := got.Journals[1]; j.Region != "eu" || j.Files != 1 || j.Segments == 0 || j.From >= noon || j.To <= noon {
		t.Errorf("%+v", j)
	}
	// One number of the middle finds the identities that have it, wherever they begin, and no others. That of a claim is known by the claim.
	q.Identity = batch(15, 15)
	w.want(trace.Find(t.Context(), w.stores, q), all...)
	only := newWorld(t, "eu")
	only.accepted("eu", m)
	q.Claims = []claims.Claim{{Identity: id, ClaimedAt: noon}}
	only.want(trace.Find(t.Context(), only.stores, q), all[0])
}

// quarantine is the record of a frame that lost to m.
func (w *world) quarantine(r claims.Region, lost, m accept.Manifest, at int64) {
	w.t.Helper()
	c := accept.ConflictRecord{
		AuthorityID: authority(r), Identity: lost.Identity, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256, SubmittedBlobKey: lost.RawBlobKey,
		SubmittedSHA256: lost.FrameSHA256, AcceptedManifestKey: layout.Accepted(lost.Identity), ObservedAt: at, CollectorID: "c", Met: m.Identity,
	}
	w.create(r, layout.Quarantine(lost.Identity, lost.FrameSHA256), c.Marshal())
}

// What has numbers of the range and begins before it is found also where no claim and no fold says where: copies that lost, frames
// that were refused for what they meet, and what a region has accepted that does not take part yet.
func TestWhatBeginsBeforeTheRange(t *testing.T) {
	w := newWorld(t, "asia", "eu")
	m := manifest("eu", batch(110_000, 110_010), "x", 7, noon)
	w.accepted("eu", m)
	refused := manifest("eu", batch(109_990, 110_005), "y", 0, noon+minute)
	w.quarantine("eu", refused, m, noon+minute)
	// Longer than batches usually are, and one of the longest.
	w.accepted("asia", manifest("asia", batch(60_001, 110_000), "z", 1, noon+2*minute))
	w.accepted("asia", manifest("asia", batch(100_000, 110_003), "u", 1, noon+3*minute))
	for _, id := range []identity.Batch{batch(50_000, 60_000), batch(109_000, 109_999), batch(110_011, 110_020)} {
		w.accepted("asia", manifest("asia", id, "other", 1, noon))
	}
	got := trace.Find(t.Context(), w.stores, trace.Query{Identity: batch(110_000, 110_001), After: time.Minute})
	w.whole(got)
	w.want(got, "eu MANIFEST 110000-110010", "eu QUARANTINE 109990-110005", "asia MANIFEST 60001-110000", "asia MANIFEST 100000-110003")
	// Found once, also where a claim says where it begins.
	q := trace.Query{Identity: batch(110_002, 110_002), After: time.Minute, Claims: []claims.Claim{{Identity: batch(109_990, 110_005)}, {Identity: batch(100_000, 110_003)}}}
	w.want(trace.Find(t.Context(), w.stores, q), "eu MANIFEST 110000-110010", "eu QUARANTINE 109990-110005", "asia MANIFEST 100000-110003")
	// Longer than a frame is by default: only claims and folds say so.
	for _, by := range []string{"claim", "fold", ""} {
		w := newWorld(t, "eu", "us")
		id := batch(5, 2_000_000)
		m := manifest("eu", id, "x", 7, noon)
		w.accepted("eu", m)
		q, want := trace.Query{Identity: batch(1_900_000, 1_900_000), After: time.Minute}, []string{"eu MANIFEST 5-2000000"}
		switch by {
		case "claim":
			q.Claims = []claims.Claim{{Identity: id, ClaimedAt: noon}}
		case "fold":
			f := folds.Folder{Homes: func(claims.Region) (retired, known bool) { return false, true }, Regions: []folds.Region{{Name: "eu", Store: w.buckets["eu"]}, {Name: "us", Store: w.buckets["us"]}}}
			_, err := f.Fold(t.Context(), id.BootOf(), claims.Folds{}, []folds.Entry{{Start: 5, End: 2_000_000, Home: "eu", Digest: folds.DigestOf(m.FrameSHA256)}})
			w.must(err)
			want = append(want, "eu FOLD 5-2000000", "us FOLD 5-2000000")
		default:
			want = nil
		}
		w.want(trace.Find(t.Context(), w.stores, q), want...)
	}
}

// Records that stand under the key of another are damage, and not about what their key says.
func TestRecordsOfAnotherKey(t *testing.T) {
	w := newWorld(t, "eu")
	id, other := batch(1, 10), batch(11, 20)
	m := manifest("eu", other, "x", 7, noon)
	lost := manifest("eu", other, "y", 0, noon)
	stamp, later := identity.Stamp{Epoch: 3, Fence: 8}, identity.Stamp{Epoch: 3, Fence: 9}
	affirm := func(id identity.Batch, s identity.Stamp) []byte {
		return accept.Affirmation{AuthorityID: authority("eu"), Identity: id, FrameSHA256: m.FrameSHA256, Stamp: s, HomeRegion: "eu"}.Marshal()
	}
	w.create("eu", layout.Accepted(id), m.Marshal())
	w.create("eu", layout.Affirmation(id, stamp), affirm(other, stamp))
	w.create("eu", layout.Affirmation(id, later), affirm(id, stamp))
	c := accept.ConflictRecord{
		AuthorityID: authority("eu"), Identity: other, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256, SubmittedBlobKey: lost.RawBlobKey,
		SubmittedSHA256: lost.FrameSHA256, AcceptedManifestKey: layout.Accepted(other), ObservedAt: noon, CollectorID: "c",
	}
	w.create("eu", layout.Quarantine(id, lost.FrameSHA256), c.Marshal())
	c.Identity, c.AcceptedManifestKey = id, layout.Accepted(id)
	w.create("eu", layout.Quarantine(id, identity.Sum([]byte("z"))), c.Marshal())
	got := trace.Find(t.Context(), w.stores, trace.Query{Identity: id, After: time.Minute})
	if len(got.Records) != 5 {
		t.Errorf("%v", lines(got.Records))
	}
	for _, r := range got.Records {
		if r.Err == nil || r.Kind != trace.Quarantine && r.Hash != nil || r.At != 0 {
			t.Errorf("%s %+v", r.Key, r)
		}
	}
}

// Records of other boots and agents are not found, nor are those behind the range.
func TestOnlyWhatMeets(t *testing.T) {
	w := newWorld(t, "eu")
	w.accepted("eu", manifest("eu", batch(1, 10), "x", 1, noon))
	w.accepted("eu", manifest("eu", batch(11, 20), "y", 1, noon))
	var es []journal.Entry
	for _, id := range []identity.Batch{batch(1, 10), batch(11, 20), {Agent: "agent", Boot: "other", SeqStart: 1, SeqEnd: 10}, {Agent: "other", Boot: "boot", SeqStart: 1, SeqEnd: 10}} {
		es = append(es, manifest("eu", id, "x", 1, noon).Entry(journal.Accepted))
	}
	w.journal("eu", es...)
	w.want(trace.Find(t.Context(), w.stores, trace.Query{Identity: batch(1, 10), After: time.Minute}), "eu MANIFEST 1-10", "eu JOURNAL accepted 1-10")
}

// Folded files are read around known times, and no others; what is not folded is read in any case.
func TestJournalsAreSearchedAroundKnownTimes(t *testing.T) {
	w := newWorld(t, "eu", "us")
	id := batch(1, 10)
	m := manifest("eu", id, "x", 1, noon)
	file := func(at int64) {
		t.Helper()
		w.journal("us", elsewhere(m, at))
		w.fold("us")
	}
	for _, at := range []int64{noon - 6*minute, noon - 4*minute, noon + 19*minute, noon + 21*minute} {
		file(at)
	}
	w.journal("us", elsewhere(m, noon+100*minute))
	files := func(known bool, after time.Duration) trace.Searched {
		t.Helper()
		q := trace.Query{Identity: id, After: after}
		if known {
			q.Claims = []claims.Claim{{Identity: id, ClaimedAt: noon}}
		}
		got := trace.Find(t.Context(), w.stores, q)
		w.whole(got)
		if n := len(got.Records) - got.Journals[1].Files; n != 1 {
			t.Errorf("%d entries that are not folded: %v", n, lines(got.Records))
		}
		return got.Journals[1]
	}
	for after, want := range map[time.Duration]int{time.Minute: 1, 20 * time.Minute: 2, time.Hour: 3} {
		if j := files(true, after); j.Files != want || j.From != noon-5*minute || j.To != noon+int64(after) {
			t.Errorf("%s after: %+v, want %d files", after, j, want)
		}
	}
	// Nothing says when: only what is not folded is searched, and the answer says so.
	if j := files(false, time.Hour); j.Files != 0 || j.From != 0 || j.To != 0 || j.Segments == 0 {
		t.Errorf("%+v", j)
	}
}

// What can't be read is said, and keeps nothing else from being found.
func TestWhatCannotBeRead(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	id := batch(1, 10)
	m := manifest("eu", id, "x", 1, noon)
	w.accepted("eu", m)
	w.create("us", layout.Accepted(id), []byte("{"))
	w.create("us", layout.AcceptedBoot(id.BootOf())+"what", []byte("{}"))
	w.create("us", layout.FoldHead(id.BootOf()), []byte("?"))
	w.journal("eu", m.Entry(journal.Accepted))
	w.stores[1].Store = fault.New(w.buckets["eu"], 1, fault.Refused("list", layout.JournalOpenPrefix, objstore.ErrDenied))
	w.buckets["asia"].Delete(t.Context(), layout.AuthorityKey) //nolint:errcheck // of memory
	got := trace.Find(t.Context(), w.stores, trace.Query{Identity: id, After: time.Minute})
	w.want(got, "eu MANIFEST 1-10", "us MANIFEST 0-0 unread", "us MANIFEST 1-10 unread")
	if len(got.Unread) != 1 || got.Unread[0].Region != "us" || !strings.Contains(got.Unread[0].Err.Error(), "folds") {
		t.Errorf("%+v", got.Unread)
	}
	// A bucket without an authority has accepted nothing.
	if j := got.Journals; j[0].Err != nil || !errors.Is(j[1].Err, objstore.ErrDenied) || j[2].Err != nil {
		t.Errorf("%+v", j)
	}
	if got.Records[1].Hash != nil || got.Records[2].Hash != nil {
		t.Errorf("a hash of what can't be read: %+v", got.Records)
	}
}

// Everything is bounded: records, folded files and segments.
func TestBounds(t *testing.T) {
	w := newWorld(t, "eu")
	m := manifest("eu", batch(1, 1), "x", 1, noon)
	var es []journal.Entry
	for i := range int64(trace.MaxRecords + 1) {
		es = append(es, elsewhere(m, noon+i))
	}
	w.journal("eu", es[:trace.MaxRecords]...)
	q := trace.Query{Identity: batch(1, 1), After: time.Minute}
	got := trace.Find(t.Context(), w.stores, q)
	if w.whole(got); len(got.Records) != trace.MaxRecords {
		t.Errorf("%d records", len(got.Records))
	}
	w.journal("eu", es[trace.MaxRecords])
	if got = trace.Find(t.Context(), w.stores, q); len(got.Records) != trace.MaxRecords || got.Journals[0].Err == nil {
		t.Errorf("%d records, %+v", len(got.Records), got.Journals)
	}
	w = newWorld(t, "eu")
	for i := range uint64(50_001) {
		w.create("eu", layout.Accepted(batch(i, i)), nil)
	}
	q.Identity = batch(60_000, 60_000)
	w.accepted("eu", manifest("eu", q.Identity, "x", 1, noon))
	got = trace.Find(t.Context(), w.stores, q)
	if w.want(got, "eu MANIFEST 60000-60000"); len(got.Unread) != 1 || !strings.Contains(got.Unread[0].Err.Error(), "50000") {
		t.Errorf("%+v", got.Unread)
	}
	q.Identity = batch(1, 1)
	for _, files := range []bool{true, false} {
		s := newWorld(t, "eu")
		s.stores[0].Store = endless{s.buckets["eu"], files, s}
		s.accepted("eu", m)
		got := trace.Find(t.Context(), s.stores, q)
		j := got.Journals[0]
		if j.Err == nil || files && j.Files > 300 || !files && j.Segments > 5000 {
			t.Errorf("%+v", j)
		}
	}
}

// endless is a bucket whose journal has no end: folded files, or segments.
type endless struct {
	*mem.Store
	files bool
	w     *world
}

var run = journal.RunID{7}

func (e endless) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	m := manifest("eu", batch(1000, 1000), "x", 1, noon)
	switch {
	case e.files && key == layout.JournalHeadKey:
		h := journal.Head{Number: 1000, Runs: []journal.HeadRun{{Run: run, Writer: "w", Role: journal.RoleCollector, Folded: 1}}}
		for i := range uint64(300) {
			h.Files = append(h.Files, journal.FoldedFile{Span: journal.Span{Key: layout.JournalFolded(i+1, [16]byte{1}, 0), First: i + 1, Last: i + 1, Entries: 1, Bytes: 1, MinAt: noon, MaxAt: noon, MinTime: 1, MaxTime: 2}})
		}
		b, err := h.Marshal()
		e.w.must(err)
		return b, objstore.Info{}, nil
	case e.files && strings.HasPrefix(key, layout.JournalFoldedPrefix):
		h, err := e.folded(ctx, m)
		e.w.must(err)
		return h, objstore.Info{}, nil
	case !e.files && (strings.HasPrefix(key, layout.JournalRunPrefix) || strings.HasPrefix(key, layout.JournalOpenPrefix)):
		r, n, err := layout.ParseJournalSegment(key)
		e.w.must(err)
		s := journal.Segment{Position: journal.Position{Run: r, Segment: n}, Entries: []journal.Entry{m.Entry(journal.Accepted)}}
		if n == 0 {
			s.Opening = &journal.Opening{Writer: "w", Role: journal.RoleCollector, Authority: authority("eu")}
		}
		b, err := s.Marshal()
		e.w.must(err)
		return b, objstore.Info{}, nil
	}
	return e.Store.Get(ctx, key, o)
}

func (e endless) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if !e.files && o.Prefix == layout.JournalOpenPrefix {
		return objstore.Page{Objects: []objstore.Info{{Key: journal.Position{Run: run}.Key()}}}, nil
	}
	return e.Store.List(ctx, o)
}

// folded is the bytes of a folded file.
func (e endless) folded(ctx context.Context, m accept.Manifest) ([]byte, error) {
	other := mem.New(nil)
	if err := journaltest.Append(ctx, other, authority("eu"), m.Entry(journal.Accepted)); err != nil {
		return nil, err
	}
	h, err := journaltest.Fold(ctx, other, authority("eu"))
	if err != nil {
		return nil, err
	}
	b, _, err := other.Get(ctx, h.Files[0].Key, objstore.GetOptions{})
	return b, err
}

// Regions and runs are read side by side where the caller says so.
func TestSideBySide(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	m := manifest("eu", batch(1, 10), "x", 1, noon)
	w.accepted("eu", m)
	for range 20 {
		w.journal("us", elsewhere(m, noon))
		w.journal("eu", m.Entry(journal.Accepted), m.Entry(journal.Duplicate))
	}
	got := trace.Find(t.Context(), w.stores, trace.Query{Identity: batch(1, 10), After: time.Minute, Parallel: func(n int, fn func(int)) {
		done := make(chan struct{})
		for i := range n {
			go func() {
				fn(i)
				done <- struct{}{}
			}()
		}
		for range n {
			<-done
		}
	}})
	w.whole(got)
	w.want(got, "eu MANIFEST 1-10", "eu JOURNAL accepted 1-10", "eu JOURNAL duplicate 1-10", "us JOURNAL elsewhere 1-10")
}
