package badinput

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// httpCase is a request as bytes. Without raw it is line, the usual headers less drop,
// h and the body; {good} in h or raw is a frame that would be accepted, {len} its length.
type httpCase struct {
	named  `yaml:",inline"`
	Line   string   `yaml:"line"`
	H      []string `yaml:"h"`
	Drop   string   `yaml:"drop"`
	Body   string   `yaml:"body"` // recipe; empty is a good frame, "none" nothing
	Raw    string   `yaml:"raw"`
	Repeat int      `yaml:"repeat"` // {fill} is so many bytes of "a"
	// Status of the answer; 0: closed without one. Error is the typed reason in its JSON.
	Status int    `yaml:"status"`
	Error  string `yaml:"error"`
	// Closed: nothing behind the first answer is read as a request.
	Closed bool `yaml:"closed"`
	// Accepts: the request is well-formed after all and its one frame is accepted; what follows must not be.
	Accepts bool `yaml:"accepts"`
}

func (k httpCase) bytes(t testing.TB, frame []byte) []byte {
	fill := strings.NewReplacer("{good}", string(frame), "{len}", itoa(len(frame)), "{fill}", strings.Repeat("a", k.Repeat), "{ff}", "\xff")
	if k.Raw != "" {
		return []byte(fill.Replace(k.Raw))
	}
	var b bytes.Buffer
	body := frame
	switch k.Body {
	case "":
	case "none":
		body = nil
	default:
		body = expand(t, k.Body, map[string][]byte{"good": frame})
	}
	line := k.Line
	if line == "" {
		line = "POST /v1/batches HTTP/1.1"
	}
	b.WriteString(fill.Replace(line) + "\r\n")
	for _, h := range []string{"Host: localhost", "Content-Type: application/vnd.lightmetrics.batch", "Content-Length: " + itoa(len(body))} {
		if name, _, _ := strings.Cut(h, ":"); !strings.Contains(k.Drop, name) {
			b.WriteString(h + "\r\n")
		}
	}
	for _, h := range k.H {
		b.WriteString(fill.Replace(h) + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// answerWait is how long a connection is watched for an answer that must not come.
const answerWait = 100 * time.Millisecond

// rawAnswer sends bytes and reads the first answer; closed says that no other follows.
func rawAnswer(t testing.TB, addr, method string, req []byte, watch bool) (status int, body []byte, closed bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(req) // a refusal may come before all is sent
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(r, &http.Request{Method: method})
	}
	if err != nil {
		return 0, nil, true
	}
	body, _ = io.ReadAll(resp.Body)
	if watch {
		_ = conn.SetReadDeadline(time.Now().Add(answerWait))
		_, err := http.ReadResponse(r, nil)
		var timeout net.Error
		closed = err != nil && (resp.Close || !errors.As(err, &timeout) || timeout.Timeout())
	}
	return resp.StatusCode, body, closed
}

// TestHTTP sends bad requests to the collector's HTTP face, byte by byte as they stand.
func TestHTTP(t *testing.T) {
	store := memStore()
	c := startCollector(t, store)
	boundMemory(t, 128<<20)
	for i, k := range load[httpCase](t, "http") {
		t.Run(k.Name, func(t *testing.T) {
			before := listing(t, store)
			req := k.bytes(t, goodFrame(t, "http", "boot", uint64(2*i)))
			method, _, _ := strings.Cut(string(req), " ")
			status, body, closed := rawAnswer(t, c.HTTPAddr(), method, req, k.Closed)
			var e struct{ Error string }
			_ = json.Unmarshal(body, &e) // not all refusals are the service's own
			if status != k.Status || e.Error != k.Error {
				t.Errorf("got %d %q, want %d %q: %.200s", status, e.Error, k.Status, k.Error, body)
			}
			if k.Closed && !closed {
				t.Error("what followed was answered as a request")
			}
			if k.Accepts {
				return
			}
			wantUnchanged(t, store, before)
		})
	}
	wantNoPanics(t)
	c.wantHealthy(t)
}
