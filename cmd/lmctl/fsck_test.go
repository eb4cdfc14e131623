package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
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
