// Package host reads this machine: processors, load, memory, swap, disks, file systems,
// networks, boot time, and the agent's own process. Names and labels are those of
// node_exporter where it has them.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Config of the host input.
type Config struct {
	Enabled  bool          `koanf:"enabled" help:"read this machine"`
	Interval time.Duration `koanf:"interval" help:"time between reads; the agent's interval when 0" needs:"enabled"`
	Job      string        `koanf:"job" help:"label job" needs:"enabled"`
	// FilesystemTypesExclude and MountPointsExclude are added to the built-in lists.
	FilesystemTypesExclude []string `koanf:"filesystem_types_exclude" help:"further file system types that are left out" needs:"enabled"`
	MountPointsExclude     []string `koanf:"mount_points_exclude" help:"further mount points (with all below them) that are left out" needs:"enabled"`
	NetworkExclude         []string `koanf:"network_exclude" help:"network devices that are left out, by prefix" needs:"enabled"`
}

// DefaultConfig reads everything.
func DefaultConfig() Config {
	return Config{Enabled: true, Job: "host", NetworkExclude: []string{"veth", "cali"}}
}

// Validate implements input.Settings.
func (c Config) Validate(time.Duration) error {
	if c.Enabled && c.Job == "" {
		return errors.New("host: job is empty")
	}
	if c.Interval < 0 {
		return fmt.Errorf("host: interval %s: want 0 or more", c.Interval)
	}
	return nil
}

// Specs implements input.Settings.
func (c Config) Specs(interval time.Duration) []input.Spec {
	if !c.Enabled {
		return nil
	}
	if c.Interval == 0 {
		c.Interval = interval
	}
	return []input.Spec{{Kind: "host", Name: c.Job, Settings: c, New: func(e input.Env) (input.Source, error) { return New(c, e) }}}
}

// collectTimeout bounds one read of the machine.
const collectTimeout = 5 * time.Second

// Host is an input.Source.
type Host struct {
	cfg     Config
	own     []series.Label
	log     *slog.Logger
	now     func() time.Time
	self    *process.Process
	tracker *input.Tracker
	failed  map[string]bool

	// State of the present read.
	at      int64
	samples []input.Sample
	key     []byte

	mu     sync.Mutex
	status input.Status
}

// collector is one part of the machine.
type collector struct {
	name string
	read func(context.Context, *Host) error
}

var collectors = []collector{
	{"cpu", readCPU}, {"loadavg", readLoad}, {"meminfo", readMemory}, {"swap", readSwap},
	{"diskstats", readDiskstats}, {"filesystem", readFilesystem}, {"netdev", readNetwork},
	{"time", readTime}, {"uname", readUname}, {"process", readProcess},
}

// New makes the source; the host name is the label instance.
func New(cfg Config, env input.Env) (*Host, error) {
	self, err := process.NewProcess(int32(os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("host input: own process: %w", err)
	}
	return &Host{
		cfg: cfg, log: env.Log.With("input", "host"), now: env.Now, self: self,
		own:     []series.Label{{Name: "instance", Value: env.Hostname}, {Name: "job", Value: cfg.Job}},
		tracker: input.NewTracker(), failed: map[string]bool{},
	}, nil
}

// Run reads at once and then at every interval until ctx ends.
func (h *Host) Run(ctx context.Context, sink input.Sink) error {
	tick := time.NewTicker(h.cfg.Interval)
	defer tick.Stop()
	for {
		h.Collect(ctx, sink)
		select {
		case <-tick.C:
		case <-ctx.Done():
			if input.Removed(ctx) {
				sink.Offer(input.Batch{Source: h.cfg.Job, Samples: h.tracker.EndSeries(nil, h.now().Truncate(time.Millisecond).UnixNano())})
			}
			return nil
		}
	}
}

// Status implements input.Source.
func (h *Host) Status() input.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// Collect reads the machine once and offers what it saw.
func (h *Host) Collect(ctx context.Context, sink input.Sink) {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	began := h.now()
	h.at = began.Truncate(time.Millisecond).UnixNano()
	h.samples = make([]input.Sample, 0, h.tracker.Len()+8)
	h.tracker.Begin()
	var firstErr error
	for _, c := range collectors {
		start := h.now()
		err := c.read(ctx, h)
		if ctx.Err() == context.Canceled {
			return // the agent stops; half a read would look like a host that lost its series
		}
		if err != nil && !h.failed[c.name] {
			h.log.Warn("can't read a part of this machine", "collector", c.name, "error", err)
		}
		h.failed[c.name] = err != nil
		ok := 1.0
		if err != nil {
			ok = 0
			if firstErr == nil {
				firstErr = fmt.Errorf("%s: %w", c.name, err)
			}
		}
		h.gauge("node_scrape_collector_success", ok, "collector", c.name)
		h.gauge("node_scrape_collector_duration_seconds", h.now().Sub(start).Seconds(), "collector", c.name)
	}
	// The source is up even when a part failed: a container may hide one for ever, and the rest was
	// read. node_scrape_collector_success tells which part.
	st := input.Status{Up: true, At: began, Samples: len(h.samples), Series: h.tracker.Len(), Duration: h.now().Sub(began)}
	if firstErr != nil {
		st.LastError = firstErr.Error()
	}
	sink.Offer(input.Batch{Source: h.cfg.Job, Samples: h.tracker.AppendStale(h.samples, h.at)})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = st
}

func (h *Host) gauge(name string, v float64, labels ...string) { h.add(series.Gauge, name, v, labels) }

func (h *Host) counter(name string, v float64, labels ...string) {
	h.add(series.Counter, name, v, labels)
}

// add notes a sample; labels are name, value, name, value, …
func (h *Host) add(t series.Type, name string, v float64, labels []string) {
	h.key = append(h.key[:0], name...)
	for _, l := range labels {
		h.key = append(append(h.key, 0xff), l...)
	}
	s, ok := h.tracker.Get(h.key, true)
	if !ok {
		s = &input.Series{Type: t, Help: help[name], Labels: append([]series.Label{{Name: "__name__", Value: name}}, h.own...)}
		for i := 0; i+1 < len(labels); i += 2 {
			if labels[i+1] != "" {
				s.Labels = append(s.Labels, series.Label{Name: labels[i], Value: labels[i+1]})
			}
		}
		h.tracker.Put(h.key, s, true)
	}
	h.samples = append(h.samples, input.Sample{Series: s, Time: h.at, Value: v})
}
