package robustness

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// proxy stands between a cluster and its store and breaks requests at random: refused
// unsent, applied and the answer lost, answered slowly, cut in the middle. The signature covers the
// host, so the client's own host name goes on unchanged.
type proxy struct {
	addr   string
	client *http.Client

	mu     sync.Mutex
	rnd    *rand.Rand
	rate   float64 // of requests that are broken
	counts map[string]int
}

// proxyTimeout bounds one request behind the proxy.
const proxyTimeout = 20 * time.Second

func startProxy(t *testing.T, addr string, rnd *rand.Rand, rate float64) (*proxy, string) {
	p := &proxy{addr: addr, rnd: rnd, rate: rate, counts: map[string]int{}, client: &http.Client{
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

// kinds of faults. A 412 is not among them: a store that says "exists" of a key that
// is not there is broken for good, and the start-up probe is what finds that.
var kinds = []string{"409", "500", "503", "lost", "500 after", "reset", "slow", "cut"}

func (p *proxy) draw(method string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rnd.Float64() >= p.rate {
		return ""
	}
	k := kinds[p.rnd.IntN(len(kinds))]
	if k == "409" && method != http.MethodPut || k == "cut" && method != http.MethodGet {
		k = "503"
	}
	p.counts[k]++
	return k
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fault := p.draw(r.Method)
	switch fault {
	case "409":
		refuse(w, http.StatusConflict, "ConditionalRequestConflict")
		return
	case "500":
		refuse(w, http.StatusInternalServerError, "InternalError")
		return
	case "503":
		refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case "reset":
		panic(http.ErrAbortHandler)
	}
	resp, answer, err := p.forward(r, body)
	if err != nil || fault == "lost" {
		panic(http.ErrAbortHandler) // nobody learns the outcome
	}
	if fault == "500 after" {
		refuse(w, http.StatusInternalServerError, "InternalError")
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
	return resp, answer, err
}
