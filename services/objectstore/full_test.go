//go:build linux

package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// smallFileSystem is set in the process that has a small file system of its own, and names its directory.
const smallFileSystem = "LIGHTMETRICS_SMALL_FILE_SYSTEM"

// TestFullFileSystem: a real file system gets full, of the store's own objects and of another program's file. Writers get
// 507 while the reserve is untouched, and nothing else; what was acknowledged is there; deletes work without a free byte;
// and when there is room, writes are taken again, without a restart.
//
// It runs in a process of its own, in a user and mount namespace with a tmpfs, and is skipped where these are not allowed.
func TestFullFileSystem(t *testing.T) {
	dir := os.Getenv(smallFileSystem)
	if dir == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullFileSystem$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), smallFileSystem+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Start()
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("no namespaces here: %v", err)
		}
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if bytes.Contains(out.Bytes(), []byte("no mount here")) {
			t.Skip("no mount here")
		}
		return
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m"); err != nil {
		fmt.Println("no mount here", err)
		return
	}
	cfg := testConfig(filepath.Join(dir, "store"))
	cfg.Reserve, cfg.Segment, cfg.InlineObject = 16<<20, 2<<20, 128<<10
	cfg.ReclaimInterval, cfg.ReclaimBelow = 50*time.Millisecond, 0.6
	f := &fullStore{t: t, dir: dir, cfg: cfg, there: map[string][]byte{}}
	f.s = start(t, cfg)
	f.fill()
	f.check()
	f.ballast()
	f.deleteHalf()
	f.recover()
	f.check()
	f.s.stop()
	f.s = start(t, cfg)
	f.check()
}

// fullStore is a store on a file system that gets full, and what it has acknowledged.
type fullStore struct {
	t     *testing.T
	dir   string
	cfg   objectstore.Config
	s     *server
	mu    sync.Mutex
	there map[string][]byte
}

func (f *fullStore) body(writer, i int) []byte {
	size := []int{3_000, 100_000, 300_000, 1 << 20}[(writer+i)%4]
	return bytes.Repeat([]byte(fmt.Sprintf("%d/%d;", writer, i)), size/6)
}

func (f *fullStore) put(key string, body []byte) error {
	_, err := f.s.client().PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(body)})
	if err == nil {
		f.mu.Lock()
		f.there[key] = body
		f.mu.Unlock()
	}
	return err
}

// fill lets several writers write until each was refused many times.
func (f *fullStore) fill() {
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i, refused := 0, 0; refused < 5; i++ {
				if err := f.put(fmt.Sprintf("%d/%d", w, i), f.body(w, i)); err != nil {
					wantCode(f.t, err, "InsufficientStorage", 507)
					refused++
				}
			}
		})
	}
	writers.Wait()
	if len(f.there) < 50 {
		f.t.Errorf("only %d objects were taken", len(f.there))
	}
	st, err := os.Stat(filepath.Join(f.cfg.Dir, "RESERVE"))
	if err != nil || st.Size() != int64(f.cfg.Reserve) {
		f.t.Errorf("writers were refused when the reserve was used already: %v", err)
	}
	if free := f.free(); free == 0 {
		f.t.Error("writers have filled the file system to the last byte")
	}
}

func (f *fullStore) free() int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(f.dir, &st); err != nil {
		f.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// ballast fills what is left, as another program.
func (f *fullStore) ballast() {
	b, err := os.Create(filepath.Join(f.dir, "ballast"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer b.Close()
	page := make([]byte, 4096)
	for err == nil {
		_, err = b.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) || f.free() != 0 {
		f.t.Fatalf("%d bytes are free: %v", f.free(), err)
	}
}

// deleteHalf deletes every other object; each delete is an append to the log of a full file system.
func (f *fullStore) deleteHalf() {
	c := f.s.client()
	n := 0
	for k := range f.there {
		if n++; n%2 == 0 {
			continue
		}
		if _, err := c.DeleteObject(context.Background(), &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &k}); err != nil {
			f.t.Fatalf("delete on a full disk: %v", err)
		}
		delete(f.there, k)
	}
}

// recover waits until objects are taken again.
func (f *fullStore) recover() {
	if err := os.Remove(filepath.Join(f.dir, "ballast")); err != nil {
		f.t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := f.put("after", f.body(0, 3))
		if err == nil {
			break
		}
		wantCode(f.t, err, "InsufficientStorage", 507)
		if time.Now().After(end) {
			f.t.Fatal("there is room, and writes are refused")
		}
	}
	for i := range 20 {
		if err := f.put(fmt.Sprintf("after/%d", i), f.body(1, i)); err != nil {
			f.t.Errorf("there is room again: %v", err)
		}
	}
}

func (f *fullStore) check() {
	c := f.s.client()
	for k, body := range f.there {
		if got := get(f.t, c, k); !bytes.Equal(got, body) {
			f.t.Errorf("%s: %d bytes, want %d", k, len(got), len(body))
		}
	}
	out, err := c.ListObjectsV2(context.Background(), &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	if err != nil || len(out.Contents) != len(f.there) {
		f.t.Errorf("%d objects are listed, %d are there: %v", len(out.Contents), len(f.there), err)
	}
}
