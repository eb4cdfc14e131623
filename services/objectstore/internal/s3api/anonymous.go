package s3api

import (
	"slices"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// nobody is who sends an anonymous request: only what a bucket's policy or its ACL allows everybody is allowed.
var nobody = User{Policy: &policy.Document{}}

// forUsersOnly are the operations that no policy opens to everybody, as on AWS: what they make would have no owner, or they
// decide who may do what.
var forUsersOnly = map[string]error{
	"CreateBucket":                  s3err.AnonymousRequest,
	"PutBucketAcl":                  s3err.AnonymousRequest,
	"PutObjectAcl":                  s3err.AnonymousRequest,
	"PutPublicAccessBlock":          s3err.AccessDenied,
	"DeletePublicAccessBlock":       s3err.AccessDenied,
	"CreateMultipartUpload":         s3err.AnonymousUpload,
	"CopyObject":                    s3err.AnonymousCopy,
	"PutBucketOwnershipControls":    anonymousOwnership("Put"),
	"DeleteBucketOwnershipControls": anonymousOwnership("Put"),
	"GetBucketOwnershipControls":    anonymousOwnership("Get"),
}

func anonymousOwnership(verb string) error {
	return s3err.AccessDenied.With("s3:%sBucketOwnershipControls does not support Anonymous requests!", verb)
}

// authenticate finds out who sends the request.
func (c *call) authenticate(op operation) (err error) {
	if !sigv4.IsAnonymous(c.r) {
		if c.auth, err = c.Server.auth.Verify(c.r); err != nil {
			return err
		}
		return c.identify()
	}
	if c.auth, err = sigv4.Anonymous(c.r); err != nil {
		return err
	}
	c.user, c.anonymous = nobody, true
	if err := forUsersOnly[op.name]; err != nil {
		return err
	}
	if op.name == getObject.name || op.name == headObject.name {
		if slices.ContainsFunc(responseParams, c.query.has) {
			return s3err.AnonymousOverrides
		}
	}
	return nil
}

// identify finds the user of a verified signature. One that was removed a moment ago is none, and not one without a policy.
func (c *call) identify() error {
	u, ok := c.Users()[c.auth.AccessKey]
	if !ok {
		return s3err.InvalidAccessKeyID.Detail("AWSAccessKeyId", c.auth.AccessKey)
	}
	c.user = u
	return nil
}
