package s3api

import (
	"encoding/hex"
	"encoding/xml"
	"net/url"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// copySource reads x-amz-copy-source: /bucket/key, percent-encoded.
func copySource(v string) (bucket, key string, err error) {
	v, versions, _ := strings.Cut(v, "?")
	if versions != "" {
		return "", "", s3err.NotImplemented.With("Versions are not implemented.")
	}
	p, uerr := url.PathUnescape(v)
	bucket, key, ok := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	if uerr != nil || !ok || !validBucket(bucket) {
		return "", "", s3err.InvalidArgument.With("Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
	}
	return bucket, key, validKey(key)
}

func (c *call) copyObject() error {
	h := c.r.Header
	o, cond, err := c.newObject()
	if err != nil {
		return err
	}
	fromBucket, fromKey, err := copySource(h.Get("X-Amz-Copy-Source"))
	if err != nil {
		return err
	}
	if err := c.authorize("GetObject", fromBucket, fromKey, nil); err != nil {
		return err
	}
	if err := c.checkConditionEarly(cond); err != nil {
		return err
	}
	src, err := c.Engine.Get(fromBucket, fromKey)
	if err != nil {
		return err
	}
	defer src.Close()
	from := src.Object
	if err := sourceConditionsOf(h).check(from.ETag, from.Modified); err != nil {
		return s3err.PreconditionFailed // 304 makes no sense for a copy; AWS answers 412
	}
	if from.Size > c.MaxObjectBytes {
		return s3err.EntityTooLarge
	}
	replace, err := directive(h.Get("X-Amz-Metadata-Directive"))
	if err != nil {
		return err
	}
	replaceTags, err := directive(h.Get("X-Amz-Tagging-Directive"))
	if err != nil {
		return err
	}
	if replace {
		if err := readStoredHeaders(h, &o); err != nil {
			return err
		}
	} else if o.Headers, o.User = from.Headers, from.User; fromBucket == c.bucket && fromKey == c.key && !replaceTags {
		return s3err.InvalidRequest.With("This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata.")
	}
	if !replaceTags {
		o.Tags = from.Tags
	}
	u, err := c.copyBody(src, h.Get("X-Amz-Checksum-Algorithm"))
	if err != nil {
		return err
	}
	defer u.release()
	if o, err = c.store(o, u, cond); err != nil {
		return err
	}
	return c.writeCopyResult(o)
}

func (c *call) writeCopyResult(o engine.Object) error {
	out := struct {
		XMLName           xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyObjectResult"`
		ETag              string
		LastModified      string
		ChecksumType      string `xml:",omitempty"`
		ChecksumCRC32     string `xml:",omitempty"`
		ChecksumCRC32C    string `xml:",omitempty"`
		ChecksumCRC64NVME string `xml:",omitempty"`
		ChecksumSHA1      string `xml:",omitempty"`
		ChecksumSHA256    string `xml:",omitempty"`
	}{ETag: `"` + o.ETag + `"`, LastModified: stamp(o.Modified), ChecksumType: o.Checksum.Type}
	switch o.Checksum.Algorithm {
	case "CRC32":
		out.ChecksumCRC32 = o.Checksum.Value
	case "CRC32C":
		out.ChecksumCRC32C = o.Checksum.Value
	case "CRC64NVME":
		out.ChecksumCRC64NVME = o.Checksum.Value
	case "SHA1":
		out.ChecksumSHA1 = o.Checksum.Value
	case "SHA256":
		out.ChecksumSHA256 = o.Checksum.Value
	}
	return c.writeXML(out)
}

// directive reads COPY (false) or REPLACE (true).
func directive(v string) (bool, error) {
	switch v {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	}
	return false, s3err.InvalidArgument.With("Unknown directive %q.", v)
}

// copyBody copies a stored body and hashes it like an upload: the copy has its own bytes, and a
// checksum of the algorithm that was asked for.
func (c *call) copyBody(src *engine.Handle, algorithm string) (*upload, error) {
	from := src.Object
	if algorithm == "" {
		algorithm = from.Checksum.Algorithm
	}
	if algorithm != "" && checksum.New(algorithm) == nil {
		return nil, s3err.InvalidRequest.With("Checksum algorithm provided is unsupported.")
	}
	d := &digest{decodedLen: from.Size, algorithm: algorithm}
	pr := &source{Reader: &blockReader{h: src, size: from.Size}}
	u := &upload{size: from.Size}
	var err error
	if from.Size <= c.Engine.InlineBytes() {
		err = c.receiveInline(u, d, pr)
	} else {
		err = c.receiveFile(u, d, pr)
	}
	if err != nil {
		u.release()
		return nil, err
	}
	if algorithm != "" {
		u.sum = engine.Checksum{Algorithm: algorithm, Type: "FULL_OBJECT", Value: d.checksumText()}
	}
	u.etag = hex.EncodeToString(d.gotMD5[:])
	return u, nil
}
