package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// ExpirySchema names the JSON schema of layout.RollupExpiryKey.
const ExpirySchema = "lightmetrics.rollup_expiry.v1"

// Expiry is the decision of retention: up to which hour the rows of each window are over.
// It is written before the first set of an hour is removed, and hours only ever join it.
// So an hour expires for all shards at one moment, however long the removal of its sets
// takes, and a set that a late batch makes of it afterwards does not bring it back.
type Expiry struct {
	AuthorityID string
	// Through is the last hour that is over, by window; a window without one keeps all.
	Through map[window.Window]window.Hour
	// DecidedAt is when the last hour joined, by the worker's clock, Unix nanoseconds. It
	// decides nothing.
	DecidedAt int64
	WorkerID  string
}

type expiryJSON struct {
	Schema      string            `json:"schema"`
	AuthorityID string            `json:"authority_id"`
	Through     map[string]string `json:"through"`
	DecidedAt   int64             `json:"decided_at_unix_ns"`
	WorkerID    string            `json:"worker_id"`
}

// Covers reports whether the window's rows of the hour are over.
func (e Expiry) Covers(h window.Hour, w window.Window) bool {
	through, ok := e.Through[w]
	return ok && h <= through
}

// Marshal writes the canonical JSON. It does not validate.
func (e Expiry) Marshal() []byte {
	through := map[string]string{} // keys are written in order
	for w, h := range e.Through {
		through[w.String()] = h.Start().Format(hourLayout)
	}
	return canonical(expiryJSON{ExpirySchema, e.AuthorityID, through, e.DecidedAt, e.WorkerID})
}

// ParseExpiry reads what Marshal writes, and nothing else. Errors wrap ErrCorruptRecord.
func ParseExpiry(b []byte) (Expiry, error) {
	e, err := parseExpiry(b)
	if err == nil && !bytes.Equal(e.Marshal(), b) {
		err = errors.New("not in canonical form")
	}
	if err != nil {
		return Expiry{}, fmt.Errorf("record %q: %w: %w", layout.RollupExpiryKey, ErrCorruptRecord, err)
	}
	return e, nil
}

func parseExpiry(b []byte) (Expiry, error) {
	var j expiryJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Expiry{}, err
	}
	e := Expiry{AuthorityID: j.AuthorityID, Through: map[window.Window]window.Hour{}, DecidedAt: j.DecidedAt, WorkerID: j.WorkerID}
	if j.Schema != ExpirySchema {
		return e, fmt.Errorf("schema %.64q", j.Schema)
	}
	for name, text := range j.Through {
		w, err := window.Parse(name)
		if err != nil {
			return e, err
		}
		t, err := time.Parse(hourLayout, text)
		if err != nil {
			return e, err
		}
		e.Through[w] = window.HourStarting(t)
	}
	return e, errors.Join(text("authority_id", e.AuthorityID, MaxNameBytes), text("worker_id", e.WorkerID, MaxNameBytes), notNegative("decided_at_unix_ns", e.DecidedAt))
}

// maxExpiryBytes bounds the record.
const maxExpiryBytes = 4 << 10

// ReadExpiry reads the decision. Where nothing has expired yet there is no record: the
// zero Expiry, an Info without ETag, and no error. A record of another authority is corrupt.
func ReadExpiry(ctx context.Context, g Getter, authority string) (Expiry, objstore.Info, error) {
	b, info, err := g.Get(ctx, layout.RollupExpiryKey, objstore.GetOptions{Limit: maxExpiryBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return Expiry{}, objstore.Info{}, nil
	}
	if err != nil {
		return Expiry{}, info, err
	}
	e, err := ParseExpiry(b)
	if err == nil && e.AuthorityID != authority {
		err = fmt.Errorf("record %q: %w: it is of the authority %.128q", layout.RollupExpiryKey, ErrCorruptRecord, e.AuthorityID)
	}
	if err != nil {
		return Expiry{}, info, err
	}
	return e, info, nil
}
