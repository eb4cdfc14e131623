package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// unreadable says why an accepted batch can't be read now although the store answers.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// take fetches one batch; concurrent calls for one key share the work. body is the manifest if the caller has it.
// An error means that nothing is known, since the store could not be asked. An unreadable batch is recorded and is
// no error.
func (f *Follower) take(ctx context.Context, key string, body []byte) error {
	_, err, _ := f.one.Do(key, func() (any, error) {
		if err := f.slot.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer f.slot.Release(1)
		ctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
		defer cancel()
		return nil, f.takeNow(ctx, key, body)
	})
	return err
}

// Take fetches the batch of the manifest with this key: it is then inserted, recorded as unreadable, or only
// counted because no query needs it.
func (f *Follower) Take(ctx context.Context, key string) error { return f.take(ctx, key, nil) }

func (f *Follower) takeNow(ctx context.Context, key string, body []byte) error {
	id, err := layout.ParseAccepted(key)
	if err != nil {
		return nil // a hint may be wrong; audits only pass keys that parse
	}
	// An unread batch may be known as well, by its identity only, and is tried again.
	if f.d.Live.Known(id) && !f.isUnread(key) {
		return nil
	}
	m, err := f.manifest(ctx, key, id, body)
	var bad *unreadable
	switch {
	case errors.As(err, &bad):
		// The identity is accepted, whatever its manifest's object holds; only its times are unknown, so every
		// answer may lack it.
		f.noteUnread(key, Unread{Identity: id, Cause: CauseManifest, Err: err.Error(), MinTime: minInt64, MaxTime: maxInt64})
		f.add(id, 0)
		f.firsts.note(id, minInt64)
		return nil
	case err != nil:
		return err
	}
	f.firsts.note(id, m.MinTime)
	acc := m.Batch()
	if m.MaxTime < f.d.Now().Add(-f.d.History).UnixNano() && (f.d.Needed == nil || !f.d.Needed(id, m.MinTime, m.MaxTime)) {
		f.add(id, m.AcceptedAt)
		f.watchID(m)
		f.readable(key)
		f.m.taken.WithLabelValues("expired").Inc()
		return nil
	}
	err = f.insert(ctx, acc, m)
	switch {
	case errors.As(err, &bad):
		// The identity still masks what it has won of other batches, so the store must know it.
		if _, nerr := f.d.Live.Note(acc, f.d.Now()); nerr != nil {
			err = errors.Join(err, nerr)
		}
		f.noteUnread(key, Unread{Identity: id, Cause: CauseFrame, Err: err.Error(), MinTime: m.MinTime, MaxTime: m.MaxTime})
	case err != nil:
		return err
	default:
		// A repair may have written the frame since the last attempt.
		f.readable(key)
		f.m.lag(f.d.Now().Sub(m.AcceptedTime()))
	}
	f.add(id, m.AcceptedAt)
	f.watchID(m)
	return nil
}

// manifest parses body if it is the manifest, or else reads the manifest.
func (f *Follower) manifest(ctx context.Context, key string, id identity.Batch, body []byte) (accept.Manifest, error) {
	// A hint's copy is only used if it is intact; otherwise the store decides.
	if len(body) > 0 {
		if m, err := accept.ParseManifest(body); err == nil && m.Identity == id {
			return m, nil
		}
	}
	body, _, err := f.d.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	switch {
	case objstore.Unreadable(err):
		return accept.Manifest{}, &unreadable{err}
	case err != nil:
		return accept.Manifest{}, err
	}
	m, err := accept.ParseManifest(body)
	if err != nil {
		return m, &unreadable{err}
	}
	// A manifest under another identity's key is damage, and its samples must not count for either.
	if m.Identity != id {
		return m, &unreadable{fmt.Errorf("%s holds the manifest of %s", key, m.Identity)}
	}
	return m, nil
}

// insert fetches the frame and inserts it into the live store.
func (f *Follower) insert(ctx context.Context, acc accepted.Batch, m accept.Manifest) error {
	raw, err := f.blob(ctx, m)
	if err != nil {
		return err
	}
	if err := f.show(acc, raw); err != nil {
		return &unreadable{err}
	}
	return nil
}

// show decodes a frame and inserts it into the live store.
func (f *Follower) show(acc accepted.Batch, raw []byte) error {
	b := batches.Get().(*frame.Batch)
	defer batches.Put(b)
	if err := frame.Decode(raw, b, frame.Limits{}); err != nil {
		return err
	}
	failpoint.Hit("query.live.insert.before")
	out, err := f.d.Live.Insert(acc, b, f.d.Now())
	if err != nil {
		return err
	}
	failpoint.Hit("query.live.insert.after")
	f.m.inserted(out, len(raw), acc.Identity.Count())
	return nil
}

// blob reads a generation whose bytes hash to the manifest's digest: first the one that the manifest names, then
// any other.
func (f *Follower) blob(ctx context.Context, m accept.Manifest) ([]byte, error) {
	raw, err := accept.ReadFrame(ctx, f.d.Store, m.RawBlobKey, m.FrameSHA256, m.FrameBytes)
	var none *accept.FrameError
	if errors.As(err, &none) {
		return nil, &unreadable{none.Cause}
	}
	return raw, err
}

// positive cuts off negative durations: the collector's clock may be ahead of this one.
func positive(d time.Duration) time.Duration { return max(d, 0) }
