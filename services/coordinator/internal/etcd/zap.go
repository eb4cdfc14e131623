package etcd

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// zapToSlog passes what etcd logs on to slog. etcd logs everything that it does; its
// info is debug here.
type zapToSlog struct {
	h slog.Handler
	// closing is set while a member stops: it calls each listener's end an error.
	closing *atomic.Bool
}

// expectedWarnings are warnings about how the member is run, which is on purpose: on loopback,
// for this process.
var expectedWarnings = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
}

// Enabled implements zapcore.LevelEnabler.
func (z zapToSlog) Enabled(l zapcore.Level) bool {
	return z.h.Enabled(context.Background(), slogLevel(l))
}

// With implements zapcore.Core.
func (z zapToSlog) With(fields []zapcore.Field) zapcore.Core {
	return zapToSlog{h: z.h.WithAttrs(attrs(fields)), closing: z.closing}
}

// Check implements zapcore.Core.
func (z zapToSlog) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if z.Enabled(e.Level) {
		return c.AddCore(e, z)
	}
	return c
}

// Write implements zapcore.Core.
func (z zapToSlog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slogLevel(e.Level)
	if expectedWarnings[e.Message] || z.closing != nil && z.closing.Load() {
		level = slog.LevelDebug
		if !z.h.Enabled(context.Background(), level) {
			return nil
		}
	}
	r := slog.NewRecord(e.Time, level, e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return z.h.Handle(context.Background(), r)
}

// Sync implements zapcore.Core.
func (z zapToSlog) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	out := make([]slog.Attr, 0, len(fields))
	for _, k := range slices.Sorted(maps.Keys(enc.Fields)) {
		out = append(out, slog.Any(k, enc.Fields[k]))
	}
	return out
}

func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
