package s3api

import (
	"strconv"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// listVersions serves ListObjectVersions.
func (c *call) listVersions() error {
	lq, err := c.listQuery("ListBucketVersions")
	if err != nil {
		return err
	}
	q := engine.VersionQuery{Prefix: lq.Prefix, Delimiter: lq.Delimiter, Max: lq.Max, AfterKey: c.query.get("key-marker")}
	if c.query.has("version-id-marker") {
		id := c.query.get("version-id-marker")
		if q.AfterKey == "" {
			return s3err.Argument("version-id-marker", id, "A version-id marker cannot be specified without a key marker.")
		}
		if id != "" && id != engine.NullVersion && !engine.ValidVersionID(id) {
			return s3err.Argument("version-id-marker", id, "Invalid version id specified")
		}
		q.AfterVersion = id
	}
	page, err := c.Engine.Versions(c.bucket, q)
	if err != nil {
		return err
	}
	l := c.listing("ListVersionsResult", lq)
	l.name("Prefix", q.Prefix)
	l.name("KeyMarker", q.AfterKey)
	l.elem("VersionIdMarker", q.AfterVersion)
	if page.Truncated {
		l.name("NextKeyMarker", page.NextKey)
		if page.NextVersion != "" {
			l.elem("NextVersionIdMarker", page.NextVersion)
		}
	}
	l.elem("IsTruncated", strconv.FormatBool(page.Truncated))
	damaged := 0
	for i := range page.Versions {
		if c.addVersion(l, &page.Versions[i]); page.Versions[i].Damaged {
			damaged++
		}
	}
	l.prefixes(page.Prefixes)
	l.raw("</ListVersionsResult>")
	c.writeListing(l, damaged, page.Uncertain)
	return nil
}

func (c *call) addVersion(l *listing, v *engine.VersionBrief) {
	name := "Version"
	if v.Marker {
		name = "DeleteMarker"
	}
	l.raw("<" + name + ">")
	l.name("Key", v.Key)
	id := v.Version
	if id == "" {
		id = engine.NullVersion
	}
	l.elem("VersionId", id)
	l.elem("IsLatest", strconv.FormatBool(v.Latest))
	l.elem("LastModified", stamp(v.Modified))
	if !v.Marker {
		l.elem("ETag", `"`+v.ETag+`"`)
		if v.Checksum.Algorithm != "" {
			l.elem("ChecksumAlgorithm", v.Checksum.Algorithm)
			l.elem("ChecksumType", v.Checksum.Type)
		}
		l.elem("Size", strconv.FormatInt(v.Size, 10))
		l.raw("<StorageClass>STANDARD</StorageClass>")
	}
	l.raw("<Owner>")
	l.elem("ID", c.user.Name)
	l.elem("DisplayName", c.user.Name)
	l.raw("</Owner>")
	if v.Damaged {
		l.elem("Damaged", "true")
	}
	l.raw("</" + name + ">")
}
