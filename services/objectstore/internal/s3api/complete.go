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
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// completedPart is a part in the request to complete.
type completedPart struct {
	PartNumber *int
	ETag       *string
	checksumXML
}

// completedParts has at most MaxParts parts: the rest of a longer list is not kept, which could take many times the
// memory of its text.
type completedParts []completedPart

// UnmarshalXML is called for each part.
func (l *completedParts) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	if len(*l) == engine.MaxParts {
		return errTooManyParts
	}
	var p completedPart
	if err := d.DecodeElement(&p, &start); err != nil {
		return err
	}
	*l = append(*l, p)
	return nil
}

var errTooManyParts = errors.New("too many parts")

func (c *call) completeUpload() error {
	id := c.query.get("uploadId")
	cond, err := writeCondition(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.authorizeUpload(true); err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	whole, err := wholeSum(c.r.Header)
	if err != nil {
		return err
	}
	// The checksum is that of the object, and not of this body.
	for name := range c.r.Header {
		if strings.HasPrefix(name, "X-Amz-Checksum-") || name == "X-Amz-Sdk-Checksum-Algorithm" {
			c.r.Header.Del(name)
		}
	}
	body, err := c.readAll(maxCompleteBytes)
	if err != nil {
		return err
	}
	var in struct {
		XMLName xml.Name       `xml:"CompleteMultipartUpload"`
		Part    completedParts `xml:"Part"`
	}
	switch {
	case len(body) == 0:
		return s3err.InvalidRequest.With("You must specify at least one part")
	case s3xml.Decode(body, &in) != nil || len(in.Part) == 0:
		return s3err.MalformedXML
	}
	up, err := c.Engine.Upload(c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return c.completedBefore(id)
	}
	if err != nil {
		return err
	}
	if whole.Type != "" && whole.Type != up.Checksum.Type {
		return s3err.InvalidRequest.With("The upload was created using the %s checksum mode. The complete request must use the same checksum mode.", orNull(up.Checksum.Type))
	}
	parts, err := c.chooseParts(id, up, in.Part)
	if err != nil {
		return err
	}
	o := up
	if err := c.sumUp(&o, parts, whole); err != nil {
		return err
	}
	o.Modified = c.Now()
	if err := c.defaultLock(&o); err != nil {
		return err
	}
	o, err = c.Engine.Complete(c.r.Context(), o, id, parts, cond)
	switch {
	case errors.Is(err, engine.ErrNoUpload):
		return c.completedBefore(id)
	case errors.Is(err, engine.ErrPartChanged):
		return s3err.InvalidPart.Detail("UploadId", id)
	case errors.Is(err, engine.ErrTooLarge):
		return s3err.EntityTooLarge
	case err != nil:
		return c.unwrapCondition(cond, err)
	}
	return c.writeCompleted(o)
}

// completedBefore answers a complete of an upload that is gone: it is repeated where a version of the object is of this
// upload, as by who did not get the answer. A newer version may stand above it.
func (c *call) completedBefore(id string) error {
	o, err := c.Engine.CompletedBy(c.bucket, c.key, id)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return noSuchUpload(id)
	case err != nil:
		return err
	}
	return c.writeCompleted(o)
}

func (c *call) writeCompleted(o engine.Object) error {
	c.setEncryption(o.Sealed())
	c.setMade(o.Version)
	return c.writeXML(struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
		Location, Bucket, Key string
		ETag                  string
		checksumXML
	}{Location: c.objectURL(), Bucket: c.bucket, Key: c.key, ETag: `"` + o.ETag + `"`, checksumXML: checksumOf(o.Checksum)})
}

// wholeSum reads the checksum of the whole object that the client expects.
func wholeSum(h http.Header) (engine.Checksum, error) {
	s := engine.Checksum{Type: strings.ToUpper(h.Get("X-Amz-Checksum-Type"))}
	if s.Type != "" && s.Type != fullObject && s.Type != composite {
		return s, errChecksumType
	}
	for _, a := range checksum.Algorithms {
		v := h.Get(checksum.Header(a))
		if v == "" {
			continue
		}
		if s.Algorithm != "" {
			return s, s3err.InvalidRequest.With("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
		}
		plain, count, dash := strings.Cut(v, "-")
		if n, err := strconv.Atoi(count); dash && (err != nil || n < 1) || !checksum.Valid(a, plain) {
			return s, s3err.InvalidRequest.With("Value for %s header is invalid.", checksum.Header(a))
		}
		s.Algorithm, s.Value = a, v
	}
	return s, nil
}
