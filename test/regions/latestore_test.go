package regions

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// lateStore stands between a region's collectors and its store. Some of their writes are applied seconds later, when
// nobody waits for them any more, some twice, and of some the answer is lost. So manifests appear that are older than the
// claim which was decided meanwhile. The signature covers the client's host name, which goes on unchanged.
type lateStore struct {
	addr   string
	client *http.Client
	wg     sync.WaitGroup
	quit   chan struct{}

	mu     sync.Mutex
	rnd    *rand.Rand
	counts map[string]int
}

const (
	// lateOneIn is how many writes come for one that goes wrong.
	lateOneIn = 15
	// latest is how late a write is applied: later than collectors wait for it, and than a claim needs to be taken over.
	latest = 6 * time.Second
)

// lateStores stand in all regions of a system that is made with their between.
type lateStores struct {
	t   *testing.T
	rnd *rand.Rand
	of  map[string]*lateStore
}

func newLateStores(t *testing.T, rnd *rand.Rand) *lateStores {
	return &lateStores{t: t, rnd: rnd, of: map[string]*lateStore{}}
}

func (l *lateStores) between(region, store string, listen func() (net.Listener, error)) (string, error) {
	on, err := listen()
	if err != nil {
		return "", err
	}
	p := &lateStore{addr: store, quit: make(chan struct{}), counts: map[string]int{}, rnd: rand.New(rand.NewPCG(l.rnd.Uint64(), 1)),
		client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}}
	s := &http.Server{Handler: p}
	done := make(chan error, 1)
	go func() { done <- s.Serve(on) }()
	l.t.Cleanup(func() {
		close(p.quit)
		_ = s.Close()
		<-done
		p.wg.Wait()
		p.client.CloseIdleConnections()
	})
	l.of[region] = p
	return on.Addr().String(), nil
}

// counts of what went wrong, over all regions.
func (l *lateStores) counts() map[string]int {
	all := map[string]int{}
	for _, p := range l.of {
		p.mu.Lock()
		for k, n := range p.counts {
			all[k] += n
		}
		p.mu.Unlock()
	}
	return all
}

func (p *lateStore) draw(r *http.Request) (kind string, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Probes of the store's semantics find what this does, and then the collector accepts nothing.
	if r.Method != http.MethodPut || strings.Contains(r.URL.Path, "probe") || p.rnd.IntN(lateOneIn) > 0 {
		return "", 0
	}
	kind = []string{"late", "twice", "answer lost"}[p.rnd.IntN(3)]
	p.counts[kind]++
	return kind, time.Duration(p.rnd.Int64N(int64(latest)))
}

// ServeHTTP implements http.Handler.
func (p *lateStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	kind, wait := p.draw(r)
	if kind == "late" || kind == "twice" {
		p.wg.Go(func() {
			select {
			case <-time.After(wait):
				_, _, _ = p.forward(r, body) // nobody is there for the answer
			case <-p.quit:
			}
		})
	}
	if kind == "late" {
		panic(http.ErrAbortHandler)
	}
	resp, answer, err := p.forward(r, body)
	if err != nil || kind == "answer lost" {
		panic(http.ErrAbortHandler)
	}
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer) // the client may be gone
}

// forward sends the request on. It is applied even when the caller goes away meanwhile.
func (p *lateStore) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
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
