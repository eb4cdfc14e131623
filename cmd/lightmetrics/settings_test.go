package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/cmd/lightmetrics/internal/all"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/coordinator"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// services are all commands with settings, each with its defaults and the arguments that its
// settings need at least. TestEveryCommandIsASection misses none of them.
var services = map[string]struct {
	command  func() *cobra.Command
	defaults any
	least    []string
}{
	"agent":       {agentCommand, agent.DefaultConfig(), nil},
	"all":         {all.Command, all.DefaultConfig(), nil},
	"coordinator": {coordinator.Command, coordinator.DefaultConfig(), nil},
	"ingest":      {ingest.Command, ingest.DefaultConfig(), []string{"--ingest.store.bucket=bucket"}},
	"objectstore": {objectstore.Command, objectstore.DefaultConfig(), []string{"--objectstore.dir=data"}},
	"query":       {query.Command, query.DefaultConfig(), []string{"--query.store.bucket=bucket"}},
	"reconciler":  {reconciler.Command, reconciler.DefaultConfig(), []string{"--reconciler.store.bucket=bucket"}},
	"rollup":      {rollup.Command, rollup.DefaultConfig(), []string{"--rollup.store.bucket=bucket"}},
}

// configCheck runs --config.check of a service over the section of a settings file.
func configCheck(t *testing.T, service, yaml string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	yaml = strings.TrimPrefix(yaml, "{}")
	if service == "objectstore" && !strings.Contains(yaml, "users:") {
		yaml += "\nusers: [{name: u, access_key_id: u, secret: a-secret}]"
	}
	indented := "  " + strings.ReplaceAll(yaml, "\n", "\n  ")
	if err := os.WriteFile(file, []byte(service+":\n"+indented+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := services[service]
	cmd := s.command()
	var stderr bytes.Buffer
	cmd.SetOut(io.Discard)
	cmd.SetErr(&stderr)
	cmd.SetArgs(slices.Concat([]string{"--config.check", "--config", file}, s.least, args))
	return stderr.String(), cli.Execute(context.Background(), cmd)
}

// TestConfigCheckFindsWhatAStartRefuses: settings that are ignored, files that are not
// there, tokens in the clear, and addresses that are none, in every service.
func TestConfigCheckFindsWhatAStartRefuses(t *testing.T) {
	dir := t.TempDir()
	here := filepath.Join(dir, "here")
	if err := os.WriteFile(here, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent")
	for _, c := range []struct{ service, yaml, want string }{
		{"agent", "send: {collectors: [collector]}", "agent.send.collectors[0]: "},
		{"agent", "send: {collectors: ['https://collector:4750']}", "without a scheme"},
		{"agent", "send: {client: {tls: {ca_file: " + here + "}}}", "agent.send.client.tls.ca_file has no effect: it needs agent.send.client.tls.enabled"},
		{"agent", "send: {client: {tls: {enabled: true, ca_file: " + here + "}}}", "has no PEM certificate"},
		{"agent", "send: {client: {tls: {enabled: true, cert_file: " + here + "}}}", "cert_file and key_file go together"},
		{"agent", "send: {client: {token: t}}", "a token needs tls.enabled"},
		{"agent", "send: {client: {token_over_plaintext: true}}", "agent.send.client.token_over_plaintext has no effect"},
		{"agent", "http: {listen: '', token: t}", "agent.http.token has no effect: it needs agent.http.listen"},
		{"agent", "host: {enabled: false, job: j}", "agent.host.job has no effect"},
		{"agent", "scrape: [{job: a, url: 'https://h/metrics', tls: {ca_file: " + here + "}}]", "agent.scrape[0].tls.ca_file has no effect"},
		{"agent", "interval: 10", "missing unit"},
		{"coordinator", "auth: {principals_file: " + here + "}", `has no effect: coordinator.auth.mode is "none"`},
		{"coordinator", "auth: {mode: token, principals_file: " + absent + "}", "coordinator.auth.principals_file: open "},
		{"coordinator", "etcd: {tls: {enabled: true}}", "coordinator.etcd.tls.enabled has no effect: it needs coordinator.etcd.endpoints"},
		{"coordinator", "etcd: {endpoints: ['http://e:2379'], embedded: {name: x}}", "coordinator.etcd.embedded.name has no effect"},
		{"coordinator", "etcd: {endpoints: ['http://e:2379'], username: u, password_file: " + absent + "}", "coordinator.etcd.password_file: open "},
		{"coordinator", "etcd: {embedded: {peer_listen: 'a:1'}}", "coordinator.etcd.embedded.peer_listen has no effect"},
		{"coordinator", "store: {prefix: a/}", "coordinator.store.prefix has no effect: it needs coordinator.store.bucket"},
		{"ingest", "http: {listen: 4751}", "listen"},
		{"ingest", "grpc: {listen: 'grpc://127.0.0.1:4750'}", "ingest.grpc.listen: "},
		{"ingest", "tls: {cert_file: " + absent + ", key_file: " + here + "}", "ingest.tls.cert_file: open "},
		{"ingest", "tls: {cert_file: " + here + "}", "cert_file and key_file go together"},
		{"ingest", "tls: {cert_file: " + here + ", key_file: " + here + "}", "ingest.tls: tls: load "},
		{"ingest", "spool: {dir: x}", `ingest.spool.dir has no effect: ingest.acceptance is "s3_manifest"`},
		{"ingest", "limits: {agent_batches_burst: 7}", "ingest.limits.agent_batches_burst has no effect"},
		{"ingest", "notify: {queue: 7}", "ingest.notify.queue has no effect: it needs ingest.notify.addresses"},
		{"ingest", "notify: {addresses: [a], client: {token: t}}", "ingest.notify.addresses[0]: "},
		{"ingest", "notify: {addresses: ['a:1'], client: {token: t}}", "a token needs tls.enabled"},
		{"ingest", "store: {endpoint: 'http://127.0.0.1:1', ca_file: " + here + "}", "ca_file has no effect"},
		{"ingest", "store: {ca_file: " + here + "}", "has no PEM certificate"},
		{"ingest", "store: {access_key_id: a, secret_access_key: b, secret_access_key_file: " + here + "}", "want one of both"},
		{"objectstore", "admin_listen: ''\npprof: true", "objectstore.pprof has no effect"},
		{"objectstore", "webhook_backlog: 1MiB", "objectstore.webhook_backlog has no effect"},
		{"objectstore", "reclaim_below: 0\nreclaim_interval: 3s", "objectstore.reclaim_interval has no effect"},
		{"objectstore", "users: [{name: u, access_key_id: u, secret_file: " + absent + "}]", "objectstore.users[0].secret_file: open "},
		{"objectstore", "users: [{name: u, access_key_id: u, secret: 0123456789}]", "put it into quotes"},
		{"objectstore", "webhooks: [{url: 'http://r/', tls: {ca_file: " + here + "}}]", "tls has no effect without https"},
		{"objectstore", "webhooks: [{url: 'https://r/', tls: {ca_file: " + here + "}}]", "objectstore.webhooks[0].tls: "},
		{"query", "follow: {watch: ['http://r:4771']}", "query.follow.watch[0]: "},
		{"query", "follow: {watch_client: {tls: {enabled: true}}}", "query.follow.watch_client.tls.enabled has no effect"},
		{"query", "tls: {client_ca_file: " + here + "}", "client_ca_file needs cert_file"},
		{"rollup", "coordinator: {worker_id: w}", "rollup.coordinator.worker_id has no effect: it needs rollup.coordinator.addresses"},
		{"rollup", "snapshot: {interval: 0, window: 3h}", "rollup.snapshot.window has no effect"},
		{"rollup", "compact: {interval: 0, group: 3}", "rollup.compact.group has no effect"},
		{"rollup", "retention: {interval: 3h}", "rollup.retention.interval has no effect"},
	} {
		if _, err := configCheck(t, c.service, c.yaml); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s\n got %v\nwant %s", c.service, c.yaml, err, c.want)
		}
	}
	if _, err := configCheck(t, "ingest", "{}", "--telemetry.otlp_insecure"); err == nil || !strings.Contains(err.Error(), "telemetry.otlp_insecure has no effect") {
		t.Errorf("telemetry: %v", err)
	}
	for name := range services {
		if name == "all" {
			continue // it runs its own binary for the check of each service, which here is this test
		}
		if _, err := configCheck(t, name, "{}"); err != nil {
			t.Errorf("%s with its defaults: %v", name, err)
		}
	}
}

// TestServiceLinksStopNoService: what Kubernetes sets is named once; other variables that
// are no settings are refused.
func TestServiceLinksStopNoService(t *testing.T) {
	t.Setenv("LIGHTMETRICS_QUERY_SERVICE_HOST", "10.0.0.1")
	t.Setenv("LIGHTMETRICS_QUERY_PORT_4760_TCP", "tcp://10.0.0.1:4760")
	out, err := configCheck(t, "query", "{}")
	if err != nil || strings.Count(out, "\n") > 1 {
		t.Errorf("%v, %q", err, out)
	}
	t.Setenv("LIGHTMETRICS_QERY_HTTP_LISTEN", "127.0.0.1:1")
	if _, err := configCheck(t, "query", "{}"); err == nil || !strings.Contains(err.Error(), "LIGHTMETRICS_QERY_HTTP_LISTEN") {
		t.Errorf("a misspelled section is taken: %v", err)
	}
}

// TestEverySecretCanComeFromAFile: each Secret has a setting of its name and _file beside it.
func TestEverySecretCanComeFromAFile(t *testing.T) {
	secrets := 0
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Slice, reflect.Map, reflect.Pointer:
			visit(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		names := map[string]bool{}
		for i := range typ.NumField() {
			names[typ.Field(i).Tag.Get("koanf")] = true
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := f.Tag.Get("koanf")
			if f.Type == reflect.TypeFor[config.Secret]() {
				if secrets++; !names[name+"_file"] {
					t.Errorf("%s.%s: no setting %s_file", typ, f.Name, name)
				}
			} else if f.IsExported() {
				visit(f.Type)
			}
		}
	}
	visit(reflect.TypeFor[s3.Config]())
	for _, service := range services {
		visit(reflect.TypeOf(service.defaults))
	}
	if secrets < 8 {
		t.Fatalf("only %d secrets: the test misses most", secrets)
	}
}

// TestEveryCommandIsASection: a binary of one service takes a settings file with the sections of
// all others.
func TestEveryCommandIsASection(t *testing.T) {
	var have []string
	for _, c := range root().Commands() {
		if c.Flags().Lookup("config") != nil {
			have = append(have, c.Name())
		}
	}
	slices.Sort(have)
	if len(have) < 8 || !slices.Equal(have, cli.Sections) {
		t.Errorf("commands with settings are %v, cli.Sections has %v", have, cli.Sections)
	}
	if tested := slices.Sorted(maps.Keys(services)); !slices.Equal(have, tested) {
		t.Errorf("commands with settings are %v, the tests of this package know %v: the table services lacks one", have, tested)
	}
}
