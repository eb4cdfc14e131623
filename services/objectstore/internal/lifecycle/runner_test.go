package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

const bucket = "bkt"

var ctx = context.Background()

// store is an engine with a bucket and its rules.
type store struct {
	*engine.Engine
	t    *testing.T
	done map[string]int
}

func open(t *testing.T, rules string, versioning engine.Versioning) *store {
	t.Helper()
	e, err := engine.Open(engine.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(run) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := e.CreateBucketWith(ctx, engine.Bucket{Name: bucket, Created: at("2014-01-01T00:00:00"), Settings: map[string][]byte{
		Setting: []byte("<LifecycleConfiguration>" + rules + "</LifecycleConfiguration>")}}); err != nil {
		t.Fatal(err)
	}
	if versioning != engine.Unversioned {
		if err := e.SetVersioning(ctx, bucket, versioning); err != nil {
			t.Fatal(err)
		}
	}
	return &store{e, t, map[string]int{}}
}

func (s *store) put(key, when string, tags ...engine.Pair) {
	s.t.Helper()
	if _, err := s.Put(ctx, engine.Object{Bucket: bucket, Key: key, Size: 4, ETag: "e", Modified: at(when), Tags: tags}, []byte("body"), engine.Cond{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) remove(key, when string) {
	s.t.Helper()
	if _, err := s.Delete(ctx, bucket, engine.Deletion{Key: key, Modified: at(when)}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) pass(now string, wait func(context.Context, int) error) {
	r := &Runner{Engine: s.Engine, Log: slog.New(slog.DiscardHandler), Wait: wait, Observe: func(action string, n int) { s.done[action] += n }}
	r.Pass(ctx, at(now))
}

// versions gives what is there: the key, and what it is.
func (s *store) versions() (list []string) {
	s.t.Helper()
	page, err := s.Versions(bucket, engine.VersionQuery{Max: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range page.Versions {
		kind := v.Modified.UTC().Format("02")
		if v.Marker {
			kind += " marker"
		}
		list = append(list, v.Key+" "+kind)
	}
	return list
}

func (s *store) want(when string, want ...string) {
	s.t.Helper()
	if got := s.versions(); !slices.Equal(got, want) {
		s.t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func TestObjectsExpire(t *testing.T) {
	s := open(t, rule("r", "<And><Prefix>logs/</Prefix><Tag><Key>a</Key><Value>b</Value></Tag></And>", inThreeDays)+rule("s", "<Prefix>tmp/</Prefix>", inThreeDays), engine.Unversioned)
	tag := engine.Pair{Name: "a", Value: "b"}
	s.put("logs/a", "2014-01-15T10:00:00", tag)
	s.put("logs/b", "2014-01-15T10:00:00")
	s.put("logs/c", "2014-01-17T10:00:00", tag)
	s.put("tmp/a", "2014-01-15T10:00:00")
	s.put("zzz", "2014-01-15T10:00:00", tag)
	cursor, _ := s.End()
	s.pass("2014-01-18T23:59:59", nil)
	s.want("too early", "logs/a 15", "logs/b 15", "logs/c 17", "tmp/a 15", "zzz 15")
	s.pass("2014-01-19T00:00:00", nil)
	s.want("on the day", "logs/b 15", "logs/c 17", "zzz 15")
	if s.done["expire"] != 2 {
		t.Errorf("%v", s.done)
	}
	events, _, _, err := s.Tail(cursor).Read(10, func(*engine.Event) bool { return true })
	if err != nil || len(events) != 2 || !events[0].Expired || !events[0].Removed || events[0].Marker {
		t.Errorf("the events: %+v %v", events, err)
	}
}

func TestVersionsExpire(t *testing.T) {
	s := open(t, rule("r", "", inThreeDays+oldButTwo), engine.Enabled)
	for day := 1; day <= 5; day++ {
		s.put("a", fmt.Sprintf("2014-01-%02dT10:00:00", day))
	}
	s.put("b", "2014-01-01T10:00:00")
	s.remove("b", "2014-01-02T10:00:00")
	s.put("c", "2014-01-09T10:00:00")
	// a: 5 is current and due on the 9th; 4 and 3 are kept as the newest; 2 has been noncurrent since the 3rd, 1 since the 2nd.
	s.pass("2014-01-05T00:00:00", nil)
	s.want("5th", "a 05", "a 04", "a 03", "a 02", "b 02 marker", "b 01", "c 09")
	s.pass("2014-01-06T00:00:00", nil)
	s.want("6th", "a 05", "a 04", "a 03", "b 02 marker", "b 01", "c 09")
	s.pass("2014-01-09T00:00:00", nil)
	s.want("9th: a marker on top, which makes 3 the third", "a 09 marker", "a 05", "a 04", "a 03", "b 02 marker", "b 01", "c 09")
	if s.done["expire"] != 1 || s.done["remove"] != 2 {
		t.Errorf("%v", s.done)
	}
	s.pass("2014-01-10T00:00:00", nil)
	s.want("10th", "a 09 marker", "a 05", "a 04", "b 02 marker", "b 01", "c 09")
}

// A delete marker that hides nothing goes; those of suspended buckets too, and null versions by their name.
func TestMarkersExpire(t *testing.T) {
	s := open(t, rule("r", "", markersToo+old), engine.Enabled)
	s.put("a", "2014-01-01T10:00:00")
	s.remove("a", "2014-01-02T10:00:00")
	s.remove("never", "2014-01-02T10:00:00")
	s.pass("2014-01-03T00:00:00", nil)
	s.want("one hides a version", "a 02 marker", "a 01")
	s.pass("2014-01-05T00:00:00", nil)
	s.want("the version goes", "a 02 marker")
	s.pass("2014-01-05T00:00:00", nil)
	s.want("and its marker")
	if err := s.SetVersioning(ctx, bucket, engine.Suspended); err != nil {
		t.Fatal(err)
	}
	s.put("null", "2014-01-01T10:00:00")
	if err := s.SetVersioning(ctx, bucket, engine.Enabled); err != nil {
		t.Fatal(err)
	}
	s.put("null", "2014-01-03T10:00:00")
	s.pass("2014-01-06T00:00:00", nil)
	s.want("a null version that is old", "null 03")
}

// What was written after it was looked at stays, and a configuration that is taken back ends the pass.
func TestLifecycleDeletesOnlyWhatItSaw(t *testing.T) {
	s := open(t, rule("r", "", inThreeDays), engine.Unversioned)
	s.put("a", "2014-01-01T10:00:00")
	s.put("b", "2014-01-01T10:00:00")
	s.put("c", "2014-01-01T10:00:00")
	s.pass("2014-02-01T00:00:00", func(context.Context, int) error {
		s.put("a", "2014-01-31T10:00:00")
		_, err := s.SetTags(ctx, bucket, "b", "", []engine.Pair{{Name: "x", Value: "y"}})
		return err
	})
	s.want("overwritten and tagged meanwhile", "a 31", "b 01")
	s.pass("2014-02-01T00:00:00", func(context.Context, int) error { return s.SetSetting(ctx, bucket, Setting, nil) })
	s.want("without the rules", "a 31", "b 01")
}

func TestUploadsAreAborted(t *testing.T) {
	s := open(t, rule("r", "<Prefix>in/</Prefix>", "<AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation></AbortIncompleteMultipartUpload>"), engine.Unversioned)
	for _, key := range []string{"in/a", "else", "in/b"} {
		if _, err := s.CreateUpload(ctx, engine.Object{Bucket: bucket, Key: key, Modified: at("2014-01-01T10:00:00")}); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		page, err := s.Uploads(bucket, engine.UploadQuery{Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Uploads)
	}
	s.pass("2014-01-03T23:00:00", nil)
	if n := left(); n != 3 {
		t.Errorf("%d uploads before they are due", n)
	}
	s.pass("2014-01-04T00:00:00", nil)
	if n := left(); n != 1 || s.done["abort"] != 2 {
		t.Errorf("%d uploads are left, %v", n, s.done)
	}
}

// More versions than a page, and more deletions than a batch, at a rate.
func TestLifecyclePages(t *testing.T) {
	s := open(t, rule("r", "<Prefix>x/</Prefix>", inThreeDays), engine.Unversioned)
	var gone []engine.Deletion
	for i := range pageSize + 250 {

		gone = append(gone, engine.Deletion{Key: fmt.Sprintf("x/%05d", i)})
	}
	writers := make(chan engine.Deletion)
	ended := make(chan error, 32)
	for range 32 {
		go func() {
			var err error
			for d := range writers {
				_, perr := s.Put(ctx, engine.Object{Bucket: bucket, Key: d.Key, Size: 4, ETag: "e", Modified: at("2014-01-01T10:00:00")}, []byte("body"), engine.Cond{})
				if perr != nil {
					err = perr
				}
			}
			ended <- err
		}()
	}
	for _, d := range gone {
		writers <- d
	}
	close(writers)
	for range 32 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	s.put("y", "2014-01-01T10:00:00")
	waited := 0
	s.pass("2014-02-01T00:00:00", func(_ context.Context, n int) error {
		waited += n
		return nil
	})
	s.want("all that the rule selects are gone", "y 01")
	if waited != len(gone) {
		t.Errorf("waited for %d of %d deletions", waited, len(gone))
	}
	if s.pass("2014-02-01T00:00:00", nil); s.done["expire"] != len(gone) {
		t.Errorf("%v", s.done)
	}
}

// A lock keeps a version from the rules, pass after pass, and nobody is warned of it: it is counted.
func TestLockedVersionsStay(t *testing.T) {
	s := open(t, rule("r", "", old), engine.Enabled)
	keep := engine.Lock{Mode: engine.Compliance, Until: at("2030-01-01T00:00:00")}
	for _, o := range []engine.Object{{Key: "held", Lock: engine.Lock{Hold: "ON"}}, {Key: "kept", Lock: keep}, {Key: "free"}} {
		o.Bucket, o.Size, o.ETag, o.Modified = bucket, 4, "e", at("2014-01-01T10:00:00")
		if _, err := s.Put(ctx, o, []byte("body"), engine.Cond{}); err != nil {
			t.Fatal(err)
		}
		s.put(o.Key, "2014-01-02T10:00:00")
	}
	var log strings.Builder
	locked := 0
	r := &Runner{Engine: s.Engine, Log: slog.New(slog.NewTextHandler(&log, nil)), Locked: func(n int) { locked += n }}
	for pass := 1; pass <= 3; pass++ {
		r.Pass(ctx, at("2014-02-01T00:00:00"))
		s.want("locked", "free 02", "held 02", "held 01", "kept 02", "kept 01")
		if locked != 2*pass || strings.Contains(log.String(), "WARN") || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("pass %d: %d were locked, %s", pass, locked, log.String())
		}
	}
}
