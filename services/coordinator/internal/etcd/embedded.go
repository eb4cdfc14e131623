package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Embedded is an etcd member inside the process. Its clients come through a socket that
// only the process's own user can open; transactions of claims need none (Client.Direct).
type Embedded struct {
	e       *embed.Etcd
	socket  string
	lock    io.Closer
	closing *atomic.Bool
	direct  *direct
}

// ErrInUse: another process has the data directory.
var ErrInUse = errors.New("another process has the directory")

// maxSocketPath is what every system takes as the name of a socket, less its end.
const maxSocketPath = 103

// startTimeout bounds the wait for a member to be of use; others of its cluster may
// have to come first.
const startTimeout = 2 * time.Minute

// StartEmbedded starts a member and waits until it serves. Close it.
func StartEmbedded(ctx context.Context, c EmbeddedConfig, log *slog.Logger) (*Embedded, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	lock, err := c.enter()
	if err != nil {
		return nil, fmt.Errorf("etcd member %s in %s: %w", c.Name, c.DataDir, err)
	}
	closing := new(atomic.Bool)
	e, err := embed.StartEtcd(c.embed(zapToSlog{h: log.With("part", "etcd").Handler(), closing: closing}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd member %s in %s: %w%s", c.Name, c.DataDir, err, hint(err)), lock.Close())
	}
	m := &Embedded{e: e, socket: c.socket(), lock: lock, closing: closing, direct: newDirect(e.Server)}
	// The directory has kept others out meanwhile.
	if err := os.Chmod(m.socket, 0o600); err != nil {
		m.Close()
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, err)
	}
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case <-e.Server.ReadyNotify():
		return m, nil
	case err = <-e.Err():
	case <-timer.C:
		err = errors.New("no quorum")
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.Close()
	return nil, fmt.Errorf("etcd member %s: waiting until it serves: %w", c.Name, err)
}

// hint says what to do about a member whose data directory is empty while its cluster knows it. etcd has no error value for it.
func hint(err error) string {
	if !strings.Contains(err.Error(), "has already been bootstrapped") {
		return ""
	}
	return ": the cluster runs and knows this member, and its directory is empty: remove and add it there (etcdctl member), and start it with etcd.embedded.join"
}

// dir is the member's own; socket is where its clients come in.
func (c EmbeddedConfig) dir() string    { return filepath.Join(c.DataDir, "etcd") }
func (c EmbeddedConfig) socket() string { return filepath.Join(c.dir(), "client.sock") }

// enter makes the member's directory, closes it to other users, and locks it: a second
// process would take the first one's socket away.
func (c EmbeddedConfig) enter() (io.Closer, error) {
	if err := os.MkdirAll(c.dir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.dir(), 0o700); err != nil {
		return nil, err
	}
	lock, err := vfs.Dir(c.dir()).Lock("lock")
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return lock, err
}

func (c EmbeddedConfig) embed(log zapToSlog) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, c.dir()
	peers := "http"
	if c.PeerTLS.Enabled() {
		peers = "https"
		cfg.PeerTLSInfo = transport.TLSInfo{
			CertFile: c.PeerTLS.CertFile, KeyFile: c.PeerTLS.KeyFile,
			TrustedCAFile: c.PeerTLS.ClientCAFile, ClientCertAuth: c.PeerTLS.ClientCAFile != "", CipherSuites: tlsfile.Suites(),
		}
	}
	client, peer := url.URL{Scheme: "unix", Path: c.socket()}, url.URL{Scheme: peers, Host: c.Peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	// A single member has no peers, so it opens no port for them.
	if !c.Single() {
		cfg.ListenPeerUrls = []url.URL{peer}
	}
	cfg.InitialCluster = c.Name + "=" + peer.String()
	if len(c.Cluster) > 0 {
		members := make([]string, len(c.Cluster))
		for i, m := range c.Cluster {
			name, host, _ := strings.Cut(m, "=")
			members[i] = name + "=" + peers + "://" + host
			// Where the others reach it need not be where it listens: 0.0.0.0, or an address behind another one.
			if name == c.Name {
				cfg.AdvertisePeerUrls = []url.URL{{Scheme: peers, Host: host}}
			}
		}
		cfg.InitialCluster = strings.Join(members, ",")
	}
	if c.Join {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.InitialClusterToken = "lightmetrics"
	cfg.QuotaBackendBytes = int64(c.Quota)
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", c.Compaction.String()
	cfg.ElectionMs = uint(c.ElectionTimeout.Milliseconds())
	// etcd refuses an election timeout below five heartbeats; ten is the ratio of its defaults.
	cfg.TickMs = cfg.ElectionMs / 10
	if !c.Single() {
		// etcd warns of requests that took 100 ms, as of a slow disk. Members at several sites need two round trips for a
		// read, and an election takes ten.
		cfg.WarningApplyDuration, cfg.WarningUnaryRequestDuration = c.ElectionTimeout/2, c.ElectionTimeout/2
	}
	cfg.EnableGRPCGateway = false
	cfg.LogLevel = "info"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	return cfg
}

// Endpoint is where clients reach the member.
func (m *Embedded) Endpoint() string { return "unix:" + m.socket }

// Watch waits until ctx ends, or the member ends by itself, which is an error: a listener failed,
// or its cluster has removed it. Nothing but a start of the process brings it back.
func (m *Embedded) Watch(ctx context.Context) error {
	err := errors.New("it stopped, or was removed from its cluster")
	select {
	case e, ok := <-m.e.Err():
		if ok {
			err = e
		}
	case <-m.e.Server.StopNotify():
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("etcd member %s has ended: %w", m.e.Config().Name, err)
}

// Close stops the member; more than once is harmless.
func (m *Embedded) Close() {
	if m.closing.Swap(true) {
		return
	}
	m.direct.close()
	select {
	case <-m.e.Server.ReadyNotify():
	default:
		// etcd's Close waits for its listeners to be served, which they are once the member is ready, or has stopped: without a
		// quorum it would never return.
		m.e.Server.HardStop()
	}
	m.e.Close()
	_ = m.lock.Close() // nothing was written to it
}
