package s3api

import (
	"encoding/xml"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	// leastPart is the least size of a part but the last, bytes, unless Options say another; AWS has the same limit.
	leastPart = 5 << 20
	// maxCompleteBytes bounds the list of parts of CompleteMultipartUpload.
	maxCompleteBytes = 4 << 20
	fullObject       = "FULL_OBJECT"
	composite        = "COMPOSITE"
)

func noSuchUpload(id string) error { return s3err.NoSuchUpload.Detail("UploadId", id) }

var errChecksumType = s3err.InvalidRequest.With("Value for x-amz-checksum-type header is invalid.")

// checksumChoice reads the algorithm and the type of a new upload's checksum.
func checksumChoice(h http.Header) (engine.Checksum, error) {
	c := engine.Checksum{Algorithm: strings.ToUpper(h.Get("X-Amz-Checksum-Algorithm")), Type: strings.ToUpper(h.Get("X-Amz-Checksum-Type"))}
	switch {
	case c.Type != "" && c.Type != fullObject && c.Type != composite:
		return c, errChecksumType
	case c.Algorithm == "" && c.Type != "":
		return c, s3err.InvalidRequest.With("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
	case c.Algorithm == "":
		return c, nil
	case checksum.New(c.Algorithm) == nil:
		return c, errNoAlgorithm
	}
	linear := checksum.Combines(c.Algorithm)
	switch {
	case c.Type == "" && c.Algorithm == "CRC64NVME":
		c.Type = fullObject
	case c.Type == "":
		c.Type = composite
	case c.Type == fullObject && !linear, c.Type == composite && c.Algorithm == "CRC64NVME":
		return c, s3err.InvalidRequest.With("The %s checksum type cannot be used with the %s checksum algorithm.", c.Type, strings.ToLower(c.Algorithm))
	}
	return c, nil
}

func (c *call) createUpload() error {
	o := engine.Object{Bucket: c.bucket, Key: c.key}
	if err := c.authorizeUpload(false); err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	err := c.describe(&o, nil)
	if err == nil {
		err = readStoredHeaders(c.r.Header, &o)
	}
	if err == nil {
		o.Checksum, err = checksumChoice(c.r.Header)
	}
	if err != nil {
		return err
	}
	o.Modified = c.Now()
	id, err := c.Engine.CreateUpload(c.r.Context(), o)
	if errors.Is(err, engine.ErrTooLarge) {
		return s3err.MetadataTooLarge
	}
	if err != nil {
		return err
	}
	c.setEncryption(c.Engine.Seals())
	if o.Checksum.Algorithm != "" {
		c.setHeader("X-Amz-Checksum-Algorithm", o.Checksum.Algorithm)
		c.setHeader("X-Amz-Checksum-Type", o.Checksum.Type)
	}
	return c.writeXML(struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: c.bucket, Key: c.key, UploadId: id})
}

// authorizeUpload checks that the caller may write the object. Only what makes the object is an operation that creates
// it, so that policies can ask for conditions there and not of the parts.
func (c *call) authorizeUpload(creates bool) error {
	ctx := writeContext(c.r.Header)
	ctx[0].Value = strconv.FormatBool(creates)
	return c.authorize("PutObject", c.bucket, c.key, ctx)
}

// uploadOf gives the upload that the request names.
func (c *call) uploadOf() (string, engine.Object, error) {
	id := c.query.get("uploadId")
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return id, engine.Object{}, err
	}
	up, err := c.Engine.Upload(c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return id, up, noSuchUpload(id)
	}
	return id, up, err
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}
