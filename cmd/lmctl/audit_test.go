package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// An audit that lmctl begins is worked on by a reconciler, and its progress and result are shown.
func TestAuditsAreBegunAndShown(t *testing.T) {
	ctx := t.Context()
	s := objmem.New(time.Now)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		id := identity.Batch{Agent: fmt.Sprint("host-", i), Boot: "boot", SeqEnd: 9}
		d := identity.Sum([]byte(id.String()))
		m := accept.Manifest{AuthorityID: "authority", Identity: id, FrameSHA256: d, FrameBytes: 9, RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1e18,
			CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: fmt.Sprintf("%032x", i), RecordCount: 10, MinTime: 1, MaxTime: 2}
		_, err := s.Create(ctx, layout.Accepted(id), m.Marshal(), objstore.PutOptions{})
		must(err)
	}
	var exit *cli.ExitError
	if _, err := showAudit(ctx, s, ""); !errors.As(err, &exit) || exit.Code != cli.ExitFailed {
		t.Errorf("no audit: %v", err)
	}
	for _, bad := range []auditFlags{{shards: 0}, {shards: 129}, {shards: 1, spread: -1}, {shards: 1, news: true, spread: 1}} {
		if _, err := beginAudit(ctx, s, bad); !errors.As(err, &exit) || exit.Code != cli.ExitUsage {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if v, err := listAudits(ctx, s, 10); err != nil || len(v) != 0 {
		t.Fatalf("a refused command began %v, %v", v, err)
	}
	_, err := accept.EnsureAuthority(ctx, s, "authority", true)
	must(err)
	r, err := beginAudit(ctx, s, auditFlags{shards: 3})
	must(err)
	// While it waits, the command tells how far it is; a reconciler works on it.
	w, err := journal.NewWriter(journal.WriterConfig{Store: s, Rand: rand.Reader, Clock: func() int64 { return 1 },
		Opening: journal.Opening{Writer: "r", Role: journal.RoleReconciler, Authority: "authority"}})
	must(err)
	a := &audit.Auditor{Store: s, Rand: rand.Reader, Authority: "authority", By: "reconciler-1", Writer: w}
	var lines []string
	v, err := waitForAudit(ctx, s, r.Key, time.Millisecond, func(line string) {
		lines = append(lines, line)
		_, err := a.Work(ctx, &r)
		must(err)
	})
	must(err)
	if len(lines) != 1 || lines[0] != "0 of 3 shards, 0 manifests so far" || v.State != "finished" || v.Manifests != 6 || v.Journalled != 6 || v.Finished != 3 {
		t.Errorf("%q\n%+v", lines, v)
	}
	if len(v.Shards) != 3 || v.Shards[1].By != "reconciler-1" || v.Shards[1].From != "host-2" || v.Shards[1].Manifests != 2 || v.Shards[2].State != "finished" {
		t.Errorf("%+v", v.Shards)
	}
	_, err = beginAudit(ctx, s, auditFlags{shards: 3, spread: time.Hour})
	must(err)
	_, err = beginAudit(ctx, s, auditFlags{shards: 3, news: true})
	must(err)
	views, err := listAudits(ctx, s, 10)
	must(err)
	if len(views) != 3 {
		t.Fatalf("%+v", views)
	}
	var text, data bytes.Buffer
	var table, js format
	must(js.Set("json"))
	must(table.write(&text, views, auditTable(views)))
	must(js.write(&data, views, auditTable(views)))
	if n := strings.Count(text.String(), "\n"); n != 4 || !strings.Contains(text.String(), "under way") || !strings.Contains(text.String(), "3/3") || !strings.Contains(text.String(), "0/3") {
		t.Error(text.String())
	}
	var back []auditView
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || len(back) != 3 || back[0].Shards != nil {
		t.Errorf("%v\n%s", err, data.String())
	}
	// Interrupted, the command says that the audit continues.
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := waitForAudit(canceled, s, views[1].Record, time.Hour, func(string) {}); err == nil || !strings.Contains(err.Error(), "continues") {
		t.Error(err)
	}
	if _, err := showAudit(ctx, s, "audit/v1/full/x.json"); !errors.As(err, &exit) || exit.Code != cli.ExitUsage {
		t.Error(err)
	}
}

// An audit is begun in an authority's bucket alone: elsewhere nothing is written, and nobody waits for it.
func TestAuditsAreBegunInTheAuthorityAlone(t *testing.T) {
	ctx, s := t.Context(), objmem.New(time.Now)
	var problem *accept.AuthorityError
	if _, err := beginAudit(ctx, s, auditFlags{shards: 1}); !errors.Is(err, accept.ErrNoAuthority) {
		t.Errorf("no authority: %v", err)
	}
	source := objmem.New(time.Now)
	if _, err := accept.EnsureAuthority(ctx, source, "authority", true); err != nil {
		t.Fatal(err)
	}
	b, info, err := source.Get(ctx, layout.AuthorityKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Replicate(layout.AuthorityKey, b, info.LastModified)
	if _, err := beginAudit(ctx, s, auditFlags{shards: 1}); !errors.As(err, &problem) || problem.Reason != accept.AuthorityReplica {
		t.Errorf("a replica: %v", err)
	}
	if views, err := listAudits(ctx, s, 10); err != nil || len(views) != 0 {
		t.Errorf("%v, %v", views, err)
	}
}

// A URL that is no authority's is an error, not a bucket whose audits found nothing.
func TestAuditsAreReadInAnAuthority(t *testing.T) {
	p := newPlant(t)
	for _, c := range []struct {
		code int
		args []string
	}{
		{cli.ExitOK, []string{"list", p.url}},
		{cli.ExitFailed, []string{"show", p.url}}, // nobody has begun one
		{cli.ExitFailed, []string{"list", p.url + "elsewhere/"}},
		{cli.ExitFailed, []string{"show", p.url + "elsewhere/"}},
		{cli.ExitUsage, []string{"list", p.url, "--limit", "0"}},
		{cli.ExitUsage, []string{"show", p.url, "audit/v1/full/nothing"}},
	} {
		if code := p.lmctl(nil, append([]string{"audit"}, c.args...)...); code != c.code {
			t.Errorf("%q: exit status %d, want %d", c.args, code, c.code)
		}
	}
}
