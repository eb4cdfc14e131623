package robustness

import (
	"context"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// clashes takes the identity that the agent uses next, with the agent's own spool id, as a
// copy of its queue would: the agent's batch is a conflict then, and is parked. It is always the
// very next one, so that no gap stays when the agent notices and begins a new boot.
type clashes struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	n      int
	tries  int
	boot   string // of the last identity that was taken
	end    uint64
	start  time.Time // of the first frame's samples; each has a second of its own, over all begins
	// open are frames that may be accepted although no answer came. Their sender does not forget them: what nobody was
	// answered for is found by the next audit alone.
	open []openFrame
}

// openFrame is a frame without an outcome.
type openFrame struct {
	boot  identity.Boot
	spool string
	body  []byte
}

func newClashes() *clashes { return &clashes{start: time.Now().Add(-time.Hour)} }

const clashEvery = 250 * time.Millisecond

// begin starts it, until stop.
func (x *clashes) begin(ctx context.Context, c *cluster.Cluster) {
	ctx, x.cancel = context.WithCancel(ctx)
	x.wg.Add(1)
	go func() {
		defer x.wg.Done()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(clashEvery):
			}
			if x.clash(ctx, c) {
				x.n++
			}
		}
	}()
}

// clash is one try; the agent may be down, or ahead already: then it is a conflict of ours.
func (x *clashes) clash(ctx context.Context, c *cluster.Cluster) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := c.AgentStatus(ctx)
	if err != nil {
		return false
	}
	s := load.NewSender(identity.Boot{Agent: st.Boot.AgentID, Boot: st.Boot.BootID}, c.Addr.Collectors[0].GRPC, c.Addr.Collectors[1].GRPC)
	s.Spool = st.Boot.SpoolID
	defer s.Close()
	x.tries++
	at := x.start.Add(time.Duration(x.tries) * time.Second)
	body, err := load.Frame(s.Boot, "clash", st.Boot.NextSeq, agentBatch/2, at, 1)
	if err != nil {
		return false
	}
	x.boot, x.end = s.Boot.Boot, st.Boot.NextSeq+agentBatch-1 // without an answer it may be taken, too
	r, err := s.Send(ctx, body)
	if err != nil {
		x.open = append(x.open, openFrame{s.Boot, s.Spool, body})
	}
	return err == nil && r.GetStatus().String() == load.Accepted
}

// met sends what has no outcome until it has one, and waits until the agent has closed the batch whose identity was taken
// last. Stopped before that it would close a shorter one, and two identities would overlap.
func (x *clashes) met(ctx context.Context, c *cluster.Cluster) error {
	for _, f := range x.open {
		s := load.NewSender(f.boot, c.Addr.Collectors[0].GRPC, c.Addr.Collectors[1].GRPC)
		s.Spool = f.spool
		_, err := s.Send(ctx, f.body)
		s.Close()
		if err != nil {
			return err
		}
	}
	x.open = nil
	return cluster.Poll(ctx, "the agent to meet the last clash", func() (bool, error) {
		st, err := c.AgentStatus(ctx)
		return err == nil && (st.Boot.BootID != x.boot || st.Boot.NextSeq > x.end), err
	})
}

// stop gives how many identities were taken in all.
func (x *clashes) stop() int {
	x.cancel()
	x.wg.Wait()
	return x.n
}
