package s3

import (
	"encoding/xml"
	"reflect"
	"strings"
	"testing"
)

const awsListing = `<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p%2F</Prefix><KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys><Delimiter>%2F</Delimiter>
  <IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>
  <Contents><Key>p%2Fa</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;9b2c&quot;</ETag><ChecksumAlgorithm>SHA256</ChecksumAlgorithm><Size>512</Size><Owner><ID>Key</ID><DisplayName>x</DisplayName></Owner><StorageClass>STANDARD</StorageClass></Contents>
  <Contents><Key>p%2Fb&amp;&lt;c</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&#34;e&#34;</ETag><Size>0</Size></Contents>
  <CommonPrefixes><Prefix>p%2Fc%2F</Prefix></CommonPrefixes>
</ListBucketResult>
`

func FuzzListing(f *testing.F) {
	for _, s := range []string{
		awsListing, awsListing[:300], "", "<", "<>", "</>", "<a>", "<ListBucketResult></ListBucketResult>",
		"<ListBucketResult><Prefix/><IsTruncated>false</IsTruncated></ListBucketResult>",
		"<ListBucketResult><Contents><Key><![CDATA[a]]></Key></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>a<!-- c -->b</Key></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>a&#x26;b</Key><Size> 1 </Size></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>a</Key><Key>b</Key></Contents></ListBucketResult>x",
		"<Error><Code>x</Code></Error>",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := scanListing([]byte(s))
		if !ok {
			return
		}
		var want listing
		// A scan that succeeds may be kinder to broken documents, but never reads a good one in another way.
		if err := xml.Unmarshal([]byte(s), &want); err != nil {
			return
		}
		want.XMLName, got.XMLName = xml.Name{}, xml.Name{}
		if !reflect.DeepEqual(*got, want) {
			t.Fatalf("%q: %+v, want %+v", s, *got, want)
		}
	})
}

func TestPlainListingsAreScanned(t *testing.T) {
	l, ok := scanListing([]byte(awsListing))
	if !ok || len(l.Contents) != 2 || len(l.CommonPrefixes) != 1 || l.IsTruncated == nil || !*l.IsTruncated {
		t.Fatalf("%+v, %v", l, ok)
	}
	if e := l.Contents[1]; e.Key != "p%2Fb&<c" || e.ETag != `"e"` || l.Contents[0].Size != 512 {
		t.Errorf("%+v", l.Contents)
	}
}

func TestCutListingsAreErrors(t *testing.T) {
	for n := range strings.TrimSpace(awsListing) {
		if l, err := parseListing([]byte(awsListing[:n])); err == nil {
			t.Fatalf("cut at %d: %+v", n, l)
		}
	}
}
