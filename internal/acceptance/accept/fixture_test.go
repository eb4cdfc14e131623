package accept_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// tickClock goes on by a millisecond a look; its sleeps take no time.
type tickClock struct {
	mu    sync.Mutex
	ticks int64
	slept []time.Duration
}

func (c *tickClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticks++
	return time.Unix(1_700_000_000, c.ticks*1e6)
}

func (c *tickClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slept = append(c.slept, d)
	return ctx.Err()
}

type lockedRand struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

func (l *lockedRand) Read(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Read(b)
}

func seededRand(seed uint64) *lockedRand {
	var s [32]byte
	for i := range 8 {
		s[i] = byte(seed >> (8 * i))
	}
	return &lockedRand{r: rand.NewChaCha8(s)}
}

// hooked shows every request to before and after; an error of theirs is the answer.
type hooked struct {
	accept.Store
	before func(n int, op, key string) error // the request does not reach the store
	after  func(n int, op, key string) error // the request was applied
	n      int
	ops    []string
}

func (h *hooked) around(op, key string, f func() error) error {
	n := h.n
	h.n++
	h.ops = append(h.ops, op+" "+key)
	if h.before != nil {
		if err := h.before(n, op, key); err != nil {
			return &objstore.Error{Op: op, Key: key, Err: err}
		}
	}
	err := f()
	if h.after != nil {
		if e := h.after(n, op, key); e != nil {
			return &objstore.Error{Op: op, Key: key, Err: e}
		}
	}
	return err
}

func (h *hooked) Get(ctx context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = h.around("get", key, func() (e error) { b, i, e = h.Store.Get(ctx, key, o); return })
	return
}

func (h *hooked) Head(ctx context.Context, key string) (i objstore.Info, err error) {
	err = h.around("head", key, func() (e error) { i, e = h.Store.Head(ctx, key); return })
	return
}

func (h *hooked) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (i objstore.Info, err error) {
	err = h.around("create", key, func() (e error) { i, e = h.Store.Create(ctx, key, body, o); return })
	return
}

var testID = identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: 10, SeqEnd: 19}

func submission(id identity.Batch, variant string) accept.Submission {
	f := []byte(fmt.Sprintf("frame of %s, variant %s", id, variant))
	return accept.Submission{
		Frame: f, Identity: id, SHA256: identity.Sum(f), Records: id.Count(),
		MinTime: 1, MaxTime: 2, WireVersion: 1, FrameVersion: 1, SpoolID: "spool-1",
	}
}

// attempts at one operation of the store that a protocol gets.
const attempts = 5

// tried is s behind the attempts that a collector makes; its waits are those of c.
func tried(s accept.Store, c retry.Clock) accept.Store {
	type rest interface { // acceptance has neither
		objstore.Lister
		objstore.Replacer
		objstore.Putter
		objstore.Deleter
	}
	return objstore.Retry(struct {
		accept.Store
		rest
	}{Store: s}, retry.Retrier{Policy: retry.Policy{Attempts: attempts, Base: 1, Cap: 4}, Clock: c}, nil)
}

func protocol(t testing.TB, s accept.Store, collector string, change func(*accept.Config)) *accept.Protocol {
	t.Helper()
	p := accept.DefaultPolicy()
	c := accept.Config{
		AuthorityID: "authority-1", CollectorID: collector, Clock: &tickClock{},
		Rand: seededRand(uint64(identity.Sum([]byte(collector))[0])<<8 | 7), Policy: p,
	}
	if change != nil {
		change(&c)
	}
	c.Store = tried(s, c.Clock.(retry.Clock))
	out, err := accept.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustAccept(t testing.TB, p accept.Acceptor, s accept.Submission, want accept.Outcome) accept.Result {
	t.Helper()
	r, err := p.Accept(t.Context(), s)
	if err != nil {
		t.Fatalf("accept: %v", err)
	}
	if r.Outcome != want {
		t.Fatalf("outcome is %s, want %s", r.Outcome, want)
	}
	return r
}

func wantRetry(t testing.TB, err error, want accept.Reason) {
	t.Helper()
	var r *accept.RetryError
	if !errors.As(err, &r) || r.Reason != want {
		t.Fatalf("error is %v, want a retry with %s", err, want)
	}
}

// readable reports whether some generation of the frame holds its bytes.
func readable(t testing.TB, s objstore.Store, frame []byte) bool {
	t.Helper()
	found := false
	err := storetest.Each(context.Background(), s, layout.BlobStem(identity.Sum(frame)), func(i objstore.Info) error {
		b, _, err := s.Get(context.Background(), i.Key, objstore.GetOptions{})
		found = found || err == nil && string(b) == string(frame)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func put(t testing.TB, s *mem.Store, key string, body []byte) {
	t.Helper()
	if _, err := s.Put(context.Background(), key, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func exists(t testing.TB, s objstore.Store, key string) bool {
	t.Helper()
	_, err := s.Head(context.Background(), key)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// condemn writes the marker of a generation and, with gone, deletes it, as the garbage collector does.
func condemn(t testing.TB, s *mem.Store, d identity.Digest, gen uint32, gone bool) {
	t.Helper()
	m := accept.CondemnedMarker{FrameSHA256: d, Generation: gen, PlanID: "plan-1"}
	put(t, s, m.Key(), m.Marshal())
	if gone {
		if err := s.Delete(context.Background(), layout.Blob(d, gen)); err != nil {
			t.Fatal(err)
		}
	}
}
