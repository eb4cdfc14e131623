package s3api

import (
	"net/http"
	"net/url"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/lifecycle"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// maxLifecycleBytes has room for AWS's 1,000 rules, each with the longest ID and a prefix of several hundred bytes.
const maxLifecycleBytes = 1 << 20

func (c *call) getLifecycle() error {
	return c.getSetting("GetLifecycleConfiguration", lifecycle.Setting, s3err.NoSuchLifecycleConfiguration)
}

func (c *call) putLifecycle() error {
	return c.putSetting("PutLifecycleConfiguration", lifecycle.Setting, maxLifecycleBytes, &lifecycle.Config{},
		func(text []byte) (any, error) { return lifecycle.Parse(text) }, http.StatusOK)
}

func (c *call) deleteLifecycle() error {
	return c.deleteSetting("PutLifecycleConfiguration", lifecycle.Setting)
}

// setExpiration says when a rule of the bucket will end a current object. A bucket without rules pays a lookup.
func (c *call) setExpiration(o *engine.Object) {
	b, err := c.Engine.Bucket(o.Bucket)
	if err != nil || b.Settings[lifecycle.Setting] == nil {
		return
	}
	conf, err := c.lifecycles.get(b.Name, b.Settings[lifecycle.Setting], lifecycle.Parse)
	if err != nil {
		return // the worker reports it
	}
	d := conf.Expiry(lifecycle.Version{Key: o.Key, Size: o.Size, Modified: o.Modified,
		Tags: func() ([]engine.Pair, bool) { return o.Tags, true }})
	if d.Action != lifecycle.Keep {
		c.w.Header().Set("X-Amz-Expiration", `expiry-date="`+d.At.UTC().Format(http.TimeFormat)+`", rule-id="`+url.QueryEscape(d.Rule)+`"`)
	}
}
