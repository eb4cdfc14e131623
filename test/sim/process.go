package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/gc"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// process is a collector or a garbage collector.
type process struct {
	name      string
	authority string // as configured
	skew      time.Duration
	paused    int // turns
	kills     int
	ready     bool
	protocol  *accept.Protocol
	port      *current
}

// current is the store as the collector's running task sees it: one Protocol
// serves many calls, each of them a task.
type current struct{ t *task }

func (c *current) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	t := c.t
	defer c.back(t)
	return t.Get(ctx, key, o)
}

func (c *current) Head(ctx context.Context, key string) (objstore.Info, error) {
	t := c.t
	defer c.back(t)
	return t.Head(ctx, key)
}

func (c *current) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	t := c.t
	defer c.back(t)
	return t.Create(ctx, key, body, o)
}

// back is called when a task has its turn again.
func (c *current) back(t *task) { c.t = t }

func (c *current) Now() time.Time { return c.t.Now() }

func (c *current) Sleep(ctx context.Context, d time.Duration) error { return c.t.Sleep(ctx, d) }

// attemptIDs are distinct, and take no choice.
type attemptIDs struct{ w *world }

func (a attemptIDs) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 0
	}
	if len(b) >= 8 {
		a.w.attempts++
		binary.LittleEndian.PutUint64(b, a.w.attempts*0x9e3779b97f4a7c15)
	}
	return len(b), nil
}

var simPolicy = accept.Policy{
	Attempts: 4, BackoffBase: time.Millisecond, BackoffCap: 8 * time.Millisecond, Generations: 6,
	RequestTimeout: time.Hour, Deadline: 30 * time.Second, RetryAfter: time.Second,
}

// boot starts a collector: with empty memory, after the authority check where that is played.
func (w *world) boot(p *process) {
	p.port = &current{}
	p.ready = !w.authorities
	var err error
	p.protocol, err = accept.New(accept.Config{
		Store: p.port, AuthorityID: p.authority, CollectorID: p.name, Clock: p.port, Rand: attemptIDs{w}, Policy: simPolicy,
	})
	if err != nil {
		panic(err)
	}
	if p.ready {
		return
	}
	w.start(p.name+".start", p, nil, func(t *task, ctx context.Context) {
		for range 3 {
			err := accept.EnsureAuthority(ctx, t, p.authority, true)
			if t.dead {
				return
			}
			w.note(t.name, "authority", p.authority, "", err)
			var retry *accept.RetryError
			if err == nil {
				p.ready = true
				w.checkAuthority(p)
			}
			if err == nil || !errors.As(err, &retry) {
				return
			}
		}
	})
}

// accept serves one call.
func (w *world) accept(p *process, c *call) {
	w.start(fmt.Sprintf("%s.%d", p.name, len(w.calls)), p, c, func(t *task, ctx context.Context) {
		p.port.t = t
		res, err := p.protocol.Accept(ctx, c.sub)
		if t.pause() { // it may be stopped, or killed, just before the answer
			return
		}
		w.answered(t.name, c, res, err)
	})
}

// collect runs garbage collections, one after the other.
func (w *world) collect(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		for i := range passes {
			if t.pause() {
				return
			}
			if err := w.collectOnce(ctx, t, t, p.authority, fmt.Sprintf("%s-%d-%d", p.name, p.kills, i), -1); err != nil {
				w.note(t.name, "gc ends", "", "", err)
			}
			if t.dead {
				return
			}
		}
	})
}

// collectOnce plans and executes; a minimum age of -1 makes every blob a candidate.
func (w *world) collectOnce(ctx context.Context, s gc.Store, clock accept.Clock, authority, id string, minAge time.Duration) error {
	c, err := gc.New(gc.Config{Store: s, AuthorityID: authority, Clock: clock, Attempts: 3, Backoff: time.Millisecond, RequestTimeout: time.Hour})
	if err != nil {
		panic(err)
	}
	plan, err := c.Plan(ctx, gc.PlanOptions{ID: id, Now: w.now, MinAge: minAge, Prefix: layout.RawBlobsPrefix})
	if err != nil {
		return err
	}
	_, err = c.Execute(ctx, plan, gc.ExecuteOptions{})
	return err
}
