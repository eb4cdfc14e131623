package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// TestDeployedSettingsAreValid: every file under deploy/settings passes --config.check,
// the object store's once its user has a secret, and not before.
func TestDeployedSettingsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/settings/*.yaml")
	must(t, err)
	if len(files) < 5 {
		t.Fatalf("found only %v", files)
	}
	for _, f := range files {
		service := strings.TrimSuffix(filepath.Base(f), ".yaml")
		if service == "objectstore" {
			if out, err := configCheck(service, f); err == nil {
				t.Errorf("a store without a secret is taken: %s", out)
			}
			b, err := os.ReadFile(f)
			must(t, err)
			f = filepath.Join(t.TempDir(), "objectstore.yaml")
			must(t, os.WriteFile(f, bytes.ReplaceAll(b, []byte(`secret: ""`), []byte(`secret: "a-secret-of-this-test"`)), 0o600))
		}
		if out, err := configCheck(service, f); err != nil {
			t.Errorf("%s: %v\n%s", service, err, out)
		}
		unit := "../../deploy/systemd/lightmetrics-" + service + ".service"
		if b, err := os.ReadFile(unit); err != nil || !strings.Contains(string(b), "lightmetrics "+service+" --config") || !strings.Contains(string(b), "ExecReload=/bin/kill -HUP $MAINPID") {
			t.Errorf("%s: %v", unit, err)
		}
	}
}

// TestDeployedSettingsOfRegionsAreValid: those of one of several regions too, once certificates and tokens are where they say.
func TestDeployedSettingsOfRegionsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/settings/regions/*.yaml")
	must(t, err)
	if len(files) != 6 {
		t.Fatalf("found %v", files)
	}
	pki, etc := sendtest.NewPKI(t), t.TempDir()
	cert, key := pki.Issue("core.eu.example", time.Now().Add(time.Hour))
	paths := []string{"etcd-ca.crt", pki.CAFile, "ca.crt", pki.CAFile, "server.crt", cert, "server.key", key, "etcd.crt", cert, "etcd.key", key}
	for name, text := range map[string]string{
		"worker.token": "a-token-of-this-test", "sender.token": "a-token-of-this-test",
		"principals.yaml": "principals:\n- {name: services, token_sha256: " + strings.Repeat("a", 64) + ", roles: [worker]}\n",
	} {
		must(t, os.WriteFile(filepath.Join(etc, name), []byte(text), 0o600))
		paths = append(paths, name, filepath.Join(etc, name))
	}
	for i := 0; i < len(paths); i += 2 {
		paths[i] = "/etc/lightmetrics/" + paths[i]
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		must(t, err)
		service := strings.TrimSuffix(filepath.Base(f), ".yaml")
		file := filepath.Join(t.TempDir(), "settings.yaml")
		must(t, os.WriteFile(file, []byte(strings.NewReplacer(paths...).Replace(string(b))), 0o600))
		if out, err := configCheck(service, file); err != nil {
			t.Errorf("%s: %v\n%s", service, err, out)
		}
	}
}

func configCheck(service, file string) (string, error) {
	out, err := exec.Command(bin, service, "--config", file, "--config.check").CombinedOutput()
	return string(out), err
}

// TestDeployedBucketPolicyHolds: the probe finds the policy missing on a fresh bucket and
// in force once deploy/policies/bucket-policy.json is set; a collector still works under it.
func TestDeployedBucketPolicyHolds(t *testing.T) {
	t.Parallel()
	ctx := within(t, time.Minute)
	c := newCluster(t, cluster.Options{Collectors: 1})
	must(t, c.StartStore(ctx))
	store, err := c.OpenStore(ctx)
	must(t, err)
	if _, err := qualify.Run(ctx, store, qualify.Options{RunID: "without", Strict: true, Now: time.Now}); err == nil {
		t.Fatal("a bucket without a policy passes the strict probe")
	}
	policy, err := os.ReadFile("../../deploy/policies/bucket-policy.json")
	must(t, err)
	cfg := c.StoreConfig()
	client := s3.New(s3.Options{BaseEndpoint: &cfg.Endpoint, Region: cfg.Region, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey.Reveal(), "")})
	_, err = client.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: &cfg.Bucket,
		Policy: aws.String(strings.NewReplacer("BUCKET", cfg.Bucket, "ACCOUNT:role/RECONCILER", "000000000000:user/reconciler").Replace(string(policy)))})
	must(t, err)
	if r, err := qualify.Run(ctx, store, qualify.Options{RunID: "with", Strict: true, Now: time.Now}); err != nil {
		t.Errorf("strict probe under the policy: %v\n%+v", err, r)
	}
	must(t, c.StartCollector(ctx, 0))
}
