package s3api

import (
	"context"
	"encoding/xml"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

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
	return c.storeSetting(name, text, http.StatusNoContent)
}

// storeSetting keeps a setting of the bucket; nil removes it.
func (c *call) storeSetting(name string, text []byte, status int) error {
	err := c.Engine.SetSetting(context.WithoutCancel(c.r.Context()), c.bucket, name, text)
	if err != nil {
		return err
	}
	c.w.WriteHeader(status)
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
