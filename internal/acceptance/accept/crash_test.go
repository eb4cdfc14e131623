package accept_test

import (
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// TestCrashMatrix ends a collector before and after each of its requests, in
// several starting states. Another collector then submits the same or other bytes,
// and both together must tell one truth.
func TestCrashMatrix(t *testing.T) {
	a, b := submission(testID, "a"), submission(testID, "b")
	states := map[string]func(*mem.Store){
		"empty":              func(*mem.Store) {},
		"orphan":             func(s *mem.Store) { put(t, s, layout.Blob(a.SHA256, 0), a.Frame) },
		"garbage":            func(s *mem.Store) { put(t, s, layout.Blob(a.SHA256, 0), []byte("x")) },
		"condemned, deleted": func(s *mem.Store) { condemn(t, s, a.SHA256, 0, true) },
		"condemned orphan": func(s *mem.Store) {
			put(t, s, layout.Blob(a.SHA256, 0), a.Frame)
			condemn(t, s, a.SHA256, 0, false)
		},
		"accepted":    func(s *mem.Store) { mustAccept(t, protocol(t, s, "c0", nil), a, accept.Accepted) },
		"other bytes": func(s *mem.Store) { mustAccept(t, protocol(t, s, "c0", nil), b, accept.Accepted) },
	}
	cases := 0
	for name, prepare := range states {
		for _, retry := range []accept.Submission{a, b} {
			for crash := 0; ; crash++ {
				s := mem.New(nil)
				prepare(s)
				reached := false
				down := func(n int, _, _ string) error {
					if n >= crash/2 {
						reached = true
						return objstore.ErrUnknown
					}
					return nil
				}
				h := &hooked{Store: s, before: down}
				if crash%2 == 1 { // the request is applied, its answer and all that follow are lost
					h.before = func(n int, op, key string) error { return down(n-1, op, key) }
					h.after = down
				}
				res1, err1 := protocol(t, h, "c1", nil).Accept(t.Context(), a)
				res2, err2 := protocol(t, s, "c2", nil).Accept(t.Context(), retry)
				if err2 != nil {
					t.Fatalf("%s, crash %d: retry: %v", name, crash, err2)
				}
				if err1 == nil && res1.Manifest.FrameSHA256 != res2.Manifest.FrameSHA256 {
					t.Errorf("%s, crash %d: two truths", name, crash)
				}
				checkTruth(t, s, name, crash, retry, res2)
				cases++
				if !reached {
					if err1 != nil {
						t.Errorf("%s: without a crash: %v", name, err1)
					}
					break
				}
				var want *accept.RetryError
				if !errors.As(err1, &want) {
					t.Errorf("%s, crash %d: %v", name, crash, err1)
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}

func checkTruth(t *testing.T, s *mem.Store, name string, crash int, sub accept.Submission, res accept.Result) {
	t.Helper()
	raw, _, err := s.Get(t.Context(), layout.Accepted(testID), objstore.GetOptions{})
	if err != nil {
		t.Fatalf("%s, crash %d: %v", name, crash, err)
	}
	m, err := accept.ParseManifest(raw)
	if err != nil || m != res.Manifest {
		t.Errorf("%s, crash %d: the store has %+v (%v), the answer was %+v", name, crash, m, err, res.Manifest)
	}
	if (m.FrameSHA256 == sub.SHA256) == (res.Outcome == accept.Conflict) {
		t.Errorf("%s, crash %d: %s is wrong", name, crash, res.Outcome)
	}
	if res.Outcome == accept.Conflict && !exists(t, s, res.QuarantineKey) {
		t.Errorf("%s, crash %d: no quarantine record", name, crash)
	}
	// Collect what is condemned: what was answered must not depend on it.
	for gen := range uint32(8) {
		if exists(t, s, layout.Condemned(sub.SHA256, gen)) {
			condemn(t, s, sub.SHA256, gen, true)
		}
	}
	if !readable(t, s, sub.Frame) {
		t.Errorf("%s, crash %d: the submitted bytes are gone", name, crash)
	}
}
