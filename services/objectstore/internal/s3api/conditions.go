package s3api

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// writeCondition reads If-Match and If-None-Match of a write. A condition that the engine cannot
// decide together with the write is refused: ignoring it would overwrite what the client protects.
func writeCondition(h http.Header) (engine.Cond, error) {
	var c engine.Cond
	for _, name := range []string{"If-Modified-Since", "If-Unmodified-Since"} {
		if len(h[name]) > 0 {
			return c, s3err.NotImplemented.Detail("Header", name)
		}
	}
	none, match := h["If-None-Match"], h["If-Match"]
	switch {
	case len(none)+len(match) > 1:
		return c, s3err.NotImplemented.Detail("Header", "If-Match,If-None-Match").
			Detail("additionalMessage", "Multiple conditional request headers present in the request")
	case len(none) == 1:
		if strings.TrimSpace(none[0]) != "*" {
			return c, s3err.NotImplemented.Detail("Header", "If-None-Match").
				Detail("additionalMessage", "We don't accept the provided value of If-None-Match header for this API")
		}
		c.Absent = true
	case len(match) == 1:
		v := strings.TrimSpace(match[0])
		if v == "" || strings.Contains(v, ",") || strings.HasPrefix(v, "W/") {
			return c, s3err.InvalidArgument.With("If-Match of a write takes one ETag.")
		}
		c.Match = unquote(v)
		if c.Match == "" {
			return c, s3err.InvalidArgument.With("If-Match of a write takes one ETag.")
		}
	}
	return c, nil
}

// deleteCondition is writeCondition with the conditions that only DeleteObject has: the size and the time of the object.
func deleteCondition(h http.Header) (engine.Cond, error) {
	c, err := writeCondition(h)
	if err != nil {
		return c, err
	}
	err = addObjectConditions(&c, h.Get("X-Amz-If-Match-Size"), h.Get("X-Amz-If-Match-Last-Modified-Time"))
	return c, err
}

// addObjectConditions reads a size and a time; empty is no condition.
func addObjectConditions(c *engine.Cond, size, modified string) error {
	if size != "" {
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil || n < 0 {
			return s3err.Argument("x-amz-if-match-size", size, "The size must be a number of bytes.")
		}
		c.HasSize, c.Size = true, n
	}
	if modified != "" {
		t, err := http.ParseTime(modified)
		if err != nil {
			t, err = time.Parse(time.RFC3339, modified)
		}
		if err != nil {
			return s3err.Argument("x-amz-if-match-last-modified-time", modified, "The time must be an HTTP date.")
		}
		c.HasModified, c.Modified = true, t.Unix()
	}
	return nil
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// conditionError maps a failed condition of a write to its S3 error.
func (s *Server) conditionError(c engine.Cond, err error) error {
	switch {
	case err == engine.ErrNotFound && (c.Match != "" || c.HasSize || c.HasModified):
		if s.MatchAbsent412 {
			return s3err.PreconditionFailed.Failed("If-Match")
		}
		return s3err.NoSuchKey
	case err == engine.ErrPrecondition && c.Absent:
		return s3err.PreconditionFailed.Failed("If-None-Match")
	case err == engine.ErrPrecondition && c.Match == "" && c.HasSize:
		return s3err.PreconditionFailed.Failed("If-Match-Size")
	case err == engine.ErrPrecondition && c.Match == "":
		return s3err.PreconditionFailed.Failed("If-Match-Last-Mod-Time")
	case err == engine.ErrPrecondition:
		return s3err.PreconditionFailed.Failed("If-Match")
	}
	return err
}

// readConditions are the four headers of a read, in the order of RFC 9110 section 13.2.2.
type readConditions struct {
	match, noneMatch         string
	modifiedSince, unchanged string
}

func readConditionsOf(h http.Header) readConditions {
	join := func(n string) string { return strings.Join(h[n], ",") }
	return readConditions{join("If-Match"), join("If-None-Match"), join("If-Modified-Since"), join("If-Unmodified-Since")}
}

// sourceConditionsOf are those of CopyObject on its source.
func sourceConditionsOf(h http.Header) readConditions {
	get := func(n string) string { return h.Get("X-Amz-Copy-Source-If-" + n) }
	return readConditions{get("Match"), get("None-Match"), get("Modified-Since"), get("Unmodified-Since")}
}

// check gives nil, NotModified or PreconditionFailed. Invalid dates are ignored.
func (c readConditions) check(etag string, modified time.Time) error {
	switch name, precondition := c.failed(etag, modified); {
	case name == "":
		return nil
	case precondition:
		return s3err.PreconditionFailed.Failed(name)
	default:
		return s3err.NotModified.Failed(name)
	}
}

// checkSource gives nil or PreconditionFailed, as AWS does: a copy has no answer that says "not modified".
func (c readConditions) checkSource(o engine.Object) error {
	if name, _ := c.failed(o.ETag, o.Modified); name != "" {
		return s3err.PreconditionFailed.Failed("x-amz-copy-source-" + name)
	}
	return nil
}

// failed gives the first condition that does not hold, and whether it is a precondition and not one that asks for news;
// "": all hold.
func (c readConditions) failed(etag string, modified time.Time) (name string, precondition bool) {
	modified = modified.Truncate(time.Second) // HTTP dates have no fractions of a second
	if c.match != "" {
		if !etagIn(c.match, etag, false) {
			return "If-Match", true
		}
	} else if t, ok := httpDate(c.unchanged); ok && modified.After(t) {
		return "If-Unmodified-Since", true
	}
	if c.noneMatch != "" {
		if etagIn(c.noneMatch, etag, true) {
			return "If-None-Match", false
		}
	} else if t, ok := httpDate(c.modifiedSince); ok && !modified.After(t) {
		return "If-Modified-Since", false
	}
	return "", false
}

// httpDate reads a date; false for none, which nearly every request has, and for what is no date.
func httpDate(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, false
	}
	t, err := http.ParseTime(s)
	return t, err == nil
}

// etagIn reports whether a header's list has the ETag. Weak ETags match only with weak set, as
// RFC 9110 asks for If-None-Match.
func etagIn(list, etag string, weak bool) bool {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "*" {
			return true
		}
		if rest, ok := strings.CutPrefix(item, "W/"); ok {
			if !weak {
				continue
			}
			item = rest
		}
		if unquote(item) == etag {
			return true
		}
	}
	return false
}
