package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// Asker asks a query node all the time while a fleet sends and processes are killed, and judges every answer by
// what the fleet had been answered:
//
//   - no batch is counted twice, and each is counted whole or not at all; but where an answer is marked and a batch has
//     samples of two hours, those of one of them may be missing;
//   - an answer that is not marked as partial has every batch that was acknowledged before its complete_through;
//     where the request was strong, every batch that was acknowledged before it was sent; where it had a token, that
//     token's batch;
//   - one that is marked says why.
//
// It compares the test's clock with the store's, so both must run on one machine.
type Asker struct {
	f      *Fleet
	client queryv1.QueryServiceClient
	conn   io.Closer
	cancel context.CancelFunc
	done   chan struct{}
	rnd    *rand.Rand

	mu   sync.Mutex
	seen Asked
	errs []error
}

// Asked is what an Asker did.
type Asked struct {
	// Answers that were judged: those that were not marked, and the marked ones by the code of each reason.
	Complete int
	Partial  map[string]int
	// Proven counts the batches that an answer had to have, over all answers.
	Proven int
	// Strong and Tokens are requests that had to see everything, or one batch, and were answered.
	Strong, Tokens int
	// Refused are requests without an answer by their reason; "" where no service answered.
	Refused map[string]int
}

// Times of an Asker.
const (
	askEvery   = 100 * time.Millisecond
	askTimeout = 15 * time.Second
)

// spans of an answer: the newest batches half of the time, and any others, which blocks may have by then.
const (
	newestSpans = 300
	otherSpans  = 1000
)

// StartAsker starts to ask the cluster's query node about what f sends, until Stop.
func StartAsker(ctx context.Context, c *cluster.Cluster, f *Fleet) (*Asker, error) {
	conn, err := rpc.Dial(c.Addr.QueryGRPC, rpc.ClientConfig{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &Asker{f: f, client: queryv1.NewQueryServiceClient(conn), conn: conn, cancel: cancel, done: make(chan struct{}),
		rnd:  rand.New(rand.NewPCG(f.o.Seed, 99)),
		seen: Asked{Partial: map[string]int{}, Refused: map[string]int{}}}
	go a.run(ctx)
	return a, nil
}

// Stop ends the questions. The error has every answer that was wrong.
func (a *Asker) Stop() (Asked, error) {
	a.cancel()
	<-a.done
	a.conn.Close()
	return a.seen, a.Err()
}

// Err has every answer that was wrong so far.
func (a *Asker) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.errs...)
}

func (a *Asker) run(ctx context.Context) {
	defer close(a.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(askEvery):
		}
		if err := a.ask(ctx); err != nil && ctx.Err() == nil {
			a.mu.Lock()
			if len(a.errs) < maxReported {
				a.errs = append(a.errs, err)
			}
			a.mu.Unlock()
		}
	}
}

// question is one request and what it must see.
type question struct {
	first, last int // batches of each agent, the last excluded
	asked       time.Time
	strong      bool
	agent       string // whose batch a token stands for
	token       int
	whole       bool // counts of whole agents, which rows of blocks may answer
}

func (q question) String() string {
	text := fmt.Sprintf("batches %d to %d", q.first, q.last-1)
	if q.whole {
		text = "all batches"
	}
	if q.strong {
		text += ", strong"
	}
	if q.agent != "" {
		text += fmt.Sprintf(", with the token of %s batch %d", q.agent, q.token)
	}
	return text
}

// ask asks once. A request that fails says nothing.
func (a *Asker) ask(ctx context.Context) error {
	n := a.f.longest()
	if n == 0 {
		return nil
	}
	q := question{first: max(n-newestSpans, 0)}
	if a.rnd.IntN(2) == 0 {
		q.first = a.rnd.IntN(n)
		q.last = min(q.first+otherSpans, n+newestSpans)
	} else {
		q.last = n + newestSpans // what is sent while the question is answered
	}
	var tokens []string
	switch a.rnd.IntN(4) {
	case 0:
		q.strong = true
	case 1:
		agent, token, k := a.f.lastToken(a.rnd.IntN(1 << 10))
		if token != "" {
			q.agent, q.token, tokens = agent, k, []string{token}
		}
	case 2:
		q.whole = true
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// The first instant at which all samples of the first batch are in a range of one span, and no others.
	span := a.f.span()
	at := func(k int) int64 { return a.f.start.Add(time.Duration(k+1)*span - RowStep).UnixMilli() }
	req := &queryv1.QueryRangeRequest{StepMs: span.Milliseconds(), MinTokens: tokens, Strong: q.strong,
		Expression:  fmt.Sprintf("sum by (host) (count_over_time(%s[%dms]))", Metric, span.Milliseconds()),
		StartUnixMs: at(q.first), EndUnixMs: at(q.last - 1)}
	if q.whole {
		// A whole hour, so that the rows of blocks can answer it; samples are at most an hour old at the start.
		end := time.Now().Truncate(time.Hour).Add(time.Hour).UnixMilli()
		req.Expression, req.StartUnixMs, req.EndUnixMs, req.StepMs = fmt.Sprintf("sum by (host) (count_over_time(%s[4h]))", Metric), end, end, 1
	}
	q.asked = time.Now()
	counts, comp, err := a.send(ctx, req)
	if err != nil {
		return a.refused(q, err)
	}
	if q.whole {
		q.first, q.last = 0, a.f.longest()
	}
	if err := a.judge(q, counts, comp); err != nil {
		return fmt.Errorf("%s: %w\n(asked at %s, complete through %s, partial %v %q)", q, err, q.asked.UTC().Format(time.RFC3339Nano),
			time.Unix(0, comp.GetCompleteThroughUnixNs()).UTC().Format(time.RFC3339Nano), comp.GetPartial(), comp.GetReasons())
	}
	return nil
}

// refused counts a request without an answer. While processes are killed the node may be away, or unable to see what
// was asked for; nothing else is a reason.
func (a *Asker) refused(q question, err error) error {
	reason := rpc.Reason(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen.Refused[reason]++
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nil
	}
	return fmt.Errorf("%s: %w", q, err)
}

// send gives the points of each agent and the completeness.
func (a *Asker) send(ctx context.Context, req *queryv1.QueryRangeRequest) (map[string][]*queryv1.Point, *queryv1.Completeness, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.client.QueryRange(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	points := map[string][]*queryv1.Point{}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, nil, err // the end of the stream too: the completeness comes before it
		}
		if s := m.GetSeries(); s != nil {
			points[s.GetLabels()["host"]] = s.GetPoints()
		}
		if c := m.GetCompleteness(); c != nil {
			return points, c, nil
		}
	}
}

// judge compares an answer with what the fleet knows by now.
func (a *Asker) judge(q question, points map[string][]*queryv1.Point, comp *queryv1.Completeness) error {
	known := a.f.some(q.first, q.last)
	per := float64(2 * a.f.o.Rows)
	proven := 0
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	through := time.Unix(0, comp.GetCompleteThroughUnixNs())
	// must says whether the answer has to have a batch that was acknowledged at a time.
	must := func(agent string, k int, acked time.Time) bool {
		return !comp.GetPartial() && !acked.IsZero() &&
			(acked.Before(through) || q.strong && acked.Before(q.asked) || q.agent == agent && q.token == k)
	}
	for agent := range points {
		if known[agent] == nil {
			wrong("%q is no agent of ours", agent)
		}
	}
	for agent, acked := range known {
		if q.whole {
			least := 0
			for k, at := range acked {
				if must(agent, k, at) {
					least++
				}
			}
			got := 0.0
			for _, p := range points[agent] {
				got += p.GetValue()
			}
			if proven += least; got < per*float64(least) || got > per*float64(len(acked)) ||
				int64(got)%int64(per) != 0 && !comp.GetPartial() {
				wrong("%s: %v samples, want %v of each of %d to %d batches", agent, got, per, least, len(acked))
			}
			continue
		}
		counted := map[int]float64{}
		for _, p := range points[agent] {
			k := int(time.UnixMilli(p.GetTimeUnixMs()).Sub(a.f.start) / a.f.span())
			counted[k] = p.GetValue()
			switch {
			case k-q.first >= len(acked):
				wrong("%s batch %d was not sent, and %v samples are counted", agent, k, p.GetValue())
			case p.GetValue() > per || p.GetValue() < per && !comp.GetPartial():
				wrong("%s batch %d: %v samples, want %v", agent, k, p.GetValue(), per)
			}
		}
		for i, at := range acked {
			if k := q.first + i; must(agent, k, at) {
				proven++
				if counted[k] == 0 {
					wrong("%s batch %d, acknowledged at %s, is missing", agent, k, at.UTC().Format(time.RFC3339Nano))
				}
			}
		}
	}
	if comp.GetPartial() && len(comp.GetReasons()) == 0 {
		wrong("it is partial and does not say why")
	}
	a.note(q, comp, proven)
	if len(errs) > maxReported {
		errs = slices.Concat(errs[:maxReported], []error{fmt.Errorf("and %d more", len(errs)-maxReported)})
	}
	return errors.Join(errs...)
}

// note counts an answer.
func (a *Asker) note(q question, comp *queryv1.Completeness, proven int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen.Proven += proven
	if q.strong {
		a.seen.Strong++
	}
	if q.agent != "" {
		a.seen.Tokens++
	}
	if !comp.GetPartial() {
		a.seen.Complete++
	}
	for _, r := range comp.GetReasons() {
		code, _, _ := strings.Cut(r, ":")
		a.seen.Partial[code]++
	}
}
