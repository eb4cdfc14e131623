package coordinator

import (
	"cmp"
	"context"
	"slices"

	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// state of a kind, for a list. While etcd does not answer there is none: it might be old.
func (v *server) state(name string) (*etcd.State, error) {
	kind, err := ownership.ParseKind(name)
	if err != nil {
		return nil, invalid(err)
	}
	if err := v.b.mirror.Err(); err != nil {
		return nil, failure(err)
	}
	return v.b.mirror.State(kind), nil
}

// ListShards lists shards.
func (v *server) ListShards(_ context.Context, req *coordinatorv1.ListShardsRequest) (*coordinatorv1.ListShardsResponse, error) {
	st, err := v.state(req.GetKind())
	if err != nil {
		return nil, err
	}
	out := &coordinatorv1.ListShardsResponse{}
	for i, g := range st.Grants {
		out.Shards = append(out.Shards, &coordinatorv1.Shard{
			Shard: uint32(i), Owner: g.Worker, Target: st.Targets[i], Epoch: uint64(st.Epochs[i].Epoch),
			Fence: uint64(g.Fence), GrantedAtUnixNs: st.Epochs[i].AtNS,
		})
	}
	return out, nil
}

// ListWorkers lists sessions.
func (v *server) ListWorkers(_ context.Context, req *coordinatorv1.ListWorkersRequest) (*coordinatorv1.ListWorkersResponse, error) {
	st, err := v.state(req.GetKind())
	if err != nil {
		return nil, err
	}
	current, held, target := ownership.Current(st.View().Workers), st.Held(), map[string]int{}
	for _, w := range st.Targets {
		target[w]++
	}
	sessions := make([]etcd.Session, 0, len(st.Sessions))
	for _, s := range st.Sessions {
		sessions = append(sessions, s)
	}
	slices.SortFunc(sessions, func(a, b etcd.Session) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.Since, a.Since)) })
	out := &coordinatorv1.ListWorkersResponse{}
	for _, s := range sessions {
		w := &coordinatorv1.Worker{
			WorkerId: s.ID, Address: s.Address, RegisteredAtUnixNs: s.RegisteredNS(), Draining: s.Draining,
			Replaced: current[s.ID].Session != s.Session, Held: uint32(held[s.Session]),
		}
		// Targets name workers, not sessions; only the newest session of a worker counts as that worker.
		if !w.Replaced {
			w.Target = uint32(target[s.ID])
		}
		out.Workers = append(out.Workers, w)
	}
	return out, nil
}

// ListMoves lists moves.
func (v *server) ListMoves(_ context.Context, req *coordinatorv1.ListMovesRequest) (*coordinatorv1.ListMovesResponse, error) {
	st, err := v.state(req.GetKind())
	if err != nil {
		return nil, err
	}
	out := &coordinatorv1.ListMovesResponse{}
	// etcd keeps them oldest first; a reader wants the newest first.
	for _, m := range slices.Backward(st.Moves) {
		p := &coordinatorv1.Move{AtUnixNs: m.AtNS, Joined: m.Joined, Left: m.Left, Workers: uint32(m.Workers)}
		for _, n := range m.Shards {
			p.Shards = append(p.Shards, uint32(n))
		}
		out.Moves = append(out.Moves, p)
	}
	return out, nil
}

// Drain takes every shard from a worker, or ends that.
func (v *server) Drain(ctx context.Context, req *coordinatorv1.DrainRequest) (*coordinatorv1.DrainResponse, error) {
	kind, err := ownership.ParseKind(req.GetKind())
	if err != nil {
		return nil, invalid(err)
	}
	held, err := v.b.sessions.DrainWorker(ctx, kind, req.GetWorkerId(), !req.GetUndo())
	if err != nil {
		return nil, failure(err)
	}
	return &coordinatorv1.DrainResponse{Held: uint32(held)}, nil
}
