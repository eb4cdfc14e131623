package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestFsckOfAPrefixThatIsNoAuthority: nothing found in a prefix that nobody uses is no
// good news; an authority without batches is.
func TestFsckOfAPrefixThatIsNoAuthority(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("list-type"):
			fmt.Fprintf(w, `<ListBucketResult><Name>bucket</Name><Prefix>%s</Prefix><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>`, r.URL.Query().Get("prefix"))
		case strings.Trim(r.URL.Path, "/") == "bucket": // it is there
		case r.URL.Path == "/bucket/prod/"+layout.AuthorityKey:
			w.Header().Set("ETag", `"x"`)
			io.WriteString(w, `{"schema":"lightmetrics.authority.v1","authority_id":"a"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `<Error><Code>NoSuchKey</Code></Error>`)
		}
	}))
	defer srv.Close()
	out, code := command(t, fsckCommand, "fsck", srv.URL+"/bucket/porduction/")
	if code != cli.ExitFailed || !strings.Contains(out, "no acceptance authority") {
		t.Errorf("a prefix that is none: exit status %d: %s", code, out)
	}
	if out, code = command(t, fsckCommand, "fsck", srv.URL+"/bucket/prod/"); code != cli.ExitOK {
		t.Errorf("an empty authority: exit status %d: %s", code, out)
	}
}

// TestFsckOfTheJournal: what the journal has is compared with the batches, with the progress of the shards, and, where
// somebody asks, with derived keys.
func TestFsckOfTheJournal(t *testing.T) {
	p := newPlant(t)
	p.accept(timegrid.HourStarting(time.Now().UTC().Truncate(time.Hour).Add(-3*time.Hour)), 3, true)
	problems := func(v fsckView) (out []string) {
		for _, f := range v.Findings {
			if f.Problem != string(fsck.BootMissing) { // the plant has no agents
				out = append(out, f.Problem+" "+f.Key)
			}
		}
		return out
	}
	var v fsckView
	p.lmctl(&v, "fsck", p.url)
	if got := problems(v); len(got) > 0 || v.Journal != (journalChecked{Complete: true, Entries: 3}) {
		t.Errorf("%v, %+v", got, v.Journal)
	}
	if p.lmctl(&v, "fsck", p.url, "--derived"); len(problems(v)) != 9 || v.Findings[len(v.Findings)-1].Problem != string(fsck.DerivedMissing) {
		t.Errorf("derived keys: %v", v.Findings)
	}
	for body, want := range map[string]string{"{": "BAD_HELPS ", `{"schema":"lightmetrics.metric_helps.v2"}`: "NEWER_RECORD "} {
		p.put(layout.RollupHelpsKey, []byte(body))
		if code := p.lmctl(&v, "fsck", p.url); code != cli.ExitFindings || !slices.Equal(problems(v), []string{want + layout.RollupHelpsKey}) {
			t.Errorf("helps %s: exit %d, %v", body, code, v.Findings)
		}
	}
	p.put(layout.RollupHelpsKey, helps.Record{AuthorityID: v.AuthorityID}.Marshal())
	p.progress(journal.Positions{Head: 7})
	if code := p.lmctl(&v, "fsck", p.url); code != cli.ExitFindings || !slices.Equal(problems(v), []string{"POSITIONS_AHEAD " + layout.RollupProgress(0)}) {
		t.Errorf("progress: exit %d, %v", code, v.Findings)
	}
}
