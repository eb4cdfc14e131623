package catalog

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// ExpiryKind is the kind of the record under layout.RollupExpiryKey.
var ExpiryKind = record.Kind{Schema: "lightmetrics.rollup_expiry.v1", Title: "decision of retention", MaxBytes: 4 << 10, Exact: true}

// Expiry is the decision of retention: up to which hour the rows of each resolution have expired. It is written
// before the first block of an hour is removed, and hours only ever join it. So an hour expires for all shards at
// one moment, however long the removal of its blocks takes, and a block that a late batch adds afterwards does not
// bring the hour back.
type Expiry struct {
	AuthorityID string
	// Through is the last expired hour by resolution; a resolution that is missing keeps everything.
	Through map[timegrid.Resolution]timegrid.Hour
	// DecidedAt is when the last hour joined, by the worker's clock, in Unix nanoseconds. It is for people;
	// nothing is decided by it.
	DecidedAt int64
	WorkerID  string
}

type expiryJSON struct {
	AuthorityID string            `json:"authority_id"`
	Through     map[string]string `json:"through"`
	DecidedAt   int64             `json:"decided_at_unix_ns"`
	WorkerID    string            `json:"worker_id"`
}

// Covers reports whether the resolution's rows of the hour have expired.
func (e Expiry) Covers(h timegrid.Hour, res timegrid.Resolution) bool {
	through, ok := e.Through[res]
	return ok && h <= through
}

// Marshal writes the canonical JSON. It does not validate.
func (e Expiry) Marshal() []byte {
	through := map[string]string{} // encoding/json sorts keys, so the form is canonical
	for res, h := range e.Through {
		through[res.String()] = h.Start().Format(hourLayout)
	}
	return ExpiryKind.Marshal(expiryJSON{e.AuthorityID, through, e.DecidedAt, e.WorkerID})
}

// ParseExpiry reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseExpiry(b []byte) (Expiry, error) {
	e, err := parseExpiry(b)
	if err != nil {
		return Expiry{}, ExpiryKind.Wrap("", err)
	}
	return e, nil
}

func parseExpiry(b []byte) (Expiry, error) {
	var j expiryJSON
	if err := ExpiryKind.Decode(b, &j); err != nil {
		return Expiry{}, err
	}
	e := Expiry{AuthorityID: j.AuthorityID, Through: map[timegrid.Resolution]timegrid.Hour{}, DecidedAt: j.DecidedAt, WorkerID: j.WorkerID}
	for name, text := range j.Through {
		res, err := timegrid.ParseResolution(name)
		if err != nil {
			return e, err
		}
		if e.Through[res], err = parseHour(text); err != nil {
			return e, err
		}
	}
	return e, errors.Join(ExpiryKind.Verify(b, e.Marshal(), j), text("authority_id", e.AuthorityID, MaxNameBytes), text("worker_id", e.WorkerID, MaxNameBytes), notNegative("decided_at_unix_ns", e.DecidedAt))
}

// ReadExpiry reads the decision. Where nothing has expired yet there is no record: the
// zero Expiry, an Info without ETag, and no error. A record of another authority is corrupt.
func ReadExpiry(ctx context.Context, g objstore.Getter, authority string) (Expiry, objstore.Info, error) {
	e, info, err := record.Read(ctx, g, layout.RollupExpiryKey, ExpiryKind, ParseExpiry)
	if errors.Is(err, objstore.ErrNotFound) {
		return Expiry{}, objstore.Info{}, nil
	}
	if err == nil && e.AuthorityID != authority {
		err = ExpiryKind.Corrupt(layout.RollupExpiryKey, "it is of the authority %.128q", e.AuthorityID)
	}
	if err != nil {
		return Expiry{}, info, err
	}
	return e, info, nil
}
