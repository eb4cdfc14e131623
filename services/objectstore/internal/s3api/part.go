package s3api

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func (c *call) partNumber() (int, error) {
	text := c.query.get("partNumber")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > engine.MaxParts {
		return 0, s3err.Argument("partNumber", text, "Part number must be an integer between 1 and %d, inclusive.", engine.MaxParts)
	}
	return n, nil
}

// writtenPart gives the number of the part that the request writes, once its sender may write it and the bucket is there.
func (c *call) writtenPart() (int, error) {
	if err := c.authorizeUpload(false); err != nil {
		return 0, err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return 0, err
	}
	return c.partNumber()
}

func (c *call) uploadPart() error {
	n, err := c.writtenPart()
	if err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	d, err := c.readExpectations()
	if err != nil {
		return err
	}
	if err := d.ofUpload(up.Checksum); err != nil {
		return err
	}
	if err := c.Engine.CheckPartQuota(c.bucket, id, n, d.decodedLen); err != nil {
		return err
	}
	u, err := c.receiveWithin(d, -1) // the parts of an object are files
	if err != nil {
		return err
	}
	defer u.release()
	p, err := c.storePart(id, n, u)
	if err != nil {
		return err
	}
	c.setHeader("ETag", `"`+p.ETag+`"`)
	c.setEncryption(c.Engine.Seals())
	sum := p.Checksum
	if sum.Algorithm == "" {
		sum = defaultSum(p.CRC64)
	}
	if sum.Algorithm != "" {
		c.w.Header().Set(checksum.Header(sum.Algorithm), sum.Value)
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// defaultSum gives the default checksum that is kept beside that of a part; nil: none.
func defaultSum(crc64 []byte) engine.Checksum {
	if crc64 == nil {
		return engine.Checksum{}
	}
	return engine.Checksum{Algorithm: checksum.Default, Value: base64.StdEncoding.EncodeToString(crc64)}
}

// ofUpload gives the digest of a part the algorithm of its upload. The object of an upload without one gets the default
// checksum, so that of the parts is kept, whatever else their clients give.
func (d *digest) ofUpload(want engine.Checksum) error {
	switch {
	case want.Algorithm == "":
		d.both = d.algorithm != checksum.Default
		return nil
	case want.Algorithm == d.algorithm:
		return nil
	case d.algorithm == "" && want.Type == fullObject:
		d.algorithm, d.computed = want.Algorithm, true
		return nil
	}
	got := d.algorithm
	if got == "" {
		got = "null"
	}
	return s3err.InvalidRequest.With("Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s", want.Algorithm, got)
}

// storePart commits a body as a part.
func (c *call) storePart(id string, n int, u *upload) (engine.Part, error) {
	p := engine.Part{Number: n, Object: engine.Object{Size: u.size, ETag: u.etag, Checksum: u.sum, CRC64: u.crc64, Modified: c.Now()}}
	x, err := u.blob.Finish()
	if err != nil {
		return p, err
	}
	p.Extents = []engine.Extent{x}
	p, err = c.Engine.PutPart(c.r.Context(), c.bucket, c.key, id, p)
	if err == nil || errors.Is(err, engine.ErrPoisoned) || errors.Is(err, engine.ErrClosed) {
		u.blob = nil // the record names the file, or may name it
	}
	if errors.Is(err, engine.ErrNoUpload) {
		return p, noSuchUpload(id)
	}
	return p, err
}
