// Package resolution is what operators decide about conflicts, and what agents did about it: a log
// of decisions, each created conditionally under the next number, and a record for each parked frame
// that an agent has settled. docs/protocol/conflicts.md has the order of the writes and its reasons.
package resolution

import (
	"encoding/hex"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Action is what was decided.
type Action string

// Actions.
const (
	// AcceptExisting: the accepted frame stays, and agents drop the parked one.
	AcceptExisting Action = "accept_existing"
	// KeepBoth: the parked frame's records get new numbers of a new boot.
	KeepBoth Action = "keep_both"
	// Quarantine: collectors take nothing of an agent, or of one of its boots, until Release.
	Quarantine Action = "quarantine"
	Release    Action = "release"
)

// Settles reports whether the action is about parked frames.
func (a Action) Settles() bool { return a == AcceptExisting || a == KeepBoth }

// Holds reports whether the action is about a sender.
func (a Action) Holds() bool { return a == Quarantine || a == Release }

// Bounds of a record.
const (
	// MaxConflicts of one decision.
	MaxConflicts = 500
	// MaxNoteBytes of the operator's words.
	MaxNoteBytes = 1024
	maxNameBytes = 128
	// maxRecord is above the longest that Check lets pass: agents choose the names of boots, of which each byte may take six.
	maxRecord = 512 << 10
)

// Kinds of the records. A resolution is exact: a reader that ignored a part of it would do something
// else than what was decided.
var (
	Kind        = record.Kind{Schema: "lightmetrics.resolution.v1", Title: "resolution", MaxBytes: maxRecord, Exact: true}
	SettledKind = record.Kind{Schema: "lightmetrics.settled.v1", Title: "record of a settled conflict", MaxBytes: 8192}
)

// Conflict names a parked frame of the resolution's agent.
type Conflict struct {
	BootID          string          `json:"boot_id"`
	SeqStart        uint64          `json:"seq_start"`
	SeqEnd          uint64          `json:"seq_end"`
	SubmittedSHA256 identity.Digest `json:"submitted_sha256"`
}

// Of is the identity that the frame was submitted under.
func (c Conflict) Of(agent string) identity.Batch {
	return identity.Batch{Agent: agent, Boot: c.BootID, SeqStart: c.SeqStart, SeqEnd: c.SeqEnd}
}

// Resolution is one decision.
type Resolution struct {
	AuthorityID string `json:"authority_id"`
	Number      uint64 `json:"number"`
	Action      Action `json:"action"`
	AgentID     string `json:"agent_id"`
	// BootID restricts Quarantine and Release to one boot.
	BootID string `json:"boot_id,omitempty"`
	// Conflicts are what AcceptExisting and KeepBoth are about.
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Principal that decided, as its credentials say.
	Principal string `json:"principal"`
	// DecidedAt by the clock of the service that wrote the record, Unix nanoseconds.
	DecidedAt int64  `json:"decided_at_unix_ns"`
	Note      string `json:"note,omitempty"`
	// AttemptID is random for each call, by which a writer whose answer was lost knows its own record.
	AttemptID string `json:"attempt_id"`
}

// Marshal writes the canonical JSON.
func (r Resolution) Marshal() []byte { return Kind.Marshal(r) }

// Check refuses what no writer may write.
func (r Resolution) Check() error {
	boot := identity.Boot{Agent: r.AgentID, Boot: r.BootID}
	if boot.Boot == "" {
		boot.Boot = "any"
	}
	if err := boot.Validate(); err != nil {
		return err
	}
	switch {
	case !r.Action.Settles() && !r.Action.Holds():
		return fmt.Errorf("action is %.64q", r.Action)
	case r.Action.Settles() && (len(r.Conflicts) == 0 || r.BootID != ""):
		return fmt.Errorf("%s names %d conflicts and the boot %q", r.Action, len(r.Conflicts), r.BootID)
	case r.Action.Holds() && len(r.Conflicts) > 0:
		return fmt.Errorf("%s names %d conflicts", r.Action, len(r.Conflicts))
	case len(r.Conflicts) > MaxConflicts:
		return fmt.Errorf("%d conflicts, at most %d", len(r.Conflicts), MaxConflicts)
	case len(r.Note) > MaxNoteBytes:
		return fmt.Errorf("note has %d bytes, at most %d", len(r.Note), MaxNoteBytes)
	case r.Principal == "" || len(r.Principal) > 1024 || len(r.AuthorityID) > maxNameBytes:
		return fmt.Errorf("principal %.64q, authority %.64q", r.Principal, r.AuthorityID)
	case r.DecidedAt < 0 || len(r.AttemptID) == 0 || len(r.AttemptID) > maxNameBytes:
		return fmt.Errorf("decided_at_unix_ns %d, attempt_id %.64q", r.DecidedAt, r.AttemptID)
	}
	for _, c := range r.Conflicts {
		if err := c.Of(r.AgentID).Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Parse reads the decision under key; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(key string, b []byte) (Resolution, error) {
	var r Resolution
	if err := Kind.Unmarshal(b, &r); err != nil {
		return Resolution{}, Kind.Wrap(key, err)
	}
	if err := r.Check(); err != nil {
		return Resolution{}, Kind.Corrupt(key, "%w", err)
	}
	if layout.Resolution(r.Number) != key {
		return Resolution{}, Kind.Corrupt(key, "it has the number %d", r.Number)
	}
	return r, nil
}

// Settled is what an agent did about a parked frame.
type Settled struct {
	AuthorityID     string          `json:"authority_id"`
	AgentID         string          `json:"agent_id"`
	BootID          string          `json:"boot_id"`
	SeqStart        uint64          `json:"seq_start"`
	SeqEnd          uint64          `json:"seq_end"`
	SubmittedSHA256 identity.Digest `json:"submitted_sha256"`
	// Number and Action of the resolution.
	Number uint64 `json:"number"`
	Action Action `json:"action"`
	// KeptBootID, from number 1 through KeptSeqEnd, has the records since KeepBoth.
	KeptBootID string `json:"kept_boot_id,omitempty"`
	KeptSeqEnd uint64 `json:"kept_seq_end,omitempty"`
	SettledAt  int64  `json:"settled_at_unix_ns"`
	// CollectorID of the collector that the agent told.
	CollectorID string `json:"collector_id"`
}

// Identity that the frame was submitted under.
func (s Settled) Identity() identity.Batch {
	return identity.Batch{Agent: s.AgentID, Boot: s.BootID, SeqStart: s.SeqStart, SeqEnd: s.SeqEnd}
}

// Key of the record.
func (s Settled) Key() string { return layout.Settled(s.Identity(), s.SubmittedSHA256) }

// Marshal writes the canonical JSON.
func (s Settled) Marshal() []byte { return SettledKind.Marshal(s) }

// ParseSettled reads the record under key; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseSettled(key string, b []byte) (Settled, error) {
	var s Settled
	if err := SettledKind.Unmarshal(b, &s); err != nil {
		return Settled{}, SettledKind.Wrap(key, err)
	}
	err := s.Identity().Validate()
	switch {
	case err != nil:
	case s.Key() != key:
		err = fmt.Errorf("it is of %s, frame %s", s.Identity(), s.SubmittedSHA256)
	case s.Number == 0 || !s.Action.Settles():
		err = fmt.Errorf("number %d, action %.64q", s.Number, s.Action)
	case s.Action == KeepBoth && (s.KeptBootID != Kept(s.AgentID, s.SubmittedSHA256).Boot || s.KeptSeqEnd == 0):
		err = fmt.Errorf("records are kept under boot %.64q through %d", s.KeptBootID, s.KeptSeqEnd)
	default:
		return s, nil
	}
	return Settled{}, SettledKind.Corrupt(key, "%w", err)
}

// Kept is the boot that the records of a parked frame get with KeepBoth. It is a function of the
// frame, so that an agent that does it twice, or two agents with one parked frame, give the records
// one identity, under which they count once.
func Kept(agent string, submitted identity.Digest) identity.Boot {
	return identity.Boot{Agent: agent, Boot: keptID("boot", submitted)}
}

// KeptSpool is the spool id that claims the boot of Kept: a function of the frame for the same reason.
func KeptSpool(submitted identity.Digest) string { return keptID("spool", submitted) }

func keptID(what string, d identity.Digest) string {
	sum := identity.Sum(append([]byte("lightmetrics keep both "+what+"\x00"), d[:]...))
	return hex.EncodeToString(sum[:16])
}
