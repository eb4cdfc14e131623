package s3api

import (
	"context"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// The store has no ACLs. It answers what AWS answers for a bucket whose ownership is BucketOwnerEnforced, which is the
// setting of every new bucket there: the owner has full control, and an ACL that says anything else is an error.

const ownerEnforced = "BucketOwnerEnforced"

var (
	cannedACLs = []string{"private", "public-read", "public-read-write", "authenticated-read", "aws-exec-read",
		"bucket-owner-read", "bucket-owner-full-control", "log-delivery-write"}
	ownerships = []string{ownerEnforced, "BucketOwnerPreferred", "ObjectWriter"}
)

// checkCannedACL decides x-amz-acl of an object.
func checkCannedACL(acl string) error {
	switch {
	case acl == "private", acl == "bucket-owner-full-control": // what is the case anyway
		return nil
	case slices.Contains(cannedACLs, acl):
		return s3err.AccessControlListNotSupported
	}
	return s3err.Argument("x-amz-acl", acl, "")
}

// checkNewBucketACL decides x-amz-acl, the grants and the ownership of a new bucket.
func checkNewBucketACL(h http.Header) error {
	owner := h.Get("X-Amz-Object-Ownership")
	switch {
	case owner != "" && !slices.Contains(ownerships, owner):
		return s3err.InvalidArgument.With("Invalid x-amz-object-ownership header: %s", owner).Detail("ArgumentName", "x-amz-object-ownership")
	case owner != "" && owner != ownerEnforced:
		return s3err.NotImplemented.With("The object ownership %s is not implemented: there are no ACLs.", owner)
	}
	acl := h.Get("X-Amz-Acl")
	switch {
	case acl == "" || acl == "private":
	case slices.Contains(cannedACLs, acl):
		return s3err.InvalidBucketACLWithOwnership
	default:
		return s3err.Argument("x-amz-acl", acl, "")
	}
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Grant-") {
			return s3err.InvalidBucketACLWithOwnership
		}
	}
	return nil
}

type owner struct{ ID, DisplayName string }

type grantee struct {
	Space string `xml:"xmlns:xsi,attr"`
	Type  string `xml:"xsi:type,attr"`
	owner
}

type grant struct {
	Grantee    grantee
	Permission string
}

// writeACL answers with the only ACL that there is.
func (c *call) writeACL() error {
	me := owner{c.user.Name, c.user.Name}
	var out struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ AccessControlPolicy"`
		Owner   owner
		Grants  []grant `xml:"AccessControlList>Grant"`
	}
	out.Owner = me
	out.Grants = []grant{{grantee{"http://www.w3.org/2001/XMLSchema-instance", "CanonicalUser", me}, "FULL_CONTROL"}}
	return c.writeXML(out)
}

func (c *call) getBucketACL() error {
	if err := c.authorizeBucket("GetBucketAcl"); err != nil {
		return err
	}
	return c.writeACL()
}

func (c *call) putBucketACL() error {
	if err := c.authorizeBucket("PutBucketAcl"); err != nil {
		return err
	}
	return s3err.AccessControlListNotSupported
}

func (c *call) getObjectACL() error {
	if err := c.authorize("GetObjectAcl", c.bucket, c.key, nil); err != nil {
		return err
	}
	if _, err := c.Engine.Stat(c.bucket, c.key); err != nil {
		return c.absent(err)
	}
	return c.writeACL()
}

func (c *call) putObjectACL() error {
	if err := c.authorize("PutObjectAcl", c.bucket, c.key, nil); err != nil {
		return err
	}
	if _, err := c.Engine.Stat(c.bucket, c.key); err != nil {
		return c.absent(err)
	}
	return s3err.AccessControlListNotSupported
}

type ownershipControls struct {
	XMLName xml.Name `xml:"OwnershipControls"`
	Rule    []struct{ ObjectOwnership string }
}

func (c *call) getOwnership() error {
	if err := c.authorizeBucket("GetBucketOwnershipControls"); err != nil {
		return err
	}
	out := ownershipControls{XMLName: xml.Name{Space: xmlns, Local: "OwnershipControls"}}
	out.Rule = []struct{ ObjectOwnership string }{{ownerEnforced}}
	return c.writeXML(out)
}

func (c *call) putOwnership() error {
	if err := c.authorizeBucket("PutBucketOwnershipControls"); err != nil {
		return err
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	var in ownershipControls
	if xml.Unmarshal(body, &in) != nil || len(in.Rule) != 1 || !slices.Contains(ownerships, in.Rule[0].ObjectOwnership) {
		return s3err.MalformedXML
	}
	if got := in.Rule[0].ObjectOwnership; got != ownerEnforced {
		return s3err.NotImplemented.With("The object ownership %s is not implemented: there are no ACLs.", got)
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// noOwnership refuses DeleteBucketOwnershipControls, after which ACLs would count.
func (c *call) noOwnership() error {
	if err := c.authorizeBucket("PutBucketOwnershipControls"); err != nil {
		return err
	}
	return s3err.NotImplemented.With("There are no ACLs that could count without ownership controls.")
}

// absentSetting answers for a setting that no bucket of this store has.
func absentSetting(action string, none error) func(*call) error {
	return func(c *call) error {
		if err := c.authorizeBucket(action); err != nil {
			return err
		}
		return none
	}
}

// maxSettingBytes bounds the body that sets something of a bucket, such as its tags.
const maxSettingBytes = 64 << 10

// maxBucketTags is AWS's limit.
const maxBucketTags = 50

// settingTagging is the name under which the engine keeps a bucket's tags.
const settingTagging = "tagging"

func (c *call) getBucketTagging() error {
	if err := c.authorizeBucket("GetBucketTagging"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	text := b.Settings[settingTagging]
	if text == nil {
		return s3err.NoSuchTagSet
	}
	var tags tagging
	if err := xml.Unmarshal(text, &tags); err != nil {
		return err // it was valid when it was set
	}
	tags.XMLName = xml.Name{Space: xmlns, Local: "Tagging"}
	return c.writeXML(tags)
}

func (c *call) putBucketTagging() error {
	if err := c.authorizeBucket("PutBucketTagging"); err != nil {
		return err
	}
	tags, err := c.readTagging(checkBucketTags)
	if err != nil {
		return err
	}
	text, err := encodeTagging(tags)
	if err != nil {
		return err
	}
	return c.setSetting(settingTagging, text)
}

func (c *call) deleteBucketTagging() error {
	if err := c.authorizeBucket("PutBucketTagging"); err != nil {
		return err
	}
	return c.setSetting(settingTagging, nil)
}

func (c *call) setSetting(name string, text []byte) error {
	if err := c.Engine.SetSetting(context.WithoutCancel(c.r.Context()), c.bucket, name, text); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkBucketTags is checkTags with a bucket's limit.
func checkBucketTags(tags []engine.Pair) ([]engine.Pair, error) {
	if len(tags) > maxBucketTags {
		return nil, s3err.BadRequest.With("Bucket tag count cannot be greater than %d", maxBucketTags)
	}
	return checkTagNames(tags)
}

// checkOwner decides x-amz-expected-bucket-owner and its like. The store has one account, which is named by its number or
// by who asks, as in the answers that show an owner.
func (c *call) checkOwner() error {
	for _, name := range [...]string{"X-Amz-Expected-Bucket-Owner", "X-Amz-Source-Expected-Bucket-Owner"} {
		for _, want := range c.r.Header[name] {
			if want != account && want != c.user.Name {
				return s3err.AccessDenied
			}
		}
	}
	return nil
}

const account = "000000000000"
