package badinput

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// principalsCase is a file that is refused when a service starts. {hash} is a token's
// hash, {ff} a byte that is no UTF-8, {open} and {dash} are repeat times "[" and "- ".
type principalsCase struct {
	named  `yaml:",inline"`
	Text   string `yaml:"text"`
	Repeat int    `yaml:"repeat"`
}

// TestPrincipals starts collectors over bad files of principals, and lays each in place of a good one.
func TestPrincipals(t *testing.T) {
	boundMemory(t, 128<<20)
	for _, k := range load[principalsCase](t, "principals") {
		t.Run(k.Name, func(t *testing.T) {
			text := strings.NewReplacer("{hash}", identity.Sum([]byte(webToken)).String(), "{ff}", "\xff",
				"{open}", strings.Repeat("[", k.Repeat), "{dash}", strings.Repeat("- ", k.Repeat)).Replace(k.Text)
			file := filepath.Join(t.TempDir(), "principals.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg := ingest.DefaultConfig()
			cfg.GRPC.Listen, cfg.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
			cfg.ID, cfg.AuthorityID = "collector-a", authority
			cfg.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: file}
			_, err := ingest.New(cfg, ingest.Deps{Store: memStore(), Telemetry: quietTelemetry()})
			if err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("the collector says %v", err)
			}
		})
	}
	wantNoPanics(t)
}
