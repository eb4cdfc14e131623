package s3api

import (
	"net/http"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// presignParams are the query parameters that carry the signature itself.
var presignParams = []string{"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires",
	"x-amz-signedheaders", "x-amz-signature", "x-amz-content-sha256"}

// applyHoistedHeaders turns the x-amz-* parameters of a presigned URL into the headers that they
// stand for. SDKs move ("hoist") such headers into the query when they presign, so that the holder
// of the URL need not send them. The signature covers the query, so they count as signed. A
// parameter that also came as a header with another value is refused.
func (c *call) applyHoistedHeaders() error {
	for name, values := range c.query {
		low := strings.ToLower(name)
		if !strings.HasPrefix(low, "x-amz-") {
			continue
		}
		delete(c.query, name)
		if slices.Contains(presignParams, low) {
			continue
		}
		header := http.CanonicalHeaderKey(low)
		if sent := c.r.Header[header]; len(sent) > 0 && !slices.Equal(sent, values) {
			return s3err.InvalidArgument.With("%s is in the query and in the headers, with different values.", low)
		}
		c.r.Header[header] = values
	}
	return nil
}
