package regions_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	kv "lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// batchAlone is one that a region has accepted on its own, at a time.
func (w *world) batchAlone(r claims.Region, id identity.Batch, frame string, at int64) journal.Entry {
	w.t.Helper()
	sum := identity.Sum([]byte(frame))
	m := accept.Manifest{
		AuthorityID: "authority-" + string(r), Identity: id, FrameSHA256: sum, FrameBytes: uint64(len(frame)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: at, CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
	}
	if _, err := w.buckets[r].Create(w.t.Context(), layout.Accepted(id), m.Marshal(), objstore.PutOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return m.Entry(journal.Accepted)
}

// journalled writes entries into the journal of a region, and folds it.
func (w *world) journalled(r claims.Region, es ...journal.Entry) {
	w.t.Helper()
	if err := journaltest.Append(w.t.Context(), w.buckets[r], "authority-"+string(r), es...); err != nil {
		w.t.Fatal(err)
	}
	if _, err := journaltest.Fold(w.t.Context(), w.buckets[r], "authority-"+string(r)); err != nil {
		w.t.Fatal(err)
	}
}

// goOn lets a preparation go on to the end.
func goOn(regions.Preparation) bool { return true }

func (w *world) prepare(k *regions.Keeper, r claims.Region) regions.Preparation {
	w.t.Helper()
	p, all, err := k.Prepare(w.t.Context(), r, goOn)
	if err != nil || !all {
		w.t.Fatal(err)
	}
	return p
}

// alone has so many batches of a boot in a region, of ten numbers each, and their entries.
func (w *world) alone(r claims.Region, boot string, from, n uint64) (es []journal.Entry) {
	for i := from; i < from+n; i++ {
		es = append(es, w.batchAlone(r, batch(boot, 10*i+1, 10*i+10), fmt.Sprint(boot, i), int64(i)+1))
	}
	return es
}

// What was prepared is folded by the addition, and nothing of it is read or becomes a claim.
func TestAddWhatWasPrepared(t *testing.T) {
	w := newWorld(t, "eu", "us")
	first := w.open("eu")
	var es []journal.Entry
	for b := range 3 {
		es = append(es, w.alone("us", fmt.Sprint("b", b), 0, 100)...)
	}
	w.journalled("us", es...)
	k := w.keeper("eu", "us")
	p := w.prepare(k, "us")
	if p.Batches != 300 || p.Left != 0 || p.Through == 0 || p.AcceptedAt != 100 || p.UpdatedAt != 7 {
		t.Errorf("%+v", p)
	}
	// It has no force: the region takes no part yet, and nothing is said of it.
	for r, b := range w.buckets {
		for l, err := range folds.List(t.Context(), b) {
			if err != nil || l.Head {
				t.Errorf("region %s: %+v, %v", r, l, err)
			}
		}
	}
	if o, err := k.Open(t.Context(), true); err != nil || o.Epoch.ID != first.Epoch.ID {
		t.Fatalf("%+v, %v", o, err)
	}
	// What came since is found as ever.
	w.alone("us", "b1", 100, 4)
	w.alone("us", "other", 0, 2)
	o, err := k.Add(t.Context(), "us")
	if err != nil {
		t.Fatal(err)
	}
	if o.Recovered.Claims != 6 || o.Recovered.Manifests != 6 {
		t.Errorf("%+v", o.Recovered)
	}
	for b := range 3 {
		for _, i := range []uint64{0, 57, 99} {
			id, frame := batch(fmt.Sprint("b", b), 10*i+1, 10*i+10), fmt.Sprintf("b%d%d", b, i)
			if got, want := w.asked(k, o.Epoch, id, frame), fmt.Sprintf("DECIDED %d-%d us %.8s", id.SeqStart, id.SeqEnd, identity.Sum([]byte(frame))); got != want {
				t.Errorf("%s: %s, want %s", id, got, want)
			}
			if got := w.asked(k, o.Epoch, id, "another"); !strings.HasPrefix(got, "CONFLICT") {
				t.Errorf("%s: %s", id, got)
			}
		}
	}
	s, err := k.Status(t.Context())
	if err != nil || s.Open != nil || len(s.Records["us"].Joining)+len(s.Records["eu"].Joining) > 0 || s.Prepared["us"] != p {
		t.Errorf("%+v, %v", s, err)
	}
	// Etcd is lost: what was prepared is folded, and nothing is asked of the preparation any more.
	w.kv.Restore(kv.New(), 2)
	if o = w.open("eu", "us"); o.Recovered.Claims != 6 {
		t.Errorf("%+v", o.Recovered)
	}
}

// A preparation reads what is new in the journal, also when it is interrupted at any request.
func TestPrepareGoesOn(t *testing.T) {
	build := func() (*world, *regions.Keeper) {
		w := newWorld(t, "asia", "eu", "us")
		w.open("eu")
		w.journalled("us", w.alone("us", "b", 0, 30)...)
		return w, w.keeper("asia", "eu", "us")
	}
	calm, k := build()
	first := calm.prepare(k, "us")
	n := 0
	calm.before = func(string) error { n++; return nil }
	if again := calm.prepare(k, "us"); again != first || n > 8 {
		t.Errorf("%+v, with %d requests; %+v before", again, n, first)
	}
	calm.before = nil
	calm.journalled("us", calm.alone("us", "b", 30, 5)...)
	next := calm.prepare(k, "us")
	if next.Batches != 35 || next.Through <= first.Through {
		t.Errorf("%+v", next)
	}
	// A journal whose numbers begin lower: it was deleted, and a full audit has entered everything.
	for info, err := range objstore.List(t.Context(), calm.buckets["us"], objstore.ListOptions{Prefix: layout.JournalPrefix}) {
		if err == nil {
			err = calm.buckets["us"].Delete(t.Context(), info.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	calm.journalled("us", calm.alone("us", "c", 0, 3)...)
	if p := calm.prepare(k, "us"); p.Batches != 38 || p.Through >= next.Through {
		t.Errorf("%+v", p)
	}
	n = 0
	again, k := build()
	again.before = func(string) error { n++; return nil }
	again.prepare(k, "us")
	if n < 12 {
		t.Fatalf("%d requests", n)
	}
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w, k := build()
			i := 0
			w.before = func(what string) error {
				if i++; i > dead+1 || i == dead+1 && !applied {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			w.after = func(string) error {
				if i > dead {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			if p, _, err := k.Prepare(t.Context(), "us", goOn); err == nil {
				t.Fatalf("request %d: %+v", dead, p)
			}
			w.before, w.after = nil, nil
			w.prepare(k, "us")
			o, err := k.Add(t.Context(), "us")
			if err != nil || o.Recovered.Claims != 0 || o.Recovered.Manifests != 0 {
				t.Fatalf("request %d, applied %v: %+v, %v", dead, applied, o, err)
			}
			if got := w.asked(k, o.Epoch, batch("b", 291, 300), "b29"); !strings.HasPrefix(got, "DECIDED 291-300 us") {
				t.Fatalf("request %d, applied %v: %s", dead, applied, got)
			}
		}
	}
}

func TestPrepareRefuses(t *testing.T) {
	w := newWorld(t, "asia", "eu", "us")
	w.open("asia", "eu")
	k := w.keeper("asia", "eu", "us")
	try := func(r claims.Region) error {
		_, _, err := k.Prepare(t.Context(), r, goOn)
		return err
	}
	if err := try("mars"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	w.away("asia")
	var of *regions.RegionError
	if err := try("us"); !errors.As(err, &of) || of.Region != "asia" {
		t.Error(err)
	}
	// A region that is gone for good is not waited for.
	if _, err := k.Retire(t.Context(), "asia", false); err != nil {
		t.Fatal(err)
	}
	w.journalled("us", w.alone("us", "b", 0, 3)...)
	if err := try("us"); err != nil {
		t.Error(err)
	}
	w.before = nil
	if err := try("asia"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	// A bucket of another region, by a mistake in the settings.
	w.buckets["eu"] = w.buckets["us"]
	if err := try("eu"); !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
	for _, bad := range []string{`{}`, `{"schema":"lightmetrics.preparation.v1","region":"US","accepted_at_unix_ns":1,"updated_at_unix_ns":1}`,
		`{"schema":"lightmetrics.preparation.v1","region":"us","batches":1,"accepted_at_unix_ns":1,"updated_at_unix_ns":1}`} {
		if p, err := regions.ParsePreparation([]byte(bad)); err == nil {
			t.Errorf("%s: %+v", bad, p)
		}
	}
	p := regions.Preparation{Region: "us", Through: 3, Batches: 2, Left: 1, Folded: 4, FoldedBatches: 9, AcceptedAt: -5, UpdatedAt: 6}
	if got, err := regions.ParsePreparation(p.Marshal()); err != nil || got != p {
		t.Errorf("%+v, %v", got, err)
	}
}

// A region with too much that is not prepared is not added, and nothing has changed then; in the first epoch as later.
func TestAddRefusesWhatIsNotPrepared(t *testing.T) {
	w := newWorld(t, "eu", "us")
	k := w.bounded(20, 0, "eu", "us")
	es := w.alone("us", "b", 0, 30)
	w.journalled("us", es[:25]...)
	if o, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrUnprepared) {
		t.Fatalf("%+v, %v", o, err)
	}
	if o, err := k.Add(t.Context(), "us"); !errors.Is(err, regions.ErrUnprepared) {
		t.Fatalf("%+v, %v", o, err)
	}
	if s, err := k.Status(t.Context()); err != nil || len(s.Records) > 0 || s.Epoch.Number > 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	first := w.open("eu")
	if o, err := k.Add(t.Context(), "us"); !errors.Is(err, regions.ErrUnprepared) {
		t.Fatalf("%+v, %v", o, err)
	}
	if s, err := k.Status(t.Context()); err != nil || s.Open != nil || s.Epoch.ID != first.Epoch.ID || len(s.Records) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	w.prepare(k, "us")
	o, err := k.Add(t.Context(), "us")
	if err != nil || o.Recovered.Claims != 5 {
		t.Fatalf("%+v, %v", o, err)
	}
}

// Regions that were prepared before the first epoch begin it when somebody says so: their collectors may still accept on their own.
func TestTheFirstEpochIsAskedFor(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.journalled("us", w.alone("us", "b", 0, 30)...)
	w.journalled("eu", w.alone("eu", "c", 0, 30)...)
	k := w.keeper("eu", "us")
	w.prepare(k, "us")
	if o, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrNotAdded) {
		t.Fatalf("%+v, %v", o, err)
	}
	w.prepare(k, "eu")
	o, err := k.Add(t.Context(), "us")
	if err != nil || o.Epoch.Number != 1 || len(o.Epoch.Regions) != 2 || o.Recovered.Claims != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	for boot, home := range map[string]claims.Region{"b": "us", "c": "eu"} {
		if got := w.asked(k, o.Epoch, batch(boot, 101, 110), boot+"10"); !strings.HasPrefix(got, "DECIDED 101-110 "+string(home)) {
			t.Error(got)
		}
	}
}

// bounded is a keeper with bounds of its own.
func (w *world) bounded(unprepared, most uint64, names ...claims.Region) *regions.Keeper {
	w.t.Helper()
	c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, MaxUnprepared: unprepared, MaxClaims: most, SealAt: 4}
	for _, n := range names {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: bucket{w, n}})
	}
	k, err := regions.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// contested is a world whose region "us" has prepared much of which others have decided something else, or have accepted the same.
func contested(t testing.TB) (*world, *regions.Keeper) {
	w := newWorld(t, "asia", "eu", "us")
	k := w.keeper("asia", "eu", "us")
	o := w.open("eu")
	w.fold(w.keeper("eu"), o.Epoch, "eu", map[identity.Batch]string{batch("boot", 1, 10): "a", batch("boot", 35, 36): "z"})
	w.manifest("eu", batch("boot", 1, 10), "a", accepted.Stamp{Epoch: 1, Fence: 9})
	w.manifest("eu", batch("boot", 51, 60), "z", accepted.Stamp{Epoch: 1, Fence: 10}) // decided, not folded
	w.manifest("eu", batch("boot", 75, 82), "z", accepted.Stamp{Epoch: 1, Fence: 11})
	w.manifest("eu", batch("boot", 91, 100), "same", accepted.Stamp{Epoch: 1, Fence: 12})
	var es []journal.Entry
	for i := range uint64(12) {
		id, frame := batch("boot", 10*i+1, 10*i+10), fmt.Sprint("us", i)
		switch i {
		case 0:
			frame = "a"
		case 9:
			frame = "same"
		}
		es = append(es, w.batchAlone("us", id, frame, int64(i)+100))
	}
	// In its own bucket another range was accepted later, and answered.
	es = append(es, w.batchAlone("us", batch("boot", 105, 107), "late", 900))
	w.batchAlone("us", batch("boot", 106, 130), "later", 901)
	w.journalled("us", es...)
	// Asia, which joins too, has accepted some of it before, and some after.
	early := w.batchAlone("asia", batch("boot", 11, 20), "asia", 1)
	after := w.batchAlone("asia", batch("boot", 21, 30), "asia", 2000)
	w.journalled("asia", early, after, w.batchAlone("asia", batch("boot", 500, 501), "asia", 5), w.batchAlone("asia", batch("boot", 600, 601), "asia", 6))
	// Nobody was answered that us has this one, which was accepted later.
	w.batchAlone("us", batch("boot", 601, 602), "x", 3000)
	return w, k
}

// decided are what the epoch says of the contested boot.
func (w *world) decided(k *regions.Keeper, e claims.Epoch) []string {
	w.t.Helper()
	out := w.claims()
	for _, c := range []struct {
		id    identity.Batch
		frame string
	}{
		{batch("boot", 1, 10), "a"}, {batch("boot", 11, 20), "us1"}, {batch("boot", 21, 30), "us2"}, {batch("boot", 31, 40), "us3"}, {batch("boot", 41, 50), "us4"},
		{batch("boot", 51, 60), "us5"}, {batch("boot", 61, 70), "us6"}, {batch("boot", 71, 80), "us7"}, {batch("boot", 81, 90), "us8"}, {batch("boot", 91, 100), "same"},
		{batch("boot", 101, 110), "us10"}, {batch("boot", 111, 120), "us11"}, {batch("boot", 105, 107), "late"}, {batch("boot", 500, 501), "asia"},
		{batch("boot", 600, 601), "asia"},
	} {
		out = append(out, fmt.Sprintf("%d-%d: %s", c.id.SeqStart, c.id.SeqEnd, w.asked(k, e, c.id, c.frame)))
	}
	return out
}

// contestedWant is what is decided of it once all three regions take part, whatever was prepared.
func contestedWant(w *world) []string {
	hash := func(frame string) string { return fmt.Sprintf("%.8s", identity.Sum([]byte(frame))) }
	return []string{
		line(batch("boot", 11, 20), "asia", "asia"), line(batch("boot", 21, 30), "us", "us2"), line(batch("boot", 51, 60), "eu", "z"),
		line(batch("boot", 75, 82), "eu", "z"), line(batch("boot", 91, 100), "eu", "same"), line(batch("boot", 600, 601), "asia", "asia"),
		"1-10: DECIDED 1-10 eu " + hash("a"), "11-20: free", "21-30: free", "31-40: RANGE_CONFLICT 35-36 eu " + hash("z"), "41-50: DECIDED 41-50 us " + hash("us4"),
		"51-60: free", "61-70: DECIDED 61-70 us " + hash("us6"), "71-80: free", "81-90: free", "91-100: free",
		"101-110: DECIDED 101-110 us " + hash("us10"), "111-120: DECIDED 111-120 us " + hash("us11"), "105-107: RANGE_CONFLICT 101-110 us " + hash("us10"), "500-501: DECIDED 500-501 asia " + hash("asia"), "600-601: free",
	}
}

// What the epoch's members have decided wins over what was prepared; of two regions that join, the one that accepted first.
func TestWhatWasPreparedLoses(t *testing.T) {
	w, k := contested(t)
	w.manifest("eu", batch("boot", 35, 36), "z", accepted.Stamp{Epoch: 1, Fence: 8})
	for _, r := range []claims.Region{"us", "asia"} {
		w.prepare(k, r)
	}
	if p := w.prepare(k, "us"); p.Batches != 12 || p.Left != 1 {
		t.Errorf("%+v", p)
	}
	if _, err := k.Add(t.Context(), "asia"); err != nil {
		t.Fatal(err)
	}
	o, err := k.Add(t.Context(), "us")
	if err != nil {
		t.Fatal(err)
	}
	// Asia was there first, and so is the home of what nobody else had then.
	want := contestedWant(w)
	got := w.decided(k, o.Epoch)
	for i, s := range want {
		if strings.HasPrefix(s, "boot 11-20") || strings.HasPrefix(s, "boot 21-30") || strings.HasPrefix(s, "boot 600") {
			want[i] = ""
		}
		switch {
		case strings.HasPrefix(s, "600-601:"):
			want[i] = fmt.Sprintf("600-601: DECIDED 600-601 asia %.8s", identity.Sum([]byte("asia")))
		case strings.HasPrefix(s, "11-20:"):
			want[i] = fmt.Sprintf("11-20: CONFLICT 11-20 asia %.8s", identity.Sum([]byte("asia")))
		case strings.HasPrefix(s, "21-30:"):
			want[i] = fmt.Sprintf("21-30: CONFLICT 21-30 asia %.8s", identity.Sum([]byte("asia")))
		}
	}
	want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// joinBoth writes what a mover has written that adds both regions at once, and has died before anything else.
func (w *world) joinBoth() {
	w.t.Helper()
	b, i, err := w.buckets["eu"].Get(w.t.Context(), layout.RegionsKey, objstore.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := regions.ParseRecord(b)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Number, r.ID, r.Regions, r.Joining = r.Number+1, claims.ID{7}, []claims.Region{"asia", "eu", "us"}, []claims.Region{"asia", "us"}
	for _, n := range r.Regions {
		if r.Region = n; n == "eu" {
			_, err = w.buckets[n].Replace(w.t.Context(), layout.RegionsKey, r.Marshal(), i.ETag, objstore.PutOptions{})
		} else {
			_, err = w.buckets[n].Create(w.t.Context(), layout.RegionsKey, r.Marshal(), objstore.PutOptions{})
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// An addition that dies at any request, and is begun again, decides the same: which of two regions that join is the home, and what of
// their preparation is folded.
func TestKilledAtEveryRequestOfAnAddition(t *testing.T) {
	build := func() (*world, *regions.Keeper) {
		w, k := contested(t)
		w.manifest("eu", batch("boot", 35, 36), "z", accepted.Stamp{Epoch: 1, Fence: 8})
		w.prepare(k, "us")
		w.prepare(k, "asia")
		w.joinBoth()
		return w, k
	}
	calm, k := build()
	n := 0
	calm.before = func(string) error { n++; return nil }
	o, err := k.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	calm.before = nil
	want := contestedWant(calm)
	if got := calm.decided(k, o.Epoch); !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
	for dead := range n {
		for _, applied := range []bool{false, true} {
			w, k := build()
			i := 0
			w.before = func(what string) error {
				if i++; i > dead+1 || i == dead+1 && !applied {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			w.after = func(string) error {
				if i > dead {
					return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
				}
				return nil
			}
			if o, err := k.Open(t.Context(), true); err == nil {
				t.Fatalf("request %d: %+v", dead, o)
			}
			w.before, w.after = nil, nil
			o, err := k.Open(t.Context(), true)
			if err != nil {
				t.Fatalf("request %d, applied %v: %v", dead, applied, err)
			}
			if got := w.decided(k, o.Epoch); !slices.Equal(got, want) {
				t.Fatalf("request %d, applied %v: %q\nwant %q", dead, applied, got, want)
			}
		}
	}
}

// A folder of the epoch before is late: it moves heads between the reading and the writing of the addition, which decides again.
func TestAFolderIsLate(t *testing.T) {
	for _, meets := range []bool{false, true} {
		w := newWorld(t, "eu", "us")
		o := w.open("eu")
		w.journalled("us", w.alone("us", "boot", 0, 6)...)
		k := w.keeper("eu", "us")
		w.prepare(k, "us")
		id := batch("boot", 101, 105)
		if meets {
			id = batch("boot", 25, 26)
		}
		w.manifest("eu", id, "f", accepted.Stamp{Epoch: 1, Fence: 3})
		n := 0
		w.held = func(r claims.Region, key string, do func() error) bool {
			if strings.HasPrefix(key, layout.FoldsPrefix) && r == "eu" && strings.HasSuffix(key, "/head.lmf") {
				if n++; n == 1 {
					w.fold(w.keeper("eu"), o.Epoch, "eu", map[identity.Batch]string{id: "f"})
				}
			}
			return false
		}
		o, err := k.Add(t.Context(), "us")
		if err != nil || n < 3 {
			t.Fatalf("%+v, %v, %d writes", o, err, n)
		}
		w.held = nil
		if got, want := w.asked(k, o.Epoch, id, "f"), fmt.Sprintf("DECIDED %d-%d eu %.8s", id.SeqStart, id.SeqEnd, identity.Sum([]byte("f"))); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		want := fmt.Sprintf("DECIDED 21-30 us %.8s", identity.Sum([]byte("boot2")))
		if meets {
			want = fmt.Sprintf("RANGE_CONFLICT 25-26 eu %.8s", identity.Sum([]byte("f")))
		}
		if got := w.asked(k, o.Epoch, batch("boot", 21, 30), "boot2"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := w.asked(k, o.Epoch, batch("boot", 51, 60), "boot5"); !strings.HasPrefix(got, "DECIDED 51-60 us") {
			t.Error(got)
		}
		if got := w.claims(); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
}

// An addition that is overtaken at any request, by a recovery that finds manifests which it has not seen: what that one decides stays, also
// when the first one goes on, and whatever of it arrives late.
func TestAnAdditionIsOvertakenAtEveryRequest(t *testing.T) {
	late := map[string]int{}
	for at := 1; ; at++ {
		for _, dies := range []bool{false, true} {
			w := newWorld(t, "eu", "us")
			w.open("eu")
			w.journalled("us", w.alone("us", "b", 0, 6)...)
			w.journalled("us", w.alone("us", "c", 0, 6)...)
			k := w.keeper("eu", "us")
			w.prepare(k, "us")
			var held func() error
			i, other := 0, regions.Opened{}
			overtake := func() {
				w.before = nil
				// Of a claim of the first epoch, which was released: it was never answered, and has a stamp.
				w.manifest("eu", batch("b", 21, 30), "eu", accepted.Stamp{Epoch: 1, Fence: 3})
				w.manifest("eu", batch("c", 25, 26), "eu", accepted.Stamp{Epoch: 1, Fence: 4})
				o, err := w.keeper("eu", "us").Open(t.Context(), true)
				if err != nil {
					t.Fatalf("request %d: %v", at, err)
				}
				other = o
			}
			w.before = func(what string) error {
				if i++; i == at {
					overtake()
					if dies {
						return fmt.Errorf("%w: %w", objstore.ErrUnknown, errDead)
					}
				}
				return nil
			}
			w.held = func(r claims.Region, key string, do func() error) bool {
				// The write under way when it was overtaken arrives after everything.
				if i == at-1 && strings.HasPrefix(key, layout.FoldsPrefix) && held == nil {
					held = do
					late[fmt.Sprint(dies)]++
					overtake()
					return true
				}
				return false
			}
			o, err := k.Add(t.Context(), "us")
			w.before, w.held = nil, nil
			if other.Epoch.Number == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if late["true"] == 0 || late["false"] == 0 {
					t.Errorf("no write was late: %v", late)
				}
				return // every request had its turn
			}
			// The one that was overtaken may have opened the epoch after that.
			now, err2 := w.keeper("eu", "us").Open(t.Context(), true)
			if err2 != nil || err == nil && now.Epoch.ID != o.Epoch.ID {
				t.Fatalf("request %d: %+v, %v; %+v, %v", at, o, err, now, err2)
			}
			if now.Epoch.Retired("us") {
				// It was overtaken before anything was changed.
				if now, err = k.Add(t.Context(), "us"); err != nil {
					t.Fatalf("request %d: %v", at, err)
				}
			}
			before := w.said(k, now.Epoch)
			if held != nil {
				_ = held() // in the open epoch
			}
			for _, m := range []struct {
				id    identity.Batch
				frame string
			}{{batch("b", 21, 30), "b2"}, {batch("c", 21, 30), "c2"}} {
				mine := w.asked(k, now.Epoch, m.id, m.frame)
				theirs := slices.ContainsFunc(w.claims(), func(s string) bool { return strings.HasPrefix(s, m.id.Boot+" 2") && strings.Contains(s, " eu ") })
				if theirs == strings.HasPrefix(mine, "DECIDED") {
					t.Fatalf("request %d, dies %v: of %s folds say %s, and etcd has %q", at, dies, m.id, mine, w.claims())
				}
			}
			if after := w.said(k, now.Epoch); !slices.Equal(before, after) {
				t.Fatalf("request %d, dies %v: %q, and %q after a late write", at, dies, before, after)
			}
		}
	}
}

// said is what folds have of the boots of TestAnAdditionIsOvertakenAtEveryRequest, in each region.
func (w *world) said(k *regions.Keeper, e claims.Epoch) (out []string) {
	for _, r := range []claims.Region{"eu", "us"} {
		for _, boot := range []string{"b", "c"} {
			h, err := folds.Read(context.Background(), w.buckets[r], batch(boot, 1, 1).BootOf())
			if err != nil && !errors.Is(err, objstore.ErrNotFound) {
				w.t.Fatal(err)
			}
			out = append(out, fmt.Sprint(r, boot, h.Count()))
		}
	}
	return out
}

// A region is lost while it is added, and retired: nothing of what was prepared there is folded any more, not even by a write that is late.
func TestRetireARegionThatJoins(t *testing.T) {
	late := 0
	for at := 1; ; at++ {
		w := newWorld(t, "asia", "eu", "us")
		w.open("asia", "eu")
		w.journalled("us", w.alone("us", "b", 0, 6)...)
		k := w.keeper("asia", "eu", "us")
		w.prepare(k, "us")
		var held func() error
		i := 0
		w.before = func(string) error {
			if i++; i >= at {
				return fmt.Errorf("%w: %w", objstore.ErrUnavailable, errDead)
			}
			return nil
		}
		w.held = func(r claims.Region, key string, do func() error) bool {
			if i == at-1 && strings.HasPrefix(key, layout.FoldsPrefix) && r != "us" {
				held = do
				return true
			}
			return false
		}
		_, err := k.Add(t.Context(), "us")
		w.before, w.held = nil, nil
		if err == nil {
			if late < 2 {
				t.Errorf("%d late writes", late)
			}
			return // every request had its turn
		}
		s, err := k.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Records["us"].Regions) == 0 || len(s.Records["eu"].Joining) == 0 {
			continue // nothing has begun, or it was nearly done
		}
		w.away("us")
		o, err := k.Retire(t.Context(), "us", true)
		if err != nil {
			t.Fatalf("request %d: %v", at, err)
		}
		before := w.asked(k, o.Epoch, batch("b", 21, 30), "other")
		if held != nil {
			late++
			if err := held(); err == nil && strings.HasPrefix(before, "free") {
				t.Logf("request %d: a late write of a part", at)
			}
		}
		if after := w.asked(k, o.Epoch, batch("b", 21, 30), "other"); after != before {
			t.Fatalf("request %d: %s, and %s after a late write", at, before, after)
		}
		if s, err := k.Status(t.Context()); err != nil || len(s.Records["eu"].Joining) > 0 {
			t.Fatalf("request %d: %+v, %v", at, s, err)
		}
	}
}

// Of a region that takes part what it has decided is folded from its journal: what nobody folded before etcd was lost need not become claims.
func TestPrepareAMember(t *testing.T) {
	w := newWorld(t, "eu", "us")
	// From before it took part: it may have lost since.
	own := w.alone("us", "b", 0, 3)
	o := w.open("eu", "us")
	es := own
	for i := uint64(3); i < 40; i++ {
		id, frame := batch("b", 10*i+1, 10*i+10), fmt.Sprint("b", i)
		w.manifest("us", id, frame, accepted.Stamp{Epoch: 1, Fence: i})
		e := journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: identity.Sum([]byte(frame)), Bytes: 5, At: 1, MinTime: 1, MaxTime: 2, HomeRegion: "us", ClaimEpoch: 1}
		if i%5 == 4 {
			// Answered here, and counted elsewhere.
			e.Outcome, e.HomeRegion = journal.Elsewhere, "eu"
		}
		es = append(es, e)
	}
	w.fold(w.keeper("eu", "us"), o.Epoch, "eu", map[identity.Batch]string{batch("boot", 1, 5): "x"})
	w.journalled("us", es...)
	k := w.bounded(0, 20, "eu", "us")
	w.kv.Restore(kv.New(), 2)
	if o, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrTooManyClaims) {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := len(w.claims()); got > 20 {
		t.Errorf("%d claims", got)
	}
	// The next one finds that before it has changed anything.
	was, err := k.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := k.Open(t.Context(), true); !errors.Is(err, regions.ErrTooManyClaims) {
		t.Fatalf("%+v, %v", o, err)
	}
	if now, err := k.Status(t.Context()); err != nil || now.Epoch.ID != was.Epoch.ID || now.Records["eu"].ID != was.Records["eu"].ID {
		t.Errorf("%+v, %v; it was %+v", now, err, was)
	}
	p := w.prepare(k, "us")
	if p.Batches > 0 || p.FoldedBatches != 29 || p.Folded == 0 {
		t.Errorf("%+v", p)
	}
	o, err = k.Open(t.Context(), true)
	if err != nil || o.Recovered.Claims != 11 {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := w.asked(k, o.Epoch, batch("b", 51, 60), "b5"); !strings.HasPrefix(got, "DECIDED 51-60 us") {
		t.Error(got)
	}
	if got := w.asked(k, o.Epoch, batch("b", 1, 10), "b0"); got != "free" {
		t.Errorf("from before it took part: %s", got)
	}
	// Nothing that contradicts what is folded.
	w.journalled("us", journal.Entry{ID: batch("b", 53, 54), Outcome: journal.Accepted, SHA256: identity.Sum(nil), Bytes: 5, At: 1, MinTime: 1, MaxTime: 2, HomeRegion: "us", ClaimEpoch: 1},
		journal.Entry{ID: batch("b", 391, 400), Outcome: journal.Duplicate, SHA256: identity.Sum([]byte("b39")), Bytes: 5, At: 1, MinTime: 1, MaxTime: 2, HomeRegion: "us", ClaimEpoch: 1})
	if p := w.prepare(k, "us"); p.FoldedBatches != 30 {
		t.Errorf("%+v", p)
	}
}

// That everything is folded is noted in one region after the other. One that has it is enough: nothing can be open before all have.
func TestANoteOfOneRegion(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	w.journalled("us", w.alone("us", "b", 0, 6)...)
	k := w.keeper("eu", "us")
	w.prepare(k, "us")
	puts := 0
	w.held = func(_ claims.Region, key string, do func() error) bool {
		if key == layout.RegionsKey {
			// The write that asks for the permission, two records of the epoch, and one note.
			if puts++; puts == 5 {
				return true
			}
		}
		return false
	}
	if o, err := k.Add(t.Context(), "us"); err == nil {
		t.Fatalf("%+v", o)
	}
	w.held = nil
	s, err := k.Status(t.Context())
	if err != nil || len(s.Records["eu"].Joining) != 0 || len(s.Records["us"].Joining) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	o, err := k.Open(t.Context(), true)
	if err != nil || o.Recovered.Claims != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	if h, err := folds.Read(t.Context(), w.buckets["eu"], batch("b", 1, 1).BootOf()); err != nil || h.Generation != 1 {
		t.Errorf("the head was moved again: %+v, %v", h, err)
	}
}

// What was prepared is of no use once the region takes part, whatever is added to it by somebody who is late.
func TestAPreparationThatIsSpent(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	w.journalled("us", w.alone("us", "b", 0, 3)...)
	k := w.keeper("eu", "us")
	w.prepare(k, "us")
	if _, err := k.Add(t.Context(), "us"); err != nil {
		t.Fatal(err)
	}
	// The last batch lost in the open epoch: another frame has its identity.
	p := folds.Preparer{Own: folds.Region{Name: "us", Store: w.buckets["us"]}, Others: []folds.Region{{Name: "eu", Store: w.buckets["eu"]}}}
	id := batch("b", 31, 40)
	w.batchAlone("us", id, "late", 1)
	if _, err := p.Add(t.Context(), id.BootOf(), []folds.Entry{{Start: 31, End: 40, Home: "us", Digest: folds.DigestOf(identity.Sum([]byte("late")))}}); err != nil {
		t.Fatal(err)
	}
	w.kv.Restore(kv.New(), 2)
	o, err := k.Add(t.Context(), "us")
	if err != nil || o.Recovered.Claims != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := w.asked(k, o.Epoch, id, "late"); got != "free" {
		t.Error(got)
	}
}

// A preparation that takes long is given in pieces, each of which stays done.
func TestPrepareInPieces(t *testing.T) {
	w := newWorld(t, "eu", "us")
	w.open("eu")
	const n = 9000
	var es []journal.Entry
	for i := range uint64(n) {
		id := batch(fmt.Sprint("b", i%40), 10*i+1, 10*i+10)
		es = append(es, journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: identity.Sum([]byte(id.String())), Bytes: 5, At: int64(i), MinTime: 1, MaxTime: 2})
		if len(es) == 3000 {
			w.journalled("us", es...)
			es = nil
		}
	}
	c := regions.Config{KV: etcd{w}, Keys: keys, Rand: w.rand, Now: func() int64 { return 7 }, PrepareEntries: 3000}
	for _, n := range []claims.Region{"eu", "us"} {
		c.Regions = append(c.Regions, regions.Region{Name: n, Store: bucket{w, n}})
	}
	k, err := regions.New(c)
	if err != nil {
		t.Fatal(err)
	}
	var at []uint64
	for range 10 {
		p, all, err := k.Prepare(t.Context(), "us", func(regions.Preparation) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		if at = append(at, p.Batches); all {
			break
		}
	}
	if len(at) < 3 || !slices.IsSorted(at) || at[0] >= n || at[len(at)-1] != n {
		t.Errorf("%d batches after each piece", at)
	}
}

// The last region of a linearizer that was dissolved accepts on its own again. What it has accepted since can be prepared, and has to be where it is
// much. What was decided before is folded.
func TestPrepareAfterADissolution(t *testing.T) {
	for _, name := range []claims.Region{"us", "eu"} {
		t.Run("added: "+string(name), func(t *testing.T) {
			w, k, _ := ending(t)
			if _, err := k.Dissolve(t.Context(), "eu"); err != nil {
				t.Fatal(err)
			}
			w.journalled("eu", w.alone("eu", "b", 0, 50)...)
			k = w.bounded(10, 100, "asia", "eu", "us")
			if _, err := k.Add(t.Context(), name); !errors.Is(err, regions.ErrUnprepared) {
				t.Fatalf("much was accepted since: %v", err)
			}
			w.dissolved("refused")
			if p := w.prepare(k, "eu"); p.Batches != 50 || p.Folded != 0 {
				t.Errorf("%+v", p)
			}
			w.dissolved("prepared")
			o, err := k.Add(t.Context(), name)
			if err != nil || o.Recovered.Claims != 0 {
				t.Fatalf("%+v, %v", o, err)
			}
			if got := w.forgotten(k, o.Epoch); len(got) > 0 {
				t.Errorf("%q", got)
			}
			for _, i := range []uint64{0, 49} {
				id, frame := batch("b", 10*i+1, 10*i+10), fmt.Sprint("b", i)
				if got, want := w.asked(k, o.Epoch, id, frame), fmt.Sprintf("DECIDED %d-%d eu %.8s", id.SeqStart, id.SeqEnd, identity.Sum([]byte(frame))); got != want {
					t.Errorf("%s: %s, want %s", id, got, want)
				}
			}
		})
	}
}
