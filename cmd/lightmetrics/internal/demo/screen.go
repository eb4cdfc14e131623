package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// screen prints what happens, with the time since the start.
type screen struct {
	w     io.Writer
	start time.Time
}

func newScreen(w io.Writer) *screen { return &screen{w: w, start: time.Now()} }

func (s *screen) step(format string, args ...any) {
	fmt.Fprintf(s.w, "[%5.1fs] %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

func (s *screen) title(format string, args ...any) {
	fmt.Fprintf(s.w, "\n%s\n", fmt.Sprintf(format, args...))
}

func (s *screen) blank() { fmt.Fprintln(s.w) }

// rows prints a table; the header's columns are split by tabs.
func (s *screen) rows(header string, rows [][]string) {
	tw := tabwriter.NewWriter(s.w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(tw, "  "+header)
	for _, r := range rows {
		fmt.Fprintln(tw, "  "+strings.Join(r, "\t"))
	}
	tw.Flush()
}

func (s *screen) urls(c *cluster.Cluster) {
	s.title("Running until interrupted (logs and settings in %s):", c.Dir())
	rows := [][]string{
		{"query page", "http://" + c.Addr.QueryHTTP + "/status"},
		{"PromQL", "http://" + c.Addr.QueryHTTP + "/api/v1/query?query=node_load1"},
		{"Grafana", "add a Prometheus data source with the URL http://" + c.Addr.QueryHTTP},
		{"agent status", "http://" + c.Addr.AgentHTTP + "/"},
		{"reconciler", "http://" + c.Addr.ReconcilerHTTP + "/v1/status"},
	}
	for i := range c.Addr.Collectors {
		rows = append(rows, []string{fmt.Sprintf("collector %d", i+1), "grpc " + c.Addr.Collectors[i].GRPC + ", http://" + c.Addr.Collectors[i].HTTP})
	}
	for i, worker := range c.Addr.Rollups {
		rows = append(rows, []string{fmt.Sprintf("rollup worker %d", i+1), "http://" + worker + "/v1/rollup/shards"})
	}
	rows = append(rows, []string{"coordinator", "grpc " + c.Addr.CoordinatorGRPC + ", http://" + c.Addr.CoordinatorHTTP + "; lmctl shards list"})
	rows = append(rows, []string{"object store", "http://" + c.Addr.Store + " (bucket " + c.Bucket() + ", credentials in the settings)"})
	tw := tabwriter.NewWriter(s.w, 0, 4, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, "  "+strings.Join(r, "\t"))
	}
	tw.Flush()
}
