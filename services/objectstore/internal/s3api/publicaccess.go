package s3api

import (
	"encoding/xml"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// settingPublicAccess is the name under which the engine keeps what a bucket never lets everybody do.
const settingPublicAccess = "public-access"

// publicAccessBlock is AWS's configuration of it. Whatever a policy or an ACL says, it wins.
type publicAccessBlock struct {
	XMLName               xml.Name `xml:"PublicAccessBlockConfiguration"`
	BlockPublicAcls       bool     // none can be set
	IgnorePublicAcls      bool     // none counts
	BlockPublicPolicy     bool     // none can be set
	RestrictPublicBuckets bool     // one that is there allows nothing to anonymous requests

	Other []element `xml:",any"` // a misspelt one would block nothing
}

func parsePublicAccess(text []byte) (*publicAccessBlock, error) {
	var p publicAccessBlock
	if xml.Unmarshal(text, &p) != nil || len(p.Other) > 0 {
		return nil, s3err.MalformedXML
	}
	p.XMLName = xml.Name{Space: xmlns, Local: "PublicAccessBlockConfiguration"}
	return &p, nil
}

// publicAccess gives what is in force for a bucket: its own configuration, or all when the store blocks public access. One
// that cannot be read blocks all.
func (s *Server) publicAccess(b engine.Bucket) *publicAccessBlock {
	all := &publicAccessBlock{BlockPublicAcls: true, IgnorePublicAcls: true, BlockPublicPolicy: true, RestrictPublicBuckets: true}
	if s.BlockPublicAccess {
		return all
	}
	text := b.Settings[settingPublicAccess]
	if text == nil {
		return &publicAccessBlock{}
	}
	p, err := s.publicBlocks.get(b.Name, text, parsePublicAccess)
	if err != nil {
		return all
	}
	return p
}

func (c *call) getPublicAccess() error {
	return c.getSetting("GetBucketPublicAccessBlock", settingPublicAccess, s3err.NoSuchPublicAccessBlock)
}

func (c *call) putPublicAccess() error {
	return c.putSetting("PutBucketPublicAccessBlock", settingPublicAccess, maxSettingBytes, &publicAccessBlock{},
		func(text []byte) (any, error) { return parsePublicAccess(text) }, http.StatusOK)
}

func (c *call) deletePublicAccess() error {
	return c.deleteSetting("PutBucketPublicAccessBlock", settingPublicAccess)
}

// checkPublicPolicy refuses a policy that lets everybody do something, where the bucket blocks that.
func (c *call) checkPublicPolicy(b engine.Bucket, doc *policy.Document) error {
	if doc.IsPublic() && c.publicAccess(b).BlockPublicPolicy {
		return s3err.AccessDenied
	}
	return nil
}

func (c *call) policyStatus() error {
	if err := c.authorizeBucket("GetBucketPolicyStatus"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	if b.Policy == nil {
		return s3err.NoSuchBucketPolicy
	}
	doc, err := c.bucketPolicy(b)
	if err != nil {
		return err
	}
	return c.writeXML(struct {
		XMLName  xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ PolicyStatus"`
		IsPublic bool
	}{IsPublic: doc.IsPublic()})
}
