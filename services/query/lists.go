package query

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// listTimeout bounds a list of conflicts, which is read from the store.
	listTimeout = 30 * time.Second
)

func pageSize(n int32) (int, error) {
	switch {
	case n < 0:
		return 0, invalid("page_size is negative")
	case n == 0:
		return defaultPage, nil
	}
	return min(int(n), maxPage), nil
}

func invalid(format string, args ...any) error {
	return rpc.Failure{Code: codes.InvalidArgument, Reason: rpc.ReasonInvalidArgument, Message: fmt.Sprintf(format, args...)}.Err()
}

// pageToken makes the token of a page: the last key of the page before.
func pageToken(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func tokenKey(token, prefix string) (string, error) {
	if token == "" {
		return "", nil
	}
	key, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || !strings.HasPrefix(string(key), prefix) {
		return "", invalid("page_token is not of this list")
	}
	return string(key), nil
}

// ListAgents lists what the follower knows of each (agent, boot).
func (v *server) ListAgents(ctx context.Context, req *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
	n, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	key, err := tokenKey(req.GetPageToken(), layout.BootsPrefix)
	if err != nil {
		return nil, err
	}
	var after identity.Boot
	if key != "" {
		if after, err = layout.ParseBoot(key); err != nil {
			return nil, invalid("page_token is not of this list")
		}
	}
	scope, err := v.s.eval.Scope(req.GetRegions())
	if err != nil {
		return nil, failure(err)
	}
	st := v.s.follow.Status()
	own := func() answer.Completeness { return v.s.eval.Completeness(st) }
	q, done := v.s.eval.Ask(ctx, answer.In{Scope: scope, Caller: regions.CallerFrom(ctx)})
	defer done()
	if q != nil {
		return v.agentsOf(ctx, q, scope, own, req.GetAgentId(), after, n)
	}
	list := v.s.follow.Agents(req.GetAgentId(), after, n+1)
	out := &queryv1.ListAgentsResponse{Completeness: protoCompleteness(own())}
	if len(list) > n {
		list = list[:n]
		out.NextPageToken = pageToken(layout.Boot(list[n-1].Boot))
	}
	for _, a := range list {
		out.Agents = append(out.Agents, protoAgent(a))
	}
	return out, nil
}

// agentsOf is ListAgents of several regions.
func (v *server) agentsOf(ctx context.Context, q *regions.Query, scope regions.Scope, own func() answer.Completeness, agent string, after identity.Boot, n int) (*queryv1.ListAgentsResponse, error) {
	var parts []page[*queryv1.Agent]
	// This region's page is read while the others make theirs.
	if scope.Own {
		p := page[*queryv1.Agent]{}
		list := v.s.follow.Agents(agent, after, n+1)
		p.more = len(list) > n
		for _, a := range list[:min(len(list), n)] {
			x := protoAgent(a)
			x.Regions = []string{v.s.peers.Own()}
			p.entries = append(p.entries, x)
		}
		parts = append(parts, p)
	}
	others, err := q.Agents(ctx, &queryv1.SelectAgents{AgentId: agent, AfterAgentId: after.Agent, AfterBootId: after.Boot, Limit: int32(n)})
	if err != nil {
		return nil, failure(err)
	}
	for _, l := range others {
		for _, a := range l.Agents {
			a.Regions = []string{l.Region}
		}
		parts = append(parts, page[*queryv1.Agent]{l.Agents, l.More})
	}
	list, more := cutPage(parts, n, agentKey)
	out := &queryv1.ListAgentsResponse{Agents: mergeAgents(list), Completeness: protoCompleteness(v.s.eval.CompletenessIn(scope, own, q))}
	if k := len(out.Agents); more && k > 0 {
		out.NextPageToken = pageToken(layout.Boot(bootOf(out.Agents[k-1])))
	}
	return out, nil
}

// ListConflicts reads the quarantine records.
func (v *server) ListConflicts(ctx context.Context, req *queryv1.ListConflictsRequest) (*queryv1.ListConflictsResponse, error) {
	n, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	prefix := quarantineOf(req.GetAgentId())
	after, err := tokenKey(req.GetPageToken(), prefix)
	if err != nil {
		return nil, err
	}
	scope, err := v.s.eval.Scope(req.GetRegions())
	if err != nil {
		return nil, failure(err)
	}
	q, done := v.s.eval.Ask(ctx, answer.In{Scope: scope, Caller: regions.CallerFrom(ctx)})
	defer done()
	if q != nil {
		return v.conflictsOf(ctx, q, scope, req.GetAgentId(), after, n)
	}
	list, next, err := conflicts(ctx, v.s.store, prefix, after, n)
	if err != nil {
		return nil, err
	}
	out := &queryv1.ListConflictsResponse{Conflicts: list}
	if next != "" {
		out.NextPageToken = pageToken(next)
	}
	return out, nil
}

// conflictsOf is ListConflicts of several regions. A frame that was refused in two of them has two entries.
func (v *server) conflictsOf(ctx context.Context, q *regions.Query, scope regions.Scope, agent, after string, n int) (*queryv1.ListConflictsResponse, error) {
	var parts []page[*queryv1.KeyedConflict]
	if scope.Own {
		list, next, err := conflicts(ctx, v.s.store, quarantineOf(agent), after, n)
		if err != nil {
			return nil, err
		}
		p := page[*queryv1.KeyedConflict]{more: next != ""}
		for _, c := range list {
			c.Region = v.s.peers.Own()
			p.entries = append(p.entries, &queryv1.KeyedConflict{Key: keyOf(c), Conflict: c})
		}
		parts = append(parts, p)
	}
	others, err := q.Conflicts(ctx, &queryv1.SelectConflicts{AgentId: agent, After: after, Limit: int32(n)})
	if err != nil {
		return nil, failure(err)
	}
	for _, l := range others {
		p := page[*queryv1.KeyedConflict]{more: l.More}
		for _, k := range l.Conflicts {
			if k.GetConflict() != nil {
				k.Conflict.Region = l.Region
				p.entries = append(p.entries, k)
			}
		}
		parts = append(parts, p)
	}
	list, more := cutPage(parts, n, (*queryv1.KeyedConflict).GetKey)
	c := v.s.eval.CompletenessIn(scope, func() answer.Completeness { return v.s.eval.Completeness(v.s.follow.Status()) }, q)
	out := &queryv1.ListConflictsResponse{Regions: protoRegions(c.Regions)}
	for _, k := range list {
		out.Conflicts = append(out.Conflicts, k.Conflict)
	}
	if k := len(list); more && k > 0 {
		out.NextPageToken = pageToken(list[k-1].GetKey())
	}
	return out, nil
}

// conflicts reads a page of quarantine records. For a record that can't be read it lists what the key says.
func conflicts(ctx context.Context, store objstore.Reader, prefix, after string, n int) ([]*queryv1.IdentityConflict, string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	page, err := store.List(ctx, objstore.ListOptions{Prefix: prefix, StartAfter: after, Limit: n})
	if err != nil {
		return nil, "", err
	}
	var out []*queryv1.IdentityConflict
	for _, o := range page.Objects {
		id, sum, err := layout.ParseQuarantine(o.Key)
		if err != nil {
			continue // a foreign key; fsck reports it
		}
		c := &queryv1.IdentityConflict{
			AgentId: id.Agent, BootId: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, SubmittedSha256: sum.String(),
		}
		body, _, err := store.Get(ctx, o.Key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
		// Only a store that does not answer fails the list; one damaged record must not hide the others.
		if err != nil && !errors.Is(err, objstore.ErrNotFound) && !objstore.Unreadable(err) {
			return nil, "", err
		}
		if rec, err := accept.ParseConflictRecord(body); err == nil {
			c.AcceptedSha256 = rec.AcceptedSHA256.String()
			c.ObservedAtUnixNs = rec.ObservedAt
			c.CollectorId = rec.CollectorID
			if rec.Met != (identity.Batch{}) {
				c.AcceptedSeqStart, c.AcceptedSeqEnd = &rec.Met.SeqStart, &rec.Met.SeqEnd
			}
		}
		out = append(out, c)
	}
	return out, page.Next, nil
}
