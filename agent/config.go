package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"lightmetrics.dev/lightmetrics/agent/batch"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config of an agent. docs/guide/agent.md has the table.
type Config struct {
	AgentID string `koanf:"agent_id" help:"name of this agent, unique in the deployment; the host name when empty"`
	// DataDir holds the queue. No two agents may share it.
	DataDir  string        `koanf:"data_dir" help:"directory of the queue" check:"dir"`
	Interval time.Duration `koanf:"interval" help:"time between reads of every input that has no interval of its own"`
	// Labels of every series, beside host.
	Labels map[string]string `koanf:"labels" help:"labels of every series"`
	// InputBuffer is the number of reads that may wait between the inputs and the batcher.
	InputBuffer int `koanf:"input_buffer" help:"reads of inputs that may wait for the batcher; the next ones are dropped, counted and leave a gap"`

	Inputs `koanf:",squash"`

	Batch batch.Config `koanf:"batch"`
	Queue QueueConfig  `koanf:"queue"`
	Send  send.Config  `koanf:"send"`
	HTTP  HTTPConfig   `koanf:"http"`

	DrainTimeout time.Duration `koanf:"drain_timeout" help:"how long a stop waits for queued batches to be sent; what is left is sent after the next start"`
}

// QueueConfig bounds the disk.
type QueueConfig struct {
	MaxBytes        config.Bytes `koanf:"max_bytes" help:"disk that the queue may use, parked and dead batches included"`
	SegmentBytes    config.Bytes `koanf:"segment_bytes" help:"size at which a file of the log is closed; max_bytes must hold four"`
	DeadLetterBytes config.Bytes `koanf:"dead_letter_bytes" help:"disk for rejected batches; the oldest are removed beyond it"`
	Policy          string       `koanf:"policy" help:"when the disk is full: refuse_new drops new samples, drop_oldest drops the oldest queued batches"`
}

// HTTPConfig is the agent's own server.
type HTTPConfig struct {
	Listen string `koanf:"listen" help:"host:port of /metrics, /status and the status page; empty is none" check:"listen"`
	// Token that changing requests need; without one they must come from this machine.
	Token config.Secret `koanf:"token" help:"bearer token that changing requests need, beside coming from this machine" needs:"listen"`
	// TokenFile fills Token when settings are loaded.
	TokenFile string `koanf:"token_file" help:"file that holds that token, in place of token" needs:"listen"`
	Pprof     bool   `koanf:"pprof" help:"serve /debug/pprof/; on loopback only" needs:"listen"`
	// Hosts are for a proxy on this machine that passes its own name on.
	Hosts []string `koanf:"hosts" help:"names under which requests are taken: on loopback beside its own names, elsewhere instead of all; IP addresses always are" needs:"listen"`
}

// DefaultConfig reads this host and sends to a collector on it.
func DefaultConfig() Config {
	return Config{
		DataDir:     filepath.Join("data", "agent"),
		Interval:    10 * time.Second,
		InputBuffer: 64,
		Inputs:      DefaultInputs(),
		Batch:       batch.DefaultConfig(),
		Queue: QueueConfig{MaxBytes: 1 << 30, SegmentBytes: 16 << 20, DeadLetterBytes: 128 << 20,
			Policy: string(queue.RefuseNew)},
		Send:         send.DefaultConfig(),
		HTTP:         HTTPConfig{Listen: "127.0.0.1:4320"},
		DrainTimeout: 5 * time.Second,
	}
}

// Validate checks every part.
func (c Config) Validate() error {
	id, err := c.agentID()
	if err == nil {
		err = identity.Boot{Agent: id, Boot: "b"}.Validate()
	}
	errs := []error{err}
	add := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if c.DataDir == "" {
		errs = append(errs, errors.New("data_dir is empty"))
	}
	if c.Interval <= 0 || c.InputBuffer < 1 || c.DrainTimeout < 0 {
		errs = append(errs, errors.New("interval, input_buffer: want more than 0; drain_timeout: want 0 or more"))
	}
	for name := range c.Labels {
		if name == "" || name == "__name__" {
			errs = append(errs, fmt.Errorf("labels: name %q is not allowed", name))
		}
	}
	q := c.Queue
	if q.SegmentBytes < 64<<10 || q.MaxBytes < 4*q.SegmentBytes || q.DeadLetterBytes < 0 {
		errs = append(errs, fmt.Errorf("queue: segment_bytes %s: want at least 64KiB, and four within max_bytes %s", q.SegmentBytes, q.MaxBytes))
	}
	if p := queue.Policy(q.Policy); p != queue.RefuseNew && p != queue.DropOldest {
		errs = append(errs, fmt.Errorf("queue.policy %q: want %s or %s", q.Policy, queue.RefuseNew, queue.DropOldest))
	}
	if c.HTTP.Pprof && c.HTTP.Listen != "" && !web.Loopback(c.HTTP.Listen) {
		errs = append(errs, fmt.Errorf("http.listen %q: pprof is for loopback", c.HTTP.Listen))
	}
	add("batch", c.Batch.Validate())
	add("send", c.Send.Validate())
	for _, in := range c.Inputs.all() {
		if err := in.Validate(c.Interval); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// agentID is the setting, or the host's name.
func (c Config) agentID() (string, error) {
	if c.AgentID != "" {
		return c.AgentID, nil
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "", fmt.Errorf("agent_id is empty and the host has no name: %w", err)
	}
	return name, nil
}
