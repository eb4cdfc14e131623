package robustness

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// proxy stands between a cluster and its store and breaks requests at random: refused
// unsent, applied and the answer lost, answered slowly, cut in the middle, said to exist. The signature
// covers the host, so the client's own host name goes on unchanged.
type proxy struct {
	addr   string
	client *http.Client

	mu     sync.Mutex
	rnd    *rand.Rand
	rate   float64 // of requests that are broken
	counts map[string]int
	// rule, where it is not nil, draws in place of chance.
	rule func(*http.Request) string
	// made are the paths that were created or found to exist: a 412 for one is true.
	made map[string]bool
}

// proxyTimeout bounds one request behind the proxy.
const proxyTimeout = 20 * time.Second

func startProxy(t *testing.T, addr string, rnd *rand.Rand, rate float64) (*proxy, string) {
	p := &proxy{addr: addr, rnd: rnd, rate: rate, counts: map[string]int{}, made: map[string]bool{}, client: &http.Client{
		Timeout:   proxyTimeout,
		Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableCompression: true, MaxIdleConnsPerHost: 64},
	}}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return p, s.URL
}

// heal stops all faults.
func (p *proxy) heal() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = 0
	return p.counts
}

// missing are the kinds of faults that did not come yet.
func (p *proxy) missing() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return p.counts[k] > 0 })
}

// kinds of faults. "412" says exists of a key that is not there: nothing was applied.
// "412 after" says it of what this very request has made.
var kinds = []string{"409", "412", "412 after", "500", "503", "lost", "500 after", "reset", "slow", "cut"}

func (p *proxy) draw(r *http.Request) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := ""
	switch {
	case p.rule != nil:
		k = p.rule(r)
	case p.rnd.Float64() < p.rate:
		k = kinds[p.rnd.IntN(len(kinds))]
	}
	create := r.Method == http.MethodPut && r.Header.Get("If-None-Match") == "*"
	switch k {
	case "":
		return ""
	case "409":
		if r.Method != http.MethodPut {
			k = "503"
		}
	case "412", "412 after":
		if !create || p.made[r.URL.Path] {
			k = "503"
		}
	case "cut":
		if r.Method != http.MethodGet {
			k = "503"
		}
	}
	p.counts[k]++
	return k
}

// note learns which keys are there.
func (p *proxy) note(r *http.Request, code int) {
	if r.Method == http.MethodPut && (code == http.StatusOK || code == http.StatusPreconditionFailed) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.made[r.URL.Path] = true
	}
}

// obey makes rule draw the faults; nil is none.
func (p *proxy) obey(rule func(*http.Request) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fault := p.draw(r)
	switch fault {
	case "409":
		refuse(w, http.StatusConflict, "ConditionalRequestConflict")
		return
	case "412":
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	case "500":
		refuse(w, http.StatusInternalServerError, "InternalError")
		return
	case "503":
		refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case "hidden": // of a role or a replica that does not see what is there
		refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	case "reset":
		panic(http.ErrAbortHandler)
	case "late":
		// Nobody learns the outcome, and the request is applied seconds later. Whatever it was sent to may be gone by then.
		time.AfterFunc(time.Duration(500+len(r.URL.Path)%5*500)*time.Millisecond, func() { _, _, _ = p.forward(r, body) })
		panic(http.ErrAbortHandler)
	}
	resp, answer, err := p.forward(r, body)
	if err != nil || fault == "lost" {
		panic(http.ErrAbortHandler) // nobody learns the outcome
	}
	switch fault {
	case "500 after":
		refuse(w, http.StatusInternalServerError, "InternalError")
		return
	case "412 after":
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	if r.Method != http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	}
	w.WriteHeader(resp.StatusCode)
	half := answer[:len(answer)/2]
	switch fault {
	case "cut":
		_, _ = w.Write(half)
		panic(http.ErrAbortHandler)
	case "slow":
		_, _ = w.Write(half)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(300 * time.Millisecond)
		answer = answer[len(half):]
	}
	_, _ = w.Write(answer) // the client may be gone
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(code)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>injected</Message></Error>", reason)
}

// forward sends the request on. It is applied even when the caller goes away meanwhile.
func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequest(r.Method, "http://"+p.addr+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header, req.Host, req.ContentLength = r.Header.Clone(), r.Host, int64(len(body))
	if len(body) == 0 {
		req.Body = http.NoBody
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	p.note(r, resp.StatusCode)
	return resp, answer, err
}
