package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	promapi "github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

const (
	askTimeout  = 10 * time.Second
	maxStatus   = 1 << 20
	agentsAPage = 1000
	// countWindow is how far back CountSamples looks.
	countWindow = 2 * time.Hour
)

// Instant asks the query service over the Prometheus HTTP API, with Prometheus' own
// client, at time at. Warnings say why an answer is partial.
func (c *Cluster) Instant(ctx context.Context, expression string, at time.Time) (model.Vector, []string, error) {
	client, err := promapi.NewClient(promapi.Config{Address: "http://" + c.Addr.QueryHTTP})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	v, warnings, _, err := promv1.NewAPI(client).Query(ctx, expression, at)
	if err != nil {
		return nil, nil, fmt.Errorf("query %s: %w", expression, err)
	}
	vec, ok := v.(model.Vector)
	if !ok {
		return nil, nil, fmt.Errorf("query %s: got a %s", expression, v.Type())
	}
	return vec, warnings, nil
}

// Scalar asks for one number; 0 when the answer is empty.
func (c *Cluster) Scalar(ctx context.Context, expression string, at time.Time) (float64, []string, error) {
	vec, warnings, err := c.Instant(ctx, expression, at)
	if err != nil || len(vec) == 0 {
		return 0, warnings, err
	}
	if len(vec) > 1 {
		return 0, warnings, fmt.Errorf("query %s: got %d series", expression, len(vec))
	}
	return float64(vec[0].Value), warnings, nil
}

// CountSamples counts every sample of the last two hours with PromQL, metric by metric:
// functions over a range drop the metric's name, so one expression over all would
// give many series the same labels.
func (c *Cluster) CountSamples(ctx context.Context, at time.Time) (float64, []string, error) {
	client, err := promapi.NewClient(promapi.Config{Address: "http://" + c.Addr.QueryHTTP})
	if err != nil {
		return 0, nil, err
	}
	actx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	names, _, _, err := promv1.NewAPI(client).LabelValues(actx, model.MetricNameLabel, nil, at.Add(-countWindow), at)
	if err != nil {
		return 0, nil, fmt.Errorf("metric names: %w", err)
	}
	var total float64
	var all []string
	for _, name := range names {
		n, warnings, err := c.Scalar(ctx, fmt.Sprintf(`sum(count_over_time({__name__=%q}[%s]))`, string(name), model.Duration(countWindow)), at)
		if err != nil {
			return 0, nil, err
		}
		total += n
		// Warnings of every metric are kept: one partial answer makes the sum partial.
		all = append(all, warnings...)
	}
	return total, all, nil
}

// Agents lists what the query service knows of every agent and boot.
func (c *Cluster) Agents(ctx context.Context) ([]*queryv1.Agent, *queryv1.Completeness, error) {
	conn, err := rpc.Dial(c.Addr.QueryGRPC, rpc.ClientConfig{})
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var all []*queryv1.Agent
	req := &queryv1.ListAgentsRequest{PageSize: agentsAPage}
	for {
		resp, err := queryv1.NewQueryServiceClient(conn).ListAgents(ctx, req)
		if err != nil {
			return nil, nil, fmt.Errorf("list agents: %w", err)
		}
		all = append(all, resp.GetAgents()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return all, resp.GetCompleteness(), nil
		}
	}
}

// AgentStatus asks the agent.
func (c *Cluster) AgentStatus(ctx context.Context) (agent.Status, error) {
	var st agent.Status
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr.AgentHTTP+"/status", nil)
	if err != nil {
		return st, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return st, err
	}
	if resp.StatusCode != http.StatusOK {
		return st, fmt.Errorf("agent status: %s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return st, json.Unmarshal(b, &st)
}

// ErrGaveUp ends a Poll whose context ended first.
var ErrGaveUp = errors.New("gave up")

// pollEvery is how often Poll asks.
const pollEvery = 100 * time.Millisecond

// Poll asks until ask says true or the context ends. Errors of ask are kept for the message:
// a service that is down now may be up in a moment.
func Poll(ctx context.Context, what string, ask func() (bool, error)) error {
	var last error
	for {
		ok, err := ask()
		if ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err // not the end of ctx itself
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last error: %v)", what, ErrGaveUp, last)
		case <-time.After(pollEvery):
		}
	}
}

// Numbered is how many records the stopped agent has numbered since its boot began.
func (c *Cluster) Numbered() (uint64, error) {
	cfg := agent.DefaultConfig()
	cfg.AgentID, cfg.DataDir = c.o.AgentID, filepath.Join(c.o.Dir, "agent")
	boot, _, err := agent.Inspect(cfg)
	return boot.NextSeq - 1, err
}
