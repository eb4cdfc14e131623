package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The reconciler hears of every key that it has work for.
func TestWebhooksCoverWhatIsReconciled(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(Options{Dir: dir, Collectors: 2}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "objectstore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Store struct {
			Webhooks []struct{ Name, Bucket, Prefix, URL string } `yaml:"webhooks"`
		} `yaml:"objectstore"`
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	id := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 2}
	for _, key := range []string{layout.Accepted(id), layout.Quarantine(id, identity.Sum(nil))} {
		if !reconcile.IsManifestKey(key) {
			t.Fatalf("%s is no manifest", key)
		}
		n := 0
		for _, h := range file.Store.Webhooks {
			if strings.HasPrefix(key, h.Prefix) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: %d of %d webhooks are told", key, n, len(file.Store.Webhooks))
		}
	}
}
