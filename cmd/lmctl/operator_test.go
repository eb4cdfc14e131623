package main

import (
	"crypto/rand"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// TestOperatorsCredentials: with the policy of the role operator lmctl reads everything and writes what daily work needs. Going
// on without a lost file of the journal moves its head, which the bucket leaves to reconcilers: that needs theirs.
func TestOperatorsCredentials(t *testing.T) {
	p := newPlant(t)
	p.accept(plantHour, 3, false)
	// The run of a collector that is gone.
	w, err := journal.NewWriter(journal.WriterConfig{Store: p.store, Rand: rand.Reader, Clock: func() int64 { return 1 },
		Opening: journal.Opening{Writer: "c", Role: journal.RoleSpooler, Authority: "authority"}})
	p.must(err)
	at, err := w.Begin(t.Context())
	p.must(err)

	t.Setenv("AWS_ACCESS_KEY_ID", string(bucketpolicy.Operator))
	from := plantHour.Start().Format(time.RFC3339)
	for _, args := range [][]string{
		{"journal", "status", p.url}, {"journal", "fence", p.url, at.Run.String(), "--yes"},
		{"audit", "run", p.url, "--detach"}, {"audit", "run", p.url, "--news", "--detach"}, {"audit", "list", p.url},
		{"gc", "run", p.url, "--detach"}, {"gc", "status", p.url}, {"gc", "plan", p.url}, {"gc", "log", p.url},
		{"rollup", "renew", p.url, "--from", from, "--yes"}, {"rollup", "requests", p.url}, {"rollup", "generations", p.url, "--from", from}, {"rollup", "coverage", p.url, "--from", from},
		{"rollup", "aside", p.url}, {"rollup", "verify", p.url}, {"authority", "show", p.url}, {"fsck", p.url}, {"store", "qualify", p.url},
	} {
		// Findings are no refusals.
		if code := p.lmctl(nil, args...); code != cli.ExitOK && code != cli.ExitFindings {
			t.Errorf("%v: exit %d", args, code)
		}
	}
	st, err := readGCState(t, p.store)
	if err != nil || !st.Requested {
		t.Errorf("%+v, %v", st, err)
	}

	t.Setenv("AWS_ACCESS_KEY_ID", "test-user")
	head, err := journaltest.Fold(t.Context(), p.store, "authority")
	p.must(err)
	lost := head.Files[0].Key
	p.must(p.store.Delete(t.Context(), lost))
	for _, c := range []struct {
		role bucketpolicy.Role
		want int
	}{{bucketpolicy.Operator, cli.ExitUnreachable}, {bucketpolicy.Reconciler, cli.ExitOK}} {
		t.Setenv("AWS_ACCESS_KEY_ID", string(c.role))
		if code := p.lmctl(nil, "journal", "drop", p.url, lost, "--yes"); code != c.want {
			t.Errorf("journal drop as %s: exit %d, want %d", c.role, code, c.want)
		}
	}
}

func readGCState(t *testing.T, s objstore.Getter) (gc.State, error) {
	b, _, err := s.Get(t.Context(), layout.GCStateKey, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if err != nil {
		return gc.State{}, err
	}
	return gc.ParseState(b)
}
