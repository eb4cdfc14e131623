package objectstore_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

const (
	racers = 64
	// raceGroup is how many keys have a prefix in common, which is listed while they are raced for, and are raced for at
	// the same time.
	raceGroup = 4
	// listPause is between two listings.
	listPause = 2 * time.Millisecond
)

// raceKeys is how many keys are raced for: few in a run of the tests, 1,000 in a long one.
func raceKeys(t *testing.T) int {
	if v := os.Getenv("RACE_KEYS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("RACE_KEYS=%q: want a positive number", v)
		}
		return n
	}
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		return 1000
	}
	return raceGroup
}

// race is a store under load and the clock of its histories.
type race struct {
	t     *testing.T
	c     *s3.Client
	start time.Time
	// versions: the bucket has them.
	versions bool

	requests, lists atomic.Int64
}

func (r *race) now() int64 { return time.Since(r.start).Nanoseconds() }

// TestRacers: 64 clients send the same conditional request for the same key at the same moment, for each kind of request
// and condition, and at last any of them, and exactly one wins where only one can. For each key one order explains all
// answers, those of the listings meanwhile included: a key whose write ended before a listing began is there, and one whose
// delete ended before, and that nobody wrote since, is not.
//
// In a bucket with versions every write that succeeded has left a version, and every delete a marker, and nothing else has.
func TestRacers(t *testing.T) {
	for _, versions := range []bool{false, true} {
		t.Run(fmt.Sprintf("versions=%t", versions), func(t *testing.T) {
			s := start(t, testConfig(t.TempDir()))
			pool := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: (racers + 1) * raceGroup}}
			r := &race{t: t, c: s.client(func(o *s3.Options) { o.HTTPClient = pool }), start: time.Now(), versions: versions}
			if versions {
				if _, err := r.c.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{Bucket: aws.String(bucket),
					VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}}); err != nil {
					t.Fatal(err)
				}
			}
			keys := raceKeys(t)
			for from := 0; from < keys && !t.Failed(); from += raceGroup {
				r.group(from, min(raceGroup, keys-from))
			}
			t.Logf("%d racers, %d keys, %d requests, %d listings", racers, keys, r.requests.Load(), r.lists.Load())
		})
	}
}

// group races for n keys and checks their histories.
func (r *race) group(from, n int) {
	prefix := fmt.Sprintf("race/%06d/", from)
	end, listings := make(chan struct{}), make(chan []listing)
	go func() { listings <- r.list(prefix, end) }()
	histories := make([][]porcupine.Operation, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { histories[i] = r.key(fmt.Sprintf("%s%d", prefix, i), uint64(from+i)) })
	}
	wg.Wait()
	close(end)
	seen := <-listings
	if r.versions {
		r.checkVersions(prefix, histories)
	}
	for i, ops := range histories {
		key := fmt.Sprintf("%s%d", prefix, i)
		wg.Go(func() {
			for _, l := range seen {
				ops = append(ops, porcupine.Operation{ClientId: racers, Input: keyOp{kind: "read"}, Call: l.from, Return: l.to, Output: keyState(l.etags[key])})
			}
			if ok, why := orderExplains(ops); !ok {
				r.t.Errorf("%s: no order explains these answers: %s", key, why)
			}
		})
	}
	wg.Wait()
}

// checkVersions compares the versions below a prefix with the requests that succeeded.
func (r *race) checkVersions(prefix string, histories [][]porcupine.Operation) {
	type made struct {
		key, etag string // "" is a delete marker
	}
	left := map[made]int{}
	for i, ops := range histories {
		for _, o := range ops {
			if changes(o) {
				left[made{fmt.Sprintf("%s%d", prefix, i), o.Input.(keyOp).etag}]++
			}
		}
	}
	p := s3.NewListObjectVersionsPaginator(r.c, &s3.ListObjectVersionsInput{Bucket: aws.String(bucket), Prefix: &prefix, MaxKeys: aws.Int32(7)})
	for p.HasMorePages() {
		page, err := p.NextPage(ctx)
		if err != nil {
			r.t.Error(err)
			return
		}
		for _, v := range page.Versions {
			left[made{*v.Key, unquoted(v.ETag)}]--
		}
		for _, m := range page.DeleteMarkers {
			left[made{*m.Key, ""}]--
		}
	}
	for m, n := range left {
		if n != 0 {
			r.t.Errorf("%+v: %d writes more than versions", m, n)
		}
	}
}

// listing is what a LIST of all pages showed, and when it began and ended.
type listing struct {
	from, to int64
	etags    map[string]string
}

// list lists a prefix until end is closed, in pages of several sizes, and once more.
func (r *race) list(prefix string, end chan struct{}) (all []listing) {
	for last := false; !last; {
		select {
		case <-end:
			last = true
		default:
		}
		l := listing{from: r.now(), etags: map[string]string{}}
		p := s3.NewListObjectsV2Paginator(r.c, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: &prefix, MaxKeys: aws.Int32(int32(1 + len(all)%5))})
		for p.HasMorePages() {
			page, err := p.NextPage(ctx)
			if err != nil {
				r.t.Error(err)
				return nil
			}
			for _, o := range page.Contents {
				l.etags[*o.Key] = unquoted(o.ETag)
			}
		}
		l.to = r.now()
		all = append(all, l)
		r.lists.Add(1)
		time.Sleep(listPause)
	}
	return all
}

// key lets all race for a key, request by request.
func (r *race) key(key string, seed uint64) (ops []porcupine.Operation) {
	now := "" // the ETag
	wave := func(kind string, none, match bool) {
		op := keyOp{kind: kind, none: none}
		if match {
			op.match = now
		}
		var winners int
		more := r.wave(key, func(int) keyOp { return op }, len(ops))
		for _, o := range more {
			if o.Output == any(200) {
				winners++
				now = o.Input.(keyOp).etag
			}
		}
		if winners != 1 {
			r.t.Errorf("%s: %d of %d racers won: %+v", key, winners, racers, op)
		}
		ops = append(ops, more...)
	}
	wave("put", true, false)
	wave("put", false, true)
	wave("complete", false, true)
	wave("copy", false, true)
	wave("delete", false, true)
	wave("complete", true, false)
	wave("delete", false, true)
	wave("copy", true, false)
	etags := []string{now, "0123456789abcdef0123456789abcdef"}
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := []string{"put", "copy", "complete", "delete", "read"}
	// Anything, on any condition, and now and then on none. The ETags that the wave itself writes are not known before it.
	return append(ops, r.wave(key, func(int) keyOp {
		op := keyOp{kind: kinds[rng.IntN(len(kinds))]}
		switch n := rng.IntN(12); {
		case op.kind == "read" || n == 0:
		case n < 6 && op.kind != "delete":
			op.none = true
		default:
			op.match = etags[rng.IntN(len(etags))]
		}
		return op
	}, len(ops))...)
}

// wave sends one request of each racer at the same moment.
func (r *race) wave(key string, draw func(racer int) keyOp, nth int) []porcupine.Operation {
	ops := make([]porcupine.Operation, racers)
	drawn := make([]keyOp, racers)
	for i := range drawn {
		drawn[i] = draw(i)
	}
	var ready, done sync.WaitGroup
	ready.Add(racers)
	for i := range racers {
		done.Go(func() {
			op, run := drawn[i].prepare(r.t, r.c, key, fmt.Appendf(nil, "%s %d %d", key, nth, i))
			ready.Done()
			ready.Wait()
			from := r.now()
			out := run()
			ops[i] = porcupine.Operation{ClientId: i, Input: op, Call: from, Return: r.now(), Output: out}
			r.requests.Add(1)
		})
	}
	done.Wait()
	return ops
}
