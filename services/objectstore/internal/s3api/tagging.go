package s3api

import (
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

const maxTags = 10

// checkTags applies AWS's limits and sorts by name.
func checkTags(tags []engine.Pair) ([]engine.Pair, error) {
	if len(tags) > maxTags {
		return nil, s3err.BadRequest.With("Object tags cannot be greater than %d", maxTags)
	}
	return checkTagNames(tags)
}

func checkTagNames(tags []engine.Pair) ([]engine.Pair, error) {
	sort.Slice(tags, func(i, j int) bool { return tags[i].Name < tags[j].Name })
	for i, t := range tags {
		switch {
		case t.Name == "" || utf8.RuneCountInString(t.Name) > 128 || !validTagText(t.Name):
			return nil, s3err.InvalidTag.With("The TagKey you have provided is invalid").Detail("TagKey", t.Name)
		case utf8.RuneCountInString(t.Value) > 256 || !validTagText(t.Value):
			return nil, s3err.InvalidTag.With("The TagValue you have provided is invalid").Detail("TagKey", t.Name).Detail("TagValue", t.Value)
		case i > 0 && tags[i-1].Name == t.Name:
			return nil, s3err.InvalidTag.With("Cannot provide multiple Tags with the same key").Detail("TagKey", t.Name)
		}
	}
	return tags, nil
}

// validTagText takes what AWS takes: letters, digits and spaces of any script, and a few signs.
func validTagText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsSpace(r) && !strings.ContainsRune("_.:/=+-@", r) {
			return false
		}
	}
	return true
}

// tagsOfHeader reads x-amz-tagging, which is a query string.
func tagsOfHeader(v string) ([]engine.Pair, error) {
	malformed := s3err.Argument("x-amz-tagging", v, "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates.")
	q, err := url.ParseQuery(v)
	if err != nil {
		return nil, malformed
	}
	var tags []engine.Pair
	for name, vs := range q {
		if len(vs) > 1 || name == "" {
			return nil, malformed
		}
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
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("GetObjectTagging", c.bucket, c.key, version, nil); err != nil {
		return err
	}
	o, err := c.Engine.StatVersion(c.bucket, c.key, version)
	if err != nil {
		return c.absentTags(version, err)
	}
	c.setVersion(c.bucket, versionHeader, o.Version)
	var out tagging
	out.XMLName = xml.Name{Space: xmlns, Local: "Tagging"}
	for _, t := range o.Tags {
		out.TagSet.Tag = append(out.TagSet.Tag, tag{t.Name, t.Value})
	}
	return c.writeXML(out)
}

// absentTags is absent for who has named a version; without one every caller is told that the key is not there.
func (c *call) absentTags(version string, err error) error {
	if version == "" {
		return err
	}
	return c.absent(version, err)
}

func (c *call) putTagging() error {
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("PutObjectTagging", c.bucket, c.key, version, nil); err != nil {
		return err
	}
	tags, err := c.readTagging(checkTags)
	if err != nil {
		return err
	}
	return c.setTags(version, tags, http.StatusOK)
}

// readTagging reads the tags of a body.
func (c *call) readTagging(check func([]engine.Pair) ([]engine.Pair, error)) ([]engine.Pair, error) {
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return nil, err
	}
	var in tagging
	if s3xml.Decode(body, &in) != nil {
		return nil, s3err.MalformedXML
	}
	return check(pairsOf(in.TagSet.Tag))
}

func pairsOf(tags []tag) []engine.Pair {
	var list []engine.Pair
	for _, t := range tags {
		list = append(list, engine.Pair{Name: t.Key, Value: t.Value})
	}
	return list
}

// encodeTagging gives tags as XML; nil for none.
func encodeTagging(tags []engine.Pair) ([]byte, error) {
	if len(tags) == 0 {
		return nil, nil
	}
	var out tagging
	for _, t := range tags {
		out.TagSet.Tag = append(out.TagSet.Tag, tag{t.Name, t.Value})
	}
	return xml.Marshal(out)
}

func (c *call) deleteTagging() error {
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("DeleteObjectTagging", c.bucket, c.key, version, nil); err != nil {
		return err
	}
	return c.setTags(version, nil, http.StatusNoContent)
}

func (c *call) setTags(version string, tags []engine.Pair, status int) error {
	tagged, err := c.Engine.SetTags(context.WithoutCancel(c.r.Context()), c.bucket, c.key, version, tags)
	if err != nil {
		return c.absentTags(version, err)
	}
	c.setVersion(c.bucket, versionHeader, tagged)
	c.w.WriteHeader(status)
	return nil
}
