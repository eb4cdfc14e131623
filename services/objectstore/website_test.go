package objectstore_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// A website configuration is kept as it was set, and checked before.
func TestWebsiteConfiguration(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	set := func(w types.WebsiteConfiguration) error {
		_, err := s.client().PutBucketWebsite(ctx, &s3.PutBucketWebsiteInput{Bucket: aws.String(bucket), WebsiteConfiguration: &w})
		return err
	}
	read := func() (*s3.GetBucketWebsiteOutput, error) {
		return s.client().GetBucketWebsite(ctx, &s3.GetBucketWebsiteInput{Bucket: aws.String(bucket)})
	}
	index := &types.IndexDocument{Suffix: aws.String("index.html")}
	rule := func(c *types.Condition, r *types.Redirect) types.WebsiteConfiguration {
		return types.WebsiteConfiguration{IndexDocument: index, RoutingRules: []types.RoutingRule{{Condition: c, Redirect: r}}}
	}
	to := &types.Redirect{HostName: aws.String("example.com")}
	many := make([]types.RoutingRule, 51)
	for i := range many {
		many[i].Redirect = to
	}
	for name, c := range map[string]struct {
		conf types.WebsiteConfiguration
		code string
	}{
		"nothing":             {types.WebsiteConfiguration{}, "InvalidArgument"},
		"suffix with a slash": {types.WebsiteConfiguration{IndexDocument: &types.IndexDocument{Suffix: aws.String("a/b")}}, "InvalidArgument"},
		"redirect and index":  {types.WebsiteConfiguration{IndexDocument: index, RedirectAllRequestsTo: &types.RedirectAllRequestsTo{HostName: aws.String("a")}}, "MalformedXML"},
		"protocol":            {types.WebsiteConfiguration{RedirectAllRequestsTo: &types.RedirectAllRequestsTo{HostName: aws.String("a"), Protocol: "ftp"}}, "InvalidRequest"},
		"empty condition":     {rule(&types.Condition{}, to), "MalformedXML"},
		"status":              {rule(&types.Condition{HttpErrorCodeReturnedEquals: aws.String("200")}, to), "InvalidRequest"},
		"status of words":     {rule(&types.Condition{HttpErrorCodeReturnedEquals: aws.String("4xx")}, to), "MalformedXML"},
		"redirect status":     {rule(nil, &types.Redirect{HttpRedirectCode: aws.String("306")}), "InvalidRequest"},
		"key and prefix":      {rule(nil, &types.Redirect{ReplaceKeyWith: aws.String("a"), ReplaceKeyPrefixWith: aws.String("b")}), "InvalidRequest"},
		"rules":               {types.WebsiteConfiguration{IndexDocument: index, RoutingRules: many}, "InvalidRequest"},
	} {
		if got, _ := code(set(c.conf)); got != c.code {
			t.Errorf("%s: %s, want %s", name, got, c.code)
		}
	}
	_, err := read()
	wantCode(t, err, "NoSuchWebsiteConfiguration", 404)
	if err := set(rule(&types.Condition{KeyPrefixEquals: aws.String("old/")}, &types.Redirect{ReplaceKeyPrefixWith: aws.String("new/"), HttpRedirectCode: aws.String("302")})); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = start(t, cfg)
	out, err := read()
	if err != nil || aws.ToString(out.IndexDocument.Suffix) != "index.html" || len(out.RoutingRules) != 1 || aws.ToString(out.RoutingRules[0].Redirect.ReplaceKeyPrefixWith) != "new/" {
		t.Errorf("%+v %v", out, err)
	}
	if _, err := s.client().DeleteBucketWebsite(ctx, &s3.DeleteBucketWebsiteInput{Bucket: aws.String(bucket)}); err != nil {
		t.Error(err)
	}
	_, err = read()
	wantCode(t, err, "NoSuchWebsiteConfiguration", 404)
}
