package objectstore_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Rules are kept, said with objects, and carried out by the service.
func TestLifecycleRules(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.LifecycleInterval = 20 * time.Millisecond
	s := start(t, cfg)
	c := s.client()
	set := func(rules ...types.LifecycleRule) error {
		_, err := s.client().PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{Bucket: aws.String(bucket),
			LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: rules}})
		return err
	}
	rule := func(id, prefix string, x types.LifecycleExpiration) types.LifecycleRule {
		return types.LifecycleRule{ID: aws.String(id), Status: types.ExpirationStatusEnabled, Filter: &types.LifecycleRuleFilter{Prefix: aws.String(prefix)}, Expiration: &x}
	}
	_, err := c.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "NoSuchLifecycleConfiguration", 404)
	move := rule("r", "", types.LifecycleExpiration{Days: aws.Int32(1)})
	move.Transitions = []types.Transition{{Days: aws.Int32(1), StorageClass: types.TransitionStorageClassGlacier}}
	wantCode(t, set(move), "NotImplemented", 501)
	wantCode(t, set(rule("r", "", types.LifecycleExpiration{Days: aws.Int32(0)})), "InvalidArgument", 400)
	put(t, c, "keep/a", []byte("x"))
	put(t, c, "later/a", []byte("x"))
	put(t, c, "now/a", []byte("x"))
	if err := set(rule("later one", "later/", types.LifecycleExpiration{Days: aws.Int32(30)}),
		rule("now", "now/", types.LifecycleExpiration{Date: aws.Time(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))})); err != nil {
		t.Fatal(err)
	}
	gone := func(key string) bool {
		_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &key})
		return err != nil
	}
	for deadline := time.Now().Add(patience); !gone("now/a"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an object that is due stays")
		}
	}
	if gone("keep/a") || gone("later/a") {
		t.Error("an object that is not due is gone")
	}
	out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("later/a")})
	if err != nil {
		t.Fatal(err)
	}
	when := out.LastModified.UTC().AddDate(0, 0, 31).Truncate(24 * time.Hour)
	if want := `expiry-date="` + when.Format(http.TimeFormat) + `", rule-id="later+one"`; aws.ToString(out.Expiration) != want {
		t.Errorf("x-amz-expiration %q, want %q", aws.ToString(out.Expiration), want)
	}
	if got := put(t, c, "later/b", []byte("x")); !strings.Contains(aws.ToString(got.Expiration), "later+one") {
		t.Errorf("of a PUT: %q", aws.ToString(got.Expiration))
	}
	if got := put(t, c, "keep/b", []byte("x")); got.Expiration != nil {
		t.Errorf("of an object that no rule ends: %q", *got.Expiration)
	}
	s.stop()
	s = start(t, cfg)
	conf, err := s.client().GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: aws.String(bucket)})
	if err != nil || len(conf.Rules) != 2 || aws.ToString(conf.Rules[0].Filter.Prefix) != "later/" || aws.ToInt32(conf.Rules[0].Expiration.Days) != 30 {
		t.Errorf("the rules after a restart: %+v %v", conf, err)
	}
	if _, err := s.client().DeleteBucketLifecycle(ctx, &s3.DeleteBucketLifecycleInput{Bucket: aws.String(bucket)}); err != nil {
		t.Error(err)
	}
}

// The largest configuration that there can be, by number of rules and by bytes, is kept, carried out and there after a
// restart; one that is larger is refused before it is read.
func TestTheLargestLifecycleConfiguration(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.LifecycleInterval = 20 * time.Millisecond
	s := start(t, cfg)
	long := s.client(func(o *s3.Options) { o.HTTPClient = &http.Client{Timeout: 2 * time.Minute} })
	put(t, long, "last/object", []byte("x"))
	put(t, long, "stays/object", []byte("x"))
	rules := make([]types.LifecycleRule, 1000)
	for i := range rules {
		prefix := fmt.Sprintf("%03d/%s", i, strings.Repeat("p", 480))
		if i == len(rules)-1 {
			prefix = "last/"
		}
		rules[i] = types.LifecycleRule{ID: aws.String(fmt.Sprintf("%0255d", i)), Status: types.ExpirationStatusEnabled, Filter: &types.LifecycleRuleFilter{Prefix: &prefix},
			Expiration: &types.LifecycleExpiration{Date: aws.Time(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))}}
	}
	set := func(rules []types.LifecycleRule) error {
		_, err := long.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{Bucket: aws.String(bucket),
			LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: rules}})
		return err
	}
	if err := set(rules); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := long.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("last/object")}); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the last rule is not carried out")
		}
	}
	if string(get(t, long, "stays/object")) != "x" {
		t.Error("an object of no rule is gone")
	}
	wantCode(t, set(append(rules[:len(rules):len(rules)], rules[0])), "MalformedXML", 400)
	s.stop()
	s = start(t, cfg)
	conf, err := s.client().GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: aws.String(bucket)})
	if err != nil {
		t.Fatal(err)
	}
	if len(conf.Rules) != len(rules) || *conf.Rules[500].ID != *rules[500].ID || *conf.Rules[500].Filter.Prefix != *rules[500].Filter.Prefix {
		t.Errorf("after a restart: %d rules", len(conf.Rules))
	}
	st, code, _ := send(t, newSigner().request("PUT", s.url()+"/"+bucket+"?lifecycle=", bytes.Repeat([]byte(" "), 1<<20+1)))
	if st != 400 || code != "MaxMessageLengthExceeded" {
		t.Errorf("more than 1 MiB: %d %s", st, code)
	}
}
