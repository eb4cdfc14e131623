package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
)

// section is a part of a settings file.
type section = map[string]any

// writeSettings writes one file for each process, as an operator would.
func (c *Cluster) writeSettings() error {
	files := map[string]section{
		"objectstore": {"objectstore": c.storeSettings()},
		"reconciler":  {"reconciler": c.reconcilerSettings()},
		"query":       {"query": c.querySettings()},
		"agent":       {"agent": c.agentSettings()},
	}
	if c.o.Coordinator {
		files["coordinator"] = section{"coordinator": c.coordinatorSettings()}
	}
	for i := range c.Addr.Collectors {
		files[collectorName(i)] = section{"ingest": c.collectorSettings(i)}
	}
	for i := range c.o.Rollups {
		files[RollupName(i)] = section{"rollup": c.rollupSettings(i)}
	}
	for name, s := range files {
		for _, adjust := range []func(string, section){c.amend, c.o.Adjust} {
			if adjust == nil {
				continue
			}
			for _, settings := range s { // each file has one section
				adjust(name, settings.(section))
			}
		}
		b, err := yaml.Marshal(s)
		if err != nil {
			return err
		}
		// Credentials are in it.
		if err := os.WriteFile(filepath.Join(c.o.Dir, name+".yaml"), b, 0o600); err != nil {
			return fmt.Errorf("settings of %s: %w", name, err)
		}
	}
	return nil
}

// bucketSettings is how a service reaches the bucket.
func (c *Cluster) bucketSettings(role bucketpolicy.Role) section {
	u := c.users[role]
	return section{
		"endpoint": c.endpoint(), "bucket": c.o.Bucket, "path_style": true,
		"access_key_id": u.key, "secret_access_key": u.secret.Reveal(),
	}
}

// auth lets everybody in on loopback, and on purpose in a network that is the test's own.
func (c *Cluster) auth(process string) section {
	return section{"mode": "none", "allow_insecure": c.host(process) != nil}
}

func (c *Cluster) storeSettings() section {
	users := []section{{"name": "local", "access_key_id": c.o.AccessKeyID, "secret": c.o.SecretAccessKey.Reveal()}}
	for _, role := range slices.Sorted(maps.Keys(c.users)) {
		u := c.users[role]
		if u.policy != "" {
			users = append(users, section{"name": u.name, "access_key_id": u.key, "secret": u.secret.Reveal(), "policy": u.policy})
		}
	}
	return section{
		"listen":       c.Addr.Store,
		"admin_listen": c.Addr.StoreAdmin,
		// As auth does, in a network that is the test's own.
		"allow_insecure": c.host("objectstore") != nil,
		"dir":            c.storeDir(),
		"buckets":        []string{c.o.Bucket},
		"users":          users,
	}
}

func (c *Cluster) collectorSettings(i int) section {
	a := c.Addr.Collectors[i]
	return section{
		"grpc":         section{"listen": a.GRPC},
		"http":         section{"listen": a.HTTP},
		"auth":         c.auth(collectorName(i)),
		"id":           collectorName(i),
		"authority_id": c.o.AuthorityID,
		"store":        c.bucketSettings(bucketpolicy.Ingest),
		"notify":       section{"addresses": []string{c.Addr.ReconcilerGRPC}},
	}
}

func (c *Cluster) reconcilerSettings() section {
	return section{
		"http":         section{"listen": c.Addr.ReconcilerHTTP},
		"grpc":         section{"listen": c.Addr.ReconcilerGRPC},
		"auth":         c.auth("reconciler"),
		"authority_id": c.o.AuthorityID,
		"store":        c.bucketSettings(bucketpolicy.Reconciler),
		"repairs":      section{"collectors": c.collectors()},
	}
}

// rollupSettings roll the current hour up at once, so that it is seen.
func (c *Cluster) rollupSettings(i int) section {
	return section{
		"http":         section{"listen": c.Addr.Rollups[i]},
		"auth":         c.auth(RollupName(i)),
		"id":           RollupName(i),
		"authority_id": c.o.AuthorityID,
		"shards":       c.o.Shards,
		"coordinator":  section{"addresses": []string{c.Addr.CoordinatorGRPC}},
		"schedule":     section{"first_after": "-1h", "late_after": "2s", "fold_after": "8s"},
		"follow":       section{"interval": "500ms", "idle": "1s", "watch": c.watched()},
		"store":        c.bucketSettings(bucketpolicy.Rollup),
	}
}

// coordinatorSettings of one with an etcd member inside.
func (c *Cluster) coordinatorSettings() section {
	etcd := section{"data_dir": c.coordinatorDir()}
	return section{
		"http":  section{"listen": c.Addr.CoordinatorHTTP},
		"grpc":  section{"listen": c.Addr.CoordinatorGRPC},
		"auth":  c.auth("coordinator"),
		"etcd":  section{"embedded": etcd},
		"store": c.bucketSettings(coordinatorRole),
	}
}

const coordinatorRole = bucketpolicy.Coordinator

// storeDir has the embedded store.
func (c *Cluster) storeDir() string { return filepath.Join(c.o.Dir, "objects") }

// coordinatorDir has the embedded member.
func (c *Cluster) coordinatorDir() string { return filepath.Join(c.o.Dir, "coordinator") }

func (c *Cluster) querySettings() section {
	return section{
		"http":    section{"listen": c.Addr.QueryHTTP},
		"grpc":    section{"listen": c.Addr.QueryGRPC},
		"auth":    c.auth("query"),
		"store":   c.bucketSettings(bucketpolicy.Query),
		"follow":  section{"watch": c.watched()},
		"rollup":  section{"poll": "5s"},
		"history": section{"window": "6h"},
	}
}

// watched are the services that name what is accepted: the reconciler, and the collectors, which also have frames.
func (c *Cluster) watched() []string {
	return append([]string{c.Addr.ReconcilerGRPC}, c.collectors()...)
}

func (c *Cluster) collectors() (all []string) {
	for _, a := range c.Addr.Collectors {
		all = append(all, a.GRPC)
	}
	return all
}

func (c *Cluster) agentSettings() section {
	var collectors []string
	for _, a := range c.Addr.Collectors {
		collectors = append(collectors, a.GRPC)
	}
	return section{
		"http":     section{"listen": c.Addr.AgentHTTP},
		"agent_id": c.o.AgentID,
		"data_dir": filepath.Join(c.o.Dir, "agent"),
		// A busy machine may need longer than the default to send what is left.
		"drain_timeout": "30s",
		"interval":      c.o.ScrapeInterval.String(),
		"batch":         section{"max_age": c.o.BatchAge.String()},
		"send":          section{"collectors": collectors},
	}
}
