package objectstore_test

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"pgregory.net/rapid"
)

// modelList is what a listing must be, said the slow way.
func modelList(keys []string, prefix, delimiter, after string) (out []string) {
	seen := map[string]bool{}
	for _, k := range keys {
		if !strings.HasPrefix(k, prefix) || k <= after {
			continue
		}
		if i := strings.Index(k[len(prefix):], delimiter); delimiter != "" && i >= 0 {
			group := k[:len(prefix)+i+len(delimiter)]
			if group != after && !seen[group] {
				out = append(out, "P:"+group)
			}
			seen[group] = true
			continue
		}
		out = append(out, "K:"+k)
	}
	return out
}

func TestListAgainstAModel(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	keys := []string{"a", "a/", "a/b", "a/b/c", "a/b/d", "a-b", "a0", "b/", "b//c", "b//d", "ü/x", "ü/y", "z z", "z+z", "a/b\U0001F600", "c&<d>", "~", "a/b/c/d/e"}
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("n/%02d/%d", i%7, i))
	}
	sort.Strings(keys)
	for _, k := range keys {
		put(t, c, k, []byte(k))
	}
	part := rapid.SampledFrom(append([]string{"", "/", "a/b/", "n/", "n/03/", "n/0", "b/", "zz", "\u00fc/", "a/c"}, keys...))
	rapid.Check(t, func(rt *rapid.T) {
		prefix, after := part.Draw(rt, "prefix"), part.Draw(rt, "after")
		delimiter := rapid.SampledFrom([]string{"", "/", "b", "//"}).Draw(rt, "delimiter")
		page := rapid.Int32Range(1, 20).Draw(rt, "max-keys")
		in := &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: &prefix, Delimiter: &delimiter, MaxKeys: &page}
		if after != "" {
			in.StartAfter = &after
		}
		var got []string
		for {
			out, err := c.ListObjectsV2(ctx, in)
			if err != nil {
				rt.Fatal(err)
			}
			if n := len(out.Contents) + len(out.CommonPrefixes); n > int(page) || n != int(*out.KeyCount) {
				rt.Fatalf("%d entries of at most %d, KeyCount %d", n, page, *out.KeyCount)
			}
			for _, o := range out.Contents {
				got = append(got, "K:"+*o.Key)
			}
			for _, p := range out.CommonPrefixes {
				got = append(got, "P:"+*p.Prefix)
			}
			if !*out.IsTruncated {
				break
			}
			in.ContinuationToken = out.NextContinuationToken
		}
		want := modelList(keys, prefix, delimiter, after)
		order := func(a, b string) int { return strings.Compare(a[2:]+a[:1], b[2:]+b[:1]) }
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) {
			rt.Fatalf("got  %q\nwant %q", got, want)
		}
	})
	v1, err := c.ListObjects(ctx, &s3.ListObjectsInput{Bucket: aws.String(bucket), Marker: aws.String("n/03"), Delimiter: aws.String("/"), EncodingType: "url"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range v1.Contents {
		got = append(got, *o.Key)
	}
	if want := []string{"z%20z", "z%2Bz", "~"}; !slices.Equal(got, want) {
		t.Errorf("V1 with encoding: %q, want %q", got, want)
	}
}

// What a client sends comes back in the answer, which has to stay XML.
func TestListingsEchoWhatIsNotUTF8(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	put(t, s.client(), "a", nil)
	g := newSigner()
	for _, query := range []string{"?prefix=%ff", "?list-type=2&start-after=%c3", "?versions=&key-marker=%f0%80", "?delimiter=%ff", "?uploads=&prefix=%ff&key-marker=a%fe"} {
		st, code, body := send(t, g.request("GET", s.url()+"/"+bucket+query, nil))
		if st != 200 || !utf8.Valid(body) {
			t.Errorf("%s: %d %s %q", query, st, code, body)
		}
	}
}
