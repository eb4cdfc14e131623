package s3api

import (
	"encoding/hex"
	"encoding/xml"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

func (c *call) uploadPartCopy() error {
	n, err := c.writtenPart()
	if err != nil {
		return err
	}
	from, err := copySource(c.r.Header.Get("X-Amz-Copy-Source"))
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("GetObject", from.bucket, from.key, from.version, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	src, err := c.openSource(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := sourceConditionsOf(c.r.Header).checkSource(src.Object); err != nil {
		return err
	}
	off, size, err := copyRange(c.r.Header.Get("X-Amz-Copy-Source-Range"), src.Object.Size)
	if err != nil {
		return err
	}
	if size > c.MaxObjectBytes {
		return s3err.InvalidRequest.With("The specified copy source is larger than the maximum allowable size for a copy source: %d", c.MaxObjectBytes)
	}
	if err := c.Engine.CheckPartQuota(c.bucket, id, n, size); err != nil {
		return err
	}
	d := &digest{decodedLen: size, algorithm: up.Checksum.Algorithm, both: up.Checksum.Algorithm == ""}
	u := &upload{size: size}
	defer func() { u.release() }()
	if err := c.receiveFile(u, d, &source{Reader: &blockReader{h: src, off: off, size: off + size}}); err != nil {
		return err
	}
	u.etag, u.crc64 = hex.EncodeToString(d.gotMD5[:]), d.gotCRC64
	if d.algorithm != "" {
		u.sum = engine.Checksum{Algorithm: d.algorithm, Type: up.Checksum.Type, Value: d.checksumText()}
	}
	p, err := c.storePart(id, n, u)
	if err != nil {
		return err
	}
	c.setEncryption(c.Engine.Seals())
	sum := checksumOf(p.Checksum)
	sum.ChecksumType = ""
	return c.writeXML(struct {
		XMLName      xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyPartResult"`
		ETag         string
		LastModified string
		checksumXML
	}{ETag: `"` + p.ETag + `"`, LastModified: stamp(p.Modified), checksumXML: sum})
}

// copyRange reads x-amz-copy-source-range, bytes=first-last; without one it is all of the source.
func copyRange(text string, size int64) (off, n int64, err error) {
	if text == "" {
		return 0, size, nil
	}
	malformed := s3err.Argument("x-amz-copy-source-range", text, "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy")
	spec, ok := strings.CutPrefix(text, "bytes=")
	a, b, dash := strings.Cut(spec, "-")
	first, aerr := strconv.ParseUint(a, 10, 62)
	last, berr := strconv.ParseUint(b, 10, 62)
	if !ok || !dash || aerr != nil || berr != nil || first > last {
		return 0, 0, malformed
	}
	if int64(last) >= size {
		return 0, 0, s3err.Argument("x-amz-copy-source-range", text, "Range specified is not valid for source object of size: %d", size)
	}
	return int64(first), int64(last-first) + 1, nil
}
