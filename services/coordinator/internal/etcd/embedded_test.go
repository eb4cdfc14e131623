package etcd

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// member starts a single member in dir.
func member(t *testing.T, dir string) (*Embedded, Config) {
	t.Helper()
	c := DefaultConfig()
	c.Embedded.DataDir, c.Embedded.ElectionTimeout = dir, 200*time.Millisecond
	m, err := StartEmbedded(t.Context(), c.Embedded, discard)
	must(t, err)
	t.Cleanup(m.Close)
	return m, c
}

// answers reads a key through the member's socket.
func answers(t *testing.T, m *Embedded, c Config) {
	t.Helper()
	cl, err := Dial(context.Background(), c, m.Endpoint(), discard)
	must(t, err)
	defer cl.Close()
	_, err = cl.get(t.Context(), "/lightmetrics/x")
	must(t, err)
}

// listening counts the TCP ports on which this process listens, by the kernel's table.
func listening(t *testing.T) int {
	t.Helper()
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil { // one is the listing's own
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	n := 0
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) { // no IPv6
			continue
		}
		must(t, err)
		for _, line := range strings.Split(string(b), "\n") {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
				n++
			}
		}
	}
	return n
}

// TestSingleMemberIsClosed: no port, and a socket that only its owner can open.
func TestSingleMemberIsClosed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	dir := t.TempDir()
	// An older member's directory may be open to others.
	must(t, os.Mkdir(filepath.Join(dir, "etcd"), 0o755))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	before := listening(t)
	if before == 0 {
		t.Fatal("the test's own listener is not seen")
	}
	m, c := member(t, dir)
	if n := listening(t) - before; n != 0 {
		t.Errorf("the member listens on %d ports", n)
	}
	for path, want := range map[string]fs.FileMode{m.socket: 0o600, c.Embedded.dir(): 0o700} {
		st, err := os.Stat(path)
		must(t, err)
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
	}
	answers(t, m, c)
	if os.Geteuid() != 0 {
		t.Skip("only root can try as another user")
	}
	if err := dialAs(65534, m.socket); !errors.Is(err, syscall.EACCES) {
		t.Errorf("another user: %v", err)
	}
	must(t, os.Chmod(c.Embedded.dir(), 0o755))
	if err := dialAs(65534, m.socket); !errors.Is(err, syscall.EACCES) {
		t.Errorf("another user, past the directory: %v", err)
	}
	must(t, dialAs(0, m.socket))
}

// TestOneMemberADirectory: a second process is refused, and the first one's socket stays.
func TestOneMemberADirectory(t *testing.T) {
	m, c := member(t, t.TempDir())
	if _, err := StartEmbedded(t.Context(), c.Embedded, discard); !errors.Is(err, ErrInUse) {
		t.Errorf("a second member: %v", err)
	}
	answers(t, m, c)
	m.Close()
	// A killed process leaves its socket.
	must(t, os.WriteFile(m.socket, nil, 0o600))
	again, _ := member(t, c.Embedded.DataDir)
	answers(t, again, c)
}

func TestMemberInARelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	m, c := member(t, "coordinator")
	answers(t, m, c)
	_, err := os.Stat(filepath.Join("coordinator", "etcd", "client.sock"))
	must(t, err)
}

// TestLongestDirectory: what Validate lets pass can be listened on.
func TestLongestDirectory(t *testing.T) {
	dir := t.TempDir()
	c := EmbeddedConfig{DataDir: dir}
	room := maxSocketPath - len(c.socket()) - 1
	if room < 1 {
		t.Skipf("%s has %d bytes itself", dir, len(dir))
	}
	m, cfg := member(t, filepath.Join(dir, strings.Repeat("x", room)))
	if len(m.socket) != maxSocketPath {
		t.Fatalf("%s has %s bytes", m.socket, strconv.Itoa(len(m.socket)))
	}
	answers(t, m, cfg)
}

// TestMembersAdvertiseWhereOthersReachThem: a member may listen on every address, or behind another one.
func TestMembersAdvertiseWhereOthersReachThem(t *testing.T) {
	c := DefaultConfig().Embedded
	c.Name, c.Peer = "b", "0.0.0.0:4783"
	c.Cluster = []string{"a=a.example:4783", "b=b.example:14783"}
	c.PeerTLS.CertFile = "x"
	cfg := c.embed(zapToSlog{h: discard.Handler()})
	if got := cfg.AdvertisePeerUrls[0].String(); got != "https://b.example:14783" {
		t.Errorf("advertises %s", got)
	}
	if got := cfg.ListenPeerUrls[0].String(); got != "https://0.0.0.0:4783" {
		t.Errorf("listens on %s", got)
	}
	if got := cfg.InitialCluster; got != "a=https://a.example:4783,b=https://b.example:14783" {
		t.Errorf("the cluster is %s", got)
	}
	if cfg.WarningApplyDuration != c.ElectionTimeout/2 {
		t.Errorf("warns of requests that take %v", cfg.WarningApplyDuration)
	}
	if cfg.ClusterState != embed.ClusterStateFlagNew {
		t.Errorf("the cluster is %s", cfg.ClusterState)
	}
	c.Join = true
	if got := c.embed(zapToSlog{h: discard.Handler()}).ClusterState; got != embed.ClusterStateFlagExisting {
		t.Errorf("a member that joins: the cluster is %s", got)
	}
	single := DefaultConfig().Embedded.embed(zapToSlog{h: discard.Handler()})
	if len(single.ListenPeerUrls) != 0 || single.InitialCluster != single.Name+"="+single.AdvertisePeerUrls[0].String() {
		t.Errorf("a single member: listens on %v, cluster %s, advertises %v", single.ListenPeerUrls, single.InitialCluster, single.AdvertisePeerUrls)
	}
}
