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
func (v *server) ListAgents(_ context.Context, req *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
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
	st := v.s.follow.Status()
	list := v.s.follow.Agents(req.GetAgentId(), after, n+1)
	out := &queryv1.ListAgentsResponse{Completeness: protoCompleteness(v.s.eval.Completeness(st))}
	if len(list) > n {
		list = list[:n]
		out.NextPageToken = pageToken(layout.Boot(list[n-1].Boot))
	}
	for _, a := range list {
		out.Agents = append(out.Agents, protoAgent(a))
	}
	return out, nil
}

// ListConflicts reads the quarantine records.
func (v *server) ListConflicts(ctx context.Context, req *queryv1.ListConflictsRequest) (*queryv1.ListConflictsResponse, error) {
	n, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	prefix := layout.QuarantinePrefix
	if a := req.GetAgentId(); a != "" {
		prefix += "agent=" + layout.HexText(a) + "/"
	}
	after, err := tokenKey(req.GetPageToken(), prefix)
	if err != nil {
		return nil, err
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
		}
		out = append(out, c)
	}
	return out, page.Next, nil
}
