package etcd

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

var (
	// ErrSessionLost: the lease has ended, or the token is not of a session.
	ErrSessionLost = errors.New("the session has ended")
	// ErrTooMany: no more sessions of a kind.
	ErrTooMany = fmt.Errorf("a kind has at most %d sessions", ownership.MaxWorkers)
	// ErrNoWorker: no such worker is registered.
	ErrNoWorker = errors.New("no such worker")
)

// ShardCountError: the kind has another number of shards than the worker is set to.
type ShardCountError struct {
	Kind       ownership.Kind
	Have, Want uint32
}

func (e *ShardCountError) Error() string {
	return fmt.Sprintf("%s has %d shards, not %d", e.Kind, e.Have, e.Want)
}

// Sessions begins, keeps and ends workers' sessions. It works on every coordinator, not only on the leader.
type Sessions struct {
	c      *Client
	keys   keys
	mirror *Mirror
	ttl    time.Duration
}

// NewSessions makes sessions whose leases live for ttl, in whole seconds, or longer
// where etcd's own timing demands it.
func NewSessions(c *Client, m *Mirror, ttl time.Duration) *Sessions {
	return &Sessions{c: c, keys: keys{c.Prefix}, mirror: m, ttl: ttl}
}

// Held is a session that this process serves.
type Held struct {
	Kind    ownership.Kind
	ID      ownership.Session
	Token   string
	Shards  uint32
	Worker  string
	Address string
}

// Begin starts a session. It returns the lease's time to live.
func (s *Sessions) Begin(ctx context.Context, kind ownership.Kind, worker, address, principal string, shards uint32, now time.Time) (Held, time.Duration, error) {
	if err := s.fix(ctx, kind, shards); err != nil {
		return Held{}, 0, err
	}
	// The mirror may lag, so several workers that come at once can exceed the bound by their number.
	if len(s.mirror.State(kind).Sessions) >= ownership.MaxWorkers {
		return Held{}, 0, ErrTooMany
	}
	gctx, cancel := s.c.Bound(ctx)
	defer cancel()
	lease, err := s.c.Etcd.Grant(gctx, int64((s.ttl+time.Second-1)/time.Second))
	if err != nil {
		return Held{}, 0, fmt.Errorf("etcd: grant a lease: %w", err)
	}
	failpoint.Hit("coordinator.session.lease.after")
	h := Held{Kind: kind, ID: ownership.Session(lease.ID), Shards: shards, Worker: worker, Address: address}
	// Lease ids appear in logs and can be guessed; the nonce keeps a worker from continuing another one's session.
	nonce := rand.Text()
	h.Token = fmt.Sprintf("%016x-%s", uint64(h.ID), nonce)
	key := s.keys.session(kind, h.ID)
	_, err = s.c.txn(ctx, key, nil, clientv3.OpPut(key, encode(sessionRecord{
		Worker: worker, Address: address, Principal: principal, Nonce: nonce, SinceNS: now.UnixNano(),
	}), clientv3.WithLease(lease.ID)))
	if err != nil {
		return Held{}, 0, err // nothing refers to the lease, which ends by itself
	}
	return h, time.Duration(lease.TTL) * time.Second, nil
}

// fix writes the number of shards of a kind if there is none, and compares it with shards.
func (s *Sessions) fix(ctx context.Context, kind ownership.Kind, shards uint32) error {
	if err := shard.CheckCount(shards); err != nil {
		return err
	}
	key := s.keys.shards(kind)
	// Whether this call's create succeeded does not matter: the first worker's number counts.
	if _, err := s.c.txn(ctx, key, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		clientv3.OpPut(key, encode(shardsRecord{Shards: shards}))); err != nil {
		return err
	}
	v, err := s.c.get(ctx, key)
	if err != nil || v == nil {
		return errors.Join(err, fmt.Errorf("etcd: %s: read back", key))
	}
	var r shardsRecord
	if err := decode(v, &r); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if r.Shards != shards {
		return &ShardCountError{Kind: kind, Have: r.Shards, Want: shards}
	}
	return nil
}

// Continue finds a session by its token, which only its worker knows.
func (s *Sessions) Continue(ctx context.Context, kind ownership.Kind, worker, token, principal string) (Held, time.Duration, error) {
	name, nonce, ok := strings.Cut(token, "-")
	id, err := parseSession(name)
	if !ok || err != nil {
		return Held{}, 0, ErrSessionLost
	}
	v, r, err := s.read(ctx, kind, id)
	if err != nil {
		return Held{}, 0, err
	}
	// One answer for every cause, so that a caller can't find out which sessions exist.
	if v == nil || r.Worker != worker || r.Principal != principal || subtle.ConstantTimeCompare([]byte(r.Nonce), []byte(nonce)) != 1 {
		return Held{}, 0, ErrSessionLost
	}
	h := Held{Kind: kind, ID: id, Token: token, Worker: worker, Address: r.Address}
	ttl, err := s.KeepAlive(ctx, h)
	return h, ttl, err
}

func (s *Sessions) read(ctx context.Context, kind ownership.Kind, id ownership.Session) (*kv, sessionRecord, error) {
	var r sessionRecord
	key := s.keys.session(kind, id)
	v, err := s.c.get(ctx, key)
	if err != nil || v == nil {
		return nil, r, err
	}
	if err := decode(v, &r); err != nil {
		return nil, r, fmt.Errorf("etcd: %w", err)
	}
	return v, r, nil
}

// KeepAlive renews the lease and returns its time to live, counted from before the call.
func (s *Sessions) KeepAlive(ctx context.Context, h Held) (time.Duration, error) {
	ctx, cancel := s.c.Bound(ctx)
	defer cancel()
	r, err := s.c.Etcd.KeepAliveOnce(ctx, clientv3.LeaseID(h.ID))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, ErrSessionLost
	case err != nil:
		return 0, fmt.Errorf("etcd: renew lease %x: %w", uint64(h.ID), err)
	}
	return time.Duration(r.TTL) * time.Second, nil
}

// Release releases a shard. A grant that is not the session's, or not any more, is left as it is.
func (s *Sessions) Release(ctx context.Context, h Held, n shard.ID, epoch ownership.Epoch) error {
	key := s.keys.grant(h.Kind, n)
	v, err := s.c.get(ctx, key)
	if err != nil || v == nil {
		return err
	}
	var r grantRecord
	if err := decode(v, &r); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if r.Session != h.ID || r.Epoch != epoch {
		return nil
	}
	// If the comparison fails, the grant has ended otherwise or is another one, and there is nothing to release.
	_, err = s.c.txn(ctx, key, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", v.ModRevision)}, clientv3.OpDelete(key))
	return err
}

// Drain marks a session as draining, or removes the mark.
func (s *Sessions) Drain(ctx context.Context, kind ownership.Kind, id ownership.Session, draining bool) error {
	key := s.keys.session(kind, id)
	for {
		v, r, err := s.read(ctx, kind, id)
		if err != nil {
			return err
		}
		if v == nil {
			return ErrSessionLost
		}
		if r.Draining == draining {
			return nil
		}
		r.Draining = draining
		// Keep the lease of the session: writing without it would detach the key.
		resp, err := s.c.txn(ctx, key, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", v.ModRevision)},
			clientv3.OpPut(key, encode(r), clientv3.WithIgnoreLease()))
		if err != nil || resp.Succeeded {
			return err
		}
	}
}

// DrainWorker drains the worker's newest session; it returns the number of shards that it holds.
func (s *Sessions) DrainWorker(ctx context.Context, kind ownership.Kind, worker string, draining bool) (int, error) {
	st := s.mirror.State(kind)
	w, ok := ownership.Current(st.View().Workers)[worker]
	if !ok {
		return 0, fmt.Errorf("%w: %s %q", ErrNoWorker, kind, worker)
	}
	return st.Held()[w.Session], s.Drain(ctx, kind, w.Session, draining)
}

// End ends the session and all of its grants.
func (s *Sessions) End(ctx context.Context, h Held) error {
	ctx, cancel := s.c.Bound(ctx)
	defer cancel()
	// Session and grants are attached to the lease, so etcd deletes them together with it.
	_, err := s.c.Etcd.Revoke(ctx, clientv3.LeaseID(h.ID))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("etcd: revoke lease %x: %w", uint64(h.ID), err)
	}
	return nil
}

// Grants reads what the session holds from etcd itself, not from the mirror.
func (s *Sessions) Grants(ctx context.Context, h Held) (map[shard.ID]Grant, error) {
	ctx, cancel := s.c.Bound(ctx)
	defer cancel()
	prefix := s.keys.kind(h.Kind) + string(familyGrants) + "/"
	r, err := s.c.Etcd.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("etcd: read %s: %w", prefix, err)
	}
	held := map[shard.ID]Grant{}
	for _, v := range r.Kvs {
		n, err := shard.Parse(strings.TrimPrefix(string(v.Key), prefix))
		var g grantRecord
		if err == nil {
			err = decode(v, &g)
		}
		if err != nil {
			return nil, fmt.Errorf("etcd: %s: %w", v.Key, err)
		}
		if g.Session == h.ID {
			held[n] = Grant{Grant: ownership.Grant{Worker: g.Worker, Session: g.Session, Epoch: g.Epoch}, Fence: fence(g.Term, v.ModRevision)}
		}
	}
	return held, nil
}
