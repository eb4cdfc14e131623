package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestDirectoriesOfTheStoreAreItsOwn: a place in a drive of the store, or a drive in another one, would lose its files when the
// drives are compared, or be copied into itself.
func TestDirectoriesOfTheStoreAreItsOwn(t *testing.T) {
	for _, c := range []struct {
		place   string
		mirrors []string
		want    string // empty: taken
	}{
		{"/x/place", []string{"/x/mirror", "/x/mirror2"}, ""},
		{"/x", []string{"/x/mirror"}, ""}, // a drive's root, with a directory of the store on it
		{"/x/..place", []string{"/x/mirror"}, ""},
		{"/x/mirror", []string{"/x/mirror"}, "the store's own"},
		{"/x/mirror/bodies", []string{"/y", "/x/mirror"}, "the store's own"},
		{"/store/bodies", nil, "the store's own"},
		{"/x/place", []string{"/store/mirror"}, "below another"},
		{"/x/place", []string{"/"}, "below another"},
		{"/x/place", []string{"/x/mirror", "/x/mirror/"}, "there twice"},
	} {
		cfg := testConfig("/store")
		cfg.Places, cfg.Mirrors = []objectstore.Place{{Name: "a", Dir: c.place}}, c.mirrors
		err := cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s with %v: %v, want %q", c.place, c.mirrors, err, c.want)
		}
	}
}

// withPlaces adds local places to settings, each in a directory of its own.
func withPlaces(t testing.TB, c objectstore.Config, n, ack int) objectstore.Config {
	t.Helper()
	root := t.TempDir()
	c.AckCopies = ack
	for i := range n {
		p := objectstore.Place{Name: fmt.Sprintf("drive%d", i), Dir: filepath.Join(root, fmt.Sprint("drive", i))}
		if err := os.Mkdir(p.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		c.Places = append(c.Places, p)
	}
	return c
}

func large(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n<<20/16) }

// files are the copies and shards of a place.
func filesOf(t testing.TB, p objectstore.Place) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(p.Dir, "files", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestBodiesOnPlaces: large bodies have their copies on places; one that goes does no harm, and with
// fewer than ack_copies there are no weaker writes.
func TestBodiesOnPlaces(t *testing.T) {
	cfg := withPlaces(t, testConfig(t.TempDir()), 3, 2)
	s := start(t, cfg)
	c := s.client()
	b := large(3)
	put(t, c, "large", b)
	put(t, c, "small", []byte("in the log"))
	n := 0
	for _, p := range cfg.Places {
		n += len(filesOf(t, p))
	}
	if n != 2 {
		t.Errorf("%d copies", n)
	}
	if blobs, _ := filepath.Glob(filepath.Join(cfg.Dir, "blobs", "*", "*")); len(blobs) > 0 {
		t.Errorf("below dir: %v", blobs)
	}
	s.stop()
	// One drive is gone.
	if err := os.Rename(cfg.Places[0].Dir, cfg.Places[0].Dir+"-gone"); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	c = s.client()
	if !bytes.Equal(get(t, c, "large"), b) {
		t.Error("another body without a drive")
	}
	put(t, c, "again", b)
	s.stop()
	// And another one: writes of large bodies are refused, small ones and reads are served.
	if err := os.Rename(cfg.Places[1].Dir, cfg.Places[1].Dir+"-gone"); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	c = s.client()
	_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("refused"), Body: bytes.NewReader(b)})
	wantCode(t, err, "ServiceUnavailable", 503)
	put(t, c, "small2", []byte("x"))
	if !bytes.Equal(get(t, c, "again"), b) {
		t.Error("another body without two drives")
	}
	s.stop()
	for _, p := range cfg.Places[:2] {
		if err := os.Rename(p.Dir+"-gone", p.Dir); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, cfg)
	c = s.client()
	put(t, c, "refused", b)
	for _, key := range []string{"large", "again", "refused"} {
		if !bytes.Equal(get(t, c, key), b) {
			t.Errorf("%s is another body", key)
		}
		if _, err := c.DeleteObject(context.Background(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)}); err != nil {
			t.Error(err)
		}
	}
	for _, p := range cfg.Places {
		if left := filesOf(t, p); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestPlacesThatAreOutAreNotDamage: a body whose places are all out is 503, and whole when they are
// back; nothing is written down as lost.
func TestPlacesThatAreOutAreNotDamage(t *testing.T) {
	cfg := withPlaces(t, testConfig(t.TempDir()), 2, 2)
	s := start(t, cfg)
	b := large(2)
	put(t, s.client(), "key", b)
	s.stop()
	for _, p := range cfg.Places {
		if err := os.Rename(p.Dir, p.Dir+"-gone"); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, cfg)
	_, err := s.client().GetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("key")})
	wantCode(t, err, "ServiceUnavailable", 503)
	s.stop()
	if _, err := objectstore.Check(context.Background(), cfg, telemetry.Discard().Log); err == nil || !strings.Contains(err.Error(), "drive0") {
		t.Errorf("check without the places: %v", err)
	}
	for _, p := range cfg.Places {
		if err := os.Rename(p.Dir+"-gone", p.Dir); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, cfg)
	if !bytes.Equal(get(t, s.client(), "key"), b) {
		t.Error("another body")
	}
}

// TestPlacesOfAnEarlierStore: a store that gets places reads the bodies from before, and does not
// start without the places afterwards.
func TestPlacesOfAnEarlierStore(t *testing.T) {
	plain := testConfig(t.TempDir())
	s := start(t, plain)
	b := large(2)
	put(t, s.client(), "before", b)
	s.stop()
	earlier, err := filepath.Glob(filepath.Join(plain.Dir, "blobs", "*", "*"))
	if err != nil || len(earlier) != 1 {
		t.Fatal(earlier, err)
	}
	cfg := withPlaces(t, plain, 2, 2)
	s = start(t, cfg)
	c := s.client()
	put(t, c, "after", b)
	for _, key := range []string{"before", "after"} {
		if !bytes.Equal(get(t, c, key), b) {
			t.Errorf("%s is another body", key)
		}
	}
	s.stop()
	without, err := objectstore.New(plain, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := without.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "places") {
		t.Errorf("started without places: %v", err)
	}
	ctx, log := context.Background(), telemetry.Discard().Log
	if _, err := objectstore.Repair(ctx, plain, log); err == nil || !strings.Contains(err.Error(), "places") {
		t.Errorf("repaired without places: %v", err)
	}
	v, err := objectstore.Check(ctx, cfg, log)
	if err != nil || v.Objects != 2 || len(v.Lost)+len(v.Damages) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
	// Both copies of the later body are damaged: it is lost, and said so by key. The earlier one may be on places by now.
	for _, p := range cfg.Places {
		for _, name := range filesOf(t, p) {
			if strings.HasPrefix(filepath.Base(name), filepath.Base(earlier[0])) {
				continue
			}
			f, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f[1<<20] ^= 1
			if err := os.WriteFile(name, f, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	v, err = objectstore.Check(ctx, cfg, log)
	if err != nil || len(v.Lost) != 1 || v.Lost[0].Key != "after" {
		t.Errorf("%+v, %v", v, err)
	}
	r, err := objectstore.Repair(ctx, cfg, log)
	if err != nil || len(r.Lost) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	c = start(t, cfg).client()
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("after")})
	wantCode(t, err, "ObjectDamaged", 500)
	if !bytes.Equal(get(t, c, "before"), b) {
		t.Error("another body")
	}
}

// TestReplacedPlace: a blank drive is used when somebody says so.
func TestReplacedPlace(t *testing.T) {
	cfg := withPlaces(t, testConfig(t.TempDir()), 2, 2)
	s := start(t, cfg)
	put(t, s.client(), "key", large(2))
	if err := objectstore.ReplacePlace("drive1", cfg.Dir); !errors.Is(err, objectstore.ErrLocked) {
		t.Errorf("replaced while the store runs: %v", err)
	}
	s.stop()
	if err := errors.Join(os.Rename(cfg.Places[1].Dir, cfg.Places[1].Dir+"-old"), os.Mkdir(cfg.Places[1].Dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	write := func(c *s3.Client, key string) error {
		_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(large(2))})
		return err
	}
	s = start(t, cfg)
	wantCode(t, write(s.client(), "b"), "ServiceUnavailable", 503)
	s.stop()
	if err := objectstore.ReplacePlace("drive1", cfg.Dir); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	if err := write(s.client(), "b"); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(get(t, s.client(), "key"), large(2)) {
		t.Error("another body")
	}
}

// TestKillAtPlaces kills a store with places at each point of their files. What was answered is there
// afterwards, and nothing that was not finished.
func TestKillAtPlaces(t *testing.T) {
	points := 0
	for _, p := range failpoint.Points() {
		if !strings.HasPrefix(p.Name, "objectstore.place.") {
			continue
		}
		points++
		t.Run(p.Name, func(t *testing.T) {
			dir := t.TempDir()
			for i := range 3 {
				if err := os.Mkdir(fmt.Sprint(dir, "-drive", i), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd, url := spawn(t, dir, childPlaces+"=3", failpoint.Env+"="+p.Name+"=kill@5")
			body := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 'x'}, 100<<10+i) }
			var acked []int
			c := sdk(url, testKey, testSecret)
			for i := range 50 {
				_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(fmt.Sprint(i)), Body: bytes.NewReader(body(i))})
				if err != nil {
					break
				}
				acked = append(acked, i)
			}
			if len(acked) == 50 {
				t.Fatal("it was not killed")
			}
			_ = cmd.Process.Kill() // where it refused and was not killed: the files say what happened
			_ = cmd.Wait()
			if cmd.ProcessState.String() != "signal: killed" {
				t.Errorf("it ended with %s", cmd.ProcessState)
			}
			cmd, url = spawn(t, dir, childPlaces+"=3")
			c = sdk(url, testKey, testSecret)
			for _, i := range acked {
				if !bytes.Equal(get(t, c, fmt.Sprint(i)), body(i)) {
					t.Errorf("%d is another body", i)
				}
			}
			list, err := c.ListObjectsV2(context.Background(), &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
			if err != nil || len(list.Contents) < len(acked) || len(list.Contents) > len(acked)+1 {
				t.Fatalf("%d objects, %d answers, %v", len(list.Contents), len(acked), err)
			}
			files, err := filepath.Glob(filepath.Join(dir+"-drive*", "files", "*", "*"))
			if err != nil || len(files) != 2*len(list.Contents) {
				t.Errorf("%d files of %d bodies, %v", len(files), len(list.Contents), err)
			}
			left, err := filepath.Glob(filepath.Join(dir+"-drive*", "tmp", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("unfinished: %v, %v", left, err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	if points < 6 {
		t.Errorf("%d points", points)
	}
}

// TestPlaceSettings: what cannot work is refused before the start.
func TestPlaceSettings(t *testing.T) {
	dir := func(name, d string) objectstore.Place { return objectstore.Place{Name: name, Dir: d} }
	far := objectstore.Place{Name: "far", Endpoint: "https://store:9000", Bucket: "places", AccessKeyID: "A", Secret: "secret"}
	for name, c := range map[string]struct {
		places []objectstore.Place
		ack    int
		want   string // empty: taken
	}{
		"two":             {[]objectstore.Place{dir("a", "/x/a"), dir("b", "/x/b")}, 2, ""},
		"with a bucket":   {[]objectstore.Place{dir("a", "/x/a"), far}, 1, ""},
		"only a bucket":   {[]objectstore.Place{far}, 1, "ack_copies"},
		"too many copies": {[]objectstore.Place{dir("a", "/x/a"), far}, 2, "ack_copies"},
		"no copy":         {[]objectstore.Place{dir("a", "/x/a")}, 0, "ack_copies"},
		"same name":       {[]objectstore.Place{dir("a", "/x/a"), dir("a", "/x/b")}, 1, "twice"},
		"same directory":  {[]objectstore.Place{dir("a", "/x/a"), dir("b", "/x/a/")}, 1, "same place"},
		"the store's":     {[]objectstore.Place{dir("a", "/store/")}, 1, "same place"},
		"no name":         {[]objectstore.Place{dir("", "/x/a")}, 1, "needs a name"},
		"bad name":        {[]objectstore.Place{dir("a/b", "/x/a")}, 1, "needs a name"},
		"before places":   {[]objectstore.Place{dir("before-places", "/x/a")}, 1, "before places"},
		"the log":         {[]objectstore.Place{dir("(log)", "/x/a")}, 1, "needs a name"},
		"both":            {[]objectstore.Place{{Name: "a", Dir: "/x/a", Bucket: "b"}}, 1, "settings of a bucket"},
		"neither":         {[]objectstore.Place{{Name: "a"}, dir("b", "/x/b")}, 1, "needs a dir"},
		"no secret":       {[]objectstore.Place{dir("b", "/x/b"), {Name: "far", Endpoint: "https://x", Bucket: "places"}}, 1, "access_key_id"},
		"no url":          {[]objectstore.Place{dir("b", "/x/b"), {Name: "far", Endpoint: "x", Bucket: "places", AccessKeyID: "A", Secret: "s"}}, 1, "no URL"},
	} {
		cfg := testConfig("/store")
		cfg.Places, cfg.AckCopies = c.places, c.ack
		err := cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
