package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/client"
)

// standIn in the environment makes this test's binary curl, as far as the guide's script needs it.
const standIn = "CLIENT_TEST_IS_CURL"

// curl does what curl -sS -o FILE -w '%{http_code}' -H HEADER --data-binary @FILE URL does.
func curl(args []string) error {
	var out, header, data, url string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; a {
		case "-sS":
		case "-o", "-w", "-H", "--data-binary":
			i++
			switch a {
			case "-o":
				out = args[i]
			case "-H":
				header = args[i]
			case "--data-binary":
				data = strings.TrimPrefix(args[i], "@")
			}
		default:
			url = a
		}
	}
	f, err := os.Open(data)
	if err != nil {
		return err
	}
	defer f.Close()
	name, value, _ := strings.Cut(header, ": ")
	req, err := http.NewRequest(http.MethodPost, url, f)
	if err != nil {
		return err
	}
	req.Header.Set(name, value)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Print(resp.StatusCode)
	return os.WriteFile(out, b, 0o600)
}

// TestScriptsOfTheGuide: each script is on the page, byte for byte. It sends, keeps what it
// could not send, sends it again with the same bytes, and a run that ended after its batch
// was accepted and before it noted so neither loses nor doubles anything. The script for sh
// always runs, with curl or with a stand-in for it.
func TestScriptsOfTheGuide(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	shim := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", standIn, self)
	if err := os.WriteFile(filepath.Join(bin, "curl"), []byte(shim), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, language, script, agent, metric string
		// needs may be absent; path goes before PATH.
		needs, path string
	}{
		{"sh with a stand-in for curl", "sh", "send.sh", "sh-1", "disk_used_bytes", "", bin},
		{"sh with curl", "sh", "send.sh", "sh-1", "disk_used_bytes", "curl", ""},
		{"python", "python", "send.py", "py-1", "load1", "python3", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, err := os.ReadFile(filepath.Join("examples", "json", c.script))
			if err != nil {
				t.Fatal(err)
			}
			if got := block(t, "## Other languages", c.language); got != string(code) {
				t.Errorf("%s shows\n%s\nexamples/json/%s is\n%s", guide, got, c.script, code)
			}
			if c.needs != "" {
				if _, err := exec.LookPath(c.needs); err != nil {
					t.Skipf("%s is not installed here: this script was compared with the guide, and not run", c.needs)
				}
			}
			dir := t.TempDir()
			run := func(url string) error {
				cmd := exec.CommandContext(bound(t), "sh", "-c", `exec "$@"`, "sh", filepath.Join("examples", "json", c.script), url, dir)
				cmd.Env = append(os.Environ(), "PATH="+c.path+string(os.PathListSeparator)+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			}
			pending := filepath.Join(dir, "pending.json")
			if err := run("http://" + nobody(t)); err == nil {
				t.Fatal("sent to nobody")
			}
			first, err := os.ReadFile(pending)
			if err != nil {
				t.Fatal(err)
			}
			ok := func(what string) {
				t.Helper()
				if err := run("http://" + collectHTTP); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if _, err := os.Stat(pending); !os.IsNotExist(err) {
					t.Errorf("%s: a batch is pending: %v", what, err)
				}
			}
			ok("the batch that was kept")
			// As if the run had ended between the answer and its note.
			if err := os.WriteFile(pending, first, 0o600); err != nil {
				t.Fatal(err)
			}
			ok("the same again")
			ok("the next one")
			// Bytes of a batch that is accepted must not change.
			changed := strings.Replace(string(first), `"value": `, `"value": 1`, 1)
			if err := os.WriteFile(pending, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := run("http://" + collectHTTP); err == nil || c.language == "sh" && !strings.Contains(err.Error(), "identity_conflict") {
				t.Errorf("other values under an identity that is taken: %v", err)
			}
			var sent struct{ Boot string }
			if err := json.Unmarshal(first, &sent); err != nil {
				t.Fatal(err)
			}
			q, err := client.DialQuery(queryNode, client.Credentials{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			for ctx := bound(t); ; {
				list, _, err := q.Agents(ctx, c.agent)
				if err != nil {
					t.Fatal(err)
				}
				done := false
				for _, a := range list {
					if a.Boot.Boot != sent.Boot {
						continue
					}
					if len(a.Gaps) > 0 || len(a.Overlaps) > 0 {
						t.Errorf("%s: gaps %v, overlaps %v", a.Boot, a.Gaps, a.Overlaps)
					}
					done = a.Records == 2 && a.LastSeq == 2
				}
				if done {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if a, err := ask(bound(t), fmt.Sprintf("%s{agent=%q}", c.metric, c.agent)); err != nil || len(a.Series) != 1 || a.Completeness.Partial {
				t.Errorf("read back: %+v, %v", a, err)
			}
			list, err := q.Conflicts(bound(t), c.agent)
			list = slices.DeleteFunc(list, func(c client.Conflict) bool { return c.Batch.Boot != sent.Boot })
			if err != nil || len(list) != 1 {
				t.Errorf("%d conflicts, %v", len(list), err)
			}
			// A loss of power left a file without its bytes, in a folder whose batch was sent.
			if c.language == "sh" {
				for _, name := range []string{"boot", "next"} {
					if err := errors.Join(os.Truncate(filepath.Join(dir, name), 0), os.RemoveAll(pending)); err != nil {
						t.Fatal(err)
					}
					ok("after the numbers were lost with " + name)
				}
			}
		})
	}
}
