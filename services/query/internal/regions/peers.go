package regions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// Peers are the other regions of a node.
type Peers struct {
	own        string
	agentLabel string
	cfg        Config
	list       []*peer
	m          metrics
}

// peer is one other region. Its connection is made with the first query.
type peer struct {
	name    string
	timeout time.Duration
	conn    *grpc.ClientConn
	client  queryv1.RegionServiceClient
	slots   chan struct{}
}

type metrics struct {
	queries *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	bytes   *prometheus.CounterVec
	samples *prometheus.CounterVec
}

// answered is the outcome of a region that is in the answer.
const answered = "answered"

// New prepares connections; none is made. Errors are those of credentials that can't be read.
func New(own claims.Region, others []Region, agentLabel string, cfg Config, reg prometheus.Registerer, extra ...grpc.DialOption) (*Peers, error) {
	p := &Peers{own: string(own), agentLabel: agentLabel, cfg: cfg}
	if len(others) > 0 {
		f := promauto.With(reg)
		p.m = metrics{
			queries: f.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_region_queries_total",
				Help: "Queries that asked another region, by how that ended: answered, or why it is not in the answer."}, []string{"region", "outcome"}),
			seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: "lightmetrics_query_region_seconds",
				Help: "Time until another region had answered one request of a query.", Buckets: prometheus.ExponentialBuckets(.001, 4, 8)}, []string{"region"}),
			bytes: f.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_region_bytes_total",
				Help: "Bytes of series that another region sent."}, []string{"region"}),
			samples: f.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_region_samples_total",
				Help: "Samples, or values of rolled rows, that another region sent."}, []string{"region"}),
		}
	}
	for _, r := range others {
		conn, err := rpc.Dial(r.Endpoint, r.Client, extra...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("region %s: %w", r.Name, err), p.Close())
		}
		x := &peer{name: string(r.Name), timeout: r.Timeout, conn: conn, client: queryv1.NewRegionServiceClient(conn), slots: make(chan struct{}, cfg.Concurrency)}
		if x.timeout == 0 {
			x.timeout = cfg.Timeout
		}
		p.list = append(p.list, x)
		// Alerts see the first failure.
		p.m.queries.WithLabelValues(x.name, answered)
		p.m.seconds.WithLabelValues(x.name)
		p.m.bytes.WithLabelValues(x.name)
		p.m.samples.WithLabelValues(x.name)
		for _, reason := range Reasons() {
			p.m.queries.WithLabelValues(x.name, string(reason))
		}
	}
	slices.SortFunc(p.list, func(a, b *peer) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return p, nil
}

// Close ends the connections; no query may be open.
func (p *Peers) Close() error {
	var errs []error
	for _, x := range p.list {
		errs = append(errs, x.conn.Close())
	}
	return errors.Join(errs...)
}

// Own is the name of this node's region; empty where it has none.
func (p *Peers) Own() string { return p.own }

// Any reports whether there are other regions.
func (p *Peers) Any() bool { return len(p.list) > 0 }

// Scope is the regions that a query reads.
type Scope struct {
	// Own is this region, Others the names of others, sorted.
	Own    bool
	Others []string
}

// OwnOnly reads this region alone.
var OwnOnly = Scope{Own: true}

// UnknownError: a request names a region that this node does not know.
type UnknownError struct {
	Region string
	Known  []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("region %.64q is not one of %v, and neither %q nor %q", e.Region, e.Known, All, Local)
}

// ParseScope reads what a request names: "all", "local", or regions. Nothing is the default. Errors: *UnknownError.
func (p *Peers) ParseScope(names []string) (Scope, error) {
	var known []string
	if p.own != "" {
		known = append(known, p.own)
	}
	var others []string
	for _, x := range p.list {
		known, others = append(known, x.name), append(others, x.name)
	}
	if len(names) == 0 {
		names = []string{p.cfg.Default}
	}
	var s Scope
	for _, name := range names {
		switch {
		case name == All:
			s = Scope{Own: true, Others: others}
		case name == Local, name == p.own && name != "":
			s.Own = true
		case slices.Contains(others, name):
			if !slices.Contains(s.Others, name) {
				s.Others = append(slices.Clone(s.Others), name)
			}
		default:
			return s, &UnknownError{name, known}
		}
	}
	slices.Sort(s.Others)
	return s, nil
}

// Caller is the principal of a request, which is sent to the other regions.
type Caller struct {
	Principal string
	Roles     []string
}

// CallerFrom is the principal of a request. Without one the other regions refuse the request.
func CallerFrom(ctx context.Context) Caller {
	p, _ := rpc.PrincipalFrom(ctx)
	c := Caller{Principal: p.Name}
	for _, r := range p.Roles {
		c.Roles = append(c.Roles, string(r))
	}
	return c
}
