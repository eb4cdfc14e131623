package host

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/input/inputtest"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

type collected struct {
	labels map[string]string
	t      series.Type
	v      float64
}

func collect(t *testing.T, cfg Config) map[string][]collected {
	t.Helper()
	out := map[string][]collected{}
	sink := inputtest.Sink(func(sc input.Batch) bool {
		clear(out)
		for _, s := range sc.Samples {
			ls := map[string]string{}
			for _, l := range s.Series.Labels {
				ls[l.Name] = l.Value
			}
			out[ls["__name__"]] = append(out[ls["__name__"]], collected{ls, s.Series.Type, s.Value})
		}
		return true
	})
	h, err := New(cfg, input.Env{Hostname: "box", Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	h.Collect(t.Context(), sink)
	h.Collect(t.Context(), sink) // known series are reused
	return out
}

// TestPlausible reads this machine.
func TestPlausible(t *testing.T) {
	got := collect(t, DefaultConfig())
	for name, list := range got {
		for _, s := range list {
			if s.labels["job"] != "host" || s.labels["instance"] != "box" {
				t.Fatalf("%s has labels %v", name, s.labels)
			}
			if s.v < 0 {
				t.Errorf("%s%v is %v", name, s.labels, s.v)
			}
			if counter := strings.HasSuffix(name, "_total"); counter != (s.t == series.Counter) && !strings.HasPrefix(name, "node_vmstat_") {
				t.Errorf("%s has type %d", name, s.t)
			}
		}
	}
	for _, name := range []string{"node_load1", "node_memory_MemAvailable_bytes", "node_filesystem_size_bytes", "node_network_receive_bytes_total",
		"node_boot_time_seconds", "node_uname_info", "process_resident_memory_bytes", "process_cpu_seconds_total", "node_procs_running"} {
		if len(got[name]) == 0 {
			t.Errorf("no %s", name)
		}
	}
	if n := len(got["node_cpu_seconds_total"]); n != 8*runtime.NumCPU() {
		t.Logf("%d series of node_cpu_seconds_total on %d CPUs", n, runtime.NumCPU()) // an affinity mask hides CPUs from Go
	}
	idle := 0.0
	for _, s := range got["node_cpu_seconds_total"] {
		if s.labels["mode"] == "idle" {
			idle += s.v
		}
	}
	if idle == 0 {
		t.Error("no idle CPU time")
	}
	one := func(name string) float64 { return got[name][0].v }
	if total, avail := one("node_memory_MemTotal_bytes"), one("node_memory_MemAvailable_bytes"); total < 64<<20 || avail > total {
		t.Errorf("memory: %v of %v", avail, total)
	}
	if rss := one("process_resident_memory_bytes"); rss < 1<<20 || rss > one("node_memory_MemTotal_bytes") {
		t.Errorf("own memory: %v", rss)
	}
	if boot := one("node_boot_time_seconds"); boot < 1e9 || boot > float64(time.Now().Unix()) {
		t.Errorf("boot time %v", boot)
	}
	seen := map[string]bool{}
	for _, s := range got["node_filesystem_size_bytes"] {
		if m := s.labels["mountpoint"]; seen[m] || m == "/proc" || s.labels["fstype"] == "sysfs" {
			t.Errorf("file system %v", s.labels)
		} else {
			seen[m] = true
		}
	}
	for _, s := range got["node_scrape_collector_success"] {
		// A container may hide swap or disks; what can't be read says so and leaves the rest alone.
		if s.v != 1 {
			t.Logf("collector %s failed here", s.labels["collector"])
		}
	}
}

func TestExclusions(t *testing.T) {
	all := collect(t, DefaultConfig())
	cfg := DefaultConfig()
	cfg.NetworkExclude = []string{"l"}
	cfg.MountPointsExclude = []string{"/"}
	got := collect(t, cfg)
	if n := len(got["node_filesystem_size_bytes"]); n != 0 {
		t.Errorf("%d file systems below /", n)
	}
	for _, s := range got["node_network_receive_bytes_total"] {
		if strings.HasPrefix(s.labels["device"], "l") {
			t.Errorf("device %s", s.labels["device"])
		}
	}
	if len(all["node_network_receive_bytes_total"]) <= len(got["node_network_receive_bytes_total"]) {
		t.Error("lo was not there to be left out")
	}
}

// TestRemovedHostEndsItsSeries: where the host input leaves the settings, every series that
// it sent gets a stale marker, also after a single read.
func TestRemovedHostEndsItsSeries(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Interval = time.Hour
	h, err := New(cfg, input.Env{Hostname: "box", Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	var offered []input.Batch
	if err := h.Run(ctx, inputtest.Sink(func(b input.Batch) bool {
		offered = append(offered, b)
		end(input.ErrRemoved)
		return true
	})); err != nil {
		t.Fatal(err)
	}
	if len(offered) != 2 || len(offered[0].Samples) == 0 || len(offered[1].Samples) != len(offered[0].Samples) {
		t.Fatalf("%d batches, want one that was read and one of as many stale markers", len(offered))
	}
	for _, s := range offered[1].Samples {
		if math.Float64bits(s.Value) != math.Float64bits(input.StaleNaN) {
			t.Fatalf("%v ends with %v, want a stale marker", s.Series.Labels, s.Value)
		}
	}
}
