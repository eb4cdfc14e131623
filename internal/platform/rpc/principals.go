package rpc

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Principal is who calls.
type Principal struct {
	Name string
	// Agents are path.Match patterns of the agent ids that it may write.
	Agents []string
	// Roles say what it may call; docs/guide/access.md has the table.
	Roles []Role
	// Workers are path.Match patterns of the worker ids as which it may own shards.
	Workers []string
	// Regions are those that it may act for, where several accept; nil is any.
	Regions []string
}

// anonymous is every caller when callers are not authenticated.
var anonymous = Principal{Name: "anonymous", Agents: []string{"*"}, Roles: web.Roles(), Workers: []string{"*"}}

// Has reports whether the principal has the role.
func (p Principal) Has(r Role) bool { return slices.Contains(p.Roles, r) }

// MayWrite reports whether the principal may write the agent's batches.
func (p Principal) MayWrite(agentID string) bool {
	return p.Has(RoleSender) && matches(p.Agents, agentID)
}

// MayWorkAs reports whether the principal may own shards under the worker's name.
func (p Principal) MayWorkAs(workerID string) bool {
	return p.Has(RoleWorker) && matches(p.Workers, workerID)
}

// MayActFor reports whether the principal may act for the region: as its collector, or its reconciler.
func (p Principal) MayActFor(region string) bool {
	return p.Has(RoleWorker) && (p.Regions == nil || slices.Contains(p.Regions, region))
}

// same reports whether two principals may do the same, under the same name.
func (p Principal) same(q Principal) bool {
	return p.Name == q.Name && slices.Equal(p.Agents, q.Agents) && slices.Equal(p.Roles, q.Roles) && slices.Equal(p.Workers, q.Workers) &&
		slices.Equal(p.Regions, q.Regions) && (p.Regions == nil) == (q.Regions == nil)
}

func matches(patterns []string, name string) bool {
	for _, pat := range patterns {
		if pat == "*" { // slashes too
			return true
		}
		if ok, err := path.Match(pat, name); ok && err == nil {
			return true
		}
	}
	return false
}

// principals is the parsed file.
type principals struct {
	byToken map[[sha256.Size]byte]Principal
	byName  map[string]Principal
}

// token finds the principal of a token by the token's hash. All hashes are compared in constant
// time, so the time tells nothing about how much of a guess was right.
func (ps *principals) token(token string) (Principal, error) {
	if token == "" {
		return Principal{}, fmt.Errorf("%w: no bearer token", ErrUnauthenticated)
	}
	sum := sha256.Sum256([]byte(token))
	for h, p := range ps.byToken {
		if subtle.ConstantTimeCompare(h[:], sum[:]) == 1 {
			return p, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: unknown bearer token", ErrUnauthenticated)
}

// regionName is what a region may be called. It is no pattern: a list of names that is too short refuses a call, and one that is too
// wide would let a region decide for another.
var regionName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

type principalEntry struct {
	Name        string   `yaml:"name"`
	TokenSHA256 string   `yaml:"token_sha256"`
	TLSName     string   `yaml:"tls_name"`
	Agents      []string `yaml:"agents"`
	Roles       []string `yaml:"roles"`
	Workers     []string `yaml:"workers"`
	Regions     []string `yaml:"regions"`
}

// principal checks an entry but for its credentials.
func (e principalEntry) principal() (Principal, error) {
	p := Principal{Name: e.Name, Agents: e.Agents, Workers: e.Workers, Regions: e.Regions}
	for _, pat := range slices.Concat(e.Agents, e.Workers) {
		if _, err := path.Match(pat, ""); err != nil {
			return p, fmt.Errorf("pattern %q: %w", pat, err)
		}
	}
	for _, name := range e.Roles {
		r := Role(name)
		if !slices.Contains(web.Roles(), r) {
			return p, fmt.Errorf("role %q: want one of %v", name, web.Roles())
		}
		p.Roles = append(p.Roles, r)
	}
	// Half of a permission is a mistake that would show up as refused calls much later.
	switch {
	case len(e.Agents) > 0 && !p.Has(RoleSender):
		return p, errors.New("agents without the role sender: add roles: [sender]")
	case len(e.Agents) == 0 && p.Has(RoleSender):
		return p, errors.New("the role sender without agents: name the agents that it may write, [\"*\"] is all")
	case len(e.Workers) > 0 && !p.Has(RoleWorker):
		return p, errors.New("workers without the role worker: add roles: [worker]")
	case e.Regions != nil && !p.Has(RoleWorker):
		return p, errors.New("regions without the role worker: add roles: [worker]")
	case e.Regions != nil && len(e.Regions) == 0:
		return p, errors.New("regions is empty: name the regions that it may act for, or leave it out for all")
	case slices.ContainsFunc(e.Regions, func(r string) bool { return !regionName.MatchString(r) }):
		return p, fmt.Errorf("regions %q: a region has 1 to 64 of a-z, 0-9 and hyphen", e.Regions)
	}
	return p, nil
}

// lineOfNull is the line of the first list that has null for an entry; 0 is none.
func lineOfNull(n *yaml.Node) int {
	for _, c := range n.Content {
		e := c
		if e.Kind == yaml.AliasNode {
			e = e.Alias
		}
		if n.Kind == yaml.SequenceNode && e.ShortTag() == "!!null" {
			return c.Line
		}
		if line := lineOfNull(c); line > 0 {
			return line
		}
	}
	return 0
}

func readPrincipals(file string) (*principals, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return parsePrincipals(file, b)
}

func parsePrincipals(file string, b []byte) (*principals, error) {
	var f struct {
		Principals []principalEntry `yaml:"principals"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("auth: %s: %w", file, err)
	}
	// A second document would be ignored, and with it the principals that somebody put there.
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("auth: %s: something follows the first document", file)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(b, &root); err != nil {
		return nil, fmt.Errorf("auth: %s: %w", file, err)
	}
	// The decoder skips null entries: an entry that was cut off would be missing without an error.
	if line := lineOfNull(&root); line > 0 {
		return nil, fmt.Errorf("auth: %s: line %d: an entry of a list is null", file, line)
	}
	// An empty or truncated file must not lock everybody out; [] does so on purpose.
	if f.Principals == nil {
		return nil, fmt.Errorf("auth: %s: no principals; [] lets nobody in", file)
	}
	ps := &principals{byToken: map[[sha256.Size]byte]Principal{}, byName: map[string]Principal{}}
	for i, e := range f.Principals {
		if e.Name == "" || (e.TokenSHA256 == "") == (e.TLSName == "") {
			return nil, fmt.Errorf("auth: %s: principal %d: want name, and one of token_sha256 and tls_name", file, i)
		}
		p, err := e.principal()
		if err != nil {
			return nil, fmt.Errorf("auth: %s: principal %q: %w", file, e.Name, err)
		}
		if e.TLSName != "" {
			if _, ok := ps.byName[e.TLSName]; ok {
				return nil, fmt.Errorf("auth: %s: principal %q: another has its tls_name", file, e.Name)
			}
			ps.byName[e.TLSName] = p
			continue
		}
		h, err := hex.DecodeString(e.TokenSHA256)
		if err != nil || len(h) != sha256.Size {
			return nil, fmt.Errorf("auth: %s: principal %q: token_sha256 is not 64 hex digits", file, e.Name)
		}
		if _, ok := ps.byToken[[sha256.Size]byte(h)]; ok {
			return nil, fmt.Errorf("auth: %s: principal %q: another has its token", file, e.Name)
		}
		ps.byToken[[sha256.Size]byte(h)] = p
	}
	return ps, nil
}
