package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ordered is a command that gives an order and waits for it.
func ordered(t *testing.T, addr string, more ...string) <-chan []string {
	out := make(chan []string, 1)
	go func() {
		s, code := command(t, reprocessCommand, append([]string{"reprocess", "--from", "2026-03-01", "--to", "2026-03-02", "--addr", addr, "-o", "json"}, more...)...)
		out <- []string{s, fmt.Sprint(code)}
	}()
	return out
}

// rowOfRequest waits until the order is pending.
func rowOfRequest(t *testing.T, m *mem.Store) work.Row {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if rows, _, err := m.Rows(t.Context(), reprocess.LogPrefix, "", 10); err == nil && len(rows) == 1 {
			return rows[0]
		}
	}
	t.Fatal("no order is pending")
	return work.Row{}
}

// TestReprocessWaitsForAWorker: the order is done by a worker, and the command says what it did.
func TestReprocessWaitsForAWorker(t *testing.T) {
	m := mem.New(time.Now, mem.Options{})
	addr := serveWork(t, m)
	bucket := objmem.New(nil)
	if err := journaltest.Complete(t.Context(), bucket, "authority"); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		at := time.Date(2026, 3, 1, i, 0, 0, 0, time.UTC)
		id := identity.Batch{Agent: fmt.Sprint("agent-", i), Boot: "boot", SeqStart: 0, SeqEnd: 9}
		d := identity.Sum([]byte(fmt.Sprint(i)))
		e := journal.Entry{ID: id, Outcome: journal.Accepted, SHA256: d, Bytes: 100, At: at.UnixNano(), MinTime: at.Add(-time.Minute).UnixNano(), MaxTime: at.Add(-time.Second).UnixNano()}
		if err := journaltest.Append(t.Context(), bucket, "authority", e); err != nil {
			t.Fatal(err)
		}
	}
	detached := <-ordered(t, addr, "--detach")
	if detached[1] != fmt.Sprint(cli.ExitOK) {
		t.Fatal(detached)
	}
	waiting := ordered(t, addr)
	rowOfRequest(t, m)
	w, err := work.NewWorker(m, m, reprocess.NewHandler(bucket, "authority", 4), work.Config{Topic: reprocess.Topic, Owner: "w"}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for got == nil {
		select {
		case got = <-waiting:
		case <-time.After(time.Millisecond):
			if o, err := w.Step(t.Context()); err != nil {
				t.Fatal(o, err)
			}
		}
	}
	var v reprocessView
	if err := json.Unmarshal([]byte(got[0]), &v); err != nil || got[1] != fmt.Sprint(cli.ExitOK) || v.Done.Batches != 7 || !v.Done.Done || v.ID == "" {
		t.Errorf("%v: %+v, %v", got, v, err)
	}
}

// TestReprocessSaysHowItEnds: cancelled, or failed for good.
func TestReprocessSaysHowItEnds(t *testing.T) {
	m := mem.New(time.Now, mem.Options{})
	addr := serveWork(t, m)
	waiting := ordered(t, addr)
	r := rowOfRequest(t, m)
	if _, err := cancelJob(t.Context(), m, r.Key); err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; got[1] != fmt.Sprint(cli.ExitFailed) || !strings.Contains(got[0], "cancelled") {
		t.Error(got)
	}
	waiting = ordered(t, addr)
	r = rowOfRequest(t, m)
	for range work.DefaultMaxAttempts {
		row, err := m.Claim(t.Context(), r, work.Claim{Owner: "w", Hold: time.Minute})
		if err == nil {
			r, err = m.Release(t.Context(), row, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := <-waiting; got[1] != fmt.Sprint(cli.ExitFindings) || !strings.Contains(got[0], "lmctl jobs dead reprocess") {
		t.Error(got)
	}
}

func TestReprocessRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"reprocess"},
		{"reprocess", "s3://bucket"},
		{"reprocess", "s3://bucket", "--from", "2026-03-01"},
		{"reprocess", "--from", "2026-03-01", "--dry-run"},
		{"reprocess", "s3://bucket", "--from", "2026-03-01", "--dry-run", "--detach"},
		{"reprocess", "--from", "yesterday"},
		{"reprocess", "--from", "2026-03-02", "--to", "2026-03-01"},
		{"reprocess", "--from", "1970-01-01"},
		{"reprocess", "ftp://bucket", "--from", "2026-03-02", "--dry-run"},
	} {
		if out, code := command(t, reprocessCommand, args...); code != cli.ExitUsage {
			t.Errorf("%v: exit %d: %s", args, code, out)
		}
	}
}

// TestInterruptedReprocessContinues: only the wait ends.
func TestInterruptedReprocessContinues(t *testing.T) {
	m := mem.New(time.Now, mem.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	o := reprocess.Request{From: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)}
	_, err := submitRequest(ctx, m, m, o, false, func(string) { cancel() })
	if err == nil || !strings.Contains(err.Error(), "continues without this command") {
		t.Errorf("%v", err)
	}
	rowOfRequest(t, m)
}
