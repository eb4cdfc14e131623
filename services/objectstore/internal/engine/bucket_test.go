package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
)

// The list of buckets is one record, and their settings are in it. What does not fit is refused: a record that is too large
// could be written, and not be read again.
func TestSettingsThatDoNotFitAreRefused(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, Options{Dir: dir})
	ctx, large := context.Background(), bytes.Repeat([]byte("x"), 64<<10)
	settings := map[string][]byte{}
	for i := range 16 {
		settings[fmt.Sprint("setting-", i)] = large
	}
	made := 0
	for ; made < 8; made++ {
		if err := e.CreateBucketWith(ctx, Bucket{Name: fmt.Sprint("large-", made), Created: epoch, Settings: settings}); err != nil {
			if !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			break
		}
	}
	if made == 0 || made == 8 {
		t.Fatalf("%d buckets with 1 MiB of settings each fit", made)
	}
	if err := e.CreateBucketWith(ctx, Bucket{Name: "small", Created: epoch}); err != nil {
		t.Errorf("a bucket without settings: %v", err)
	}
	e.done()
	again := openTest(t, Options{Dir: dir})
	if got := len(again.Buckets()); got != made+2 || len(again.Damages()) != 0 {
		t.Errorf("%d buckets after a restart, want %d; damages: %v", got, made+2, again.Damages())
	}
}
