package s3api

import (
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"sort"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const maxTags = 10

// checkTags applies AWS's limits and sorts by name.
func checkTags(tags []engine.Pair) ([]engine.Pair, error) {
	if len(tags) > maxTags {
		return nil, s3err.InvalidTag.With("Object tags cannot be greater than %d", maxTags)
	}
	sort.Slice(tags, func(i, j int) bool { return tags[i].Name < tags[j].Name })
	for i, t := range tags {
		switch {
		case t.Name == "" || utf8.RuneCountInString(t.Name) > 128 || !utf8.ValidString(t.Name):
			return nil, s3err.InvalidTag.With("The TagKey you have provided is invalid")
		case utf8.RuneCountInString(t.Value) > 256 || !utf8.ValidString(t.Value):
			return nil, s3err.InvalidTag.With("The TagValue you have provided is invalid")
		case i > 0 && tags[i-1].Name == t.Name:
			return nil, s3err.InvalidTag.With("Cannot provide multiple Tags with the same key")
		}
	}
	return tags, nil
}

// tagsOfHeader reads x-amz-tagging, which is a query string.
func tagsOfHeader(v string) ([]engine.Pair, error) {
	q, err := url.ParseQuery(v)
	if err != nil {
		return nil, s3err.InvalidArgument.With("The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates.")
	}
	var tags []engine.Pair
	for name, vs := range q {
		for _, val := range vs {
			tags = append(tags, engine.Pair{Name: name, Value: val})
		}
	}
	return checkTags(tags)
}

type tag struct{ Key, Value string }

type tagging struct {
	XMLName xml.Name `xml:"Tagging"`
	TagSet  struct {
		Tag []tag
	}
}

func (c *call) getTagging() error {
	if err := c.authorize("GetObjectTagging", c.bucket, c.key, nil); err != nil {
		return err
	}
	o, err := c.Engine.Stat(c.bucket, c.key)
	if err != nil {
		return err
	}
	var out tagging
	out.XMLName = xml.Name{Space: xmlns, Local: "Tagging"}
	for _, t := range o.Tags {
		out.TagSet.Tag = append(out.TagSet.Tag, tag{t.Name, t.Value})
	}
	return c.writeXML(out)
}

func (c *call) putTagging() error {
	if err := c.authorize("PutObjectTagging", c.bucket, c.key, nil); err != nil {
		return err
	}
	body, err := c.readAll(64 << 10)
	if err != nil {
		return err
	}
	var in tagging
	if xml.Unmarshal(body, &in) != nil {
		return s3err.MalformedXML
	}
	var tags []engine.Pair
	for _, t := range in.TagSet.Tag {
		tags = append(tags, engine.Pair{Name: t.Key, Value: t.Value})
	}
	if tags, err = checkTags(tags); err != nil {
		return err
	}
	return c.setTags(tags, http.StatusOK)
}

func (c *call) deleteTagging() error {
	if err := c.authorize("DeleteObjectTagging", c.bucket, c.key, nil); err != nil {
		return err
	}
	return c.setTags(nil, http.StatusNoContent)
}

func (c *call) setTags(tags []engine.Pair, status int) error {
	if err := c.Engine.SetTags(context.WithoutCancel(c.r.Context()), c.bucket, c.key, tags); err != nil {
		return err
	}
	c.w.WriteHeader(status)
	return nil
}
