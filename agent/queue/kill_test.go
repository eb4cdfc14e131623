package queue

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// childEnv makes the test binary the child that is killed.
const childEnv = "LIGHTMETRICS_TEST_QUEUE_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child appends and acks without end. Each line that it prints is a promise.
func child(dir string) error {
	o := testOptions()
	o.SegmentBytes = 16 << 10
	q, err := Open(vfs.OS, dir, o)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(time.Now().UnixNano())))
	for i := 0; ; i++ {
		size := rng.IntN(4000)
		var frames [][]byte
		p := Part{Records: 1 + rng.Uint64N(9), Encode: func(id identity.Batch) ([]byte, error) {
			b := frameOf(id, fmt.Sprint(rng.Uint64()), size)
			frames = append(frames, b)
			return b, nil
		}}
		es, err := q.Append(p, p)
		if err != nil {
			return err
		}
		for k, e := range es {
			sum := identity.Sum(frames[k])
			fmt.Printf("queued %s %d %d %s\n", hex.EncodeToString([]byte(e.Identity.Boot)), e.Identity.SeqStart, e.Identity.SeqEnd, sum)
		}
		for list := q.Pending(0, 100); len(list) > 20; list = q.Pending(0, 100) {
			e := list[rng.IntN(len(list))]
			fmt.Printf("acking %s %d %d\n", hex.EncodeToString([]byte(e.Identity.Boot)), e.Identity.SeqStart, e.Identity.SeqEnd)
			if err := q.Ack(e.No); err != nil {
				return err
			}
		}
	}
}

// TestKill9UnderLoad kills a loaded child 25 times over one directory. Every promised batch
// is there byte for byte, the numbers go on without a gap or a reuse, the boot stays.
func TestKill9UnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := filepath.Join(t.TempDir(), "q")
	promised := map[string]identity.Digest{} // "boot start end" to hash
	acked := map[string]bool{}
	seen := map[string]identity.Digest{}
	var boot string
	var top uint64 // greatest number that was seen anywhere
	for round := range 25 {
		lines := killChild(t, dir, 1+rng.IntN(60))
		for _, l := range lines {
			f := strings.Fields(l)
			key := strings.Join(f[1:4], " ")
			end, err := strconv.ParseUint(f[3], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			top = max(top, end)
			switch f[0] {
			case "queued":
				d, err := identity.ParseDigest(f[4])
				if err != nil {
					t.Fatal(err)
				}
				if old, ok := seen[key]; ok && old != d {
					t.Fatalf("round %d: %s was there with other bytes", round, key)
				}
				promised[key], seen[key] = d, d
			case "acking":
				acked[key] = true
			default:
				t.Fatalf("child: %s", l)
			}
		}
		q, err := Open(vfs.OS, dir, testOptions())
		if err != nil {
			t.Fatal(err)
		}
		b, _, next := q.Boot()
		if boot == "" {
			boot = b.Boot
		}
		if b.Boot != boot {
			t.Fatalf("round %d: boot %s, want %s", round, b.Boot, boot)
		}
		there := map[string]bool{}
		for _, e := range q.Pending(0, 1<<20) {
			frame, err := q.Frame(e.No)
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf("%s %d %d", hex.EncodeToString([]byte(e.Identity.Boot)), e.Identity.SeqStart, e.Identity.SeqEnd)
			if !bytes.HasPrefix(frame, []byte(e.Identity.String()+"|")) {
				t.Fatalf("round %d: %s has the bytes of another", round, e.Identity)
			}
			if want, ok := seen[key]; ok && identity.Sum(frame) != want {
				t.Fatalf("round %d: %s changed", round, e.Identity)
			}
			there[key], seen[key], top = true, identity.Sum(frame), max(top, e.Identity.SeqEnd)
		}
		for key := range promised {
			if !there[key] && !acked[key] {
				t.Fatalf("round %d: %s was promised and is lost", round, key)
			}
		}
		if next != top+1 {
			t.Fatalf("round %d: next is %d after %d", round, next, top)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(promised) < 100 {
		t.Fatalf("only %d batches in all", len(promised))
	}
	t.Logf("%d batches promised over 25 kills", len(promised))
}

// killChild runs a child until it has made n promises, kills it, and returns all
// whole lines that it printed.
func killChild(t *testing.T, dir string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	r := bufio.NewReader(out)
	for {
		l, err := r.ReadString('\n')
		if err != nil {
			break
		}
		lines = append(lines, strings.TrimSpace(l))
		if len(lines) == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // killed
	if len(lines) < n {
		t.Fatalf("child ended by itself: %q", lines)
	}
	return lines
}
