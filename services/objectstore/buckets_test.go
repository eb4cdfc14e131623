package objectstore_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// The list of buckets comes in pages of max-buckets, by prefix.
func TestListBuckets(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	for i := range 5 {
		if _, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(fmt.Sprint("page-", i))}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	in := s3.ListBucketsInput{Prefix: aws.String("page-"), MaxBuckets: aws.Int32(2)}
	for pages := 1; ; pages++ {
		out, err := c.ListBuckets(ctx, &in)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range out.Buckets {
			names = append(names, *b.Name)
		}
		if in.ContinuationToken = out.ContinuationToken; in.ContinuationToken == nil {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if want := []string{"page-0", "page-1", "page-2", "page-3", "page-4"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	for _, n := range []int32{0, -1, 10001} {
		_, err := c.ListBuckets(ctx, &s3.ListBucketsInput{MaxBuckets: aws.Int32(n)})
		wantCode(t, err, "InvalidArgument", 400)
	}
}
