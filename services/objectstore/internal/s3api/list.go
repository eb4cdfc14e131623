package s3api

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const maxListKeys = 1000

// listing builds the XML of a listing. It does so without reflection, because listings are the
// requests that are polled.
type listing struct {
	b   []byte
	url bool // encoding-type=url
}

func (l *listing) raw(s string) { l.b = append(l.b, s...) }

func (l *listing) elem(name, value string) {
	l.b = append(append(append(l.b, '<'), name...), '>')
	l.b = appendXML(l.b, value)
	l.b = append(append(append(l.b, "</"...), name...), '>')
}

// name writes a key, prefix or delimiter.
func (l *listing) name(elem, value string) {
	if l.url {
		value = string(appendURL(nil, value))
	}
	l.elem(elem, value)
}

func appendXML(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '&':
			b = append(b, "&amp;"...)
		case r == '<':
			b = append(b, "&lt;"...)
		case r == '>':
			b = append(b, "&gt;"...)
		case r == '"':
			b = append(b, "&#34;"...)
		case r == utf8.RuneError: // of a parameter that is not UTF-8, too
			b = utf8.AppendRune(b, r)
		case r < 0x20, r == 0xFFFE, r == 0xFFFF:
			b = append(strconv.AppendInt(append(b, "&#"...), int64(r), 10), ';')
		default:
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return b
}

// appendURL encodes a name for encoding-type=url: every byte but unreserved ones and '/'.
func appendURL(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			c == '-' || c == '_' || c == '.' || c == '~' || c == '/' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return b
}

// listQuery reads the parameters that all listings of objects have, and checks that the caller
// may list.
func (c *call) listQuery(action string) (engine.ListQuery, error) {
	q := engine.ListQuery{Prefix: c.query.get("prefix"), Delimiter: c.query.get("delimiter"), Max: maxListKeys}
	if err := c.authorize(action, c.bucket, "", []policy.Value{{Key: "s3:prefix", Value: q.Prefix}}); err != nil {
		return q, err
	}
	if text := c.query.get("max-keys"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		switch {
		case err != nil:
			return q, s3err.Argument("max-keys", text, "Provided %s not an integer or within integer range", text)
		case n < 0:
			return q, s3err.Argument("max-keys", text, "Argument %s must be an integer between 0 and 2147483647", text)
		}
		q.Max = min(int(n), maxListKeys)
	}
	if e := c.query.get("encoding-type"); e != "" && e != "url" {
		return q, s3err.InvalidArgument.With("Invalid Encoding Method specified in Request")
	}
	return q, nil
}

func (c *call) listV2() error {
	q, err := c.listQuery("ListBucket")
	if err != nil {
		return err
	}
	start, token := c.query.get("start-after"), c.query.get("continuation-token")
	q.After = start
	if c.query.has("continuation-token") {
		after, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || token == "" {
			return s3err.InvalidArgument.With("The continuation token provided is incorrect")
		}
		q.After = string(after)
	}
	page, err := c.Engine.List(c.bucket, q)
	if err != nil {
		return err
	}
	l := c.listing("ListBucketResult", q)
	l.name("Prefix", q.Prefix)
	l.elem("KeyCount", strconv.Itoa(len(page.Objects)+len(page.Prefixes)))
	if token != "" {
		l.elem("ContinuationToken", token)
	}
	if start != "" {
		l.name("StartAfter", start)
	}
	if page.Truncated {
		l.elem("NextContinuationToken", base64.RawURLEncoding.EncodeToString([]byte(page.Next)))
	}
	return c.sendListing(l, page, c.query.get("fetch-owner") == "true")
}

func (c *call) listV1() error {
	q, err := c.listQuery("ListBucket")
	if err != nil {
		return err
	}
	q.After = c.query.get("marker")
	page, err := c.Engine.List(c.bucket, q)
	if err != nil {
		return err
	}
	l := c.listing("ListBucketResult", q)
	// Version 1 repeats the prefix as it came, also under encoding-type=url: clients of
	// version 1 decode every other name of the answer, but not this one.
	l.elem("Prefix", q.Prefix)
	l.name("Marker", q.After)
	if page.Truncated {
		l.name("NextMarker", page.Next)
	}
	return c.sendListing(l, page, true)
}

// listing starts an answer with the elements that all have.
func (c *call) listing(root string, q engine.ListQuery) *listing {
	l := &listing{b: make([]byte, 0, 4096), url: c.query.get("encoding-type") == "url"}
	l.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<" + root + " xmlns=\"" + xmlns + "\">")
	l.elem("Name", c.bucket)
	if q.Delimiter != "" {
		l.name("Delimiter", q.Delimiter)
	}
	l.elem("MaxKeys", strconv.Itoa(q.Max))
	if l.url {
		l.elem("EncodingType", "url")
	}
	return l
}

func (c *call) sendListing(l *listing, page engine.ListPage, owner bool) error {
	l.elem("IsTruncated", strconv.FormatBool(page.Truncated))
	damaged := 0
	for _, o := range page.Objects {
		l.raw("<Contents>")
		l.name("Key", o.Key)
		l.elem("LastModified", stamp(o.Modified))
		l.elem("ETag", `"`+o.ETag+`"`)
		if o.Checksum.Algorithm != "" {
			l.elem("ChecksumAlgorithm", o.Checksum.Algorithm)
			l.elem("ChecksumType", o.Checksum.Type)
		}
		l.elem("Size", strconv.FormatInt(o.Size, 10))
		if owner {
			l.raw("<Owner>")
			l.elem("ID", c.user.Name)
			l.raw("</Owner>")
		}
		l.raw("<StorageClass>STANDARD</StorageClass>")
		if o.Damaged { // an extension: S3 clients ignore elements that they do not know
			damaged++
			l.elem("Damaged", "true")
		}
		l.raw("</Contents>")
	}
	l.prefixes(page.Prefixes)
	l.raw("</ListBucketResult>")
	c.writeListing(l, damaged, page.Uncertain)
	return nil
}

func (l *listing) prefixes(list []string) {
	for _, p := range list {
		l.raw("<CommonPrefixes>")
		l.name("Prefix", p)
		l.raw("</CommonPrefixes>")
	}
}

// writeListing sends a listing with so many damaged objects, of which some may be missing when uncertain.
func (c *call) writeListing(l *listing, damaged int, uncertain bool) {
	h := c.w.Header()
	h.Set("Content-Type", "application/xml")
	if damaged > 0 {
		h.Set(damagedHeader, strconv.Itoa(damaged))
	}
	if uncertain {
		h.Set(incompleteHeader, "true")
	}
	_, _ = c.w.Write(l.b) // the client went away: nothing to do
}
