package s3api

import (
	"context"
	"encoding/xml"
	"errors"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

func (c *call) deleteObject() error {
	if len(c.r.Header["If-None-Match"]) > 0 {
		return s3err.NotImplemented.Detail("Header", "If-None-Match")
	}
	cond, err := deleteCondition(c.r.Header)
	if err != nil {
		return err
	}
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("DeleteObject", c.bucket, c.key, version, writeContext(c.r.Header)); err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	if version == "" {
		if err := c.checkConditionEarly(cond); err != nil {
			return err
		}
	}
	cond.BypassGovernance = c.bypasses(c.key)
	d, err := c.Engine.Delete(c.r.Context(), c.bucket, engine.Deletion{Key: c.key, Version: version, Cond: cond, Modified: c.Now()})
	if err != nil {
		return c.unwrapCondition(cond, err)
	}
	c.setMade(d.Made)
	if d.Marker {
		c.setHeader(markerHeader, "true")
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// deleteTimeout bounds how long a multi-delete waits for the committer to accept its keys.
const deleteTimeout = time.Minute

// toDelete has at most maxListKeys objects: the rest of a longer list is not kept, which could take many times the memory of
// its text. Everybody may send one.
type toDelete []struct {
	Key, VersionId, ETag   string
	Size, LastModifiedTime string
}

// UnmarshalXML is called for each object.
func (l *toDelete) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	if len(*l) == maxListKeys {
		return errTooManyObjects
	}
	*l = append(*l, (toDelete{{}})[0])
	return d.DecodeElement(&(*l)[len(*l)-1], &start)
}

var errTooManyObjects = errors.New("too many objects")

func (c *call) deleteObjects() error {
	body, err := c.readAll(2 << 20)
	if err != nil {
		return err
	}
	var in struct {
		XMLName xml.Name `xml:"Delete"`
		Quiet   bool
		Object  toDelete
	}
	if s3xml.Decode(body, &in) != nil || len(in.Object) == 0 {
		return s3err.MalformedXML
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	type deleted struct {
		Key                   string
		VersionId             string `xml:",omitempty"`
		DeleteMarker          *bool  `xml:",omitempty"`
		DeleteMarkerVersionId string `xml:",omitempty"`
	}
	type failed struct {
		Key           string
		VersionId     string `xml:",omitempty"`
		Code, Message string
	}
	var out struct {
		XMLName xml.Name  `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
		Deleted []deleted `xml:",omitempty"`
		Error   []failed  `xml:",omitempty"`
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), deleteTimeout)
	defer cancel()
	keys := make([]engine.Deletion, 0, len(in.Object))
	for _, x := range in.Object {
		err := validKey(x.Key)
		if err == nil && x.VersionId != "" {
			err = checkVersion(x.VersionId)
		}
		if err == nil {
			err = c.authorizeVersion("DeleteObject", c.bucket, x.Key, x.VersionId, writeContextOf(x.ETag))
		}
		cond := engine.Cond{Match: unquote(x.ETag), BypassGovernance: err == nil && c.bypasses(x.Key)}
		if err == nil {
			err = addObjectConditions(&cond, x.Size, x.LastModifiedTime)
		}
		keys = append(keys, engine.Deletion{Key: x.Key, Version: x.VersionId, Cond: cond, Modified: c.Now(), Err: err})
	}
	c.Engine.DeleteMany(ctx, c.bucket, keys)
	for _, k := range keys {
		if k.Err == nil {
			if !in.Quiet {
				x := deleted{Key: k.Key, VersionId: k.Version}
				if k.Made != "" {
					x.DeleteMarker = &k.Marker
				}
				if k.Marker {
					x.DeleteMarkerVersionId = k.Made
				}
				out.Deleted = append(out.Deleted, x)
			}
			continue
		}
		e := c.errorOf(c.unwrapCondition(k.Cond, k.Err))
		out.Error = append(out.Error, failed{k.Key, k.Version, e.Code, e.Message})
	}
	return c.writeXML(out)
}

func writeContextOf(etag string) []policy.Value {
	if etag == "" {
		return nil
	}
	return []policy.Value{{Key: "s3:if-match", Value: etag}}
}
