package sigv4

import (
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// IsAnonymous reports whether a request has no signature of any kind. One that has a part of a signature is not anonymous:
// it is refused for what it lacks.
func IsAnonymous(r *http.Request) bool {
	if len(r.Header["Authorization"]) > 0 {
		return false
	}
	if r.URL.RawQuery == "" {
		return true
	}
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return false
	}
	for _, p := range query {
		switch p.name {
		case "X-Amz-Algorithm", "X-Amz-Signature", "X-Amz-Credential", "AWSAccessKeyId", "Signature":
			return false
		}
	}
	return true
}

// Anonymous gives how the body of an anonymous request is protected. Errors are *s3err.Error.
func Anonymous(r *http.Request) (*Auth, error) {
	a := &Auth{}
	if r.Header.Get("X-Amz-Content-Sha256") == "" {
		return a, nil
	}
	if _, err := a.payload(r, claim{}, nil); err != nil {
		return nil, err
	}
	if a.Payload == StreamSigned || a.Payload == StreamSignedTrailer {
		return nil, s3err.AnonymousPayload
	}
	return a, nil
}
