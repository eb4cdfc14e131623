package objectstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// patience bounds every wait; no test measures time.
const patience = 90 * time.Second

// admin asks an admin path and gives the status and the answer.
func admin(t testing.TB, addr, method, path, contentType, in string, to any) int {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+addr+path, strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && to != nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatalf("%s %s: %s: %v", method, path, b, err)
	}
	return resp.StatusCode
}

// settled waits until every body has what the policy wants, and gives the status.
func settled(t testing.TB, addr string, durable int64) (s objectstore.RedundancyStatus) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		admin(t, addr, http.MethodGet, "/redundancy", "", "", &s)
		files, other := int64(0), int64(0)
		for _, f := range s.Files {
			if f.State == "durable" {
				files = f.Files
			} else {
				other += f.Files
			}
		}
		if files == durable && other == 0 && s.Queued == 0 {
			return s
		}
		if time.Now().After(end) {
			var q objectstore.RedundancyLetters
			admin(t, addr, http.MethodGet, "/redundancy/queue", "", "", &q)
			t.Fatalf("%d durable files, want %d: %+v\nqueue %+v", files, durable, s, q)
		}
	}
}

// coded are settings with 2+1 shards on n places.
func coded(t testing.TB, dir string, n int) objectstore.Config {
	c := withPlaces(t, testConfig(dir), n, 2)
	c.Redundancy.Data, c.Redundancy.Parity, c.Redundancy.Threshold = 2, 1, 2<<20
	return c
}

func onPlaces(t testing.TB, c objectstore.Config) (n int) {
	for _, p := range c.Places {
		n += len(filesOf(t, p))
	}
	return n
}

// plainNames checks that an answer has the names of the format and none of Go.
func plainNames(t *testing.T, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k != strings.ToLower(k) {
				t.Errorf("%s.%s is a name of the program", at, k)
			}
			plainNames(t, at+"."+k, e)
		}
	case []any:
		for _, e := range v {
			plainNames(t, at+"[]", e)
		}
	}
}

// TestBodiesBecomeRedundant: what was written is coded or copied, is read without any one place, follows another policy, and goes
// from all places with its object. The admin paths tell it.
func TestBodiesBecomeRedundant(t *testing.T) {
	cfg := coded(t, t.TempDir(), 3)
	s := start(t, cfg)
	c := s.client()
	bodies := map[string][]byte{"copied": append(large(1), 1), "coded": large(3), "large": large(20)[:20<<20-7]}
	for k, b := range bodies {
		put(t, c, k, b)
	}
	st := settled(t, s.AdminAddr(), 2+3+3)
	if n := onPlaces(t, cfg); n != 8 || st.Policy.Version != 1 || len(st.Places) != 4 {
		t.Errorf("%d files, %+v", n, st)
	}
	var raw any
	admin(t, s.AdminAddr(), http.MethodGet, "/redundancy", "", "", &raw)
	plainNames(t, "", raw)
	var list objectstore.RedundancyFiles
	admin(t, s.AdminAddr(), http.MethodGet, "/redundancy/files?state=durable&limit=3", "", "", &list)
	if len(list.Files) != 3 || list.Files[0].State != "durable" || !strings.HasPrefix(list.Files[0].Place, "drive") {
		t.Errorf("%+v", list)
	}
	for path, want := range map[string]int{"/redundancy/files?state=none": 400, "/redundancy/files?place=none": 400, "/redundancy/files?after=x": 400, "/redundancy/files?body=x": 400,
		"/redundancy/dead-letters": 200, "/redundancy/queue": 200} {
		if got := admin(t, s.AdminAddr(), http.MethodGet, path, "", "", nil); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	for _, p := range []struct {
		path, contentType, in string
		want                  int
	}{
		{"/redundancy/scrub", "", "{}", 415}, {"/redundancy/scrub", "text/plain", "{}", 415}, {"/redundancy/scrub", "application/json", "{}", 200},
		{"/redundancy/heal", "application/json; charset=utf-8", "{}", 200},
		{"/redundancy/dead-letters", "application/json", `{"body":"` + strings.Repeat("0", 32) + `","action":"retry"}`, 404},
		{"/redundancy/dead-letters", "application/json", `{"body":"x","action":"burn"}`, 400}, {"/redundancy/dead-letters", "application/json", `[]`, 400},
	} {
		if got := admin(t, s.AdminAddr(), http.MethodPost, p.path, p.contentType, p.in, nil); got != p.want {
			t.Errorf("%s %s %s: %d, want %d", p.path, p.contentType, p.in, got, p.want)
		}
	}
	s.stop()

	for i := range cfg.Places {
		if err := os.Rename(cfg.Places[i].Dir, cfg.Places[i].Dir+"-gone"); err != nil {
			t.Fatal(err)
		}
		s = start(t, cfg)
		for k, b := range bodies {
			if !bytes.Equal(get(t, s.client(), k), b) {
				t.Errorf("%s without place %d is another body", k, i)
			}
		}
		s.stop()
		if err := os.Rename(cfg.Places[i].Dir+"-gone", cfg.Places[i].Dir); err != nil {
			t.Fatal(err)
		}
	}

	cfg.Redundancy.Data, cfg.Redundancy.Copies = 0, 3
	s = start(t, cfg)
	if st := settled(t, s.AdminAddr(), 9); st.Policy.Version != 2 {
		t.Errorf("%+v", st.Policy)
	}
	for k, b := range bodies {
		if !bytes.Equal(get(t, s.client(), k), b) {
			t.Errorf("%s under another policy is another body", k)
		}
		if _, err := s.client().DeleteObject(context.Background(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(k)}); err != nil {
			t.Error(err)
		}
	}
	settled(t, s.AdminAddr(), 0)
	if n := onPlaces(t, cfg); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

// TestWithoutPlaces: a store without places has no ledger and no such paths.
func TestWithoutPlaces(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	if got := admin(t, s.AdminAddr(), http.MethodGet, "/redundancy", "", "", nil); got != 404 {
		t.Errorf("%d", got)
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "ledger")); err == nil {
		t.Error("there is a ledger")
	}
}

// childCoded has the settings of a child with places, as JSON.
const childCoded = "OBJECTSTORE_TEST_CHILD_CODED"

type childSettings struct {
	Places     []objectstore.Place
	Mirrors    []string
	Encryption objectstore.Encryption
	Segments   bool // small segments, which are coded at once
}

// TestKill9WhileRedundant kills a real process at each point of the keeper's work, twice, while objects are written, coded, moved to
// another place and deleted. What was acknowledged is there byte for byte, and in the end each body has just the files of the policy.
func TestKill9WhileRedundant(t *testing.T) {
	t.Parallel() // most of it is waiting
	nths := []int{1, 4}
	// Several at a time: most of it is waiting, for the next look at the places and for fsyncs.
	var all sync.WaitGroup
	defer all.Wait()
	turn := make(chan struct{}, 5)
	for i, p := range failpoint.Points() {
		if !strings.HasPrefix(p.Name, "objectstore.redundancy.") || testing.Short() && i%3 > 0 {
			continue
		}
		for _, nth := range nths {
			turn <- struct{}{}
			all.Go(func() {
				defer func() { <-turn }()
				t.Run(fmt.Sprintf("%s@%d", p.Name, nth), func(t *testing.T) {
					killWhileRedundant(t, fmt.Sprintf("%s=%s@%d", p.Name, failpoint.Kill, nth))
				})
			})
		}
	}
}

func killWhileRedundant(t *testing.T, arm string) {
	dir := t.TempDir()
	cfg := coded(t, dir, 4)
	acked := map[string][]byte{}
	// A first process without the last place: its bodies have to move.
	few := cfg
	few.Places = cfg.Places[:3]
	first := spawnCoded(t, dir, few, "")
	write := func(c *s3.Client, key string, b []byte) {
		if _, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(b)}); err == nil {
			acked[key] = b
		}
	}
	for i := range 12 {
		write(sdk(first.url, testKey, testSecret), fmt.Sprint("first/", i), append(large(2), byte(i)))
	}
	settled(t, first.admin, 36)
	first.kill(t)

	second := spawnCoded(t, dir, cfg, arm)
	c := sdk(second.url, testKey, testSecret) // without an address the process has died already
	for i := range 12 {
		write(c, fmt.Sprint("second/", i), append(large(1+i%2*2), byte(i)))
	}
	for _, key := range []string{"first/0", "second/0"} {
		delete(acked, key) // whether it is deleted depends on when the process dies
		_, _ = c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	}
	ended := make(chan error, 1)
	go func() { ended <- second.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("%s was not reached", arm)
	}

	third := spawnCoded(t, dir, cfg, "")
	c = sdk(third.url, testKey, testSecret)
	want := int64(0)
	left, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range left.Contents {
		want += 2
		if *o.Size >= 2<<20 {
			want++
		}
	}
	settled(t, third.admin, want)
	for key, b := range acked {
		if !bytes.Equal(get(t, c, key), b) {
			t.Errorf("%s is another body", key)
		}
	}
	// What a move has left is found by a listing, which the ledger does not wait for.
	for end := time.Now().Add(patience); int64(onPlaces(t, cfg)) != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			var rows objectstore.RedundancyFiles
			admin(t, third.admin, http.MethodGet, "/redundancy/files?limit=1000", "", "", &rows)
			var names []string
			for _, p := range cfg.Places {
				names = append(names, filesOf(t, p)...)
			}
			t.Fatalf("%d files on the places, want %d: %q\n%+v", len(names), want, names, rows)
		}
	}
	third.kill(t)
}

// process is a store with places in a process of its own.
type process struct {
	cmd        *exec.Cmd
	url, admin string
}

func (p process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // it was killed
}

func spawnCoded(t *testing.T, dir string, cfg objectstore.Config, arm string) process {
	t.Helper()
	settings, err := json.Marshal(childSettings{cfg.Places, cfg.Mirrors, cfg.Encryption, cfg.Redundancy.SegmentsAfter == atOnce})
	if err != nil {
		t.Fatal(err)
	}
	cmd, url, err := launch(t, dir, childCoded+"="+string(settings), failpoint.Env+"="+arm)
	if arm != "" {
		return process{cmd: cmd, url: url} // it may have died before it said its address
	}
	if err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	b, err := os.ReadFile(dir + "-admin-address")
	if err != nil {
		t.Fatal(err)
	}
	return process{cmd, url, string(b)}
}

// childConfig gives a child the settings that its parent wants.
func childConfig(c objectstore.Config) (objectstore.Config, error) {
	if v := os.Getenv(childCoded); v != "" {
		var s childSettings
		if err := json.Unmarshal([]byte(v), &s); err != nil {
			return c, err
		}
		c.Places, c.Mirrors, c.Encryption = s.Places, s.Mirrors, s.Encryption
		c.AckCopies = 2
		c.Redundancy.Data, c.Redundancy.Parity, c.Redundancy.Threshold = 2, 1, 2<<20
		if s.Segments {
			c.Segment, c.InlineObject, c.ReclaimInterval = 256<<10, 32<<10, 100*time.Millisecond
			c.Redundancy.Threshold, c.Redundancy.SegmentsAfter = 64<<10, atOnce
		}
	}
	return c, nil
}
