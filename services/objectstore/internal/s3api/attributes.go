package s3api

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

var attributeNames = []string{"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}

// attributesOf reads x-amz-object-attributes.
func attributesOf(h http.Header) ([]string, error) {
	var want []string
	for _, v := range h["X-Amz-Object-Attributes"] {
		for a := range strings.SplitSeq(v, ",") {
			if a = strings.TrimSpace(a); a == "" {
				continue
			}
			if !slices.Contains(attributeNames, a) {
				return nil, s3err.Argument("x-amz-object-attributes", a, "Invalid attribute name specified.")
			}
			want = append(want, a)
		}
	}
	if want == nil {
		return nil, s3err.InvalidRequest.With("The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty")
	}
	return want, nil
}

// getAttributes serves GetObjectAttributes.
func (c *call) getAttributes() error {
	// As on AWS both are needed: who may not read an object does not get its size and checksum either.
	version, err := c.version()
	if err != nil {
		return err
	}
	for _, action := range [...]string{"GetObject", "GetObjectAttributes"} {
		if err := c.authorizeVersion(action, c.bucket, c.key, version, nil); err != nil {
			return err
		}
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	want, err := attributesOf(c.r.Header)
	if err != nil {
		return err
	}
	o, err := c.Engine.StatVersion(c.bucket, c.key, version)
	if err != nil {
		return c.absent(version, err)
	}
	c.setVersion(c.bucket, versionHeader, o.Version)
	if err := readConditionsOf(c.r.Header).check(o.ETag, o.Modified); err != nil {
		return err
	}
	var out struct {
		XMLName      xml.Name     `xml:"http://s3.amazonaws.com/doc/2006-03-01/ GetObjectAttributesResponse"`
		ETag         string       `xml:",omitempty"`
		Checksum     *checksumXML `xml:",omitempty"`
		ObjectParts  *objectParts `xml:",omitempty"`
		StorageClass string       `xml:",omitempty"`
		ObjectSize   *int64       `xml:",omitempty"`
	}
	for _, a := range want {
		switch a {
		case "ETag":
			out.ETag = o.ETag
		case "Checksum":
			if o.Checksum.Algorithm != "" {
				x := checksumOf(o.Checksum)
				out.Checksum = &x
			}
		case "ObjectParts":
			out.ObjectParts = partsOf(&o)
		case "StorageClass":
			out.StorageClass = "STANDARD"
		case "ObjectSize":
			out.ObjectSize = &o.Size
		}
	}
	c.setHeader("Last-Modified", o.Modified.UTC().Format(http.TimeFormat))
	return c.writeXML(out)
}

// checksumXML has the elements of a checksum.
type checksumXML struct {
	ChecksumCRC32     string `xml:",omitempty"`
	ChecksumCRC32C    string `xml:",omitempty"`
	ChecksumCRC64NVME string `xml:",omitempty"`
	ChecksumSHA1      string `xml:",omitempty"`
	ChecksumMD5       string `xml:",omitempty"`
	ChecksumSHA256    string `xml:",omitempty"`
	ChecksumSHA512    string `xml:",omitempty"`
	ChecksumXXHASH128 string `xml:",omitempty"`
	ChecksumXXHASH3   string `xml:",omitempty"`
	ChecksumXXHASH64  string `xml:",omitempty"`
	ChecksumType      string `xml:",omitempty"`
}

func checksumOf(s engine.Checksum) checksumXML {
	x := checksumXML{ChecksumType: s.Type}
	if p := x.field(s.Algorithm); p != nil {
		*p = s.Value
	}
	return x
}

// field is the element of an algorithm; nil for an unknown one.
func (x *checksumXML) field(algorithm string) *string {
	switch algorithm {
	case "CRC32":
		return &x.ChecksumCRC32
	case "CRC32C":
		return &x.ChecksumCRC32C
	case "CRC64NVME":
		return &x.ChecksumCRC64NVME
	case "SHA1":
		return &x.ChecksumSHA1
	case "SHA256":
		return &x.ChecksumSHA256
	case "MD5":
		return &x.ChecksumMD5
	case "SHA512":
		return &x.ChecksumSHA512
	case "XXHASH128":
		return &x.ChecksumXXHASH128
	case "XXHASH3":
		return &x.ChecksumXXHASH3
	case "XXHASH64":
		return &x.ChecksumXXHASH64
	}
	return nil
}

type objectParts struct {
	PartsCount int
}

// partsOf says how many parts an object was made of; nil for one that was not.
func partsOf(o *engine.Object) *objectParts {
	if o.PartSizes == nil {
		return nil
	}
	return &objectParts{len(o.PartSizes)}
}
