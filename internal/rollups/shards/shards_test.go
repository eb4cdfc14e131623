package shards

import (
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
)

func TestShardsAreFixedOnce(t *testing.T) {
	s := mem.New(time.Now)
	if _, err := Read(t.Context(), s); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		if err := Ensure(t.Context(), s, 4); err != nil {
			t.Fatal(err)
		}
	}
	var differ *CountError
	if err := Ensure(t.Context(), s, 8); !errors.As(err, &differ) || differ.Have != 4 {
		t.Errorf("8 after 4: %v", err)
	}
	if n, err := Read(t.Context(), s); n != 4 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
	if _, err := s.Put(t.Context(), layout.RollupConfigKey, []byte(`{"schema":"lightmetrics.rollup_config.v1","shards":4,"x":1}`), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(t.Context(), s, 4); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("a field that must not be ignored: %v", err)
	}
	if _, err := s.Put(t.Context(), layout.RollupConfigKey, []byte(`{"schema":"lightmetrics.rollup_config.v1","shards":0}`), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(t.Context(), s, 4); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("no number of shards: %v", err)
	}
}
