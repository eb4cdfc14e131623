package journal

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func listAll(prefix string) objstore.ListOptions { return objstore.ListOptions{Prefix: prefix} }

// flaky loses answers, applied or not, and applies some requests late.
type flaky struct {
	objstore.Store
	rnd  *rand.Rand
	late []func()
}

func (s *flaky) lose() bool { return s.rnd.IntN(12) == 0 }

func (s *flaky) write(key string, do func() (objstore.Info, error)) (objstore.Info, error) {
	if len(s.late) > 0 && s.rnd.IntN(4) == 0 {
		s.late[0]()
		s.late = s.late[1:]
	}
	lost := &objstore.Error{Op: "put", Key: key, Err: objstore.ErrUnknown}
	if s.lose() {
		switch s.rnd.IntN(3) {
		case 0: // never applied
		case 1:
			s.late = append(s.late, func() { _, _ = do() })
		default:
			_, _ = do()
		}
		return objstore.Info{}, lost
	}
	return do()
}

func (s *flaky) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Create(ctx, key, body, o) })
}

func (s *flaky) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Replace(ctx, key, body, etag, o) })
}

func (s *flaky) Delete(ctx context.Context, key string) error {
	_, err := s.write(key, func() (objstore.Info, error) { return objstore.Info{}, s.Store.Delete(ctx, key) })
	return err
}

func (s *flaky) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if s.lose() {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return s.Store.Get(ctx, key, o)
}

// TestSchedules runs writers, fences, folders and followers against a store that loses answers and applies
// requests late. A poll that succeeds has applied everything that was answered before it, every time.
func TestSchedules(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		schedule(t, seed)
	}
}

func schedule(t *testing.T, seed uint64) {
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := &flaky{Store: mem.New(nil), rnd: rnd}
	type life struct {
		w    *Writer
		sent map[uint64]identity.Batch // waiting for their answer, by number
	}
	lives := byte(0)
	newLife := func() *life { lives++; return &life{newWriter(t, s, lives), map[uint64]identity.Batch{}} }
	writers := []*life{newLife(), newLife()}
	answered := map[identity.Batch]bool{}
	batches := uint64(0)
	now := int64(0)
	newFolder := func() (*Folder, *Follower) {
		lives++
		folder, err := NewFolder(FolderConfig{Store: s, Rand: source(lives), Retention: 5})
		if err != nil {
			t.Fatal(err)
		}
		from, err := folder.Load(ctx)
		for err != nil {
			from, err = folder.Load(ctx)
		}
		f, _ := follow(t, s, from, folder)
		return folder, f
	}
	folder, feeder := newFolder()
	reader, got := follow(t, s, Positions{}, nil)
	for step := range 400 {
		now++
		switch rnd.IntN(12) {
		case 0, 1, 2: // a batch
			l := writers[rnd.IntN(len(writers))]
			batches++
			e := entry("a", batches)
			n, err := l.w.Add(e)
			if err != nil {
				t.Fatal(err)
			}
			l.sent[n] = e.ID
		case 3, 4, 5:
			l := writers[rnd.IntN(len(writers))]
			_, done, err := l.w.Flush(ctx)
			if err == nil {
				for n, id := range l.sent {
					if n <= done {
						answered[id] = true
						delete(l.sent, n)
					}
				}
			}
		case 6: // an orderly end, or a crash and a new life
			i := rnd.IntN(len(writers))
			if rnd.IntN(2) == 0 && writers[i].w.Close(ctx) == nil {
				for _, id := range writers[i].sent {
					answered[id] = true
				}
				clear(writers[i].sent)
			} else if rnd.IntN(3) == 0 {
				writers[i] = newLife()
			}
		case 7: // a fence somewhere that the feeder knows, perhaps long ago
			for _, r := range feeder.Runs() {
				if r.Next > 0 && rnd.IntN(3) == 0 {
					_ = Fence(ctx, s, Position{r.Run, max(1, r.Next-min(r.Next, uint64(rnd.IntN(2))))})
				}
			}
		case 8, 9:
			_, _ = feeder.Poll(ctx)
			if rnd.IntN(2) == 0 {
				_, _ = folder.Fold(ctx, now)
			}
			if rnd.IntN(20) == 0 {
				_ = folder.Sweep(ctx, now)
			}
			if rnd.IntN(15) == 0 {
				folder, feeder = newFolder()
			}
		default:
			before := maps.Clone(answered)
			p, err := reader.Poll(ctx)
			if err != nil {
				if !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, objstore.ErrUnknown) {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
				continue
			}
			for id := range before {
				if got[id] == 0 {
					t.Fatalf("seed %d, step %d: %s was answered and is not applied", seed, step, id)
				}
			}
			switch rnd.IntN(6) {
			case 0: // starts again from where it was
				var next applied
				reader, next = follow(t, s, p.Positions, nil)
				maps.Copy(next, got)
				got = next
			case 1: // or from nothing
				reader, got = follow(t, s, Positions{}, nil)
			case 2: // or from something earlier than both
				head := folder.Head()
				q := Earliest(p.Positions, head.Positions())
				var next applied
				reader, next = follow(t, s, q, nil)
				maps.Copy(next, got)
				got = next
			}
		}
	}
}
