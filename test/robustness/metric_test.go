package robustness

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// metric sums a counter of all collectors over the samples that have these labels.
func metric(ctx context.Context, t *testing.T, c *cluster.Cluster, name string, labels ...string) (sum float64) {
	t.Helper()
	for _, a := range c.Addr.Collectors {
		sum += metricOf(ctx, t, a.HTTP, name, labels...)
	}
	return sum
}

// metricOf is of the process at this address.
func metricOf(ctx context.Context, t *testing.T, addr, name string, labels ...string) (sum float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), " ")
		if base, _, _ := strings.Cut(key, "{"); !ok || base != name || !hasAll(key, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		must(t, err)
		sum += v
	}
	must(t, lines.Err())
	return sum
}

func hasAll(key string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(key, l) {
			return false
		}
	}
	return true
}
