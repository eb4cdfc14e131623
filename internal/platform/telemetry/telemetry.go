// Package telemetry gives every service its log, metrics and traces.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config of log and traces.
type Config struct {
	LogLevel  string `koanf:"log_level" help:"lowest level that is logged: debug, info, warn, error" reload:"yes"`
	LogFormat string `koanf:"log_format" help:"text or json"`
	// OTLPEndpoint takes traces by OTLP gRPC; empty turns traces off.
	OTLPEndpoint string  `koanf:"otlp_endpoint" help:"host:port that takes traces by OTLP gRPC; empty turns traces off" check:"address"`
	OTLPInsecure bool    `koanf:"otlp_insecure" help:"send traces without TLS" needs:"otlp_endpoint"`
	SampleRatio  float64 `koanf:"trace_sample_ratio" help:"fraction of traces that are kept, 0 to 1" needs:"otlp_endpoint"`
}

// DefaultConfig logs info as text and traces nothing.
func DefaultConfig() Config {
	return Config{LogLevel: "info", LogFormat: "text", SampleRatio: 0.01}
}

// Validate checks names and ranges.
func (c Config) Validate() error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fmt.Errorf("log_level: %w", err)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("log_format %q: want text or json", c.LogFormat)
	}
	if c.SampleRatio < 0 || c.SampleRatio > 1 {
		return fmt.Errorf("trace_sample_ratio %g: want 0 to 1", c.SampleRatio)
	}
	return nil
}

// Telemetry is handed to a service. Use Discard in tests.
type Telemetry struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
	stop     func(context.Context) error
	level    *slog.LevelVar
	ready    *readyCollector
}

// New starts telemetry for one service of this process; log lines go to w.
func New(ctx context.Context, c Config, service string, w io.Writer) (*Telemetry, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t := Discard()
	t.Registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(service))
	t.SetLevel(c.LogLevel)
	opts := &slog.HandlerOptions{Level: t.level}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if c.LogFormat == "json" {
		h = slog.NewJSONHandler(w, opts)
	}
	t.Log = slog.New(h).With("service", service)
	if c.OTLPEndpoint != "" {
		o := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.OTLPEndpoint)}
		if c.OTLPInsecure {
			o = append(o, otlptracegrpc.WithInsecure())
		}
		exp, err := otlptracegrpc.New(ctx, o...)
		if err != nil {
			return nil, fmt.Errorf("start traces to %s: %w", c.OTLPEndpoint, err)
		}
		tp := sdktrace.NewTracerProvider(
			sdktrace.WithBatcher(exp),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.SampleRatio))),
			sdktrace.WithResource(resource.NewSchemaless(
				semconv.ServiceName("lightmetrics-"+service), semconv.ServiceVersion(Version()))))
		t.Tracer, t.stop = tp, tp.Shutdown
	}
	return t, nil
}

// Discard logs nothing and traces nothing; metrics go to a registry of its own.
func Discard() *Telemetry {
	t := &Telemetry{
		Log:      slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(),
		Tracer:   noop.NewTracerProvider(),
		stop:     func(context.Context) error { return nil },
		level:    new(slog.LevelVar),
		ready:    &readyCollector{},
	}
	t.Registry.MustRegister(t.ready)
	return t
}

// SetLevel changes the lowest level that is logged to one that Config.Validate takes.
func (t *Telemetry) SetLevel(name string) {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) == nil {
		t.level.Set(l)
	}
}

// Shutdown flushes traces.
func (t *Telemetry) Shutdown(ctx context.Context) error { return t.stop(ctx) }
