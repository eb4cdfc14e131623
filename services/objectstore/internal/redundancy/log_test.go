package redundancy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// TestLogIsNoPlaceOfTheSettings: what is done to places is not done to the log, which is listed as one: a listing has nothing to warn of, and
// nobody empties it.
func TestLogIsNoPlaceOfTheSettings(t *testing.T) {
	p := Policy{Copies: 1, Data: 2, Parity: 1, Threshold: 100 << 10, MinChunk: 16 << 10, MaxChunk: 1 << 20}
	d := newDrives(t, p, "a", "b", "c")
	d.start()
	defer d.stop()
	l := d.k.ledger
	var log bytes.Buffer
	k, err := New(context.Background(), l, &Spread{Store: d.store, Log: noSegments{}}, Options{
		Policy: p, Names: func(string) (Naming, error) { return Named, nil }, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.listDue(context.Background()); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 || !k.listedAll() {
		t.Errorf("listed everything: %t; warned of %s", k.listedAll(), &log)
	}
	for _, name := range []string{LogPlace, OldPlace} {
		var refused *LeaveError
		if err := k.Drain(context.Background(), name, true); !errors.As(err, &refused) || refused.Reason != NoSuchPlace {
			t.Errorf("drain %s: %v", name, err)
		}
		if err := k.Undrain(context.Background(), name); !errors.As(err, &refused) || refused.Reason != NoSuchPlace {
			t.Errorf("undrain %s: %v", name, err)
		}
	}
	if rows, err := l.AtPlace(LogPlace, ledger.Key{}, 1); len(rows) > 0 || err != nil {
		t.Errorf("%+v, %v", rows, err)
	}
}
