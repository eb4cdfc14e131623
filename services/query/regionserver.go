package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// regionServer answers the query nodes of other regions, from this region alone.
type regionServer struct {
	queryv1.UnimplementedRegionServiceServer
	s       *Service
	served  *prometheus.CounterVec
	bytes   prometheus.Counter
	reading prometheus.Gauge
}

func newRegionServer(s *Service, reg prometheus.Registerer) *regionServer {
	f := promauto.With(reg)
	return &regionServer{s: s,
		served: f.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_region_requests_served_total",
			Help: "Requests of other regions' queries that were answered, by what they ask for."}, []string{"ask"}),
		bytes: f.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_region_served_bytes_total",
			Help: "Bytes of series that were sent to other regions."}),
		reading: f.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_query_region_serving",
			Help: "Queries of other regions that read of this node now."}),
	}
}

// regionSession is one query of another region.
type regionSession struct {
	*regionServer
	out  *sender[queryv1.ReadResponse]
	open *queryv1.OpenRegion
	ses  *answer.Session // nil before the first request that reads samples
	// Used of the caller's limits.
	series, samples, bytes uint64
}

// Read answers until the caller ends the stream, or the time of a query is over.
func (v *regionServer) Read(stream grpc.BidiStreamingServer[queryv1.ReadRequest, queryv1.ReadResponse]) error {
	ctx, cancel := context.WithTimeout(stream.Context(), v.s.cfg.Limits.Timeout)
	defer cancel()
	first, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	if err := v.admit(first); err != nil {
		return err
	}
	v.reading.Inc()
	defer v.reading.Dec()
	r := &regionSession{regionServer: v, open: first.GetOpen(), out: newSender[queryv1.ReadResponse](stream, v.s.cfg.WriteTimeout)}
	defer r.out.close()
	defer r.close()
	o := &queryv1.RegionOpened{Region: string(v.s.cfg.Region), AgentLabel: string(v.s.cfg.Series.AgentLabel), Version: foreign.Version, Node: v.s.ID()}
	fresh, err := answer.ParseFresh(r.open.GetMinTokens(), r.open.GetStrong())
	if err != nil {
		return failure(err)
	}
	// Before a slot is taken, as for queries of this region.
	unknown, err := v.s.eval.AwaitKnown(ctx, fresh)
	if err != nil {
		return failure(err)
	}
	for _, t := range unknown {
		o.UnknownTokens = append(o.UnknownTokens, t.String())
	}
	if err := r.send(ctx, 1, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Opened{Opened: o}}); err != nil {
		return err
	}
	requests := receive(stream, ctx)
	for last := uint64(1); ; {
		select {
		case <-ctx.Done():
			return failure(ctx.Err())
		case in := <-requests:
			switch {
			case in.err != nil:
				return ended(in.err)
			case in.req.GetRequest() <= last || in.req.GetOpen() != nil:
				return invalid("request %d after %d, or a second one that opens", in.req.GetRequest(), last)
			}
			last = in.req.GetRequest()
			if err := r.answer(ctx, in.req); err != nil {
				return regionFailure(err)
			}
		}
	}
}

// regionFailure is the status of an error that ends a stream.
func regionFailure(err error) error {
	var denied *rpc.DeniedError
	if _, made := status.FromError(err); made || errors.As(err, &denied) {
		return rpc.Status(err)
	}
	return failure(err)
}

// ended is the status of a stream whose caller has ended it: none, if it said so.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type received struct {
	req *queryv1.ReadRequest
	err error
}

// receive reads requests in a goroutine, which ends with the stream, and so with its handler.
func receive(stream grpc.BidiStreamingServer[queryv1.ReadRequest, queryv1.ReadResponse], ctx context.Context) <-chan received {
	out := make(chan received)
	go func() {
		for {
			req, err := stream.Recv()
			select {
			case out <- received{req, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// admit checks the request that opens a stream.
func (v *regionServer) admit(req *queryv1.ReadRequest) error {
	o := req.GetOpen()
	if o == nil || req.GetRequest() != 1 {
		return invalid("the first request of a stream opens it")
	}
	refuse := func(reason, format string, args ...any) error {
		return rpc.Failure{Code: codes.FailedPrecondition, Reason: reason, Message: fmt.Sprintf(format, args...)}.Err()
	}
	switch {
	case o.GetVersion() != foreign.Version:
		return refuse(regions.StatusVersion, "series have the encoding %d here, and %d is asked for", foreign.Version, o.GetVersion())
	case o.GetRegion() != string(v.s.cfg.Region) || o.GetRegion() == "":
		return refuse(regions.StatusMismatch, "this is the region %q, and %.64q is asked for", v.s.cfg.Region, o.GetRegion())
	case o.GetCallerRegion() == o.GetRegion():
		return refuse(regions.StatusMismatch, "a node of the region %q asks this one as another", v.s.cfg.Region)
	case o.GetAgentLabel() != string(v.s.cfg.Series.AgentLabel):
		return refuse(regions.StatusMismatch, "series.agent_label is %q here, and %.64q there", v.s.cfg.Series.AgentLabel, o.GetAgentLabel())
	}
	// Lists need the least. What reads samples is checked again.
	return rpc.Status(authorizeFor(o.GetCaller(), listsFor))
}

// close ends the session, if there is one.
func (r *regionSession) close() {
	if r.ses != nil {
		r.ses.Close()
	}
}

func (r *regionSession) send(ctx context.Context, id uint64, msg *queryv1.ReadResponse) error {
	msg.Request = id
	return r.out.send(ctx, msg)
}

// session opens the snapshot that all requests for samples see.
func (r *regionSession) session(ctx context.Context) (*answer.Session, error) {
	if r.ses != nil {
		return r.ses, nil
	}
	if err := authorizeFor(r.open.GetCaller(), samplesFor); err != nil {
		return nil, err
	}
	var err error
	r.ses, err = r.s.eval.OpenIn(ctx, answer.In{Scope: regions.OwnOnly, Serves: true})
	return r.ses, err
}

// answer answers one request.
func (r *regionSession) answer(ctx context.Context, req *queryv1.ReadRequest) error {
	id, done := req.GetRequest(), &queryv1.RequestDone{}
	what := "unknown"
	var err error
	switch ask := req.GetAsk().(type) {
	case *queryv1.ReadRequest_Select:
		what = "select"
		err = r.selected(ctx, id, ask.Select, done)
	case *queryv1.ReadRequest_Labels:
		what = "labels"
		err = r.labels(ctx, id, ask.Labels, done)
	case *queryv1.ReadRequest_Metadata:
		what = "metadata"
		err = r.metadata(ctx, id, ask.Metadata, done)
	case *queryv1.ReadRequest_Agents:
		what = "agents"
		err = r.agents(ctx, id, ask.Agents, done)
	case *queryv1.ReadRequest_Conflicts:
		what = "conflicts"
		err = r.conflicts(ctx, id, ask.Conflicts, done)
	default:
		err = rpc.Failure{Code: codes.Unimplemented, Reason: regions.StatusVersion, Message: "this node does not know what is asked for"}.Err()
	}
	if err != nil {
		return err
	}
	r.served.WithLabelValues(what).Inc()
	c := r.s.eval.Completeness(r.s.follow.Status())
	if r.ses != nil {
		c = r.ses.Completeness()
	}
	// Agents with gaps are for the lists: here they would be most of what is sent.
	c.Gaps = nil
	done.Completeness = protoCompleteness(c)
	return r.send(ctx, id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Done{Done: done}})
}

// errExceeded: a limit of the caller is met. Its answer ends with the name of it.
var errExceeded = errors.New("a limit of the caller is met")

// exceeded is the caller's limit that is met, if one is.
func (r *regionSession) exceeded() string {
	l := r.open.GetLimits()
	switch over := func(limit, used uint64) bool { return limit > 0 && used > limit }; {
	case over(l.GetSeries(), r.series):
		return "series"
	case over(l.GetSamples(), r.samples):
		return "samples"
	case over(l.GetBytes(), r.bytes):
		return "bytes"
	}
	return ""
}

// writing is one SelectSeries that is answered.
type writing struct {
	r               *regionSession
	ctx             context.Context
	id              uint64
	restart, values bool
	foreign.Writer
	series, samples uint64 // of the writer that were counted
}

func (w *writing) emit(block []byte) error {
	msg := &queryv1.SeriesBlock{Restart: w.restart, Values: w.values, Data: block}
	w.restart = false
	w.r.bytes += uint64(len(block))
	w.r.regionServer.bytes.Add(float64(len(block)))
	return w.r.send(w.ctx, w.id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Series{Series: msg}})
}

// count adds what was written to what is used of the caller's limits.
func (w *writing) count() error {
	w.r.series, w.r.samples = w.r.series+w.NSeries-w.series, w.r.samples+w.NSamples-w.samples
	w.series, w.samples = w.NSeries, w.NSamples
	if w.r.exceeded() != "" {
		return errExceeded
	}
	return nil
}

// again begins the answer again, without what was sent of it.
func (w *writing) again(values bool) {
	w.r.series, w.r.samples = w.r.series-w.series, w.r.samples-w.samples
	w.series, w.samples, w.values = 0, 0, values
	w.Restart()
}

func (r *regionSession) selected(ctx context.Context, id uint64, ask *queryv1.SelectSeries, done *queryv1.RequestDone) error {
	ms, err := regions.Matchers(ask.GetMatchers())
	if err != nil {
		return invalid("%v", err)
	}
	ses, err := r.session(ctx)
	if err != nil {
		return err
	}
	w := &writing{r: r, ctx: ctx, id: id}
	w.Emit = w.emit
	begun := false
	err = ses.Read(ctx, func() error {
		w.restart = begun
		begun = true
		w.again(false)
		switch {
		case ask.GetLabelsOnly():
			return w.list(ses, ask, ms)
		case ask.GetCall() != nil:
			if ok, err := w.call(ses, ask, ms); ok || err != nil {
				return err
			}
		}
		return w.samplesOf(ses, ask, ms)
	})
	if errors.Is(err, errExceeded) {
		done.Exceeded, err = r.exceeded(), nil
	}
	if err != nil {
		return err
	}
	if w.restart && w.NBytes == 0 {
		// An answer that began again and has nothing must still drop what came before.
		return w.emit(nil)
	}
	return nil
}

func (w *writing) list(ses *answer.Session, ask *queryv1.SelectSeries, ms []*labels.Matcher) error {
	found, err := ses.List(w.ctx, ask.GetStartUnixMs(), ask.GetEndUnixMs(), ms...)
	if err != nil {
		return err
	}
	for i := range found.Len() {
		if err := errors.Join(ses.Check(), w.Series(found.Labels(i), found.Agents(i))); err != nil {
			return err
		}
		if err := w.count(); err != nil {
			return err
		}
	}
	return w.Flush()
}

// callOf reads a call; nil where its times can't be those of a query.
func callOf(c *queryv1.RangeCall, ms []*labels.Matcher, points int) *promstore.RangeCall {
	out := &promstore.RangeCall{Func: c.GetFunction(), Matchers: ms, Range: c.GetRangeMs(), Offset: c.GetOffsetMs(), Start: c.GetStartUnixMs(), End: c.GetEndUnixMs(), Step: c.GetStepMs()}
	for _, t := range []int64{out.Range, out.Offset, out.Start, out.End, out.Step} {
		if t < -farTime || t > farTime {
			return nil
		}
	}
	if out.Range <= 0 || out.Step < 0 || out.End < out.Start || out.Step == 0 && out.End != out.Start || out.Step > 0 && (out.End-out.Start)/out.Step > int64(points) {
		return nil
	}
	return out
}

// farTime bounds times, so that sums of them can't overflow.
const farTime = math.MaxInt64 / 8

// instantsOf reads times; nil where they can't be those of a query.
func instantsOf(x *queryv1.Instants) *promstore.Instants {
	in := &promstore.Instants{Start: x.GetStartUnixMs(), End: x.GetEndUnixMs(), Step: x.GetStepMs()}
	if in.Start < -farTime || in.End > farTime || in.End < in.Start || in.Step < 0 || in.Step > farTime || in.Step == 0 && in.Start != in.End {
		return nil
	}
	return in
}

// call sends the values of the call where rolled rows give them; false where they don't, and nothing was sent.
func (w *writing) call(ses *answer.Session, ask *queryv1.SelectSeries, ms []*labels.Matcher) (bool, error) {
	c := callOf(ask.GetCall(), ms, w.r.s.cfg.Limits.Points)
	if c == nil {
		return false, invalid("a call at times that no query has")
	}
	found, ok, err := ses.RolledForOthers(w.ctx, *c)
	if err != nil || !ok {
		return false, err
	}
	w.values = true
	for i := range found {
		if err := errors.Join(ses.Check(), w.Series(found[i].Full(), agentlabel.Seen{})); err != nil {
			return false, err
		}
		run := valuesRun(&found[i])
		if err := w.Run(&run); err != nil {
			return false, err
		}
		if err := w.count(); err != nil {
			return false, err
		}
	}
	return true, w.Flush()
}

// valuesRun has the values of a series, without the times that have none.
func valuesRun(s *promstore.RolledSeries) (run samples.Run) {
	t, v, h := s.Points()
	for i := range t {
		switch {
		case h != nil && h[i] != nil:
			run.T, run.V, run.H = append(run.T, t[i]), append(run.V, 0), append(run.H, h[i])
		case !samples.AnyStale(v[i : i+1]):
			run.T, run.V = append(run.T, t[i]), append(run.V, v[i])
			if h != nil {
				run.H = append(run.H, nil)
			}
		}
	}
	return run
}

// samplesOf sends series with their samples. Those without one in the range are left out.
func (w *writing) samplesOf(ses *answer.Session, ask *queryv1.SelectSeries, ms []*labels.Matcher) error {
	found, err := ses.Find(w.ctx, promstore.Hint{Func: ask.GetFunction(), Range: ask.GetRangeMs()}, ask.GetStartUnixMs(), ask.GetEndUnixMs(), ms...)
	if err != nil {
		return err
	}
	var in promstore.Reader
	var at *promstore.Instants
	if x := ask.GetInstants(); x != nil {
		if at = instantsOf(x); at == nil {
			return invalid("instants at times that no query has")
		}
	}
	for i := range found.Len() {
		in.Reset(found, i)
		for begun := false; ; {
			run, ok := in.Next()
			if !ok {
				break
			}
			if at != nil {
				run = at.Thin(&run)
			}
			if !begun {
				if err := w.Series(found.Labels(i), found.Agents(i)); err != nil {
					return err
				}
				begun = true
			}
			if err := errors.Join(ses.Check(), w.Run(&run)); err != nil {
				return err
			}
			if err := w.count(); err != nil {
				return err
			}
		}
		if err := errors.Join(ses.Check(), in.Err()); err != nil {
			return err
		}
	}
	return w.Flush()
}

// textsAtOnce is about how many bytes of labels a message has.
const textsAtOnce = 64 << 10

func (r *regionSession) labels(ctx context.Context, id uint64, ask *queryv1.SelectLabels, done *queryv1.RequestDone) error {
	ms, err := regions.Matchers(ask.GetMatchers())
	if err != nil {
		return invalid("%v", err)
	}
	ses, err := r.session(ctx)
	if err != nil {
		return err
	}
	start := ses.Snapshot.From
	if ask.StartUnixMs != nil {
		start = ask.GetStartUnixMs()
	}
	var list []string
	if err := ses.Read(ctx, func() error {
		q, err := ses.Querier(start, ask.GetEndUnixMs())
		if err != nil {
			return err
		}
		defer q.Close()
		if name := ask.GetLabel(); name != "" {
			list, _, err = q.LabelValues(ctx, name, nil, ms...)
		} else {
			list, _, err = q.LabelNames(ctx, nil, ms...)
		}
		return err
	}); err != nil {
		return err
	}
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && size < textsAtOnce {
			size += len(list[n])
			n++
		}
		r.bytes += uint64(size)
		if done.Exceeded = r.exceeded(); done.Exceeded != "" {
			return nil
		}
		if err := r.send(ctx, id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Labels{Labels: &queryv1.LabelsBlock{Values: list[:n]}}}); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// metricsAtOnce is how many metrics a message has.
const metricsAtOnce = 200

func (r *regionSession) metadata(ctx context.Context, id uint64, ask *queryv1.SelectMetadata, done *queryv1.RequestDone) error {
	ses, err := r.session(ctx)
	if err != nil {
		return err
	}
	list, err := ses.Snapshot.Metadata(ctx, ask.GetMetric())
	if err != nil {
		return err
	}
	for len(list) > 0 {
		b := &queryv1.MetadataBlock{}
		for _, m := range list[:min(len(list), metricsAtOnce)] {
			b.Metrics = append(b.Metrics, &queryv1.MetricMetadata{Name: m.Name, Type: uint32(m.Type), Unit: m.Unit, Help: m.Help})
			r.bytes += uint64(len(m.Name) + len(m.Unit) + len(m.Help))
		}
		list = list[len(b.Metrics):]
		if done.Exceeded = r.exceeded(); done.Exceeded != "" {
			return nil
		}
		if err := r.send(ctx, id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Metadata{Metadata: b}}); err != nil {
			return err
		}
	}
	return nil
}

// entriesAtOnce is how many entries of a list a message has.
const entriesAtOnce = 50

func listLimit(n int32) (int, error) {
	if n < 1 || n > maxPage+1 {
		return 0, invalid("limit %d, want 1 to %d", n, maxPage+1)
	}
	return int(n), nil
}

func (r *regionSession) agents(ctx context.Context, id uint64, ask *queryv1.SelectAgents, done *queryv1.RequestDone) error {
	n, err := listLimit(ask.GetLimit())
	if err != nil {
		return err
	}
	list := r.s.follow.Agents(ask.GetAgentId(), identity.Boot{Agent: ask.GetAfterAgentId(), Boot: ask.GetAfterBootId()}, n+1)
	if done.More = len(list) > n; done.More {
		list = list[:n]
	}
	for len(list) > 0 {
		b := &queryv1.AgentsBlock{}
		for _, a := range list[:min(len(list), entriesAtOnce)] {
			b.Agents = append(b.Agents, protoAgent(a))
		}
		list = list[len(b.Agents):]
		if err := r.send(ctx, id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Agents{Agents: b}}); err != nil {
			return err
		}
	}
	return nil
}

func (r *regionSession) conflicts(ctx context.Context, id uint64, ask *queryv1.SelectConflicts, done *queryv1.RequestDone) error {
	n, err := listLimit(ask.GetLimit())
	if err != nil {
		return err
	}
	prefix := quarantineOf(ask.GetAgentId())
	list, next, err := conflicts(ctx, r.s.store, prefix, ask.GetAfter(), n)
	if err != nil {
		return err
	}
	done.More = next != ""
	for len(list) > 0 {
		b := &queryv1.ConflictsBlock{}
		for _, c := range list[:min(len(list), entriesAtOnce)] {
			b.Conflicts = append(b.Conflicts, &queryv1.KeyedConflict{Key: keyOf(c), Conflict: c})
		}
		list = list[len(b.Conflicts):]
		if err := r.send(ctx, id, &queryv1.ReadResponse{Part: &queryv1.ReadResponse_Conflicts{Conflicts: b}}); err != nil {
			return err
		}
	}
	return nil
}

// quarantineOf is the prefix of an agent's conflicts; of all where it is empty.
func quarantineOf(agent string) string {
	if agent == "" {
		return layout.QuarantinePrefix
	}
	return layout.QuarantinePrefix + "agent=" + layout.HexText(agent) + "/"
}

// keyOf is the key of a conflict's record.
func keyOf(c *queryv1.IdentityConflict) string {
	sum, err := identity.ParseDigest(c.GetSubmittedSha256())
	if err != nil {
		return ""
	}
	return layout.Quarantine(identity.Batch{Agent: c.GetAgentId(), Boot: c.GetBootId(), SeqStart: c.GetSeqStart(), SeqEnd: c.GetSeqEnd()}, sum)
}
