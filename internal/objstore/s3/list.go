package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// maxListing bounds a page: 1,000 keys of 1,024 bytes, each byte escaped, and their tags.
const maxListing = 8 << 20

// List reads one page with ListObjectsV2. Keys are sent URL-encoded, because XML
// cannot contain all of them. A listing that is out of order is refused, because everything
// that pages through listings or merges them relies on the order.
func (s *Store) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if o.Limit <= 0 || o.Limit > objstore.MaxListLimit {
		o.Limit = objstore.MaxListLimit
	}
	page, err := s.list(ctx, o)
	return page, s.wrap("list", o.Prefix, err)
}

func (s *Store) list(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	q := url.Values{
		"list-type":     {"2"},
		"encoding-type": {"url"},
		"max-keys":      {strconv.Itoa(o.Limit)},
		"prefix":        {s.cfg.Prefix + o.Prefix},
	}
	if o.StartAfter != "" {
		// start-after and no continuation token: a listing can then continue in another process.
		q.Set("start-after", s.cfg.Prefix+objstore.SkipGroup(o.StartAfter, o.Prefix, o.Delimiter))
	}
	if o.Delimiter != "" {
		q.Set("delimiter", o.Delimiter)
	}
	resp, err := s.send(ctx, request{method: http.MethodGet, query: q, header: emptyHeader(2)})
	if err != nil {
		return objstore.Page{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := readAnswer(resp)
		return objstore.Page{}, classify("list", resp.StatusCode, parseAnswer(b))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxListing))
	if err != nil {
		return objstore.Page{}, fmt.Errorf("%w: cut listing: %w", objstore.ErrUnavailable, err)
	}
	l, err := parseListing(body)
	if err == nil && l.IsTruncated == nil {
		// Without it a page from a foreign server would pass for the end of the listing.
		err = errors.New("no IsTruncated")
	}
	if err != nil {
		return objstore.Page{}, fmt.Errorf("%w: unreadable listing of %d bytes: %w", objstore.ErrUnavailable, len(body), err)
	}
	page, err := s.page(l, o)
	// A server that sends no Date, or a wrong one, leaves it zero: then nobody takes it for a time.
	page.Date, _ = http.ParseTime(resp.Header.Get("Date"))
	return page, err
}

// page converts a listing into a Page and checks its order and bounds.
func (s *Store) page(l *listing, o objstore.ListOptions) (objstore.Page, error) {
	var p objstore.Page
	keys := make([]string, 0, len(l.Contents)+len(l.CommonPrefixes))
	relative := func(k string) (string, error) {
		key, err := k, error(nil)
		if l.EncodingType == "url" {
			key, err = url.QueryUnescape(k)
		}
		key, ok := strings.CutPrefix(key, s.cfg.Prefix)
		// A store that ignores a parameter would make a scan endless, or show it keys of others.
		if err != nil || !ok || !strings.HasPrefix(key, o.Prefix) || key <= o.StartAfter && o.StartAfter != "" {
			return "", fmt.Errorf("%w: listing of %q after %q holds %q", objstore.ErrInvalid, o.Prefix, o.StartAfter, k)
		}
		keys = append(keys, key)
		return key, nil
	}
	for _, c := range l.Contents {
		key, err := relative(c.Key)
		if err != nil {
			return p, err
		}
		at, err := time.Parse(time.RFC3339, c.LastModified)
		if err != nil {
			return p, fmt.Errorf("%w: listing: %w", objstore.ErrUnavailable, err)
		}
		p.Objects = append(p.Objects, objstore.Info{Key: key, Size: c.Size, ETag: c.ETag, LastModified: at})
	}
	n := len(keys)
	for _, c := range l.CommonPrefixes {
		key, err := relative(c.Prefix)
		if err != nil {
			return p, err
		}
		p.CommonPrefixes = append(p.CommonPrefixes, key)
	}
	if !slices.IsSorted(keys[:n]) || !slices.IsSorted(keys[n:]) {
		return objstore.Page{}, fmt.Errorf("%w: listing of %q is not in key order", objstore.ErrInvalid, o.Prefix)
	}
	if *l.IsTruncated {
		if len(keys) == 0 {
			return objstore.Page{}, fmt.Errorf("%w: truncated listing of %q without a key", objstore.ErrUnavailable, o.Prefix)
		}
		// Keys and common prefixes are two lists of one order; the last entry is in either.
		p.Next = slices.Max(keys)
	}
	return p, nil
}
