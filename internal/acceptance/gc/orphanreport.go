package gc

import (
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// OrphanReportKind is the kind of a report of possible orphans.
var OrphanReportKind = record.Kind{Schema: "lightmetrics.orphan_report.v1", Title: "report of possible orphans", MaxBytes: 256 << 10}

// MaxReported bounds the blobs of a report.
const MaxReported = 1000

// OrphanReport names the frames of submissions that ended without an outcome at one collector: their blobs may have been
// written, and may be orphans. It proves nothing: the sender may have sent the same again, to whatever collector. A report that is lost
// costs nothing but time, as the next sweep finds the same.
type OrphanReport struct {
	AuthorityID string `json:"authority_id"`
	CollectorID string `json:"collector_id"`
	// ReportedAt by the collector's clock, Unix nanoseconds.
	ReportedAt int64 `json:"reported_at_unix_ns"`
	// Submissions that the collector had since its last report, these included: what the breaker compares with.
	Submissions uint64 `json:"submissions"`
	// Witness is the key of a manifest that the collector observed last; empty where there is none.
	Witness string `json:"witness"`
	// Frames are the hashes.
	Frames []identity.Digest `json:"frames"`
}

// Marshal writes the canonical JSON; an error says which field is invalid.
func (r OrphanReport) Marshal() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("report of possible orphans: %w", err)
	}
	return OrphanReportKind.Marshal(r), nil
}

// Key is the object key of the report whose marshalled bytes are body.
func (r OrphanReport) Key(body []byte) string {
	return layout.OrphanReport(time.Unix(0, r.ReportedAt), identity.Sum(body))
}

// ParseOrphanReport reads what Marshal writes; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseOrphanReport(b []byte) (OrphanReport, error) {
	var r OrphanReport
	err := OrphanReportKind.Unmarshal(b, &r)
	if err == nil {
		err = r.validate()
	}
	return r, OrphanReportKind.Wrap("", err)
}

func (r *OrphanReport) validate() error {
	if validName("authority id", r.AuthorityID) != nil || validName("collector id", r.CollectorID) != nil || r.ReportedAt < 0 ||
		len(r.Frames) == 0 || len(r.Frames) > MaxReported || r.Witness != "" && notAManifest(r.Witness) {
		return fmt.Errorf("authority %.128q, collector %.128q, reported at %d, %d frames, witness %.200q", r.AuthorityID, r.CollectorID, r.ReportedAt, len(r.Frames), r.Witness)
	}
	return nil
}
