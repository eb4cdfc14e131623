package objectstore_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// atOnce is how long segments are closed before tests have them coded.
const atOnce = time.Millisecond

// codedSegments are settings of a store with its log on two drives and 4+2 shards on six places, whose closed segments are
// coded at once.
func codedSegments(t *testing.T) objectstore.Config {
	c := withPlaces(t, mirrored(t, 1), 6, 2)
	c.Segment, c.InlineObject = 256<<10, 32<<10
	c.Redundancy.Data, c.Redundancy.Parity, c.Redundancy.Threshold = 4, 2, 64<<10
	c.Redundancy.SegmentsAfter = atOnce
	return c
}

// smalls are small bodies, all different.
func smalls(n int, version byte) map[string][]byte {
	out := map[string][]byte{}
	for i := range n {
		b := bytes.Repeat([]byte{byte(i), version, byte(i >> 8), 7}, 2<<10)
		out[fmt.Sprintf("small/%03d", i)] = b
	}
	return out
}

// waitCoded waits until so many segments are coded and none is to be, and gives the status.
func waitCoded(t *testing.T, addr string, least int) (s objectstore.RedundancyStatus) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s = objectstore.RedundancyStatus{}
		admin(t, addr, http.MethodGet, "/redundancy", "", "", &s)
		if s.Segments.Coded >= least && s.Segments.Waiting == 0 && s.Queued == 0 {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("%d segments are coded, want %d: %+v", s.Segments.Coded, least, s)
		}
	}
}

func wantBodies(t *testing.T, c *s3.Client, what string, bodies map[string][]byte) {
	t.Helper()
	for k, b := range bodies {
		if !bytes.Equal(get(t, c, k), b) {
			t.Errorf("%s: %s is another body", what, k)
		}
	}
}

// TestSegmentsAreCoded: closed segments leave the log's drives, and small objects are read from any four of six places: whole,
// degraded, after a restart, without the index, and behind a drive that comes back with what it had. With three places less each
// object that is there is an error, and none is another. Segments that are not in use are reclaimed with their bodies.
func TestSegmentsAreCoded(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := codedSegments(t)
	s := start(t, cfg)
	bodies := smalls(150, 1)
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	st := waitCoded(t, s.AdminAddr(), 4)
	wantBodies(t, s.client(), "coded", bodies)
	stubs := 0
	for _, dir := range []string{cfg.Dir, cfg.Mirrors[0]} {
		names, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if f, err := os.Stat(n); err != nil {
				t.Fatal(err)
			} else if f.Size() == 256 {
				stubs++
			}
		}
	}
	if stubs != 2*st.Segments.Coded {
		t.Errorf("%d stubs on two drives, and %d segments are coded", stubs, st.Segments.Coded)
	}
	if n := onPlaces(t, cfg); n != 6*st.Segments.Coded {
		t.Errorf("%d files on the places, of %d segments", n, st.Segments.Coded)
	}
	s.stop()

	// The index is built again from footers and stubs.
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	wantBodies(t, s.client(), "without the index", bodies)
	st2 := waitCoded(t, s.AdminAddr(), st.Segments.Coded)
	if st2.Segments.Coded != st.Segments.Coded {
		t.Errorf("%d segments, and %d before", st2.Segments.Coded, st.Segments.Coded)
	}
	s.stop()

	// Places are lost: two, and three.
	hide := func(i int) {
		if err := os.Rename(cfg.Places[i].Dir, cfg.Places[i].Dir+".away"); err != nil {
			t.Fatal(err)
		}
	}
	hide(0)
	hide(3)
	s = start(t, cfg)
	wantBodies(t, s.client(), "two places less", bodies)
	s.stop()
	hide(5)
	s = start(t, cfg)
	failed := 0
	for k, b := range bodies {
		out, err := s.client().GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &k})
		if err != nil {
			failed++
			if _, status := code(err); status != http.StatusServiceUnavailable {
				t.Errorf("%s: %v", k, err)
			}
			continue
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(out.Body); err != nil || !bytes.Equal(got.Bytes(), b) {
			t.Errorf("%s is another body, %v", k, err)
		}
	}
	if failed < len(bodies)/2 {
		t.Errorf("%d of %d objects fail with three places less", failed, len(bodies))
	}
	s.stop()
	for _, i := range []int{0, 3, 5} {
		if err := os.Rename(cfg.Places[i].Dir+".away", cfg.Places[i].Dir); err != nil {
			t.Fatal(err)
		}
	}

	// Every object is written again: the old segments go, and so do their bodies.
	cfg.ReclaimInterval = 100 * time.Millisecond
	s = start(t, cfg)
	wantBodies(t, s.client(), "all places again", bodies)
	bodies = smalls(150, 2)
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		st = waitCoded(t, s.AdminAddr(), 4)
		// 150 objects of 8 KiB are 1.2 MB; twice as much of the log would be the old ones too.
		if n := onPlaces(t, cfg); st.Segments.CodedBytes < 15e5 && n == 6*st.Segments.Coded {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d files on the places: %+v", n, st.Segments)
		}
	}
	wantBodies(t, s.client(), "written again", bodies)
}

// TestLateDriveWithASegment: a drive that was away while segments became bodies gets their stubs, whatever it has.
func TestLateDriveWithASegment(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := codedSegments(t)
	cfg.Redundancy.SegmentsAfter = 0
	s := start(t, cfg)
	bodies := smalls(100, 3)
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	s.stop()
	// What the mirror has now is kept, and comes back later.
	old := cfg.Mirrors[0] + ".old"
	if err := os.CopyFS(old, os.DirFS(cfg.Mirrors[0])); err != nil {
		t.Fatal(err)
	}
	cfg.Redundancy.SegmentsAfter = atOnce
	s = start(t, cfg)
	st := waitCoded(t, s.AdminAddr(), 2)
	put(t, s.client(), "later", []byte("later"))
	bodies["later"] = []byte("later")
	s.stop()
	if err := os.RemoveAll(cfg.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(old, cfg.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	s.waitInSync(2)
	wantBodies(t, s.client(), "with the late drive", bodies)
	if now := waitCoded(t, s.AdminAddr(), 2); now.Segments.Coded != st.Segments.Coded {
		t.Errorf("%d segments are coded, and %d before", now.Segments.Coded, st.Segments.Coded)
	}
	s.stop()
	a, err := filepath.Glob(filepath.Join(cfg.Dir, "log", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range a {
		mine, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join(cfg.Mirrors[0], "log", filepath.Base(name)))
		if err != nil || !bytes.Equal(mine, other) {
			t.Errorf("%s is not the same on both drives: %v", filepath.Base(name), err)
		}
	}
}

// TestLostPlaceNamesSmallObjects: what is lost with places that will not return is told by name also where it is small objects, in segments
// that cannot be read without them: just those, and no other object.
func TestLostPlaceNamesSmallObjects(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := withPlaces(t, mirrored(t, 1), 3, 2)
	cfg.Segment, cfg.InlineObject = 256<<10, 32<<10
	cfg.Redundancy.Data, cfg.Redundancy.Parity, cfg.Redundancy.Threshold = 2, 1, 64<<10
	cfg.Redundancy.SegmentsAfter = atOnce
	s := start(t, cfg)
	bodies := smalls(100, 5)
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	coded := waitCoded(t, s.AdminAddr(), 2).Segments.Coded
	s.stop()
	for _, p := range cfg.Places[1:] {
		if err := os.Rename(p.Dir, p.Dir+"-gone"); err != nil {
			t.Fatal(err)
		}
	}
	cfg.AckCopies, cfg.Redundancy.SegmentsAfter = 1, 0
	s = start(t, cfg)
	bodies["later"] = []byte("in the log")
	put(t, s.client(), "later", bodies["later"])
	give := func(in string, to any) int {
		return admin(t, s.AdminAddr(), http.MethodPost, "/redundancy/places", "application/json", in, to)
	}
	var losses objectstore.PlaceLosses
	if got := give(`{"place":"drive1","action":"lost"}`, &losses); got != 200 || losses.Bodies != 0 || len(losses.Objects) != 0 {
		t.Fatalf("two of three places are enough: %d, %+v", got, losses)
	}
	if got := give(`{"place":"drive2","action":"lost"}`, nil); got != http.StatusConflict {
		t.Errorf("the place that all segments need may go: %d", got)
	}
	if got := give(`{"place":"drive2","action":"lost","force":true}`, &losses); got != 200 || int(losses.Bodies) != coded || len(losses.Objects) < 20 {
		t.Fatalf("%d, %d segments were coded: %+v", got, coded, losses)
	}
	s.stop()
	s = start(t, cfg)
	lost := map[string]bool{}
	for _, o := range losses.Objects {
		if bodies[o.Key] == nil || o.Bucket != bucket || lost[o.Key] {
			t.Errorf("%+v is no object", o)
		}
		lost[o.Key] = true
	}
	for k, b := range bodies {
		if !lost[k] {
			if !bytes.Equal(get(t, s.client(), k), b) {
				t.Errorf("%s is another body", k)
			}
			continue
		}
		if _, err := s.client().GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &k}); err == nil {
			t.Errorf("%s was said to be lost, and is there", k)
		}
	}
}

// TestKill9WhileSegmentsAreCoded kills a real process at each point of a segment's way to the places and of its end, while objects
// are written and replaced. What was acknowledged is there byte for byte, segments go on to be coded, and on the places is just what
// the stubs name.
func TestKill9WhileSegmentsAreCoded(t *testing.T) {
	var all sync.WaitGroup
	defer all.Wait()
	turn := make(chan struct{}, 3)
	points := 0
	for _, p := range failpoint.Points() {
		if !strings.HasPrefix(p.Name, "objectstore.segment.") {
			continue
		}
		points++
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			t.Run(p.Name, func(t *testing.T) { killWhileCoded(t, p.Name+"="+failpoint.Kill+"@2") })
		})
	}
	if points < 5 {
		t.Errorf("%d points", points)
	}
}

func killWhileCoded(t *testing.T, arm string) {
	cfg := withPlaces(t, mirrored(t, 1), 3, 2)
	cfg.Redundancy.SegmentsAfter = atOnce
	first := spawnCoded(t, cfg.Dir, cfg, arm)
	ended := make(chan error, 1)
	go func() { ended <- first.cmd.Wait() }()
	c := sdk(first.url, testKey, testSecret)
	acked := map[string][][]byte{} // the bodies that may be there
	for version, died, end := byte(0), false, time.Now().Add(patience); !died; version++ {
		if time.Now().After(end) {
			t.Fatalf("%s was not reached", arm)
		}
		for k, b := range smalls(100, version) {
			if _, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &k, Body: bytes.NewReader(b)}); err == nil {
				acked[k] = [][]byte{b}
			} else if acked[k] != nil {
				acked[k] = append(acked[k], b) // it may have been written
			}
		}
		// What was written becomes bodies, before the next version makes them superfluous.
		select {
		case <-ended:
			died = true
		case <-time.After(7 * time.Second):
		}
	}
	if len(acked) < 30 {
		t.Fatalf("%d objects were acknowledged", len(acked))
	}
	next := spawnCoded(t, cfg.Dir, cfg, "")
	c = sdk(next.url, testKey, testSecret)
	check := func(what string) {
		t.Helper()
		for k, bodies := range acked {
			got := get(t, c, k)
			if !slices.ContainsFunc(bodies, func(b []byte) bool { return bytes.Equal(b, got) }) {
				t.Errorf("%s: %s is another body", what, k)
			}
		}
	}
	check("after the kill")
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		st := waitCoded(t, next.admin, 1)
		if n := onPlaces(t, cfg); n == 3*st.Segments.Coded {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d files on the places: %+v", n, st.Segments)
		}
	}
	check("coded again")
	next.kill(t)
}
