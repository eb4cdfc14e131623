// Package wire converts pending work to the messages of WorkService and back.
package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/pkg/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// FromRow is the row on the wire.
func FromRow(r work.Row) *coordinatorv1.Job {
	return &coordinatorv1.Job{
		Key: FromKey(r.Key), Topic: r.Topic, Body: r.Body, CreatedAtUnixNs: r.Created.UnixNano(), ModifiedAtUnixNs: r.Modified.UnixNano(),
		Active: r.Active, Live: r.Live, Owner: r.Owner, Increment: r.Increment, Attempts: r.Attempts, State: r.State, Fence: r.Fence,
	}
}

// ToRow reads a row.
func ToRow(j *coordinatorv1.Job) work.Row {
	return work.Row{
		Key: ToKey(j.GetKey()), Topic: j.GetTopic(), Body: j.GetBody(), Created: at(j.GetCreatedAtUnixNs()), Modified: at(j.GetModifiedAtUnixNs()),
		Active: j.GetActive(), Live: j.GetLive(), Owner: j.GetOwner(), Increment: j.GetIncrement(), Attempts: j.GetAttempts(), State: j.GetState(), Fence: j.GetFence(),
	}
}

// FromKey is the key on the wire.
func FromKey(k work.Key) *coordinatorv1.JobKey {
	return &coordinatorv1.JobKey{Log: k.Log, Number: k.Number}
}

// ToKey reads a key.
func ToKey(k *coordinatorv1.JobKey) work.Key {
	return work.Key{Log: k.GetLog(), Number: k.GetNumber()}
}

// FromVersion is what of a row a change compares.
func FromVersion(r work.Row) *coordinatorv1.JobVersion {
	return &coordinatorv1.JobVersion{Key: FromKey(r.Key), Increment: r.Increment, Owner: r.Owner}
}

// ToVersion reads what a change compares.
func ToVersion(v *coordinatorv1.JobVersion) work.Row {
	return work.Row{Key: ToKey(v.GetKey()), Increment: v.GetIncrement(), Owner: v.GetOwner()}
}

// FromClaim is the claim on the wire.
func FromClaim(c work.Claim) *coordinatorv1.Claim {
	return &coordinatorv1.Claim{Owner: c.Owner, Fence: c.Fence, Hold: durationpb.New(c.Hold)}
}

// ToClaim reads a claim.
func ToClaim(c *coordinatorv1.Claim) work.Claim {
	return work.Claim{Owner: c.GetOwner(), Fence: c.GetFence(), Hold: c.GetHold().AsDuration()}
}

// FromMessage is the delivery with its body on the wire.
func FromMessage(m work.Message) *coordinatorv1.Message {
	return &coordinatorv1.Message{Delivery: FromDelivery(m), Body: m.Body, Tries: int32(m.Tries)}
}

// ToMessage reads a delivery with its body.
func ToMessage(m *coordinatorv1.Message) work.Message {
	d := ToDelivery(m.GetDelivery())
	d.Body, d.Tries = m.GetBody(), int(m.GetTries())
	return d
}

// FromDelivery names the delivery on the wire.
func FromDelivery(m work.Message) *coordinatorv1.Delivery {
	return &coordinatorv1.Delivery{Topic: m.Topic, MessageId: m.ID, Receipt: m.Receipt}
}

// ToDelivery reads the name of a delivery.
func ToDelivery(d *coordinatorv1.Delivery) work.Message {
	return work.Message{Topic: d.GetTopic(), ID: d.GetMessageId(), Receipt: d.GetReceipt()}
}

// FromLetter is the dead letter on the wire.
func FromLetter(d work.DeadLetter) *coordinatorv1.DeadLetter {
	return &coordinatorv1.DeadLetter{MessageId: d.ID, Topic: d.Topic, Body: d.Body, Tries: int32(d.Tries), Reason: d.Reason, BuriedAtUnixNs: d.Buried.UnixNano()}
}

// ToLetter reads a dead letter.
func ToLetter(d *coordinatorv1.DeadLetter) work.DeadLetter {
	return work.DeadLetter{ID: d.GetMessageId(), Topic: d.GetTopic(), Body: d.GetBody(), Tries: int(d.GetTries()), Reason: d.GetReason(), Buried: at(d.GetBuriedAtUnixNs())}
}

// FromLog is the log on the wire.
func FromLog(l work.Log) *coordinatorv1.JobLog {
	j := &coordinatorv1.JobLog{Name: l.Name, Last: l.Last, Fence: l.Fence, Increment: l.Increment}
	if !l.Completed.IsZero() {
		j.CompletedAtUnixNs = l.Completed.UnixNano()
	}
	return j
}

// ToLog reads a log.
func ToLog(j *coordinatorv1.JobLog) work.Log {
	l := work.Log{Name: j.GetName(), Last: j.GetLast(), Fence: j.GetFence(), Increment: j.GetIncrement()}
	if ns := j.GetCompletedAtUnixNs(); ns != 0 {
		l.Completed = at(ns)
	}
	return l
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }
