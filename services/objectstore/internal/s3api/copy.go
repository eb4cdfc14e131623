package s3api

import (
	"encoding/hex"
	"encoding/xml"
	"errors"
	"net/url"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// copied is what a copy copies; an empty version is the current one.
type copied struct{ bucket, key, version string }

const versionOfSource = "?versionId="

// copySource reads x-amz-copy-source: /bucket/key?versionId=id, percent-encoded.
func copySource(v string) (s copied, err error) {
	if _, query, found := strings.Cut(v, "?"); found && !strings.HasPrefix(query, versionOfSource[1:]) {
		return s, s3err.NotImplemented.With("Parameters of x-amz-copy-source but versionId are not implemented.")
	}
	p, uerr := url.PathUnescape(v)
	// The question mark too may have come encoded.
	if i := strings.LastIndex(p, versionOfSource); i >= 0 {
		p, s.version = p[:i], p[i+len(versionOfSource):]
		if err := checkVersion(s.version); err != nil {
			return s, err
		}
	}
	var ok bool
	s.bucket, s.key, ok = strings.Cut(strings.TrimPrefix(p, "/"), "/")
	switch {
	case uerr != nil:
		return s, s3err.Argument("x-amz-copy-source", v, "Invalid copy source encoding")
	case !validBucket(s.bucket):
		return s, s3err.Argument("x-amz-copy-source", v, "Invalid copy source bucket name")
	case !ok || s.key == "":
		return s, s3err.Argument("x-amz-copy-source", s.key, "Invalid copy source object key")
	}
	return s, validKey(s.key)
}

// openSource opens what is copied, and names its version in the answer.
func (c *call) openSource(s copied) (*engine.Handle, error) {
	h, err := c.Engine.GetVersion(s.bucket, s.key, s.version)
	var marker *engine.MarkerError
	switch {
	case errors.As(err, &marker):
		return nil, s3err.InvalidRequest.With("The source of a copy request may not specifically refer to a delete marker by version id.")
	case errors.Is(err, engine.ErrNotFound) && s.version != "":
		return nil, noSuchVersion(s.key, s.version)
	case err != nil:
		return nil, err
	}
	c.setVersion(s.bucket, "X-Amz-Copy-Source-Version-Id", h.Object.Version)
	return h, nil
}

func (c *call) copyObject() error {
	h := c.r.Header
	o, cond, err := c.newObject()
	if err != nil {
		return err
	}
	source, err := copySource(h.Get("X-Amz-Copy-Source"))
	if err != nil {
		return err
	}
	algorithm := h.Get("X-Amz-Checksum-Algorithm")
	if algorithm != "" && checksum.New(algorithm) == nil {
		return errNoAlgorithm
	}
	if err := c.authorizeVersion("GetObject", source.bucket, source.key, source.version, nil); err != nil {
		return err
	}
	if err := c.checkConditionEarly(cond); err != nil {
		return err
	}
	src, err := c.openSource(source)
	if err != nil {
		return err
	}
	defer src.Close()
	from := src.Object
	if err := sourceConditionsOf(h).checkSource(from); err != nil {
		return err
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
	if !replace && !replaceTags && source == (copied{bucket: c.bucket, key: c.key}) && h.Get(redirectHeader) == "" {
		return s3err.InvalidRequest.With("This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.")
	}
	if !replaceTags && len(from.Tags) > 0 {
		// Both are needed as on AWS: conditions of policies go by tags.
		if err := c.authorizeVersion("GetObjectTagging", source.bucket, source.key, source.version, nil); err != nil {
			return err
		}
		if err := c.authorize("PutObjectTagging", c.bucket, c.key, nil); err != nil {
			return err
		}
	}
	if !replaceTags {
		o.Tags = from.Tags
	}
	if err := c.Engine.CheckQuota(c.bucket, c.key, from.Size); err != nil {
		return err
	}
	u, err := c.copyBody(src, algorithm)
	if err != nil {
		return err
	}
	defer u.release()
	if o, err = c.store(o, u, cond); err != nil {
		return err
	}
	c.setMade(o.Version)
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
	c.setEncryption(o.Sealed())
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
	if algorithm == "" {
		algorithm = checksum.Default
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
	u.sum = engine.Checksum{Algorithm: algorithm, Type: fullObject, Value: d.checksumText()}
	u.etag = hex.EncodeToString(d.gotMD5[:])
	return u, nil
}
