package s3

import (
	"encoding/xml"
	"fmt"
	"net/http"

	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// answer is an S3 error body. The zero value is a body that could not be read.
type answer struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	RequestID string `xml:"RequestId"`
}

func parseAnswer(body []byte) answer {
	var a answer
	if xml.Unmarshal(body, &a) != nil {
		return answer{}
	}
	return a
}

// classify gives an unsuccessful answer its sentinel. What is not known to have
// written nothing is ErrUnknown for a write, ErrUnavailable for a read.
func classify(op string, status int, a answer) error {
	detail := fmt.Sprintf("status %d", status)
	if a.Code != "" {
		detail += fmt.Sprintf(", %s: %.200q, request %.64s", a.Code, a.Message, a.RequestID)
	}
	return fmt.Errorf("%w: %s", decide(op, status, a.Code), detail)
}

func decide(op string, status int, code string) error {
	open := objstore.ErrUnavailable
	write := isWrite(op)
	if write {
		open = objstore.ErrUnknown
	}
	switch status {
	case http.StatusPreconditionFailed:
		switch op {
		case "create":
			return objstore.ErrExists
		case "replace":
			return objstore.ErrPreconditionFailed
		}
		return open
	case http.StatusNotFound:
		switch {
		case code == "NoSuchBucket":
			return objstore.ErrNoBucket
		case op == "replace":
			return objstore.ErrPreconditionFailed
		case code == "NoSuchKey" && (op == "get" || op == "delete"):
			return objstore.ErrNotFound
		}
		return open // a 404 that is not S3's proves nothing
	case http.StatusConflict:
		switch {
		case code == "" || !write:
			return open
		case code == "ConditionalRequestConflict", code == "OperationAborted":
			return objstore.ErrConflict
		}
		return objstore.ErrInvalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return objstore.ErrDenied
	case http.StatusBadRequest:
		return decide400(code, write, open)
	case http.StatusMethodNotAllowed, http.StatusLengthRequired, http.StatusRequestEntityTooLarge,
		http.StatusRequestURITooLong, http.StatusRequestedRangeNotSatisfiable, http.StatusNotImplemented,
		http.StatusMovedPermanently:
		return objstore.ErrInvalid
	}
	return open
}

func decide400(code string, write bool, open error) error {
	switch code {
	case "BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "XAmzContentChecksumMismatch":
		if write {
			return objstore.ErrChecksum
		}
		return open
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "InvalidSecurity":
		return objstore.ErrDenied
	case "", "RequestTimeout", "IncompleteBody", "SlowDown":
		return open
	case "NoSuchBucket":
		return objstore.ErrNoBucket
	}
	return objstore.ErrInvalid
}

func isWrite(op string) bool {
	switch op {
	case "create", "replace", "put", "delete":
		return true
	}
	return false
}
