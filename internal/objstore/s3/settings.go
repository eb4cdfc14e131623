package s3

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Versioning gives the versioning state of the bucket: "" where it was never on, Enabled or Suspended.
func (s *Store) Versioning(ctx context.Context) (string, error) {
	text, found, err := s.setting(ctx, "versioning")
	if err != nil || !found {
		return "", s.wrap("versioning", "", err)
	}
	var v struct{ Status string }
	if err := xml.Unmarshal(text, &v); err != nil {
		return "", s.wrap("versioning", "", fmt.Errorf("%w: %w", objstore.ErrUnavailable, err))
	}
	return v.Status, nil
}

// Lifecycle gives the lifecycle rules of the bucket.
func (s *Store) Lifecycle(ctx context.Context) ([]objstore.LifecycleRule, error) {
	text, found, err := s.setting(ctx, "lifecycle")
	if err != nil || !found {
		return nil, s.wrap("lifecycle", "", err)
	}
	type any struct{}
	var v struct {
		Rule []struct {
			ID, Status string
			Prefix     string
			Filter     struct {
				Prefix string
				And    struct{ Prefix string }
			}
			Expiration *struct {
				Days                      int
				Date                      string
				ExpiredObjectDeleteMarker bool
			}
			Transition                  []any
			NoncurrentVersionExpiration *any
			NoncurrentVersionTransition []any
		}
	}
	if err := xml.Unmarshal(text, &v); err != nil {
		return nil, s.wrap("lifecycle", "", fmt.Errorf("%w: %w", objstore.ErrUnavailable, err))
	}
	var out []objstore.LifecycleRule
	for _, r := range v.Rule {
		e := r.Expiration
		out = append(out, objstore.LifecycleRule{
			ID: r.ID, Enabled: r.Status == "Enabled", Prefix: r.Prefix + r.Filter.Prefix + r.Filter.And.Prefix,
			// The removal of delete markers that nothing is behind deletes no object.
			Expires: e != nil && (e.Days != 0 || e.Date != ""), Moves: len(r.Transition) > 0,
		})
	}
	return out, nil
}

// setting reads a sub-resource of the bucket; found is false where it has none.
func (s *Store) setting(ctx context.Context, name string) (text []byte, found bool, err error) {
	resp, err := s.send(ctx, request{method: http.MethodGet, query: url.Values{name: {""}}, header: emptyHeader(2)})
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	text, err = readAnswer(resp)
	switch code := parseAnswer(text).Code; {
	case err == nil && resp.StatusCode == http.StatusOK:
		return text, true, nil
	// A store that has no such thing at all has none set.
	case code == "NoSuchLifecycleConfiguration", resp.StatusCode == http.StatusNotImplemented:
		return nil, false, nil
	case resp.StatusCode < 300:
		return nil, false, fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	return nil, false, classify("get", resp.StatusCode, parseAnswer(text))
}
