package regions

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// session is a query's stream in one region. Its goroutines begin with the first request and end with close.
type session struct {
	q    *Query
	peer *peer
	left foreign.Limits // of the goroutine that receives
	wake chan struct{}
	done chan struct{} // closed when its goroutines have ended; nil before the first request

	mu           sync.Mutex
	contributed  bool // something of the region was used in this evaluation
	cancel       context.CancelFunc
	last         uint64 // number of the last request
	queue        []*queryv1.ReadRequest
	pending      map[uint64]*request
	lost         *Failure // the region is not in the answer
	ended        *Failure // it is, and can't be asked again
	completeness *queryv1.Completeness
	unknown      []string // tokens
}

// request is one request and its answer.
type request struct {
	into *collector
	sent time.Time
	done chan struct{} // closed when the answer is whole or will not come
	// failure is set before done is closed: the answer will not come.
	failure *Failure
}

// collector takes the parts of an answer.
type collector struct {
	want    *promstore.Wanted // of series, else nil
	reader  foreign.Reader
	reserve func(bytes int64) error

	begun, values bool
	samples       int64 // used of the limits by the parts that count
	series        int64
	texts         []string
	metadata      []*queryv1.MetricMetadata
	agents        []*queryv1.Agent
	conflicts     []*queryv1.KeyedConflict
	more          bool
}

func newSession(q *Query, p *peer) *session {
	return &session{q: q, peer: p, wake: make(chan struct{}, 1), pending: map[uint64]*request{}, left: foreign.Limits{
		Series: q.a.Series, Samples: q.a.Samples, Bytes: int64(q.p.cfg.Bytes)}}
}

// ask sends a request, without waiting.
func (s *session) ask(req *queryv1.ReadRequest, into *collector) *request {
	r := &request{into: into, sent: time.Now(), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = s.ended
	}
	if s.lost != nil {
		r.failure = s.lost
		close(r.done)
		return r
	}
	if s.last == 0 {
		s.begin()
	}
	s.last++
	req.Request = s.last
	s.pending[s.last] = r
	s.queue = append(s.queue, req)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return r
}

// begin starts the stream, with the request that opens it. The lock is held.
func (s *session) begin() {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(s.q.ctx)
	s.last = 1
	var tokens []string
	for _, t := range s.q.a.Tokens {
		tokens = append(tokens, t.String())
	}
	s.queue = []*queryv1.ReadRequest{{Request: 1, Ask: &queryv1.ReadRequest_Open{Open: &queryv1.OpenRegion{
		Version: foreign.Version, Region: s.peer.name, CallerRegion: s.q.p.own, AgentLabel: s.q.p.agentLabel, Strong: s.q.a.Strong, MinTokens: tokens,
		Caller: &queryv1.Caller{Principal: s.q.a.Caller.Principal, Roles: s.q.a.Caller.Roles},
		Limits: &queryv1.ReadLimits{Series: uint64(max(s.q.a.Series, 0)), Samples: uint64(max(s.q.a.Samples, 0)), Bytes: uint64(s.q.p.cfg.Bytes)},
	}}}}
	s.pending[1] = &request{sent: time.Now(), done: make(chan struct{})}
	s.done = make(chan struct{})
	go s.run(ctx)
}

// run sends and receives until the stream ends.
func (s *session) run(ctx context.Context) {
	defer close(s.done)
	f := failureOf(s.talk(ctx))
	s.mu.Lock()
	// A region that ends the stream when it has answered everything is in the answer; a later request would fail.
	if len(s.pending) == 0 && f.Reason != BadAnswer {
		s.ended = f
		s.cancel()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.lose(f)
}

func (s *session) talk(ctx context.Context) error {
	// A region that hangs must not take all that this node has.
	select {
	case s.peer.slots <- struct{}{}:
		defer func() { <-s.peer.slots }()
	default:
		t := time.NewTimer(s.peer.timeout)
		defer t.Stop()
		select {
		case s.peer.slots <- struct{}{}:
			defer func() { <-s.peer.slots }()
		case <-t.C:
			return &Failure{Overloaded, "fanout.concurrency of queries wait for the region"}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	stream, err := s.peer.client.Read(ctx)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- s.receive(stream) }()
	for {
		for _, req := range s.queued() {
			// Send waits for room in the stream, and ends with it.
			if err := stream.Send(req); err != nil {
				// The cause is what the other end says.
				return <-received
			}
		}
		select {
		case <-s.wake:
		case err := <-received:
			s.cancel()
			return err
		}
	}
}

func (s *session) queued() []*queryv1.ReadRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.queue
	s.queue = nil
	return out
}

// receive takes answers until the stream ends.
func (s *session) receive(stream grpc.BidiStreamingClient[queryv1.ReadRequest, queryv1.ReadResponse]) error {
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the region ended the stream")
		}
		if err != nil {
			return err
		}
		if err := s.take(msg); err != nil {
			// Ends the stream for the one that sends.
			s.cancel()
			return err
		}
	}
}

// take takes a part of an answer.
func (s *session) take(msg *queryv1.ReadResponse) error {
	s.mu.Lock()
	r := s.pending[msg.GetRequest()]
	s.mu.Unlock()
	if r == nil {
		return bad("an answer to request %d, which is not open", msg.GetRequest())
	}
	if o := msg.GetOpened(); o != nil && msg.GetRequest() == 1 {
		return s.opened(o)
	}
	if msg.GetRequest() == 1 || r.into == nil {
		return bad("the answer to the first request is another one")
	}
	if d := msg.GetDone(); d != nil {
		return s.finish(msg.GetRequest(), r, d)
	}
	before := s.left
	err := r.into.take(msg, &s.left)
	s.q.p.m.bytes.WithLabelValues(s.peer.name).Add(float64(before.Bytes - s.left.Bytes))
	s.q.p.m.samples.WithLabelValues(s.peer.name).Add(float64(max(before.Samples-s.left.Samples, 0)))
	var over *foreign.ExceededError
	var wrong *foreign.BadError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &over):
		s.q.fail(s.q.limitError(over.What))
	case !errors.As(err, &wrong):
		s.q.fail(err) // memory of this node
	}
	return err
}

func bad(format string, args ...any) error { return foreign.Bad(format, args...) }

// opened checks who answers.
func (s *session) opened(o *queryv1.RegionOpened) error {
	switch {
	case o.GetVersion() != foreign.Version:
		return &Failure{Unsupported, detail("its series have another encoding")}
	case o.GetRegion() != s.peer.name:
		return &Failure{Misconfigured, detail("the region " + o.GetRegion() + " answers there")}
	case o.GetAgentLabel() != s.q.p.agentLabel:
		return &Failure{Misconfigured, "its series.agent_label is another one"}
	}
	s.mu.Lock()
	delete(s.pending, 1)
	s.unknown = o.GetUnknownTokens()
	s.mu.Unlock()
	return nil
}

// finish ends an answer.
func (s *session) finish(id uint64, r *request, d *queryv1.RequestDone) error {
	if what := d.GetExceeded(); what != "" {
		s.q.fail(s.q.limitError(what))
		return &foreign.ExceededError{What: what}
	}
	if _, opening := s.pendingOpen(); opening {
		return bad("an answer before the stream is open")
	}
	c := d.GetCompleteness()
	if c == nil {
		return bad("an answer that does not say how complete it is")
	}
	r.into.more = d.GetMore()
	s.q.p.m.seconds.WithLabelValues(s.peer.name).Observe(time.Since(r.sent).Seconds())
	s.mu.Lock()
	delete(s.pending, id)
	s.completeness = c
	s.mu.Unlock()
	close(r.done)
	return nil
}

func (s *session) pendingOpen() (*request, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.pending[1]
	return r, ok
}

// lose ends the region's part in the query.
func (s *session) lose(f *Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = f
	}
	for id, r := range s.pending {
		delete(s.pending, id)
		if r.failure = s.lost; r.into != nil {
			close(r.done)
		}
	}
	if s.cancel != nil {
		s.cancel()
	}
}

// wait waits for an answer; false where the region gives none. Errors are the query's.
func (s *session) wait(ctx context.Context, r *request) (bool, error) {
	select {
	case <-r.done:
	default:
		// The deadline is that of the request, so several that are waited for one after the other have the same.
		t := time.NewTimer(time.Until(r.sent.Add(s.peer.timeout)))
		defer t.Stop()
		select {
		case <-r.done:
		case <-t.C:
			s.lose(&Failure{Deadline, "no answer within " + s.peer.timeout.String()})
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if err := s.q.err(); err != nil {
		return false, err
	}
	if err := s.q.ctx.Err(); err != nil {
		return false, err
	}
	// Also an answer that came whole: the region was lost since, and all of the evaluation has to be without it.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return false, nil
	}
	s.contributed = true
	return true, nil
}

// state is how the region stands in the answer; false when it was not asked.
func (s *session) state() (State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == 0 {
		return State{}, false
	}
	return State{Region: s.peer.name, Failure: s.lost, Completeness: s.completeness}, true
}

// close ends the stream.
func (s *session) close() {
	s.mu.Lock()
	begun, lost := s.last > 0, s.lost
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	if !begun {
		return
	}
	<-s.done
	outcome := answered
	if lost != nil {
		outcome = string(lost.Reason)
	}
	s.q.p.m.queries.WithLabelValues(s.peer.name, outcome).Inc()
}

// take takes one part.
func (c *collector) take(msg *queryv1.ReadResponse, left *foreign.Limits) error {
	switch part := msg.GetPart().(type) {
	case *queryv1.ReadResponse_Series:
		return c.block(part.Series, left)
	case *queryv1.ReadResponse_Labels:
		return c.labels(part.Labels, left)
	case *queryv1.ReadResponse_Metadata:
		for _, m := range part.Metadata.GetMetrics() {
			if err := c.size(left, int64(len(m.GetName())+len(m.GetUnit())+len(m.GetHelp()))); err != nil {
				return err
			}
		}
		c.metadata = append(c.metadata, part.Metadata.GetMetrics()...)
	case *queryv1.ReadResponse_Agents:
		for _, a := range part.Agents.GetAgents() {
			if err := c.size(left, int64(len(a.GetAgentId())+len(a.GetBootId())+16*(len(a.GetGaps())+len(a.GetOverlaps())))); err != nil {
				return err
			}
		}
		c.agents = append(c.agents, part.Agents.GetAgents()...)
	case *queryv1.ReadResponse_Conflicts:
		for _, k := range part.Conflicts.GetConflicts() {
			if err := c.size(left, int64(len(k.GetKey()))); err != nil {
				return err
			}
		}
		c.conflicts = append(c.conflicts, part.Conflicts.GetConflicts()...)
	default:
		return bad("a part that was not asked for")
	}
	if c.want != nil {
		return bad("a part that was not asked for")
	}
	return nil
}

// partBytes is about what an entry of a list takes beside its texts.
const partBytes = 128

func (c *collector) size(left *foreign.Limits, texts int64) error {
	if left.Bytes -= texts + partBytes; left.Bytes < 0 {
		return &foreign.ExceededError{What: "bytes"}
	}
	if c.reserve == nil {
		return nil
	}
	return c.reserve(texts + partBytes)
}

func (c *collector) labels(l *queryv1.LabelsBlock, left *foreign.Limits) error {
	if l.GetRestart() {
		c.texts = nil
	}
	for _, v := range l.GetValues() {
		if err := c.size(left, int64(len(v))); err != nil {
			return err
		}
	}
	c.texts = append(c.texts, l.GetValues()...)
	if c.want != nil {
		return bad("labels in place of series")
	}
	return nil
}

func (c *collector) block(b *queryv1.SeriesBlock, left *foreign.Limits) error {
	if c.want == nil {
		return bad("series in place of something else")
	}
	if b.GetRestart() {
		c.reader.Restart()
		// What was dropped does not count, except for its bytes, so that this ends.
		left.Series, left.Samples = left.Series+c.series, left.Samples+c.samples
		c.series, c.samples, c.begun = 0, 0, false
	}
	if !c.begun {
		c.begun, c.values = true, b.GetValues()
		c.reader.Mint, c.reader.Maxt = c.want.Mint, c.want.Maxt
		if c.values {
			if c.want.Call == nil {
				return bad("values that were not asked for")
			}
			c.reader.Mint, c.reader.Maxt = c.want.Call.Start, c.want.Call.End
		}
	}
	if b.GetValues() != c.values {
		return bad("values and samples in one answer")
	}
	before := *left
	err := c.reader.Block(b.GetData(), left)
	c.series, c.samples = c.series+before.Series-left.Series, c.samples+before.Samples-left.Samples
	return err
}
