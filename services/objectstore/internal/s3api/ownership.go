package s3api

import (
	"encoding/xml"
	"net/http"
	"slices"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// settingOwnership is the name under which the engine keeps whether ACLs count; a bucket without it is BucketOwnerEnforced,
// as every new bucket on AWS.
const settingOwnership = "ownership"

const (
	ownerEnforced  = "BucketOwnerEnforced"
	ownerPreferred = "BucketOwnerPreferred"
	objectWriter   = "ObjectWriter"
	// noControls is kept when the controls were deleted: ACLs count then.
	noControls = "none"
)

var ownerships = []string{ownerEnforced, ownerPreferred, objectWriter}

// ownershipOf gives a bucket's setting, or noControls.
func ownershipOf(b engine.Bucket) string {
	if v := b.Settings[settingOwnership]; v != nil {
		return string(v)
	}
	return ownerEnforced
}

type ownershipControls struct {
	XMLName xml.Name `xml:"OwnershipControls"`
	Rule    []struct{ ObjectOwnership string }
}

func (c *call) getOwnership() error {
	if err := c.authorizeBucket("GetBucketOwnershipControls"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	is := ownershipOf(b)
	if is == noControls {
		return s3err.OwnershipNotFound
	}
	out := ownershipControls{XMLName: xml.Name{Space: xmlns, Local: "OwnershipControls"}}
	out.Rule = []struct{ ObjectOwnership string }{{is}}
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
	if s3xml.Decode(body, &in) != nil || len(in.Rule) != 1 || !slices.Contains(ownerships, in.Rule[0].ObjectOwnership) {
		return s3err.MalformedXML
	}
	to := in.Rule[0].ObjectOwnership
	if to == ownerEnforced {
		// Grants that stop counting without a word would lock out whoever relies on them.
		b, err := c.Engine.Bucket(c.bucket)
		if err != nil {
			return err
		}
		if a, err := c.aclOf(b); err != nil || len(a.Grants) > 0 {
			return s3err.InvalidBucketACLWithOwnership
		}
	}
	return c.storeSetting(settingOwnership, []byte(to), http.StatusOK)
}

// deleteOwnership removes the controls. ACLs count then, as on AWS.
func (c *call) deleteOwnership() error {
	if err := c.authorizeBucket("PutBucketOwnershipControls"); err != nil {
		return err
	}
	return c.storeSetting(settingOwnership, []byte(noControls), http.StatusNoContent)
}
