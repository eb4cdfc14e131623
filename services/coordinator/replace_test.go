package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// TestAMemberThatLostItsDiskIsReplaced: by the procedure of docs/guide/coordinator.md the cluster has three members again, of which
// any one may be lost. Without etcd.embedded.join the member does not start, and harms nothing.
func TestAMemberThatLostItsDiskIsReplaced(t *testing.T) {
	t.Parallel()
	const n = 3
	p, dir := ports(t, 3*n), t.TempDir()
	ca := newAuthority(t)
	cert, key := ca.issue("member")
	members, addrs := []string{}, []string{}
	for i := range n {
		members = append(members, fmt.Sprintf("m%d=%s", i, p[3*i+2]))
		addrs = append(addrs, p[3*i+1])
	}
	var cfgs [n]Config
	var ps [n]*process
	for i := range n {
		c := brief(filepath.Join(dir, fmt.Sprint(i)))
		c.HTTP.Listen, c.GRPC.Listen, c.Etcd.Embedded.Peer = p[3*i], p[3*i+1], p[3*i+2]
		c.Etcd.Embedded.PeerTLS = rpc.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.file}
		c.Etcd.Embedded.Name, c.Etcd.Embedded.Cluster = fmt.Sprintf("m%d", i), members
		c.ID = fmt.Sprintf("m%d", i)
		cfgs[i] = c
		ps[i] = spawn(t, "coordinator", c)
	}
	for i := range n {
		ps[i].ready()
	}
	ps[2].kill()
	must(t, os.RemoveAll(cfgs[2].Etcd.Embedded.DataDir))
	if spawn(t, "coordinator", cfgs[2]).started() {
		t.Fatal("a member without data serves in a cluster that knows another one of its name")
	}

	// What etcdctl member remove and member add do.
	socket := "unix:" + filepath.Join(cfgs[0].Etcd.Embedded.DataDir, "etcd", "client.sock")
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{socket}})
	must(t, err)
	defer cl.Close()
	list, err := cl.MemberList(bounded(t))
	must(t, err)
	place := "https://" + p[3*2+2]
	for _, m := range list.Members {
		if m.Name == "m2" {
			_, err = cl.MemberRemove(bounded(t), m.ID)
			must(t, err)
		}
	}
	until(t, "the place of the new member", func() bool { // etcd refuses it while members have not been connected for long
		_, err = cl.MemberAdd(bounded(t), []string{place})
		return err == nil
	})
	must(t, os.RemoveAll(cfgs[2].Etcd.Embedded.DataDir))
	cfgs[2].Etcd.Embedded.Join = true
	ps[2] = coordinate(t, cfgs[2])
	// Once it has data the setting has no effect.
	ps[2].kill()
	ps[2] = coordinate(t, cfgs[2])

	ps[1].kill()
	b := newBook(t, 4)
	b.work("w0", addrs...)
	until(t, "a worker's shards, by the new member and one of the first three", func() bool { return b.balanced("w0") })
}
