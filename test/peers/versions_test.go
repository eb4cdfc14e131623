package peers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	clock "lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// Of an orphan on a versioned bucket neither its bytes nor a delete marker stay, and a delete of one version, which a repeat may
// be, leaves what was written later.
func TestGarbageOfAVersionedBucket(t *testing.T) {
	t.Run("versitygw", func(t *testing.T) { testGarbageOfVersions(t, StartVersionedVersityGW(t), objstore.ErrInvalid) })
	t.Run("embedded", func(t *testing.T) { testGarbageOfVersions(t, startEmbedded(t), nil) })
}

// startEmbedded runs the embedded store with a bucket.
func startEmbedded(t *testing.T) VersityGW {
	t.Helper()
	gw := VersityGW{AccessKeyID: "peer", SecretAccessKey: "peer-secret-of-this-test"}
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen, c.Buckets = t.TempDir(), "127.0.0.1:0", "", []string{Bucket}
	c.Users = []objectstore.User{{Name: "peer", AccessKeyID: gw.AccessKeyID, Secret: config.Secret(gw.SecretAccessKey)}}
	s, err := objectstore.New(c, objectstore.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the store does not start")
	}
	gw.Endpoint = "http://" + s.Addr()
	return gw
}

// testGarbageOfVersions takes the error that the store may give for a version that is gone while the key has others.
func testGarbageOfVersions(t *testing.T, gw VersityGW, gone error) {
	root := awss3.New(awss3.Options{BaseEndpoint: &gw.Endpoint, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(gw.AccessKeyID, gw.SecretAccessKey, "")})
	_, err := root.PutBucketVersioning(t.Context(), &awss3.PutBucketVersioningInput{Bucket: aws.String(Bucket),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}})
	if err != nil {
		t.Fatal(err)
	}
	s := objstore.Deadline(open(t, gw, "p/"), time.Minute)
	versions := func(prefix string) (objects, markers int) {
		t.Helper()
		out, err := root.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: aws.String(Bucket), Prefix: aws.String("p/" + prefix)})
		if err != nil {
			t.Fatal(err)
		}
		return len(out.Versions), len(out.DeleteMarkers)
	}
	fb := frame.NewBuilder()
	m, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}}, series.Gauge, "", 0)
	if err == nil {
		err = fb.Append(m, 1, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	batch, err := fb.Build(identity.Boot{Agent: "a", Boot: "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	body, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	if err := journaltest.Complete(t.Context(), s, "authority-1"); err != nil {
		t.Fatal(err)
	}
	sum := identity.Sum(body)
	orphan := layout.Blob(sum, 0)
	if _, err := s.Create(t.Context(), orphan, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	head, err := s.Head(t.Context(), orphan)
	if err != nil || head.Version == "" {
		t.Fatalf("%+v, %v", head, err)
	}
	c, err := gc.New(gc.Config{Store: s, AuthorityID: "authority-1", Clock: clock.WallClock{}})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := c.Plan(t.Context(), gc.PlanOptions{ID: "p", MinAge: -1})
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.Execute(t.Context(), plan, gc.ExecuteOptions{})
	if err != nil || report.Deleted != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	if objects, markers := versions(layout.BlobStem(sum)); objects+markers > 0 {
		t.Errorf("%d versions and %d delete markers are left", objects, markers)
	}
	// The same delete again, as where the first answer was lost, is no error.
	if err := objstore.DeleteVersion(t.Context(), s, orphan, head.Version); err != nil {
		t.Error(err)
	}
	// It reaches nothing else. S3 answers as before, versitygw that the version is invalid where the key has others.
	if _, err := s.Create(t.Context(), orphan, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := objstore.DeleteVersion(t.Context(), s, orphan, head.Version); err != nil && (gone == nil || !errors.Is(err, gone)) {
		t.Error(err)
	}
	again, err := s.Head(t.Context(), orphan)
	if err != nil || again.Version == head.Version {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := s.Head(t.Context(), (accept.CondemnedMarker{FrameSHA256: sum}).Key()); err != nil {
		t.Errorf("the marker: %v", err)
	}
	// For comparison, what a delete of the key leaves.
	if err := s.Delete(context.WithoutCancel(t.Context()), orphan); err != nil {
		t.Fatal(err)
	}
	if objects, markers := versions(layout.BlobStem(sum)); objects != 1 || markers != 1 {
		t.Errorf("%d versions and %d delete markers after a delete", objects, markers)
	}
}
