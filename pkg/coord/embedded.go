package coord

import (
	"context"
	"errors"
	"fmt"
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
)

// Embedded is an etcd member inside the process.
type Embedded struct {
	e       *embed.Etcd
	closing *atomic.Bool
}

// startTimeout bounds the wait for a member to be of use; others of its cluster may
// have to come first.
const startTimeout = 2 * time.Minute

// StartEmbedded starts a member and waits until it serves. Close it.
func StartEmbedded(ctx context.Context, c EmbeddedConfig, log *slog.Logger) (*Embedded, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	// Everything that is known of owners is in there: nobody else's to read.
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd member: %w", err)
	}
	closing := new(atomic.Bool)
	e, err := embed.StartEtcd(c.embed(zapToSlog{h: log.With("part", "etcd").Handler(), closing: closing}))
	if err != nil {
		return nil, fmt.Errorf("start etcd member %s in %s: %w", c.Name, c.DataDir, err)
	}
	m := &Embedded{e: e, closing: closing}
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

func (c EmbeddedConfig) embed(log zapToSlog) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, filepath.Join(c.DataDir, "etcd")
	peers := "http"
	if c.PeerTLS.Enabled() {
		peers = "https"
		cfg.PeerTLSInfo = transport.TLSInfo{
			CertFile: c.PeerTLS.CertFile, KeyFile: c.PeerTLS.KeyFile,
			TrustedCAFile: c.PeerTLS.ClientCAFile, ClientCertAuth: c.PeerTLS.ClientCAFile != "",
		}
	}
	client, peer := url.URL{Scheme: "http", Host: c.Client}, url.URL{Scheme: peers, Host: c.Peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = c.Name + "=" + peer.String()
	if len(c.Cluster) > 0 {
		members := make([]string, len(c.Cluster))
		for i, m := range c.Cluster {
			name, host, _ := strings.Cut(m, "=")
			members[i] = name + "=" + peers + "://" + host
		}
		cfg.InitialCluster = strings.Join(members, ",")
	}
	cfg.InitialClusterToken = "lightmetrics"
	cfg.QuotaBackendBytes = int64(c.Quota)
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", c.Compaction.String()
	cfg.ElectionMs = uint(c.ElectionTimeout.Milliseconds())
	cfg.TickMs = cfg.ElectionMs / 10
	cfg.EnableGRPCGateway = false
	cfg.LogLevel = "info"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	return cfg
}

// Endpoint is where clients reach the member.
func (m *Embedded) Endpoint() string { return "http://" + m.e.Clients[0].Addr().String() }

// Err gives the member's end, when it ends by itself.
func (m *Embedded) Err() <-chan error { return m.e.Err() }

// Close stops the member.
func (m *Embedded) Close() {
	m.closing.Store(true)
	m.e.Close()
}
