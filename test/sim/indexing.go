package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// index runs a reconciler: passes over all records, which write what is derived from
// them, the reverse references among it, while garbage is collected.
func (w *world) index(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		r := &reconcile.Reconciler{Store: t, Now: t.Now, ID: p.name}
		if !w.authorities {
			r.AuthorityID = p.authority
		}
		for range passes {
			for _, prefix := range []string{layout.AcceptedPrefix, layout.QuarantinePrefix} {
				for o, err := range objstore.List(ctx, t, objstore.ListOptions{Prefix: prefix}) {
					if err != nil || ctx.Err() != nil { // another pass does what this one could not
						t.note(t.name, "pass", prefix, "", err)
						break
					}
					if _, err := r.Reconcile(ctx, o.Key, reconcile.Options{HeadFirst: true}); err != nil {
						t.note(t.name, "reconcile", o.Key, "", err)
					}
				}
				if t.pause() {
					return
				}
			}
		}
	})
}

// loseReferences is a mishap with derived keys: all or some are gone.
func (w *world) loseReferences() {
	for _, family := range []string{layout.AcceptedByBlobPrefix, layout.QuarantineByBlobPrefix, layout.AcceptedByTimePrefix} {
		for _, key := range w.store.list(family) {
			if w.ch.n(2) == 0 {
				delete(w.store.objects, key)
			}
		}
	}
	w.note("sim", "loses", "reverse references", "", nil)
}

// checkDerived: what is derived agrees with its record, and the key by time is written last.
func (w *world) checkDerived(key string, body []byte) {
	switch {
	case strings.HasPrefix(key, layout.AcceptedByBlobPrefix), strings.HasPrefix(key, layout.QuarantineByBlobPrefix):
		if !w.named(key) {
			w.violated("derived", "%s refers to no record", key)
		}
	case strings.HasPrefix(key, layout.AcceptedByTimePrefix):
		m, err := accept.ParseManifest(body)
		if err != nil || !bytes.Equal(w.store.objects[layout.Accepted(m.Identity)].body, body) {
			w.violated("derived", "%s is not its manifest (%v)", key, err)
		}
		if !w.derived[layout.AcceptedByBlob(m.FrameSHA256, m.Identity)] {
			w.violated("derived", "%s is there before its reverse reference", key)
		}
	}
	w.derived[key] = true
}

// named reports whether a reverse reference is of a record that is there.
func (w *world) named(key string) bool {
	for _, s := range w.submissions {
		if key == layout.AcceptedByBlob(s.SHA256, s.Identity) {
			m, err := accept.ParseManifest(w.store.objects[layout.Accepted(s.Identity)].body)
			return err == nil && m.FrameSHA256 == s.SHA256
		}
		if key == layout.QuarantineByBlob(s.SHA256, s.Identity) {
			_, ok := w.store.objects[layout.Quarantine(s.Identity, s.SHA256)]
			return ok
		}
	}
	return false
}

// hoard puts so many orphans of nobody's into the store that the breaker trips, or nearly.
func (w *world) hoard() {
	for i := range 49 + w.ch.n(10) {
		body := fmt.Appendf(nil, "not a frame %d", i)
		w.store.put(layout.Blob(identity.Sum(body), 0), body, w.now.Add(-longAgo))
	}
}
