// Package cluster runs a whole Lightmetrics on loopback, or on hosts of internal/harness/netns,
// every service a process of its own with a settings file and credentials made for the run.
// The demo and the end-to-end tests use it.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/harness/netns"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// Names that every part of a cluster shares.
const (
	Authority = "local"
	AgentID   = "this-host"
)

// stopGrace is how long a process may take to drain before it is killed.
const stopGrace = 45 * time.Second

// Options of a cluster.
type Options struct {
	// Bin is the lightmetrics binary.
	Bin string
	// Dir keeps data, settings and logs.
	Dir string
	// Collectors is the number of collectors.
	Collectors int
	// Coordinator adds a coordinator with a single etcd member.
	Coordinator bool
	// Rollups is the number of rollup workers; they need the coordinator.
	Rollups int
	// Shards of the rollups; 4 when 0.
	Shards int
	// DefaultPorts takes the default ports where they are free.
	DefaultPorts bool
	// Bucket name; "lightmetrics" when empty.
	Bucket string
	// AuthorityID and AgentID are Authority and AgentID when empty.
	AuthorityID, AgentID string
	// StoreEndpoint of another S3 server; "" is the embedded store.
	StoreEndpoint string
	// AccessKeyID and SecretAccessKey of StoreEndpoint.
	AccessKeyID     string
	SecretAccessKey config.Secret
	// ScrapeInterval and BatchAge of the agent.
	ScrapeInterval, BatchAge time.Duration
	// Adjust changes a process's settings before they are written; nil changes nothing.
	Adjust func(process string, settings map[string]any)
	// Host is asked where a process lives; nil, and a nil answer, is this machine's loopback.
	Host func(process string) *netns.Host
	// Env is asked at each start of a process for what to add to its environment; nil adds nothing.
	Env func(process string) []string
}

// Addresses on loopback, or on the hosts of Options.Host.
type Addresses struct {
	Store          string
	StoreAdmin     string
	Collectors     []CollectorAddress
	ReconcilerHTTP string
	ReconcilerGRPC string
	QueryHTTP      string
	QueryGRPC      string
	AgentHTTP      string
	// The coordinator's, where there is one.
	CoordinatorHTTP, CoordinatorGRPC string
	// Rollups are the workers' HTTP addresses.
	Rollups []string
}

// CollectorAddress is where one collector listens.
type CollectorAddress struct{ GRPC, HTTP string }

// Cluster is the process tree. A nil process is not running. Not safe for concurrent use.
type Cluster struct {
	Addr       Addresses
	Store      *proc.Process
	Collectors []*proc.Process
	Reconciler *proc.Process
	Query      *proc.Process
	Agent      *proc.Process
	// Coordinator of Options.Coordinator.
	Coordinator *proc.Process
	Rollups     []*proc.Process

	o     Options
	ports []*proc.Port
	// amend changes a process's settings before Options.Adjust does; nil changes nothing.
	amend func(process string, settings section)
	// users are those of the embedded store as an operator makes them, one for each service, with the
	// policy of its role. Tests have that of Options, which may do everything.
	users map[bucketpolicy.Role]user
}

// user is one of the embedded store.
type user struct {
	name, key string
	secret    config.Secret
	policy    string
}

func newUser(role bucketpolicy.Role, bucket string) (user, error) {
	roles := []bucketpolicy.Role{role}
	if role == bucketpolicy.Reconciler {
		// Its process collects garbage, too.
		roles = append(roles, bucketpolicy.GC)
	}
	policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: bucket}, roles...)
	name := string(role)
	return user{name: name, key: name + "-" + rand.Text()[:8], secret: config.Secret(rand.Text() + rand.Text()), policy: string(policy)}, err
}

// New chooses ports and credentials and writes the settings; it starts nothing.
func New(o Options) (*Cluster, error) {
	c, err := plan(o)
	if err != nil {
		return nil, err
	}
	return c, c.writeSettings()
}

// plan chooses ports and credentials.
func plan(o Options) (*Cluster, error) {
	if o.StoreEndpoint == "" {
		o.AccessKeyID, o.SecretAccessKey = "local-"+rand.Text()[:8], config.Secret(rand.Text()+rand.Text())
	}
	if o.Bucket == "" {
		o.Bucket = "lightmetrics"
	}
	if o.AuthorityID == "" {
		o.AuthorityID = Authority
	}
	if o.AgentID == "" {
		o.AgentID = AgentID
	}
	if o.ScrapeInterval == 0 {
		o.ScrapeInterval = time.Second
	}
	if o.BatchAge == 0 {
		o.BatchAge = 2 * time.Second
	}
	if o.Shards == 0 {
		o.Shards = 4
	}
	o.Coordinator = o.Coordinator || o.Rollups > 0
	c := &Cluster{o: o, Collectors: make([]*proc.Process, o.Collectors), Rollups: make([]*proc.Process, o.Rollups)}
	c.users = map[bucketpolicy.Role]user{}
	for _, role := range []bucketpolicy.Role{bucketpolicy.Ingest, bucketpolicy.Reconciler, bucketpolicy.Rollup, bucketpolicy.Query, bucketpolicy.Coordinator} {
		if o.StoreEndpoint != "" {
			c.users[role] = user{key: o.AccessKeyID, secret: o.SecretAccessKey}
			continue
		}
		u, err := newUser(role, o.Bucket)
		if err != nil {
			return nil, err
		}
		c.users[role] = u
	}
	return c, c.choosePorts()
}

// AuthorityID of the bucket.
func (c *Cluster) AuthorityID() string { return c.o.AuthorityID }

// AgentID of the agent.
func (c *Cluster) AgentID() string { return c.o.AgentID }

// Bucket is the bucket's name.
func (c *Cluster) Bucket() string { return c.o.Bucket }

// Dir keeps data, settings and logs.
func (c *Cluster) Dir() string { return c.o.Dir }

func (c *Cluster) choosePorts() error {
	var errs []error
	port := func(process string, want int) string {
		if h := c.host(process); h != nil {
			// Nobody else listens in there.
			return netip.AddrPortFrom(h.Addr, uint16(want)).String()
		}
		if !c.o.DefaultPorts {
			// Nobody else gets it while the process is down.
			addrs, err := proc.Fixed(1)
			if err != nil {
				errs = append(errs, err)
				return ""
			}
			return addrs[0]
		}
		p, err := proc.Reserve(want)
		if err != nil {
			errs = append(errs, err)
			return ""
		}
		c.ports = append(c.ports, p)
		return p.Addr
	}
	c.Addr.Store, c.Addr.StoreAdmin = port("objectstore", 4790), port("objectstore", 4791)
	for i := range c.o.Collectors {
		// 4750 and 4751 for the first, then 4730, 4731, 4732, …: clear of the other services.
		g, h := 4750, 4751
		if i > 0 {
			g, h = 4730+2*(i-1), 4731+2*(i-1)
		}
		c.Addr.Collectors = append(c.Addr.Collectors, CollectorAddress{GRPC: port(collectorName(i), g), HTTP: port(collectorName(i), h)})
	}
	c.Addr.QueryHTTP, c.Addr.QueryGRPC = port("query", 4760), port("query", 4761)
	c.Addr.ReconcilerHTTP, c.Addr.ReconcilerGRPC = port("reconciler", 4770), port("reconciler", 4771)
	c.Addr.AgentHTTP = port("agent", 4320)
	if c.o.Coordinator {
		c.Addr.CoordinatorHTTP, c.Addr.CoordinatorGRPC = port("coordinator", 4780), port("coordinator", 4781)
	}
	for i := range c.o.Rollups {
		c.Addr.Rollups = append(c.Addr.Rollups, port(RollupName(i), 4775+i))
	}
	return errors.Join(errs...)
}

// host is where a process lives; nil is this machine's loopback.
func (c *Cluster) host(process string) *netns.Host {
	if c.o.Host == nil {
		return nil
	}
	return c.o.Host(process)
}

// release lets go of a process's ports just before it starts.
func (c *Cluster) release(addrs ...string) {
	for _, p := range c.ports {
		if slices.Contains(addrs, p.Addr) {
			p.Release()
		}
	}
}

// start starts one process with its settings file and waits until it is ready. addrs
// are where it will listen; the first answers /-/ready.
func (c *Cluster) start(ctx context.Context, command, name string, addrs ...string) (*proc.Process, error) {
	c.release(addrs...)
	http := addrs[0]
	var env []string
	if c.o.Env != nil {
		env = c.o.Env(name)
	}
	var ns string
	if h := c.host(name); h != nil {
		ns = h.Path
	}
	p, err := proc.Start(proc.Spec{
		Name: name, NetNS: ns, Bin: c.o.Bin, Dir: c.o.Dir, Env: env, ReadyURL: "http://" + http + "/-/ready",
		Args: []string{command, "--config", filepath.Join(c.o.Dir, name+".yaml")},
	})
	if err != nil {
		return nil, err
	}
	return p, p.Ready(ctx)
}

// StartStore starts the embedded store.
func (c *Cluster) StartStore(ctx context.Context) (err error) {
	c.Store, err = c.start(ctx, "objectstore", "objectstore", c.Addr.StoreAdmin, c.Addr.Store)
	return err
}

// StartCollector starts collector i.
func (c *Cluster) StartCollector(ctx context.Context, i int) (err error) {
	c.Collectors[i], err = c.start(ctx, "ingest", collectorName(i), c.Addr.Collectors[i].HTTP, c.Addr.Collectors[i].GRPC)
	return err
}

// StartReconciler starts the reconciler.
func (c *Cluster) StartReconciler(ctx context.Context) (err error) {
	c.Reconciler, err = c.start(ctx, "reconciler", "reconciler", c.Addr.ReconcilerHTTP, c.Addr.ReconcilerGRPC)
	return err
}

// StartQuery starts the query service.
func (c *Cluster) StartQuery(ctx context.Context) (err error) {
	c.Query, err = c.start(ctx, "query", "query", c.Addr.QueryHTTP, c.Addr.QueryGRPC)
	return err
}

// StartCoordinator starts the coordinator.
func (c *Cluster) StartCoordinator(ctx context.Context) (err error) {
	c.Coordinator, err = c.start(ctx, "coordinator", "coordinator", c.Addr.CoordinatorHTTP, c.Addr.CoordinatorGRPC)
	return err
}

// StartRollup starts rollup worker i.
func (c *Cluster) StartRollup(ctx context.Context, i int) (err error) {
	c.Rollups[i], err = c.start(ctx, "rollup", RollupName(i), c.Addr.Rollups[i])
	return err
}

// StartAgent starts the agent that reads this host.
func (c *Cluster) StartAgent(ctx context.Context) (err error) {
	c.Agent, err = c.start(ctx, "agent", "agent", c.Addr.AgentHTTP)
	return err
}

// Kill kills a process at once and forgets it.
func Kill(p **proc.Process) {
	(*p).Kill()
	*p = nil
}

// Stop lets a process drain and forgets it.
func Stop(p **proc.Process) error {
	q := *p
	*p = nil
	if err := q.Stop(stopGrace); err != nil {
		return fmt.Errorf("%s did not stop cleanly: %w\n%s", q.Spec.Name, err, q.Tail(20))
	}
	return nil
}

// Wait keeps the tree until ctx ends, or gives an error when a process ended.
func (c *Cluster) Wait(ctx context.Context) error {
	running := c.processes()
	ended := make(chan *proc.Process, len(running))
	for _, p := range running {
		go func() {
			select {
			case <-p.Exited():
				ended <- p
			case <-ctx.Done():
			}
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case p := <-ended:
		if ctx.Err() != nil {
			return nil // whoever ended us ended it too
		}
		return fmt.Errorf("%s ended:\n%s", p.Spec.Name, p.Tail(20))
	}
}

func (c *Cluster) processes() []*proc.Process {
	var all []*proc.Process
	for _, p := range append([]*proc.Process{c.Agent, c.Query}, slices.Concat(c.Collectors, c.Rollups, []*proc.Process{c.Reconciler, c.Coordinator, c.Store})...) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// StopAll ends every process, the senders first.
func (c *Cluster) StopAll() {
	for _, p := range c.processes() {
		_ = p.Stop(stopGrace) // a process that had to be killed is stopped too
	}
	for _, p := range c.ports {
		p.Release()
	}
}

// StoreConfig is how to reach the bucket beside all services.
func (c *Cluster) StoreConfig() s3.Config {
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle = c.endpoint(), c.o.Bucket, true
	cfg.AccessKeyID, cfg.SecretAccessKey = c.o.AccessKeyID, c.o.SecretAccessKey
	return cfg
}

// OpenStore opens the bucket beside all services.
func (c *Cluster) OpenStore(ctx context.Context) (objstore.Store, error) {
	return storage.Open(ctx, c.StoreConfig(), storage.Options{})
}

func (c *Cluster) endpoint() string {
	if c.o.StoreEndpoint != "" {
		return c.o.StoreEndpoint
	}
	return "http://" + c.Addr.Store
}

func collectorName(i int) string { return fmt.Sprintf("collector-%d", i+1) }

// RollupName is the name of worker i, in settings, logs and blocks.
func RollupName(i int) string { return fmt.Sprintf("rollup-%d", i+1) }
