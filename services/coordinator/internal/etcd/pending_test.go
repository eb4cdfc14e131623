package etcd

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/coordination/work/worktest"
)

// member is an embedded etcd that can be stopped once and again.
type clusterMember struct {
	*embed.Etcd
	stop   func()
	config *embed.Config
}

// restart starts a stopped member again on its data.
func (m *clusterMember) restart(t *testing.T) {
	t.Helper()
	m.config.ClusterState = embed.ClusterStateFlagExisting
	e, err := embed.StartEtcd(m.config)
	if err != nil {
		t.Fatal(err)
	}
	m.Etcd, m.stop = e, sync.OnceFunc(e.Close)
	t.Cleanup(m.stop)
}

// startMembers starts an embedded cluster of n members.
func startMembers(t *testing.T, n int) []clusterMember {
	t.Helper()
	cfgs := make([]*embed.Config, n)
	var cluster []string
	peers := freePorts(t, n)
	for i := range cfgs {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprint("m", i), t.TempDir()
		client, peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}, url.URL{Scheme: "http", Host: peers[i]}
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		c.InitialClusterToken = t.Name()
		// Leases last at least 1.5 elections: a second.
		c.TickMs, c.ElectionMs = 50, 500
		c.UnsafeNoFsync = true
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		cluster = append(cluster, c.Name+"="+peer.String())
		cfgs[i] = c
	}
	members := make([]clusterMember, n)
	for i, c := range cfgs {
		c.InitialCluster = strings.Join(cluster, ",")
		e, err := embed.StartEtcd(c)
		if err != nil {
			t.Fatal(err)
		}
		members[i] = clusterMember{e, sync.OnceFunc(e.Close), c}
		t.Cleanup(members[i].stop)
	}
	for _, e := range members {
		select {
		case <-e.Server.ReadyNotify():
		case err := <-e.Err():
			t.Fatal(err)
		case <-time.After(time.Minute):
			t.Fatal("etcd does not start")
		}
	}
	return members
}

func dial(t *testing.T, members []clusterMember) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, e := range members {
		endpoints = append(endpoints, "http://"+e.Clients[0].Addr().String())
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// opener gives each case its own prefix in one etcd.
func opener(c *clientv3.Client) worktest.Open {
	var n atomic.Int64
	return func(t *testing.T, o worktest.Options) worktest.Env {
		s := NewPendingWork(c, PendingOptions{Prefix: fmt.Sprintf("/test/%d", n.Add(1)), MaxTries: o.MaxTries, MaxDead: o.MaxDead, Timeout: 10 * time.Second})
		return worktest.Env{Queue: s, Table: s, Short: time.Second}
	}
}

func TestQueueConformance(t *testing.T) {
	t.Parallel() // the suite waits for leases, most of the time
	worktest.Queue(t, opener(dial(t, startMembers(t, 1))))
}

func TestTableConformance(t *testing.T) {
	t.Parallel()
	worktest.Table(t, opener(dial(t, startMembers(t, 1))))
}
