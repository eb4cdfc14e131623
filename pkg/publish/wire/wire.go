// Package wire turns reference records and their refusals into messages of RefsService
// and back.
package wire

import (
	"errors"

	"lightmetrics.dev/lightmetrics/pkg/publish"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// MaxPage is the most records of a page.
const MaxPage = 1000

// reasons of refusals. ErrCondemned is an answer, not a refusal.
var reasons = map[string]error{
	"REFS_NO_RECORD": publish.ErrNoRecord, "REFS_CHANGED": publish.ErrChanged, "REFS_LOST": publish.ErrRefsLost,
	"REFS_FULL": publish.ErrRefsFull, "REFS_UNKNOWN": publish.ErrRefsUnknown, "REFS_INVALID": publish.ErrRefsInvalid,
}

// Reason of a refusal; REFS_UNKNOWN when it has no other.
func Reason(err error) string {
	for name, sentinel := range reasons {
		if name != "REFS_UNKNOWN" && errors.Is(err, sentinel) {
			return name
		}
	}
	return "REFS_UNKNOWN"
}

// FromReason is the sentinel of a reason, nil for others.
func FromReason(reason string) error { return reasons[reason] }

// FromFounding is f as a message.
func FromFounding(f publish.Founding) *coordinatorv1.Founding {
	return &coordinatorv1.Founding{Number: f.Number, Id: f.ID, Settled: f.Settled}
}

// ToFounding reads it back.
func ToFounding(f *coordinatorv1.Founding) publish.Founding {
	return publish.Founding{Number: f.GetNumber(), ID: f.GetId(), Settled: f.GetSettled()}
}

// FromRecord is r as a message.
func FromRecord(r publish.Record) *coordinatorv1.RefRecord {
	m := &coordinatorv1.RefRecord{Key: r.Key, Condemned: r.Condemned, Version: r.Version}
	for _, t := range r.Txns {
		m.Transactions = append(m.Transactions, string(t))
	}
	return m
}

// ToRecord reads it back.
func ToRecord(m *coordinatorv1.RefRecord) publish.Record {
	r := publish.Record{Key: m.GetKey(), Condemned: m.GetCondemned(), Version: m.GetVersion()}
	for _, t := range m.GetTransactions() {
		r.Txns = append(r.Txns, publish.Txn(t))
	}
	return r
}
