package s3api

import (
	"net/http"
	"net/url"
	"slices"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// operation is a request that the store serves. A query parameter that it does not name would make
// it another operation of S3, so unknown parameters are refused, not ignored.
type operation struct {
	name   string
	params []string
	do     func(*call) error
}

type query url.Values

func parseQuery(raw string) (query, error) {
	if raw == "" {
		return nil, nil
	}
	v, err := url.ParseQuery(raw)
	if err != nil {
		return nil, s3err.InvalidURI
	}
	return query(v), nil
}

func (q query) has(name string) bool   { _, ok := q[name]; return ok }
func (q query) get(name string) string { return url.Values(q).Get(name) }

// checkParams refuses parameters that the operation does not know. SDKs add x-id, which only
// repeats the operation's name.
func (q query) checkParams(op operation) error {
	for name := range q {
		if name == "x-id" || slices.Contains(op.params, name) {
			continue
		}
		return s3err.NotImplemented.With("The parameter %q is not implemented for %s.", name, op.name)
	}
	return nil
}

var (
	responseParams = []string{"response-content-type", "response-content-language", "response-expires",
		"response-cache-control", "response-content-disposition", "response-content-encoding"}

	objectParams = append([]string{"partNumber", "versionId"}, responseParams...)

	listBuckets   = operation{"ListBuckets", []string{"max-buckets", "prefix", "continuation-token"}, (*call).listBuckets}
	createBucket  = operation{"CreateBucket", nil, (*call).createBucket}
	headBucket    = operation{"HeadBucket", nil, (*call).headBucket}
	deleteBucket  = operation{"DeleteBucket", nil, (*call).deleteBucket}
	location      = operation{"GetBucketLocation", []string{"location"}, (*call).bucketLocation}
	getVersioning = operation{"GetBucketVersioning", []string{"versioning"}, (*call).getVersioning}
	putVersioning = operation{"PutBucketVersioning", []string{"versioning"}, (*call).putVersioning}
	listVersions  = operation{"ListObjectVersions", []string{"versions", "prefix", "delimiter", "key-marker", "version-id-marker", "max-keys", "encoding-type"}, (*call).listVersions}
	getPolicy     = operation{"GetBucketPolicy", []string{"policy"}, (*call).getPolicy}
	putPolicy     = operation{"PutBucketPolicy", []string{"policy"}, (*call).putPolicy}
	deletePolicy  = operation{"DeleteBucketPolicy", []string{"policy"}, (*call).deletePolicy}
	listV1        = operation{"ListObjects", []string{"prefix", "delimiter", "marker", "max-keys", "encoding-type"}, (*call).listV1}
	listV2        = operation{"ListObjectsV2", []string{"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys", "encoding-type", "fetch-owner"}, (*call).listV2}
	deleteMany    = operation{"DeleteObjects", []string{"delete"}, (*call).deleteObjects}

	getEncryption    = operation{"GetBucketEncryption", []string{"encryption"}, (*call).getEncryption}
	putEncryption    = operation{"PutBucketEncryption", []string{"encryption"}, (*call).putEncryption}
	deleteEncryption = operation{"DeleteBucketEncryption", []string{"encryption"}, (*call).deleteEncryption}

	getBucketTags    = operation{"GetBucketTagging", []string{"tagging"}, (*call).getBucketTagging}
	putBucketTags    = operation{"PutBucketTagging", []string{"tagging"}, (*call).putBucketTagging}
	deleteBucketTags = operation{"DeleteBucketTagging", []string{"tagging"}, (*call).deleteBucketTagging}
	getBucketACL     = operation{"GetBucketAcl", []string{"acl"}, (*call).getBucketACL}
	putBucketACL     = operation{"PutBucketAcl", []string{"acl"}, (*call).putBucketACL}
	getOwnership     = operation{"GetBucketOwnershipControls", []string{"ownershipControls"}, (*call).getOwnership}
	putOwnership     = operation{"PutBucketOwnershipControls", []string{"ownershipControls"}, (*call).putOwnership}
	deleteOwnership  = operation{"DeleteBucketOwnershipControls", []string{"ownershipControls"}, (*call).deleteOwnership}
	policyStatus     = operation{"GetBucketPolicyStatus", []string{"policyStatus"}, (*call).policyStatus}
	getPublic        = operation{"GetPublicAccessBlock", []string{"publicAccessBlock"}, (*call).getPublicAccess}
	putPublic        = operation{"PutPublicAccessBlock", []string{"publicAccessBlock"}, (*call).putPublicAccess}
	deletePublic     = operation{"DeletePublicAccessBlock", []string{"publicAccessBlock"}, (*call).deletePublicAccess}
	getCORS          = operation{"GetBucketCors", []string{"cors"}, (*call).getCORS}
	putCORS          = operation{"PutBucketCors", []string{"cors"}, (*call).putCORS}
	deleteCORS       = operation{"DeleteBucketCors", []string{"cors"}, (*call).deleteCORS}
	getLifecycle     = operation{"GetBucketLifecycleConfiguration", []string{"lifecycle"}, (*call).getLifecycle}
	putLifecycle     = operation{"PutBucketLifecycleConfiguration", []string{"lifecycle"}, (*call).putLifecycle}
	deleteLifecycle  = operation{"DeleteBucketLifecycle", []string{"lifecycle"}, (*call).deleteLifecycle}
	getWebsite       = operation{"GetBucketWebsite", []string{"website"}, (*call).getWebsite}
	putWebsite       = operation{"PutBucketWebsite", []string{"website"}, (*call).putWebsite}
	deleteWebsite    = operation{"DeleteBucketWebsite", []string{"website"}, (*call).deleteWebsite}
	postObject       = operation{"PostObject", nil, (*call).postObject}

	getLock      = operation{"GetObjectLockConfiguration", []string{"object-lock"}, (*call).getLockConfiguration}
	putLock      = operation{"PutObjectLockConfiguration", []string{"object-lock"}, (*call).putLockConfiguration}
	getRetention = operation{"GetObjectRetention", []string{"retention", "versionId"}, (*call).getRetention}
	putRetention = operation{"PutObjectRetention", []string{"retention", "versionId"}, (*call).putRetention}
	getLegalHold = operation{"GetObjectLegalHold", []string{"legal-hold", "versionId"}, (*call).getLegalHold}
	putLegalHold = operation{"PutObjectLegalHold", []string{"legal-hold", "versionId"}, (*call).putLegalHold}

	getAttributes = operation{"GetObjectAttributes", []string{"attributes", "versionId"}, (*call).getAttributes}
	getObjectACL  = operation{"GetObjectAcl", []string{"acl", "versionId"}, (*call).getObjectACL}
	putObjectACL  = operation{"PutObjectAcl", []string{"acl", "versionId"}, (*call).putObjectACL}

	createUpload   = operation{"CreateMultipartUpload", []string{"uploads"}, (*call).createUpload}
	uploadPart     = operation{"UploadPart", []string{"uploadId", "partNumber"}, (*call).uploadPart}
	uploadPartCopy = operation{"UploadPartCopy", []string{"uploadId", "partNumber"}, (*call).uploadPartCopy}
	listParts      = operation{"ListParts", []string{"uploadId", "max-parts", "part-number-marker", "encoding-type"}, (*call).listParts}
	completeUpload = operation{"CompleteMultipartUpload", []string{"uploadId"}, (*call).completeUpload}
	abortUpload    = operation{"AbortMultipartUpload", []string{"uploadId"}, (*call).abortUpload}
	listUploads    = operation{"ListMultipartUploads", []string{"uploads", "prefix", "delimiter", "key-marker", "upload-id-marker", "max-uploads", "encoding-type"}, (*call).listUploads}

	putObject    = operation{"PutObject", nil, (*call).putObject}
	copyObject   = operation{"CopyObject", nil, (*call).copyObject}
	getObject    = operation{"GetObject", objectParams, (*call).getObject}
	headObject   = operation{"HeadObject", objectParams, (*call).getObject}
	deleteObject = operation{"DeleteObject", []string{"versionId"}, (*call).deleteObject}
	getTags      = operation{"GetObjectTagging", []string{"tagging", "versionId"}, (*call).getTagging}
	putTags      = operation{"PutObjectTagging", []string{"tagging", "versionId"}, (*call).putTagging}
	deleteTags   = operation{"DeleteObjectTagging", []string{"tagging", "versionId"}, (*call).deleteTagging}
)

// route finds the operation of a request. Its parameters are checked after authentication.
func (c *call) route() (operation, error) {
	m := c.r.Method
	pick := func(ops map[string]operation) (operation, error) {
		if op, ok := ops[m]; ok {
			return op, nil
		}
		return operation{}, notAllowed(m)
	}
	q := c.query
	if c.r.Header.Get("X-Amz-Copy-Source") != "" && m != http.MethodPut {
		return operation{}, s3err.Argument("x-amz-copy-source", c.r.Header.Get("X-Amz-Copy-Source"), "You can only specify a copy source header for copy requests.")
	}
	switch {
	case c.bucket == "":
		return pick(map[string]operation{http.MethodGet: listBuckets})
	case c.key == "":
		return c.routeBucket(pick)
	case q.has("tagging"):
		return pick(map[string]operation{http.MethodGet: getTags, http.MethodPut: putTags, http.MethodDelete: deleteTags})
	case q.has("versions") && m == http.MethodGet:
		return operation{}, s3err.InvalidRequest.With("There is no such thing as the ?versions sub-resource for a key")
	case q.has("uploads") && m == http.MethodGet:
		return operation{}, s3err.InvalidRequest.With("Key is not expected for the GET method ?uploads subresource")
	case q.has("partNumber") && !q.has("uploadId") && m == http.MethodPut:
		return operation{}, s3err.Argument("partNumber", "partNumber", "This operation does not accept partNumber without uploadId")
	case q.has("uploadId"):
		return c.routeUpload(pick)
	case q.has("uploads") && m == http.MethodPost:
		return createUpload, nil
	case q.has("attributes"):
		return pick(map[string]operation{http.MethodGet: getAttributes})
	case q.has("retention"):
		return pick(map[string]operation{http.MethodGet: getRetention, http.MethodPut: putRetention})
	case q.has("legal-hold"):
		return pick(map[string]operation{http.MethodGet: getLegalHold, http.MethodPut: putLegalHold})
	case q.has("acl"):
		return pick(map[string]operation{http.MethodGet: getObjectACL, http.MethodPut: putObjectACL})
	case m == http.MethodPut && c.r.Header.Get("X-Amz-Copy-Source") != "":
		return copyObject, nil
	case m == http.MethodPut:
		return putObject, nil
	case m == http.MethodGet:
		return getObject, nil
	case m == http.MethodHead:
		return headObject, nil
	case m == http.MethodDelete:
		return deleteObject, nil
	case m == http.MethodPost && len(q) > 0:
		return operation{}, s3err.NotImplemented
	}
	return operation{}, notAllowed(m)
}

// notAllowed answers a method that the addressed resource does not have.
func notAllowed(method string) error { return notAllowedOn(method, "SERVICE") }

func notAllowedOn(method, resource string) error {
	return s3err.MethodNotAllowed.Detail("Method", method).Detail("ResourceType", resource)
}

// routeUpload finds the operation of a request that names an upload.
func (c *call) routeUpload(pick func(map[string]operation) (operation, error)) (operation, error) {
	switch {
	case c.r.Method == http.MethodPut && !c.query.has("partNumber"):
		return operation{}, notAllowedOn(c.r.Method, "UPLOAD")
	case c.r.Method == http.MethodPut && c.r.Header.Get("X-Amz-Copy-Source") != "":
		return uploadPartCopy, nil
	}
	return pick(map[string]operation{
		http.MethodPut: uploadPart, http.MethodPost: completeUpload, http.MethodGet: listParts, http.MethodDelete: abortUpload,
	})
}

func (c *call) routeBucket(pick func(map[string]operation) (operation, error)) (operation, error) {
	q := c.query
	switch {
	case q.has("policy"):
		return pick(map[string]operation{http.MethodGet: getPolicy, http.MethodPut: putPolicy, http.MethodDelete: deletePolicy})
	case q.has("location"):
		return pick(map[string]operation{http.MethodGet: location})
	case q.has("versioning"):
		return pick(map[string]operation{http.MethodGet: getVersioning, http.MethodPut: putVersioning})
	case q.has("versions") && c.r.Method == http.MethodGet:
		return listVersions, nil
	case q.has("uploads") && c.r.Method == http.MethodGet:
		return listUploads, nil
	case q.has("tagging"):
		return pick(map[string]operation{http.MethodGet: getBucketTags, http.MethodPut: putBucketTags, http.MethodDelete: deleteBucketTags})
	case q.has("encryption"):
		return pick(map[string]operation{http.MethodGet: getEncryption, http.MethodPut: putEncryption, http.MethodDelete: deleteEncryption})
	case q.has("acl"):
		return pick(map[string]operation{http.MethodGet: getBucketACL, http.MethodPut: putBucketACL})
	case q.has("ownershipControls"):
		return pick(map[string]operation{http.MethodGet: getOwnership, http.MethodPut: putOwnership, http.MethodDelete: deleteOwnership})
	case q.has("lifecycle"):
		return pick(map[string]operation{http.MethodGet: getLifecycle, http.MethodPut: putLifecycle, http.MethodDelete: deleteLifecycle})
	case q.has("cors"):
		return pick(map[string]operation{http.MethodGet: getCORS, http.MethodPut: putCORS, http.MethodDelete: deleteCORS})
	case q.has("website"):
		return pick(map[string]operation{http.MethodGet: getWebsite, http.MethodPut: putWebsite, http.MethodDelete: deleteWebsite})
	case q.has("policyStatus"):
		return pick(map[string]operation{http.MethodGet: policyStatus})
	case q.has("publicAccessBlock"):
		return pick(map[string]operation{http.MethodGet: getPublic, http.MethodPut: putPublic, http.MethodDelete: deletePublic})
	case q.has("object-lock"):
		return pick(map[string]operation{http.MethodGet: getLock, http.MethodPut: putLock})
	case q.has("delete"):
		return pick(map[string]operation{http.MethodPost: deleteMany})
	case q.get("list-type") == "2":
		return pick(map[string]operation{http.MethodGet: listV2})
	case c.r.Method == http.MethodPost && len(q) > 0:
		return operation{}, s3err.NotImplemented
	case c.r.Method == http.MethodPost:
		return postObject, nil
	}
	return pick(map[string]operation{
		http.MethodGet: listV1, http.MethodPut: createBucket,
		http.MethodHead: headBucket, http.MethodDelete: deleteBucket,
	})
}
