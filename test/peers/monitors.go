package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// stopTimeout is how long a server may take to write what it has in memory.
const stopTimeout = 60 * time.Second

// Monitor is another project's monitoring system over a directory: it takes Prometheus' remote
// write and answers Prometheus' HTTP API.
type Monitor struct {
	Name string
	// Addr is where it listens, on loopback, and stays the same when it is started again.
	Addr string
	// Write is the path that takes remote write.
	Write string
	// Process runs between Start and Stop.
	Process *proc.Process

	spec proc.Spec
}

// NewPrometheus builds Prometheus' server unless build/peers has it, to run over an empty dir. It
// takes samples up to two hours older than the newest, and has the admin API.
func NewPrometheus(dir string) (*Monitor, error) {
	bin, err := prometheusOnce()
	if err != nil {
		return nil, fmt.Errorf("build prometheus: %w", err)
	}
	m, err := newMonitor("prometheus", bin, dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte("storage: {tsdb: {out_of_order_time_window: 2h}}\n"), 0o600); err != nil {
		return nil, err
	}
	m.Write = "/api/v1/write"
	m.spec.Args = []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + m.Addr,
		"--web.enable-remote-write-receiver", "--web.enable-admin-api", "--log.level=warn"}
	return m, nil
}

// NewVictoriaMetrics builds VictoriaMetrics' single node unless build/peers has it, to run over an
// empty dir.
func NewVictoriaMetrics(dir string) (*Monitor, error) {
	bin, err := victoriaOnce()
	if err != nil {
		return nil, fmt.Errorf("build VictoriaMetrics: %w", err)
	}
	m, err := newMonitor("victoriametrics", bin, dir)
	if err != nil {
		return nil, err
	}
	m.Write = "/api/v1/write"
	m.spec.Args = []string{"-storageDataPath=" + filepath.Join(dir, "data"), "-httpListenAddr=" + m.Addr, "-retentionPeriod=1y", "-loggerLevel=WARN",
		// Samples are asked for at their own times, not at those of now.
		"-search.latencyOffset=0s",
		// As much as Prometheus and the query service return unasked.
		"-search.maxUniqueTimeseries=1000000", "-search.maxSeries=1000000", "-search.maxLabelsAPISeries=1000000"}
	return m, nil
}

func newMonitor(name, bin, dir string) (*Monitor, error) {
	addrs, err := proc.Fixed(1)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &Monitor{Name: name, Addr: addrs[0], spec: proc.Spec{Name: name, Bin: bin, Dir: dir, ReadyURL: "http://" + addrs[0] + "/-/ready"}}, nil
}

// Start starts the server over what is in its directory and waits until it answers.
func (m *Monitor) Start(ctx context.Context) error {
	p, err := proc.Start(m.spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		p.Kill()
		return fmt.Errorf("start %s: %w\n%s", m.Name, err, p.Tail(20))
	}
	m.Process = p
	return nil
}

// Stop lets the server write what it has in memory, and ends it.
func (m *Monitor) Stop() error {
	p := m.Process
	if p == nil {
		return nil
	}
	m.Process = nil
	return p.Stop(stopTimeout)
}

// Data is the directory of the server's own files.
func (m *Monitor) Data() string { return filepath.Join(m.spec.Dir, "data") }

var (
	prometheusOnce = sync.OnceValues(func() (string, error) {
		// Without service discovery, which nothing here uses and which takes minutes to compile.
		return build("prometheus", "prometheus", "-tags", "remove_all_sd", "github.com/prometheus/prometheus/cmd/prometheus")
	})
	victoriaOnce = sync.OnceValues(func() (string, error) {
		return build("victoriametrics", "victoriametrics", "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics")
	})
)
