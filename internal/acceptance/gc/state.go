package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// StateKind is the kind of the state of garbage collection, and EpochsStateKind that of the state once collections go by the log of
// epochs: earlier releases, which know of none, refuse it and collect nothing.
var (
	StateKind       = record.Kind{Schema: "lightmetrics.gc_state.v1", Title: "state of garbage collection", MaxBytes: 64 << 10}
	EpochsStateKind = record.Kind{Schema: "lightmetrics.gc_state.v2", Title: StateKind.Title, MaxBytes: StateKind.MaxBytes}
)

// State says who collects, how far the sweep is, and whether the breaker holds. It is moved by If-Match alone.
//
// Nothing in it makes a delete safe: the markers and the proofs do. A state that is lost, or of an older copy, costs a sweep.
type State struct {
	AuthorityID string `json:"authority_id"`
	// Moves counts the writes, so that no two are of equal bytes: a late one can't be taken for another.
	Moves uint64 `json:"moves"`
	// Plan is the number of the last plan. Its executor, the process with the Claim, reads it again before each step.
	Plan uint64 `json:"plan"`
	// Holder names the process that collects, Claim is its random id; empty: nobody does. UpdatedAt is when it moved the record
	// last, and CreatedAt when the record was made; Unix seconds by the store's clock, like all times here.
	Holder    string `json:"holder"`
	Claim     string `json:"claim"`
	UpdatedAt int64  `json:"updated_at_unix_s"`
	CreatedAt int64  `json:"created_at_unix_s"`
	// Requested: an operator asks for a sweep now.
	Requested bool `json:"requested"`
	// Sweep is the one under way, Last the one that finished last; BeganAt is 0 where there is none.
	Sweep Sweep `json:"sweep"`
	Last  Sweep `json:"last_sweep"`
	// Witnesses are keys of manifests that were there: while one is not, nothing is condemned.
	Witnesses []string `json:"witnesses"`
	// Lost are keys of manifests that an operator knows to be gone, the last that the breaker was released for.
	Lost []string `json:"lost_manifests,omitempty"`
	// Day is the day of Requests, counted from 1970, which the budget bounds.
	Day      int64  `json:"day"`
	Requests uint64 `json:"requests"`
	// Totals since the record was made.
	Deleted uint64 `json:"deleted_blobs"`
	Bytes   uint64 `json:"deleted_bytes"`
	Markers uint64 `json:"markers"`
	// Breaker holds everything up until an operator has checked it.
	Breaker *Breaker `json:"breaker,omitempty"`
	// EpochsAt is since when earlier releases refuse the state, so that the log of epochs may begin; 0 until then.
	EpochsAt int64 `json:"epochs_at_unix_s,omitempty"`
	// Settled is the number of the last plan whose outcome the counts above have. A write of unknown outcome and its repeat, with
	// another's move between them, so count it once.
	Settled uint64 `json:"settled_plan,omitempty"`
	// Postponed are reports that stay because the store did not say enough about some of their blobs.
	Postponed []Postponed `json:"postponed_reports,omitempty"`
}

// Postponed is a report that is checked again.
type Postponed struct {
	Key string `json:"key"`
	// Attempts that were made; Due is when the next one is.
	Attempts int   `json:"attempts"`
	Due      int64 `json:"due_unix_s"`
}

// Bounds of reports that are checked again. The waits double, so with a delay of 5 minutes the last attempt is three and a half
// days after the first. What is left then is the next sweep's.
const (
	maxPostponed = 64
	maxAttempts  = 11
	leastWait    = time.Minute
)

// postpone notes that a report is to be checked again, and reports whether it is: not after so many attempts, nor where so many
// reports wait already.
func (s *State) postpone(key string, now time.Time, delay time.Duration) bool {
	p := Postponed{Key: key}
	if i := s.postponed(key); i >= 0 {
		p = s.Postponed[i]
		s.Postponed = slices.Delete(s.Postponed, i, i+1)
	}
	if p.Attempts++; p.Attempts >= maxAttempts || len(s.Postponed) >= maxPostponed {
		return false
	}
	p.Due = now.Add(max(delay, leastWait) << (p.Attempts - 1)).Unix()
	s.Postponed = append(s.Postponed, p)
	return true
}

// answered forgets a report, and those that were due long ago: somebody else has deleted them.
func (s *State) answered(key string, now time.Time) {
	s.Postponed = slices.DeleteFunc(s.Postponed, func(p Postponed) bool {
		return p.Key == key || now.Unix()-p.Due > int64(forgotten/time.Second)
	})
}

// forgotten is how long a report that is due is remembered where nobody finds it.
const forgotten = 30 * 24 * time.Hour

func (s *State) postponed(key string) int {
	return slices.IndexFunc(s.Postponed, func(p Postponed) bool { return p.Key == key })
}

// Sweep is how far a sweep of all blobs is, and what it found.
type Sweep struct {
	BeganAt int64 `json:"began_at_unix_s"`
	EndedAt int64 `json:"ended_at_unix_s"`
	// Cursor is the key behind which it goes on.
	Cursor string `json:"cursor"`
	// Listed blobs, of which Named are named by the journal, Young are too young and Foreign are keys of no blob. Candidates are the others.
	Listed     uint64 `json:"listed"`
	Named      uint64 `json:"named"`
	Young      uint64 `json:"young"`
	Foreign    uint64 `json:"foreign"`
	Candidates uint64 `json:"candidates"`
	// Deleted and Kept candidates, and how many of those kept an operator must check.
	Deleted  uint64 `json:"deleted"`
	Kept     uint64 `json:"kept"`
	Doubtful uint64 `json:"doubtful"`
	Bytes    uint64 `json:"deleted_bytes"`
	// Ages counts the candidates by age; see Ages.
	Ages []uint64 `json:"ages"`
	// Inventory is the key of the inventory that it takes its keys from; empty: it lists the bucket.
	Inventory string `json:"inventory,omitempty"`
}

// Ages bound the classes of Sweep.Ages; the last one is what is older.
var Ages = []time.Duration{2 * 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour}

// Cause says why the breaker tripped. Values are stable.
type Cause string

// Causes.
const (
	// TooMany: a plan of more than 50 blobs and more than 10% of those that it was chosen from.
	TooMany Cause = "TOO_MANY"
	// Hidden: a manifest that the journal names, or that was there before, can't be seen.
	Hidden Cause = "HIDDEN"
)

// Breaker is why nothing is collected.
type Breaker struct {
	Cause Cause  `json:"cause"`
	Plan  uint64 `json:"plan"`
	At    int64  `json:"at_unix_s"`
	// Candidates of Listed blobs, for TOO_MANY; Key of the manifest, for HIDDEN.
	Candidates uint64 `json:"candidates"`
	Listed     uint64 `json:"listed"`
	Key        string `json:"key"`
	// Released by an operator. Of TOO_MANY, it lets one plan pass that is not larger, until the sweep has ended; of HIDDEN, the
	// manifest is Lost from then on.
	Released bool   `json:"released"`
	By       string `json:"released_by"`
}

// Holds reports whether nothing may be collected.
func (s *State) Holds() bool { return s.Breaker != nil && !s.Breaker.Released }

// Marshal writes the canonical JSON.
func (s State) Marshal() []byte { return s.kind().Marshal(s) }

func (s *State) kind() record.Kind {
	if s.EpochsAt > 0 {
		return EpochsStateKind
	}
	return StateKind
}

// ParseState reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseState(b []byte) (State, error) {
	var s State
	kind, err := record.OneOf(b, EpochsStateKind, StateKind)
	if err == nil {
		err = kind.Unmarshal(b, &s)
	}
	if err == nil {
		err = s.validate()
	}
	if err == nil && kind.Schema != s.kind().Schema {
		err = fmt.Errorf("schema %s with epochs since %d", kind.Schema, s.EpochsAt)
	}
	return s, StateKind.Wrap("", err)
}

func (s *State) validate() error {
	bad := validName("authority id", s.AuthorityID) != nil || len(s.Holder) > math.MaxUint8 || len(s.Claim) > math.MaxUint8 || s.UpdatedAt < 0 || s.CreatedAt < 0 || s.EpochsAt < 0
	for _, w := range []*Sweep{&s.Sweep, &s.Last} {
		bad = bad || w.BeganAt < 0 || w.EndedAt < 0 || len(w.Cursor) > maxCursor || len(w.Inventory) > maxCursor || len(w.Ages) > len(Ages)+1
	}
	for _, keys := range [][]string{s.Witnesses, s.Lost} {
		bad = bad || len(keys) > maxWitnesses || slices.ContainsFunc(keys, notAManifest)
	}
	bad = bad || len(s.Postponed) > maxPostponed || slices.ContainsFunc(s.Postponed, func(p Postponed) bool {
		return !strings.HasPrefix(p.Key, layout.OrphanReportsPrefix) || len(p.Key) > math.MaxUint8 || p.Attempts < 1 || p.Attempts >= maxAttempts || p.Due < 0
	})
	if bad {
		return fmt.Errorf("a field is out of its bounds: authority %.128q, claim %.40q, %d witnesses, %d lost", s.AuthorityID, s.Claim, len(s.Witnesses), len(s.Lost))
	}
	if b := s.Breaker; b != nil && b.Cause != TooMany && b.Cause != Hidden {
		return fmt.Errorf("cause %.40q of the breaker", b.Cause)
	}
	return nil
}

const (
	maxCursor    = 2048
	maxWitnesses = 16
)

func notAManifest(key string) bool {
	return !strings.HasPrefix(key, layout.AcceptedPrefix) || len(key) > maxCursor
}

// ReadState reads the state; the zero State where there is none.
func ReadState(ctx context.Context, s objstore.Getter, authority string) (st State, etag string, err error) {
	st, info, err := record.Read(ctx, s, layout.GCStateKey, StateKind, ParseState)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return State{}, "", nil
	case err == nil && st.AuthorityID != authority:
		err = StateKind.Corrupt(layout.GCStateKey, "it is of the authority %q", st.AuthorityID)
	}
	return st, info.ETag, err
}

// StateStore is what moving the state needs.
type StateStore interface {
	objstore.Getter
	objstore.Creator
	objstore.Replacer
}

// moves bounds the attempts to move the state against others that move it too.
const moves = 8

// MoveState reads the state, changes it and writes it by If-Match, again where another was first. change may refuse with an
// error, which is returned. The state that was written is returned.
func MoveState(ctx context.Context, s StateStore, authority string, change func(*State) error) (State, error) {
	var last error
	var mine string
	for range moves {
		st, etag, err := ReadState(ctx, s, authority)
		if err != nil {
			return State{}, fmt.Errorf("move the state of garbage collection: %w", err)
		}
		// The answer was lost, and the write was applied.
		if mine != "" && string(st.Marshal()) == mine {
			return st, nil
		}
		st.AuthorityID = authority
		if err := change(&st); err != nil {
			return State{}, err
		}
		st.Moves++
		body := st.Marshal()
		if etag == "" {
			_, err = s.Create(ctx, layout.GCStateKey, body, jsonContent)
		} else {
			_, err = s.Replace(ctx, layout.GCStateKey, body, etag, jsonContent)
		}
		if err == nil {
			return st, nil
		}
		mine, last = string(body), err
		open := errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, objstore.ErrConflict)
		if !open || ctx.Err() != nil {
			break
		}
	}
	return State{}, fmt.Errorf("move the state of garbage collection: %w", last)
}

// Errors of ReleaseBreaker.
var ErrNotTripped = errors.New("the breaker has not tripped")

// ReleaseBreaker lets the collection go on; by names the operator. Errors: ErrNotTripped, or the store's.
func ReleaseBreaker(ctx context.Context, s StateStore, authority, by string) (State, error) {
	return MoveState(ctx, s, authority, func(st *State) error {
		if !st.Holds() {
			return ErrNotTripped
		}
		b := *st.Breaker
		b.Released, b.By = true, by
		st.Breaker = &b
		if b.Cause == Hidden && !slices.Contains(st.Lost, b.Key) {
			st.Lost = append(st.Lost[max(len(st.Lost)-maxWitnesses+1, 0):], b.Key)
		}
		return nil
	})
}

// RequestSweep asks whoever collects for a sweep now, if none is under way.
func RequestSweep(ctx context.Context, s StateStore, authority string) (State, error) {
	return MoveState(ctx, s, authority, func(st *State) error {
		st.Requested = true
		return nil
	})
}
