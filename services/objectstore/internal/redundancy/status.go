package redundancy

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// Status is how redundant the bodies are.
type Status struct {
	// Time is when the status was taken; ages are counted up to it.
	Time   time.Time     `json:"time"`
	Policy Policy        `json:"policy"`
	Places []PlaceReport `json:"places"`
	// Files by state, in the order of a file's life.
	Files []StateCount `json:"files"`
	// Missing files were there and are to be made again.
	Missing int64 `json:"missing_files"`
	// Queued bodies need something, or may; OldestSeconds is how long one of them has waited at most.
	Queued        int64   `json:"queued_bodies"`
	OldestSeconds float64 `json:"oldest_seconds"`
	DeadLetters   int64   `json:"dead_letters"`
	Heal          Heal    `json:"heal"`
	Scrub         Pass    `json:"scrub"`
	// ScrubPeriodSeconds is the time in which every file is to be read back; 0: never.
	ScrubPeriodSeconds float64  `json:"scrub_period_seconds"`
	Sweep              Pass     `json:"sweep"`
	Counters           Counters `json:"since_start"`
	// Segments of the log that are bodies, or will be.
	Segments SegmentStatus `json:"segments"`
	// Error is why the ledger takes no changes; empty while it does.
	Error string `json:"error,omitempty"`
}

// SegmentStatus is how much of the log is coded.
type SegmentStatus struct {
	// Coded segments are bodies, of CodedBytes; Waiting ones will be. LogBytes are of the others.
	Coded      int   `json:"coded_segments"`
	CodedBytes int64 `json:"coded_bytes"`
	Waiting    int   `json:"waiting_segments"`
	LogBytes   int64 `json:"log_bytes"`
}

// PlaceReport is a place, with its last listing.
type PlaceReport struct {
	PlaceStatus
	Listing Pass `json:"listing"`
}

// StateCount counts the files of a state.
type StateCount struct {
	State string `json:"state"`
	Files int64  `json:"files"`
}

// Counters count since the start.
type Counters struct {
	FilesMade    int64 `json:"files_made"`
	FilesLost    int64 `json:"files_lost"`
	FilesDamaged int64 `json:"files_damaged"`
	FilesMoved   int64 `json:"files_moved"`
	FilesRemoved int64 `json:"files_removed"`
	// BytesMade are of the files that were made, BytesRead of those that were read back.
	BytesMade int64 `json:"made_bytes"`
	BytesRead int64 `json:"read_bytes"`
}

// Heal is how far lost files are made again.
type Heal struct {
	// Began is when the first of the files was found missing; zero while none is.
	Began time.Time `json:"began_at"`
	// Files that are missing, and the most that were since Began.
	Files int64 `json:"files"`
	Most  int64 `json:"most_files"`
}

// Left estimates how long the rest takes, at the pace so far; 0 when there is none to tell from.
func (h Heal) Left(now time.Time) time.Duration {
	made := h.Most - h.Files
	if h.Began.IsZero() || made <= 0 {
		return 0
	}
	return time.Duration(float64(now.Sub(h.Began)) / float64(made) * float64(h.Files)).Round(time.Second)
}

// measure follows the healing.
func (k *Keeper) measure() {
	n := k.ledger.Totals().Lost
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case n == 0:
		k.heal = Heal{}
	case k.heal.Began.IsZero():
		k.heal = Heal{Began: k.now().UTC(), Files: n, Most: n}
	default:
		k.heal.Files, k.heal.Most = n, max(k.heal.Most, n)
	}
}

// Counters gives the figures since the start.
func (k *Keeper) Counters() Counters {
	c := &k.count
	return Counters{FilesMade: c.filesMade.Load(), FilesLost: c.filesLost.Load(), FilesDamaged: c.damaged.Load(), FilesMoved: c.filesMoved.Load(),
		FilesRemoved: c.filesRemoved.Load(), BytesMade: c.bytesMade.Load(), BytesRead: c.bytesRead.Load()}
}

// Status gives the status now.
func (k *Keeper) Status() (Status, error) {
	k.measure()
	now := k.now()
	tot := k.ledger.Totals()
	s := Status{Time: now.UTC(), Policy: k.policy, Places: []PlaceReport{}, Missing: tot.Lost, Queued: tot.Queued, DeadLetters: tot.Dead,
		ScrubPeriodSeconds: k.opt.ScrubPeriod.Seconds(), Counters: k.Counters()}
	for _, st := range ledger.States() {
		s.Files = append(s.Files, StateCount{st.String(), tot.Rows[st]})
	}
	if k.opt.Segments != nil {
		s.Segments = k.opt.Segments()
	}
	if err := k.ledger.Err(); err != nil {
		s.Error = err.Error()
		return s, nil
	}
	since, ok, err := k.ledger.Waiting()
	if err != nil {
		return s, err
	}
	if ok {
		s.OldestSeconds = max(0, now.Sub(since).Seconds())
	}
	for _, p := range k.tracker.statuses() {
		s.Places = append(s.Places, PlaceReport{p, k.pass(p.ID)})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.Heal, s.Scrub, s.Sweep = k.heal, k.scrub.pass, k.sweep.pass
	return s, nil
}

// Overdue is how long the scrub is behind its period; 0 when it is not, and without one.
func (s Status) Overdue() time.Duration {
	if s.ScrubPeriodSeconds == 0 {
		return 0
	}
	from := s.Scrub.Last
	if from.IsZero() {
		from = s.Scrub.Began
	}
	if from.IsZero() {
		return 0
	}
	// A pass takes most of a period, and begins when the one before has begun a period ago.
	period := time.Duration(s.ScrubPeriodSeconds * float64(time.Second))
	return max(0, s.Time.Sub(from)-2*period)
}

// FileReport is a row of the ledger as an operator sees it.
type FileReport struct {
	Body     string    `json:"body"`
	Policy   uint32    `json:"policy"`
	Kind     string    `json:"kind"`
	Index    int       `json:"index"`
	Scheme   string    `json:"scheme"`
	Place    string    `json:"place"`
	Size     int64     `json:"body_bytes"` // -1: not known
	State    string    `json:"state"`
	Missing  bool      `json:"missing"`
	Error    string    `json:"error,omitempty"`
	Changed  time.Time `json:"changed_at"`
	Verified time.Time `json:"verified_at"` // zero: never
	// After continues a listing behind this row.
	After string `json:"after"`
}

// Query selects rows: of a body, in a state, at a place by its name, or all; those behind After.
type Query struct {
	Body, State, Place, After string
	Limit                     int
}

// ErrQuery: what was asked for is not known.
var ErrQuery = errors.New("no such query")

// Files gives the rows that a query selects, at most 1,000.
func (k *Keeper) Files(q Query) ([]FileReport, error) {
	var behind ledger.Key
	if q.After != "" {
		var err error
		if behind, err = parseAfter(q.After); err != nil {
			return nil, err
		}
	}
	var rows []ledger.Row
	var err error
	switch {
	case q.Body != "":
		if !isID(q.Body) {
			return nil, fmt.Errorf("%w: body %q", ErrQuery, q.Body)
		}
		rows, err = k.ledger.Rows(q.Body)
	case q.State != "":
		st, ok := stateOf(q.State)
		if !ok {
			return nil, fmt.Errorf("%w: state %q", ErrQuery, q.State)
		}
		rows, err = k.ledger.InState(st, behind, q.Limit)
	case q.Place != "":
		ids := k.tracker.ids([]string{q.Place})
		if len(ids) == 0 {
			return nil, fmt.Errorf("%w: there is no place %q", ErrQuery, q.Place)
		}
		rows, err = k.ledger.AtPlace(ids[0], behind, q.Limit)
	default:
		rows, err = k.ledger.List(behind, q.Limit)
	}
	out := make([]FileReport, 0, len(rows))
	for _, r := range rows {
		out = append(out, k.report(r))
	}
	return out, err
}

func (k *Keeper) report(r ledger.Row) FileReport {
	f := FileReport{Body: r.Body, Policy: r.Policy, Kind: r.Kind.String(), Index: int(r.Index), Scheme: fmt.Sprintf("%d+%d", r.K, r.M),
		Place: k.tracker.name(r.Place), Size: r.Size, State: r.State.String(), Missing: r.Lost, Error: r.Error, Changed: time.Unix(0, r.Changed).UTC(),
		After: fmt.Sprintf("%s.%d.%d.%d", r.Body, r.Policy, r.Kind, r.Index)}
	if r.Kind == ledger.Copy {
		f.Scheme = "copy"
	}
	if r.Verified != 0 {
		f.Verified = time.Unix(0, r.Verified).UTC()
	}
	return f
}

func parseAfter(s string) (k ledger.Key, err error) {
	if len(s) < 33 || s[32] != '.' || !isID(s[:32]) {
		return k, fmt.Errorf("%w: %q continues no listing", ErrQuery, s)
	}
	k.Body = s[:32]
	if _, err := fmt.Sscanf(s[33:], "%d.%d.%d", &k.Policy, &k.Kind, &k.Index); err != nil {
		return k, fmt.Errorf("%w: %q continues no listing", ErrQuery, s)
	}
	return k, nil
}

// isID: the name of a body, 32 hex digits.
func isID(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16
}

func stateOf(name string) (ledger.State, bool) {
	for _, s := range ledger.States() {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Letter is a message as an operator sees it.
type Letter struct {
	Body     string    `json:"body"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"`
	First    time.Time `json:"since"`
	Due      time.Time `json:"due_at"`
	Error    string    `json:"error"`
}

func letters(list []ledger.Message) []Letter {
	out := make([]Letter, 0, len(list))
	for _, m := range list {
		out = append(out, Letter{m.Body, m.Reason, m.Attempts, time.Unix(0, m.First).UTC(), time.Unix(0, m.Due).UTC(), m.Error})
	}
	return out
}

// DeadLetters gives up to limit bodies that were tried too often, behind one.
func (k *Keeper) DeadLetters(after string, limit int) ([]Letter, error) {
	list, err := k.ledger.Dead(after, limit)
	if err != nil && k.ledger.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrQuery, err)
	}
	return letters(list), err
}

// Queue gives up to limit bodies that wait, the first due first.
func (k *Keeper) Queue(limit int) ([]Letter, error) {
	list, err := k.ledger.Queue(limit)
	return letters(list), err
}

// RetryDead queues a dead letter again; false when there is none.
func (k *Keeper) RetryDead(body string) (bool, error) {
	ok, err := k.ledger.Redrive(body, k.now())
	k.rouse()
	return ok, err
}

// DropDead takes a dead letter away. Nothing else of the body changes: a later sweep may queue it again.
func (k *Keeper) DropDead(body string) (bool, error) { return k.ledger.DropDead(body) }

// HealNow makes what heals by itself go on now: every place is listed, every body looked at, and what waits is due.
func (k *Keeper) HealNow() error {
	k.mu.Lock()
	clear(k.inventory)
	k.asked++
	k.mu.Unlock()
	k.begin(passLook, passList)
	k.resweep()
	_, err := k.ledger.Hasten(k.now())
	k.rouse()
	return err
}
