package all

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// Config is the section "all" of the settings file.
type Config struct {
	DataDir     string `koanf:"data_dir" help:"directory of everything: objects, etcd, the agent's queue, credentials"`
	Agent       bool   `koanf:"agent" help:"run an agent that reads this host"`
	AuthorityID string `koanf:"authority_id" help:"name of the acceptance authority, fixed by the first start"`
	Bucket      string `koanf:"bucket" help:"bucket in the embedded store"`
	Shards      int    `koanf:"shards" help:"shards of the rollups, fixed by the first start"`
}

// DefaultConfig is for a machine of its own.
func DefaultConfig() Config {
	return Config{DataDir: "/var/lib/lightmetrics", Agent: true, AuthorityID: "lightmetrics", Bucket: "lightmetrics", Shards: 4}
}

// Validate checks what only this section knows; each service checks its own.
func (c Config) Validate() error {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("data_dir: is needed"))
	}
	if c.AuthorityID == "" {
		errs = append(errs, errors.New("authority_id: is needed"))
	}
	if c.Shards < 1 {
		errs = append(errs, fmt.Errorf("shards %d: want at least 1", c.Shards))
	}
	return errors.Join(errs...)
}

// section is a part of a settings file.
type section = map[string]any

// Services in the order of their start: each comes after those that it calls.
const (
	objectstore = "objectstore"
	coordinator = "coordinator"
	reconciler  = "reconciler"
	ingest      = "ingest"
	rollup      = "rollup"
	query       = "query"
	agent       = "agent"
)

func (c Config) services() []string {
	names := []string{objectstore, coordinator, reconciler, ingest, rollup, query}
	if c.Agent {
		names = append(names, agent)
	}
	return names
}

// plan is the settings of every service: those that connect the services with each other, and over
// them those of the operator's file.
type plan struct {
	cfg   Config
	creds *credentials
	file  map[string]section // the operator's sections
	// environ has the variables, as NAME=value, that may be settings of the services.
	environ []string
}

// readPlan reads the operator's sections of the file at path; "" is none. environ are the
// variables that the services have, too, and take before their files.
func readPlan(cfg Config, creds *credentials, path string, environ []string) (*plan, error) {
	p := &plan{cfg: cfg, creds: creds, file: map[string]section{}, environ: environ}
	if path == "" {
		return p, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var sections map[string]any
	if err := yaml.Unmarshal(b, &sections); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name, v := range sections {
		switch s := v.(type) {
		// A section that has only comments is read as null, and means no settings.
		case nil:
		case section:
			p.file[name] = s
		default:
			return nil, fmt.Errorf("%s: section %s: want settings, not %v", path, name, v)
		}
	}
	return p, nil
}

// of gives the settings file of a service.
func (p *plan) of(service string) section {
	out := section{service: merge(p.own(service), p.file[service])}
	if t := p.file["telemetry"]; t != nil {
		out["telemetry"] = t
	}
	return out
}

// merge gives base with the settings of over, section by section. A list or value of over replaces
// that of base.
func merge(base, over section) section {
	// A copy: maps are shared by reference, and base may be used for another service.
	out := maps.Clone(base)
	for k, v := range over {
		b, isBase := out[k].(section)
		o, isOver := v.(section)
		if isBase && isOver {
			out[k] = merge(b, o)
		} else {
			out[k] = v
		}
	}
	return out
}

// address is what a service listens on, for those that call it: the operator's setting
// at path, or def.
func (p *plan) address(def, service string, path ...string) string {
	if s := p.setting(service, path...); s != "" {
		return s
	}
	return def
}

// setting is the operator's text for a setting of a service, from a variable or the file, in the
// order in which the service itself reads them; "" is none.
func (p *plan) setting(service string, path ...string) string {
	name := config.EnvName(strings.Join(append([]string{service}, path...), ".")) + "="
	for _, kv := range p.environ {
		// The variable comes first, as in the service itself; else others would call an address on which
		// it does not listen.
		if v, ok := strings.CutPrefix(kv, name); ok && v != "" {
			return v
		}
	}
	var v any = p.file[service]
	for _, k := range path {
		s, _ := v.(section)
		v = s[k]
	}
	s, _ := v.(string)
	return s
}

func (p *plan) storeAddress() string  { return p.address("127.0.0.1:4790", objectstore, "listen") }
func (p *plan) ingestAddress() string { return p.address("127.0.0.1:4750", ingest, "grpc", "listen") }
func (p *plan) reconcilerHTTP() string {
	return p.address("127.0.0.1:4770", reconciler, "http", "listen")
}
func (p *plan) reconcilerGRPC() string {
	return p.address("127.0.0.1:4771", reconciler, "grpc", "listen")
}
func (p *plan) coordinatorGRPC() string {
	return p.address("127.0.0.1:4781", coordinator, "grpc", "listen")
}

// own gives the settings of a service that make it a member of this group.
func (p *plan) own(service string) section {
	switch service {
	case objectstore:
		return p.storeSettings()
	case coordinator:
		return section{"auth": p.auth(), "store": p.bucket(coordinator),
			"etcd": section{"embedded": section{"data_dir": p.dir("coordinator")}}}
	case reconciler:
		return section{"auth": p.auth(), "store": p.bucket(reconciler), "authority_id": p.cfg.AuthorityID,
			"repairs": section{"collectors": []string{p.ingestAddress()}, "client": p.client(workerToken)}}
	case ingest:
		return section{"auth": p.auth(), "store": p.bucket(ingest), "authority_id": p.cfg.AuthorityID,
			"notify": section{"addresses": []string{p.reconcilerGRPC()}, "client": p.client(workerToken)}}
	case rollup:
		return section{"auth": p.auth(), "store": p.bucket(rollup), "authority_id": p.cfg.AuthorityID, "shards": p.cfg.Shards,
			"id":          "rollup", // the same at every start, so it gets its shards back at once
			"coordinator": section{"addresses": []string{p.coordinatorGRPC()}, "client": p.client(workerToken)},
			"follow":      p.watch()}
	case query:
		return section{"auth": p.auth(), "store": p.bucket(query), "follow": p.watch()}
	case agent:
		return section{"data_dir": p.dir("agent"),
			"send": section{"collectors": []string{p.ingestAddress()}, "client": p.client(senderToken)}}
	}
	return section{}
}

func (p *plan) dir(name string) string { return filepath.Join(p.cfg.DataDir, name) }

// watch is how those who follow the journal hear of what is accepted: from the reconciler, and from the collector, which
// also sends them frames.
func (p *plan) watch() section {
	return section{"watch": []string{p.reconcilerGRPC(), p.ingestAddress()}, "watch_client": p.client(workerToken)}
}

// auth requires tokens everywhere, on loopback too: other users of the machine can connect there.
func (p *plan) auth() section {
	return section{"mode": "token", "principals_file": p.creds.path(principalsFile)}
}

// client presents a token. Between the services of one machine there is no TLS.
func (p *plan) client(token string) section {
	return section{"token_file": p.creds.path(token), "token_over_plaintext": true}
}

// storeUser is a user of the store: one for each service that reaches it, and one for lmctl and people.
type storeUser struct {
	name, secret string
	roles        []bucketpolicy.Role
}

// operatorUser is that of no service.
const operatorUser = ""

var storeUsers = map[string]storeUser{
	operatorUser: {"lightmetrics", storeSecret, []bucketpolicy.Role{bucketpolicy.Operator}},
	ingest:       {"lightmetrics-ingest", ingestSecret, []bucketpolicy.Role{bucketpolicy.Ingest}},
	reconciler:   {"lightmetrics-reconciler", foldSecret, []bucketpolicy.Role{bucketpolicy.Reconciler, bucketpolicy.GC}},
	rollup:       {"lightmetrics-rollup", rollupSecret, []bucketpolicy.Role{bucketpolicy.Rollup}},
	query:        {"lightmetrics-query", querySecret, []bucketpolicy.Role{bucketpolicy.Query}},
	coordinator:  {"lightmetrics-coordinator", termSecret, []bucketpolicy.Role{bucketpolicy.Coordinator}},
}

// bucket is how a service reaches the store.
func (p *plan) bucket(service string) section {
	u := storeUsers[service]
	return section{"endpoint": "http://" + p.storeAddress(), "bucket": p.cfg.Bucket, "path_style": true,
		"access_key_id": u.name, "secret_access_key_file": p.creds.path(u.secret)}
}

func (p *plan) storeSettings() section {
	var users []section
	for _, service := range slices.Sorted(maps.Keys(storeUsers)) {
		users = append(users, p.user(storeUsers[service]))
	}
	return section{"dir": p.dir("objects"), "buckets": []string{p.cfg.Bucket}, "users": users}
}

// user is a user of the store. Its policy, the least that its service needs, protects what was accepted
// from a bug in a service and from a mistaken command.
func (p *plan) user(u storeUser) section {
	policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: p.cfg.Bucket}, u.roles...)
	if err != nil {
		panic(err) // it is made of strings
	}
	return section{"name": u.name, "access_key_id": u.name, "secret_file": p.creds.path(u.secret), "policy": string(policy)}
}

// write writes the settings file of every service, 0600, and gives their paths.
func (p *plan) write(dir string) (map[string]string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for _, s := range p.cfg.services() {
		text, err := yaml.Marshal(p.of(s))
		if err != nil {
			return nil, err
		}
		paths[s] = filepath.Join(dir, s+".yaml")
		head := "# Made by \"lightmetrics all\" at every start and reload, of its own settings file: change that one.\n"
		if err := writeFile(paths[s], append([]byte(head), text...)); err != nil {
			return nil, err
		}
	}
	return paths, nil
}
