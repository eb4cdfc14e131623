package publish

import (
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Txn names a transaction: the publication of one plan as one generation. It is a function of both, so a worker
// that resumes the generation continues the same transaction, and a reference that is added twice counts once.
type Txn string

const planDigits = 32

// NewTxn is the transaction that publishes the plan under the manifest key.
func NewTxn(manifestKey string, plan identity.Digest) Txn {
	return Txn(manifestKey + "@" + plan.String()[:planDigits])
}

// ManifestKey is where the transaction is decided.
func (t Txn) ManifestKey() string {
	key, _, _ := strings.Cut(string(t), "@")
	return key
}

// Validate refuses what NewTxn would not have made.
func (t Txn) Validate() error {
	key, plan, ok := strings.Cut(string(t), "@")
	// The plan's digest is cut to 128 bits: enough to tell plans of one generation apart, and the set of an object
	// stays small.
	if !ok || len(plan) != planDigits || strings.Trim(plan, "0123456789abcdef") != "" {
		return fmt.Errorf("%.300q is not a transaction", string(t))
	}
	if _, err := layout.ParseBlockManifest(key); err != nil {
		return fmt.Errorf("transaction %.300q: %w", string(t), err)
	}
	return nil
}
