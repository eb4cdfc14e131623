package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Mirror is a copy of everything about ownership in etcd, kept up to date by a watch. It may lag, so a decision
// that is based on it compares revisions when it is written.
type Mirror struct {
	c    *Client
	keys keys
	log  *slog.Logger

	mu      sync.Mutex
	states  map[ownership.Kind]*State
	rev     int64
	changed chan struct{}
	failure error
}

// Waits of the mirror.
const (
	mirrorMin, mirrorMax = 250 * time.Millisecond, 2 * time.Second
	// pollEvery is how often etcd is asked whether it still is where the mirror is.
	pollEvery = time.Second
)

// NewMirror makes a mirror; Run fills it.
func NewMirror(c *Client, log *slog.Logger) *Mirror {
	return &Mirror{c: c, keys: keys{c.Prefix}, log: log, states: map[ownership.Kind]*State{}, changed: make(chan struct{}),
		failure: errors.New("etcd was not read yet")}
}

// State of a kind.
func (m *Mirror) State(k ownership.Kind) *State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.states[k]; ok {
		return s
	}
	return newState()
}

// Changed returns a channel that is closed at the next change. Take it before reading the state.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Err says why the mirror may lag: nil while etcd answers.
func (m *Mirror) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// Run keeps the mirror until ctx ends.
func (m *Mirror) Run(ctx context.Context) error {
	for backoff := run.NewBackoff(mirrorMin, mirrorMax); ; {
		err := m.follow(ctx, backoff.Reset)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.fail(err)
		m.log.Warn("the watch of etcd ended; reading everything again", "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

// follow reads everything, calls loaded, then watches until something goes wrong.
func (m *Mirror) follow(ctx context.Context, loaded func()) error {
	restores := m.c.Restores() // one that load finds is counted later, and everything read once more
	if err := m.load(ctx); err != nil {
		return err
	}
	loaded()
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	m.mu.Lock()
	rev := m.rev
	m.mu.Unlock()
	events := m.c.Etcd.Watch(wctx, m.keys.ownership(), clientv3.WithPrefix(), clientv3.WithRev(rev+1))
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r, ok := <-events:
			if !ok {
				return errors.New("the watch was closed")
			}
			if err := r.Err(); err != nil {
				return fmt.Errorf("etcd: watch: %w", err)
			}
			m.advance(r.Header.Revision, r.Events)
		case <-poll.C:
			if err := m.scan(ctx); err != nil {
				return err
			}
			if m.c.Restores() != restores { // a write has noticed a restore
				return ErrBehind
			}
		}
	}
}

// load reads every key at one revision.
func (m *Mirror) load(ctx context.Context) error {
	before := m.c.revision.Load()
	ctx, cancel := m.c.Bound(ctx)
	defer cancel()
	r, err := m.c.Etcd.Get(ctx, m.keys.ownership(), clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("etcd: read %s: %w", m.keys.ownership(), err)
	}
	// No reason to fail here: what was just read is what etcd has now.
	if err := m.c.at(r.Header, before); err != nil {
		m.log.Warn("etcd was restored, or is another one; everything is read again", "error", err)
	}
	states := map[ownership.Kind]*State{}
	// The numbers of shards first: other keys need them.
	slices.SortStableFunc(r.Kvs, func(a, b *kv) int {
		return cmp.Compare(m.rank(a), m.rank(b))
	})
	for _, v := range r.Kvs {
		m.apply(states, string(v.Key), v)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states, m.rev = states, r.Header.Revision
	m.failure = nil
	m.wake()
	return nil
}

func (m *Mirror) rank(v *kv) int {
	if _, f, _, _ := m.keys.parse(string(v.Key)); f == familyShards {
		return 0
	}
	return 1
}

// advance applies the events of one revision or more.
func (m *Mirror) advance(rev int64, events []*clientv3.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	copied := map[ownership.Kind]bool{}
	for _, e := range events {
		kind, _, _, ok := m.keys.parse(string(e.Kv.Key))
		if !ok {
			continue
		}
		if s := m.states[kind]; s != nil && !copied[kind] {
			// Readers hold the old state without a lock, so it is copied once for each response and never changed.
			m.states[kind] = s.clone()
		}
		copied[kind] = true
		v := e.Kv
		if e.Type == mvccpb.Event_DELETE {
			v = nil
		}
		m.apply(m.states, string(e.Kv.Key), v)
	}
	m.rev = max(m.rev, rev)
	if len(events) > 0 {
		m.wake()
	}
}

// apply takes over one key. A value that can't be read is left out, which is logged.
func (m *Mirror) apply(states map[ownership.Kind]*State, key string, v *kv) {
	kind, f, name, ok := m.keys.parse(key)
	if !ok {
		m.log.Warn("ignoring an unknown key in etcd", "key", key)
		return
	}
	s := states[kind]
	if s == nil {
		s = newState()
		states[kind] = s
	}
	if err := s.apply(f, name, v); err != nil {
		m.log.Error("ignoring a value in etcd that can't be read", "key", key, "error", err)
	}
}

// scan asks etcd for its revision. A revision below one that was seen, or another cluster id, means that etcd was
// restored, and then the mirror is no longer true.
func (m *Mirror) scan(ctx context.Context) error {
	before := m.c.revision.Load()
	ctx, cancel := m.c.Bound(ctx)
	defer cancel()
	// Any linearizable read tells the revision; one that counts a few keys is cheap.
	r, err := m.c.Etcd.Get(ctx, m.keys.election(), clientv3.WithCountOnly())
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd: the user may not read %s: %w", m.keys.election(), err)
	case err != nil:
		return fmt.Errorf("etcd: no answer: %w", err)
	}
	if err := m.c.at(r.Header, before); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = nil
	return nil
}

func (m *Mirror) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
	m.wake()
}

// wake notifies everyone who waits for a change. The caller holds mu.
func (m *Mirror) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}
