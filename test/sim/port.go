package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// task is a coroutine: one Accept call, one collector's start, one garbage
// collection. It stops before every request and before its answer.
type task struct {
	*world
	name   string
	proc   *process
	next   func() (struct{}, bool)
	kill   func()
	yield  func(struct{}) bool
	dead   bool
	cancel context.CancelFunc
	call   *call // of an Accept
	writes int   // requests that write, whatever became of them
	// logged are the blobs that a collection has noted as condemned; nil for others.
	logged map[string]bool
	// gardener is what a collection that runs as a service is checked by; nil for others.
	gardener *gardener
}

var errKilled = fmt.Errorf("killed: %w", context.Canceled)

// pause gives the turn away; true means that the process was killed meanwhile.
func (t *task) pause() bool {
	if !t.dead && !t.proc.crashed && !t.yield(struct{}{}) {
		t.dead = true
		t.cancel()
	}
	return t.dead || t.proc.crashed
}

// Now is the process's clock: it drifts, and it jumps.
func (t *task) Now() time.Time {
	t.now = t.now.Add(time.Millisecond)
	return t.now.Add(t.proc.skew)
}

// Sleep takes no turn: the request that follows does.
func (t *task) Sleep(ctx context.Context, d time.Duration) error {
	t.now = t.now.Add(d)
	return ctx.Err()
}

// write is one write with a drawn fate.
func (t *task) write(op, key string, apply func() error) error {
	wasDead := t.dead || t.proc.crashed
	late := func() {
		t.late = append(t.late, request{t.name + ": " + op + " " + key, apply})
	}
	if t.pause() {
		if !wasDead && t.ch.n(2) == 1 {
			late() // it had left just before
		}
		return errKilled
	}
	t.operations++
	t.writes++
	var err error
	how := ""
	fate, f := t.ch.n(100), &t.faults
	if fate >= 100-f.denied {
		t.note(t.name, op, key, "403: ", objstore.ErrDenied)
		return objstore.ErrDenied
	}
	fate += f.denied
	switch {
	case fate < 100-f.lost-f.late-f.dropped-f.refused:
		err = apply()
	case fate < 100-f.late-f.dropped-f.refused:
		how, err = "applied, answer lost: ", apply()
		t.note(t.name, op, key, how, err)
		return objstore.ErrUnknown
	case fate < 100-f.dropped-f.refused:
		late()
		how, err = "in flight: ", objstore.ErrUnknown
	case fate < 100-f.refused:
		how, err = "never arrives: ", objstore.ErrUnknown
	case op == "delete":
		how, err = "503: ", objstore.ErrUnknown
	default:
		err = objstore.ErrConflict
	}
	t.note(t.name, op, key, how, err)
	return err
}

func (t *task) read(op, key string, look func() error) error {
	if t.pause() {
		return errKilled
	}
	t.operations++
	err := objstore.ErrDenied
	switch fate := t.ch.n(100); {
	case fate < 100-t.faults.unread-t.faults.denied:
		err = look()
	case fate < 100-t.faults.denied:
		err = objstore.ErrUnavailable
	}
	t.note(t.name, op, key, "", err)
	return err
}

func (t *task) Create(_ context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	blob := strings.HasPrefix(key, layout.RawBlobsPrefix)
	if blob && t.faults.damage > 0 && t.ch.oneIn(100/t.faults.damage) {
		body = damaged(body)
	}
	if t.gardener != nil && strings.HasPrefix(key, layout.CondemnedPrefix) && !strings.HasPrefix(key, layout.CondemnedEpochsPrefix) && !t.dead {
		t.gardener.condemns(t.world, t.proc, key)
	}
	err := t.write("create", key, func() error {
		_, there := t.store.objects[key]
		if t.gardener != nil && key == layout.GCStateKey && !there {
			t.moves(t, body)
		}
		err := t.store.create(key, body, o.SHA256, t.now)
		if err == nil {
			t.checkCreated(key, body)
		}
		return err
	})
	if c := t.call; c != nil && blob {
		c.moved()
		c.verified = c.verified || err == nil
	} else if c != nil && err == nil {
		c.verified = c.verified || carries(key, body, c.sub.SHA256)
		if strings.HasPrefix(key, layout.AcceptedPrefix) {
			c.made = true
			c.decide()
		}
	}
	return objstore.Info{Key: key}, err
}

func (t *task) Get(_ context.Context, key string, o objstore.GetOptions) (b []byte, i objstore.Info, err error) {
	err = t.read("get", key, func() (e error) {
		b, i, e = t.store.get(key, o)
		if t.call != nil && strings.HasPrefix(key, layout.CondemnedPrefix+"date=") {
			t.call.decide()
		}
		return
	})
	if err == nil && t.call != nil {
		t.call.saw(key, b, i.SHA256)
	}
	return b, i, err
}

func (t *task) Head(_ context.Context, key string) (i objstore.Info, err error) {
	err = t.read("head", key, func() (e error) { i, e = t.store.info(key); return })
	if err == nil && t.call != nil {
		t.call.saw(key, nil, i.SHA256)
	}
	return i, err
}

func (t *task) List(_ context.Context, o objstore.ListOptions) (p objstore.Page, err error) {
	err = t.read("list", o.Prefix, func() error {
		if o.Prefix == layout.OrphanReportsPrefix { // only the collection asks for the time so
			p.Date = t.now
		}
		var keys []string
		keys, p.Next = t.store.pageOf(o.Prefix, o.StartAfter)
		for _, key := range keys {
			info, _ := t.store.info(key)
			info.SHA256 = identity.Digest{}
			p.Objects = append(p.Objects, info)
		}
		return nil
	})
	return p, err
}

func (t *task) Delete(ctx context.Context, key string) error {
	if t.store.versioned && strings.HasPrefix(key, layout.RawBlobsPrefix) && !t.dead {
		t.violated("versions", "a delete of %s without its version keeps the bytes", key)
	}
	return t.DeleteVersion(ctx, key, "")
}

// DeleteVersion implements objstore.VersionDeleter. However late it is applied, it reaches nothing that was written later.
func (t *task) DeleteVersion(_ context.Context, key, version string) error {
	if t.logged != nil && !t.logged[key] && !t.dead {
		t.violated("log", "a delete of %s before its entry in the log", key)
	}
	if t.gardener != nil && strings.HasPrefix(key, layout.RawBlobsPrefix) && !t.dead {
		t.gardener.deletes(t.world, key)
	}
	return t.write("delete", key, func() error {
		if o, there := t.store.objects[key]; version != "" && (!there || o.etag() != version) {
			return nil
		}
		t.checkDoubt(key)
		t.delete(key)
		return nil
	})
}

// Replace and Put are for derived state only: acceptance and collection have neither.
func (t *task) Replace(_ context.Context, key string, body []byte, etag string, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{Key: key}, t.write("replace", key, func() error {
		if o, ok := t.store.objects[key]; ok && o.etag() == etag && t.gardener != nil && key == layout.GCStateKey {
			t.moves(t, body)
		}
		return t.store.replace(key, body, etag, t.now)
	})
}

func (t *task) Put(_ context.Context, key string, body []byte, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{Key: key}, t.write("put", key, func() error { t.store.put(key, body, t.now); return nil })
}

// saw notes what a call has read, for I4.
func (c *call) saw(key string, body []byte, sum identity.Digest) {
	c.verified = c.verified || carries(key, body, c.sub.SHA256)
	switch {
	case strings.HasPrefix(key, layout.AcceptedPrefix):
		if m, err := accept.ParseManifest(body); err == nil && m.FrameSHA256 == c.sub.SHA256 {
			c.sawManifest = true
		}
	case strings.HasPrefix(key, layout.RawBlobsPrefix):
		d, _, err := layout.ParseBlob(key)
		if err == nil && d == c.sub.SHA256 && (sum == d || body != nil && identity.Sum(body) == d) {
			c.verified = true
		}
	}
}

// damaged is what a bad line makes of a body.
func damaged(body []byte) []byte {
	out := append([]byte(nil), body...)
	out[len(out)/2] ^= 0x55
	return out
}

func outcome(err error) string {
	for _, e := range []error{objstore.ErrExists, objstore.ErrNotFound, objstore.ErrConflict, objstore.ErrUnknown, objstore.ErrUnavailable, objstore.ErrChecksum, objstore.ErrDenied, objstore.ErrPreconditionFailed} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}
