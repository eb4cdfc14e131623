package live

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config bounds a Store.
type Config struct {
	// History is how far back samples are kept, by sample time.
	History time.Duration
	// MaxBytes bounds columns, labels and indexes, by an estimate of their heap size.
	MaxBytes int64
	// PackAt is the number of bytes in use from which on samples are packed; 0 is half of MaxBytes.
	PackAt int64
	// MaxSeries bounds distinct label sets.
	MaxSeries int
	// AgentShare is the percentage of each bound beyond which an agent's own oldest samples are evicted before
	// those of other agents; 0 evicts the oldest of all agents.
	AgentShare int
	// Future is how far after now a sample may lie before it is evicted ahead of all others; 0 has no such limit.
	Future time.Duration
	// LossBytes bounds what is known of evicted batches one by one; 0 is 4 MiB.
	LossBytes int
	// AgentLabel names the label with the agent that is added to each series. With an empty name none is added,
	// and equal labels of several agents are one series.
	AgentLabel agentlabel.Name
}

// Validate wants positive bounds and a valid label name.
func (c Config) Validate() error {
	if c.History <= 0 || c.MaxBytes <= 0 || c.MaxSeries <= 0 {
		return errors.New("live: history, bytes and series must be positive")
	}
	if c.AgentShare < 0 || c.AgentShare > 100 || c.Future < 0 || c.PackAt < 0 {
		return errors.New("live: the share of an agent must be 0 to 100 percent, the bounds on the future and on packing not negative")
	}
	return c.AgentLabel.Validate()
}

// Outcome says what Insert or Note did.
type Outcome uint8

// Outcomes.
const (
	Inserted Outcome = iota + 1
	Repeat           // the identity was there with the same hash; nothing changed
	Expired          // all samples lie before the history window; nothing is kept
)

// ConflictError refuses an identity that is in the store with another hash.
type ConflictError struct {
	Identity  identity.Batch
	Have, Got identity.Digest
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("live: %s is here as %s, refused as %s", e.Identity, e.Have, e.Got)
}

// MismatchError refuses a frame that is not the manifest's.
type MismatchError struct {
	Manifest, Frame identity.Batch
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("live: frame is of %s, manifest of %s", e.Frame, e.Manifest)
}
