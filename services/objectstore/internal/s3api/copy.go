package s3api

import (
	"encoding/hex"
	"encoding/xml"
	"net/url"
	"slices"
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
	switch {
	case uerr != nil:
		return "", "", s3err.Argument("x-amz-copy-source", v, "Invalid copy source encoding")
	case !validBucket(bucket):
		return "", "", s3err.Argument("x-amz-copy-source", v, "Invalid copy source bucket name")
	case !ok || key == "":
		return "", "", s3err.Argument("x-amz-copy-source", key, "Invalid copy source object key")
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
	algorithm := h.Get("X-Amz-Checksum-Algorithm")
	if algorithm != "" && checksum.New(algorithm) == nil {
		return errNoAlgorithm
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
	replace, err := directive("metadata", h.Get("X-Amz-Metadata-Directive"))
	if err != nil {
		return err
	}
	replaceTags, err := directive("tagging", h.Get("X-Amz-Tagging-Directive"))
	if err != nil {
		return err
	}
	// Read in either case: what AWS would refuse is refused, and the redirect is never copied.
	if err := readStoredHeaders(h, &o); err != nil {
		return err
	}
	if !replace {
		given := o
		o.Headers, o.User = withRedirectOf(&given, from.Headers), from.User
	}
	if !replace && !replaceTags && fromBucket == c.bucket && fromKey == c.key && h.Get(redirectHeader) == "" {
		return s3err.InvalidRequest.With("This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.")
	}
	if !replaceTags {
		o.Tags = from.Tags
	}
	u, err := c.copyBody(src, algorithm)
	if err != nil {
		return err
	}
	defer u.release()
	if o, err = c.store(o, u, cond); err != nil {
		return err
	}
	return c.writeCopyResult(o)
}

// errNoAlgorithm answers a checksum algorithm that does not exist.
var errNoAlgorithm = s3err.InvalidRequest.With("Checksum algorithm provided is unsupported. Please try again with any of the valid types: [%s]", strings.Join(checksum.Algorithms, ", "))

// withRedirectOf gives the headers of a copy: those of its source, but the redirect of the request.
func withRedirectOf(given *engine.Object, source []engine.Pair) []engine.Pair {
	isRedirect := func(p engine.Pair) bool { return strings.EqualFold(p.Name, redirectHeader) }
	list := slices.DeleteFunc(slices.Clone(source), isRedirect)
	if i := slices.IndexFunc(given.Headers, isRedirect); i >= 0 {
		list = append(list, given.Headers[i])
	}
	return list
}

func (c *call) writeCopyResult(o engine.Object) error {
	out := struct {
		XMLName      xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyObjectResult"`
		ETag         string
		LastModified string
		checksumXML
	}{ETag: `"` + o.ETag + `"`, LastModified: stamp(o.Modified), checksumXML: checksumOf(o.Checksum)}
	return c.writeXML(out)
}

// directive reads COPY (false) or REPLACE (true).
func directive(what, v string) (bool, error) {
	switch v {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	}
	return false, s3err.Argument("x-amz-"+what+"-directive", v, "Unknown %s directive.", what)
}

// copyBody copies a stored body and hashes it like an upload: the copy has its own bytes, and a
// checksum of the algorithm that was asked for.
func (c *call) copyBody(src *engine.Handle, algorithm string) (*upload, error) {
	from := src.Object
	if algorithm == "" {
		algorithm = from.Checksum.Algorithm
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
