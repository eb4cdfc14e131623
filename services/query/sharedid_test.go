package query_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestOneIDOnTwoMachinesIsNoted: boots of one agent that send at the same time are a note in
// every answer, in the list of agents and on the page; boots that follow each other are none.
func TestOneIDOnTwoMachinesIsNoted(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	send := func(boot identity.Boot, from, to time.Duration) {
		seq := uint64(1)
		for back := from; back > to; back -= 20 * time.Second {
			at := now.Add(-back)
			b := a.build(boot, seq, at.Add(time.Second), point{"up", 1, at})
			a.accept(b)
			seq++
		}
	}
	one, two := identity.Boot{Agent: "web-1", Boot: "one"}, identity.Boot{Agent: "web-1", Boot: "two"}
	send(one, 10*time.Minute, 0)
	send(two, 9*time.Minute, 0)
	send(identity.Boot{Agent: "web-2", Boot: "one"}, 10*time.Minute, 5*time.Minute)
	send(identity.Boot{Agent: "web-2", Boot: "two"}, 5*time.Minute, 0)
	n := start1(t, a, nil)

	e := n.get("/api/v1/query", "query", "up")
	if e.Lightmetrics.Partial || len(e.Lightmetrics.Notes) != 1 || !strings.HasPrefix(e.Lightmetrics.Notes[0], `SHARED_AGENT_ID: several machines send as agent "web-1", by boots one and two`) ||
		!has(e.Warnings, "SHARED_AGENT_ID") {
		t.Errorf("%+v, warnings %q", e.Lightmetrics, e.Warnings)
	}
	read := func(path string) string {
		resp, err := http.Get(n.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(body), " ", "")
	}
	if list := read("/v1/agents"); strings.Count(list, `"concurrent_boot_ids":["two"]`) != 1 || strings.Count(list, `"concurrent_boot_ids":["one"]`) != 1 {
		t.Errorf("the list says %s", list)
	}
	if page := read("/status"); !strings.Contains(page, "<p>Journal:head") || !strings.Contains(page, "SHARED_AGENT_ID") || !strings.Contains(page, `<tdclass="bad">two</td>`) {
		t.Errorf("the page says %s", page)
	}
}
