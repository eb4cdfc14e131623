package s3api

import (
	"context"
	"encoding/xml"
	"errors"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

const (
	versionHeader = "X-Amz-Version-Id"
	markerHeader  = "X-Amz-Delete-Marker"
)

type versioningConfiguration struct {
	XMLName   xml.Name `xml:"VersioningConfiguration"`
	Status    string   `xml:",omitempty"`
	MfaDelete string   `xml:",omitempty"`
}

func (c *call) getVersioning() error {
	if err := c.authorizeBucket("GetBucketVersioning"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	return c.writeXML(versioningConfiguration{XMLName: xml.Name{Space: xmlns, Local: "VersioningConfiguration"}, Status: string(b.Versioning())})
}

func (c *call) putVersioning() error {
	if err := c.authorizeBucket("PutBucketVersioning"); err != nil {
		return err
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	var in versioningConfiguration
	status := engine.Versioning("")
	if s3xml.Decode(body, &in) == nil {
		status = engine.Versioning(in.Status)
	}
	switch {
	case in.MfaDelete == "Enabled":
		return s3err.NotImplemented.With("MFA delete is not implemented.")
	case status != engine.Enabled && status != engine.Suspended, in.MfaDelete != "" && in.MfaDelete != "Disabled":
		return s3err.MalformedXML
	}
	if err := c.Engine.SetVersioning(context.WithoutCancel(c.r.Context()), c.bucket, status); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// versioned reports whether versioning is on in a bucket, or was.
func (c *call) versioned(bucket string) bool {
	b, err := c.Engine.Bucket(bucket)
	return err == nil && b.Versioning() != engine.Unversioned
}

// checkVersion checks the form of a version's id. The ids of other stores are well-formed, and are of no version here.
func checkVersion(id string) error {
	if id == "" {
		return s3err.Argument("versionId", id, "Version id cannot be the empty string")
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return s3err.Argument("versionId", id, "Invalid version id specified")
		}
	}
	return nil
}

// version gives the id that a request names; empty: it names none, and means the current version.
func (c *call) version() (string, error) {
	if !c.query.has("versionId") {
		return "", nil
	}
	id := c.query.get("versionId")
	return id, checkVersion(id)
}

// onVersion gives the action of a request that names a version.
func onVersion(action string) string {
	switch action {
	case "GetObjectAttributes":
		return "GetObjectVersionAttributes"
	case "GetObjectAcl", "PutObjectAcl":
		return action[:len("GetObject")] + "VersionAcl"
	case "GetObjectTagging", "PutObjectTagging":
		return action[:len("GetObject")] + "VersionTagging"
	case "DeleteObjectTagging":
		return "DeleteObjectVersionTagging"
	}
	return action + "Version" // GetObject, DeleteObject
}

// authorizeVersion decides whether the caller may do action on a version of a key; an empty one is the current. In a
// bucket without versions the null version is the object, and who may not touch that may not do so by naming it.
func (c *call) authorizeVersion(action, bucket, key, version string, ctx []policy.Value) error {
	if version == "" || !c.versioned(bucket) {
		if err := c.authorizeOn(action, bucket, key, version, ctx); err != nil || version == "" {
			return err
		}
	}
	return c.authorizeOn(onVersion(action), bucket, key, version, ctx)
}

// setVersion says in the answer which version it is about.
func (c *call) setVersion(bucket, header, version string) {
	if version == "" && c.versioned(bucket) {
		version = engine.NullVersion
	}
	if version != "" {
		c.setHeader(header, version)
	}
}

// setMade names the version that a write made. Null versions are not named, as by AWS.
func (c *call) setMade(version string) {
	if version != "" {
		c.setHeader(versionHeader, version)
	}
}

func (c *call) setMarker(m *engine.MarkerError) {
	c.setHeader(markerHeader, "true")
	c.setVersion(c.bucket, versionHeader, m.Version)
}

// absent is the answer for an object that is not there, or is a delete marker. Who may not list the bucket is not told
// whether a key exists, as on AWS. The decision has no s3:prefix, as there, so that a policy that allows only listings
// under prefixes has to allow this on its own.
func (c *call) absent(version string, err error) error {
	var marker *engine.MarkerError
	switch {
	case errors.As(err, &marker):
		c.setMarker(marker)
		c.setHeader("Last-Modified", marker.Modified.UTC().Format(http.TimeFormat))
		c.setHeader("Allow", http.MethodDelete)
		return s3err.MethodNotAllowed.Detail("Method", c.r.Method).Detail("ResourceType", "DeleteMarker")
	case !errors.Is(err, engine.ErrNotFound):
		return err
	}
	if denied := c.authorize("ListBucket", c.bucket, "", nil); denied != nil {
		return denied
	}
	if version != "" {
		return noSuchVersion(c.key, version)
	}
	if c.versioned(c.bucket) {
		m, merr := c.Engine.LatestMarker(c.bucket, c.key)
		if merr != nil {
			return merr
		}
		if m != nil {
			c.setMarker(m)
		}
	}
	return err
}

func noSuchVersion(key, version string) error {
	return s3err.NoSuchVersion.Detail("Key", key).Detail("VersionId", version)
}
