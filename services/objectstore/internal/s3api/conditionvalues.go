package s3api

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

// conditionValues gives the values of a policy's condition key for a request; nil: the request has none. It is asked only
// for keys that a policy names, so a request without such conditions pays nothing.
func (c *call) conditionValues(name, bucket, key, version string) []string {
	low := strings.ToLower(name)
	if version == "" {
		version = c.query.get("versionId") // those of a list of deletions, and of a copy's source, come elsewhere
	}
	if tag, ok := strings.CutPrefix(low, "s3:existingobjecttag/"); ok {
		// Names of tags have a case.
		return c.existingTag(bucket, key, version, name[len(name)-len(tag):])
	}
	text := ""
	switch low {
	case "aws:sourceip":
		text, _, _ = net.SplitHostPort(c.r.RemoteAddr)
	case "aws:securetransport":
		text = strconv.FormatBool(c.r.TLS != nil)
	case "aws:currenttime":
		text = c.Now().UTC().Format(time.RFC3339Nano)
	case "aws:epochtime":
		text = strconv.FormatInt(c.Now().Unix(), 10)
	case "aws:useragent":
		text = c.r.Header.Get("User-Agent")
	case "aws:referer":
		text = c.r.Header.Get("Referer")
	case "aws:principaltype":
		text = "User"
		if c.anonymous {
			text = "Anonymous"
		}
	case "s3:delimiter", "s3:max-keys":
		text = c.query.get(strings.TrimPrefix(low, "s3:"))
	case "s3:versionid":
		text = version
	case "s3:x-amz-acl", "s3:x-amz-content-sha256", "s3:x-amz-copy-source", "s3:x-amz-metadata-directive",
		"s3:x-amz-server-side-encryption", "s3:x-amz-storage-class":
		text = c.r.Header.Get(low[len("s3:"):])
	case "s3:object-lock-mode", "s3:object-lock-legal-hold", "s3:object-lock-retain-until-date", "s3:object-lock-remaining-retention-days":
		text = c.lockValue(low)
	default:
		text = c.signatureValue(low)
	}
	if text == "" {
		return nil
	}
	return []string{text}
}

// signatureValue gives the values of the keys that tell how a request was signed and sent.
func (c *call) signatureValue(key string) string {
	switch key {
	case "s3:authtype":
		return c.authType()
	case "s3:signatureversion":
		if !c.anonymous {
			return "AWS4-HMAC-SHA256"
		}
	case "s3:signatureage":
		// Of a presigned URL alone, in milliseconds.
		if at := c.auth.SignedAt(); c.auth.Presigned && !at.IsZero() {
			return strconv.FormatInt(c.Now().Sub(at).Milliseconds(), 10)
		}
	case "s3:tlsversion":
		if c.r.TLS != nil {
			// 0x0303 is TLS 1.2, and 0x0304 is 1.3.
			return "1." + strconv.Itoa(int(c.r.TLS.Version&0xff)-1)
		}
	}
	return ""
}

func (c *call) authType() string {
	switch {
	case c.anonymous:
		return ""
	case c.form != nil:
		return "POST"
	case c.auth.Presigned:
		return "REST-QUERY-STRING"
	}
	return "REST-HEADER"
}

// existingTag gives the value of a tag of the object as it is, or of the version that the request is about.
func (c *call) existingTag(bucket, key, version, tag string) []string {
	if key == "" {
		return nil
	}
	o, err := c.Engine.StatVersion(bucket, key, version)
	var marker *engine.MarkerError
	switch {
	case err == nil, o.Key != "": // with damage of its body the tags are known
	case errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrNoBucket), errors.As(err, &marker):
		return nil // what is not there has no tags
	default:
		// No value is true of a tag that cannot be read: without it a policy that denies by tags would allow.
		c.unreadTag = true
		return nil
	}
	for _, t := range o.Tags {
		if t.Name == tag {
			return []string{t.Value}
		}
	}
	return nil
}
