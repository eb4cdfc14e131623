// Package netns makes a small network of Linux network namespaces for tests: hosts with
// an address each behind one switch, whose links can be cut in one direction or both, or lose a
// part of their packets. It needs root and iproute2; losing packets needs nftables too.
package netns

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// commandTimeout bounds one call of ip or nft.
	commandTimeout = 10 * time.Second
	// runDir is where iproute2 keeps names of namespaces.
	runDir = "/run/netns"
	// nowhere is a hardware address that no host of a network has.
	nowhere = "02:00:00:00:00:00"
	maxHost = 200
)

// ErrUnavailable says why this machine can make no namespaces.
var ErrUnavailable = errors.New("network namespaces are not available")

// Available is nil where a network can be made; else it wraps ErrUnavailable.
func Available() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: not root", ErrUnavailable)
	}
	n, err := New()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return n.Close()
}

// CanLose reports whether Lose works: nftables is there, and its kernel side.
func (n *Net) CanLose() bool {
	return run("ip", "netns", "exec", n.sw, "nft", "list", "ruleset") == nil
}

// Net is one switch with hosts on it. This process is one of them, in its own
// namespace, so that it reaches all others. Not safe for concurrent use.
type Net struct {
	id     string // of everything that is made: interface names have room for 15 bytes
	sw     string // the switch's namespace
	prefix netip.Prefix
	hosts  map[string]*Host
	lossy  map[string]bool // hosts with a table of ours
	cuts   map[[2]string]bool
}

// Host has a namespace and an address.
type Host struct {
	Name string
	// Path of the namespace's file, for setns.
	Path string
	Addr netip.Addr

	ns string
}

// making: two networks of one process must not find the same prefix free.
var making sync.Mutex

// New makes the switch and joins this process's namespace to it.
func New() (*Net, error) {
	making.Lock()
	defer making.Unlock()
	n := &Net{id: "lm" + strings.ToLower(rand.Text()[:6]), hosts: map[string]*Host{}, lossy: map[string]bool{}, cuts: map[[2]string]bool{}}
	n.sw = n.id + "-switch"
	var err error
	if n.prefix, err = freePrefix(); err != nil {
		return nil, err
	}
	steps := [][]string{
		{"ip", "netns", "add", n.sw},
		// Without forward_delay 0 a bridge learns for 15 seconds before it passes the first packet.
		{"ip", "-n", n.sw, "link", "add", "br0", "type", "bridge", "forward_delay", "0"},
		{"ip", "-n", n.sw, "link", "set", "br0", "up"},
		{"ip", "link", "add", n.id, "type", "veth", "peer", "name", "this", "netns", n.sw},
		{"ip", "-n", n.sw, "link", "set", "dev", "this", "master", "br0", "up"},
		{"ip", "addr", "add", n.at(maxHost+1).String() + "/24", "dev", n.id},
		{"ip", "link", "set", "dev", n.id, "up"},
	}
	if err := runAll(steps); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// at is the address with this last byte.
func (n *Net) at(last int) netip.Addr {
	a := n.prefix.Addr().As4()
	a[3] = byte(last)
	return netip.AddrFrom4(a)
}

// freePrefix is a private /24 that no interface of this machine is in. Each process
// begins at another one: two may look at the same time.
func freePrefix() (netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	for i := range 256 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, byte(os.Getpid() + i), 0}), 24)
		taken := false
		for _, a := range addrs {
			q, err := netip.ParsePrefix(a.String())
			taken = taken || err == nil && q.Overlaps(p)
		}
		if !taken {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("netns: every /24 of 10.213.0.0/16 is in use")
}

// Add makes a host; its name is at most 15 lower-case letters, digits and dashes.
func (n *Net) Add(name string) (*Host, error) {
	if len(name) == 0 || len(name) > 15 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name == "this" || name == "br0" {
		return nil, fmt.Errorf("netns: %q is no name of a host", name)
	}
	if n.hosts[name] != nil || len(n.hosts) == maxHost {
		return nil, fmt.Errorf("netns: %q is there already, or no address is left", name)
	}
	h := &Host{Name: name, ns: n.id + "-" + name, Addr: n.at(len(n.hosts) + 1)}
	h.Path = filepath.Join(runDir, h.ns)
	n.hosts[name] = h // Close removes what there is of it
	return h, runAll([][]string{
		{"ip", "netns", "add", h.ns},
		{"ip", "-n", h.ns, "link", "set", "lo", "up"},
		{"ip", "link", "add", "eth0", "netns", h.ns, "type", "veth", "peer", "name", name, "netns", n.sw},
		{"ip", "-n", n.sw, "link", "set", "dev", name, "master", "br0", "up"},
		{"ip", "-n", h.ns, "addr", "add", h.Addr.String() + "/24", "dev", "eth0"},
		{"ip", "-n", h.ns, "link", "set", "eth0", "up"},
	})
}

// Cut drops every packet from one host to another, silently, of open connections
// too: the sender is given a hardware address that nobody has.
func (n *Net) Cut(from, to *Host) error {
	n.cuts[[2]string{from.Name, to.Name}] = true
	return run("ip", "-n", from.ns, "neigh", "replace", to.Addr.String(), "lladdr", nowhere, "nud", "permanent", "dev", "eth0")
}

// CutBoth drops every packet between two hosts.
func (n *Net) CutBoth(a, b *Host) error { return errors.Join(n.Cut(a, b), n.Cut(b, a)) }

// Lose drops this percentage of the packets from one host to another, at random, as
// they arrive.
func (n *Net) Lose(from, to *Host, percent int) error {
	if percent < 1 || percent > 99 {
		return fmt.Errorf("netns: %d percent", percent)
	}
	n.lossy[to.Name] = true
	rules := fmt.Sprintf("table ip lightmetrics {\nchain in {\ntype filter hook input priority 0\nip saddr %s numgen random mod 100 < %d drop\n}\n}\n", from.Addr, percent)
	return runWith(rules, "ip", "netns", "exec", to.ns, "nft", "-f", "-")
}

// Heal ends every cut and loss.
func (n *Net) Heal() error {
	var errs []error
	for c := range n.cuts {
		errs = append(errs, run("ip", "-n", n.hosts[c[0]].ns, "neigh", "del", n.hosts[c[1]].Addr.String(), "dev", "eth0"))
	}
	for name := range n.lossy {
		errs = append(errs, run("ip", "netns", "exec", n.hosts[name].ns, "nft", "delete", "table", "ip", "lightmetrics"))
	}
	clear(n.cuts)
	clear(n.lossy)
	return errors.Join(errs...)
}

// Close removes what this network made, by name. Processes in its namespaces keep running, cut off.
func (n *Net) Close() error {
	var errs []error
	remove := func(path string, command ...string) {
		if _, err := os.Stat(path); err == nil {
			errs = append(errs, run(command[0], command[1:]...))
		}
	}
	// This side first: a namespace goes with its last process, and its interfaces with it.
	remove("/sys/class/net/"+n.id, "ip", "link", "del", n.id)
	// Whatever is there is removed, also after an error, since nobody else knows the names.
	for _, h := range n.hosts {
		remove(h.Path, "ip", "netns", "del", h.ns)
	}
	remove(filepath.Join(runDir, n.sw), "ip", "netns", "del", n.sw)
	return errors.Join(errs...)
}

func runAll(commands [][]string) error {
	for _, c := range commands {
		if err := run(c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func run(name string, args ...string) error { return runWith("", name, args...) }

func runWith(stdin, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("netns: %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
