package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// tryEvery is how often an agent tries a collector that does not answer.
const tryEvery = 5 * time.Millisecond

// fleet is connections of agents to one collector, one each.
type fleet struct {
	conns []*grpc.ClientConn
	// pace is waited for before each batch; nil is as fast as the answers come.
	pace *rate.Limiter
	// acked is called with each batch's place in its feed when its acknowledgement came, of each stream in turn; it may be nil.
	acked func(int)
}

func newFleet(addr string, agents int) (*fleet, error) {
	f := &fleet{}
	for range agents {
		// As an agent opens its connection, but for the time between attempts.
		c, err := rpc.Dial(addr, rpc.ClientConfig{},
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: tryEvery, Multiplier: 1, MaxDelay: tryEvery}, MinConnectTimeout: time.Second}),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(readyMade{}), grpc.MaxCallSendMsgSize(16<<20)))
		if err != nil {
			f.close()
			return nil, err
		}
		f.conns = append(f.conns, c)
	}
	return f, nil
}

func (f *fleet) close() {
	for _, c := range f.conns {
		c.Close()
	}
}

// readyMade sends request messages that were marshalled beforehand: what is measured
// is the collector.
type readyMade struct{}

func (readyMade) Name() string { return "proto" }

func (readyMade) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (readyMade) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

// sent is what a fleet's run gave.
type sent struct {
	acked   map[identity.Batch]identity.Digest
	times   []time.Duration // from the sending of each batch to its acknowledgement
	took    time.Duration
	retries int
}

var streamDesc = &grpc.StreamDesc{StreamName: "StreamBatches", ServerStreams: true, ClientStreams: true}

// send opens one stream for each feed, then sends all batches with so many in flight
// on each stream, and waits for every acknowledgement.
func (f *fleet) send(ctx context.Context, fs []feed, window int) (sent, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := make([]*agentStream, len(fs))
	for i := range fs {
		st, err := openStream(ctx, f.conns[i], fs[i])
		if err != nil {
			return sent{}, err
		}
		st.pace, st.acked = f.pace, f.acked
		streams[i] = st
	}
	all := sent{acked: map[identity.Batch]identity.Digest{}}
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for _, st := range streams {
		wg.Go(func() {
			times, retries, err := st.run(ctx, window)
			if err != nil {
				err = fmt.Errorf("%s: %w", st.feed.boot, err)
				cancel()
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil { // what follows is the cancellation
				failed = err
			}
			all.times, all.retries = append(all.times, times...), all.retries+retries
		})
	}
	wg.Wait()
	all.took = time.Since(start)
	for _, st := range streams {
		for _, b := range st.feed.batches {
			all.acked[b.id] = b.sum
		}
	}
	return all, failed
}

type agentStream struct {
	feed  feed
	grpc  grpc.ClientStream
	pace  *rate.Limiter
	acked func(int)
}

// openStream says hello and waits for the welcome.
func openStream(ctx context.Context, c *grpc.ClientConn, f feed) (*agentStream, error) {
	st, err := c.NewStream(ctx, streamDesc, ingestv1.IngestService_StreamBatches_FullMethodName, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	hello, err := proto.Marshal(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: &ingestv1.Hello{
		AgentId: f.boot.Agent, BootId: f.boot.Boot, SpoolId: "bench-spool", NextSeq: 1}}})
	if err != nil {
		return nil, err
	}
	var m ingestv1.StreamBatchesResponse
	if err := errors.Join(st.SendMsg(&hello), st.RecvMsg(&m)); err != nil {
		return nil, fmt.Errorf("hello of %s: %w", f.boot, err)
	}
	if m.GetWelcome() == nil {
		return nil, fmt.Errorf("hello of %s was answered %v", f.boot, &m)
	}
	return &agentStream{feed: f, grpc: st}, nil
}

// run sends the feed. RETRY is sent again after its delay; any other answer but
// ACCEPTED (DUPLICATE after a RETRY) is an error.
func (st *agentStream) run(ctx context.Context, window int) (times []time.Duration, retries int, err error) {
	began := make([]time.Time, len(st.feed.batches))
	at := make(map[uint64]int, len(began))
	due := make(chan int, window) // never more than the window is under way
	var mu sync.Mutex
	sendErr := make(chan error, 1)
	go func() {
		for i := range due {
			if st.pace != nil {
				if err := st.pace.Wait(ctx); err != nil {
					sendErr <- err
					return
				}
			}
			mu.Lock()
			if began[i].IsZero() {
				began[i] = time.Now()
			}
			mu.Unlock()
			if err := st.grpc.SendMsg(&st.feed.batches[i].wire); err != nil {
				sendErr <- err
				return
			}
		}
		sendErr <- st.grpc.CloseSend()
	}()
	defer close(due)
	next := 0
	for i, b := range st.feed.batches {
		at[b.id.SeqStart] = i
	}
	for ; next < min(window, len(began)); next++ {
		due <- next
	}
	for len(times) < len(began) {
		var m ingestv1.StreamBatchesResponse
		if err := st.grpc.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return times, retries, err
		}
		r := m.GetResult()
		i, ok := at[r.GetSeqStart()]
		switch {
		case !ok:
			return times, retries, fmt.Errorf("answer to an unknown batch: %v", &m)
		case r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_RETRY:
			retries++
			select {
			case <-time.After(r.GetRetryDelay().AsDuration()):
			case <-ctx.Done():
				return times, retries, ctx.Err()
			}
			due <- i
			continue
		case r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED,
			r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE && retries > 0:
		default:
			return times, retries, fmt.Errorf("batch %s: %v", st.feed.batches[i].id, r)
		}
		if d, err := identity.DigestFromBytes(r.GetFrameSha256()); err != nil || d != st.feed.batches[i].sum {
			return times, retries, fmt.Errorf("batch %s was acknowledged as %x", st.feed.batches[i].id, r.GetFrameSha256())
		}
		mu.Lock()
		times = append(times, time.Since(began[i]))
		mu.Unlock()
		if st.acked != nil {
			st.acked(i)
		}
		if next < len(began) {
			due <- next
			next++
		}
	}
	return times, retries, nil
}
