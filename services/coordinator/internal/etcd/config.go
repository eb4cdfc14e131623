// Package etcd is the coordinator's side of etcd: the client and the embedded server,
// worker sessions, the mirror of what is in etcd, the election and the work of the
// leader that assigns and grants shards. docs/protocol/ownership.md has the keys and the reasons.
package etcd

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// Config is how to reach etcd. Without endpoints a member runs inside the process.
type Config struct {
	Endpoints []string       `koanf:"endpoints" help:"URLs of an external etcd cluster; empty runs a member in this process"`
	Prefix    string         `koanf:"prefix" help:"begins every key; deployments that share an etcd differ in it"`
	TLS       tlsfile.Client `koanf:"tls" needs:"endpoints"`
	Username  string         `koanf:"username" help:"user of etcd's own authentication" needs:"endpoints"`
	Password  config.Secret  `koanf:"password" help:"password of that user" needs:"endpoints"`
	// PasswordFile fills Password when settings are loaded.
	PasswordFile string `koanf:"password_file" help:"file that holds that password, in place of password" needs:"endpoints"`
	// RequestTimeout bounds each request; while etcd elects a leader requests fail.
	RequestTimeout time.Duration  `koanf:"request_timeout" help:"longest time for one request to etcd"`
	Embedded       EmbeddedConfig `koanf:"embedded" needs:"!endpoints"`
}

// EmbeddedConfig is the member that runs inside the process.
type EmbeddedConfig struct {
	DataDir string `koanf:"data_dir" help:"directory of the embedded member" check:"dir"`
	Name    string `koanf:"name" help:"name of the embedded member"`
	Peer    string `koanf:"peer_listen" help:"host:port to listen on for the other members of a cluster; a single member does not listen" needs:"cluster" check:"listen"`
	// Cluster lists every member, this one too, as name=host:port where the others reach it.
	Cluster []string `koanf:"cluster" help:"all members as name=host:port where the others reach them, this one too; empty is a single member"`
	// Join has a member without data come into a cluster that runs, where it was added before. Without it a member that has lost
	// its disk would begin a cluster of its own under the names of the other one, which etcd refuses.
	Join bool `koanf:"join" help:"this member has no data, and the cluster runs already: it takes the place that was made for it there (etcdctl member add); without effect once it has data" needs:"cluster"`
	// PeerTLS lets nobody but members in, both ways; whoever its CA signs is one.
	PeerTLS         rpc.ServerTLS `koanf:"peer_tls" needs:"cluster"`
	Quota           config.Bytes  `koanf:"quota" help:"size of the database at which writes are refused"`
	Compaction      time.Duration `koanf:"compaction" help:"how long old revisions are kept"`
	ElectionTimeout time.Duration `koanf:"election_timeout" help:"how long members wait for a lost leader, at least ten round trips between them; a lease lasts at least 1.5 times as long"`
}

// DefaultConfig runs a single member on loopback.
func DefaultConfig() Config {
	return Config{
		Prefix: "/lightmetrics", RequestTimeout: 2 * time.Second,
		Embedded: EmbeddedConfig{
			DataDir: "coordinator", Name: "coordinator", Peer: "127.0.0.1:4783",
			Quota: 512 << 20, Compaction: 5 * time.Minute, ElectionTimeout: time.Second,
		},
	}
}

// External reports whether etcd runs elsewhere.
func (c Config) External() bool { return len(c.Endpoints) > 0 }

// Validate checks what is needed for the way that is chosen.
func (c Config) Validate() error {
	var errs []error
	if c.RequestTimeout <= 0 {
		errs = append(errs, errors.New("etcd.request_timeout: must be greater than 0"))
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		errs = append(errs, fmt.Errorf("etcd.prefix %q: must begin, and not end, with a slash", c.Prefix))
	}
	if (c.Username == "") != (c.Password == "") {
		errs = append(errs, errors.New("etcd: username and password go together"))
	}
	if c.External() {
		plain := 0
		for _, e := range c.Endpoints {
			if !strings.HasPrefix(e, "https://") {
				plain++
			}
		}
		if c.TLS.Enabled && plain > 0 {
			errs = append(errs, errors.New("etcd.endpoints: must begin with https:// when etcd.tls is enabled"))
		}
		if !c.TLS.Enabled && plain < len(c.Endpoints) {
			errs = append(errs, errors.New("etcd.endpoints: https:// needs etcd.tls.enabled"))
		}
		return errors.Join(errs...)
	}
	if c.TLS.Enabled || c.Username != "" {
		errs = append(errs, errors.New("etcd: tls and username are for an external etcd (etcd.endpoints)"))
	}
	return errors.Join(append(errs, c.Embedded.Validate())...)
}

// Single reports whether the member is the only one.
func (c EmbeddedConfig) Single() bool { return len(c.Cluster) < 2 }

// Validate checks a member's settings.
func (c EmbeddedConfig) Validate() error {
	var errs []error
	if c.DataDir == "" || c.Name == "" || strings.ContainsAny(c.Name, ",=") {
		errs = append(errs, errors.New("etcd.embedded: needs data_dir and name, without ',' and '='"))
	}
	// Loopback too: who may speak as a member may write everything, and not every user
	// of the machine may.
	if !c.Single() && c.PeerTLS.ClientCAFile == "" {
		errs = append(errs, errors.New("etcd.embedded.cluster: members need peer_tls with client_ca_file"))
	}
	if n := len(c.socket()); n > maxSocketPath {
		errs = append(errs, fmt.Errorf("etcd.embedded.data_dir: %s has %d bytes, and the name of a socket at most %d", c.socket(), n, maxSocketPath))
	}
	if c.Quota < 16<<20 {
		errs = append(errs, errors.New("etcd.embedded.quota: must be at least 16MiB"))
	}
	if c.Compaction < time.Minute {
		errs = append(errs, errors.New("etcd.embedded.compaction: must be at least 1m"))
	}
	if c.ElectionTimeout < 100*time.Millisecond || c.ElectionTimeout > 30*time.Second {
		errs = append(errs, errors.New("etcd.embedded.election_timeout: must be 100ms to 30s"))
	}
	return errors.Join(append(errs, c.validateCluster(), c.PeerTLS.Validate())...)
}

// validateCluster checks the list of members. etcd itself takes a list with one address twice, and then waits for a quorum
// that can't come.
func (c EmbeddedConfig) validateCluster() error {
	var errs []error
	names, places := map[string]bool{}, map[string]bool{}
	for i, m := range c.Cluster {
		path := fmt.Sprintf("etcd.embedded.cluster[%d]", i)
		name, place, ok := strings.Cut(m, "=")
		if !ok || name == "" {
			errs = append(errs, fmt.Errorf("%s %q: want name=host:port", path, m))
			continue
		}
		if err := config.CheckAddress(place); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		at := strings.ToLower(place) // hosts have no case
		if names[name] || places[at] {
			errs = append(errs, fmt.Errorf("%s %q: another member has the same name or address", path, m))
		}
		names[name], places[at] = true, true
	}
	if len(c.Cluster) > 0 && !names[c.Name] {
		errs = append(errs, fmt.Errorf("etcd.embedded.cluster: %q is not in it", c.Name))
	}
	return errors.Join(errs...)
}
