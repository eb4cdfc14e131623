package query_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"

	"github.com/prometheus/prometheus/model/labels"
)

// two regions, each with a counter of an agent of its own.
func two(t *testing.T, change func(region string, c *query.Config)) (*fleet, time.Time) {
	now := time.Now().Truncate(time.Second)
	return newFleet(t, []string{"eu", "us"}, time.Now, func(region string, a *authority) {
		boot := identity.Boot{Agent: "host-" + region, Boot: "b"}
		a.accept(a.build(boot, 1, now, point{"up", 1, now}, point{"only_" + region, 7, now}))
	}, change), now
}

// TestARegionThatIsAway: the answer has what is there, says what is not, and is refused where it has to be whole.
func TestARegionThatIsAway(t *testing.T) {
	f, _ := two(t, nil)
	eu := f.nodes["eu"]
	if e := eu.get("/api/v1/query", "query", "sum(up)"); e.value() != "2" || e.Lightmetrics.Partial || !e.region("us").Answered || e.Lightmetrics.CompleteThrough == "" {
		t.Fatalf("both are there: %s, %+v", e.value(), e.Lightmetrics)
	}
	f.net.set("us", "127.0.0.1:1")
	// The connection that is there goes on until it breaks; this one never was.
	g := newFleetAt(t, f, "eu")
	e := g.get("/api/v1/query", "query", "sum(up)")
	us, own := e.region("us"), e.region("eu")
	if e.value() != "1" || !e.Lightmetrics.Partial || us.Answered || us.Reason != "UNREACHABLE" || !own.Answered || own.Partial || own.CompleteThrough == "" {
		t.Errorf("%s: %+v", e.value(), e.Lightmetrics)
	}
	// Of all together nothing can be said.
	if e.Lightmetrics.CompleteThrough != "" || !has(e.Lightmetrics.Reasons, "REGION_MISSING") || !has(e.Warnings, "partial answer: REGION_MISSING") {
		t.Errorf("%+v %v", e.Lightmetrics, e.Warnings)
	}
	if e := g.get("/api/v1/query", "query", "sum(up)", "partial_response", "false"); e.code != http.StatusServiceUnavailable || e.ErrorType != "unavailable" || !strings.Contains(e.Error, "ANSWER_PARTIAL") {
		t.Errorf("%d %s %s", e.code, e.ErrorType, e.Error)
	}
	c := client(t, g)
	_, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: "up", RequireComplete: true})
	if rpc.Reason(err) != "ANSWER_PARTIAL" || status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	r, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: "up"})
	if err != nil || len(r.GetCompleteness().GetRegions()) != 2 || r.GetCompleteness().GetRegions()[1].GetReason() != "UNREACHABLE" {
		t.Errorf("%v %v", r.GetCompleteness(), err)
	}
	// One that is not asked is not missing.
	for _, only := range []string{"local", "eu"} {
		if e := g.get("/api/v1/query", "query", "sum(up)", "regions", only, "partial_response", "false"); e.value() != "1" || e.Lightmetrics.Partial || len(e.Lightmetrics.Regions) > 0 {
			t.Errorf("%s: %s %+v", only, e.value(), e.Lightmetrics)
		}
	}
	// It is back.
	f.net.set("us", f.nodes["us"].GRPCAddr())
	eventually(t, "whole again", func() bool {
		e := g.get("/api/v1/query", "query", "sum(up)")
		return e.value() == "2" && !e.Lightmetrics.Partial
	})
	// The page names both.
	resp, err := http.Get(g.url + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(page), "<h2>Regions</h2>") || !strings.Contains(string(page), "<td>us</td>") {
		t.Errorf("the page has no regions: %v %s", err, page)
	}
}

// newFleetAt is a further node of a region of a fleet, with connections of its own.
func newFleetAt(t *testing.T, f *fleet, region string) *node {
	n := startWith(t, f.auths[region], query.Deps{Now: time.Now, DialRegions: f.net.dial()}, func(c *query.Config) {
		c.Region = claims.Region(region)
		for _, other := range f.names {
			if other != region {
				c.Regions = append(c.Regions, query.RegionConfig{Name: claims.Region(other), Endpoint: endpoint(other)})
			}
		}
		c.Fanout.Timeout = time.Minute
	})
	<-n.Complete()
	return n
}

// peer is a region whose answers are written by a test.
type peer struct {
	queryv1.UnimplementedRegionServiceServer
	answer func(stream grpc.BidiStreamingServer[queryv1.ReadRequest, queryv1.ReadResponse], first *queryv1.ReadRequest) error
}

func (p peer) Read(stream grpc.BidiStreamingServer[queryv1.ReadRequest, queryv1.ReadResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	return p.answer(stream, first)
}

// serve begins a region that a test writes, and gives its address.
func (p peer) serve(t *testing.T, register bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxSendMsgSize(math.MaxInt32))
	if register {
		queryv1.RegisterRegionServiceServer(s, p)
	}
	go func() { _ = s.Serve(l) }() // until Stop
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

type regionStream = grpc.BidiStreamingServer[queryv1.ReadRequest, queryv1.ReadResponse]

func opened(region, label string, version uint32) *queryv1.ReadResponse {
	return &queryv1.ReadResponse{Request: 1, Part: &queryv1.ReadResponse_Opened{Opened: &queryv1.RegionOpened{Region: region, AgentLabel: label, Version: version}}}
}

func part(id uint64, data []byte, values bool) *queryv1.ReadResponse {
	return &queryv1.ReadResponse{Request: id, Part: &queryv1.ReadResponse_Series{Series: &queryv1.SeriesBlock{Data: data, Values: values}}}
}

func finished(id uint64) *queryv1.ReadResponse {
	return &queryv1.ReadResponse{Request: id, Part: &queryv1.ReadResponse_Done{Done: &queryv1.RequestDone{
		Completeness: &queryv1.Completeness{CompleteThroughUnixNs: time.Now().UnixNano()}}}}
}

// encoded is a block with a sample of up now.
func encoded(t *testing.T, at time.Time, names ...string) []byte {
	var out []byte
	w := foreign.Writer{Emit: func(b []byte) error { out = append(out, b...); return nil }}
	for _, name := range names {
		if err := w.Series(labels.FromStrings("__name__", name, "agent", "far"), agentlabel.Seen{}); err != nil {
			t.Fatal(err)
		}
		if err := w.Run(&samples.Run{T: []int64{at.UnixMilli()}, V: []float64{1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWhatARegionMaySay: whatever another region answers, the query has an answer, with a typed reason why the region is not
// in it.
func TestWhatARegionMaySay(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	good := encoded(t, at, "up")
	// send answers the first select with some messages.
	send := func(msgs ...*queryv1.ReadResponse) func(regionStream, *queryv1.ReadRequest) error {
		return func(s regionStream, _ *queryv1.ReadRequest) error {
			if err := s.Send(opened("us", "agent", foreign.Version)); err != nil {
				return err
			}
			if _, err := s.Recv(); err != nil {
				return err
			}
			for _, m := range msgs {
				if err := s.Send(m); err != nil {
					return err
				}
			}
			_, err := s.Recv()
			return err
		}
	}
	fails := func(code codes.Code, reason string) func(regionStream, *queryv1.ReadRequest) error {
		return func(regionStream, *queryv1.ReadRequest) error {
			return rpc.Failure{Code: code, Reason: reason, Message: "no\x00\n" + strings.Repeat("long", 1000)}.Err()
		}
	}
	for name, c := range map[string]struct {
		answer func(regionStream, *queryv1.ReadRequest) error
		want   string // reason; empty: it is in the answer
	}{
		"good":                {send(part(2, good, false), finished(2)), ""},
		"nothing":             {send(finished(2)), ""},
		"bytes":               {send(part(2, []byte("garbage"), false), finished(2)), "BAD_ANSWER"},
		"cut":                 {send(part(2, good[:len(good)-1], false), finished(2)), "BAD_ANSWER"},
		"twice":               {send(part(2, good, false), part(2, good, false), finished(2)), "BAD_ANSWER"},
		"not sorted":          {send(part(2, encoded(t, at, "up2", "up"), false), finished(2)), "BAD_ANSWER"},
		"other times":         {send(part(2, encoded(t, at.Add(-time.Hour), "up"), false), finished(2)), "BAD_ANSWER"},
		"values":              {send(part(2, good, true), finished(2)), "BAD_ANSWER"},
		"huge":                {send(part(2, make([]byte, 5<<20), false)), "BAD_ANSWER"},
		"large":               {send(part(2, make([]byte, foreign.MaxBlockBytes+1), false)), "BAD_ANSWER"},
		"other request":       {send(part(3, good, false)), "BAD_ANSWER"},
		"no completeness":     {send(&queryv1.ReadResponse{Request: 2, Part: &queryv1.ReadResponse_Done{Done: &queryv1.RequestDone{}}}), "BAD_ANSWER"},
		"done twice":          {send(part(2, good, false), finished(2), finished(2)), "-"}, // too late to matter, or not
		"empty message":       {send(&queryv1.ReadResponse{}), "BAD_ANSWER"},
		"no part":             {send(&queryv1.ReadResponse{Request: 2}), "BAD_ANSWER"},
		"labels":              {send(&queryv1.ReadResponse{Request: 2, Part: &queryv1.ReadResponse_Labels{Labels: &queryv1.LabelsBlock{Values: []string{"x"}}}}), "BAD_ANSWER"},
		"opened twice":        {send(opened("us", "agent", 1)), "BAD_ANSWER"},
		"ends":                {func(regionStream, *queryv1.ReadRequest) error { return nil }, "UNREACHABLE"},
		"another region":      {func(s regionStream, _ *queryv1.ReadRequest) error { return s.Send(opened("ap", "agent", 1)) }, "MISCONFIGURED"},
		"another label":       {func(s regionStream, _ *queryv1.ReadRequest) error { return s.Send(opened("us", "", 1)) }, "MISCONFIGURED"},
		"another version":     {func(s regionStream, _ *queryv1.ReadRequest) error { return s.Send(opened("us", "agent", 2)) }, "UNSUPPORTED"},
		"not open":            {func(s regionStream, _ *queryv1.ReadRequest) error { return s.Send(finished(2)) }, "BAD_ANSWER"},
		"refuses":             {fails(codes.PermissionDenied, rpc.ReasonForbidden), "REFUSED"},
		"knows nobody":        {fails(codes.Unauthenticated, rpc.ReasonUnauthenticated), "REFUSED"},
		"busy":                {fails(codes.Unavailable, rpc.ReasonOverloaded), "OVERLOADED"},
		"limit":               {fails(codes.ResourceExhausted, "LIMIT_EXCEEDED"), "LIMIT_EXCEEDED"},
		"strong":              {fails(codes.Unavailable, "TOKEN_NOT_VISIBLE"), "NOT_VISIBLE"},
		"version":             {fails(codes.FailedPrecondition, "REGION_VERSION"), "UNSUPPORTED"},
		"mismatch":            {fails(codes.FailedPrecondition, "REGION_MISMATCH"), "MISCONFIGURED"},
		"internal":            {fails(codes.Internal, "INTERNAL"), "FAILED"},
		"its own deadline":    {fails(codes.DeadlineExceeded, "QUERY_TIMEOUT"), "DEADLINE"},
		"nothing for minutes": {func(s regionStream, _ *queryv1.ReadRequest) error { <-s.Context().Done(); return nil }, "DEADLINE"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthority(t)
			a.accept(a.build(host, 1, at, point{"up", 1, at}))
			w := &network{addr: map[string]string{}}
			w.set("us", peer{answer: c.answer}.serve(t, true))
			n := startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
				cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Minute}}
				if c.want == "DEADLINE" {
					cfg.Regions[0].Timeout = 100 * time.Millisecond
				}
			})
			<-n.Complete()
			e := n.get("/api/v1/query", "query", "sum(up)", "time", unix(at))
			us := e.region("us")
			if e.Status != "success" {
				t.Fatalf("%d %s %s", e.code, e.ErrorType, e.Error)
			}
			switch {
			case c.want == "-":
			case c.want == "" && (!us.Answered || e.Lightmetrics.Partial || us.CompleteThrough == ""),
				c.want != "" && (us.Answered || us.Reason != c.want || !e.Lightmetrics.Partial || e.value() != "1"):
				t.Errorf("%s, %+v, want %q", e.value(), us, c.want)
			}
			if len(us.Detail) > 400 || strings.ContainsAny(us.Detail, "\x00\n") {
				t.Errorf("detail %q", us.Detail)
			}
			// The node goes on, and nothing of the query is held.
			if e := n.get("/api/v1/query", "query", "up", "regions", "local"); e.value() != "1" || n.number("lightmetrics_query_memory_bytes") != 0 {
				t.Errorf("afterwards: %+v, %v bytes", e, n.number("lightmetrics_query_memory_bytes"))
			}
		})
	}
	t.Run("an older release", func(t *testing.T) {
		a := newAuthority(t)
		w := &network{addr: map[string]string{}}
		w.set("us", peer{}.serve(t, false))
		n := startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
			cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Minute}}
		})
		<-n.Complete()
		if us := n.get("/api/v1/query", "query", "up").region("us"); us.Reason != "UNSUPPORTED" {
			t.Errorf("%+v", us)
		}
	})
}

// TestARegionLostInTheMiddle: a region that answers one selector of an expression and not the next is in none of it.
func TestARegionLostInTheMiddle(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	a := newAuthority(t)
	a.accept(a.build(host, 1, at, point{"up", 1, at}, point{"down", 1, at}))
	var streams atomic.Int32
	w := &network{addr: map[string]string{}}
	w.set("us", peer{answer: func(s regionStream, _ *queryv1.ReadRequest) error {
		streams.Add(1)
		if err := s.Send(opened("us", "agent", foreign.Version)); err != nil {
			return err
		}
		for {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			if req.GetSelect().GetMatchers()[0].GetValue() != "up" {
				return status.Error(codes.Unavailable, "gone")
			}
			if err := s.Send(part(req.GetRequest(), encoded(t, at, "up"), false)); err != nil {
				return err
			}
			if err := s.Send(finished(req.GetRequest())); err != nil {
				return err
			}
		}
	}}.serve(t, true))
	n := startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
		cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Minute}}
	})
	<-n.Complete()
	// With up of both and down of one it would be 1.
	e := n.get("/api/v1/query", "query", "sum(up) - sum(down)", "time", unix(at))
	if e.value() != "0" || e.region("us").Reason != "UNREACHABLE" {
		t.Errorf("%s, %+v %s", e.value(), e.Lightmetrics, e.Error)
	}
	if streams.Load() != 1 {
		t.Errorf("%d streams: a region is asked once", streams.Load())
	}
	// Here the second question comes when the answer to the first was used.
	w.set("us", peer{answer: func(s regionStream, _ *queryv1.ReadRequest) error {
		if err := s.Send(opened("us", "agent", foreign.Version)); err != nil {
			return err
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
		for _, m := range []*queryv1.ReadResponse{
			{Request: 2, Part: &queryv1.ReadResponse_Labels{Labels: &queryv1.LabelsBlock{Values: []string{"far"}}}}, finished(2),
		} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		_, err := s.Recv()
		return errors.Join(status.Error(codes.Unavailable, "gone"), err)
	}}.serve(t, true))
	n = startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
		cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Minute}}
	})
	<-n.Complete()
	e = n.get("/api/v1/labels", "match[]", "up", "match[]", "down")
	if string(e.Data) != `["__name__","agent","instance","job"]` || e.region("us").Answered || !e.Lightmetrics.Partial {
		t.Errorf("%s %+v", e.Data, e.Lightmetrics)
	}
}

// TestLimitsCountWhatRegionsSend: what comes of other regions counts, in the limits of the query and in the memory of all.
func TestLimitsCountWhatRegionsSend(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	fill := func(region string, a *authority) {
		if region != "us" {
			return
		}
		for i := range 20 {
			var ps []point
			for k := range 50 {
				ps = append(ps, point{fmt.Sprintf("m%d", k), float64(i*k) * math.Pi, now.Add(time.Duration(i-30) * time.Second)})
			}
			a.accept(a.build(host, uint64(1+50*i), now, ps...))
		}
	}
	for name, c := range map[string]struct {
		change func(c *query.Config)
		want   string
	}{
		"series":  {func(c *query.Config) { c.Limits.Series = 49 }, "limits.series of 49"},
		"samples": {func(c *query.Config) { c.Limits.ChunkSamples = 999 }, "limits.chunk_samples of 999"},
		"bytes":   {func(c *query.Config) { c.Fanout.Bytes = 1000 }, "fanout.bytes of 1000"},
		"memory":  {func(c *query.Config) { c.Limits.Memory = 8000 }, "limits.memory"},
		"enough":  {func(*query.Config) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, []string{"eu", "us"}, time.Now, fill, func(region string, cfg *query.Config) {
				if region == "eu" {
					c.change(cfg)
				}
			})
			n := f.nodes["eu"]
			e := n.get("/api/v1/query", "query", `count(last_over_time({__name__=~"m.*"}[5m]))`)
			switch {
			case c.want == "" && (e.value() != "50" || e.Lightmetrics.Partial):
				t.Errorf("%s %s", e.value(), e.Error)
			case c.want != "" && (e.code != 422 && e.code != 503 || !strings.Contains(e.Error, c.want)):
				t.Errorf("%d %q, want %q", e.code, e.Error, c.want)
			}
			eventually(t, "memory is given back", func() bool { return n.number("lightmetrics_query_memory_bytes") == 0 })
		})
	}
}

// TestQueriesOfTwoRegionsDoNotWaitForEachOther: with one slot in each, queries of both at once end.
func TestQueriesOfTwoRegionsDoNotWaitForEachOther(t *testing.T) {
	f, _ := two(t, func(_ string, c *query.Config) {
		c.Limits.Concurrency, c.Limits.QueueWait, c.Fanout.Serve, c.Fanout.Concurrency = 1, time.Minute, 1, 1
	})
	done := make(chan envelope, 20)
	for i := range cap(done) {
		n := f.nodes[f.names[i%2]]
		go func() { done <- n.get("/api/v1/query", "query", "sum(up)") }()
	}
	for range cap(done) {
		if e := <-done; e.value() != "2" || e.Lightmetrics.Partial {
			t.Errorf("%s %+v %s", e.value(), e.Lightmetrics, e.Error)
		}
	}
}

// TestACallerThatGoesEndsTheQueryEverywhere: a query that its caller has given up holds nothing in the other region.
func TestACallerThatGoesEndsTheQueryEverywhere(t *testing.T) {
	at := time.Now()
	a := newAuthority(t)
	asked, ended := make(chan struct{}), make(chan struct{})
	w := &network{addr: map[string]string{}}
	w.set("us", peer{answer: func(s regionStream, _ *queryv1.ReadRequest) error {
		close(asked)
		<-s.Context().Done()
		close(ended)
		return nil
	}}.serve(t, true))
	n := startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
		cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Hour}}
	})
	<-n.Complete()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	c := client(t, n)
	go func() {
		ms := at.UnixMilli()
		_, err := c.Query(ctx, &queryv1.QueryRequest{Expression: "up", TimeUnixMs: &ms})
		failed <- err
	}()
	<-asked
	cancel()
	<-ended
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// TestSamplesAtTheEdgesOfARange: samples of another region count exactly where this region's do.
func TestSamplesAtTheEdgesOfARange(t *testing.T) {
	now := time.Now().Truncate(time.Minute)
	f := newFleet(t, []string{"eu", "us"}, time.Now, func(region string, a *authority) {
		var ps []point
		for _, ms := range []int64{-60_000, -59_999, -30_000, -1, 0, 1} {
			ps = append(ps, point{"edge", 1, now.Add(time.Duration(ms) * time.Millisecond)})
		}
		for i, p := range ps {
			a.accept(a.build(identity.Boot{Agent: region, Boot: "b"}, uint64(1+i), now, p))
		}
	}, nil)
	for _, n := range f.nodes {
		// Open at the begin, closed at the end.
		if got := n.valueAt("sum(count_over_time(edge[1m]))", now); got != "8" {
			t.Errorf("%s samples", got)
		}
		if got := n.valueAt("count(edge)", now); got != "2" {
			t.Errorf("%s series", got)
		}
	}
}

// TestSeriesWithoutValuesKeepValuesApart: a series that has one sample in a region, and so no rate there, has a rate with the
// samples of the other.
func TestSeriesWithoutValuesKeepValuesApart(t *testing.T) {
	end := time.Now().Truncate(time.Hour)
	now := func() time.Time { return end.Add(10 * time.Minute) }
	boot := identity.Boot{Agent: "mover", Boot: "b"}
	at := end.Add(-4*time.Hour + 30*time.Minute)
	f := newFleet(t, []string{"eu", "us"}, now, func(region string, a *authority) {
		a.rollups()
		var list []built
		if region == "eu" {
			for i := range 10 {
				list = append(list, a.build(boot, uint64(1+i), at, point{"c_total", float64(i), at.Add(time.Duration(i) * time.Minute)}))
			}
		} else {
			list = append(list, a.build(boot, 11, at, point{"c_total", 100, at.Add(20 * time.Minute)}))
		}
		a.accept(list...)
		var batches []publishedtest.Batch
		for _, b := range list {
			own := &frame.Batch{}
			if err := frame.Decode(b.frame, own, frame.Limits{}); err != nil {
				t.Fatal(err)
			}
			batches = append(batches, publishedtest.Batch{Frame: own, AcceptedAt: at.UnixNano()})
		}
		for _, h := range publishedtest.Hours(batches) {
			a.publish(h, 1, batches)
		}
	}, nil)
	for name, n := range f.nodes {
		e := n.get("/api/v1/query_range", "query", "increase(c_total[1h])", "start", unix(end.Add(-3*time.Hour)), "end", unix(end.Add(-3*time.Hour)), "step", "3600")
		var got []float64
		for _, v := range e.results(t) {
			got = v
		}
		// 100 over 20 minutes, extrapolated; with the samples of one region alone it is below 20.
		if len(got) != 1 || got[0] < 90 {
			t.Errorf("%s: %v %s", name, got, e.Error)
		}
	}
}

// TestLimitsAreKeptByTheOneThatAsks: a region that sends more than it was told to does not get further.
func TestLimitsAreKeptByTheOneThatAsks(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("m%02d", i))
	}
	a := newAuthority(t)
	w := &network{addr: map[string]string{}}
	// Random values, so that they take what they take: 50 series with 800 samples of some nine bytes.
	var block []byte
	rnd := rand.New(rand.NewPCG(5, 5))
	enc := foreign.Writer{Emit: func(b []byte) error { block = append(block, b...); return nil }}
	for _, name := range names {
		run := samples.Run{}
		for k := range 800 {
			run.T, run.V = append(run.T, at.UnixMilli()+int64(k-799)*300), append(run.V, rnd.NormFloat64())
		}
		if err := errors.Join(enc.Series(labels.FromStrings("__name__", name, "agent", "far"), agentlabel.Seen{}), enc.Run(&run)); err != nil {
			t.Fatal(err)
		}
	}
	if err := enc.Flush(); err != nil {
		t.Fatal(err)
	}
	w.set("us", peer{answer: func(s regionStream, _ *queryv1.ReadRequest) error {
		if err := s.Send(opened("us", "agent", foreign.Version)); err != nil {
			return err
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(part(2, block, false)); err != nil {
			return err
		}
		if err := s.Send(finished(2)); err != nil {
			return err
		}
		_, err := s.Recv()
		return err
	}}.serve(t, true))
	for limit, change := range map[string]func(c *query.Config){
		"limits.series":        func(c *query.Config) { c.Limits.Series = 49 },
		"limits.chunk_samples": func(c *query.Config) { c.Limits.ChunkSamples = 49 },
		"fanout.bytes":         func(c *query.Config) { c.Fanout.Bytes = config.Bytes(len(block) - 1) },
		// Enough for the answer and for what is evaluated, and not for what comes.
		"limits.memory": func(c *query.Config) { c.Limits.Memory = config.Bytes(len(block) - 1000) },
		"":              func(*query.Config) {},
	} {
		n := startWith(t, a, query.Deps{Now: time.Now, DialRegions: w.dial()}, func(cfg *query.Config) {
			cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: endpoint("us"), Timeout: time.Minute}}
			change(cfg)
		})
		<-n.Complete()
		e := n.get("/api/v1/query", "query", `count({__name__=~"m.*"})`, "time", unix(at))
		if limit == "" && e.value() != "50" || limit != "" && (e.code != 422 || !strings.Contains(e.Error, limit)) {
			t.Errorf("%s: %d %s %s", limit, e.code, e.value(), e.Error)
		}
	}
}
