package s3

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// answer is an S3 error body. The zero value is a body that could not be read.
type answer struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	RequestID string `xml:"RequestId"`
}

func parseAnswer(body []byte) answer {
	if a, ok := scanAnswer(body); ok {
		return a
	}
	var a answer
	if xml.Unmarshal(body, &a) != nil {
		return answer{}
	}
	return a
}

const xmlDeclaration = `<?xml version="1.0" encoding="UTF-8"?>`

// scanAnswer parses the flat list of elements that stores send, at a fraction of the cost of
// encoding/xml. It matters because every acceptance reads a condemned marker that is absent,
// which is answered with such a body. It returns false for anything else; what it does parse,
// encoding/xml parses to the same values.
func scanAnswer(body []byte) (a answer, ok bool) {
	for _, c := range body {
		// Entities, control characters and anything beyond ASCII are left to encoding/xml, whose rules for
		// them are long.
		if c < 0x20 && c != '\n' || c > 0x7e || c == '&' {
			return answer{}, false
		}
	}
	s := strings.TrimSpace(strings.TrimPrefix(string(body), xmlDeclaration))
	s, opened := strings.CutPrefix(s, "<Error>")
	s, closed := strings.CutSuffix(s, "</Error>")
	if !opened || !closed {
		return answer{}, false
	}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		name, rest, _ := strings.Cut(s, ">")
		name, opened = strings.CutPrefix(name, "<")
		text, rest, closed := strings.Cut(rest, "</"+name+">")
		// An attribute or a nested element makes the body one for encoding/xml.
		if !opened || !closed || !letters(name) || strings.ContainsAny(text, "<>") {
			return answer{}, false
		}
		switch name {
		case "Code":
			a.Code = text
		case "Message":
			a.Message = text
		case "RequestId":
			a.RequestID = text
		}
		s = rest
	}
	return a, true
}

// letters reports whether s is not empty and has only ASCII letters.
func letters(s string) bool {
	for i := range len(s) {
		if c := s[i] | 0x20; c < 'a' || c > 'z' {
			return false
		}
	}
	return s != ""
}

// classify maps an unsuccessful answer to an error of objstore. Unless the answer shows that
// nothing was written, it is ErrUnknown for a write; for a read it is ErrUnavailable.
func classify(op string, status int, a answer) error {
	detail := fmt.Sprintf("status %d", status)
	// Message and request id come from the network and end in logs, so they are quoted or cut.
	if a.Code != "" {
		detail += fmt.Sprintf(", %s: %.200q, request %.64s", a.Code, a.Message, a.RequestID)
	}
	return fmt.Errorf("%w: %s", decide(op, status, a.Code), detail)
}

func decide(op string, status int, code string) error {
	// open is the error of an answer that decides nothing.
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
		return open // a 404 without an S3 error code may come from a proxy and proves nothing
	case http.StatusConflict:
		switch {
		// Without an S3 code the answer may come from a proxy, while the store applies the write.
		case code == "" || !write:
			return open
		case code == "ConditionalRequestConflict", code == "OperationAborted":
			return objstore.ErrConflict
		}
		return objstore.ErrInvalid
	// S3 checks rights before it writes, so a refusal of this kind is final also for a write.
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
	// S3 answers these with 400, but they are faults of the credentials and of no request.
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
