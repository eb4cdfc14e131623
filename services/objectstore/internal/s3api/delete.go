package s3api

import (
	"context"
	"encoding/xml"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func (c *call) deleteObject() error {
	if len(c.r.Header["If-None-Match"]) > 0 {
		return s3err.NotImplemented.Detail("Header", "If-None-Match")
	}
	cond, err := deleteCondition(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.authorize("DeleteObject", c.bucket, c.key, writeContext(c.r.Header)); err != nil {
		return err
	}
	if err := c.checkConditionEarly(cond); err != nil {
		return err
	}
	if err := c.Engine.Delete(c.r.Context(), c.bucket, c.key, cond); err != nil {
		return c.unwrapCondition(cond, err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// deleteTimeout bounds how long a multi-delete waits for the committer to accept its keys.
const deleteTimeout = time.Minute

func (c *call) deleteObjects() error {
	body, err := c.readAll(2 << 20)
	if err != nil {
		return err
	}
	var in struct {
		XMLName xml.Name `xml:"Delete"`
		Quiet   bool
		Object  []struct {
			Key, VersionId, ETag   string
			Size, LastModifiedTime string
		}
	}
	if xml.Unmarshal(body, &in) != nil || len(in.Object) == 0 || len(in.Object) > maxListKeys {
		return s3err.MalformedXML
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	type deleted struct{ Key string }
	type failed struct{ Key, Code, Message string }
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
		switch {
		case err == nil && x.VersionId != "" && x.VersionId != "null":
			err = s3err.NotImplemented.With("Versions are not implemented.")
		case err == nil:
			err = c.authorize("DeleteObject", c.bucket, x.Key, writeContextOf(x.ETag))
		}
		cond := engine.Cond{Match: unquote(x.ETag)}
		if err == nil {
			err = addObjectConditions(&cond, x.Size, x.LastModifiedTime)
		}
		keys = append(keys, engine.Deletion{Key: x.Key, Cond: cond, Err: err})
	}
	c.Engine.DeleteMany(ctx, c.bucket, keys)
	for _, k := range keys {
		if k.Err == nil {
			if !in.Quiet {
				out.Deleted = append(out.Deleted, deleted{k.Key})
			}
			continue
		}
		e := c.errorOf(c.unwrapCondition(k.Cond, k.Err))
		out.Error = append(out.Error, failed{k.Key, e.Code, e.Message})
	}
	return c.writeXML(out)
}

func writeContextOf(etag string) []policy.Value {
	if etag == "" {
		return nil
	}
	return []policy.Value{{Key: "s3:if-match", Value: etag}}
}
