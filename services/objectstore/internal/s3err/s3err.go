// Package s3err is the table of S3 errors that the store answers with.
package s3err

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"net/http"
)

// Error is an S3 error answer.
type Error struct {
	Code    string
	Status  int
	Message string
	// Details are the elements that AWS adds to the answer, such as the argument that is invalid.
	Details []Detail
}

// Detail is an element of an answer.
type Detail struct{ Name, Value string }

func (e *Error) Error() string { return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Message) }

// With gives the error with another message.
func (e *Error) With(format string, args ...any) *Error {
	c := *e
	c.Message = fmt.Sprintf(format, args...)
	return &c
}

// Detail gives the error with one more element.
func (e *Error) Detail(name, value string) *Error {
	c := *e
	c.Details = append(c.Details[:len(c.Details):len(c.Details)], Detail{name, value})
	return &c
}

// Failed gives the error with the condition that did not hold.
func (e *Error) Failed(condition string) *Error { return e.Detail("Condition", condition) }

// Argument is InvalidArgument for a named argument.
func Argument(name, value, format string, args ...any) *Error {
	return InvalidArgument.With(format, args...).Detail("ArgumentName", name).Detail("ArgumentValue", value)
}

// Is compares codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

func of(code string, status int, message string) *Error {
	return &Error{Code: code, Status: status, Message: message}
}

// The errors, with AWS's codes. The texts are those that the suite of test/s3suite asks for; clients go by the codes.
var (
	AnonymousCopy                 = of("AccessDenied", http.StatusForbidden, "Anonymous users cannot copy objects. Please authenticate.")
	AnonymousOverrides            = of("InvalidRequest", http.StatusBadRequest, "Request specific response headers cannot be used for anonymous GET requests.")
	AnonymousPayload              = of("InvalidRequest", http.StatusBadRequest, "Anonymous requests don't support this x-amz-content-sha256 value. Please use UNSIGNED-PAYLOAD or STREAMING-UNSIGNED-PAYLOAD-TRAILER.")
	AnonymousRequest              = of("AccessDenied", http.StatusForbidden, "Anonymous users cannot invoke this API. Please authenticate.")
	AnonymousUpload               = of("AccessDenied", http.StatusForbidden, "Anonymous users cannot initiate multipart uploads. Please authenticate.")
	CORSForbidden                 = of("AccessForbidden", http.StatusForbidden, "CORSResponse: This CORS request is not allowed. This is usually because the evalution of Origin, request method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.")
	CORSNotEnabled                = of("AccessForbidden", http.StatusForbidden, "CORSResponse: CORS is not enabled for this bucket.")
	InvalidChunkSize              = of("InvalidChunkSizeError", http.StatusBadRequest, "Only the last chunk is allowed to have a size less than 8192 bytes")
	UnsignedSetting               = of("InvalidRequest", http.StatusBadRequest, "The value of x-amz-content-sha256 header is invalid.")
	InvalidPolicyDocument         = of("InvalidPolicyDocument", http.StatusBadRequest, "The content of the form does not meet the conditions specified in the policy document.")
	MalformedACL                  = of("MalformedACLError", http.StatusBadRequest, "The XML you provided was not well-formed or did not validate against our published schema.")
	MalformedPOST                 = of("MalformedPOSTRequest", http.StatusBadRequest, "The body of your POST request is not well-formed multipart/form-data.")
	MaxMessageLength              = of("MaxMessageLengthExceeded", http.StatusBadRequest, "Your request was too big.")
	MaxPostPreData                = of("MaxPostPreDataLengthExceeded", http.StatusBadRequest, "Your POST request fields preceding the upload file were too large.")
	MissingSecurityHeader         = of("MissingSecurityHeader", http.StatusBadRequest, "Your request was missing a required header.")
	NoSuchPublicAccessBlock       = of("NoSuchPublicAccessBlockConfiguration", http.StatusNotFound, "The public access block configuration was not found")
	UnexpectedContent             = of("UnexpectedContent", http.StatusBadRequest, "This request does not support content.")
	AccessDenied                  = of("AccessDenied", http.StatusForbidden, "Access Denied.")
	AuthHeaderMalformed           = of("AuthorizationHeaderMalformed", http.StatusBadRequest, "The authorization header is malformed.")
	AuthQueryMalformed            = of("AuthorizationQueryParametersError", http.StatusBadRequest, "The authorization query parameters are malformed.")
	BadDigest                     = of("BadDigest", http.StatusBadRequest, "The Content-MD5 you specified did not match what we received.")
	BucketExists                  = of("BucketAlreadyOwnedByYou", http.StatusConflict, "Your previous request to create the named bucket succeeded and you already own it.")
	BucketNotEmpty                = of("BucketNotEmpty", http.StatusConflict, "The bucket you tried to delete is not empty.")
	ContentSHAMismatch            = of("XAmzContentSHA256Mismatch", http.StatusBadRequest, "The provided 'x-amz-content-sha256' header does not match what was computed.")
	EntityTooLarge                = of("EntityTooLarge", http.StatusBadRequest, "Your proposed upload exceeds the maximum allowed object size.")
	EntityTooSmall                = of("EntityTooSmall", http.StatusBadRequest, "Your proposed upload is smaller than the minimum allowed size")
	IncompleteBody                = of("IncompleteBody", http.StatusBadRequest, "You did not provide the number of bytes specified by the Content-Length HTTP header")
	InsufficientStorage           = of("InsufficientStorage", http.StatusInsufficientStorage, "The disk of the store is full. Objects can be read and deleted.")
	InternalError                 = of("InternalError", http.StatusInternalServerError, "We encountered an internal error. Please try again.")
	InvalidAccessKeyID            = of("InvalidAccessKeyId", http.StatusForbidden, "The AWS Access Key Id you provided does not exist in our records.")
	InvalidArgument               = of("InvalidArgument", http.StatusBadRequest, "Invalid Argument")
	InvalidBucketName             = of("InvalidBucketName", http.StatusBadRequest, "The specified bucket is not valid.")
	InvalidDigest                 = of("InvalidDigest", http.StatusBadRequest, "The Content-Md5 you specified is not valid.")
	InvalidLocation               = of("InvalidLocationConstraint", http.StatusBadRequest, "The specified location-constraint is not valid")
	InvalidPart                   = of("InvalidPart", http.StatusBadRequest, "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.")
	InvalidPartOrder              = of("InvalidPartOrder", http.StatusBadRequest, "The list of parts was not in ascending order. Parts must be ordered by part number.")
	InvalidRange                  = of("InvalidRange", http.StatusRequestedRangeNotSatisfiable, "The requested range is not satisfiable")
	InvalidRequest                = of("InvalidRequest", http.StatusBadRequest, "Invalid Request.")
	InvalidTag                    = of("InvalidTag", http.StatusBadRequest, "The tag provided was not a valid tag.")
	InvalidURI                    = of("InvalidURI", http.StatusBadRequest, "The specified URI couldn't be parsed.")
	KeyTooLong                    = of("KeyTooLongError", http.StatusBadRequest, "Your key is too long.")
	AccessControlListNotSupported = of("AccessControlListNotSupported", http.StatusBadRequest, "The bucket does not allow ACLs.")
	BadRequest                    = of("BadRequest", http.StatusBadRequest, "An error occurred when parsing the HTTP request.")
	InvalidBucketACLWithOwnership = of("InvalidBucketAclWithObjectOwnership", http.StatusBadRequest, "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting")
	InvalidPartNumber             = of("InvalidPartNumber", http.StatusRequestedRangeNotSatisfiable, "The requested partnumber is not satisfiable.")
	InvalidRedirectLocation       = of("InvalidRedirectLocation", http.StatusBadRequest, "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.")
	InvalidToken                  = of("InvalidToken", http.StatusBadRequest, "The provided token is malformed or otherwise invalid.")
	NoSuchCORSConfiguration       = of("NoSuchCORSConfiguration", http.StatusNotFound, "The CORS configuration does not exist")
	NoSuchTagSet                  = of("NoSuchTagSet", http.StatusNotFound, "The TagSet does not exist.")
	NoSuchVersion                 = of("NoSuchVersion", http.StatusNotFound, "The specified version does not exist.")
	NoSuchWebsite                 = of("NoSuchWebsiteConfiguration", http.StatusNotFound, "The specified bucket does not have a website configuration")
	ObjectLockNotFound            = of("ObjectLockConfigurationNotFoundError", http.StatusNotFound, "Object Lock configuration does not exist for this bucket.")
	NoSuchObjectLock              = of("NoSuchObjectLockConfiguration", http.StatusNotFound, "The specified object does not have a ObjectLock configuration.")
	ObjectLocked                  = of("AccessDenied", http.StatusForbidden, "Access Denied because object protected by object lock.")
	LockNeedsVersioning           = of("InvalidBucketState", http.StatusConflict, "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration")
	VersioningLocked              = of("InvalidBucketState", http.StatusConflict, "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.")
	MissingRequestBody            = of("MissingRequestBodyError", http.StatusBadRequest, "Request Body is empty")
	OwnershipNotFound             = of("OwnershipControlsNotFoundError", http.StatusNotFound, "The bucket ownership controls were not found.")
	MalformedPolicy               = of("MalformedPolicy", http.StatusBadRequest, "This policy contains invalid JSON or is not supported.")
	MalformedTrailer              = of("MalformedTrailerError", http.StatusBadRequest, "The request contained trailing data that was not well-formed or did not conform to our published schema.")
	MalformedXML                  = of("MalformedXML", http.StatusBadRequest, "The XML you provided was not well-formed or did not validate against our published schema.")
	MetadataTooLarge              = of("MetadataTooLarge", http.StatusBadRequest, "Your metadata headers exceed the maximum allowed metadata size")
	MethodNotAllowed              = of("MethodNotAllowed", http.StatusMethodNotAllowed, "The specified method is not allowed against this resource.")
	MissingContentLength          = of("MissingContentLength", http.StatusLengthRequired, "You must provide the Content-Length HTTP header.")
	NoSuchBucket                  = of("NoSuchBucket", http.StatusNotFound, "The specified bucket does not exist.")
	NoSuchLifecycleConfiguration  = of("NoSuchLifecycleConfiguration", http.StatusNotFound, "The lifecycle configuration does not exist")
	NoSuchBucketPolicy            = of("NoSuchBucketPolicy", http.StatusNotFound, "The bucket policy does not exist.")
	NoSuchKey                     = of("NoSuchKey", http.StatusNotFound, "The specified key does not exist.")
	NoSuchUpload                  = of("NoSuchUpload", http.StatusNotFound, "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.")
	NotImplemented                = of("NotImplemented", http.StatusNotImplemented, "A header you provided implies functionality that is not implemented.")
	NoEncryption                  = of("ServerSideEncryptionConfigurationNotFoundError", http.StatusNotFound, "The server side encryption configuration was not found")
	QuotaExceeded                 = of("QuotaExceeded", http.StatusForbidden, "The quota of the bucket is used up. Objects can be read and deleted.")
	KeyUnavailable                = of("KeyUnavailable", http.StatusServiceUnavailable, "The store was not given the key that the object is, or would be, encrypted with.")
	ObjectDamaged                 = of("ObjectDamaged", http.StatusInternalServerError, "The stored bytes of the object are damaged or lost.")
	PreconditionFailed            = of("PreconditionFailed", http.StatusPreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
	NotModified                   = of("NotModified", http.StatusNotModified, "Not Modified")
	RequestTimeTooSkewed          = of("RequestTimeTooSkewed", http.StatusForbidden, "The difference between the request time and the current time is too large.")
	ServiceUnavailable            = of("ServiceUnavailable", http.StatusServiceUnavailable, "The store does not take writes now.")
	RequestTimeout                = of("RequestTimeout", http.StatusBadRequest, "Your socket connection to the server was not read from or written to within the timeout period.")
	SignatureDoesNotMatch         = of("SignatureDoesNotMatch", http.StatusForbidden, "The request signature we calculated does not match the signature you provided. Check your key and signing method.")
	Undecidable                   = of("ServiceUnavailable", http.StatusServiceUnavailable, "Stored writes were lost, and one of them may have been of this key. An operator has to run lmctl store repair.")
	SlowDown                      = of("SlowDown", http.StatusServiceUnavailable, "Please reduce your request rate.")
	TooManyBuckets                = of("TooManyBuckets", http.StatusBadRequest, "You have attempted to create more buckets than allowed")
)

// Whole is the error as a whole answer of HTTP/1.1, for a connection of which no request was read.
func (e *Error) Whole() []byte {
	var b bytes.Buffer
	b.WriteString(xml.Header + "<Error>")
	element(&b, "Code", e.Code)
	element(&b, "Message", e.Message)
	b.WriteString("</Error>")
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: %d\r\nContent-Type: application/xml\r\nRetry-After: 1\r\n\r\n%s",
		e.Status, http.StatusText(e.Status), b.Len(), b.Bytes())
}

// Write sends the error. A HEAD or 304 answer has no body.
func (e *Error) Write(w http.ResponseWriter, r *http.Request, requestID string) {
	if r.Method == http.MethodHead || e.Status == http.StatusNotModified {
		w.WriteHeader(e.Status)
		return
	}
	if e.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(e.Status)
	var b bytes.Buffer
	b.Grow(512)
	b.WriteString(xml.Header + "<Error>")
	// Written out, since absent keys and failed conditions are ordinary answers, and encoding/xml needs as long as all
	// the rest of such a request.
	element(&b, "Code", e.Code)
	element(&b, "Message", e.Message)
	for _, d := range e.Details {
		element(&b, d.Name, d.Value)
	}
	element(&b, "Resource", r.URL.Path)
	element(&b, "RequestId", requestID)
	b.WriteString("</Error>")
	_, _ = w.Write(b.Bytes()) // the client went away: nothing to do
}

func element(b *bytes.Buffer, name, value string) {
	b.WriteByte('<')
	b.WriteString(name)
	b.WriteByte('>')
	_ = xml.EscapeText(b, []byte(value)) // a buffer takes everything
	b.WriteString("</")
	b.WriteString(name)
	b.WriteByte('>')
}
