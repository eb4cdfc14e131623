package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// stopLimit is how long the process of a coordinator with drain_timeout: 1s may take to end, on a machine that is busy. What is tested
// here took longer by more than that.
const stopLimit = 6 * time.Second

// stops ends the process by SIGTERM.
func (p *process) stops() {
	p.t.Helper()
	began := time.Now()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatal("it does not stop")
	}
	if took := time.Since(began); took > stopLimit {
		p.t.Errorf("it took %s to stop, with a drain_timeout of 1s", took)
	}
}

// members are settings of coordinators with a member each of one etcd, and a lease of 10 s, which the end of an election would wait for
// by itself.
func members(t *testing.T, n int) (cs []Config) {
	p, dir := ports(t, 3*n), t.TempDir()
	ca := newAuthority(t)
	cert, key := ca.issue("member")
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("m%d=%s", i, p[3*i+2]))
	}
	for i := range n {
		c := withRegions(quick(filepath.Join(dir, fmt.Sprint(i))), threeBuckets())
		c.HTTP.Listen, c.GRPC.Listen, c.Etcd.Embedded.Peer = p[3*i], p[3*i+1], p[3*i+2]
		c.Etcd.Embedded.PeerTLS = rpc.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.file}
		c.Etcd.Embedded.Name, c.Etcd.Embedded.Cluster = fmt.Sprintf("m%d", i), list
		c.ID, c.DrainTimeout = fmt.Sprintf("m%d", i), time.Second
		cs = append(cs, c)
	}
	return cs
}

// TestStopWithoutAQuorum: what a coordinator says last to an etcd that has lost its quorum takes no longer than drain_timeout.
func TestStopWithoutAQuorum(t *testing.T) {
	t.Parallel()
	cs := members(t, 2)
	one, other := spawn(t, "coordinator", cs[0]), spawn(t, "coordinator", cs[1])
	one.ready()
	other.ready()
	b := newBook(t, 4)
	b.work("w0", cs[0].GRPC.Listen)
	until(t, "a worker's shards", func() bool { return b.balanced("w0") })
	other.kill()
	one.stops()
}

// TestStopBeforeAQuorum: so does one whose etcd never had one.
func TestStopBeforeAQuorum(t *testing.T) {
	t.Parallel()
	c := members(t, 2)[0]
	p := spawn(t, "coordinator", c)
	socket := filepath.Join(c.Etcd.Embedded.DataDir, "etcd", "client.sock")
	until(t, "the member", func() bool { _, err := os.Stat(socket); return err == nil })
	time.Sleep(500 * time.Millisecond) // it waits for the others by then
	p.stops()
}
