package catalog

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Kinds of these records.
var (
	AsideKind   = record.Kind{Schema: "lightmetrics.rollup_aside.v1", Title: "aside record", MaxBytes: 16 << 10}
	AttemptKind = record.Kind{Schema: "lightmetrics.rollup_attempt.v1", Title: "attempt record", MaxBytes: 16 << 10}
)

// Aside says that an agent's batches are left out of an hour because they do not fit into a worker's memory. They
// stay pending in the record of the shard's progress, where query nodes find them. Deleting the record makes the worker try again.
type Aside struct {
	AuthorityID string
	Shard       shard.ID
	Hour        timegrid.Hour
	Agent       string
	// Series and Records of the agent in the hour, estimated, and the Bytes of memory that they need.
	Series, Records uint64
	Bytes           int64
	// Limit is the memory that all agents of the hour may take together.
	Limit int64
	// Reason is a short text for operators; By names the worker.
	Reason string
	By     string
	// At in Unix nanoseconds.
	At int64
}

type asideJSON struct {
	AuthorityID string `json:"authority_id"`
	Shard       uint32 `json:"shard"`
	Hour        string `json:"hour"`
	Agent       string `json:"agent_id"`
	Series      uint64 `json:"series"`
	Records     uint64 `json:"records"`
	Bytes       int64  `json:"bytes"`
	Limit       int64  `json:"limit_bytes"`
	Reason      string `json:"reason"`
	By          string `json:"by"`
	At          int64  `json:"at_unix_ns"`
}

// Key of the record's object.
func (a *Aside) Key() string { return layout.RollupAside(a.Hour, a.Shard, a.Agent) }

// Marshal writes the canonical JSON. It does not validate.
func (a *Aside) Marshal() []byte {
	return AsideKind.Marshal(asideJSON{a.AuthorityID, uint32(a.Shard), a.Hour.Start().Format(hourLayout), a.Agent, a.Series, a.Records, a.Bytes, a.Limit, a.Reason, a.By, a.At})
}

// ParseAside reads what the key of such a record holds. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseAside(key string, b []byte) (Aside, error) {
	a, err := parseAside(key, b)
	if err != nil {
		return Aside{}, AsideKind.Wrap(key, err)
	}
	return a, nil
}

func parseAside(key string, b []byte) (Aside, error) {
	var j asideJSON
	if err := AsideKind.Decode(b, &j); err != nil {
		return Aside{}, err
	}
	h, err := parseHour(j.Hour)
	if err != nil {
		return Aside{}, err
	}
	a := Aside{j.AuthorityID, shard.ID(j.Shard), h, j.Agent, j.Series, j.Records, j.Bytes, j.Limit, j.Reason, j.By, j.At}
	// A record under another key would set the wrong agent aside, or none.
	if j.Shard >= shard.Max || a.Key() != key {
		return Aside{}, fmt.Errorf("it is of shard %d, hour %s, agent %.64q", j.Shard, j.Hour, j.Agent)
	}
	return a, errors.Join(AsideKind.Verify(b, a.Marshal(), j), text("authority_id", a.AuthorityID, MaxNameBytes), text("reason", a.Reason, MaxNameBytes), text("by", a.By, MaxNameBytes),
		notNegative("bytes", a.Bytes), notNegative("limit_bytes", a.Limit), notNegative("at_unix_ns", a.At))
}

// Attempt says that a worker is making a generation. The worker deletes it when it is done, successful or not, so
// a record that is left belongs to a worker that was killed or is still running.
type Attempt struct {
	AuthorityID string
	Shard       shard.ID
	Hour        timegrid.Hour
	Generation  uint64
	// By names the process; no two processes share a name.
	By string
	// At in Unix nanoseconds.
	At int64
}

type attemptJSON struct {
	AuthorityID string `json:"authority_id"`
	Shard       uint32 `json:"shard"`
	Hour        string `json:"hour"`
	Generation  uint64 `json:"generation"`
	By          string `json:"by"`
	At          int64  `json:"at_unix_ns"`
}

// Key of the record's object.
func (a *Attempt) Key() string { return layout.RollupAttempt(a.Hour, a.Shard) }

// Marshal writes the canonical JSON. It does not validate.
func (a *Attempt) Marshal() []byte {
	return AttemptKind.Marshal(attemptJSON{a.AuthorityID, uint32(a.Shard), a.Hour.Start().Format(hourLayout), a.Generation, a.By, a.At})
}

// ParseAttempt reads what the key of such a record holds. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseAttempt(key string, b []byte) (Attempt, error) {
	var j attemptJSON
	if err := AttemptKind.Decode(b, &j); err != nil {
		return Attempt{}, AttemptKind.Wrap(key, err)
	}
	h, err := parseHour(j.Hour)
	a := Attempt{j.AuthorityID, shard.ID(j.Shard), h, j.Generation, j.By, j.At}
	switch {
	case err != nil:
	case j.Shard >= shard.Max || a.Key() != key:
		err = fmt.Errorf("it is of shard %d, hour %s", j.Shard, j.Hour)
	default:
		err = errors.Join(AttemptKind.Verify(b, a.Marshal(), j), text("authority_id", a.AuthorityID, MaxNameBytes), text("by", a.By, MaxNameBytes), notNegative("at_unix_ns", a.At))
	}
	if err != nil {
		return Attempt{}, AttemptKind.Wrap(key, err)
	}
	return a, nil
}

// parseHour reads an hour's start.
func parseHour(s string) (timegrid.Hour, error) {
	t, err := time.Parse(hourLayout, s)
	if err != nil {
		return 0, err
	}
	return timegrid.HourStarting(t), nil
}
