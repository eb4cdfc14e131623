package frames

import (
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// What retention removed is distinguished from what is lost, and a damaged frame is never called removed.
func TestRemovedIsNotLost(t *testing.T) {
	s := mem.New(time.Now)
	batch := func(start uint64) accepted.Batch {
		d := identity.Sum([]byte{byte(start)})
		return accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: start, SeqEnd: start}, FrameSHA256: d, FrameBytes: 1, RawBlobKey: layout.Blob(d, 0)}
	}
	removed, lost, damaged := batch(1), batch(2), batch(3)
	l := framelog.Log{AuthorityID: "auth", By: "w", Before: 1, RemovedAt: 2}
	for _, e := range []accepted.Batch{removed, damaged} {
		l.Frames = append(l.Frames, framelog.Frame{Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: 1, Keys: []string{e.RawBlobKey}})
	}
	body, err := l.Marshal()
	if err == nil {
		_, err = s.Create(t.Context(), l.Key(body), body, objstore.PutOptions{})
	}
	if err == nil {
		_, err = s.Put(t.Context(), damaged.RawBlobKey, []byte("x"), objstore.PutOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &Reader{Store: s, MaxFrame: 9, AtOnce: 1, Removed: framelog.NewIndex(s, "auth").Removed}
	for _, c := range []struct {
		e    accepted.Batch
		want bool
	}{{removed, true}, {lost, false}, {damaged, false}} {
		_, err := r.Get(t.Context(), c.e)
		var bad *UnreadableError
		if !errors.As(err, &bad) || errors.Is(err, ErrRemoved) != c.want {
			t.Errorf("%s: %v", c.e.Identity, err)
		}
	}
	down := fault.New(s, 1, fault.Refused("list", layout.FrameLogsPrefix, objstore.ErrUnavailable))
	r.Removed = framelog.NewIndex(down, "auth").Removed
	var bad *UnreadableError
	if _, err := r.Get(t.Context(), removed); !errors.Is(err, objstore.ErrUnavailable) || errors.As(err, &bad) {
		t.Errorf("logs that can't be read: %v", err)
	}
}
