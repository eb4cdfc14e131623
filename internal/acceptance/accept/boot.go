package accept

import (
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// BootKind is the kind of the boot record.
var BootKind = record.Kind{Schema: "lightmetrics.boot.v1", Title: "boot record", MaxBytes: MaxRecordBytes}

// BootRecord is the first use of a boot id. It is created once and never changes.
type BootRecord struct {
	AuthorityID string
	Boot        identity.Boot
	// SpoolID of the first sender. The empty id is compared like any other.
	SpoolID string
	// Mode of acceptance of the collector that wrote the record.
	Mode Mode
	// FirstSeen by the collector's clock, Unix nanoseconds, not negative.
	FirstSeen   int64
	CollectorID string
}

// Mode is the acceptance mode of a collector, as in the setting ingest.acceptance.
type Mode string

// Modes.
const (
	ModeS3Manifest Mode = "s3_manifest"
	ModeLocalSpool Mode = "local_spool"
	ModeGlobal     Mode = "global"
)

// Valid reports whether m is one of the modes.
func (m Mode) Valid() bool {
	return m == ModeS3Manifest || m == ModeLocalSpool || m == ModeGlobal
}

// Marshal writes the canonical JSON.
func (r BootRecord) Marshal() []byte {
	var e record.Writer
	e.Begin(BootKind, 512)
	e.Text("authority_id", r.AuthorityID)
	e.Text("agent_id", r.Boot.Agent)
	e.Text("boot_id", r.Boot.Boot)
	e.Text("spool_id", r.SpoolID)
	e.Text("acceptance", string(r.Mode))
	e.Int("first_seen_unix_ns", r.FirstSeen)
	e.Text("collector_id", r.CollectorID)
	return e.End()
}

// ParseBootRecord reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseBootRecord(b []byte) (BootRecord, error) {
	d := record.NewReader(BootKind, b)
	var r BootRecord
	r.AuthorityID = d.NonEmpty("authority_id", MaxNameBytes)
	r.Boot.Agent = d.Text("agent_id", identity.MaxAgentIDBytes)
	r.Boot.Boot = d.Text("boot_id", identity.MaxBootIDBytes)
	r.SpoolID = d.Text("spool_id", MaxNameBytes)
	r.Mode = Mode(d.Text("acceptance", MaxNameBytes))
	r.FirstSeen = d.UnixNano("first_seen_unix_ns")
	r.CollectorID = d.NonEmpty("collector_id", MaxNameBytes)
	if d.Err() == nil {
		if err := r.Boot.Validate(); err != nil {
			d.Fail("%w", err)
		}
		if !r.Mode.Valid() {
			d.Fail("acceptance is %q", r.Mode)
		}
	}
	if err := d.End(); err != nil {
		return BootRecord{}, err
	}
	return r, nil
}
