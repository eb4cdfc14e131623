package resolution

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kinds of what senders and collectors leave for operators to see. Nothing is decided by them.
var (
	ClashKind  = record.Kind{Schema: "lightmetrics.boot_clash.v1", Title: "record of a boot clash", MaxBytes: 8192}
	ParkedKind = record.Kind{Schema: "lightmetrics.parked.v1", Title: "record of where a frame is parked", MaxBytes: 8192}
)

// MaxClashes is how many other spools of one boot are recorded.
const MaxClashes = 16

// Bounds of what senders say of themselves. Each byte may take six in JSON.
const (
	maxHostBytes = 256
	maxPageBytes = 256
	maxPathBytes = 512
)

// Clash is the first time that a spool used a boot id that belongs to another one. Whom it belongs to says the
// boot's record.
type Clash struct {
	AuthorityID string `json:"authority_id"`
	AgentID     string `json:"agent_id"`
	BootID      string `json:"boot_id"`
	// SpoolID of the sender that was refused.
	SpoolID string `json:"spool_id"`
	// Peer is the network address that it was refused at, as the collector saw it; empty where it is not known.
	Peer       string `json:"peer,omitempty"`
	ObservedAt int64  `json:"observed_at_unix_ns"`
	// CollectorID of the collector that refused it.
	CollectorID string `json:"collector_id"`
}

// Boot that the clash is about.
func (c Clash) Boot() identity.Boot { return identity.Boot{Agent: c.AgentID, Boot: c.BootID} }

// Key of the record.
func (c Clash) Key() string { return layout.Clash(c.Boot(), c.SpoolID) }

// Marshal writes the canonical JSON.
func (c Clash) Marshal() []byte { return ClashKind.Marshal(c) }

// ParseClash reads the record under key; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseClash(key string, b []byte) (Clash, error) {
	var c Clash
	if err := ClashKind.Unmarshal(b, &c); err != nil {
		return Clash{}, ClashKind.Wrap(key, err)
	}
	err := c.Boot().Validate()
	switch {
	case err != nil:
	case c.Key() != key:
		err = fmt.Errorf("it is of %s, spool %q", c.Boot(), c.SpoolID)
	case len(c.SpoolID) > maxNameBytes, len(c.Peer) > maxHostBytes, c.ObservedAt < 0:
		err = fmt.Errorf("spool %.64q, peer %.64q, observed_at_unix_ns %d", c.SpoolID, c.Peer, c.ObservedAt)
	default:
		return c, nil
	}
	return Clash{}, ClashKind.Corrupt(key, "%w", err)
}

// ErrManyClashes says that MaxClashes other spools of a boot are recorded already.
var ErrManyClashes = errors.New("enough other spools of this boot are recorded")

// RecordClash records a clash unless it, or MaxClashes others of the boot, are recorded. Whoever was first stays, so
// that the record has the first time. It takes a LIST and, for a new one, a PUT.
func RecordClash(ctx context.Context, s objstore.Store, c Clash) error {
	page, err := s.List(ctx, objstore.ListOptions{Prefix: layout.ClashesOf(c.Boot()), Limit: MaxClashes})
	if err != nil {
		return fmt.Errorf("record clash: list %s: %w", layout.ClashesOf(c.Boot()), err)
	}
	for _, o := range page.Objects {
		if o.Key == c.Key() {
			return nil
		}
	}
	if len(page.Objects) >= MaxClashes {
		return fmt.Errorf("record clash %s: %w", c.Key(), ErrManyClashes)
	}
	return createOnce(ctx, s, c.Key(), c.Marshal())
}

// Parked is where an agent says that it has a parked frame, for people who look for it. Of several agents with one
// frame, as of a cloned disk, the first that asks is in the record.
type Parked struct {
	AuthorityID     string          `json:"authority_id"`
	AgentID         string          `json:"agent_id"`
	BootID          string          `json:"boot_id"`
	SeqStart        uint64          `json:"seq_start"`
	SeqEnd          uint64          `json:"seq_end"`
	SubmittedSHA256 identity.Digest `json:"submitted_sha256"`
	// Host, Page and Directory are the agent's words: its machine, the URL of its own page, and the folder of its
	// parked frames. Empty where it does not say.
	Host      string `json:"host,omitempty"`
	Page      string `json:"page,omitempty"`
	Directory string `json:"directory,omitempty"`
	// Peer is the network address that it asked from, as the collector saw it.
	Peer        string `json:"peer,omitempty"`
	ObservedAt  int64  `json:"observed_at_unix_ns"`
	CollectorID string `json:"collector_id"`
}

// Identity that the frame was submitted under.
func (p Parked) Identity() identity.Batch {
	return identity.Batch{Agent: p.AgentID, Boot: p.BootID, SeqStart: p.SeqStart, SeqEnd: p.SeqEnd}
}

// Key of the record.
func (p Parked) Key() string { return layout.Parked(p.Identity(), p.SubmittedSHA256) }

// Marshal writes the canonical JSON.
func (p Parked) Marshal() []byte { return ParkedKind.Marshal(p) }

// Cut shortens what the agent says to what a record holds.
func (p Parked) Cut() Parked {
	p.Host, p.Page, p.Directory = cut(p.Host, maxHostBytes), cut(p.Page, maxPageBytes), cut(p.Directory, maxPathBytes)
	return p
}

func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// ParseParked reads the record under key; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseParked(key string, b []byte) (Parked, error) {
	var p Parked
	if err := ParkedKind.Unmarshal(b, &p); err != nil {
		return Parked{}, ParkedKind.Wrap(key, err)
	}
	err := p.Identity().Validate()
	switch {
	case err != nil:
	case p.Key() != key:
		err = fmt.Errorf("it is of %s, frame %s", p.Identity(), p.SubmittedSHA256)
	case p.ObservedAt < 0:
		err = fmt.Errorf("observed_at_unix_ns %d", p.ObservedAt)
	default:
		return p, nil
	}
	return Parked{}, ParkedKind.Corrupt(key, "%w", err)
}

// RecordParked records where a frame is parked, if it lost a conflict and nobody did before. It takes a HEAD and a PUT.
func RecordParked(ctx context.Context, s objstore.Store, p Parked) error {
	lost := layout.Quarantine(p.Identity(), p.SubmittedSHA256)
	_, err := s.Head(ctx, lost)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil // it is parked for another reason, and no list shows it
	case err != nil:
		return fmt.Errorf("record parked: %s: %w", lost, err)
	}
	return createOnce(ctx, s, p.Key(), p.Marshal())
}

// createOnce creates a record of which the first one stays.
func createOnce(ctx context.Context, s objstore.Store, key string, body []byte) error {
	_, err := s.Create(ctx, key, body, objstore.PutOptions{ContentType: "application/json"})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("record %s: %w", key, err)
	}
	return nil
}
