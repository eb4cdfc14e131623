package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	keyed = "stress-versions" // its objects have versions and can be held
	// dueKeys is a prefix of the other bucket, under which a lifecycle rule deletes everything.
	dueKeys = "due/"
)

// TestEverythingAtOnce: clients write, copy, delete, hold and assemble objects of two buckets, one of them with versions and one
// with a quota, while segments are reclaimed, rules delete objects and bodies are sealed with another key. Then the store is
// closed, its index lost now and then, its key rotated, and opened again. What was acknowledged is there, nothing else is, and
// the counters of usage say as much.
func TestEverythingAtOnce(t *testing.T) {
	seeds, rounds, steps := uint64(1), 3, 50
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		seeds, rounds, steps = 50, 6, 400
	} else if testing.Short() {
		rounds, steps = 2, 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { everythingAtOnce(t, seed, rounds, steps) })
	}
}

func everythingAtOnce(t *testing.T, seed uint64, rounds, steps int) {
	const clients = 4
	cfg := testConfig(t.TempDir())
	cfg.Segment, cfg.InlineObject = 256<<10, 64<<10
	cfg.ReclaimInterval, cfg.ReclaimBelow = 20*time.Millisecond, 0.7
	cfg.LifecycleInterval, cfg.LifecycleRate = 20*time.Millisecond, 100_000
	cfg.Encryption.RewriteRate = 1 << 30
	cfg.Quotas = []objectstore.BucketQuota{{Bucket: bucket, Bytes: 1 << 20, Objects: 30}}
	keys := []objectstore.EncryptionKey{{ID: "k0", File: keyFile(t, "00")}}
	cfg.Encryption.Keys, cfg.Encryption.Current = keys, "k0"

	deps := objectstore.Deps{LeastPart: 1}
	s := startWith(t, cfg, deps)
	prepareStress(t, s.client())
	var all []*stressClient
	for i := range clients {
		all = append(all, &stressClient{t: t, n: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), objects: map[stressKey][]stressVersion{}, uploads: map[string]stressUpload{}})
	}
	for round := range rounds {
		var wg sync.WaitGroup
		for _, c := range all {
			c.c = s.client()
			wg.Go(func() {
				for i := 0; i < steps && !t.Failed(); i++ {
					c.step()
				}
			})
		}
		wg.Wait()
		checkStress(t, s, all)
		s.stop()
		if t.Failed() {
			t.Fatalf("seed %d, round %d", seed, round)
		}
		v, err := objectstore.Check(context.Background(), cfg, slog.New(slog.DiscardHandler))
		if err != nil || len(v.Damages)+len(v.Lost) > 0 || v.Uncertain {
			t.Fatalf("the files of the store: %+v, %v", v, err)
		}
		if round%2 == 0 { // the index is only a cache
			if err := os.RemoveAll(filepath.Join(cfg.Dir, "index")); err != nil {
				t.Fatal(err)
			}
		}
		id := fmt.Sprint("k", round+1)
		keys = append(keys, objectstore.EncryptionKey{ID: id, File: keyFile(t, fmt.Sprintf("%02d", round+1))})
		// The key before is needed until nothing has it. The one before that is not: the round had time to seal with another.
		cfg.Encryption.Keys, cfg.Encryption.Current = keys[round:], id
		s = startWith(t, cfg, deps)
		checkStress(t, s, all)
		waitResealed(t, s)
		if t.Failed() {
			t.Fatalf("seed %d, opened behind round %d", seed, round)
		}
	}
	checkStress(t, s, all)
	refused := 0
	for _, c := range all {
		refused += c.refused
	}
	if refused == 0 && steps >= 50 {
		t.Error("the quota has refused nothing: nothing of it was tested")
	}
}

func prepareStress(t *testing.T, c *s3.Client) {
	t.Helper()
	_, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(keyed), ObjectLockEnabledForBucket: aws.Bool(true)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{Bucket: aws.String(bucket),
		LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{ID: aws.String("due"), Status: types.ExpirationStatusEnabled,
			Filter:     &types.LifecycleRuleFilter{Prefix: aws.String(dueKeys)},
			Expiration: &types.LifecycleExpiration{Date: aws.Time(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))}}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// waitResealed waits until no body has another key than the current one.
func waitResealed(t *testing.T, s *server) {
	t.Helper()
	for end := time.Now().Add(patience); keysOf(t, s).RewriteBytes > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("bodies keep the key before: %+v", keysOf(t, s))
		}
	}
}

type stressKey struct{ bucket, key string }

// stressVersion is a version that was acknowledged. Only one of the bucket with versions has an id.
type stressVersion struct {
	id     string
	marker bool
	held   bool
	body   []byte
}

// stressUpload is one that was not completed: its parts count.
type stressUpload struct {
	stressKey
	body []byte
}

// stressClient has keys that no other client writes, so what it was told is what there is.
type stressClient struct {
	t       *testing.T
	c       *s3.Client
	n       int
	rng     *rand.Rand
	objects map[stressKey][]stressVersion // the oldest first
	uploads map[string]stressUpload       // by id
	refused int                           // by the quota
}

func (c *stressClient) pick() stressKey {
	k := fmt.Sprintf("client%d/%d", c.n, c.rng.IntN(5))
	if c.rng.IntN(2) == 0 {
		return stressKey{bucket, k}
	}
	return stressKey{keyed, k}
}

func (c *stressClient) bytes() []byte {
	most := []int{3000, 60_000, 300_000}[c.rng.IntN(3)]
	b := make([]byte, c.rng.IntN(most))
	for i := range b {
		b[i] = byte(c.rng.Uint32())
	}
	return b
}

// written notes a new object, unless the quota refused it.
func (c *stressClient) written(what string, k stressKey, body []byte, version *string, err error) {
	if name, _ := code(err); name == "QuotaExceeded" && k.bucket == bucket {
		c.refused++
		return
	}
	if err != nil {
		c.t.Errorf("%s %s: %v", what, k, err)
		return
	}
	v := stressVersion{id: aws.ToString(version), body: body}
	if k.bucket == keyed {
		c.objects[k] = append(c.objects[k], v)
	} else {
		c.objects[k] = []stressVersion{v}
	}
}

// current gives what a GET of the key gives; nil: nothing.
func (c *stressClient) current(k stressKey) *stressVersion {
	list := c.objects[k]
	if len(list) == 0 || list[len(list)-1].marker {
		return nil
	}
	return &list[len(list)-1]
}

func (c *stressClient) step() {
	k := c.pick()
	switch c.rng.IntN(12) {
	case 0, 1, 2, 3:
		c.put(k)
	case 4:
		c.remove(k)
	case 5, 6:
		c.removeVersion(k)
	case 7:
		c.hold(k)
	case 8:
		c.upload(k)
	case 9:
		c.copy(k, c.pick())
	case 10:
		c.due()
	case 11:
		c.check(k)
	}
}

func (c *stressClient) put(k stressKey) {
	b := c.bytes()
	out, err := c.c.PutObject(ctx, &s3.PutObjectInput{Bucket: &k.bucket, Key: &k.key, Body: bytes.NewReader(b)})
	if err != nil {
		out = &s3.PutObjectOutput{}
	}
	c.written("PUT", k, b, out.VersionId, err)
}

// due puts an object that a rule deletes: nobody can say when.
func (c *stressClient) due() {
	k := fmt.Sprintf("%sclient%d/%d", dueKeys, c.n, c.rng.IntN(10))
	_, err := c.c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &k, Body: bytes.NewReader(c.bytes())})
	if name, _ := code(err); err != nil && name != "QuotaExceeded" {
		c.t.Errorf("PUT %s: %v", k, err)
	}
}

func (c *stressClient) remove(k stressKey) {
	out, err := c.c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &k.bucket, Key: &k.key})
	switch {
	case err != nil:
		c.t.Errorf("DELETE %s: %v", k, err)
	case k.bucket == keyed:
		c.objects[k] = append(c.objects[k], stressVersion{id: aws.ToString(out.VersionId), marker: true})
	default:
		delete(c.objects, k)
	}
}

func (c *stressClient) removeVersion(k stressKey) {
	list := c.objects[k]
	if k.bucket != keyed || len(list) == 0 {
		return
	}
	i := c.rng.IntN(len(list))
	_, err := c.c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &k.bucket, Key: &k.key, VersionId: &list[i].id})
	if list[i].held {
		wantCode(c.t, err, "AccessDenied", 403)
		return
	}
	if err != nil {
		c.t.Errorf("DELETE %s, version %s: %v", k, list[i].id, err)
	}
	c.objects[k] = slices.Delete(list, i, i+1)
}

func (c *stressClient) hold(k stressKey) {
	list := c.objects[k]
	if k.bucket != keyed || len(list) == 0 {
		return
	}
	v := &list[c.rng.IntN(len(list))]
	if v.marker {
		return
	}
	to := types.ObjectLockLegalHoldStatusOn
	if v.held {
		to = types.ObjectLockLegalHoldStatusOff
	}
	if _, err := c.c.PutObjectLegalHold(ctx, &s3.PutObjectLegalHoldInput{Bucket: &k.bucket, Key: &k.key, VersionId: &v.id, LegalHold: &types.ObjectLockLegalHold{Status: to}}); err != nil {
		c.t.Errorf("hold %s, version %s: %v", k, v.id, err)
		return
	}
	v.held = !v.held
}

// upload sends parts, and completes the upload, aborts it, or leaves it.
func (c *stressClient) upload(k stressKey) {
	up, err := c.c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &k.bucket, Key: &k.key})
	if err != nil {
		c.t.Errorf("upload %s: %v", k, err)
		return
	}
	var b []byte
	var parts []types.CompletedPart
	for n := range int32(1 + c.rng.IntN(3)) {
		piece := c.bytes()
		part, err := c.c.UploadPart(ctx, &s3.UploadPartInput{Bucket: &k.bucket, Key: &k.key, UploadId: up.UploadId, PartNumber: aws.Int32(n + 1), Body: bytes.NewReader(piece)})
		if name, _ := code(err); name == "QuotaExceeded" && k.bucket == bucket {
			c.refused++
			continue
		}
		if err != nil {
			c.t.Errorf("part of %s: %v", k, err)
			return
		}
		b, parts = append(b, piece...), append(parts, types.CompletedPart{PartNumber: aws.Int32(n + 1), ETag: part.ETag})
	}
	switch c.rng.IntN(4) {
	case 0:
		if _, err := c.c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &k.bucket, Key: &k.key, UploadId: up.UploadId}); err != nil {
			c.t.Errorf("abort %s: %v", k, err)
		}
		return
	case 1, 2:
		if parts == nil {
			break
		}
		out, err := c.c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &k.bucket, Key: &k.key, UploadId: up.UploadId,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
		if err != nil {
			out = &s3.CompleteMultipartUploadOutput{}
		}
		c.written("complete", k, b, out.VersionId, err)
		if err == nil {
			return
		}
	}
	c.uploads[*up.UploadId] = stressUpload{k, b}
}

func (c *stressClient) copy(from, to stressKey) {
	v := c.current(from)
	if v == nil || from == to {
		return
	}
	out, err := c.c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &to.bucket, Key: &to.key, CopySource: aws.String(from.bucket + "/" + from.key)})
	if err != nil {
		out = &s3.CopyObjectOutput{}
	}
	c.written("copy "+from.key+" to", to, v.body, out.VersionId, err)
}

// check reads a key, and one of its versions.
func (c *stressClient) check(k stressKey) {
	c.read(k, "", c.current(k))
	if list := c.objects[k]; k.bucket == keyed && len(list) > 0 {
		if v := &list[c.rng.IntN(len(list))]; !v.marker {
			c.read(k, v.id, v)
		}
	}
}

func (c *stressClient) read(k stressKey, version string, want *stressVersion) {
	c.t.Helper()
	in := &s3.GetObjectInput{Bucket: &k.bucket, Key: &k.key}
	if version != "" {
		in.VersionId = &version
	}
	out, err := c.c.GetObject(ctx, in)
	if want == nil {
		if name, _ := code(err); name != "NoSuchKey" {
			c.t.Errorf("GET %s, which is deleted: %v", k, err)
		}
		return
	}
	if err != nil {
		c.t.Errorf("GET %s, version %q: %v", k, version, err)
		return
	}
	got, err := io.ReadAll(out.Body)
	err = errors.Join(err, out.Body.Close())
	if err != nil || !bytes.Equal(got, want.body) || version != "" && aws.ToString(out.VersionId) != version {
		c.t.Errorf("GET %s, version %q: %d bytes, want %d: %v", k, version, len(got), len(want.body), err)
	}
}

// checkStress compares everything with what the clients were told, and the counters with a count of that.
func checkStress(t *testing.T, s *server, all []*stressClient) {
	t.Helper()
	c := s.client()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: aws.String(dueKeys)})
		if err == nil && len(left.Contents) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d objects that are due stay, %v", len(left.Contents), err)
		}
	}
	bytesOf, countOf := map[string]int64{}, map[string]int64{}
	want := map[string]bool{} // versions
	for _, client := range all {
		client.c = c
		for k, list := range client.objects {
			client.read(k, "", client.current(k))
			for i := range list {
				v := &list[i]
				if k.bucket == keyed {
					want[fmt.Sprint(k.key, " ", v.id, " ", v.marker, " ", i == len(list)-1)] = true
				}
				if v.marker {
					continue
				}
				bytesOf[k.bucket] += int64(len(v.body))
				countOf[k.bucket]++
				if k.bucket == keyed {
					client.read(k, v.id, v)
				}
			}
		}
		for _, u := range client.uploads {
			bytesOf[u.bucket] += int64(len(u.body))
		}
	}
	compareVersions(t, c, want)
	var report objectstore.UsageReport
	if got := admin(t, s.AdminAddr(), "GET", "/usage", "", "", &report); got != 200 {
		t.Fatalf("/usage: %d", got)
	}
	for _, u := range report.Buckets {
		if u.Bytes != bytesOf[u.Bucket] || u.Objects != countOf[u.Bucket] {
			t.Errorf("usage of %s: %d bytes in %d objects, and there are %d in %d", u.Bucket, u.Bytes, u.Objects, bytesOf[u.Bucket], countOf[u.Bucket])
		}
	}
}

// compareVersions wants just these versions in the bucket that has them.
func compareVersions(t *testing.T, c *s3.Client, want map[string]bool) {
	t.Helper()
	got := map[string]bool{}
	pages := s3.NewListObjectVersionsPaginator(c, &s3.ListObjectVersionsInput{Bucket: aws.String(keyed), MaxKeys: aws.Int32(50)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Versions {
			got[fmt.Sprint(*v.Key, " ", *v.VersionId, " ", false, " ", *v.IsLatest)] = true
		}
		for _, v := range page.DeleteMarkers {
			got[fmt.Sprint(*v.Key, " ", *v.VersionId, " ", true, " ", *v.IsLatest)] = true
		}
	}
	for v := range want {
		if !got[v] {
			t.Errorf("the listing of versions misses %s", v)
		}
	}
	for v := range got {
		if !want[v] {
			t.Errorf("the listing of versions has %s", v)
		}
	}
}
