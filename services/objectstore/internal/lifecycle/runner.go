package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

// pageSize is how many versions, or uploads, are looked at before the configuration is looked at again.
const pageSize = 1000

// batchSize is how many versions are deleted together, and so share fsyncs.
const batchSize = 100

// Runner does what the rules of buckets ask for.
type Runner struct {
	Engine *engine.Engine
	Log    *slog.Logger
	// Wait waits until n more deletions may be done; nil: at once.
	Wait func(ctx context.Context, n int) error
	// Observe is called for what was done, by action: expire, remove, abort.
	Observe func(action string, n int)
	// Locked is called for versions that a rule would have removed, and a lock keeps.
	Locked func(n int)
}

// errChanged ends a pass over a bucket whose configuration is not the one that was read.
var errChanged = errors.New("the lifecycle configuration has changed")

// Pass looks at every version and upload of every bucket that has rules, and does what is due at the time now. What fails
// is logged, and done by the next pass.
func (r *Runner) Pass(ctx context.Context, now time.Time) {
	// A lost write may be a version that is newer than those that are known.
	if r.Engine.Uncertain() != nil {
		r.Log.Warn("lifecycle rules wait until the store knows every key again")
		return
	}
	for _, b := range r.Engine.Buckets() {
		text := b.Settings[Setting]
		if text == nil || ctx.Err() != nil || r.Engine.Err() != nil {
			continue
		}
		conf, err := Parse(text)
		if err == nil {
			p := &pass{Runner: r, bucket: b, conf: conf, text: string(text), now: now}
			err = errors.Join(p.versions(ctx), p.uploads(ctx))
			p.report()
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, errChanged) {
			r.Log.Error("lifecycle rules of a bucket could not be carried out", "bucket", b.Name, "error", err)
		}
	}
}

// pass is one over one bucket.
type pass struct {
	*Runner
	bucket engine.Bucket
	conf   *Config
	text   string
	now    time.Time

	done   map[string]int // by action
	failed int
	locked int
	batch  []engine.Deletion
	action []string // of the batch

	// The version that was looked at last, which waits for the next: whether it is alone is known then.
	held  *engine.VersionBrief
	above engine.VersionBrief // the version before held
	newer int                 // versions of held's key that are newer, beside the newest
}

// current reports whether the rules are still those that were read: who takes one back must not see it go on for hours.
func (p *pass) current() error {
	b, err := p.Engine.Bucket(p.bucket.Name)
	if err != nil {
		return err
	}
	if string(b.Settings[Setting]) != p.text || b.Versioning() != p.bucket.Versioning() {
		return errChanged
	}
	return p.Engine.Err()
}

// versions looks at all versions. They come by key, and of each key the newest first.
func (p *pass) versions(ctx context.Context) error {
	q := engine.VersionQuery{Max: pageSize}
	for {
		if err := p.current(); err != nil {
			return err
		}
		page, err := p.Engine.Versions(p.bucket.Name, q)
		if err != nil {
			return err
		}
		for i := range page.Versions {
			p.see(&page.Versions[i])
			if err := p.flush(ctx, batchSize); err != nil {
				return err
			}
		}
		if !page.Truncated {
			break
		}
		q.AfterKey, q.AfterVersion = page.NextKey, page.NextVersion
	}
	p.see(nil)
	return p.flush(ctx, 1)
}

// see decides about the version that was held, and holds the next; nil is the end.
func (p *pass) see(next *engine.VersionBrief) {
	if held := p.held; held != nil {
		v := Version{Key: held.Key, Size: held.Size, Modified: held.Modified, Latest: held.Latest, Marker: held.Marker,
			Alone: held.Latest && (next == nil || next.Key != held.Key)}
		if !held.Latest {
			v.Since, v.Newer = p.above.Modified, p.newer
			p.newer++
		}
		v.Tags = func() ([]engine.Pair, bool) {
			o, err := p.Engine.StatVersion(p.bucket.Name, held.Key, p.versionOf(held))
			return o.Tags, err == nil && o.Seq == held.Seq
		}
		if d := p.conf.Decide(v, p.now); d.Action != Keep {
			p.add(held, d)
		}
		p.above = *held
	}
	if p.held = next; next != nil && next.Latest {
		p.newer = 0
	}
}

// versionOf names a version for the engine.
func (p *pass) versionOf(v *engine.VersionBrief) string {
	if v.Version == "" && p.bucket.Versioning() != engine.Unversioned {
		return engine.NullVersion
	}
	return v.Version
}

func (p *pass) add(v *engine.VersionBrief, d Decision) {
	// The condition is the very record that was looked at: whatever was written since is not touched.
	x := engine.Deletion{Key: v.Key, Cond: engine.Cond{Seq: v.Seq}, Modified: p.now, Expired: true}
	name := "expire"
	if d.Action == Remove {
		x.Version, name = p.versionOf(v), "remove"
	}
	p.batch, p.action = append(p.batch, x), append(p.action, name)
	p.Log.Debug("a lifecycle rule ends a version", "bucket", p.bucket.Name, "key", v.Key, "version", v.Version, "rule", d.Rule, "action", name)
}

// flush deletes what waits, if there are at least so many.
func (p *pass) flush(ctx context.Context, least int) error {
	if len(p.batch) < least || len(p.batch) == 0 {
		return nil
	}
	if err := p.allow(ctx, len(p.batch)); err != nil {
		return err
	}
	p.Engine.DeleteMany(ctx, p.bucket.Name, p.batch)
	var failure error
	for i, x := range p.batch {
		switch {
		case x.Err == nil:
			p.count(p.action[i])
		// Written, tagged or deleted since: the next pass decides again.
		case errors.Is(x.Err, engine.ErrPrecondition), errors.Is(x.Err, engine.ErrNotFound):
		// As it should be: the lock was set to keep the version, and every pass until its end meets it.
		case errors.Is(x.Err, engine.ErrLocked):
			p.locked++
			if p.Locked != nil {
				p.Locked(1)
			}
		default:
			p.failed++
			failure = fmt.Errorf("delete %q: %w", x.Key, x.Err)
		}
	}
	p.batch, p.action = p.batch[:0], p.action[:0]
	if err := p.current(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failure != nil {
		p.Log.Warn("a lifecycle rule could not end a version; the next pass tries again", "bucket", p.bucket.Name, "error", failure)
	}
	return nil
}

// uploads aborts those that are due.
func (p *pass) uploads(ctx context.Context) error {
	q := engine.UploadQuery{Max: pageSize}
	for {
		if err := p.current(); err != nil {
			return err
		}
		page, err := p.Engine.Uploads(p.bucket.Name, q)
		if err != nil {
			return err
		}
		for _, u := range page.Uploads {
			at, _, ok := p.conf.AbortAt(u.Key, u.Initiated)
			if !ok || p.now.Before(at) {
				continue
			}
			if err := p.allow(ctx, 1); err != nil {
				return err
			}
			switch err := p.Engine.AbortUpload(ctx, p.bucket.Name, u.Key, u.ID); {
			case err == nil:
				p.count("abort")
			case !errors.Is(err, engine.ErrNoUpload):
				return err
			}
		}
		if !page.Truncated {
			return nil
		}
		q.AfterKey, q.AfterID = page.NextKey, page.NextID
	}
}

func (p *pass) allow(ctx context.Context, n int) error {
	if p.Wait == nil {
		return ctx.Err()
	}
	if err := p.Wait(ctx, n); err != nil {
		return err
	}
	return p.current() // it may have taken long
}

func (p *pass) count(action string) {
	if p.done == nil {
		p.done = map[string]int{}
	}
	p.done[action]++
	if p.Observe != nil {
		p.Observe(action, 1)
	}
}

func (p *pass) report() {
	if len(p.done)+p.failed > 0 {
		p.Log.Info("lifecycle rules were carried out", "bucket", p.bucket.Name, "expired", p.done["expire"], "removed", p.done["remove"], "aborted", p.done["abort"], "failed", p.failed, "locked", p.locked)
	}
}
