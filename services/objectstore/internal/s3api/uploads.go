package s3api

import (
	"encoding/xml"
	"errors"
	"strconv"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

type partXML struct {
	PartNumber   int
	LastModified string
	ETag         string
	Size         int64
	checksumXML
}

func (c *call) listParts() error {
	if err := c.authorize("ListMultipartUploadParts", c.bucket, c.key, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	limit, err := c.limit("max-parts")
	if err != nil {
		return err
	}
	after, err := c.number("part-number-marker", 0)
	if err != nil {
		return err
	}
	var out struct {
		XMLName              xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
		Bucket, Key          string
		UploadId             string
		Initiator, Owner     owner
		StorageClass         string
		PartNumberMarker     int
		NextPartNumberMarker int
		MaxParts             int
		IsTruncated          bool
		ChecksumAlgorithm    string
		ChecksumType         string
		Part                 []partXML `xml:",omitempty"`
	}
	out.Bucket, out.Key, out.UploadId, out.StorageClass = c.bucket, c.key, id, "STANDARD"
	out.Initiator, out.Owner = owner{c.user.Name, c.user.Name}, owner{c.user.Name, c.user.Name}
	out.PartNumberMarker, out.MaxParts = after, limit
	// AWS says null, in so many letters, where the upload has none.
	out.ChecksumAlgorithm, out.ChecksumType = orNull(up.Checksum.Algorithm), orNull(up.Checksum.Type)
	if limit > 0 {
		parts, more, err := c.Engine.Parts(c.bucket, c.key, id, after, limit)
		if errors.Is(err, engine.ErrNoUpload) {
			return noSuchUpload(id)
		}
		if err != nil {
			return err
		}
		out.IsTruncated = more
		for _, p := range parts {
			sum := checksumOf(p.Checksum)
			sum.ChecksumType = ""
			out.Part = append(out.Part, partXML{p.Number, stamp(p.Modified), `"` + p.ETag + `"`, p.Size, sum})
			out.NextPartNumberMarker = p.Number
		}
	}
	return c.writeXML(out)
}

// limit reads a parameter that bounds a page.
func (c *call) limit(name string) (int, error) {
	n, err := c.number(name, maxListKeys)
	return min(n, maxListKeys), err
}

// number reads a parameter that is a number, not below zero.
func (c *call) number(name string, absent int) (int, error) {
	text := c.query.get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	switch {
	case err != nil:
		return 0, s3err.Argument(name, text, "Provided %s not an integer or within integer range", text)
	case n < 0:
		return 0, s3err.Argument(name, text, "Argument %s must be an integer between 0 and 2147483647", text)
	}
	return int(n), nil
}

type uploadXML struct {
	Key, UploadId     string
	Initiator, Owner  owner
	StorageClass      string
	Initiated         string
	ChecksumAlgorithm string `xml:",omitempty"`
	ChecksumType      string `xml:",omitempty"`
}

type prefixXML struct{ Prefix string }

func (c *call) listUploads() error {
	if err := c.authorizeBucket("ListBucketMultipartUploads"); err != nil {
		return err
	}
	limit, err := c.limit("max-uploads")
	if err != nil {
		return err
	}
	q := engine.UploadQuery{Prefix: c.query.get("prefix"), Delimiter: c.query.get("delimiter"),
		AfterKey: c.query.get("key-marker"), AfterID: c.query.get("upload-id-marker"), Max: limit}
	if q.AfterKey == "" {
		q.AfterID = "" // AWS ignores it without a key
	}
	if q.AfterID != "" && !engine.ValidUploadID(q.AfterID) {
		return s3err.Argument("upload-id-marker", q.AfterID, "Invalid uploadId marker")
	}
	name := func(s string) string { return s }
	encoding := c.query.get("encoding-type")
	switch encoding {
	case "":
	case "url":
		name = func(s string) string { return string(appendURL(nil, s)) }
	default:
		return s3err.InvalidArgument.With("Invalid Encoding Method specified in Request")
	}
	page, err := c.Engine.Uploads(c.bucket, q)
	if err != nil {
		return err
	}
	var out struct {
		XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListMultipartUploadsResult"`
		Bucket             string
		KeyMarker          string
		UploadIdMarker     string
		NextKeyMarker      string `xml:",omitempty"`
		NextUploadIdMarker string `xml:",omitempty"`
		Prefix             string
		Delimiter          string `xml:",omitempty"`
		EncodingType       string `xml:",omitempty"`
		MaxUploads         int
		IsTruncated        bool
		Upload             []uploadXML `xml:",omitempty"`
		CommonPrefixes     []prefixXML `xml:",omitempty"`
	}
	out.Bucket, out.KeyMarker, out.UploadIdMarker, out.EncodingType = c.bucket, name(q.AfterKey), q.AfterID, encoding
	out.Prefix, out.Delimiter, out.MaxUploads, out.IsTruncated = name(q.Prefix), name(q.Delimiter), limit, page.Truncated
	if page.Truncated {
		out.NextKeyMarker, out.NextUploadIdMarker = name(page.NextKey), page.NextID
	}
	me := owner{c.user.Name, c.user.Name}
	for _, u := range page.Uploads {
		out.Upload = append(out.Upload, uploadXML{name(u.Key), u.ID, me, me, "STANDARD", stamp(u.Initiated), u.Checksum.Algorithm, u.Checksum.Type})
	}
	for _, p := range page.Prefixes {
		out.CommonPrefixes = append(out.CommonPrefixes, prefixXML{name(p)})
	}
	return c.writeXML(out)
}
