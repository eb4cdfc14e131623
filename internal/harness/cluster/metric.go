package cluster

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// maxMetricLine bounds a line of a process's metrics.
const maxMetricLine = 1 << 20

// Metric sums those samples of a metric, at the HTTP address of a process, whose labels contain all of these texts.
func Metric(ctx context.Context, addr, name string, labels ...string) (sum float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics of %s: %s", addr, resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxMetricLine)
samples:
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), " ")
		if base, _, _ := strings.Cut(key, "{"); !ok || base != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key, l) {
				continue samples
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, lines.Err()
}
