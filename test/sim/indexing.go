package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// index runs a reconciler: passes over all records, which write what is derived from
// them, and enter them in the journal as an audit does, while garbage is collected.
func (w *world) index(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		r := &reconcile.Reconciler{Store: t, Now: t.Now, ID: p.name}
		if !w.authorities {
			r.AuthorityID = p.authority
		}
		// A reconciler does not serve a bucket of another authority.
		var journals *journal.Writer
		if !w.authorities {
			journals = w.journal(t)
		}
		for range passes {
			for _, prefix := range []string{layout.AcceptedPrefix, layout.QuarantinePrefix} {
				for o, err := range objstore.List(ctx, t, objstore.ListOptions{Prefix: prefix}) {
					if err != nil || ctx.Err() != nil { // another pass does what this one could not
						t.note(t.name, "pass", prefix, "", err)
						break
					}
					res, err := r.Reconcile(ctx, o.Key, reconcile.Options{HeadFirst: true})
					if err == nil && journals != nil {
						err = enter(ctx, journals, res)
					}
					if err != nil {
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

func (w *world) journal(t *task) *journal.Writer {
	writer, err := journal.NewWriter(journal.WriterConfig{
		Store: t, Rand: attemptIDs{w}, Clock: func() int64 { return t.Now().UnixNano() },
		Opening: journal.Opening{Writer: t.name, Role: journal.RoleReconciler, Authority: "authority-1"},
	})
	if err != nil {
		panic(err)
	}
	return writer
}

// enter puts a record into the journal, if it is one that was accepted or quarantined. Two are in a segment
// at times, because an attempt failed before.
func enter(ctx context.Context, j *journal.Writer, res reconcile.Result) error {
	var e journal.Entry
	switch {
	case res.Manifest != nil:
		e = res.Manifest.Entry(journal.AuditedAccepted)
	case res.Conflict != nil:
		e = res.Conflict.Entry()
	default:
		return nil // it can't be used
	}
	if _, err := j.Add(e); err != nil {
		return err
	}
	_, _, err := j.Flush(ctx)
	return err
}

// journalled are the frames that a reader of the whole journal finds named.
func (w *world) journalled() map[identity.Digest]bool {
	named := map[identity.Digest]bool{}
	for _, key := range w.store.list(layout.JournalOpenPrefix) {
		run, n, err := layout.ParseJournalSegment(key)
		for ; err == nil; n++ {
			o, ok := w.store.objects[layout.JournalSegment(run, n)]
			if !ok {
				break
			}
			var s *journal.Segment
			if s, err = journal.ParseSegment(o.body); err == nil {
				for i := range s.Entries {
					if namesBlob(&s.Entries[i]) {
						named[s.Entries[i].SHA256] = true
					}
				}
			}
		}
	}
	return named
}

// namesBlob reports whether an entry keeps blobs of its hash out of plans.
func namesBlob(e *journal.Entry) bool { return !e.Inline || e.Outcome.Conflict() }

// loseDerived is a mishap: some derived keys are gone, and some runs of the journal.
func (w *world) loseDerived() {
	for _, family := range []string{layout.AcceptedByBlobPrefix, layout.QuarantineByBlobPrefix, layout.AcceptedByTimePrefix} {
		for _, key := range w.store.list(family) {
			if w.ch.n(2) == 0 {
				delete(w.store.objects, key)
			}
		}
	}
	for _, key := range w.store.list(layout.JournalOpenPrefix) {
		// The runs of collectors stay where collections wait for them.
		if s, err := journal.ParseSegment(w.store.objects[key].body); w.naming && err == nil && s.Opening.Role == journal.RoleCollector {
			continue
		}
		if w.ch.n(2) == 0 {
			delete(w.store.objects, key) // nobody finds the run any more
			w.lost++
		}
	}
	w.note("sim", "loses", "derived keys, runs of the journal", "", nil)
}

// checkEntries: an entry is about a record that is there.
func (w *world) checkEntries(key string, body []byte) {
	s, err := journal.ParseSegment(body)
	if err != nil {
		w.violated("derived", "%s: %v", key, err)
		return
	}
	for i := range s.Entries {
		e := &s.Entries[i]
		if namesBlob(e) {
			w.everNamed[e.SHA256] = true
		}
		if e.Outcome.Conflict() {
			_, there := w.store.objects[layout.Quarantine(e.ID, e.SHA256)]
			if !there {
				w.violated("derived", "an entry of %s in quarantine for %s, which has no record", e.SHA256, e.ID)
			}
			continue
		}
		if m, ok := w.manifest(e.ID); !ok || m.FrameSHA256 != e.SHA256 {
			w.violated("derived", "an entry of %s as the frame of %s, whose manifest says otherwise", e.SHA256, e.ID)
		}
	}
}

// checkDerived: what is derived agrees with its record, and the key by time is written last.
func (w *world) checkDerived(key string, body []byte) {
	switch {
	case strings.HasPrefix(key, layout.AcceptedByBlobPrefix), strings.HasPrefix(key, layout.QuarantineByBlobPrefix):
		if !w.named(key) {
			w.violated("derived", "%s refers to no record", key)
		}
	case strings.HasPrefix(key, layout.AcceptedByTimePrefix):
		var m accept.Manifest
		found := false
		for _, s := range w.submissions {
			if o := w.store.objects[layout.Accepted(s.Identity)]; bytes.Equal(accept.RecordOf(o.body), body) {
				var err error
				m, err = accept.ParseManifest(o.body)
				found = err == nil
			}
		}
		if !found {
			w.violated("derived", "%s is not the record of its manifest", key)
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
