package s3api

import (
	"context"
	"errors"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func (c *call) abortUpload() error {
	if err := c.authorize("AbortMultipartUpload", c.bucket, c.key, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil && !errors.Is(err, engine.ErrCorrupt) {
		return err
	}
	if want := c.r.Header.Get("X-Amz-If-Match-Initiated-Time"); want != "" {
		t, err := http.ParseTime(want)
		if err != nil {
			return s3err.Argument("x-amz-if-match-initiated-time", want, "The time must be an HTTP date.")
		}
		if t.Unix() != up.Modified.Unix() {
			return s3err.PreconditionFailed.Failed("If-Match-Initiated-Time")
		}
	}
	err = c.Engine.AbortUpload(context.WithoutCancel(c.r.Context()), c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return noSuchUpload(id)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
