package coordinator

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// encodeRow is the row on the wire.
func encodeRow(r work.Row) *coordinatorv1.Job {
	return &coordinatorv1.Job{
		Key: encodeKey(r.Key), Topic: r.Topic, Body: r.Body, CreatedAtUnixNs: r.Created.UnixNano(), ModifiedAtUnixNs: r.Modified.UnixNano(),
		Active: r.Active, Live: r.Live, Owner: r.Owner, Increment: r.Increment, Attempts: r.Attempts, State: r.State, Fence: r.Fence,
	}
}

// decodeRow reads a row.
func decodeRow(j *coordinatorv1.Job) work.Row {
	return work.Row{
		Key: decodeKey(j.GetKey()), Topic: j.GetTopic(), Body: j.GetBody(), Created: at(j.GetCreatedAtUnixNs()), Modified: at(j.GetModifiedAtUnixNs()),
		Active: j.GetActive(), Live: j.GetLive(), Owner: j.GetOwner(), Increment: j.GetIncrement(), Attempts: j.GetAttempts(), State: j.GetState(), Fence: j.GetFence(),
	}
}

// encodeKey is the key on the wire.
func encodeKey(k work.Key) *coordinatorv1.JobKey {
	return &coordinatorv1.JobKey{Log: k.Log, Number: k.Number}
}

// decodeKey reads a key.
func decodeKey(k *coordinatorv1.JobKey) work.Key {
	return work.Key{Log: k.GetLog(), Number: k.GetNumber()}
}

// encodeVersion is what of a row a change compares.
func encodeVersion(r work.Row) *coordinatorv1.JobVersion {
	return &coordinatorv1.JobVersion{Key: encodeKey(r.Key), Increment: r.Increment, Owner: r.Owner}
}

// decodeVersion reads what a change compares.
func decodeVersion(v *coordinatorv1.JobVersion) work.Row {
	return work.Row{Key: decodeKey(v.GetKey()), Increment: v.GetIncrement(), Owner: v.GetOwner()}
}

// encodeClaim is the claim on the wire.
func encodeClaim(c work.Claim) *coordinatorv1.Claim {
	return &coordinatorv1.Claim{Owner: c.Owner, Fence: c.Fence, Hold: durationpb.New(c.Hold)}
}

// decodeClaim reads a claim.
func decodeClaim(c *coordinatorv1.Claim) work.Claim {
	return work.Claim{Owner: c.GetOwner(), Fence: c.GetFence(), Hold: c.GetHold().AsDuration()}
}

// encodeMessage is the delivery with its body on the wire.
func encodeMessage(m work.Message) *coordinatorv1.Message {
	return &coordinatorv1.Message{Delivery: encodeDelivery(m), Body: m.Body, Tries: int32(m.Tries)}
}

// decodeMessage reads a delivery with its body.
func decodeMessage(m *coordinatorv1.Message) work.Message {
	d := decodeDelivery(m.GetDelivery())
	d.Body, d.Tries = m.GetBody(), int(m.GetTries())
	return d
}

// encodeDelivery names the delivery on the wire.
func encodeDelivery(m work.Message) *coordinatorv1.Delivery {
	return &coordinatorv1.Delivery{Topic: m.Topic, MessageId: m.ID, Receipt: m.Receipt}
}

// decodeDelivery reads the name of a delivery.
func decodeDelivery(d *coordinatorv1.Delivery) work.Message {
	return work.Message{Topic: d.GetTopic(), ID: d.GetMessageId(), Receipt: d.GetReceipt()}
}

// encodeLetter is the dead letter on the wire.
func encodeLetter(d work.DeadLetter) *coordinatorv1.DeadLetter {
	return &coordinatorv1.DeadLetter{MessageId: d.ID, Topic: d.Topic, Body: d.Body, Tries: int32(d.Tries), Reason: d.Reason, BuriedAtUnixNs: d.Buried.UnixNano()}
}

// decodeLetter reads a dead letter.
func decodeLetter(d *coordinatorv1.DeadLetter) work.DeadLetter {
	return work.DeadLetter{ID: d.GetMessageId(), Topic: d.GetTopic(), Body: d.GetBody(), Tries: int(d.GetTries()), Reason: d.GetReason(), Buried: at(d.GetBuriedAtUnixNs())}
}

// encodeLog is the log on the wire.
func encodeLog(l work.Log) *coordinatorv1.JobLog {
	j := &coordinatorv1.JobLog{Name: l.Name, Last: l.Last, Fence: l.Fence, Increment: l.Increment, Result: l.Result}
	if !l.Completed.IsZero() {
		j.CompletedAtUnixNs = l.Completed.UnixNano()
	}
	return j
}

// decodeLog reads a log.
func decodeLog(j *coordinatorv1.JobLog) work.Log {
	l := work.Log{Name: j.GetName(), Last: j.GetLast(), Fence: j.GetFence(), Increment: j.GetIncrement(), Result: j.GetResult()}
	if ns := j.GetCompletedAtUnixNs(); ns != 0 {
		l.Completed = at(ns)
	}
	return l
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// encodeEpoch is f as a message.
func encodeEpoch(f publish.Epoch) *coordinatorv1.Epoch {
	return &coordinatorv1.Epoch{Number: f.Number, Id: f.ID, Decided: f.Decided, Era: f.Era}
}

// decodeEpoch reads it back.
func decodeEpoch(f *coordinatorv1.Epoch) publish.Epoch {
	return publish.Epoch{Number: f.GetNumber(), ID: f.GetId(), Decided: f.GetDecided(), Era: f.GetEra()}
}

// encodeRecord is r as a message.
func encodeRecord(r publish.Record) *coordinatorv1.RefRecord {
	m := &coordinatorv1.RefRecord{Key: r.Key, Condemned: r.Condemned, Version: r.Version, Since: r.Since}
	for _, t := range r.Txns {
		m.Transactions = append(m.Transactions, string(t))
	}
	return m
}

// encodeRecords writes records.
func encodeRecords(rs []publish.Record) (ms []*coordinatorv1.RefRecord) {
	for _, r := range rs {
		ms = append(ms, encodeRecord(r))
	}
	return ms
}

// decodeRecords reads them back.
func decodeRecords(ms []*coordinatorv1.RefRecord) (rs []publish.Record) {
	for _, m := range ms {
		rs = append(rs, decodeRecord(m))
	}
	return rs
}

// decodeRecord reads a record.
func decodeRecord(m *coordinatorv1.RefRecord) publish.Record {
	r := publish.Record{Key: m.GetKey(), Condemned: m.GetCondemned(), Version: m.GetVersion(), Since: m.GetSince()}
	for _, t := range m.GetTransactions() {
		r.Txns = append(r.Txns, publish.Txn(t))
	}
	return r
}
