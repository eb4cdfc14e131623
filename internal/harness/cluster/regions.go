package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/gate"
	"lightmetrics.dev/lightmetrics/internal/harness/netns"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// RegionsOptions of a system of several regions.
type RegionsOptions struct {
	// Options of every region. Dir has a directory for each; Adjust and Env get the process's name with its region,
	// as in "eu/collector-1". AuthorityID and AgentID are each region's own. Host is not asked.
	Options
	// Names of the regions, at most 15 letters, digits and dashes; eu, us and ap when empty.
	Names []string
	// Net, where it is set, gives each region a network namespace of its own. Without it all regions are on loopback,
	// and what goes from one to another goes through a gate.
	Net *netns.Net
	// Acceptance of the collectors; "global" when empty.
	Acceptance string
	// ElectionTimeout of etcd's members; a second when 0.
	ElectionTimeout time.Duration
	// Between, where it is set, gives the address that the collectors of a region reach its store at. listen listens in
	// the region's network.
	Between func(region, store string, listen func() (net.Listener, error)) (string, error)
	// Delay of everything from one region to another, in each direction; it needs a gate, so Net is nil.
	Delay time.Duration
}

// RegionNames are the regions of a system that names none.
var RegionNames = []string{"eu", "us", "ap"}

const acceptanceGlobal = "global"

// peerPort is where etcd's members listen in a namespace, and part of their names elsewhere.
const peerPort = 4783

// Regions is a system of several regions: each a Cluster with a store, collectors, a reconciler, rollups, a query
// service and a coordinator with one member of the etcd of all. Its Starts and Kills of different regions may run side
// by side; nothing else may.
type Regions struct {
	Names []string
	Of    []*Cluster

	o     RegionsOptions
	gate  *gate.Gate // nil in namespaces
	hosts []*netns.Host
	ca    *authority
	peers []peer
	ways  map[[3]string]string // of the gate, by from, to and address
	store []string             // of each region, for its collectors
	lost  map[int]bool
}

// peer is a member of etcd: where it listens, and where the others reach it.
type peer struct{ listen, reach, cert, key string }

// NewRegions chooses ports and credentials and writes the settings of all; it starts nothing. StopAll ends it.
func NewRegions(o RegionsOptions) (_ *Regions, err error) {
	if len(o.Names) == 0 {
		o.Names = RegionNames
	}
	if o.Acceptance == "" {
		o.Acceptance = acceptanceGlobal
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = time.Second
	}
	o.Coordinator = true
	r := &Regions{Names: o.Names, o: o, ways: map[[3]string]string{}}
	defer func() {
		if err != nil {
			r.StopAll()
		}
	}()
	if err := r.network(); err != nil {
		return nil, err
	}
	for i := range r.Names {
		c, err := r.plan(i)
		if err != nil {
			return nil, err
		}
		r.Of = append(r.Of, c)
	}
	for i, c := range r.Of {
		store := c.Addr.Store
		if r.o.Between != nil {
			if store, err = r.o.Between(r.Names[i], store, func() (net.Listener, error) { return r.listen(i) }); err != nil {
				return nil, err
			}
		}
		r.store = append(r.store, store)
	}
	// After all ports are known: each region's settings name the others'.
	for i, c := range r.Of {
		var failed error
		c.amend = func(process string, s section) { failed = errors.Join(failed, r.amend(i, process, s)) }
		if err := errors.Join(c.writeSettings(), failed); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// network makes what is between the regions, and the members' addresses in it.
func (r *Regions) network() (err error) {
	if r.ca, err = newAuthority(filepath.Join(r.o.Dir, "certs")); err != nil {
		return err
	}
	if r.o.Net != nil {
		for _, name := range r.Names {
			h, err := r.o.Net.Add(name)
			if err != nil {
				return err
			}
			addr := netip.AddrPortFrom(h.Addr, peerPort).String()
			if err := r.addPeer(name, addr, addr, h.Addr.AsSlice()); err != nil {
				return err
			}
			r.hosts = append(r.hosts, h)
		}
		return nil
	}
	if r.gate, err = gate.New(r.Names...); err != nil {
		return err
	}
	r.gate.Delay(r.o.Delay)
	listen, err := proc.Fixed(len(r.Names))
	if err != nil {
		return err
	}
	for i, name := range r.Names {
		// A name that is the same everywhere: the members' identities are made of it.
		reach := fmt.Sprintf("%s.regions.internal:%d", name, peerPort)
		r.gate.Name(reach, name, listen[i])
		if err := r.addPeer(name, listen[i], reach, net.IPv4(127, 0, 0, 1)); err != nil {
			return err
		}
	}
	return nil
}

func (r *Regions) addPeer(name, listen, reach string, ip net.IP) error {
	host, _, err := net.SplitHostPort(reach)
	if err != nil {
		return err
	}
	cert, key, err := r.ca.issue(name, host, ip)
	r.peers = append(r.peers, peer{listen, reach, cert, key})
	return err
}

// plan makes region i without its settings.
func (r *Regions) plan(i int) (*Cluster, error) {
	o, name := r.o.Options, r.Names[i]
	o.Dir, o.AuthorityID, o.AgentID = filepath.Join(o.Dir, name), name, "agent-of-"+name
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	o.DefaultPorts = o.DefaultPorts && i == 0
	o.Host = func(process string) *netns.Host {
		// The agent is no part of the region: it outlives it.
		if r.o.Net == nil || process == "agent" {
			return nil
		}
		return r.hosts[i]
	}
	if adjust := r.o.Adjust; adjust != nil {
		o.Adjust = func(process string, s map[string]any) { adjust(name+"/"+process, s) }
	}
	o.Env = func(process string) []string {
		var env []string
		if r.gate != nil && process == "coordinator" {
			// etcd's members find each other by names, which only the gate knows.
			env = append(env, "HTTPS_PROXY="+r.gate.Proxy(name), "NO_PROXY=", "no_proxy=")
		}
		if r.o.Env != nil {
			env = append(env, r.o.Env(name+"/"+process)...)
		}
		return env
	}
	return plan(o)
}

func (r *Regions) listen(i int) (net.Listener, error) {
	if r.gate != nil {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	return r.hosts[i].Listen("tcp", netip.AddrPortFrom(r.hosts[i].Addr, 0).String())
}

// reach is where region i reaches addr of region k.
func (r *Regions) reach(i, k int, addr string) (string, error) {
	if r.gate == nil || i == k {
		return addr, nil
	}
	way := [3]string{r.Names[i], r.Names[k], addr}
	if r.ways[way] == "" {
		through, err := r.gate.Forward(r.Names[i], r.Names[k], addr)
		if err != nil {
			return "", err
		}
		r.ways[way] = through
	}
	return r.ways[way], nil
}

// amend adds to the settings of a process of region i what several regions need.
func (r *Regions) amend(i int, process string, s section) error {
	c, name := r.Of[i], r.Names[i]
	coordinator := section{"addresses": []string{c.Addr.CoordinatorGRPC}}
	if strings.HasPrefix(process, "collector-") {
		s["store"].(section)["endpoint"] = "http://" + r.store[i]
	}
	switch {
	case process == "coordinator":
		return r.amendCoordinator(i, s)
	case process == "agent":
		// It prefers those of its region; where they are down, or say RETRY, it goes to the others with the same frames, until its
		// own ones take batches again.
		var others []string
		for k := 1; k < len(r.Of); k++ {
			others = append(others, r.Of[(i+k)%len(r.Of)].collectors()...)
		}
		s["send"].(section)["fallback"] = others
	case strings.HasPrefix(process, "collector-") && r.Global():
		s["region"], s["acceptance"], s["coordinator"] = name, r.o.Acceptance, coordinator
	case process == "reconciler" && r.Global():
		s["region"], s["coordinator"] = name, coordinator
	case process == "query":
		var others []section
		for k, other := range r.Of {
			if k == i {
				continue
			}
			endpoint, err := r.reach(i, k, other.Addr.QueryGRPC)
			if err != nil {
				return err
			}
			others = append(others, section{"name": r.Names[k], "endpoint": endpoint})
		}
		s["region"], s["regions"] = name, others
	}
	return nil
}

// amendCoordinator makes the coordinator's etcd one of the members of all regions, and lets it reach all buckets.
func (r *Regions) amendCoordinator(i int, s section) error {
	var members []string
	for k, p := range r.peers {
		members = append(members, r.Names[k]+"="+p.reach)
	}
	p := r.peers[i]
	s["id"] = r.Names[i]
	s["etcd"] = section{"request_timeout": (5 * r.o.ElectionTimeout).String(), "embedded": section{
		"data_dir": r.Of[i].coordinatorDir(), "name": r.Names[i], "peer_listen": p.listen, "cluster": members,
		"peer_tls":         section{"cert_file": p.cert, "key_file": p.key, "client_ca_file": r.ca.file},
		"election_timeout": r.o.ElectionTimeout.String(),
	},
		// Shards are those of the region's own workers.
		"prefix": "/lightmetrics-" + r.Names[i]}
	// A lease of etcd lasts 1.5 elections at least.
	s["lease"] = section{"worker": "10s", "leader": "5s"}
	var regions []section
	for k, c := range r.Of {
		store := c.bucketSettings(coordinatorRole)
		addr, err := r.reach(i, k, c.Addr.Store)
		if err != nil {
			return err
		}
		store["endpoint"] = "http://" + addr
		regions = append(regions, section{"name": r.Names[k], "store": store})
	}
	s["identity"] = section{"regions": regions}
	return nil
}

// Start starts every service of every region: the stores first, then all others side by side.
func (r *Regions) Start(ctx context.Context) error {
	if err := SideBySide(r.Of, func(c *Cluster) error { return c.StartStore(ctx) }); err != nil {
		return err
	}
	return SideBySide(r.Of, func(c *Cluster) error { return c.StartServices(ctx) })
}

// Wait keeps all processes until ctx ends, or gives an error when one ended.
func (r *Regions) Wait(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return SideBySide(r.Of, func(c *Cluster) error {
		defer cancel() // one is enough
		return c.Wait(ctx)
	})
}

// Cut drops everything from one region to another.
func (r *Regions) Cut(from, to int) error {
	if r.gate == nil {
		return r.o.Net.Cut(r.hosts[from], r.hosts[to])
	}
	return r.gate.Cut(r.Names[from], r.Names[to])
}

// Isolate drops everything between a region and all others. Agents reach it as before.
func (r *Regions) Isolate(i int) error {
	var errs []error
	for k := range r.Of {
		if k != i {
			errs = append(errs, r.Cut(i, k), r.Cut(k, i))
		}
	}
	return errors.Join(errs...)
}

// Delay lets everything from one region to another take so long, in each direction, from now on; it needs a gate.
func (r *Regions) Delay(d time.Duration) { r.gate.Delay(d) }

// Heal ends every cut.
func (r *Regions) Heal() error {
	if r.gate == nil {
		return r.o.Net.Heal()
	}
	return r.gate.Heal()
}

// StopAll ends every process, agents first, and the gate.
func (r *Regions) StopAll() {
	for _, c := range r.Of {
		if c.Agent != nil {
			_ = Stop(&c.Agent) // one that had to be killed is stopped too
		}
	}
	if len(r.hosts) > 0 || r.gate != nil {
		_ = r.Heal() // a cut would make processes wait for their deadlines
	}
	_ = SideBySide(r.Of, func(c *Cluster) error { c.StopAll(); return nil })
	if r.gate != nil {
		_ = r.gate.Close()
	}
}

// Lose destroys a region for good: its processes are killed, and what they have stored is deleted. Its agent stays.
func (r *Regions) Lose(i int) error {
	c := r.Of[i]
	c.KillServices()
	if r.lost == nil {
		r.lost = map[int]bool{}
	}
	r.lost[i] = true
	return errors.Join(os.RemoveAll(c.storeDir()), os.RemoveAll(c.coordinatorDir()))
}

// Left are the indexes of the regions that were not lost.
func (r *Regions) Left() (left []int) {
	for i := range r.Of {
		if !r.lost[i] {
			left = append(left, i)
		}
	}
	return left
}

// LeftOf are the regions that were not lost.
func (r *Regions) LeftOf() (left []*Cluster) {
	for _, i := range r.Left() {
		left = append(left, r.Of[i])
	}
	return left
}

// OfRegions matches names of metrics that only a system of several regions has.
var OfRegions = regexp.MustCompile(`^lightmetrics_(coordinator_identity|ingest_linearizer|ingest_claim|reconciler_claims|reconciler_secondary|query_region)_`)

// Global reports whether one linearizer serves all regions.
func (r *Regions) Global() bool { return r.o.Acceptance == acceptanceGlobal }

// Collectors are those of all regions, region by region.
func (r *Regions) Collectors() (all []CollectorAddress) {
	for _, c := range r.Of {
		all = append(all, c.Addr.Collectors...)
	}
	return all
}

// Member is an etcd member's part of what a restore has to say.
type Member struct {
	Name string
	// Dir is the member's own directory, which a restore fills.
	Dir string
	// PeerURL is where the others reach it.
	PeerURL string
}

// Members of the etcd of all regions that were not lost.
func (r *Regions) Members() (all []Member) {
	for _, i := range r.Left() {
		all = append(all, r.Member(i))
	}
	return all
}

// Member of etcd that region i has.
func (r *Regions) Member(i int) Member {
	return Member{r.Names[i], filepath.Join(r.Of[i].coordinatorDir(), "etcd"), "https://" + r.peers[i].reach}
}
