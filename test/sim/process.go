package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
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
	acceptor  accept.Acceptor // the protocol, or the spool in front of it
	port      *current
	restart   func() // after a kill
	// inlineBelow is the collector's setting.
	inlineBelow int
	// journal of a collector where it keeps one; names: its runs name epochs of condemned names.
	journal *ledgerOfRuns
	names   bool
	once    bool // makes one attempt at each operation of the store

	collection collection // of a garbage collector
	gardens    bool       // which runs as a service
	// Of a collector of the mode local_spool; crashed: the disk saw it end.
	disk    *disk
	spool   *spool.Spool
	busy    map[identity.Batch]int
	spools  bool
	crashed bool
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

func (c *current) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	t := c.t
	defer c.back(t)
	return t.List(ctx, o)
}

func (c *current) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	t := c.t
	defer c.back(t)
	return t.Replace(ctx, key, body, etag, o)
}

func (c *current) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	t := c.t
	defer c.back(t)
	return t.Put(ctx, key, body, o)
}

func (c *current) Delete(ctx context.Context, key string) error {
	t := c.t
	defer c.back(t)
	return t.Delete(ctx, key)
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

var simPolicy = accept.Policy{Generations: 6, RetryAfter: time.Second}

// attempts that processes make at one operation of the store: of half of them one, so that
// the protocol is seen without any that come from below it.
const attempts = 3

// tried is the store as the process has it: behind further attempts at what failed, whose
// waits and requests are turns of the task as all others are.
func (p *process) tried(s objstore.Store, c retry.Clock) objstore.Store {
	if p.once {
		return s
	}
	return objstore.Retry(s, retry.Retrier{
		Policy: retry.Policy{Attempts: attempts, Base: time.Millisecond, Cap: 8 * time.Millisecond, Elapsed: 30 * time.Second}, Clock: c,
	}, nil)
}

// boot starts a collector: with empty memory, after the authority check where that is played.
func (w *world) boot(p *process) {
	p.port = &current{}
	p.ready = !w.authorities && !p.spools
	var err error
	var answers accept.Journal
	var spares func(identity.Digest) bool
	if w.naming {
		w.keepJournal(p)
		answers, spares = p.journal, p.journal.spares
	}
	mode := accept.ModeS3Manifest
	if p.spools {
		mode = accept.ModeLocalSpool
	}
	p.protocol, err = accept.New(accept.Config{
		Store: p.tried(p.port, p.port), AuthorityID: p.authority, CollectorID: p.name, Clock: p.port, Rand: attemptIDs{w}, Policy: simPolicy, Mode: mode,
		InlineBelow: p.inlineBelow, Journal: answers, SparesMarker: spares,
		Events: accept.Events{MarkerSpared: func() { w.note(p.name, "reads no marker", "", "", nil) }},
	})
	if err != nil {
		panic(err)
	}
	p.acceptor = p.protocol
	if p.spools {
		w.openSpool(p)
	}
	if p.ready || p.spools {
		return
	}
	w.start(p.name+".start", p, nil, func(t *task, ctx context.Context) {
		for range 3 {
			_, err := accept.EnsureAuthority(ctx, p.tried(t, t), p.authority, true)
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
		if p.spools {
			if !p.wait(t, c.sub.Identity) {
				return
			}
			p.busy[c.sub.Identity]++
			c.local = true
		}
		p.port.t = t
		res, err := p.acceptor.Accept(ctx, c.sub)
		if p.spools {
			p.busy[c.sub.Identity]--
		}
		if t.pause() { // it may be stopped, or killed, just before the answer
			return
		}
		w.answered(t.name, c, res, err)
	})
}
