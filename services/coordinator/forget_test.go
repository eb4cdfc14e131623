package coordinator

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/work"
	"lightmetrics.dev/lightmetrics/pkg/work/mem"
)

// Old runs of operators are forgotten; pending ones and the logs of ordered chains stay.
func TestOldRunsAreForgotten(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := mem.New(func() time.Time { return now }, mem.Options{})
	pending := func(log string) work.Row {
		r, err := m.Create(t.Context(), work.Row{Key: work.Key{Log: log, Number: 1}, Topic: "jobs", Body: []byte("x")}, &work.Claim{Owner: "me", Hold: time.Minute})
		must(t, err)
		return r
	}
	must(t, m.Done(t.Context(), pending("reprocess/old")))
	must(t, m.Done(t.Context(), pending("snapshot/0001")))
	pending("reprocess/pending")
	now = now.Add(forgetAfter - time.Hour)
	must(t, m.Done(t.Context(), pending("reprocess/young")))
	now = now.Add(2 * time.Hour)
	n, err := forgetOld(t.Context(), m, m, now)
	must(t, err)
	logs, _, err := m.Logs(t.Context(), "", "", work.MaxPage)
	must(t, err)
	rows, _, err := m.Rows(t.Context(), "", "", work.MaxPage)
	must(t, err)
	if n.Forgot != 1 || n.Sent != 0 || len(logs) != 2 || len(rows) != 1 {
		t.Errorf("%+v; logs left %v, rows left %v", n, logs, rows)
	}
}
