package s3api

import (
	"crypto/md5"
	"encoding/hex"
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
	o, err := c.completeParts(id, in.Part, whole, cond)
	if err != nil {
		// Another complete of this upload may have ended it at any step: then its parts were gone, or it was.
		if _, gone := c.Engine.Upload(c.bucket, c.key, id); errors.Is(gone, engine.ErrNoUpload) {
			return c.completedBefore(id, in.Part)
		}
		return err
	}
	return c.writeCompleted(o)
}

// completeParts makes the object of the parts that a request names.
func (c *call) completeParts(id string, named []completedPart, whole engine.Checksum, cond engine.Cond) (engine.Object, error) {
	up, err := c.Engine.Upload(c.bucket, c.key, id)
	if err != nil {
		return up, err
	}
	if whole.Type != "" && whole.Type != up.Checksum.Type {
		return up, s3err.InvalidRequest.With("The upload was created using the %s checksum mode. The complete request must use the same checksum mode.", orNull(up.Checksum.Type))
	}
	parts, err := c.chooseParts(id, up, named)
	if err != nil {
		return up, err
	}
	o := up
	if err := c.sumUp(&o, parts, whole); err != nil {
		return o, err
	}
	o.Modified = c.Now()
	if err := c.defaultLock(&o); err != nil {
		return o, err
	}
	o, err = c.Engine.Complete(c.r.Context(), o, id, parts, cond)
	switch {
	case errors.Is(err, engine.ErrNoUpload):
		return o, noSuchUpload(id)
	case errors.Is(err, engine.ErrPartChanged):
		return o, s3err.InvalidPart.Detail("UploadId", id)
	case errors.Is(err, engine.ErrTooLarge):
		return o, s3err.EntityTooLarge
	case err != nil:
		return o, c.unwrapCondition(cond, err)
	}
	return o, nil
}

// completedBefore answers a complete of an upload that is gone: it is repeated where the upload has made an object of the
// same parts, as by who did not get the answer. Whoever names other parts must not believe that the object has them.
func (c *call) completedBefore(id string, named []completedPart) error {
	o, err := c.Engine.CompletedBy(c.bucket, c.key, id)
	switch {
	case errors.Is(err, engine.ErrNotFound), err == nil && o.ETag != namedETag(named):
		return noSuchUpload(id)
	case err != nil:
		return err
	}
	return c.writeCompleted(o)
}

// namedETag gives the ETag of an object of the parts that a request names; empty where there can be none.
func namedETag(named []completedPart) string {
	if checkOrder(named) != nil {
		return ""
	}
	tag := md5.New()
	for _, n := range named {
		raw, err := hex.DecodeString(unquote(*n.ETag))
		if err != nil {
			return ""
		}
		tag.Write(raw)
	}
	return partsETag(tag.Sum(nil), len(named))
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
