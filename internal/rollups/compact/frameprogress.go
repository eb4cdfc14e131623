package compact

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// FrameProgressKind is the kind of the record under layout.RollupFrames.
var FrameProgressKind = record.Kind{Schema: "lightmetrics.rollup_frames.v1", Title: "progress of frame removal", MaxBytes: 64 << 10}

// MaxFramesAgain bounds FrameProgress.Again.
const MaxFramesAgain = 1000

// FrameProgress says how far the raw frames of a shard are removed: of the hours up to Through that the store has
// not changed since they were checked nothing is left to remove, except in Again. Each hour was checked later than
// Keep after its end, and, if it existed then, after Since. All of this stays true, so if two workers write the
// record the older may win; and without it every hour is checked again.
type FrameProgress struct {
	AuthorityID string
	Shard       shard.ID
	Through     timegrid.Hour
	// Since and Full are when the last pass, and the last pass over all hours, began, by the store's clock in Unix
	// nanoseconds.
	Since int64
	Full  int64
	// Keep is the shortest time that an hour's frames were kept after its end: the hour was not checked before.
	Keep time.Duration
	// Again are hours whose frames were still needed, ascending.
	Again []timegrid.Hour
}

type frameProgressJSON struct {
	AuthorityID string   `json:"authority_id"`
	Shard       uint32   `json:"shard"`
	Through     string   `json:"through"`
	Since       int64    `json:"since_unix_ns"`
	Full        int64    `json:"full_unix_ns"`
	Keep        int64    `json:"keep_ns"`
	Again       []string `json:"again"`
}

const frameHourLayout = "2006-01-02T15"

// Key of the record's object.
func (p FrameProgress) Key() string { return layout.RollupFrames(p.Shard) }

// Marshal writes the canonical JSON. It does not validate.
func (p FrameProgress) Marshal() []byte {
	j := frameProgressJSON{p.AuthorityID, uint32(p.Shard), p.Through.Start().Format(frameHourLayout), p.Since, p.Full, int64(p.Keep), []string{}}
	for _, h := range p.Again {
		j.Again = append(j.Again, h.Start().Format(frameHourLayout))
	}
	return FrameProgressKind.Marshal(j)
}

// ParseFrameProgress reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseFrameProgress(b []byte) (FrameProgress, error) {
	p, err := parseFrameProgress(b)
	if err != nil {
		return FrameProgress{}, FrameProgressKind.Wrap("", err)
	}
	return p, nil
}

func parseFrameProgress(b []byte) (FrameProgress, error) {
	var j frameProgressJSON
	if err := FrameProgressKind.Decode(b, &j); err != nil {
		return FrameProgress{}, err
	}
	if len(j.Again) > MaxFramesAgain || j.Shard >= shard.Max {
		return FrameProgress{}, fmt.Errorf("shard %d, %d hours", j.Shard, len(j.Again))
	}
	p := FrameProgress{AuthorityID: j.AuthorityID, Shard: shard.ID(j.Shard), Since: j.Since, Full: j.Full, Keep: time.Duration(j.Keep)}
	hour := func(text string) (timegrid.Hour, error) {
		t, err := time.Parse(frameHourLayout, text)
		if err != nil {
			return 0, err
		}
		return timegrid.HourStarting(t), nil
	}
	var err error
	if p.Through, err = hour(j.Through); err != nil {
		return p, err
	}
	for _, text := range j.Again {
		h, err := hour(text)
		if err != nil {
			return p, err
		}
		p.Again = append(p.Again, h)
	}
	if !slices.IsSorted(p.Again) {
		return p, errors.New("hours out of order")
	}
	return p, FrameProgressKind.Verify(b, p.Marshal(), j)
}

// maxSkew is how far a store's times of change may be apart: they are whole seconds, and of several machines.
const maxSkew = time.Minute

// Done reports that nothing of the hour is left to remove.
func (p FrameProgress) Done(at ShardHour) bool {
	seen := at.Hour.End().Add(p.Keep)
	if since := time.Unix(0, p.Since); seen.Before(since) {
		seen = since
	}
	// A record that changed about when the hour was checked may be newer than the check, so the hour counts as
	// unchecked.
	if at.Hour > p.Through || at.Changed.IsZero() || !at.Changed.Before(seen.Add(-maxSkew)) {
		return false
	}
	_, again := slices.BinarySearch(p.Again, at.Hour)
	return !again
}
