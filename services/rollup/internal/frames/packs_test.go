package frames

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// framesOf puts n frames, which are no valid ones, into a store and gives their entries.
func framesOf(t *testing.T, s objstore.Store, n int) (entries []accepted.Batch, raws [][]byte) {
	t.Helper()
	for i := range n {
		raw := fmt.Appendf(nil, "frame %d", i)
		d := identity.Sum(raw)
		if _, err := s.Put(t.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, accepted.Batch{Identity: identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)},
			FrameSHA256: d, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(d, 0)})
		raws = append(raws, raw)
	}
	return entries, raws
}

// Frames come from packs first, if they are the accepted ones; all others come from their blobs. What is wrong with a pack is said once.
func TestPacksBeforeBlobs(t *testing.T) {
	s := storetest.Count(mem.New(time.Now))
	entries, raws := framesOf(t, s, 8)
	if err := s.Delete(t.Context(), entries[0].RawBlobKey); err != nil {
		t.Fatal(err)
	}
	failed := map[string]int{}
	pack := func(name string, err error, of []int, give ...[]byte) Pack {
		return Pack{Entries: of, Bytes: 10, Failed: func(error) { failed[name]++ }, Read: func(context.Context) ([][]byte, error) { return give, err }}
	}
	r := &Reader{Store: s, MaxFrame: 100, AtOnce: 1, Packs: func(context.Context, []accepted.Batch) []Pack {
		return []Pack{
			pack("whole", nil, []int{0, 7}, raws[0], raws[7]),
			pack("damaged", nil, []int{1, 2, 3, 4}, raws[1], []byte("frame ?"), nil, raws[5]),
			pack("gone", objstore.ErrNotFound, []int{5, 6}),
		}
	}}
	check := func(what string, fromBlobs []int, want map[string]int) {
		t.Helper()
		var read []int
		for i, e := range entries {
			if s.Of("get", e.RawBlobKey) > 0 {
				read = append(read, i)
			}
		}
		if !slices.Equal(read, fromBlobs) || s.Of("get", "") != len(fromBlobs) {
			t.Errorf("%s: blobs of %v are read with %d GETs, want %v", what, read, s.Of("get", ""), fromBlobs)
		}
		if fmt.Sprint(failed) != fmt.Sprint(want) {
			t.Errorf("%s: failures %v, want %v", what, failed, want)
		}
		s.Reset()
		failed = map[string]int{}
	}

	got := make([]string, len(entries))
	if err := r.Each(t.Context(), entries, func(i int, raw []byte) error { got[i] += string(raw); return nil }); err != nil {
		t.Fatal(err)
	}
	for i, raw := range raws {
		if got[i] != string(raw) {
			t.Errorf("frame %d is %q", i, got[i])
		}
	}
	check("all", []int{2, 3, 4, 5, 6}, map[string]int{"damaged": 1, "gone": 1})

	// None of them can be decoded, wherever it comes from, and the blob of the first need not be there for that.
	bad, err := r.FindUnreadable(t.Context(), entries)
	if err != nil || len(bad) != len(entries) {
		t.Errorf("%d of %d are unreadable: %v", len(bad), len(entries), err)
	}
	check("unreadable", []int{2, 3, 4, 5, 6}, map[string]int{"damaged": 1, "gone": 1})

	// A frame that is too long is refused in a pack, too.
	r.MaxFrame = int64(len(raws[0])) - 1
	r.Packs = func(context.Context, []accepted.Batch) []Pack { return []Pack{pack("whole", nil, []int{0}, raws[0])} }
	var one *UnreadableError
	if err := r.Each(t.Context(), entries[:1], func(int, []byte) error { return nil }); !errors.As(err, &one) {
		t.Errorf("a frame of %d bytes, at most %d: %v", len(raws[0]), r.MaxFrame, err)
	}
}

// Whoever ends a read is no failure of a pack.
func TestPacksOfAReadThatEnds(t *testing.T) {
	s := mem.New(time.Now)
	entries, raws := framesOf(t, s, 2)
	ctx, cancel := context.WithCancel(t.Context())
	r := &Reader{Store: s, MaxFrame: 100, AtOnce: 1, Packs: func(context.Context, []accepted.Batch) []Pack {
		return []Pack{{Entries: []int{0, 1}, Bytes: 10, Failed: func(err error) { t.Errorf("failed: %v", err) }, Read: func(context.Context) ([][]byte, error) {
			if cancel(); ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return raws, nil
		}}}
	}}
	if err := r.Each(ctx, entries, func(int, []byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a read that was ended: %v", err)
	}
	enough := errors.New("enough")
	r.Packs = func(context.Context, []accepted.Batch) []Pack {
		return []Pack{{Entries: []int{0, 1}, Bytes: 10, Read: func(context.Context) ([][]byte, error) { return raws, nil }}}
	}
	calls := 0
	if err := r.Each(t.Context(), entries, func(int, []byte) error { calls++; return enough }); !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// Packs are read several at once, and no more of them are in memory than frames may be, however slow whoever takes them is.
func TestPacksInMemory(t *testing.T) {
	const packs = 20
	for _, c := range []struct {
		bytes         uint64
		reading, held int
	}{
		{bytes: 1 << 10, reading: 4, held: 5}, // one more is handed out
		{bytes: 16 << 20, reading: 2, held: 2},
		{bytes: 1 << 40, reading: 1, held: 1}, // what a snapshot says must not stop the worker
	} {
		synctest.Test(t, func(t *testing.T) {
			entries, raws := framesOf(t, mem.New(time.Now), packs)
			var mu sync.Mutex
			var reading, mostReading, held, mostHeld int
			count := func(r, h int) {
				mu.Lock()
				defer mu.Unlock()
				reading, held = reading+r, held+h
				mostReading, mostHeld = max(mostReading, reading), max(mostHeld, held)
			}
			r := &Reader{MaxFrame: 100, AtOnce: 4, Packs: func(context.Context, []accepted.Batch) (out []Pack) {
				for i := range packs {
					out = append(out, Pack{Entries: []int{i}, Bytes: c.bytes, Read: func(context.Context) ([][]byte, error) {
						count(1, 1)
						time.Sleep(time.Second)
						count(-1, 0)
						return raws[i : i+1 : i+1], nil
					}})
				}
				return out
			}}
			err := r.Each(t.Context(), entries, func(int, []byte) error {
				time.Sleep(time.Minute)
				count(0, -1)
				return nil
			})
			if err != nil || mostReading != c.reading || mostHeld != c.held {
				t.Errorf("packs of %d bytes: %d are read at once, want %d, and %d in memory, want %d: %v", c.bytes, mostReading, c.reading, mostHeld, c.held, err)
			}
		})
	}
}
