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

	listBuckets  = operation{"ListBuckets", []string{"max-buckets", "prefix", "continuation-token"}, (*call).listBuckets}
	createBucket = operation{"CreateBucket", nil, (*call).createBucket}
	headBucket   = operation{"HeadBucket", nil, (*call).headBucket}
	deleteBucket = operation{"DeleteBucket", nil, (*call).deleteBucket}
	location     = operation{"GetBucketLocation", []string{"location"}, (*call).bucketLocation}
	versioning   = operation{"GetBucketVersioning", []string{"versioning"}, (*call).bucketVersioning}
	lifecycle    = operation{"GetBucketLifecycleConfiguration", []string{"lifecycle"}, (*call).bucketLifecycle}
	getPolicy    = operation{"GetBucketPolicy", []string{"policy"}, (*call).getPolicy}
	putPolicy    = operation{"PutBucketPolicy", []string{"policy"}, (*call).putPolicy}
	deletePolicy = operation{"DeleteBucketPolicy", []string{"policy"}, (*call).deletePolicy}
	listV1       = operation{"ListObjects", []string{"prefix", "delimiter", "marker", "max-keys", "encoding-type"}, (*call).listV1}
	listV2       = operation{"ListObjectsV2", []string{"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys", "encoding-type", "fetch-owner"}, (*call).listV2}
	deleteMany   = operation{"DeleteObjects", []string{"delete"}, (*call).deleteObjects}

	putObject    = operation{"PutObject", nil, (*call).putObject}
	copyObject   = operation{"CopyObject", nil, (*call).copyObject}
	getObject    = operation{"GetObject", responseParams, (*call).getObject}
	headObject   = operation{"HeadObject", responseParams, (*call).getObject}
	deleteObject = operation{"DeleteObject", nil, (*call).deleteObject}
	getTags      = operation{"GetObjectTagging", []string{"tagging"}, (*call).getTagging}
	putTags      = operation{"PutObjectTagging", []string{"tagging"}, (*call).putTagging}
	deleteTags   = operation{"DeleteObjectTagging", []string{"tagging"}, (*call).deleteTagging}
)

// route finds the operation of a request. Its parameters are checked after authentication.
func (c *call) route() (operation, error) {
	m := c.r.Method
	pick := func(ops map[string]operation) (operation, error) {
		if op, ok := ops[m]; ok {
			return op, nil
		}
		return operation{}, s3err.MethodNotAllowed
	}
	q := c.query
	switch {
	case c.bucket == "":
		return pick(map[string]operation{http.MethodGet: listBuckets})
	case c.key == "":
		return c.routeBucket(pick)
	case q.has("tagging"):
		return pick(map[string]operation{http.MethodGet: getTags, http.MethodPut: putTags, http.MethodDelete: deleteTags})
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
	case m == http.MethodPost:
		return operation{}, s3err.NotImplemented
	}
	return operation{}, s3err.MethodNotAllowed
}

func (c *call) routeBucket(pick func(map[string]operation) (operation, error)) (operation, error) {
	q := c.query
	switch {
	case q.has("policy"):
		return pick(map[string]operation{http.MethodGet: getPolicy, http.MethodPut: putPolicy, http.MethodDelete: deletePolicy})
	case q.has("location"):
		return pick(map[string]operation{http.MethodGet: location})
	case q.has("versioning") && c.r.Method == http.MethodGet:
		return versioning, nil
	case q.has("lifecycle") && c.r.Method == http.MethodGet:
		return lifecycle, nil
	case q.has("delete"):
		return pick(map[string]operation{http.MethodPost: deleteMany})
	case q.get("list-type") == "2":
		return pick(map[string]operation{http.MethodGet: listV2})
	case c.r.Method == http.MethodPost:
		return operation{}, s3err.NotImplemented
	}
	return pick(map[string]operation{
		http.MethodGet: listV1, http.MethodPut: createBucket,
		http.MethodHead: headBucket, http.MethodDelete: deleteBucket,
	})
}
