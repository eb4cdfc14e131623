package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

type listen struct {
	Addr string `koanf:"listen" help:"address"`
}

type user struct {
	Name string `koanf:"name"`
	Key  Secret `koanf:"key"`
}

type settings struct {
	HTTP    listen        `koanf:"http"`
	Limit   Bytes         `koanf:"limit" help:"size"`
	Every   time.Duration `koanf:"every" help:"period"`
	Peers   []string      `koanf:"peers" help:"addresses"`
	Token   Secret        `koanf:"token" help:"secret"`
	Retries int           `koanf:"retries" help:"count"`
	Share   float64       `koanf:"share" help:"fraction"`
	Debug   bool          `koanf:"debug" help:"more"`
	Users   []user        `koanf:"users"`
}

func (s settings) Validate() error {
	if s.Retries < 0 {
		return os.ErrInvalid
	}
	return nil
}

func defaults() settings {
	return settings{HTTP: listen{Addr: "127.0.0.1:1"}, Limit: 4 << 20, Every: time.Second, Retries: 3}
}

func load(t *testing.T, yaml string, env, args []string) (settings, error) {
	t.Helper()
	cfg := defaults()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Flags(fs, "svc", &cfg)
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	path := ""
	if yaml != "" {
		path = filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cfg, Load(fs, path, "svc", &cfg, env)
}

func TestPrecedenceIsFileEnvironmentFlags(t *testing.T) {
	yaml := `
other: {section: 1}
svc:
  http: {listen: "127.0.0.1:2"}
  limit: 8MiB
  every: 5s
  peers: [a, b]
  token: from-file
  users: [{name: u, key: k}]
`
	got, err := load(t, yaml,
		[]string{"LIGHTMETRICS_SVC_EVERY=7s", "LIGHTMETRICS_SVC_LIMIT=1KiB", "PATH=/bin"},
		[]string{"--svc.every=9s", "--svc.debug", "--svc.token=from-flag"})
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		HTTP: listen{Addr: "127.0.0.1:2"}, Limit: 1 << 10, Every: 9 * time.Second, Peers: []string{"a", "b"},
		Token: "from-flag", Retries: 3, Debug: true, Users: []user{{Name: "u", Key: "k"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestBadSettingsAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		yaml      string
		env, args []string
		want      string
	}{
		"unknown key in the file":                 {yaml: "svc: {htp: {listen: x}}", want: "unknown keys: htp"},
		"unknown nested key":                      {yaml: "svc: {http: {listn: x}}", want: "http.listn"},
		"unknown variable":                        {env: []string{"LIGHTMETRICS_SVC_NOPE=1"}, want: "LIGHTMETRICS_SVC_NOPE"},
		"size without sense":                      {env: []string{"LIGHTMETRICS_SVC_LIMIT=big"}, want: "size"},
		"negative size":                           {args: []string{"--svc.limit=-4MiB"}, want: "size"},
		"number with a tail":                      {args: []string{"--svc.retries=3x"}, want: "not a int"},
		"duration without a unit":                 {args: []string{"--svc.every=3"}, want: "missing unit"},
		"unknown flag":                            {args: []string{"--svc.nope=3"}, want: "unknown flag"},
		"the struct's own check":                  {args: []string{"--svc.retries=-1"}, want: "invalid argument"},
		"a number with a rest in the environment": {env: []string{"LIGHTMETRICS_SVC_SHARE=0.5x"}, want: "not a number"},
		"a number with a rest as a flag":          {args: []string{"--svc.share=0.5 0.6"}, want: "not a number"},
		"no number in the environment":            {env: []string{"LIGHTMETRICS_SVC_SHARE=NaN"}, want: "finite"},
		"no number in the file":                   {yaml: "svc: {share: .nan}", want: "finite"},
		"infinity in the file":                    {yaml: "svc: {share: .inf}", want: "finite"},
		"a list in the environment":               {env: []string{"LIGHTMETRICS_SVC_USERS=x"}, want: "file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, c.yaml, c.env, c.args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	cfg := defaults()
	cfg.Token, cfg.Users = "hunter2", []user{{Name: "u", Key: "hunter2"}}
	b, err := json.Marshal(Redacted(&cfg))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{string(b), string(plain), cfg.Token.String(), cfg.Token.GoString()} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("secret in %s", s)
		}
	}
	if !strings.Contains(string(b), `"limit":"4MiB"`) {
		t.Errorf("no limit in %s", b)
	}
}

func TestCommandsShowNoArguments(t *testing.T) {
	type settings struct {
		Command Command `koanf:"command"`
	}
	cfg := settings{Command: Command{"vault", "-token=hunter2", "read"}}
	b, err := json.Marshal(Redacted(&cfg))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{string(b), string(plain), cfg.Command.String(), cfg.Command.GoString()} {
		if strings.Contains(s, "hunter2") || strings.Contains(s, "read") || !strings.Contains(s, "vault") {
			t.Errorf("%s", s)
		}
	}
	text, err := yaml.Marshal(cfg)
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("%s %v", text, err)
	}
	for _, c := range []Command{nil, {"alone"}, cfg.Command} {
		text, err := json.Marshal(settings{c})
		if err != nil {
			t.Fatal(err)
		}
		var again settings
		if err := json.Unmarshal(text, &again); err != nil || len(again.Command) != min(len(c), 2) {
			t.Errorf("%s: %v %v", text, again, err)
		}
	}
	if s := (Command{"alone"}).String() + (Command{}).String(); s != "alone" {
		t.Error(s)
	}
}

func FuzzBytes(f *testing.F) {
	for _, s := range []string{"0", "4MiB", "1 GiB", "500MB", "-1", "9223372036854775807", "9TiB", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b Bytes
		if b.UnmarshalText([]byte(s)) != nil {
			return
		}
		if b < 0 {
			t.Fatalf("%q is negative: %d", s, b)
		}
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Fatalf("%q: %d writes as %q, reads as %d (%v)", s, b, b.String(), again, err)
		}
	})
}
