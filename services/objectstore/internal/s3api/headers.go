package s3api

import (
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	maxUserMetadata = 2 << 10 // AWS's limit: names and values together
	maxSystemHeader = 8 << 10
)

// storedHeaders are the headers that are stored with an object and returned with it.
var storedHeaders = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Expires", redirectHeader}

// redirectHeader is kept and given back, as by AWS for a bucket without a website; this store serves no websites.
const redirectHeader = "X-Amz-Website-Redirect-Location"

// refusedHeaders are prefixes of the canonical names of headers that ask for guarantees which the store does not give.
// Ignoring one would pretend to give the guarantee.
var refusedHeaders = []string{
	"X-Amz-Server-Side-Encryption", "X-Amz-Object-Lock", "X-Amz-Bucket-Object-Lock",
	"X-Amz-Write-Offset-Bytes", "X-Amz-Copy-Source-Server-Side", "X-Amz-Mfa", "X-Amz-Rename-Source",
}

const sseHeader = "X-Amz-Server-Side-Encryption"

// isHarmless reports whether a header that is otherwise refused asks for what is the case anyway.
// SDKs and tools send such headers by default.
func (s *Server) isHarmless(low, value string) bool {
	switch low {
	case "x-amz-server-side-encryption":
		return s.encrypts() && value == "AES256"
	}
	return false
}

// lockHeaders are the headers of object lock that operations read, by the operation's name.
var lockHeaders = map[string][]string{
	"CreateBucket":          {bucketLockHeader},
	"PutObject":             {lockModeHeader, lockUntilHeader, lockHoldHeader},
	"CopyObject":            {lockModeHeader, lockUntilHeader, lockHoldHeader},
	"CreateMultipartUpload": {lockModeHeader, lockUntilHeader, lockHoldHeader},
}

// refuseHeaders is called for every operation before it does anything.
func (s *Server) refuseHeaders(op, method string, h http.Header) error {
	for name := range h {
		if len(name) < 6 || name[:6] != "X-Amz-" {
			continue
		}
		// Conditions of deletes and aborts, which read them.
		if strings.HasPrefix(name, "X-Amz-If-Match") && method != http.MethodDelete {
			return s3err.NotImplemented.With("The header %s is not implemented.", strings.ToLower(name))
		}
		for _, p := range refusedHeaders {
			if !strings.HasPrefix(name, p) || slices.Contains(lockHeaders[op], name) {
				continue
			}
			if low := strings.ToLower(name); !s.isHarmless(low, h.Get(name)) {
				return s3err.NotImplemented.With("The header %s is not implemented.", low)
			}
		}
	}
	if sc := h.Get("X-Amz-Storage-Class"); sc != "" && sc != "STANDARD" {
		return s3err.NotImplemented.With("The storage class %s is not implemented.", sc)
	}
	return nil
}

// readStoredHeaders reads the headers that are stored with an object.
func readStoredHeaders(h http.Header, o *engine.Object) error {
	total := 0
	for _, name := range storedHeaders {
		v := strings.Join(h[name], ",")
		if name == "Content-Encoding" {
			v = dropAWSChunked(v)
		}
		if v != "" {
			o.Headers = append(o.Headers, engine.Pair{Name: strings.ToLower(name), Value: v})
			total += len(v)
		}
	}
	if total > maxSystemHeader {
		return metadataTooLarge(total, maxSystemHeader)
	}
	if v := h.Get(redirectHeader); v != "" && !strings.HasPrefix(v, "/") && !strings.HasPrefix(v, "http://") && !strings.HasPrefix(v, "https://") {
		return s3err.InvalidRedirectLocation
	}
	total = 0
	for name, vs := range h {
		if len(name) > 11 && strings.EqualFold(name[:11], "x-amz-meta-") {
			p := engine.Pair{Name: strings.ToLower(name[11:]), Value: strings.Join(vs, ",")}
			total += len(p.Name) + len(p.Value)
			o.User = append(o.User, p)
		}
	}
	sort.Slice(o.User, func(i, j int) bool { return o.User[i].Name < o.User[j].Name })
	if total > maxUserMetadata {
		return metadataTooLarge(total, maxUserMetadata)
	}
	return nil
}

// checkField refuses what came elsewhere, such as in a query, and cannot be a header: an object with it would be one that
// clients cannot read.
func checkField(name, value string) error {
	if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return s3err.Argument(name, value, "%q cannot be a header with this value.", name)
	}
	return nil
}

func metadataTooLarge(size, most int) error {
	return s3err.MetadataTooLarge.Detail("Size", strconv.Itoa(size)).Detail("MaxSizeAllowed", strconv.Itoa(most))
}

// dropAWSChunked removes aws-chunked from a content encoding: it describes the transfer, and the
// stored bytes are decoded.
func dropAWSChunked(v string) string {
	if !strings.Contains(v, "aws-chunked") {
		return v
	}
	var keep []string
	for p := range strings.SplitSeq(v, ",") {
		if p = strings.TrimSpace(p); p != "aws-chunked" && p != "" {
			keep = append(keep, p)
		}
	}
	return strings.Join(keep, ",")
}
