package ready

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// guardedBucket is an embedded store with the bucket "bucket", without a policy yet.
type guardedBucket struct {
	testing.TB
	endpoint string
}

const policySecret = "test-secret-0123456789"

func newGuardedBucket(t testing.TB) guardedBucket {
	t.Helper()
	oc := objectstore.DefaultConfig()
	oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = here, here, t.TempDir(), []string{"bucket"}
	for _, name := range []string{"operator", "collector", "reconciler"} {
		oc.Users = append(oc.Users, objectstore.User{Name: name, AccessKeyID: name + "-key", Secret: policySecret})
	}
	o, err := objectstore.New(oc, objectstore.Deps{})
	up(t, "objectstore", o, err)
	return guardedBucket{t, "http://" + o.Addr()}
}

// as is the bucket with a user's credentials.
func (b guardedBucket) as(user string) objstore.Store {
	b.Helper()
	c := s3.DefaultConfig()
	c.Endpoint, c.Bucket, c.PathStyle = b.endpoint, "bucket", true
	c.AccessKeyID, c.SecretAccessKey = user+"-key", config.Secret(policySecret)
	s, err := s3.New(b.Context(), c, s3.Options{})
	must(b, err)
	return s
}

// guard sets the policy that is shipped.
func (b guardedBucket) guard() {
	b.Helper()
	text, err := os.ReadFile("../../deploy/policies/bucket-policy.json")
	must(b, err)
	client := awss3.New(awss3.Options{BaseEndpoint: &b.endpoint, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("operator-key", policySecret, "")})
	_, err = client.PutBucketPolicy(b.Context(), &awss3.PutBucketPolicyInput{Bucket: aws.String("bucket"),
		Policy: aws.String(strings.NewReplacer("BUCKET", "bucket", "arn:aws:iam::ACCOUNT:role/RECONCILER", "arn:aws:iam::000000000000:user/reconciler").Replace(string(text)))})
	must(b, err)
}

func (b guardedBucket) collector(policy string) (*ingest.Service, *telemetry.Telemetry) {
	b.Helper()
	c := ingest.DefaultConfig()
	c.GRPC.Listen, c.HTTP.Listen, c.Store.BucketPolicy = here, here, policy
	tel := telemetry.Discard()
	s, err := ingest.New(c, ingest.Deps{Store: b.as("collector"), Telemetry: tel})
	up(b, "ingest", s, err)
	return s, tel
}

// violations is the metric of the alert IngestStoreUnguarded.
func violations(t testing.TB, tel *telemetry.Telemetry) float64 {
	t.Helper()
	families, err := tel.Registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "lightmetrics_ingest_store_policy_violations" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

func status(t testing.TB, addr string) string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/status")
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/status: %s", resp.Status)
	}
	return string(b)
}

// TestServingWithoutAPolicy: over a bucket whose records can be overwritten and deleted, a collector
// serves by default and says so, does not look with "off", and is not ready with "require" until
// the shipped policy is set.
func TestServingWithoutAPolicy(t *testing.T) {
	t.Parallel()
	b := newGuardedBucket(t)
	required, requiredTel := b.collector("require")
	until(t, "the reason", func() bool {
		ready, why := ask(t, required.HTTPAddr()).part("submissions")
		return !ready && strings.Contains(why, "accepted/v1/probe/policy is allowed") && strings.Contains(why, "docs/runbook/ingest-store-unguarded.md")
	})
	if n := violations(t, requiredTel); n != 10 {
		t.Errorf("%v violations", n)
	}
	warns, warnsTel := b.collector("warn")
	until(t, "ready with a warning", func() bool { return ask(t, warns.HTTPAddr()).code == http.StatusOK })
	if n := violations(t, warnsTel); n != 10 {
		t.Errorf("%v violations", n)
	}
	if page := status(t, warns.HTTPAddr()); !strings.Contains(page, "acceptance records can be changed") || !strings.Contains(page, "store.policy: warn") {
		t.Errorf("the page: %s", page)
	}
	silent, silentTel := b.collector("off")
	until(t, "ready without a look", func() bool { return ask(t, silent.HTTPAddr()).code == http.StatusOK })
	if n := violations(t, silentTel); n != 0 || !strings.Contains(status(t, silent.HTTPAddr()), "not probed") {
		t.Errorf("off: %v violations", n)
	}

	b.guard()
	until(t, "the policy to be found", func() bool { return ask(t, required.HTTPAddr()).code == http.StatusOK })
	if n := violations(t, requiredTel); n != 0 || !strings.Contains(status(t, required.HTTPAddr()), "acceptance records can&#39;t be changed") && !strings.Contains(status(t, required.HTTPAddr()), "acceptance records can't be changed") {
		t.Errorf("under the policy: %v violations", n)
	}
	if left, err := b.as("operator").List(t.Context(), objstore.ListOptions{Prefix: layout.AcceptedPrefix}); err != nil || len(left.Objects) != 0 {
		t.Errorf("the probes left %+v, %v", left.Objects, err)
	}
}

// TestShippedPolicyServesTheJournal: under the shipped policy collectors and reconcilers create and
// read segments, nobody overwrites them, and only reconcilers fold and delete.
func TestShippedPolicyServesTheJournal(t *testing.T) {
	t.Parallel()
	b := newGuardedBucket(t)
	b.guard()
	collector, reconciler := b.as("collector"), b.as("reconciler")
	if r, err := qualify.Run(t.Context(), collector, qualify.Options{RunID: "collector", Strict: true, Now: time.Now}); err != nil {
		t.Errorf("the strict probe of a collector: %v\n%+v", err, r)
	}
	run := [16]byte{1, 2, 3}
	wantDenied := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, objstore.ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, body := t.Context(), []byte("segment")
	for n, who := range []objstore.Store{collector, reconciler} {
		key := layout.JournalSegment(run, uint64(n))
		_, err := who.Create(ctx, key, body, objstore.PutOptions{})
		must(t, err)
		_, err = who.Create(ctx, key, body, objstore.PutOptions{})
		if !errors.Is(err, objstore.ErrExists) {
			t.Errorf("a segment twice: %v", err)
		}
		_, err = who.Put(ctx, key, body, objstore.PutOptions{})
		wantDenied("an unconditional put of a segment", err)
		for _, reader := range []objstore.Store{collector, reconciler} {
			got, _, err := reader.Get(ctx, key, objstore.GetOptions{})
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: %q, %v", key, got, err)
			}
		}
		wantDenied("a collector's delete", collector.Delete(ctx, key))
	}
	_, err := collector.Create(ctx, layout.JournalBeginKey, body, objstore.PutOptions{})
	must(t, err)
	wantDenied("a delete of the begin", reconciler.Delete(ctx, layout.JournalBeginKey))

	folded := layout.JournalFoldedPrefix + "file"
	_, err = collector.Create(ctx, folded, body, objstore.PutOptions{})
	wantDenied("a collector that folds", err)
	_, err = reconciler.Create(ctx, folded, body, objstore.PutOptions{})
	must(t, err)
	_, err = collector.Create(ctx, layout.JournalHeadKey, body, objstore.PutOptions{})
	wantDenied("a collector that makes the head", err)
	head, err := reconciler.Create(ctx, layout.JournalHeadKey, body, objstore.PutOptions{})
	must(t, err)
	_, err = reconciler.Put(ctx, layout.JournalHeadKey, body, objstore.PutOptions{})
	wantDenied("a head without a condition", err)
	_, err = collector.Replace(ctx, layout.JournalHeadKey, []byte("next"), head.ETag, objstore.PutOptions{})
	wantDenied("a collector that moves the head", err)
	_, err = reconciler.Replace(ctx, layout.JournalHeadKey, []byte("next"), head.ETag, objstore.PutOptions{})
	must(t, err)
	must(t, reconciler.Delete(ctx, layout.JournalSegment(run, 0)))
	must(t, reconciler.Delete(ctx, layout.JournalSegment(run, 1)))
	must(t, reconciler.Delete(ctx, folded))
	wantDenied("a delete of the head", reconciler.Delete(ctx, layout.JournalHeadKey))
}
