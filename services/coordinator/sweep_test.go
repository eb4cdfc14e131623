package coordinator

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
)

// Orders whose message is lost get another, those that failed too often wait for a person,
// and old ones are forgotten; the chains of snapshots are left alone.
func TestOrdersAreSwept(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := mem.New(func() time.Time { return now }, mem.Options{})
	create := func(log, topic string) work.Row {
		r, err := m.Create(t.Context(), work.Row{Key: work.Key{Log: log, Number: 1}, Topic: topic, Body: []byte(log)}, &work.Claim{Owner: "me", Hold: time.Minute})
		must(t, err)
		return r
	}
	must(t, m.Done(t.Context(), create("reprocess/old", "reprocess")))
	must(t, m.Done(t.Context(), create("snapshot/0001", "snapshot-0001")))
	now = now.Add(forgetAfter - time.Hour)
	must(t, m.Done(t.Context(), create("reprocess/young", "reprocess")))
	create("snapshot/0002", "snapshot-0002")
	create("reprocess/lost", "reprocess")
	stuck := create("reprocess/stuck", "reprocess")
	for range work.DefaultMaxAttempts - 1 {
		now = now.Add(2 * time.Minute)
		var err error
		stuck, err = m.Claim(t.Context(), stuck, work.Claim{Owner: "another", Hold: time.Minute})
		must(t, err)
	}
	now = now.Add(2 * time.Hour)
	n, err := sweepRequests(t.Context(), m, m, now)
	must(t, err)
	logs, _, err := m.Logs(t.Context(), "", "", work.MaxPage)
	must(t, err)
	if n.Forgot != 1 || n.Sent != 1 || n.Stuck != 1 || len(logs) != 2 {
		t.Errorf("%+v; logs left %v", n, logs)
	}
	ms, err := m.Receive(t.Context(), "reprocess", 10, time.Minute)
	must(t, err)
	if len(ms) != 1 || string(ms[0].Body) != "reprocess/lost" {
		t.Errorf("messages %v", ms)
	}
}
