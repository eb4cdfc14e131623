package accept

import (
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// MaxRecordBytes bounds every JSON record of this package; a reader may refuse
// longer objects unread.
const MaxRecordBytes = 8 << 10

// Bounds of text fields, in bytes.
const (
	MaxNameBytes    = 128 // collector, authority and spool ids
	maxKeyBytes     = 1024
	attemptIDDigits = 32
)

// checkBlobKey wants the key of any generation of want's blob.
func checkBlobKey(d *record.Reader, name, key string, want identity.Digest) {
	if d.Err() != nil {
		return
	}
	if got, _, err := layout.ParseBlob(key); err != nil || got != want {
		d.Fail("%s %q is not a blob of %s", name, key, want)
	}
}
