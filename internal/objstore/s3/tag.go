package s3

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var _ objstore.Tagger = (*Store)(nil)

// SetTags replaces all tags of the object: one PutObjectTagging.
func (s *Store) SetTags(ctx context.Context, key string, tags map[string]string) error {
	return s.wrap("tag", key, s.tag(ctx, key, taggingBody(tags)))
}

func (s *Store) tag(ctx context.Context, key string, body []byte) error {
	if err := s.check(key); err != nil {
		return err
	}
	sum := identity.Sum(body)
	h := emptyHeader(3)
	h["X-Amz-Content-Sha256"] = []string{sum.String()}
	h["X-Amz-Checksum-Sha256"] = []string{base64.StdEncoding.EncodeToString(sum[:])}
	h["Content-Type"] = []string{"application/xml"}
	resp, err := s.send(ctx, request{method: http.MethodPut, key: key, query: url.Values{"tagging": {""}}, header: h, body: body})
	if err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	text, err := readAnswer(resp)
	switch {
	case (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent) && err == nil:
		return nil
	// A 404 with another code may be of a missing bucket or of a proxy, and is classified below.
	case resp.StatusCode == http.StatusNotFound && parseAnswer(text).Code == "NoSuchKey":
		return objstore.ErrNotFound
	case resp.StatusCode < 300:
		return errors.Join(objstore.ErrUnknown, err)
	}
	return classify("put", resp.StatusCode, parseAnswer(text))
}

// taggingBody is the XML of the tags, sorted by name.
func taggingBody(tags map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString(`<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><TagSet>`)
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		b.WriteString("<Tag><Key>")
		xml.EscapeText(&b, []byte(name))
		b.WriteString("</Key><Value>")
		xml.EscapeText(&b, []byte(tags[name]))
		b.WriteString("</Value></Tag>")
	}
	b.WriteString("</TagSet></Tagging>")
	return b.Bytes()
}
