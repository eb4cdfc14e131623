package badinput

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// maxResident is what a collector may hold at most, whatever comes in.
const maxResident = 512 << 20

// bombs are the frames that are sent at once.
func bombs(t *testing.T) map[string][]byte {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	noise := make([]byte, 4<<20-64)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	custom := func(payload []byte, decoded int64) []byte {
		p := newPlan(t)
		p.zstd, p.payload, p.decoded = true, payload, decoded
		return p.build(t)
	}
	padded := func(zeros, pad int) []byte { return squeeze(t, append(make([]byte, zeros), noise[:pad]...)) }
	window := expand(t, "28b52ffd 40 a8 4a00 010000", nil)
	strings := expand(t, `0a16 0a06 "host-1" 1202 "b1" 1805 2006`, nil)
	strings[1] = byte(len(strings) - 2)
	// 3 MiB of columns that unfold to 450 MiB of strings.
	front := append(strings, expand(t, `12 v1000002 00 00 1000000*7f 1a v1000002 08 7f 1000000*01 22 v1000135 "__name__" 127*61 1000000*62`, nil)...)
	return map[string][]byte{
		"64 MiB at the ratio bound":     custom(padded(64<<20-700_000, 700_000), 64<<20),
		"64 MiB of zeros":               cook(t, []string{"zeros=67108864"}),
		"claims 4 GiB":                  custom(noise, 0xffffffff),
		"4 MiB that claim 64 MiB":       custom(noise, 64<<20),
		"zstd of zstd of zeros":         custom(squeeze(t, padded(64<<20, 0)), 64<<20),
		"window of 2 GiB":               custom(window, 330),
		"more than is declared":         custom(padded(60<<20, 700_000), 50<<20),
		"strings that unfold, plain":    func() []byte { p := newPlan(t); p.payload = front; return p.build(t) }(),
		"a million labels":              cook(t, []string{"g.3=v1000000", "g.4=1000000*01", "g.5=1000000*02"}),
		"plain noise of 4 MiB":          func() []byte { p := newPlan(t); p.payload = noise; return p.build(t) }(),
		"right length, wrong in itself": custom(padded(32<<20, 400_000), 32<<20+400_000),
	}
}

// TestBombs sends 64 of them at once to a collector of its own process, beside good batches.
func TestBombs(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("needs /proc to read the peak of resident memory")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "lightmetrics")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/lightmetrics").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := cluster.New(cluster.Options{Bin: bin, Dir: dir, Collectors: 1, Adjust: func(process string, settings map[string]any) {
		if process == settings["id"] { // the collector
			settings["limits"] = map[string]any{"future": 0} // frames of the corpus have fixed times
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.StopAll)
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	if err := c.StartStore(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.StartCollector(ctx, 0); err != nil {
		t.Fatal(err)
	}
	store, err := c.OpenStore(ctx)
	if err != nil {
		t.Fatal(err)
	}
	addr := c.Addr.Collectors[0]
	conn, err := rpc.Dial(addr.GRPC, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := ingestv1.NewIngestServiceClient(conn)
	kinds := bombs(t)
	names := make([]string, 0, len(kinds))
	for n := range kinds {
		names = append(names, n)
	}
	before := listing(t, store)
	var bombing, good sync.WaitGroup
	var refused, told atomic.Int64
	done := make(chan struct{})
	var accepted int
	good.Go(func() {
		for i := uint64(0); ; i++ {
			select {
			case <-done:
				return
			default:
			}
			_, err := client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: goodFrame(t, "good", "boot", 2*i)})
			switch {
			case err == nil:
				accepted++
			case rpc.RetryAfter(err) == 0:
				t.Errorf("a good batch among bombs: %v", err)
			}
		}
	})
	for i := range 64 {
		f, name := kinds[names[i%len(names)]], names[i%len(names)]
		bombing.Go(func() {
			for { // until the answer is final: a collector may tell a sender to come back
				if i%2 == 0 {
					_, err := client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: f})
					if rpc.RetryAfter(err) > 0 && ctx.Err() == nil {
						told.Add(1)
						time.Sleep(20 * time.Millisecond)
						continue
					}
					if reason := rpc.Reason(err); reason == "" || reason == rpc.ReasonInternal {
						t.Errorf("%s: %v", name, err)
					}
				} else {
					status, reason := postFrame(t, addr.HTTP, f)
					if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && ctx.Err() == nil {
						told.Add(1)
						time.Sleep(20 * time.Millisecond)
						continue
					}
					if status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge || reason == "" {
						t.Errorf("%s: %d %s", name, status, reason)
					}
				}
				refused.Add(1)
				return
			}
		})
	}
	bombing.Wait()
	close(done)
	good.Wait()
	if accepted == 0 {
		t.Error("no good batch was accepted among the bombs")
	}
	for key := range listing(t, store) {
		if _, ok := before[key]; ok {
			continue
		}
		if id, err := layout.ParseAccepted(key); err == nil && id.Agent != "good" {
			t.Errorf("written: %s", key)
		} else if strings.HasPrefix(key, "boots/") && !strings.Contains(key, layout.HexText("good")) {
			t.Errorf("written: %s", key)
		}
	}
	hwm := peak(t, c.Collectors[0].Pid())
	t.Logf("%d bombs refused, told %d times to come back, %d good batches accepted, peak resident %d MiB", refused.Load(), told.Load(), accepted, hwm>>20)
	if hwm >= maxResident {
		t.Errorf("the collector held %d MiB, at most %d MiB were meant", hwm>>20, maxResident>>20)
	}
	if refused.Load() != 64 {
		t.Errorf("%d of 64 bombs got a final answer", refused.Load())
	}
}

// peak is VmHWM of a process, bytes.
func peak(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestBombsAreBombs: none of them is a frame that holds.
func TestBombsAreBombs(t *testing.T) {
	for name, f := range bombs(t) {
		if _, err := frame.Inspect(f, frame.Limits{}); err == nil {
			t.Errorf("%s: holds", name)
		} else {
			t.Logf("%s (%d bytes): %v", name, len(f), err)
		}
	}
}
