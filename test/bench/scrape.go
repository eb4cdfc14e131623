package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// scraped is a page of /metrics: "name{labels}" to value.
type scraped map[string]float64

func scrape(ctx context.Context, addr string) (scraped, error) {
	body, err := fetch(ctx, "http://"+addr+"/metrics")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	s := scraped{}
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			s[line[:at]] = v
		}
	}
	return s, lines.Err()
}

// sum of a metric's series whose labels contain all of the given text.
func (s scraped) sum(name string, labels ...string) (total float64) {
series:
	for k, v := range s {
		if k != name && !strings.HasPrefix(k, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(k, l) {
				continue series
			}
		}
		total += v
	}
	return total
}

func fetch(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return resp.Body, nil
}

// profile takes a CPU profile of a service while the benchmark goes on, when -profile
// names a folder. The returned function waits for it.
func (e *env) profile(ctx context.Context, name, addr string) func() {
	if e.profiles == "" {
		return func() {}
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			body, err := fetch(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", addr, int(profileFor.Seconds())))
			if err != nil {
				return err
			}
			defer body.Close()
			if err := os.MkdirAll(e.profiles, 0o755); err != nil {
				return err
			}
			f, err := os.Create(filepath.Join(e.profiles, strings.ReplaceAll(name, "/", "-")+".pb.gz"))
			if err != nil {
				return err
			}
			_, err = io.Copy(f, body)
			return err
		}()
	}()
	return func() {
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, "profile of", name, err)
		}
	}
}

const profileFor = 10 * time.Second
