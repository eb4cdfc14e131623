package accept

import "lightmetrics.dev/lightmetrics/pkg/identity"

// BootSchema names the boot record's JSON schema.
const BootSchema = "lightmetrics.boot.v1"

// BootRecord is the first use of a boot id. It is created once and never changes.
type BootRecord struct {
	AuthorityID string
	Boot        identity.Boot
	// SpoolID of the sender that came first; empty is an id of its own.
	SpoolID string
	// Mode of acceptance of the collector that wrote the record.
	Mode Mode
	// FirstSeen by the collector's clock, Unix nanoseconds, not negative.
	FirstSeen   int64
	CollectorID string
}

// Mode is the setting ingest.acceptance.
type Mode string

// Modes.
const (
	ModeS3Manifest Mode = "s3_manifest"
	ModeLocalSpool Mode = "local_spool"
	ModeGlobal     Mode = "global"
)

// Valid reports whether m is a mode.
func (m Mode) Valid() bool {
	return m == ModeS3Manifest || m == ModeLocalSpool || m == ModeGlobal
}

// Marshal writes the canonical JSON.
func (r BootRecord) Marshal() []byte {
	e := encoder{b: make([]byte, 0, 512)}
	e.begin(BootSchema)
	e.text("authority_id", r.AuthorityID)
	e.text("agent_id", r.Boot.Agent)
	e.text("boot_id", r.Boot.Boot)
	e.text("spool_id", r.SpoolID)
	e.text("acceptance", string(r.Mode))
	e.int("first_seen_unix_ns", r.FirstSeen)
	e.text("collector_id", r.CollectorID)
	return e.end()
}

// ParseBootRecord reads canonical JSON and nothing else; every error wraps ErrCorruptRecord.
func ParseBootRecord(b []byte) (BootRecord, error) {
	d := newDecoder("boot record", BootSchema, b)
	var r BootRecord
	r.AuthorityID = d.nonEmpty("authority_id", MaxNameBytes)
	r.Boot.Agent = d.text("agent_id", identity.MaxAgentIDBytes)
	r.Boot.Boot = d.text("boot_id", identity.MaxBootIDBytes)
	r.SpoolID = d.text("spool_id", MaxNameBytes)
	r.Mode = Mode(d.text("acceptance", MaxNameBytes))
	r.FirstSeen = d.unixNano("first_seen_unix_ns")
	r.CollectorID = d.nonEmpty("collector_id", MaxNameBytes)
	if d.err == nil {
		if err := r.Boot.Validate(); err != nil {
			d.fail("%v", err)
		}
		if !r.Mode.Valid() {
			d.fail("acceptance is %q", r.Mode)
		}
	}
	if err := d.end(); err != nil {
		return BootRecord{}, err
	}
	return r, nil
}
