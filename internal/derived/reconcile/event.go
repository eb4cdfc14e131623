package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// ErrEvent is wrapped by every error of ParseEvent.
var ErrEvent = errors.New("invalid S3 event")

// MaxEventRecords bounds the records of one event; S3 sends few.
const MaxEventRecords = 10_000

type s3Event struct {
	Records []struct {
		EventName string `json:"eventName"`
		S3        struct {
			Object struct {
				Key string `json:"key"`
			} `json:"object"`
		} `json:"s3"`
	} `json:"Records"`
}

// ParseEvent parses S3 event JSON. It returns the keys of created manifests (identity
// manifests and quarantine records), without prefix, and the number of other records:
// other events, prefixes or keys. A message without records, such as S3's test event, has
// no keys.
func ParseEvent(body []byte, prefix string) (keys []string, ignored int, err error) {
	var e s3Event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrEvent, err)
	}
	if len(e.Records) > MaxEventRecords {
		return nil, 0, fmt.Errorf("%w: %d records, at most %d", ErrEvent, len(e.Records), MaxEventRecords)
	}
	for _, r := range e.Records {
		name := strings.TrimPrefix(r.EventName, "s3:")
		key, err := url.QueryUnescape(r.S3.Object.Key) // "+" is a space in events
		key, ours := strings.CutPrefix(key, prefix)
		if err != nil || !ours || !strings.HasPrefix(name, "ObjectCreated:") || !IsManifestKey(key) {
			ignored++
			continue
		}
		keys = append(keys, key)
	}
	return keys, ignored, nil
}

// IsManifestKey reports whether key is one that Reconcile accepts: of an identity manifest or a quarantine record.
func IsManifestKey(key string) bool {
	if _, err := layout.ParseAccepted(key); err == nil {
		return true
	}
	_, _, err := layout.ParseQuarantine(key)
	return err == nil
}
