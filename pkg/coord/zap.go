package coord

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap/zapcore"
)

// zapToSlog passes what etcd logs on to slog. etcd tells of everything that it does; its
// info is debug here.
type zapToSlog struct{ h slog.Handler }

// Enabled implements zapcore.LevelEnabler.
func (z zapToSlog) Enabled(l zapcore.Level) bool {
	return z.h.Enabled(context.Background(), slogLevel(l))
}

// With implements zapcore.Core.
func (z zapToSlog) With(fields []zapcore.Field) zapcore.Core {
	return zapToSlog{h: z.h.WithAttrs(attrs(fields))}
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
	r := slog.NewRecord(e.Time, slogLevel(e.Level), e.Message, 0)
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
