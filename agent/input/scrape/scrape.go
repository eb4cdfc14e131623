// Package scrape reads Prometheus endpoints, text and OpenMetrics.
package scrape

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// accept prefers OpenMetrics, which has units and start times.
const accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"

// Scraper is an input.Source of one target.
type Scraper struct {
	target Target
	client *http.Client
	log    *slog.Logger
	now    func() time.Time

	parser  *parser
	body    []byte
	reports map[string]*input.Series

	mu     sync.Mutex
	status input.Status
}

// New makes a scraper of a target that has its defaults.
func New(t Target, env input.Env) (*Scraper, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("scrape target %q: %w", t.URL, err)
	}
	shown := t.URL.String()
	t = t.liftUserInfo()
	tls, err := t.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("scrape target %q: %w", t.URL, err)
	}
	s := &Scraper{
		target: t, log: env.Log.With("job", t.Job, "instance", t.Instance), now: env.Now,
		// gzip is asked for by hand, so that the limit counts what comes out of it.
		client:  &http.Client{CheckRedirect: t.redirect, Transport: &http.Transport{TLSClientConfig: tls, DisableCompression: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 5 * time.Minute, Proxy: http.ProxyFromEnvironment}},
		reports: map[string]*input.Series{},
		status:  input.Status{Address: shown},
	}
	s.parser = newParser(t)
	return s, nil
}

// Run scrapes at every interval until ctx ends. The first scrape is at a fixed point of the first
// second, by a hash of the target, so that the targets of an agent are not all read at once.
func (s *Scraper) Run(ctx context.Context, sink input.Sink) error {
	defer s.client.CloseIdleConnections()
	defer func() {
		if input.Removed(ctx) {
			s.endSeries(sink)
		}
	}()
	h := fnv.New32a() // never fails
	_, _ = h.Write([]byte(s.target.Job + "\x00" + s.target.URL.Reveal()))
	offset := time.Duration(h.Sum32()) * time.Nanosecond % min(s.target.Interval, time.Second)
	first := time.NewTimer(offset)
	defer first.Stop()
	select {
	case <-first.C:
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(s.target.Interval)
	defer tick.Stop()
	for {
		s.Scrape(ctx, sink)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Status of the last scrape.
func (s *Scraper) Status() input.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Scrape reads the target once and offers what it saw: the target's samples, stale
// markers for what is gone, and the samples about the scrape itself.
func (s *Scraper) Scrape(ctx context.Context, sink input.Sink) {
	start := s.now()
	at := start.Truncate(time.Millisecond).UnixNano()
	s.parser.tracker.Begin()
	// All samples of a scrape have one time, its start, as in Prometheus.
	samples, err := s.fetch(ctx, at)
	if err != nil {
		err = s.target.describe(err)
	}
	if ctx.Err() != nil {
		return // the agent stops: this says nothing about the target
	}
	took := s.now().Sub(start)
	scraped, up := len(samples), 1.0
	if err != nil {
		scraped, up = 0, 0
		// Nothing of a failed scrape is sent, not even the part that was parsed.
		samples = s.parser.tracker.AppendAllStale(nil, at)
	} else {
		samples = s.parser.tracker.AppendStale(samples, at)
	}
	samples = append(samples,
		s.report("up", "", at, up),
		s.report("scrape_duration_seconds", "seconds", at, took.Seconds()),
		s.report("scrape_samples_scraped", "", at, float64(scraped)))
	sink.Offer(input.Batch{Source: s.target.Job, Samples: samples})
	s.note(err, scraped, took, start)
}

// endSeries offers stale markers for every series of a target that is no longer scraped.
func (s *Scraper) endSeries(sink input.Sink) {
	at := s.now().Truncate(time.Millisecond).UnixNano()
	samples := s.parser.tracker.EndSeries(nil, at)
	for _, name := range []string{"up", "scrape_duration_seconds", "scrape_samples_scraped"} {
		if _, seen := s.reports[name]; seen {
			samples = append(samples, s.report(name, "", at, input.StaleNaN))
		}
	}
	if len(samples) > 0 {
		sink.Offer(input.Batch{Source: s.target.Job, Samples: samples})
	}
}

func (s *Scraper) note(err error, scraped int, took time.Duration, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.status
	s.status.Up, s.status.Samples, s.status.Series = err == nil, scraped, s.parser.tracker.Len()
	s.status.Duration, s.status.At, s.status.LastError = took, at, ""
	if err != nil {
		s.status.LastError = err.Error()
	}
	switch {
	case err != nil && (was.Up || was.At.IsZero()):
		s.log.Warn("scrape failed", "error", err)
	case err == nil && !was.Up && !was.At.IsZero():
		s.log.Info("target is up again")
	}
}

// reportHelp has the help texts of the samples about a scrape.
var reportHelp = map[string]string{
	"up":                      "1 when the last scrape of the target succeeded, 0 when it failed.",
	"scrape_duration_seconds": "How long the last scrape of the target took.",
	"scrape_samples_scraped":  "How many samples the last scrape of the target gave.",
}

func (s *Scraper) report(name, unit string, at int64, v float64) input.Sample {
	known, ok := s.reports[name]
	if !ok {
		known = &input.Series{Labels: append([]series.Label{{Name: "__name__", Value: name}}, s.parser.own...), Type: series.Gauge, Unit: unit, Help: reportHelp[name]}
		s.reports[name] = known
	}
	return input.Sample{Series: known, Time: at, Value: v}
}

func (s *Scraper) fetch(ctx context.Context, at int64) ([]input.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, s.target.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.target.URL.Reveal(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", "gzip")
	req.Header.Set("User-Agent", "lightmetrics-agent")
	req.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", fmt.Sprintf("%g", s.target.Timeout.Seconds()))
	switch {
	case s.target.BearerToken != "":
		req.Header.Set("Authorization", "Bearer "+s.target.BearerToken.Reveal())
	case s.target.Username != "":
		req.SetBasicAuth(s.target.Username, s.target.Password.Reveal())
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", resp.Status)
	}
	var r io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		r = z
	}
	if err := s.read(r); err != nil {
		return nil, err
	}
	return s.parser.parse(s.body, resp.Header.Get("Content-Type"), at)
}

var errBodyLimit = errors.New("body is over body_limit")

// read fills s.body, whose memory is kept from scrape to scrape. One that exceeded the limit is
// released, so that one large answer does not cost memory for ever.
func (s *Scraper) read(r io.Reader) error {
	s.body = s.body[:0]
	limit := int(s.target.BodyLimit)
	for {
		if len(s.body) == cap(s.body) {
			s.body = append(s.body, 0)[:len(s.body)]
		}
		n, err := r.Read(s.body[len(s.body):cap(s.body)])
		s.body = s.body[:len(s.body)+n]
		switch {
		case len(s.body) > limit:
			s.body = nil
			return fmt.Errorf("%w of %d bytes", errBodyLimit, limit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read body: %w", err)
		}
	}
}
