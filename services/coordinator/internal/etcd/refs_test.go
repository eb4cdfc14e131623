package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish/refstest"
)

// startEtcd gives a client, and what stops etcd.
func startEtcd(t *testing.T) (func(), *clientv3.Client) {
	t.Helper()
	peers, err := proc.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	peer := url.URL{Scheme: "http", Host: peers[0]}
	client := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Name, c.Dir = "m", t.TempDir()
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = "m=" + peer.String()
	c.UnsafeNoFsync = true
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(e.Close)
	t.Cleanup(stop)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd does not start")
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.Clients[0].Addr().String()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return stop, cl
}

func TestConformance(t *testing.T) {
	_, c := startEtcd(t)
	var n atomic.Int64
	refstest.Run(t, func(*testing.T) publish.Refs { return NewRefs(c, fmt.Sprintf("/test/%d", n.Add(1)), 10*time.Second) })
}

// A listing whose records have more keys than one request reads.
func TestListingOfLongSets(t *testing.T) {
	_, c := startEtcd(t)
	r := NewRefs(c, "/test", 10*time.Second)
	ctx := context.Background()
	f := publish.Epoch{ID: "0000000000000000000000000000000a"}
	if err := r.InitEpoch(ctx, nil, f); err != nil {
		t.Fatal(err)
	}
	keys := make([]string, publish.MaxAdd)
	for i := range keys {
		keys[i] = refstest.Key(i)
	}
	const txns = 2*listPage/publish.MaxAdd + 1
	for n := range uint64(txns) {
		if err := r.Add(ctx, f.ID, publish.Addition{Txn: refstest.Txn(n + 1), Keys: keys}); err != nil {
			t.Fatal(err)
		}
	}
	after, seen := "", 0
	for {
		recs, next, err := r.List(ctx, after, 40)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			if rec.Key != keys[seen] || len(rec.Txns) != txns {
				t.Fatalf("record %d: %s with %d transactions", seen, rec.Key, len(rec.Txns))
			}
			seen++
		}
		if after = next; next == "" {
			break
		}
	}
	if seen != len(keys) {
		t.Errorf("%d of %d records", seen, len(keys))
	}
}

// Without etcd every answer is "unknown", within the deadline.
func TestNoEtcd(t *testing.T) {
	stop, c := startEtcd(t)
	r := NewRefs(c, "/test", 200*time.Millisecond)
	stop()
	if _, err := r.Epoch(context.Background()); err == nil {
		t.Fatal("an answer without etcd")
	} else if !isUnknown(err) {
		t.Error(err)
	}
	if err := r.Add(context.Background(), "x", publish.Addition{Txn: refstest.Txn(1), Keys: []string{"k"}}); !isUnknown(err) {
		t.Error(err)
	}
}

func isUnknown(err error) bool { return errors.Is(err, publish.ErrRefsUnknown) }
