package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// named are the keys of all files and lists that a head names, in its order; those of a list that is lost are not known.
func (s *sim) named(h *Head) (keys []string) {
	for _, l := range h.Lists {
		keys = append(keys, l.Key)
		files, _ := ParseList(s.objects[l.Key].body)
		for _, f := range files {
			keys = append(keys, f.Key)
		}
	}
	for _, f := range h.Files {
		keys = append(keys, f.Key)
	}
	return keys
}

func (s *sim) namesRuined() bool {
	return slices.ContainsFunc(s.named(&s.head), func(key string) bool { return s.ruined[key] })
}

// ruin loses a file that the head names, or a list with all that it names: it is gone, or its bytes are others.
func (s *sim) ruin(key string) {
	s.logf("the disk loses %s", key)
	s.tally.Ruined++
	s.ruined[key] = true
	lose := func(key string) {
		for _, k := range s.files[key] {
			s.lost[k] = true
		}
	}
	lose(key)
	if files, err := ParseList(s.objects[key].body); err == nil {
		for _, f := range files {
			lose(f.Key)
		}
	}
	if s.oneIn(2) {
		delete(s.objects, key)
		return
	}
	s.births++
	s.objects[key] = simObject{[]byte("rotten"), s.births}
}

// operator drops what can't be read; sometimes something that can, which is refused.
func (s *sim) operator(p *simProc) {
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		for {
			for range s.rng.IntN(25) {
				if t.pause() {
					return
				}
			}
			keys := s.named(&s.head)
			switch {
			case len(keys) > 0 && s.oneIn(4):
				key := keys[s.rng.IntN(len(keys))]
				if !s.ruined[key] {
					s.ruin(key)
				}
			case len(keys) > 0 && s.oneIn(4):
				key := keys[s.rng.IntN(len(keys))]
				sound := !s.ruined[key]
				if _, err := Drop(ctx, simPort{s}, ids{s}, []string{key}); err == nil && sound {
					s.failf("%s is dropped, and can be read", key)
				}
			default:
				s.dropRuined(ctx, t)
			}
			if t.dead {
				return
			}
		}
	})
}

func (s *sim) dropRuined(ctx context.Context, t *simTask) {
	for _, key := range s.named(&s.head) {
		if !s.ruined[key] {
			continue
		}
		d, err := Drop(ctx, simPort{s}, ids{s}, []string{key})
		s.logf("%s: drop of %s: %d, %v", t.name, key, d.Head, err)
		if t.dead {
			return
		}
		if err == nil {
			s.tally.Dropped++
		}
	}
}

// auditor is one life of audits, one after the other.
func (s *sim) auditor(p *simProc) {
	s.start(p, p.name, func(ctx context.Context, t *simTask) {
		for {
			for range s.rng.IntN(60) {
				if t.pause() {
					return
				}
			}
			if s.audit(ctx, t, p); t.dead {
				return
			}
		}
	})
}

// recorded are what a listing of manifests and of records in quarantine finds: what was answered, and what lost files had,
// which may be answered later, because its record was there before its entry.
func (s *sim) recorded() (keys []simKey) {
	for _, a := range s.answers {
		keys = append(keys, a.key)
	}
	n := len(keys)
	for k := range s.lost {
		keys = append(keys, k)
	}
	slices.SortFunc(keys[n:], func(a, b simKey) int {
		return cmp.Or(a.id.Compare(b.id), bytes.Compare(a.hash[:], b.hash[:]))
	})
	return keys
}

// audit enters what has a record and stands nowhere in the journal.
func (s *sim) audit(ctx context.Context, t *simTask, p *simProc) {
	head, _, err := ReadHead(ctx, simPort{s})
	if begin := s.begin; err != nil || begin.Covers(head.Lost) && !s.oneIn(4) {
		return
	}
	w, err := NewWriter(WriterConfig{
		Store: simPort{s}, Rand: ids{s}, Clock: func() int64 { return s.now.UnixNano() },
		Opening: Opening{Writer: p.name, Role: RoleReconciler, Authority: "authority"},
	})
	if err != nil {
		panic(err)
	}
	// Not from nothing: segments that are folded and not deleted yet would count, though their file is lost.
	files, err := head.FilesAfter(ctx, simPort{s}, 0)
	if err != nil {
		return
	}
	from := simSaved{at: head.Positions(), got: map[simKey]bool{}}
	for _, f := range files {
		es, err := ReadFile(ctx, simPort{s}, f)
		if err != nil {
			return
		}
		for _, k := range keysOf(es) {
			from.got[k] = true
		}
	}
	r := s.newFollower(p, from, nil)
	if _, err := r.poll(ctx, t); err != nil {
		return
	}
	missing := 0
	for _, k := range s.recorded() {
		if r.got[k] {
			continue
		}
		r.got[k] = true
		missing++
		e := Entry{ID: k.id, Outcome: AuditedAccepted, SHA256: k.hash, Bytes: 100, At: s.now.UnixNano(), MinTime: int64(k.id.SeqStart), MaxTime: int64(k.id.SeqEnd)}
		if k.conflict {
			e.Outcome = AuditedConflict
		}
		if _, err := w.Add(e); err != nil {
			s.failf("%s: %v", t.name, err)
		}
	}
	for w.Waiting() > 0 {
		_, _, err := w.Flush(ctx)
		if s.checkFlush(t, err); t.dead {
			return
		}
	}
	for tries := 0; w.Open(); tries++ {
		if err := w.Close(ctx); t.dead {
			return
		} else if err != nil && tries > 40 && s.faults == (simFaults{}) {
			s.failf("%s: close: %v", t.name, err)
		}
	}
	err = Begin{AuthorityID: "authority", By: ByAudit, Head: head.Number}.Write(ctx, simPort{s})
	s.logf("%s: audit of %d, %d missing: %v", t.name, head.Number, missing, err)
	if err == nil && missing > 0 {
		s.tally.Audited++
	}
	if err != nil && s.faults == (simFaults{}) && !t.dead && !errors.Is(err, objstore.ErrPreconditionFailed) {
		s.failf("%s: %q: %v", t.name, layout.JournalBeginKey, err)
	}
}
