package accept

import (
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// MaxRecordBytes bounds every JSON record of this package, in bytes; a reader may refuse
// longer objects unread.
const MaxRecordBytes = 8 << 10

// Bounds of text fields, in bytes.
const (
	MaxNameBytes    = 128 // collector, authority and spool ids
	maxKeyBytes     = 1024
	attemptIDDigits = 32
)

// checkBlobKey fails the reader unless key names a generation of the blob with the hash want.
func checkBlobKey(d *record.Reader, name, key string, want identity.Digest) {
	if d.Err() != nil {
		return
	}
	if got, _, err := layout.ParseBlob(key); err != nil || got != want {
		d.Fail("%s %q is not a blob of %s", name, key, want)
	}
}
