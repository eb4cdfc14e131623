// Package agent is the agent as a library: inputs, batcher, durable queue, sender, and its
// own HTTP server. docs/protocol/agent.md says what is durable when.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"lightmetrics.dev/lightmetrics/agent/batch"
	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Deps of an agent.
type Deps struct {
	Telemetry *telemetry.Telemetry
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// Agent runs once.
type Agent struct {
	cfg      Config
	id       string
	tele     *telemetry.Telemetry
	log      *slog.Logger
	now      func() time.Time
	queue    *queue.Queue
	sender   *send.Sender
	batcher  *batch.Batcher
	buffer   *input.Buffer
	sources  sources
	listener net.Listener
	ready    chan struct{}
	started  time.Time
}

// New opens the queue, whose lock it holds from then on, and the HTTP listener. Nothing runs
// before Run. When another process has the queue open, the error is vfs.ErrLocked.
func New(cfg Config, d Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{cfg: cfg, tele: d.Telemetry, log: d.Telemetry.Log, now: d.Now, ready: make(chan struct{})}
	if a.now == nil {
		a.now = time.Now
	}
	var err error
	if a.id, err = cfg.agentID(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if err := a.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("agent: %w", err), a.close())
	}
	return a, nil
}

func (a *Agent) build() error {
	m := newMetrics(a.tele.Registry)
	if err := a.openQueue(m); err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if a.sender, err = send.New(a.cfg.Send, a.queue, send.Deps{Registry: a.tele.Registry, Log: a.log, Now: a.now, Whereabouts: a.whereabouts(hostname)}); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	a.tele.Registry.MustRegister(stateCollector{a})
	// Resource labels are sent once per frame instead of once per series.
	resource := []series.Label{{Name: "host", Value: hostname}}
	for k, v := range a.cfg.Labels {
		if k == "host" {
			resource[0].Value = v
			continue
		}
		resource = append(resource, series.Label{Name: k, Value: v})
	}
	if a.batcher, err = batch.New(a.cfg.Batch, resource, a.queue, m.drop, m.batch, a.log); err != nil {
		return fmt.Errorf("batcher: %w", err)
	}
	committer, err := batch.NewCommitter(a.cfg.Batch, resource, a.queue, m.batch)
	if err != nil {
		return fmt.Errorf("committer: %w", err)
	}
	a.buffer = input.NewBuffer(a.cfg.InputBuffer, func(n int) { m.drop(batch.DropInputBusy, n) })
	a.sources.env = input.Env{Hostname: hostname, Log: a.log, Now: a.now}
	a.sources.sink = sink{a.buffer, committer}
	if err := a.Reload(a.cfg); err != nil {
		return err
	}
	if a.cfg.HTTP.Listen != "" {
		if a.listener, err = net.Listen("tcp", a.cfg.HTTP.Listen); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// whereabouts say to an operator where to look for parked batches.
func (a *Agent) whereabouts(hostname string) send.Whereabouts {
	w := send.Whereabouts{Host: hostname, Directory: a.queue.HeldDir(queue.Parked)}
	if dir, err := filepath.Abs(w.Directory); err == nil {
		w.Directory = dir
	}
	if host, port, err := net.SplitHostPort(a.cfg.HTTP.Listen); err == nil && port != "0" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = hostname // it listens on all addresses
		}
		w.Page = "http://" + net.JoinHostPort(host, port)
	}
	return w
}

// sink is the input.Sink of the agent. Offered samples go through the buffer to the batcher;
// appended ones go to the committer, which queues them at once.
type sink struct {
	*input.Buffer
	*batch.Committer
}

func (a *Agent) openQueue(m *metrics) error {
	dir := filepath.Join(a.cfg.DataDir, "queue")
	if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
		return err
	}
	print, err := queue.FingerprintOf(dir)
	if err != nil {
		return err
	}
	q := a.cfg.Queue
	a.queue, err = queue.Open(vfs.OS, dir, queue.Options{
		Agent: a.id, Fingerprint: print, MaxBytes: int64(q.MaxBytes), SegmentBytes: int64(q.SegmentBytes),
		DeadBytes: int64(q.DeadLetterBytes), Policy: queue.Policy(q.Policy), OnDrop: m.dropOldest, Now: a.now, Log: a.log,
	})
	if err != nil {
		return err
	}
	r, boot := a.queue.Recovered(), a.bootStatus()
	a.log.Info("queue is open", "dir", dir, "agent_id", boot.AgentID, "boot_id", boot.BootID, "next_seq", boot.NextSeq,
		"pending", r.Entries, "cut_bytes", r.CutBytes, "damaged_records", r.Damaged)
	return nil
}

// Ready is closed when Run listens and everything is started.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// ID is the agent id that new batches carry.
func (a *Agent) ID() string { return a.id }

// HTTPAddr is the address of the own server; "" when it has none.
func (a *Agent) HTTPAddr() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// errOtherStage ends the inputs when a later stage failed; the report has that stage's own error.
var errOtherStage = errors.New("another stage failed")

// httpDrain bounds how long a stop waits for requests.
const httpDrain = 2 * time.Second

// maxConnections of the agent's own server.
const maxConnections = 256

// Run works until ctx ends. Then inputs stop, the unfinished batch is queued, and the
// sender has DrainTimeout for what is pending; the rest stays on disk.
func (a *Agent) Run(ctx context.Context) error {
	a.started = a.now()
	// The stages after the inputs outlive ctx: they must queue and send what the inputs have read.
	outer := run.NewGroup(context.WithoutCancel(ctx))
	// Each stage ends after the one before it: inputs with ctx, then batcher, sender, HTTP.
	batcherCtx, stopBatcher := context.WithCancel(outer.Context())
	senderCtx, stopSender := context.WithCancel(outer.Context())
	defer stopBatcher()
	defer stopSender()

	inputs := run.NewGroup(ctx)
	a.sources.start(inputs)
	outer.Go("inputs", func(outerCtx context.Context) error {
		defer stopBatcher()
		// Inputs end with ctx. They must also end when a later stage failed, or Run would wait for
		// them although nothing takes their samples.
		inputs.Go("end", func(ictx context.Context) error {
			select {
			case <-ictx.Done():
				return nil
			case <-outerCtx.Done():
				return errOtherStage
			}
		})
		return inputs.Wait()
	})
	outer.Go("batcher", func(context.Context) error {
		defer stopSender()
		if err := a.batcher.Run(batcherCtx, a.buffer); err != nil {
			return err
		}
		// Everything is queued now. What cannot be sent in time is sent after the next start.
		drainCtx, cancel := context.WithTimeout(outer.Context(), a.cfg.DrainTimeout)
		defer cancel()
		if err := a.sender.Drain(drainCtx); err != nil {
			a.log.Info("stopping with batches left in the queue", "pending", a.queue.Stats().Pending, "why", err)
		}
		return nil
	})
	outer.Go("sender", func(context.Context) error { return a.sender.Run(senderCtx) })
	if a.listener != nil {
		outer.Go("http", func(context.Context) error {
			return web.ServeHTTP(senderCtx, web.NewHTTPServer(web.CheckHosts(a.cfg.HTTP.Listen, a.cfg.HTTP.Hosts, a.handler())), web.LimitConnections(a.listener, maxConnections), httpDrain)
		})
	}
	close(a.ready)
	return errors.Join(outer.Wait(), a.close())
}

func (a *Agent) close() error {
	var errs []error
	if a.queue != nil {
		errs = append(errs, a.queue.Close())
	}
	if a.listener != nil {
		if err := a.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
