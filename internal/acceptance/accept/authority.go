package accept

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// AuthorityKind is the kind of the authority record that is bound to a place.
var AuthorityKind = record.Kind{Schema: "lightmetrics.authority.v2", Title: "authority record", MaxBytes: MaxRecordBytes}

// UnboundAuthorityKind is the kind of the record of earlier releases, which has the id alone.
var UnboundAuthorityKind = record.Kind{Schema: "lightmetrics.authority.v1", Title: "authority record", MaxBytes: MaxRecordBytes}

// AuthorityRecord names the acceptance authority, one bucket and one prefix, and binds it to
// where that is. docs/adr/0020 has the reasons for each field.
type AuthorityRecord struct {
	AuthorityID string
	// Place that the authority is bound to. The zero Place is a record without a binding: one of
	// an earlier release, which the next collector that starts binds, or one in memory.
	Place objstore.Place
	// CreatedAt is when the record was first written, by the store's clock, Unix nanoseconds. A
	// move keeps it. 0: not known yet.
	CreatedAt int64
	// BoundAt is when the record was bound to this place, by the store's clock, Unix nanoseconds.
	// The object's time of modification must be the same, which that of a copy is not. 0: the
	// binding is not finished.
	BoundAt int64
}

// Bound reports whether the record names a place.
func (r AuthorityRecord) Bound() bool { return r.Place != objstore.Place{} }

// Marshal writes the canonical JSON: version 1 for a record without a place, else version 2.
func (r AuthorityRecord) Marshal() []byte {
	var e record.Writer
	if !r.Bound() {
		e.Begin(UnboundAuthorityKind, 128)
		e.Text("authority_id", r.AuthorityID)
		return e.End()
	}
	e.Begin(AuthorityKind, 512)
	e.Text("authority_id", r.AuthorityID)
	e.Text("endpoint", r.Place.Endpoint)
	e.Text("region", r.Place.Region)
	e.Text("bucket", r.Place.Bucket)
	e.Text("prefix", r.Place.Prefix)
	e.Int("created_at_unix_ns", r.CreatedAt)
	e.Int("bound_at_unix_ns", r.BoundAt)
	return e.End()
}

// ParseAuthorityRecord reads the record of either version; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseAuthorityRecord(b []byte) (AuthorityRecord, error) {
	kind, err := record.OneOf(b, AuthorityKind, UnboundAuthorityKind)
	if err != nil {
		return AuthorityRecord{}, err
	}
	d := record.NewReader(kind, b)
	r := AuthorityRecord{AuthorityID: d.NonEmpty("authority_id", MaxNameBytes)}
	if kind.Schema == AuthorityKind.Schema {
		r.Place.Endpoint = d.NonEmpty("endpoint", maxKeyBytes)
		r.Place.Region = d.Text("region", MaxNameBytes)
		r.Place.Bucket = d.NonEmpty("bucket", MaxNameBytes)
		r.Place.Prefix = d.Text("prefix", maxKeyBytes)
		r.CreatedAt = d.UnixNano("created_at_unix_ns")
		r.BoundAt = d.UnixNano("bound_at_unix_ns")
	}
	if err := d.End(); err != nil {
		return AuthorityRecord{}, err
	}
	return r, nil
}

// checkPlace refuses a place that the record can't hold.
func checkPlace(p objstore.Place) error {
	if len(p.Endpoint) > maxKeyBytes || len(p.Region) > MaxNameBytes || len(p.Bucket) > MaxNameBytes || len(p.Prefix) > maxKeyBytes || p != (objstore.Place{}) && (p.Endpoint == "" || p.Bucket == "") {
		return fmt.Errorf("accept: %w: an authority can't be bound to %s", objstore.ErrInvalid, p)
	}
	return nil
}

// AuthorityReason is a stable code that callers branch on.
type AuthorityReason string

// Reasons of AuthorityError.
const (
	// AuthorityOther: the bucket's id is not the configured one.
	AuthorityOther AuthorityReason = "OTHER_AUTHORITY"
	// AuthorityOtherBucket, AuthorityOtherPrefix, AuthorityOtherRegion: the record is of another
	// place. A region counts on AWS S3 alone: elsewhere it is a label, and may be renamed.
	AuthorityOtherBucket AuthorityReason = "OTHER_BUCKET"
	AuthorityOtherPrefix AuthorityReason = "OTHER_PREFIX"
	AuthorityOtherRegion AuthorityReason = "OTHER_REGION"
	// AuthorityCopied: the object was written at another time than the record was bound at, so it
	// is a copy, by a tool or a restore.
	AuthorityCopied AuthorityReason = "COPIED"
	// AuthorityReplica: the store says that its replication wrote the object.
	AuthorityReplica AuthorityReason = "REPLICA"
)

// AuthorityError says that the store is not the authority. A collector must refuse to run.
type AuthorityError struct {
	Reason AuthorityReason
	// Want is what is configured, or what the place is; Got what the record says.
	Want, Got string
}

func (e *AuthorityError) Error() string {
	const otherwise = ": it is a copy or a replica of the authority, or the authority was moved; if it is to be the authority from now on: lmctl authority move (docs/guide/authority.md)"
	switch e.Reason {
	case AuthorityOther:
		return fmt.Sprintf("the store is the authority %q, configured is %q", e.Got, e.Want)
	case AuthorityOtherBucket:
		return fmt.Sprintf("the authority record is bound to the bucket %q, this is the bucket %q%s", e.Got, e.Want, otherwise)
	case AuthorityOtherPrefix:
		return fmt.Sprintf("the authority record is bound to the prefix %q, this is the prefix %q%s", e.Got, e.Want, otherwise)
	case AuthorityOtherRegion:
		return fmt.Sprintf("the authority record is bound to the region %q, this is the region %q%s", e.Got, e.Want, otherwise)
	case AuthorityCopied:
		return fmt.Sprintf("the authority record was bound at %s, and its object here was written at %s%s", e.Got, e.Want, otherwise)
	}
	return "the authority record says that the store's replication wrote it" + otherwise
}

// boundWithin is how far the time of modification of a bound record may lie from BoundAt: both
// come from the store's clock, some requests apart.
const boundWithin = 10 * time.Minute

// Authority is the record, and what its object says of it.
type Authority struct {
	AuthorityRecord
	// WrittenAt is the object's time of modification, by the store.
	WrittenAt time.Time
	// At is where it was read.
	At objstore.Place
	// Problem says why this store is not the authority; nil if it is.
	Problem *AuthorityError
	// Renamed names the parts of the place that are called otherwise than in the record, and may be:
	// "endpoint", "region".
	Renamed []string
	etag    string
}

func (a Authority) problem() *AuthorityError {
	time8601 := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	then, now := a.Place, a.At
	bound := time.Unix(0, a.BoundAt)
	switch {
	case !a.Bound() || now == objstore.Place{}:
		return nil
	case then.Bucket != now.Bucket:
		return &AuthorityError{Reason: AuthorityOtherBucket, Want: now.Bucket, Got: then.Bucket}
	case then.Prefix != now.Prefix:
		return &AuthorityError{Reason: AuthorityOtherPrefix, Want: now.Prefix, Got: then.Prefix}
	case then.OnAWS() && then.Endpoint == now.Endpoint && then.Region != now.Region:
		return &AuthorityError{Reason: AuthorityOtherRegion, Want: now.Region, Got: then.Region}
	// Host names change, and one bucket has several. The time at which the object was written does not.
	case a.BoundAt != 0 && !a.WrittenAt.IsZero() && a.WrittenAt.Sub(bound).Abs() > boundWithin:
		return &AuthorityError{Reason: AuthorityCopied, Want: time8601(a.WrittenAt), Got: time8601(bound)}
	}
	return nil
}

// ErrNoAuthority says that the store has no authority record and that the caller did not ask to create one.
var ErrNoAuthority = errors.New("the store has no authority record")

// InspectAuthority reads the record, also one that is another place's. Errors: ErrNoAuthority,
// which wraps objstore.ErrNotFound too, record.ErrCorrupt, record.ErrNewerVersion, or the store's.
func InspectAuthority(ctx context.Context, g objstore.Getter) (Authority, error) {
	r, info, err := record.Read(ctx, g, layout.AuthorityKey, AuthorityKind, ParseAuthorityRecord)
	if errors.Is(err, objstore.ErrNotFound) {
		return Authority{}, fmt.Errorf("%w: %w", ErrNoAuthority, err)
	}
	if err != nil {
		return Authority{}, err
	}
	a := Authority{AuthorityRecord: r, WrittenAt: info.LastModified, At: objstore.PlaceOf(g), etag: info.ETag}
	if a.Bound() && a.At != (objstore.Place{}) {
		if a.Place.Endpoint != a.At.Endpoint {
			a.Renamed = append(a.Renamed, "endpoint")
		}
		if a.Place.Region != a.At.Region {
			a.Renamed = append(a.Renamed, "region")
		}
	}
	a.Problem = a.problem()
	// A replica says so itself, whether its record is bound or not.
	if info.Replica {
		a.Problem = &AuthorityError{Reason: AuthorityReplica}
	}
	return a, nil
}

// ReadAuthority reads the record and checks that this store is the authority: the errors of
// InspectAuthority, and *AuthorityError with the record.
func ReadAuthority(ctx context.Context, g objstore.Getter) (Authority, error) {
	a, err := InspectAuthority(ctx, g)
	if err == nil && a.Problem != nil {
		err = a.Problem
	}
	return a, err
}

// CheckAuthority is ReadAuthority of the authority with this id; "" is any. A store without a
// record is no error: the first collector that starts writes it.
func CheckAuthority(ctx context.Context, g objstore.Getter, id string) error {
	a, err := ReadAuthority(ctx, g)
	switch {
	case errors.Is(err, ErrNoAuthority):
		return nil
	case err == nil || a.Problem != nil:
		if id != "" && a.AuthorityID != id {
			return &AuthorityError{Reason: AuthorityOther, Want: id, Got: a.AuthorityID}
		}
	}
	return err
}
