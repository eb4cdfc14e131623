package arrivals

import (
	"context"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// maxSegments bounds the segments whose frames wait to be asked for. What has no room is read from the store later.
	maxSegments = 256
	// callsAtOnce bounds the calls of a worker for frames.
	callsAtOnce = 4
)

// FrameKeeper keeps frames that collectors sent.
type FrameKeeper interface {
	Has(sum identity.Digest) bool
	Put(sum identity.Digest, raw []byte)
}

// named are batches of one segment that are of this worker's shards.
type named struct {
	run     journal.RunID
	batches []accepted.Batch
}

// taker takes the frames of what arrives from the collectors that have them in memory.
type taker struct {
	peers *peerframes.Set
	keep  FrameKeeper // nil takes none
	named chan named
}

func newTaker(c *Config) *taker {
	return &taker{peers: c.Peers, keep: c.Frames, named: make(chan named, maxSegments)}
}

// want asks for the frames of what arrived, later: whoever follows the journal waits for no collector.
func (t *taker) want(run journal.RunID, of map[shard.ID][]accepted.Batch) {
	if t.keep == nil || !t.peers.Hinted(run) {
		return
	}
	n := named{run: run}
	for _, batches := range of {
		n.batches = append(n.batches, batches...)
	}
	if len(n.batches) == 0 {
		return
	}
	select {
	case t.named <- n:
	default:
	}
}

// run takes what is wanted until ctx ends.
func (t *taker) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range callsAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case n := <-t.named:
					t.take(ctx, n)
				}
			}
		})
	}
	return g.Wait()
}

func (t *taker) take(ctx context.Context, n named) {
	for len(n.batches) > 0 && ctx.Err() == nil {
		var call []accepted.Batch
		var bytes uint64
		for len(n.batches) > 0 {
			b := n.batches[0]
			wanted := peerframes.Fits(&b, 0, 0) && !t.keep.Has(b.FrameSHA256)
			if wanted && !peerframes.Fits(&b, len(call), bytes) {
				break
			}
			if n.batches = n.batches[1:]; wanted {
				call, bytes = append(call, b), bytes+b.FrameBytes
			}
		}
		p := t.peers.Of(n.run)
		if p == nil || len(call) == 0 {
			return
		}
		p.Read(ctx, call, func(i int, raw []byte) { t.keep.Put(call[i].FrameSHA256, raw) })
	}
}
