package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// system is a running monitoring system as its users meet it: ours, Prometheus or VictoriaMetrics.
type system struct {
	name string
	// api is the URL of Prometheus' HTTP API.
	api string
	// extra is added to the parameters of every query.
	extra url.Values
	// processes by name that run now.
	processes func() map[string]*proc.Process

	client *http.Client
}

func newSystem(name, addr string, processes func() map[string]*proc.Process) *system {
	// Answers are not compressed: no system's gzip is measured.
	return &system{name: name, api: "http://" + addr, processes: processes,
		client: &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}}
}

// ofMonitor is a peer. VictoriaMetrics is asked to evaluate each query: else it answers a query that
// comes twice from its cache of results, which the others don't have.
func ofMonitor(m *peers.Monitor) *system {
	s := newSystem(m.Name, m.Addr, func() map[string]*proc.Process {
		if m.Process == nil {
			return nil
		}
		return map[string]*proc.Process{m.Name: m.Process}
	})
	s.extra = url.Values{"nocache": {"1"}}
	return s
}

// get asks a path of the API and returns the body.
func (s *system) get(ctx context.Context, path string, q url.Values) ([]byte, error) {
	all := maps.Clone(q)
	if all == nil {
		all = url.Values{}
	}
	maps.Copy(all, s.extra)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.api+path+"?"+all.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s: %s: %.300s", s.name, path, q.Encode(), resp.Status, body)
	}
	return body, err
}

// count is the number of samples of a metric from from to to; 0 when there are none.
func (s *system) count(ctx context.Context, metric string, from, to time.Time) (float64, error) {
	body, err := s.get(ctx, "/api/v1/query", url.Values{"time": {seconds(to)},
		"query": {fmt.Sprintf(`sum(count_over_time({__name__=%q}[%ds]))`, metric, int(to.Sub(from).Seconds()))}})
	if err != nil {
		return 0, err
	}
	var a struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(body, &a); err != nil || len(a.Data.Result) == 0 {
		return 0, err
	}
	text, _ := a.Data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

// await waits until every sample of a metric is queryable.
func (s *system) await(ctx context.Context, metric string, from, to time.Time, want int) error {
	return await(ctx, func() (bool, error) {
		n, err := s.count(ctx, metric, from, to)
		return int(n) == want, errors.Join(err, fmt.Errorf("%s has %v of %d samples of %s", s.name, n, want, metric))
	})
}

// await asks until ask says true, seldom enough to cost next to nothing. The error says why it did not.
func await(ctx context.Context, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	var last error
	for {
		ok, err := ask()
		if ok {
			return nil
		}
		if ctx.Err() == nil {
			last = err // not the end of ctx itself
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-time.After(awaitEvery):
		}
	}
}

const awaitEvery = 500 * time.Millisecond

// seconds is a time as the API takes it.
func seconds(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', -1, 64) }

// use is what processes used, by name.
type use map[string]struct{ cpu, peak float64 } // seconds, bytes

// used reads the counters of all processes.
func (s *system) used() (use, error) {
	out := use{}
	for name, p := range s.processes() {
		cpu, err := cpuSeconds(p.Pid())
		if err != nil {
			return nil, err
		}
		rss, err := residentPeak(p.Pid())
		if err != nil {
			return nil, err
		}
		out[name] = struct{ cpu, peak float64 }{cpu, rss}
	}
	return out, nil
}

// plus adds the seconds of processes that ended and were started again; peaks are the largest.
func (u use) plus(v use) use {
	out := maps.Clone(u)
	for name, x := range v {
		y := out[name]
		out[name] = struct{ cpu, peak float64 }{x.cpu + y.cpu, max(x.peak, y.peak)}
	}
	return out
}

// minus leaves the seconds since before.
func (u use) minus(before use) use {
	out := maps.Clone(u)
	for name, x := range before {
		y := out[name]
		out[name] = struct{ cpu, peak float64 }{y.cpu - x.cpu, y.peak}
	}
	return out
}

func (u use) cpu() (total float64) {
	for _, x := range u {
		total += x.cpu
	}
	return total
}

// quiet waits until the processes have nothing left to do, as far as their CPU says.
func (s *system) quiet(ctx context.Context) error {
	const (
		span  = 3 * time.Second
		tries = 200
		cores = 0.06 // all processes together
	)
	for range tries {
		before, err := s.used()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(span):
		}
		after, err := s.used()
		if err != nil {
			return err
		}
		if after.minus(before).cpu() < cores*span.Seconds() {
			return nil
		}
	}
	return fmt.Errorf("%s is still at work after %v", s.name, span*tries)
}

// resetPeak makes the peak of resident memory begin at what is resident now.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// dirBytes is the size of all files below a directory.
func dirBytes(dir string) (size float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += float64(info.Size())
		}
		return err
	})
	return size, err
}

// post sends a body.
func post(ctx context.Context, c *http.Client, url string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("post %s: %s: %.300s", url, resp.Status, strings.TrimSpace(string(text)))
	}
	return err
}
