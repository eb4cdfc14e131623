package s3api

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
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
	if c.r.ContentLength != 0 {
		c.dropChecksumOfNothing()
	}
	for name, values := range c.query {
		low := strings.ToLower(name)
		if !strings.HasPrefix(low, "x-amz-") {
			continue
		}
		delete(c.query, name)
		if slices.Contains(presignParams, low) {
			continue
		}
		for _, v := range values {
			if err := checkField(low, v); err != nil {
				return err
			}
		}
		header := http.CanonicalHeaderKey(low)
		if sent := c.r.Header[header]; len(sent) > 0 && !slices.Equal(sent, values) {
			return s3err.InvalidArgument.With("%s is in the query and in the headers, with different values.", low)
		}
		c.r.Header[header] = values
	}
	return nil
}

// dropChecksumOfNothing forgets a checksum in the query that is the one of an empty body. SDKs sign it into the URL of an
// upload where they do not know the body, and AWS takes any body with such a URL. Any other checksum is verified.
func (c *call) dropChecksumOfNothing() {
	for name, values := range c.query {
		a := checksum.OfHeader(name)
		if a == "" || len(values) != 1 || values[0] != base64.StdEncoding.EncodeToString(checksum.New(a).Sum(nil)) {
			continue
		}
		delete(c.query, name)
		if slices.Equal(c.query[sdkAlgorithm], []string{a}) {
			delete(c.query, sdkAlgorithm) // it names the checksum that is gone
		}
	}
}

const sdkAlgorithm = "x-amz-sdk-checksum-algorithm"
