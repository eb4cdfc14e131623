// Package events takes the events of an object store, from a webhook or a queue, as hints: at which segment of the
// journal to look, and which manifest should soon have an entry there. An event proves nothing, so it may be lost, late, repeated
// or made up: whoever gets a hint reads the store.
package events

import (
	"cmp"
	"log/slog"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// stale is the age from which a hint at a segment is left out: polls have read what it names. Otherwise a queue that
// nobody has emptied for days would cause as many polls as it has messages.
const stale = 5 * time.Minute

// Deps of a Receiver.
type Deps struct {
	// Bucket and Prefix are those of the authority; events of others are counted and left out.
	Bucket, Prefix string
	// Segment gets the position of a segment that was written, and Accepted the identity of a manifest; neither may wait. A
	// nil Accepted leaves manifests out.
	Segment  func(journal.Position)
	Accepted func(identity.Batch)

	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time
}

// Receiver turns messages into hints. Safe for concurrent use.
type Receiver struct{ d Deps }

// NewReceiver makes a Receiver.
func NewReceiver(d Deps) *Receiver { return &Receiver{d} }

// Counts are what the events of a message were.
type Counts struct {
	// Hints were given on: segments of the journal, and manifests.
	Hints int `json:"hints"`
	// Foreign are of another bucket or prefix.
	Foreign int `json:"foreign"`
	// Ignored are of other keys, no creations, or too old.
	Ignored int `json:"ignored"`
}

// Take gives on what a message says. An error wraps ErrUnknownMessage.
func (r *Receiver) Take(source string, body []byte) (Counts, error) {
	m, err := Parse(body)
	if err != nil {
		r.d.Metrics.messages.WithLabelValues(source, "unknown").Inc()
		return Counts{}, err
	}
	result := "taken"
	if m.Test {
		result = "test"
	}
	r.d.Metrics.messages.WithLabelValues(source, result).Inc()
	c := Counts{Ignored: m.Other}
	r.d.Metrics.objects.WithLabelValues(source, "other").Add(float64(m.Other))
	for _, e := range m.Created {
		kind := r.one(e)
		switch kind {
		case "segment", "accepted":
			c.Hints++
		case "foreign":
			c.Foreign++
		default:
			c.Ignored++
		}
		r.d.Metrics.objects.WithLabelValues(source, kind).Inc()
	}
	return c, nil
}

// one gives on one event, and says what it was.
func (r *Receiver) one(e Event) string {
	key, ours := strings.CutPrefix(e.Key, r.d.Prefix)
	if !ours || e.Bucket != r.d.Bucket {
		return "foreign"
	}
	if run, n, err := layout.ParseJournalSegment(key); err == nil {
		if !e.At.IsZero() && r.d.Now().Sub(e.At) > stale {
			return "stale"
		}
		r.d.Segment(journal.Position{Run: run, Segment: n})
		return "segment"
	}
	if id, err := layout.ParseAccepted(key); err == nil && r.d.Accepted != nil {
		r.d.Accepted(id)
		return "accepted"
	}
	return "other"
}

// name is the message's, for the log.
func name(m QueuedMessage) string { return cmp.Or(m.ID, "without an id") }
