package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cli"
	core "lightmetrics.dev/lightmetrics/internal/coordination/claims" // lmctl has a function of the package's name
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// traced is a linearizer with a claim and a span, and regions with four records around it.
func traced() (*linearizing, identity.Digest) {
	id, sum := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 10}, identity.Sum([]byte("x"))
	return &linearizing{
		claims: core.Answer{
			Claims: []core.Claim{{Identity: id, Hash: sum, State: core.Claimed, Recovered: true, Home: "eu", Stamp: core.Stamp{Epoch: 2, Fence: 5}, ClaimedAt: 3e9}},
			Spans:  []core.Span{{Start: 11, End: 90, Home: "us"}},
		},
		traced: trace.Result{
			Records: []trace.Record{
				{Region: "eu", Key: "k", Kind: trace.Manifest, Identity: id, Hash: sum[:], Stamp: core.Stamp{Epoch: 1, Fence: 4}, At: 1e9, Home: "eu"},
				{Region: "eu", Key: "j", Kind: trace.Journal, Outcome: "accepted", Identity: id, Hash: sum[:], Stamp: core.Stamp{Epoch: 1}, At: 1e9, Home: "eu"},
				{Region: "us", Key: "q", Kind: trace.Quarantine, Identity: id, Hash: sum[:], At: 4e9},
				{Region: "eu", Key: "f", Kind: trace.Fold, Identity: id, Hash: sum[:16], Home: "eu"},
			},
			Journals: []trace.Searched{{Region: "eu", From: 1, To: 5e9, Files: 2, Segments: 3}, {Region: "us", Segments: 4}},
		},
	}, sum
}

func identityVerb(t *testing.T, addr, verb, seq string, more ...string) (string, int) {
	t.Helper()
	return command(t, identityCommand, append([]string{"identity", verb, "--agent", "a", "--boot", "b", "--seq", seq, "--addr", addr}, more...)...)
}

func TestIdentityShow(t *testing.T) {
	l, sum := traced()
	addr := serveIdentities(t, l)
	var views []recordView
	out, code := identityVerb(t, addr, "show", "7", "-o", "json")
	if err := json.Unmarshal([]byte(out), &views); err != nil || code != cli.ExitOK || len(views) != 2 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if c, s := views[0], views[1]; c.Where != "etcd" || c.Kind != "CLAIMED, recovered" || c.Home != "eu" || c.Epoch != 2 || c.Fence != 5 || c.Hash != sum.String() ||
		c.At != "1970-01-01T00:00:03Z" || s.Kind != "FOLDED" || s.SeqStart != 11 || s.SeqEnd != 90 || s.Home != "us" {
		t.Errorf("%+v", views)
	}
	if out, code = identityVerb(t, addr, "show", "7"); code != cli.ExitOK || !strings.Contains(out, "FOLDED") || !strings.Contains(out, "2.5") || strings.Contains(out, "MANIFEST") {
		t.Errorf("exit %d: %s", code, out)
	}
	l.claims = core.Answer{}
	if out, code = identityVerb(t, addr, "show", "7", "-o", "json"); code != cli.ExitOK || strings.TrimSpace(out) != "[]" {
		t.Errorf("of nothing: exit %d: %s", code, out)
	}
	// A table of nothing says so, beside the output that scripts read.
	l.traced = trace.Result{Journals: l.traced.Journals}
	for verb, want := range map[string]string{"show": "no claim and no fold", "trace": "no record was found"} {
		args := []string{"identity", verb, "--agent", "a", "--boot", "nobody", "--seq", "7", "--addr", addr}
		if out, notes, code := commandNotes(t, identityCommand, args...); code != cli.ExitOK || !strings.Contains(notes, want) || !strings.Contains(notes, `boot "nobody"`) || strings.Contains(out, "nobody") {
			t.Errorf("%s of nothing: exit %d: %s, %s", verb, code, out, notes)
		}
		if _, notes, _ := commandNotes(t, identityCommand, append(args, "-o", "json")...); notes != "" {
			t.Errorf("%s of nothing as JSON: %s", verb, notes)
		}
	}
	l.failed = core.ErrUnavailable
	if out, code = identityVerb(t, addr, "show", "1"); code != cli.ExitUnreachable {
		t.Errorf("etcd without an answer: exit %d: %s", code, out)
	}
	for _, seq := range []string{"", "x", "9-1", "1-2-3", "-1"} {
		if out, code = identityVerb(t, addr, "show", seq); code != cli.ExitUsage {
			t.Errorf("--seq %q: exit %d: %s", seq, code, out)
		}
	}
}

func TestIdentityTrace(t *testing.T) {
	l, sum := traced()
	addr := serveIdentities(t, l)
	ask := func(more ...string) (string, int) { return identityVerb(t, addr, "trace", "1-90", more...) }
	var v traceView
	out, code := ask("-o", "json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitOK {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	// By time, and those of one time by stamp; the claim has its place among them, and folds, which regions have, are last.
	var got []string
	for _, r := range v.Records {
		got = append(got, strings.TrimSpace(r.Where+" "+r.Kind+" "+r.Outcome))
	}
	if want := []string{"eu MANIFEST", "eu JOURNAL accepted", "etcd CLAIMED, recovered", "us QUARANTINE", "eu FOLD"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if m, f := v.Records[0], v.Records[4]; m.Key != "k" || m.Fence != 4 || m.Home != "eu" || m.At != "1970-01-01T00:00:01Z" || f.Hash != sum.String()[:32] || f.At != "" {
		t.Errorf("%+v", v.Records)
	}
	if j := v.Journals; len(j) != 2 || j[0] != (searchView{"eu", "1970-01-01T00:00:00.000000001Z", "1970-01-01T00:00:05Z", 2, 3, ""}) || j[1] != (searchView{Region: "us", Segments: 4}) {
		t.Errorf("%+v", j)
	}
	// The linearizer's claims say where to look.
	if len(l.asked.Claims) != 1 || l.asked.After != 15*time.Minute || l.asked.Identity.SeqEnd != 90 {
		t.Errorf("%+v", l.asked)
	}
	out, code = ask("--journal-after", "24h")
	if code != cli.ExitOK || !strings.Contains(out, "2.5") || !strings.Contains(out, "JOURNAL accepted") || !strings.Contains(out, sum.String()[:12]) ||
		!strings.Contains(out, "1970-01-01T00:00:01.000Z") || l.asked.After != 24*time.Hour {
		t.Errorf("exit %d, %s: %s", code, l.asked.After, out)
	}
	for _, j := range v.Journals {
		want := "journal of eu: 3 segments that are not folded, 2 folded files between 1970-01-01T00:00:00.000000001Z and 1970-01-01T00:00:05Z"
		if j.Region == "us" {
			want = "journal of us: 4 segments that are not folded, and no folded file: no record names a time"
		}
		if j.String() != want {
			t.Error(j)
		}
	}
	for _, bad := range [][]string{{"--journal-after", "0"}, {"--journal-after", "-1h"}, {"--journal-after", "9000h"}} {
		if out, code = ask(bad...); code != cli.ExitUsage {
			t.Errorf("%v: exit %d: %s", bad, code, out)
		}
	}
	for _, seq := range []string{"", "x", "9-1", "1-2-3", "-1"} {
		if out, code = identityVerb(t, addr, "trace", seq); code != cli.ExitUsage {
			t.Errorf("--seq %q: exit %d: %s", seq, code, out)
		}
	}
}

// What could not be read, or was not searched, is said beside what could.
func TestIdentityTraceSaysWhatIsMissing(t *testing.T) {
	l, _ := traced()
	addr := serveIdentities(t, l)
	want := func(text string) {
		t.Helper()
		out, code := identityVerb(t, addr, "trace", "1-90")
		if code != cli.ExitFindings || !strings.Contains(out, text) || !strings.Contains(out, "MANIFEST") || strings.Contains(out, "rpc error") {
			t.Errorf("%s: exit %d: %s", text, code, out)
		}
	}
	l.traced.Records[0].Err = errors.New("damaged")
	want("k: damaged")
	l.traced.Records[0].Err, l.traced.Unread = nil, []trace.Unread{{Region: "us", Err: errors.New("no answer")}}
	want("us: no answer")
	l.traced.Unread, l.traced.Journals[1].Err = nil, errors.New("it ended early")
	want("journal of us: it ended early")
	l.traced.Journals[1].Err, l.failed = nil, core.ErrUnavailable
	want("etcd: ")
	// Of a linearizer that was dissolved there is nothing in etcd that could be missing.
	l.failed = core.ErrDissolved
	if out, code := identityVerb(t, addr, "trace", "1-90"); code != cli.ExitOK || !strings.Contains(out, "MANIFEST") {
		t.Errorf("dissolved: exit %d: %s", code, out)
	}
}

// As many records as regions may have, with the longest names there are, fit into an answer.
func TestIdentityTraceOfTheMostRecords(t *testing.T) {
	l, sum := traced()
	id := identity.Batch{Agent: strings.Repeat("a", identity.MaxAgentIDBytes), Boot: strings.Repeat("b", identity.MaxBootIDBytes), SeqStart: 1, SeqEnd: 2}
	l.traced.Records = nil
	for range core.MaxRegions * trace.MaxRecords {
		l.traced.Records = append(l.traced.Records, trace.Record{Region: "eu", Key: layout.Quarantine(id, sum), Kind: trace.Quarantine, Identity: id, Hash: sum[:], At: 1e9, Home: "eu"})
	}
	out, code := identityVerb(t, serveIdentities(t, l), "trace", "1-90")
	if n := strings.Count(out, trace.Quarantine); code != cli.ExitOK || n != len(l.traced.Records) {
		t.Errorf("exit %d, %d records: %.200s", code, n, out)
	}
}
