package peers

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
)

// TestRolesOverVersityGW: under the policy that is printed for it, each role may do over versitygw what
// it needs, and every other request fails, as far as its policies can tell requests apart: with one kind
// of write the others are allowed.
func TestRolesOverVersityGW(t *testing.T) {
	provider, err := bucketpolicy.ProviderOf("versitygw")
	if err != nil {
		t.Fatal(err)
	}
	o := bucketpolicy.Options{Provider: provider, Bucket: Bucket, Principals: map[bucketpolicy.Role][]string{}}
	var users []string
	for _, r := range bucketpolicy.Roles {
		o.Principals[r] = []string{string(r)}
		users = append(users, string(r))
	}
	gw := StartVersityGW(t, users...)
	policy, err := bucketpolicy.Bucket(o)
	if err != nil {
		t.Fatal(err)
	}
	root := awss3.New(awss3.Options{BaseEndpoint: &gw.Endpoint, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(gw.AccessKeyID, gw.SecretAccessKey, "")})
	if _, err := root.PutBucketPolicy(t.Context(), &awss3.PutBucketPolicyInput{Bucket: aws.String(Bucket), Policy: aws.String(string(policy))}); err != nil {
		t.Fatalf("%v\n%s", err, policy)
	}
	// Its owner may read how the bucket is set up: it has no lifecycle rules, and versions are off.
	report, _ := qualify.Run(t.Context(), open(t, gw, ""), qualify.Options{RunID: "owner", Strict: true})
	for _, row := range report.Rows {
		if strings.HasPrefix(row.Check, "settings: ") {
			t.Logf("%s: %v %s", row.Check, row.Status, row.Detail)
			if row.Status != qualify.Pass {
				t.Errorf("%s: %v %v", row.Check, row.Status, row.Err)
			}
		}
	}
	for _, r := range bucketpolicy.Roles {
		as := gw
		as.AccessKeyID = string(r)
		report, err := qualify.Role(t.Context(), open(t, as, ""), provider, []bucketpolicy.Role{r}, qualify.Options{RunID: "peer"})
		if err != nil {
			t.Errorf("%s: %v", r, err)
		}
		if want := len(bucketpolicy.Families) * (len(bucketpolicy.Ops) - 1); len(report.Rows) < want {
			t.Errorf("%s: %d rows, want %d", r, len(report.Rows), want)
		}
	}
}
