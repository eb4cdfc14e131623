package ingest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	grpcpeer "google.golang.org/grpc/peer"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const (
	// maxNoted bounds the keys of which a collector remembers that they are recorded.
	maxNoted = 4096
	// noteTimeout bounds the requests of one record. Its sender waits meanwhile.
	noteTimeout = 5 * time.Second
)

// noted remembers what this collector has recorded for operators, so that a sender that says the same again and again
// costs no request. What it forgets is found in the bucket.
type noted struct {
	mu   sync.Mutex
	keys *lru.Cache[string, struct{}]
}

func newNoted() *noted { return &noted{keys: lru.New[string, struct{}](maxNoted)} }

func (n *noted) has(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.keys.Get(key)
	return ok
}

func (n *noted) put(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys.Put(key, struct{}{}, 1)
}

// note records the clash that err is, if it is one. What can't be recorded is logged, and tried again at the next
// refusal: the sender is refused in any case.
func (n *noted) note(ctx context.Context, s *Service, a *authority, boot identity.Boot, spoolID string, err error) {
	var refused *accept.RefusedError
	if !errors.As(err, &refused) || refused.Reason != accept.ReasonBootIDClash {
		return
	}
	// A boot of which enough is recorded is remembered by itself: spool ids are the senders' choice.
	c := resolution.Clash{AuthorityID: a.authorityID, AgentID: boot.Agent, BootID: boot.Boot, SpoolID: spoolID, Peer: peerHost(ctx), ObservedAt: max(s.now().UnixNano(), 0), CollectorID: s.collectorID}
	full := "full " + boot.String()
	if n.has(c.Key()) || n.has(full) {
		return
	}
	// The refusal may follow from the end of ctx's time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	switch err := resolution.RecordClash(ctx, s.store, c); {
	case err == nil:
		n.put(c.Key())
	case errors.Is(err, resolution.ErrManyClashes):
		n.put(full)
		s.tel.Log.Warn("a boot id is used by more spools than are recorded", "agent", boot.Agent, "boot", boot.Boot, "recorded", resolution.MaxClashes)
	default:
		s.tel.Log.Warn("a boot clash could not be recorded", "agent", boot.Agent, "boot", boot.Boot, "spool_id", spoolID, "error", err)
	}
}

// whereabouts records where an agent says that it has a frame parked. It is for people, so nothing fails with it.
func (n *noted) whereabouts(ctx context.Context, s *Service, a *authority, req *ingestv1.SettleConflictsRequest, id identity.Batch, sum identity.Digest) {
	if req.GetHost() == "" {
		return // a former release
	}
	p := resolution.Parked{AuthorityID: a.authorityID, AgentID: id.Agent, BootID: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, SubmittedSHA256: sum,
		Host: req.GetHost(), Page: req.GetPage(), Directory: req.GetDirectory(), Peer: peerHost(ctx), ObservedAt: max(s.now().UnixNano(), 0), CollectorID: s.collectorID}.Cut()
	if n.has(p.Key()) {
		return
	}
	if err := resolution.RecordParked(ctx, s.store, p); err != nil {
		s.errlog.log(ctx, "where a frame is parked could not be recorded", "reason", "PARKED_RECORD", "identity", id.String(), "error", err)
		return
	}
	n.put(p.Key())
}

// peerHost is the network address of the caller, without its port; empty where it is not known.
func peerHost(ctx context.Context) string {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil || len(host) > 64 {
		return ""
	}
	return host
}
