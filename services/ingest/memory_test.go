package ingest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// collectorEnv makes the test binary a collector of its own, so that its memory can be read.
const collectorEnv = "LIGHTMETRICS_TEST_COLLECTOR"

// sink is a store that forgets the bytes of blobs, and is slow to take them.
type sink struct {
	objstore.Store
	mu    sync.Mutex
	blobs map[string]objstore.Info
}

func (s *sink) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if objstore.Family(key) != "raw-blobs" {
		return s.Store.Create(ctx, key, body, o)
	}
	time.Sleep(50 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.blobs[key]; ok {
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrExists}
	}
	i := objstore.Info{Key: key, Size: int64(len(body)), SHA256: identity.Sum(body)}
	s.blobs[key] = i
	return i, nil
}

func (s *sink) Head(ctx context.Context, key string) (objstore.Info, error) {
	s.mu.Lock()
	i, ok := s.blobs[key]
	s.mu.Unlock()
	if ok {
		return i, nil
	}
	return s.Store.Head(ctx, key)
}

// serveCollector is the child process: a collector until its input ends.
func serveCollector() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cfg := testConfig()
	ingest.LimitMemory(cfg)
	s, err := ingest.New(cfg, ingest.Deps{Store: &sink{Store: mem.New(time.Now), blobs: map[string]objstore.Info{}}, Telemetry: telemetry.Discard()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		<-s.Ready()
		fmt.Println(s.GRPCAddr())
	}()
	if err := s.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestMemoryWith64AgentsAt4MiB holds a collector with its default limits to 256 MiB
// while 64 agents have frames of nearly 4 MiB on their way.
func TestMemoryWith64AgentsAt4MiB(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc/<pid>/status")
	}
	if testing.Short() {
		t.Skip("moves a gigabyte")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), collectorEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("collector: %v", err)
		}
	}()
	line := bufio.NewScanner(out)
	if !line.Scan() {
		t.Fatal("the collector did not start")
	}
	address := line.Text()
	const agents, rounds = 64, 3
	boots := make([]identity.Boot, agents)
	for i := range boots {
		boots[i] = identity.Boot{Agent: fmt.Sprintf("agent-%02d", i), Boot: "b"}
	}
	frames := bigFrames(t, boots, 0, 4<<20-64<<10)
	t.Logf("%d agents, %d frames of %d bytes each", agents, rounds, len(frames[0]))
	var wg sync.WaitGroup
	var shed atomic.Int64
	for i := range agents {
		wg.Go(func() { shed.Add(sendAndWait(t, address, boots[i], frames[i], rounds)) })
	}
	wg.Wait()
	t.Logf("%d answers were RETRY", shed.Load())
	peak := statusKiB(t, cmd.Process.Pid, "VmHWM")
	t.Logf("peak resident memory of the collector: %d MiB", peak>>10)
	if peak > 256<<10 {
		t.Errorf("peak resident memory is %d MiB, want at most 256", peak>>10)
	}
}

// sendAndWait sends a frame several times, as fast as the collector takes it, and again when
// it is told to retry or loses its connection.
func sendAndWait(t *testing.T, address string, b identity.Boot, f []byte, rounds int) (shed int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	for done := 0; done < rounds; {
		n, told, err := sendOver(ctx, address, b, f, rounds-done)
		done, shed = done+n, shed+told
		switch {
		case err == nil:
		case status.Code(err) != codes.Unavailable || ctx.Err() != nil:
			t.Errorf("%s: %v", b.Agent, err)
			return shed
		default: // not ready yet, or others waited for the slot of a slow connection
			time.Sleep(20 * time.Millisecond)
		}
	}
	return shed
}

// sendOver sends a frame several times over one stream; it gives how many were answered finally and how many with RETRY.
func sendOver(ctx context.Context, address string, b identity.Boot, f []byte, rounds int) (done int, shed int64, err error) {
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	st, err := ingestv1.NewIngestServiceClient(conn).StreamBatches(ctx)
	if err != nil {
		return 0, 0, err
	}
	_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: &ingestv1.Hello{AgentId: b.Agent, BootId: b.Boot}}})
	if _, err = st.Recv(); err != nil {
		return 0, 0, err
	}
	due := make(chan struct{}, rounds) // a frame that is shed is due again
	defer close(due)
	for range rounds {
		due <- struct{}{}
	}
	go func() {
		for range due { // an error shows in Recv
			_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}})
		}
	}()
	for done < rounds {
		m, err := st.Recv()
		if err != nil {
			return done, shed, err
		}
		switch m.GetResult().GetStatus() {
		case ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED, ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE:
			done++
		case ingestv1.BatchStatus_BATCH_STATUS_RETRY:
			shed++
			due <- struct{}{}
		default:
			return done, shed, fmt.Errorf("answered %v", m)
		}
	}
	return done, shed, nil
}

// statusKiB reads a field of /proc/<pid>/status.
func statusKiB(t testing.TB, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s", field)
	return 0
}
