package regions

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/foreign"
)

// Reason says why a region is not in an answer.
type Reason string

// The reasons.
const (
	Unreachable   Reason = "UNREACHABLE"    // no connection, or it broke
	Deadline      Reason = "DEADLINE"       // no answer in time
	Refused       Reason = "REFUSED"        // credentials, or roles of the caller
	Overloaded    Reason = "OVERLOADED"     // too many queries, there or on the way there
	LimitExceeded Reason = "LIMIT_EXCEEDED" // the query exceeds a limit of the region
	NotVisible    Reason = "NOT_VISIBLE"    // a strong read was not possible there in time
	Unsupported   Reason = "UNSUPPORTED"    // another version
	Misconfigured Reason = "MISCONFIGURED"  // another region answers there, or one with other series
	BadAnswer     Reason = "BAD_ANSWER"     // what came is no answer
	Failed        Reason = "FAILED"         // anything else
)

// Reasons are all of them.
func Reasons() []Reason {
	return []Reason{Unreachable, Deadline, Refused, Overloaded, LimitExceeded, NotVisible, Unsupported, Misconfigured, BadAnswer, Failed}
}

// Failure is why a region is not in an answer.
type Failure struct {
	Reason Reason
	Detail string
}

func (f *Failure) Error() string { return string(f.Reason) + ": " + f.Detail }

// Reasons of statuses of RegionService, beside those of internal/platform/rpc and of queries.
const (
	// StatusMismatch: the node is of another region, or has another series.agent_label.
	StatusMismatch = "REGION_MISMATCH"
	// StatusVersion: the caller has another version, or asks for what the node does not know.
	StatusVersion = "REGION_VERSION"
	// StatusLimit is that of a query over a limit, StatusNotVisible that of a strong read that takes too long.
	StatusLimit      = "LIMIT_EXCEEDED"
	StatusNotVisible = "TOKEN_NOT_VISIBLE"
)

// maxDetail bounds the words of another region that go into an answer.
const maxDetail = 300

func detail(text string) string {
	text = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text), "?")
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return text
}

// failureOf says why a stream ended.
func failureOf(err error) *Failure {
	var bad *foreign.BadError
	if errors.As(err, &bad) {
		return &Failure{BadAnswer, detail(err.Error())}
	}
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{reasonOf(err), detail(status.Convert(err).Message())}
}

func reasonOf(err error) Reason {
	switch rpc.Reason(err) {
	case rpc.ReasonOverloaded:
		return Overloaded
	case StatusLimit:
		return LimitExceeded
	case StatusNotVisible:
		return NotVisible
	case StatusMismatch:
		return Misconfigured
	case StatusVersion:
		return Unsupported
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return Unreachable
	case codes.DeadlineExceeded:
		return Deadline
	case codes.Unauthenticated, codes.PermissionDenied:
		return Refused
	case codes.Unimplemented:
		return Unsupported
	// Without a reason it is of the connection: a message that is too large.
	case codes.ResourceExhausted:
		return BadAnswer
	}
	return Failed
}
