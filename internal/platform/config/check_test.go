package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type peerTLS struct {
	Enabled bool   `koanf:"enabled"`
	CA      string `koanf:"ca" needs:"enabled" check:"file"`
}

func (t peerTLS) Check() error {
	if strings.HasSuffix(t.CA, "bad.pem") {
		return errors.New("no certificate")
	}
	return nil
}

type peer struct {
	URL       string  `koanf:"url"`
	Token     Secret  `koanf:"token"`
	TokenFile string  `koanf:"token_file"`
	TLS       peerTLS `koanf:"tls"`
}

type spoolDir struct {
	Dir   string        `koanf:"dir" check:"dir"`
	Every time.Duration `koanf:"every"`
}

type checked struct {
	Listen  string   `koanf:"listen" check:"listen"`
	Servers []string `koanf:"servers" check:"address"`
	Client  peerTLS  `koanf:"client" needs:"servers"`
	Mode    string   `koanf:"mode"`
	File    string   `koanf:"file" needs:"mode=token|mtls" check:"file"`
	Spool   spoolDir `koanf:"spool" needs:"!servers"`
	Peers   []peer   `koanf:"peers"`
	Count   uint8    `koanf:"count"`
	Key     Secret   `koanf:"key"`
	KeyFile string   `koanf:"key_file"`
}

func defaultChecked() checked {
	return checked{Listen: "127.0.0.1:1", Mode: "none", Spool: spoolDir{Every: time.Second}}
}

func loadChecked(t *testing.T, yaml string, environ ...string) (checked, error) {
	t.Helper()
	cfg := defaultChecked()
	path := filepath.Join(t.TempDir(), "c.yaml")
	write(t, path, yaml)
	return cfg, Load(noFlags(), path, "svc", &cfg, environ)
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSettingsThatAStartWouldRefuse: each line has one fault, and the error names the setting.
func TestSettingsThatAStartWouldRefuse(t *testing.T) {
	dir := t.TempDir()
	here, bad := write(t, filepath.Join(dir, "ca.pem"), "x"), write(t, filepath.Join(dir, "bad.pem"), "x")
	empty := write(t, filepath.Join(dir, "empty"), "\n")
	two := write(t, filepath.Join(dir, "two"), "a\nb\n")
	for yaml, want := range map[string]string{
		// Switches that are off.
		"servers: ['a:1']\n  client: {ca: " + here + "}":            "svc.client.ca has no effect: it needs svc.client.enabled",
		"client: {enabled: true}":                                   "svc.client.enabled has no effect: it needs svc.servers",
		"file: " + here:                                             `svc.file has no effect: svc.mode is "none", and it needs token or mtls`,
		"servers: ['a:1']\n  spool: {every: 3s}":                    "svc.spool.every has no effect: svc.servers is set",
		"peers: [{url: a}, {url: b, tls: {ca: " + here + "}}]":      "svc.peers[1].tls.ca has no effect: it needs svc.peers[1].tls.enabled",
		"peers: [{tls: {enabled: true, ca: " + bad + "}}]":          "svc.peers[0].tls: no certificate",
		"mode: token\n  file: " + filepath.Join(dir, "absent.yaml"): "svc.file: open ",
		"mode: token\n  file: " + dir:                               "svc.file: read ",
		"spool: {dir: " + here + "}":                                "svc.spool.dir: " + here + " is no directory",
		// Addresses.
		"listen: 127.0.0.1":        "svc.listen: \"127.0.0.1\": want host:port",
		"listen: http://a:1":       "svc.listen: ",
		"listen: 'a:http'":         "svc.listen: ",
		"listen: 'a:65536'":        "svc.listen: ",
		"servers: ['a:1', b]":      "svc.servers[1]: ",
		"servers: ['https://a:1']": "svc.servers[0]: ",
		"servers: [':1']":          "svc.servers[0]: ",
		"servers: ['a:0']":         "svc.servers[0]: ",
		"servers: ['']":            "svc.servers[0]: ",
		// What the decoder would change silently.
		"spool: {every: 3}":             "missing unit",
		"count: 2.5":                    "not a whole number",
		"count: 256":                    "out of range",
		"count: -1":                     "out of range",
		"count: '3'":                    "count",
		"mode: 1e3":                     "mode",
		"listen: ":                      "settings without a value: svc.listen",
		"mode: none\n---\nsvc: {}":      "more than one YAML document",
		"mode: none\nsvc: {mode: none}": "already defined",
		// Secrets.
		"key: a\n  key_file: " + here:                      "svc.key and svc.key_file: want one of both",
		"key_file: " + filepath.Join(dir, "absent"):        "svc.key_file: open ",
		"key_file: " + empty:                               "is empty",
		"key_file: " + two:                                 "more than one line",
		"peers: [{token: a, token_file: " + here + "}]":    "svc.peers[0].token and svc.peers[0].token_file",
		"peers: [{token_file: " + dir + "}]":               "svc.peers[0].token_file: ",
		"peers: [{url: a}, {tokn_file: " + here + "}]":     "tokn_file",
		"mode: token\n  file: ''\n  client: {ca: '/nope'}": "svc.client.ca has no effect",
	} {
		if _, err := loadChecked(t, "svc:\n  "+yaml+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", yaml, err, want)
		}
	}
}

func TestSettingsThatAreRight(t *testing.T) {
	here := write(t, filepath.Join(t.TempDir(), "ca.pem"), "x")
	for _, yaml := range []string{
		"{}", "", "listen: ':0'", "listen: '[::]:80'", "servers: ['[::1]:1', 'host.name:65535']",
		"servers: ['a:1']\n  client: {enabled: true, ca: " + here + "}",
		"mode: mtls\n  file: " + here, "spool: {every: 0}", "spool: {dir: /no/such/directory/yet}",
		"servers: ['a:1']\n  spool: {every: 1s}", // the default, written down
		"spool:", "count: 255", "count: 3.0",
	} {
		if _, err := loadChecked(t, "svc:\n  "+yaml+"\n"); err != nil {
			t.Errorf("%q: %v", yaml, err)
		}
	}
}

func TestSecretsComeFromFiles(t *testing.T) {
	dir := t.TempDir()
	key, token := write(t, filepath.Join(dir, "key"), "k e y\r\n"), write(t, filepath.Join(dir, "token"), "t")
	got, err := loadChecked(t, "svc: {peers: [{url: a, token: x}, {url: b, token_file: "+token+"}]}", "LIGHTMETRICS_SVC_KEY_FILE="+key)
	if err != nil || got.Key != "k e y" || got.Peers[0].Token != "x" || got.Peers[1].Token != "t" {
		t.Errorf("%v: key %q, tokens %q and %q", err, got.Key.Reveal(), got.Peers[0].Token.Reveal(), got.Peers[1].Token.Reveal())
	}
}

func TestKubernetesServiceLinks(t *testing.T) {
	links := []string{
		"LIGHTMETRICS_QUERY_SERVICE_HOST=10.0.0.1", "LIGHTMETRICS_QUERY_SERVICE_PORT=4760", "LIGHTMETRICS_QUERY_SERVICE_PORT_HTTP=4760",
		"LIGHTMETRICS_QUERY_PORT=tcp://10.0.0.1:4760", "LIGHTMETRICS_QUERY_PORT_4760_TCP=tcp://10.0.0.1:4760",
		"LIGHTMETRICS_QUERY_PORT_4760_TCP_PROTO=tcp", "LIGHTMETRICS_QUERY_PORT_4760_TCP_PORT=4760", "LIGHTMETRICS_QUERY_PORT_4760_TCP_ADDR=10.0.0.1",
		"LIGHTMETRICS_SERVICE_HOST=fd00::1", "LIGHTMETRICS_PORT=udp://[fd00::1]:1",
	}
	others := []string{
		"LIGHTMETRICS_QUERY_SERVICE_HOSTS=10.0.0.1", "LIGHTMETRICS_QUERY_PORT=4760", "LIGHTMETRICS_QUERY_SERVICE_HOST=name",
		"LIGHTMETRICS_QUERY_PORT_TCP=tcp://10.0.0.1:4760", "QUERY_SERVICE_HOST=10.0.0.1", "PATH=/bin",
	}
	rest, got := SplitServiceLinks(slices.Concat(links, others))
	if len(got) != len(links) || !slices.Equal(rest, others) {
		t.Errorf("links %q, the rest %q", got, rest)
	}
}

func TestUnknownSectionsOfTheEnvironment(t *testing.T) {
	check := func(kv string) error {
		return CheckEnvironment([]string{kv}, []string{"ingest", "query"}, []string{"LIGHTMETRICS_FAILPOINTS", "LIGHTMETRICS_TEST_"})
	}
	for _, kv := range []string{"LIGHTMETRICS_INGEST_X=1", "LIGHTMETRICS_FAILPOINTS=", "LIGHTMETRICS_TEST_X=1", "HOME=/"} {
		if err := check(kv); err != nil {
			t.Errorf("%s: %v", kv, err)
		}
	}
	for _, kv := range []string{"LIGHTMETRICS_INGST_HTTP_LISTEN=x", "LIGHTMETRICS_INGESTX=1", "LIGHTMETRICS_FAILPOINTSX=1", "LIGHTMETRICS_=1"} {
		if err := check(kv); err == nil || !strings.Contains(err.Error(), strings.TrimRight(kv, "=1x")) {
			t.Errorf("%s: %v", kv, err)
		}
	}
}

func noFlags() *pflag.FlagSet { return pflag.NewFlagSet("test", pflag.ContinueOnError) }
