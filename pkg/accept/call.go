package accept

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
)

// call is one use of the protocol: its deadline and its waits.
type call struct {
	p     *Protocol
	start time.Time
}

func (p *Protocol) newCall() call { return call{p: p, start: p.clock.Now()} }

// step counts the attempts at one step of a call.
type step struct {
	call
	name  Step
	key   string
	tries int
}

func (c call) step(name Step, key string) step { return step{call: c, name: name, key: key} }

// again decides after an attempt that told nothing: nil means try once more, after
// a wait; else the error that ends the call. Nothing is ever cleaned up here: the
// attempt may still land.
func (s *step) again(ctx context.Context, err error) error {
	// A call that ran out of time is no decision: what the store said last must not
	// be found in it as one.
	if e := ctx.Err(); e != nil {
		return fmt.Errorf("%s: %w (%w: %v)", s.name, e, context.Cause(ctx), err)
	}
	switch {
	case errors.Is(err, objstore.ErrDenied), errors.Is(err, objstore.ErrNoBucket):
		s.p.events.notReady(s.name, err)
		return s.retry(ReasonStoreDenied, err)
	case errors.Is(err, objstore.ErrInvalid):
		// It may lie in this submission, such as a key too long for the store: one sender
		// must not take the collector from all others.
		s.p.events.notReady(s.name, err)
		return s.retry(ReasonStoreRefused, err)
	}
	s.p.events.again(s.name, s.key, err)
	reason := ReasonStoreUnavailable
	if errors.Is(err, objstore.ErrConflict) {
		reason = ReasonContended
	}
	s.tries++
	if s.tries >= s.p.policy.Attempts {
		return s.retry(reason, fmt.Errorf("%d attempts: %w", s.tries, err))
	}
	wait, rerr := s.p.backoff(s.tries)
	if rerr != nil {
		return s.retry(ReasonStoreUnavailable, rerr)
	}
	if s.p.clock.Now().Add(wait).Sub(s.start) > s.p.policy.Deadline {
		return s.retry(reason, fmt.Errorf("deadline of %s: %w", s.p.policy.Deadline, err))
	}
	if e := s.p.clock.Sleep(ctx, wait); e != nil {
		return fmt.Errorf("%s: %w (%v)", s.name, e, err)
	}
	return nil
}

func (c call) retry(reason Reason, err error) error {
	return &RetryError{Reason: reason, After: c.p.policy.RetryAfter, Err: err}
}

// corrupt ends a call at a record that is there and can't be used. Only an operator
// can mend that; the sender keeps its bytes.
func (c call) corrupt(name Step, key string, reason Reason, err error) error {
	if errors.Is(err, record.ErrNewerVersion) {
		// Nothing is damaged: a collector of that release, or this one after its upgrade, can answer.
		return c.retry(ReasonNewerRecord, fmt.Errorf("%s record %q: %w", name, key, err))
	}
	c.p.events.corruptRecord(name, key, err)
	return c.retry(reason, fmt.Errorf("%s record %q: %w", name, key, err))
}

// backoff doubles per try up to the cap and takes a random point of the upper half.
func (p *Protocol) backoff(tries int) (time.Duration, error) {
	d := p.policy.BackoffBase
	for i := 1; i < tries && d < p.policy.BackoffCap; i++ {
		d *= 2
	}
	d = min(d, p.policy.BackoffCap)
	var b [8]byte
	if _, err := io.ReadFull(p.rand, b[:]); err != nil {
		return 0, fmt.Errorf("read randomness: %w", err)
	}
	half := d / 2
	return half + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d-half+1)), nil
}

// create is one conditional create under the request deadline.
func (p *Protocol) create(ctx context.Context, key string, body []byte, o objstore.PutOptions) error {
	ctx, cancel := context.WithTimeout(ctx, p.policy.RequestTimeout)
	defer cancel()
	_, err := p.store.Create(ctx, key, body, o)
	return err
}

// get reads a whole object under the request deadline.
func (p *Protocol) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.policy.RequestTimeout)
	defer cancel()
	b, _, err := p.store.Get(ctx, key, objstore.GetOptions{Limit: limit})
	return b, err
}

// look reads no more of an object than tells that it is there, however large it is.
// It is no HEAD: the 404 of one has no body that says who answers.
func (p *Protocol) look(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, p.policy.RequestTimeout)
	defer cancel()
	_, _, err := p.store.Get(ctx, key, objstore.GetOptions{Length: 1})
	return err
}

func (p *Protocol) head(ctx context.Context, key string) (objstore.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, p.policy.RequestTimeout)
	defer cancel()
	return p.store.Head(ctx, key)
}
