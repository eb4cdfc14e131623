package linearizer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// gate is a store whose transactions wait until they may go.
type gate struct {
	*mem.Store
	sent chan claims.Txn
	may  chan error // nil: do it; else fail with it
}

func (g gate) Commit(ctx context.Context, t claims.Txn) (claims.Result, error) {
	g.sent <- t
	if err := <-g.may; err != nil {
		return claims.Result{}, err
	}
	return g.Store.Commit(ctx, t)
}

var epoch = claims.Epoch{Number: 1, ID: claims.ID{1}, Regions: []claims.Region{"east", "west"}}

const keys = claims.Keys("/t/")

func open(t *testing.T, kv claims.KV, store *mem.Store) *linearizer.Linearizer {
	t.Helper()
	if _, err := store.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Puts: []claims.Put{{Key: keys.Epoch(), Value: epoch.Marshal()}}}}}); err != nil {
		t.Fatal(err)
	}
	l, err := linearizer.New(kv, linearizer.Options{Config: claims.DefaultConfig(), Keys: keys, Epoch: epoch, Folds: mem.NoFolds{Epoch: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func gated(t *testing.T) (*linearizer.Linearizer, gate) {
	g := gate{mem.New(), make(chan claims.Txn, 100), make(chan error)}
	return open(t, g, g.Store), g
}

func claim(boot, n int) claims.Op {
	return claims.Op{
		Kind: claims.DoClaim, Identity: identity.Batch{Agent: "a", Boot: fmt.Sprint(boot), SeqStart: uint64(10 * n), SeqEnd: uint64(10*n + 9)},
		Hash: identity.Sum([]byte{byte(n)}), ID: claims.ID{byte(boot), byte(n), 1}, Region: "east",
	}
}

// TestManyCallers: every operation of every caller is answered, each once, in the order of its caller's operations.
func TestManyCallers(t *testing.T) {
	store := mem.New()
	l := open(t, store, store)
	var wg sync.WaitGroup
	for boot := range 32 {
		wg.Go(func() {
			for n := 0; n < 20; n += 4 {
				ops := []claims.Op{claim(boot, n), claim(boot, n+1), {}, claim(boot, n+2), claim(boot, n+3)}
				for i, r := range l.Do(context.Background(), ops) {
					if i == 2 {
						if !errors.Is(r.Err, claims.ErrInvalid) {
							t.Errorf("nothing: %+v", r)
						}
						continue
					}
					if r.Err != nil || r.Answer.Outcome != claims.Held || r.Answer.Claim.Identity != ops[i].Identity {
						t.Errorf("%s: %s, %v", ops[i].Identity, r.Answer.Outcome, r.Err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := l.Waiting(); n != 0 || l.Stopped() != nil {
		t.Errorf("%d wait, stopped: %v", n, l.Stopped())
	}
}

// TestCallersThatLeave: what was sent is unknown, what was not is not done.
func TestCallersThatLeave(t *testing.T) {
	l, g := gated(t)
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan []linearizer.Result, 1)
	// The second of one boot meets the first, so that it waits for another transaction.
	again := claim(1, 1)
	again.ID = claims.ID{9}
	go func() { first <- l.Do(ctx, []claims.Op{claim(1, 1), again}) }()
	<-g.sent
	cancel()
	r := <-first
	if !errors.Is(r[0].Err, claims.ErrUnknown) || !errors.Is(r[0].Err, context.Canceled) {
		t.Errorf("sent: %v", r[0].Err)
	}
	if !errors.Is(r[1].Err, claims.ErrCanceled) || errors.Is(r[1].Err, claims.ErrUnknown) {
		t.Errorf("not sent: %v", r[1].Err)
	}
	second := make(chan []linearizer.Result, 1)
	go func() { second <- l.Do(context.Background(), []claims.Op{again}) }()
	g.may <- nil
	<-g.sent
	g.may <- nil
	if r := <-second; r[0].Err != nil || r[0].Answer.Outcome != claims.Pending || r[0].Answer.Claim.ID != claim(1, 1).ID {
		t.Errorf("the first is done: %+v", r)
	}
}

func TestFailuresReachTheirCallers(t *testing.T) {
	l, g := gated(t)
	for _, want := range []error{claims.ErrUnavailable, claims.ErrUnknown} {
		got := make(chan []linearizer.Result, 1)
		go func() { got <- l.Do(context.Background(), []claims.Op{claim(1, 1)}) }()
		<-g.sent
		g.may <- fmt.Errorf("%w: no answer", want)
		var e *claims.Error
		if r := <-got; !errors.Is(r[0].Err, want) || !errors.As(r[0].Err, &e) || e.Key != claim(1, 1).Identity {
			t.Errorf("%v", r[0].Err)
		}
	}
}

// TestClose: what waits is refused, what is under way is answered, and later calls are refused.
func TestClose(t *testing.T) {
	l, g := gated(t)
	first, second, closed := make(chan []linearizer.Result, 1), make(chan []linearizer.Result, 1), make(chan struct{})
	go func() { first <- l.Do(context.Background(), []claims.Op{claim(1, 1)}) }()
	<-g.sent
	go func() { second <- l.Do(context.Background(), []claims.Op{claim(1, 2)}) }()
	for end := time.Now().Add(patience); l.Waiting() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the second does not come")
		}
	}
	go func() { l.Close(); close(closed) }()
	if r := <-second; !errors.Is(r[0].Err, claims.ErrUnavailable) || errors.Is(r[0].Err, claims.ErrUnknown) {
		t.Errorf("%+v", r)
	}
	g.may <- nil
	if r := <-first; r[0].Err != nil || r[0].Answer.Outcome != claims.Held {
		t.Errorf("%+v", r)
	}
	<-closed
	if r := l.Do(context.Background(), []claims.Op{claim(1, 3)}); !errors.Is(r[0].Err, claims.ErrUnavailable) {
		t.Errorf("%+v", r)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := linearizer.New(mem.New(), linearizer.Options{Epoch: epoch}); err == nil {
		t.Error("no configuration")
	}
	if _, err := linearizer.New(mem.New(), linearizer.Options{Config: claims.DefaultConfig()}); !errors.Is(err, claims.ErrInvalid) {
		t.Errorf("no epoch: %v", err)
	}
}

// TestScansAreBounded: a few at once, each of what is there when it is answered; none after the end.
func TestScansAreBounded(t *testing.T) {
	l, g := gated(t)
	held := make(chan linearizer.Result, 1)
	go func() { held <- l.Do(context.Background(), []claims.Op{claim(1, 1)})[0] }()
	<-g.sent
	g.may <- nil
	if r := <-held; r.Err != nil {
		t.Fatal(r.Err)
	}
	s := claims.Scan{Home: "east", States: []claims.State{claims.Claimed}, Limit: 10, Before: time.Now().Add(time.Hour).UnixNano()}
	type end struct {
		p   claims.Page
		err error
	}
	ends := make(chan end, 5)
	for range 4 {
		go func() { p, err := l.Scan(context.Background(), s); ends <- end{p, err} }()
		<-g.sent
	}
	if _, err := l.Scan(context.Background(), s); !errors.Is(err, claims.ErrFull) {
		t.Errorf("the fifth: %v", err)
	}
	for range 4 {
		g.may <- nil
	}
	for range 4 {
		if e := <-ends; e.err != nil || len(e.p.Claims) != 1 || e.p.Claims[0].Identity != claim(1, 1).Identity || e.p.Next != "" || e.p.Epoch != 1 {
			t.Errorf("%+v", e)
		}
	}
	go func() { p, err := l.Scan(context.Background(), s); ends <- end{p, err} }()
	<-g.sent
	g.may <- claims.ErrUnavailable
	if e := <-ends; !errors.Is(e.err, claims.ErrUnavailable) {
		t.Errorf("%+v", e)
	}
	l.Close()
	if _, err := l.Scan(context.Background(), s); !errors.Is(err, claims.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
}
