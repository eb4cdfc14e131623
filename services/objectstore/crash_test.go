package objectstore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// childDir makes this test binary a store in that directory.
const childDir = "OBJECTSTORE_TEST_CHILD_DIR"

// childPlaces is the number of places of that store, in directories beside its own.
const childPlaces = "OBJECTSTORE_TEST_CHILD_PLACES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

func child(dir string) {
	c := testConfig(dir)
	c.Segment = 1 << 20
	if n, err := strconv.Atoi(os.Getenv(childPlaces)); err == nil {
		c.InlineObject, c.AckCopies = 64<<10, 2
		for i := range n {
			c.Places = append(c.Places, objectstore.Place{Name: fmt.Sprint("drive", i), Dir: fmt.Sprint(dir, "-drive", i)})
		}
	}
	c, err := childConfig(c)
	if err != nil {
		panic(err)
	}
	s, err := objectstore.New(c, objectstore.Deps{})
	if err = errors.Join(err, failpoint.Arm(os.Getenv(failpoint.Env))); err == nil {
		go func() {
			<-s.Ready()
			if err := os.WriteFile(dir+"-admin-address", []byte(s.AdminAddr()), 0o600); err != nil {
				panic(err)
			}
			fmt.Println(s.Addr())
		}()
		err = s.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// spawn starts a store as a process of its own, which must come up.
func spawn(t *testing.T, dir string, env ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd, url, err := launch(t, dir, env...)
	if err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	return cmd, url
}

// launch starts a store as a process of its own. It is an error, and the URL is nobody's, when that ends before it serves.
func launch(t *testing.T, dir string, env ...string) (*exec.Cmd, string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childDir+"="+dir), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		line = "127.0.0.1:1"
	}
	return cmd, "http://" + strings.TrimSpace(line), err
}

// TestKill9LosesNothingAcknowledged: what was answered is there byte for byte after the
// process was killed under load; what was not is absent or whole.
func TestKill9LosesNothingAcknowledged(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	var mu sync.Mutex
	acked, sent := map[string][]byte{}, map[string][]byte{}
	for round := range rounds {
		cmd, url := spawn(t, dir)
		c := sdk(url, testKey, testSecret)
		verify(t, c, acked, sent)
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Add(1)
			wr := rand.New(rand.NewPCG(seed, uint64(round*100+w+1)))
			go func() {
				defer wg.Done()
				for i := 0; ; i++ {
					size := wr.IntN(12000)
					if wr.IntN(25) == 0 {
						size = 1<<20 + wr.IntN(1<<19)
					}
					key := fmt.Sprintf("k/%d/%d/%d", round, w, i)
					body := bytes.Repeat([]byte(key), size/len(key)+1)
					mu.Lock()
					sent[key] = body
					mu.Unlock()
					_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(body), IfNoneMatch: aws.String("*")})
					if err != nil {
						return
					}
					mu.Lock()
					acked[key] = body
					mu.Unlock()
				}
			}()
		}
		time.Sleep(time.Duration(100+rnd.IntN(500)) * time.Millisecond)
		// However slow the disk is, there is something to lose.
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			mu.Lock()
			n := len(acked)
			mu.Unlock()
			if n >= 20*(round+1) {
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		wg.Wait()
		if round%3 == 2 { // the index is only a cache
			if err := os.RemoveAll(dir + "/index"); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, url := spawn(t, dir)
	verify(t, sdk(url, testKey, testSecret), acked, sent)
	t.Logf("%d rounds, %d acknowledged of %d sent", rounds, len(acked), len(sent))
	if len(acked) < 20*rounds {
		t.Errorf("only %d PUTs were acknowledged: nothing was tested", len(acked))
	}
}

func verify(t *testing.T, c *s3.Client, acked, sent map[string][]byte) {
	t.Helper()
	listed := 0
	p := s3.NewListObjectsV2Paginator(c, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	for p.HasMorePages() {
		page, err := p.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			listed++
			if want, ok := sent[*o.Key]; !ok || int64(len(want)) != *o.Size {
				t.Errorf("%s with %d bytes was never sent", *o.Key, *o.Size)
			}
		}
	}
	whole := 0
	for k, body := range sent {
		out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &k})
		var absent *types.NoSuchKey
		if errors.As(err, &absent) {
			if acked[k] != nil {
				t.Errorf("%s was acknowledged and is gone", k)
			}
			continue
		}
		if err != nil {
			t.Fatalf("get %s: %v", k, err)
		}
		whole++
		var b bytes.Buffer
		if _, err := b.ReadFrom(out.Body); err != nil || !bytes.Equal(b.Bytes(), body) {
			t.Errorf("%s: other bytes, %v", k, err)
		}
		if err := out.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if whole != listed {
		t.Errorf("%d objects can be read, %d are listed", whole, listed)
	}
}
