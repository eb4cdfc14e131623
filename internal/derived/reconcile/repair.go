package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/derived/putback"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RepairKind is the kind of the repair record.
var RepairKind = record.Kind{Schema: "lightmetrics.repair.v1", Title: "repair record", MaxBytes: 64 << 10}

// Cause is a fault of a manifest or its blob.
type Cause string

// Causes.
const (
	CauseMissing     Cause = "missing_blob"      // the frame has no generation
	CauseCorrupt     Cause = "corrupt_blob"      // there are generations, but none has the frame's hash
	CauseBadManifest Cause = "bad_manifest"      // the record can't be read, or is under the key of another identity
	CauseForeign     Cause = "foreign_authority" // the record belongs to another acceptance authority
	CauseNewer       Cause = "newer_release"     // the record is of a newer release, and nothing is wrong with it
)

// Causes lists all of them.
func Causes() []Cause {
	return []Cause{CauseMissing, CauseCorrupt, CauseBadManifest, CauseForeign, CauseNewer}
}

// RepairRecord exists under repair/v1/ while a manifest or its blob has a fault; operators read it.
type RepairRecord struct {
	ManifestKey string          `json:"manifest_key"`
	Cause       Cause           `json:"cause"`
	Detail      string          `json:"detail"`
	FrameSHA256 identity.Digest `json:"frame_sha256"` // zero for a bad manifest
	RawBlobKey  string          `json:"raw_blob_key"`
	// FirstSeen by the clock of the reconciler that wrote it, Unix nanoseconds.
	FirstSeen    int64  `json:"first_seen_unix_ns"`
	ReconcilerID string `json:"reconciler_id"`
	// Tries is how often places were asked for the frame's bytes, and TriedAt when they were last, Unix nanoseconds.
	Tries   uint64 `json:"tries,omitempty"`
	TriedAt int64  `json:"tried_at_unix_ns,omitempty"`
	// Answers of the last time.
	Answers []putback.Answer `json:"answers,omitempty"`
	// History is what happened to the record.
	History []Event `json:"history,omitempty"`
}

// Event is something that happened to a repair record.
type Event struct {
	At     int64  `json:"at_unix_ns"`
	What   string `json:"what"`
	By     string `json:"by"`
	Detail string `json:"detail,omitempty"`
}

// What happens to repair records.
const (
	EventCause = "cause" // it became another one
	EventAsked = "asked" // places were asked for the bytes, and none gave them
	EventRetry = "retry" // somebody wants it to be tried at once
)

// Bounds of a record: events, of which the first and the last are kept, answers, and bytes of a detail.
const (
	maxEvents  = 16
	maxAnswers = 32
	maxText    = 200
)

// Note adds an event.
func (r *RepairRecord) Note(e Event) {
	e.By, e.Detail = clipTo(e.By, maxText), clipTo(e.Detail, maxText)
	if r.History = append(r.History, e); len(r.History) > maxEvents {
		r.History = slices.Delete(r.History, maxEvents/2, maxEvents/2+1)
	}
}

// Answered notes what places said.
func (r *RepairRecord) Answered(list []putback.Answer) {
	r.Answers = slices.Clone(list[:min(len(list), maxAnswers)])
	for i := range r.Answers {
		r.Answers[i].Place, r.Answers[i].Detail = clipTo(r.Answers[i].Place, maxText), clipTo(r.Answers[i].Detail, maxText)
	}
}

// RepairKey is the key of the repair record of a manifest or quarantine record.
func RepairKey(manifest string) (string, error) {
	if id, err := layout.ParseAccepted(manifest); err == nil {
		return layout.Repair(id), nil
	}
	id, d, err := layout.ParseQuarantine(manifest)
	if err != nil {
		return "", fmt.Errorf("repair of %q: %w", manifest, ErrUnknownKey)
	}
	return layout.RepairQuarantine(id, d), nil
}

// Marshal writes the canonical JSON.
func (r RepairRecord) Marshal() []byte { return RepairKind.Marshal(r) }

// ParseRepair reads a repair record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRepair(b []byte) (r RepairRecord, err error) { return r, RepairKind.Unmarshal(b, &r) }

type repair struct {
	key, manifestKey string
	cause            Cause
	detail           string
	digest           identity.Digest
	blobKey          string
}

// updateRepairRecord creates, keeps, corrects or removes the repair record.
func (r *Reconciler) updateRepairRecord(ctx context.Context, res *Result, p repair, o Options) error {
	res.Cause = p.cause
	if p.cause == "" {
		// Without an open record there is nothing to remove. A DELETE for each manifest would be the
		// most expensive request of an audit.
		if !o.Recheck {
			return nil
		}
		if err := r.Store.Delete(ctx, p.key); err != nil {
			return err
		}
		res.Healed = true
		return nil
	}
	rec := RepairRecord{
		ManifestKey: p.manifestKey, Cause: p.cause, Detail: clip(p.detail),
		FrameSHA256: p.digest, RawBlobKey: p.blobKey, FirstSeen: r.Now().UnixNano(), ReconcilerID: r.ID,
	}
	_, err := r.Store.Create(ctx, p.key, rec.Marshal(), objstore.PutOptions{ContentType: "application/json"})
	if err == nil {
		res.Opened = true
		return nil
	}
	if !errors.Is(err, objstore.ErrExists) {
		return err
	}
	return r.correct(ctx, p.key, rec)
}

// correct updates an existing record to the present cause and keeps its first-seen time.
func (r *Reconciler) correct(ctx context.Context, key string, rec RepairRecord) error {
	old, info, err := record.Read(ctx, r.Store, key, RepairKind, ParseRepair)
	if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, record.ErrNewerVersion) {
		return nil // removed by another reconciler, and the next pass checks again; or a newer release keeps it
	}
	if err != nil && !record.Unreadable(err) {
		return err
	}
	if err == nil {
		if old.Cause == rec.Cause && old.ManifestKey == rec.ManifestKey {
			return nil
		}
		rec.FirstSeen = old.FirstSeen
		rec.Tries, rec.TriedAt, rec.Answers, rec.History = old.Tries, old.TriedAt, old.Answers, old.History
		rec.Note(Event{At: r.Now().UnixNano(), What: EventCause, By: r.ID, Detail: string(old.Cause) + " before"})
	}
	if info.ETag == "" {
		if info, err = r.Store.Head(ctx, key); err != nil {
			return err
		}
	}
	_, err = r.Store.Replace(ctx, key, rec.Marshal(), info.ETag, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrPreconditionFailed) {
		return nil // another reconciler corrected it
	}
	return err
}

func clip(s string) string { return clipTo(s, 2000) }

// clipTo cuts s after limit bytes, between characters.
func clipTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}
