package query_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Boot ids that several spools used stand on the page, as text, also where one record can't be read.
func TestThePageShowsBootClashes(t *testing.T) {
	a := newAuthority(t)
	c := resolution.Clash{AuthorityID: "authority-1", AgentID: "a", BootID: "b", SpoolID: "<b>copy</b>", Peer: "192.0.2.7", ObservedAt: 5, CollectorID: "c2"}
	if err := resolution.RecordClash(t.Context(), a.Store, c); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Store.Create(t.Context(), layout.Clash(identity.Boot{Agent: "torn", Boot: "x"}, "s"), []byte("{"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	n := start1(t, a, nil)
	resp, err := http.Get(n.url + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<td>a</td><td>b</td><td>&lt;b&gt;copy&lt;/b&gt;</td><td>192.0.2.7</td><td>1970-01-01T00:00:00Z</td><td>c2</td>", "<td>torn</td><td>x</td><td>unreadable</td>"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}
