package objectstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Every body that is XML is read against its schema: a document of it is taken in AWS's namespace and in none, and what
// has more than the schema is refused as a whole, so that nobody believes that it holds.
func TestBodiesAreReadAgainstTheirSchema(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.EncryptedAtRest = true
	s := start(t, cfg)
	c := s.client()
	withVault(t, c)
	store(t, c, "k")
	setOwnership := func() {
		if _, err := c.PutBucketOwnershipControls(ctx, &s3.PutBucketOwnershipControlsInput{Bucket: aws.String(vault),
			OwnershipControls: &types.OwnershipControls{Rules: []types.OwnershipControlsRule{{ObjectOwnership: types.ObjectOwnershipBucketOwnerPreferred}}}}); err != nil {
			t.Fatal(err)
		}
	}
	setOwnership()
	id, parts := upload(t, c, "parts", []byte("all"))
	n := 0
	for _, op := range []struct {
		method, path, body string
		code               string // of a refusal; empty: MalformedXML
		twice              string // an element that may be there once
	}{
		{method: "PUT", path: "/" + vault + "?versioning=", body: "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>", twice: "<Status>Enabled</Status>"},
		{method: "PUT", path: "/" + vault + "?tagging=", body: "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>", twice: "<TagSet/>"},
		{method: "PUT", path: "/" + vault + "/k?tagging=", body: "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>", twice: "<TagSet/>"},
		{method: "PUT", path: "/" + vault + "?ownershipControls=", body: "<OwnershipControls><Rule><ObjectOwnership>BucketOwnerPreferred</ObjectOwnership></Rule></OwnershipControls>"},
		{method: "PUT", path: "/" + vault + "?acl=", code: "MalformedACLError", twice: "<AccessControlList/>",
			body: "<AccessControlPolicy><Owner><ID>tester</ID><DisplayName>tester</DisplayName></Owner><AccessControlList><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>tester</ID><DisplayName>tester</DisplayName></Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"},
		{method: "PUT", path: "/" + vault + "?cors=", body: "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule></CORSConfiguration>"},
		{method: "PUT", path: "/" + vault + "?website=", body: "<WebsiteConfiguration><IndexDocument><Suffix>i.html</Suffix></IndexDocument><RoutingRules><RoutingRule><Redirect><HostName>h</HostName></Redirect></RoutingRule></RoutingRules></WebsiteConfiguration>", twice: "<IndexDocument><Suffix>i.html</Suffix></IndexDocument>"},
		{method: "PUT", path: "/" + vault + "?lifecycle=", body: "<LifecycleConfiguration><Rule><ID>r</ID><Filter><And><Prefix>a</Prefix><Tag><Key>a</Key><Value>b</Value></Tag></And></Filter><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"},
		{method: "PUT", path: "/" + vault + "?publicAccessBlock=", body: "<PublicAccessBlockConfiguration><BlockPublicAcls>false</BlockPublicAcls></PublicAccessBlockConfiguration>", twice: "<BlockPublicAcls>false</BlockPublicAcls>"},
		{method: "PUT", path: "/" + vault + "?encryption=", body: "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"},
		{method: "PUT", path: "/" + vault + "?object-lock=", body: "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>", twice: "<ObjectLockEnabled>Enabled</ObjectLockEnabled>"},
		{method: "PUT", path: "/" + vault + "/k?legal-hold=", body: "<LegalHold><Status>OFF</Status></LegalHold>", twice: "<Status>OFF</Status>"},
		{method: "PUT", path: "/" + vault + "/k?retention=", body: "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2099-01-02T00:00:00Z</RetainUntilDate></Retention>", twice: "<Mode>GOVERNANCE</Mode>"},
		{method: "PUT", path: "/new-%d", body: "<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags></CreateBucketConfiguration>", twice: "<Tags/>"},
		{method: "POST", path: "/" + vault + "?delete=", body: "<Delete><Quiet>true</Quiet><Object><Key>none</Key></Object></Delete>", twice: "<Quiet>true</Quiet>"},
		{method: "POST", path: "/" + bucket + "/parts?uploadId=" + id, body: "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + *parts[0].ETag + "</ETag></Part></CompleteMultipartUpload>"},
	} {
		code := op.code
		if code == "" {
			code = "MalformedXML"
		}
		root := op.body[1:strings.IndexByte(op.body, '>')]
		in := func(ns string) string { return strings.Replace(op.body, root+">", root+` xmlns="`+ns+`">`, 1) }
		with := func(more string) string { return strings.Replace(op.body, "<"+root+">", "<"+root+">"+more, 1) }
		ask := func(body string) (int, string, string) {
			n++
			path := op.path
			if strings.Contains(path, "%d") {
				path = fmt.Sprintf(path, n)
			}
			st, code, b := send(t, newSigner().request(op.method, s.url()+path, []byte(body)))
			return st, code, string(b)
		}
		bad := []string{op.body + "<" + root + "/>", op.body + "x", op.body + "\x00", "<!DOCTYPE " + root + ">" + op.body, in("http://example.com/"), with("<NotKnown/>"), with("text"),
			strings.Replace(op.body, root+">", root+` colour="red">`, 1), strings.ReplaceAll(op.body, root, root+"s"), op.body[:len(op.body)-1],
			`<!DOCTYPE a [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>` + with("&b;")}
		if op.twice != "" {
			bad = append(bad, with(op.twice+op.twice))
		}
		for _, body := range bad {
			if st, got, b := ask(body); st != 400 || got != code {
				t.Errorf("%s %s %s: %d %s %s", op.method, op.path, body, st, got, b)
			}
		}
		for _, body := range []string{op.body, in("http://s3.amazonaws.com/doc/2006-03-01/"), `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + op.body + "\n<!-- the end -->\n"} {
			if st, _, b := ask(body); st/100 != 2 {
				t.Errorf("%s %s %s: %d %s", op.method, op.path, body, st, b)
			}
		}
	}
}
