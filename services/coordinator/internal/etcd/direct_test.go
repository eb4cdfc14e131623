package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/kvtest"
)

// directMember starts a member, and a client that hands claims to it without a socket.
func directMember(t *testing.T, change func(*Config)) (*Embedded, *Client) {
	t.Helper()
	c := DefaultConfig()
	c.Embedded.DataDir, c.Embedded.ElectionTimeout, c.RequestTimeout = t.TempDir(), 200*time.Millisecond, 30*time.Second
	if change != nil {
		change(&c)
	}
	m, err := StartEmbedded(t.Context(), c.Embedded, discard)
	must(t, err)
	t.Cleanup(m.Close)
	cl, err := Dial(context.Background(), c, m.Endpoint(), discard)
	must(t, err)
	t.Cleanup(func() { _ = cl.Close() })
	cl.Direct(m)
	return m, cl
}

func putOf(key, value string) claims.Txn {
	return claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: key, Value: []byte(value)}}}}}
}

func TestDirectConformance(t *testing.T) {
	t.Parallel()
	_, c := directMember(t, nil)
	var n atomic.Int64
	kvtest.Run(t, func(*testing.T) (claims.KV, string) {
		return NewClaimStore(c), fmt.Sprintf("/test/%d/", n.Add(1))
	})
}

// TestDirectIsTheSameMember: what went in directly is there through the socket, under the same cluster id and revision.
func TestDirectIsTheSameMember(t *testing.T) {
	t.Parallel()
	_, c := directMember(t, nil)
	// What a collector sent along must not reach the member, nor may it matter.
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("token", "somebody's", "authorization", "somebody's"))
	r, err := NewClaimStore(c).Commit(ctx, putOf("/a", "1"))
	must(t, err)
	got, err := c.Etcd.Get(t.Context(), "/a")
	must(t, err)
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" || got.Kvs[0].ModRevision != r.Revision || got.Header.ClusterId != r.Cluster {
		t.Fatalf("through the socket: %v, directly: cluster %x revision %d", got, r.Cluster, r.Revision)
	}
}

// TestDirectKeepsTheMembersLimits: requests that are too large or too many, and a database that is full, are refused for certain.
func TestDirectKeepsTheMembersLimits(t *testing.T) {
	t.Parallel()
	_, c := directMember(t, func(c *Config) { c.Embedded.Quota = 16 << 20 })
	kv := NewClaimStore(c)
	if _, err := kv.Commit(t.Context(), putOf("/large", strings.Repeat("x", 2<<20))); !errors.Is(err, claims.ErrUnavailable) {
		t.Errorf("a request of 2 MiB: %v, not ErrUnavailable", err)
	}
	var parts []claims.Part
	for i := range 129 {
		parts = append(parts, claims.Part{Puts: []claims.Put{{Key: fmt.Sprintf("/many/%d", i), Value: []byte("x")}}})
	}
	if _, err := kv.Commit(t.Context(), claims.Txn{Parts: parts}); err == nil {
		t.Error("129 parts were taken")
	}
	var err error
	for i := 0; i < 64 && err == nil; i++ {
		_, err = kv.Commit(t.Context(), putOf(fmt.Sprintf("/fill/%d", i), strings.Repeat("x", 1<<20)))
	}
	if !errors.Is(err, claims.ErrUnavailable) {
		t.Fatalf("more than the quota: %v, not ErrUnavailable", err)
	}
	// The alarm is the member's, so the socket has it too.
	if _, err := c.Etcd.Put(t.Context(), "/one", "more"); err == nil {
		t.Error("a database that is full takes more through the socket")
	}
	if _, ok := mustGet(t, c, "/large"); ok {
		t.Error("what was refused is there")
	}
}

func mustGet(t *testing.T, c *Client, key string) (*kv, bool) {
	t.Helper()
	v, err := c.get(t.Context(), key)
	must(t, err)
	return v, v != nil
}

// TestDirectWithoutAQuorum: a member without the others of its cluster answers nothing, and what was asked is unknown.
func TestDirectWithoutAQuorum(t *testing.T) {
	t.Parallel()
	members := startMembers(t, 3)
	c := &Client{Etcd: dial(t, members), Timeout: 30 * time.Second}
	d := newDirect(members[0].Server)
	c.direct = d
	t.Cleanup(d.close)
	kv := NewClaimStore(c)
	_, err := kv.Commit(t.Context(), putOf("/before", "1"))
	must(t, err)
	members[1].stop()
	members[2].stop()
	c.Timeout = 2 * time.Second
	for name, txn := range map[string]claims.Txn{"write": putOf("/after", "1"), "read": {Parts: []claims.Part{{Reads: []claims.Range{{From: "/before"}}}}}} {
		if _, err := kv.Commit(t.Context(), txn); !errors.Is(err, claims.ErrUnknown) {
			t.Errorf("%s: %v, not ErrUnknown", name, err)
		}
	}
}

// TestDirectWhileTheMemberCloses: claims that come in while the member ends are done or refused, and what was told done is there
// when it starts again. None of them is under way when the database closes.
func TestDirectWhileTheMemberCloses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, c := directMember(t, func(c *Config) { c.Embedded.DataDir = dir })
	kv := NewClaimStore(c)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var told []string
	enough := make(chan struct{})
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/w/%d/%d", w, i)
				txn := putOf(key, "1")
				if w%2 == 1 { // reads go another way in the member
					txn = claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: "/w/"}}}}}
				}
				_, err := kv.Commit(context.Background(), txn)
				if errors.Is(err, claims.ErrUnavailable) {
					return // the member has ended: nothing comes after this
				}
				if err != nil && !errors.Is(err, claims.ErrUnknown) {
					t.Error(err)
					return
				}
				if err == nil && w%2 == 0 {
					mu.Lock()
					if told = append(told, key); len(told) == 50 {
						close(enough)
					}
					mu.Unlock()
				}
			}
		})
	}
	<-enough
	m.Close()
	wg.Wait()
	_, again := directMember(t, func(c *Config) { c.Embedded.DataDir = dir })
	for _, key := range told {
		if _, ok := mustGet(t, again, key); !ok {
			t.Errorf("%s was told done, and is not there", key)
		}
	}
}
