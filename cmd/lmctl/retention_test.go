package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

var acceptedFrom = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// Raw frames are removed only when an operator says so, and not the recent ones.
func TestRetentionOfRawFramesIsExplicit(t *testing.T) {
	s := objmem.New(nil)
	now := func() time.Time { return acceptedFrom.Add(100 * time.Hour) }
	remove := func(before time.Time, dry, yes bool) error {
		_, err := removeFrames(t.Context(), s, io.Discard, before, dry, yes, now)
		return err
	}
	var exit *cli.ExitError
	for name, err := range map[string]error{
		"neither":   remove(acceptedFrom, false, false),
		"both":      remove(acceptedFrom, true, true),
		"too young": remove(now().Add(-youngestFrames+time.Second), false, true),
	} {
		if !errors.As(err, &exit) || exit.Code != cli.ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := remove(acceptedFrom, true, false); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("no authority: %v", err)
	}
	if _, err := accept.EnsureAuthority(t.Context(), s, "authority", true); err != nil {
		t.Fatal(err)
	}
	// An orphan, which no set covers, is not touched.
	blob := layout.BlobStem([32]byte{1})
	if _, err := s.Put(t.Context(), blob, []byte("frame"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := remove(acceptedFrom, false, true); err != nil {
		t.Error(err)
	}
	if _, err := s.Head(t.Context(), blob); err != nil {
		t.Error(err)
	}
}
