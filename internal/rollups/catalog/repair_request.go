package catalog

import (
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// RepairRequestKind is the kind of repair requests.
var RepairRequestKind = record.Kind{Schema: "lightmetrics.rollup_repair_request.v1", Title: "repair request", MaxBytes: 1 << 20, Exact: true}

// maxDamaged bounds a request's list of damaged records.
const maxDamaged = 1000

// RepairRequest asks the owner of a shard to rebuild an hour: it publishes a generation above Above in every
// resolution, from the accepted frames, and then deletes the request.
type RepairRequest struct {
	AuthorityID string
	Shard       shard.ID
	Hour        timegrid.Hour
	// Above is the highest generation that was decided in any resolution when the request was made.
	Above uint64
	// Damaged are keys of records that can't be read, and that the rebuild may supersede without having read them.
	Damaged []string
	// Reason is a short text for operators; By names who asked.
	Reason string
	By     string
	// RequestedAt in Unix nanoseconds.
	RequestedAt int64
}

type repairRequestJSON struct {
	AuthorityID string   `json:"authority_id"`
	Shard       uint32   `json:"shard"`
	Hour        string   `json:"hour"`
	Above       uint64   `json:"above"`
	Damaged     []string `json:"damaged"`
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
	RequestedAt int64    `json:"requested_at_unix_ns"`
}

// Key of the request's object.
func (o *RepairRequest) Key() string { return layout.RepairRequest(o.Hour, o.Shard) }

// Validate refuses a request that could not be carried out.
func (o *RepairRequest) Validate() error {
	err := errors.Join(text("authority_id", o.AuthorityID, MaxNameBytes), text("by", o.By, MaxNameBytes), text("reason", o.Reason, MaxNameBytes),
		notNegative("requested_at_unix_ns", o.RequestedAt))
	if err != nil {
		return err
	}
	if o.Shard >= shard.Max || o.Above == 0 || len(o.Damaged) > maxDamaged {
		return fmt.Errorf("request for shard %d above generation %d, %d damaged records", o.Shard, o.Above, len(o.Damaged))
	}
	for _, key := range o.Damaged {
		n, err := layout.ParseBlockManifest(key)
		if err != nil {
			return err
		}
		// Only generations of this hour that the rebuild supersedes may be passed over: a request must not hide
		// damage elsewhere.
		if n.Hour != o.Hour || n.Shard != o.Shard || n.Span > 0 || n.Generation > o.Above {
			return fmt.Errorf("%q is not a generation of the request's hour", key)
		}
	}
	return nil
}

// Marshal writes the canonical JSON. It does not validate.
func (o *RepairRequest) Marshal() []byte {
	damaged := o.Damaged
	if damaged == nil {
		damaged = []string{}
	}
	return RepairRequestKind.Marshal(repairRequestJSON{o.AuthorityID, uint32(o.Shard), o.Hour.Start().Format(hourLayout), o.Above, damaged, o.Reason, o.By, o.RequestedAt})
}

// ParseRepairRequest reads what the key of a request holds. Errors wrap record.ErrCorrupt or
// record.ErrNewerVersion.
func ParseRepairRequest(key string, b []byte) (RepairRequest, error) {
	o, err := parseRepairRequest(key, b)
	if err != nil {
		return RepairRequest{}, RepairRequestKind.Wrap(key, err)
	}
	return o, nil
}

func parseRepairRequest(key string, b []byte) (RepairRequest, error) {
	var j repairRequestJSON
	if err := RepairRequestKind.Decode(b, &j); err != nil {
		return RepairRequest{}, err
	}
	h, err := parseHour(j.Hour)
	if err != nil {
		return RepairRequest{}, err
	}
	o := RepairRequest{j.AuthorityID, shard.ID(j.Shard), h, j.Above, j.Damaged, j.Reason, j.By, j.RequestedAt}
	if j.Shard >= shard.Max || o.Key() != key {
		return RepairRequest{}, fmt.Errorf("it is of shard %d, hour %s", j.Shard, j.Hour)
	}
	return o, errors.Join(RepairRequestKind.Verify(b, o.Marshal(), j), o.Validate())
}
