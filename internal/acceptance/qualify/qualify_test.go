package qualify

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

func run(t *testing.T, s objstore.Store, strict bool) (Report, error) {
	t.Helper()
	tick := time.Unix(0, 0)
	now := func() time.Time { tick = tick.Add(time.Millisecond); return tick }
	return Run(t.Context(), s, Options{RunID: "0123456789abcdef", Strict: strict, Timeout: 10 * time.Second, Now: now})
}

func TestGoodStorePassesAndIsLeftClean(t *testing.T) {
	s := mem.New(nil)
	for range 2 { // as a collector does daily
		r, err := run(t, s, false)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() != 0 {
			t.Errorf("%d probe objects left", s.Len())
		}
		var table bytes.Buffer
		if err := r.Table(&table); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"racing creates", "4 rounds of 16: 60 exists, 0 conflicts", "skipped", "1ms"} {
			if !strings.Contains(table.String(), want) {
				t.Errorf("no %q in\n%s", want, table.String())
			}
		}
	}
}

// failed are the names of the failed checks.
func failed(r Report) string {
	var names []string
	for _, row := range r.Rows {
		if row.Status == Fail {
			names = append(names, row.Check)
		}
	}
	return strings.Join(names, ", ")
}

func TestEachViolationFailsItsCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		store func(*mem.Store) objstore.Store
		check string // that must fail, among others
	}{
		{"checks, then writes", func(s *mem.Store) objstore.Store { return &checkThenWrite{Store: s} }, "racing creates"},
		{"ignores If-None-Match", func(s *mem.Store) objstore.Store { return ignoresIfNoneMatch{s} }, "conditional create"},
		{"ignores If-Match", func(s *mem.Store) objstore.Store { return ignoresIfMatch{s} }, "conditional replace"},
		{"caches absence", func(s *mem.Store) objstore.Store { return &cachesAbsence{Store: s, absent: map[string]bool{}} }, "read after write"},
		{"lists late", func(s *mem.Store) objstore.Store { return &listsLate{Store: s} }, "list after write"},
		{"lists out of order", func(s *mem.Store) objstore.Store { return listsBackwards{s} }, "list after write"},
		{"ignores the payload hash", func(s *mem.Store) objstore.Store { return ignoresHash{s} }, "checksum refusal"},
		{"ignores the checksum header", func(s *mem.Store) objstore.Store { return ignoresChecksum{s} }, "checksum refusal"},
		{"keeps no checksum", func(s *mem.Store) objstore.Store { return keepsNoChecksum{s} }, "read after write"},
		{"serves what was deleted", func(s *mem.Store) objstore.Store { return keepsDeleted{s} }, "read after delete"},
		{"says exists and overwrites", func(s *mem.Store) objstore.Store { return overwrites{s} }, "conditional create"},
		{"denies everything", func(s *mem.Store) objstore.Store {
			return fault.New(s, 1, fault.Refused("", "", objstore.ErrDenied))
		}, "conditional create"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := run(t, c.store(mem.New(nil)), false)
			if !errors.Is(err, accept.ErrNotQualified) {
				t.Fatalf("qualified: %v", err)
			}
			if !strings.Contains(failed(r), c.check) {
				t.Errorf("%q failed, want %q among them", failed(r), c.check)
			}
		})
	}
}

// guarded is a store whose policy is that of a collector.
type guarded struct {
	*mem.Store
	lacks string // the rule that is left out
}

func (g guarded) denies(op, key string) bool {
	under := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
	}
	segments, folds := []string{"journal/v1/open/", "journal/v1/run="}, []string{"journal/v1/folded/", "journal/v1/head.json"}
	rules := map[string]bool{
		"put of a record":    op == "put" && under("accepted/v1/", "affirmed/v1/", "quarantine/v1/"),
		"delete of a record": op == "delete" && under("accepted/v1/", "affirmed/v1/", "quarantine/v1/", "gc/v1/condemned/"),
		"delete of a frame":  op == "delete" && under("raw-blobs/v1/"),
		"condemning":         op == "create" && under("gc/v1/condemned/"),
		"put of segments":    op == "put" && (under(segments...) || under(folds...) || under("journal/v1/begin.json")),
		"delete of segments": op == "delete" && (under(segments...) || under(folds...)),
		"folding":            (op == "create" || op == "replace") && under(folds...),
		"change of the rest": op == "put" && under("raw-blobs/v1/", "boots/v1/", "resolution/v1/", "gc/v1/condemned/", "gc/v1/log/") ||
			op == "replace" && under("accepted/v1/", "affirmed/v1/", "quarantine/v1/", "raw-blobs/v1/", "boots/v1/", "resolution/v1/", "gc/v1/", "journal/v1/open/", "journal/v1/run=") ||
			op == "delete" && under("boots/v1/", "resolution/v1/", "gc/v1/log/", "journal/v1/begin.json") || op == "create" && under("resolution/v1/log/"),
		"put of an authority": op == "put" && under("authority/v1/"), "delete of an authority": op == "delete" && under("authority/v1/"),
	}
	for name, denied := range rules {
		if denied && name != g.lacks {
			return true
		}
	}
	return g.lacks == "creates" && op == "create" && under("accepted/v1/")
}

func (g guarded) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if g.denies("put", key) {
		return objstore.Info{}, objstore.ErrDenied
	}
	return g.Store.Put(ctx, key, body, o)
}

func (g guarded) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if g.denies("create", key) {
		return objstore.Info{}, objstore.ErrDenied
	}
	return g.Store.Create(ctx, key, body, o)
}

func (g guarded) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if g.denies("replace", key) {
		return objstore.Info{}, objstore.ErrDenied
	}
	return g.Store.Replace(ctx, key, body, etag, o)
}

// CopyAbsent copies nothing, as there is nothing to copy.
func (g guarded) CopyAbsent(context.Context, string, string) error {
	if g.lacks == "copies" {
		return objstore.ErrNotFound
	}
	return objstore.ErrDenied
}

func (g guarded) Delete(ctx context.Context, key string) error {
	if g.denies("delete", key) {
		return objstore.ErrDenied
	}
	return g.Store.Delete(ctx, key)
}

// TestStrictNeedsAPolicy: each rule that the policy lacks is found by its own check, and nothing is
// written to find it.
func TestStrictNeedsAPolicy(t *testing.T) {
	s := mem.New(nil)
	r, err := run(t, s, true)
	if !errors.Is(err, accept.ErrNotQualified) || r.Failed() != len(policy)-2 || strings.Contains(failed(r), "create of records") {
		t.Errorf("%q failed: %v", failed(r), err)
	}
	if s.Len() != 0 {
		t.Errorf("%d objects left", s.Len())
	}
	for lacks, want := range map[string]string{
		"": "", "put of a record": "policy: unconditional put of a record", "delete of a record": "policy: delete of a record",
		"put of segments": "policy: unconditional put of a journal segment", "delete of segments": "policy: delete of a journal segment",
		"delete of a frame": "policy: delete of a frame", "condemning": "policy: condemning of a frame",
		"change of the rest": "policy: change of a frame, a boot, a decision or a log",
		"folding":            "policy: folding of the journal", "put of an authority": "policy: unconditional put of the authority",
		"delete of an authority": "policy: unconditional put of the authority", "creates": "policy: create of records and segments", "copies": "policy: copy onto a record or a frame",
	} {
		s := mem.New(nil)
		r, err := Policy(t.Context(), guarded{s, lacks}, Options{RunID: "r", Timeout: 10 * time.Second})
		if failed(r) != want || (err == nil) != (want == "") || want != "" && !errors.Is(err, accept.ErrNotQualified) {
			t.Errorf("without the rule %q: %q failed: %v", lacks, failed(r), err)
		}
		if n := s.Len(); n != 0 {
			t.Errorf("without the rule %q: %d objects were written", lacks, n)
		}
	}
	if r, err := run(t, guarded{mem.New(nil), ""}, true); err != nil {
		t.Errorf("%q failed: %v", failed(r), err)
	}
}

// asked notes what is asked for, and denies it.
type asked struct {
	*mem.Store
	what map[string]bool
}

func (a asked) denied(op bucketpolicy.Op, key string) error {
	a.what[op.String()+" "+key] = true
	return objstore.ErrDenied
}

func (a asked) Put(_ context.Context, key string, _ []byte, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, a.denied(bucketpolicy.Put, key)
}

func (a asked) Create(_ context.Context, key string, _ []byte, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, a.denied(bucketpolicy.Create, key)
}

func (a asked) Replace(_ context.Context, key string, _ []byte, _ string, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, a.denied(bucketpolicy.Replace, key)
}

func (a asked) Delete(_ context.Context, key string) error { return a.denied(bucketpolicy.Delete, key) }

func (a asked) CopyAbsent(_ context.Context, key, _ string) error {
	a.what["copy "+key] = true
	return objstore.ErrDenied
}

// TestEveryRuleIsProbed: a rule of the bucket that the table gets has to be asked for by a collector too, for each kind of
// request and each of its prefixes.
func TestEveryRuleIsProbed(t *testing.T) {
	a := asked{mem.New(nil), map[string]bool{}}
	Policy(t.Context(), a, Options{RunID: "r"})
	for _, r := range bucketpolicy.Refusals() {
		if slices.Contains(r.Except, bucketpolicy.Ingest) {
			continue
		}
		for _, key := range r.Keys {
			probed := func(what string) bool {
				for k := range a.what {
					if strings.HasPrefix(k, what+" "+key) {
						return true
					}
				}
				return false
			}
			for _, op := range bucketpolicy.Ops {
				if r.Ops&op != 0 && !probed(op.String()) {
					t.Errorf("no check asks for %s of %s: %s", op, key, r.Why)
				}
			}
			if r.Copies && !probed("copy") {
				t.Errorf("no check asks for a copy onto %s", key)
			}
		}
	}
}

// TestPolicyOfAStoreThatIgnoresChecksums: what such a store has written is removed again.
func TestPolicyOfAStoreThatIgnoresChecksums(t *testing.T) {
	s := mem.New(nil)
	if r, err := Policy(t.Context(), ignoresHash{s}, Options{RunID: "r"}); err == nil {
		t.Errorf("%+v", r)
	}
	if s.Len() != 0 {
		t.Errorf("%d objects left", s.Len())
	}
}

// TestSilenceIsNoPolicy: a store that does not answer has shown neither that it has a policy nor that
// it has none.
func TestSilenceIsNoPolicy(t *testing.T) {
	if _, err := Policy(t.Context(), fault.New(mem.New(nil), 1, fault.NotApplied("", "")), Options{RunID: "r"}); err == nil || !Unanswered(err) {
		t.Error(err)
	}
	if _, err := Policy(t.Context(), mem.New(nil), Options{RunID: "r"}); err == nil || Unanswered(err) {
		t.Error(err)
	}
}

func TestTransientFaultsDoNotDisqualify(t *testing.T) {
	s := fault.New(mem.New(nil), 1,
		fault.LostAnswer("create", "probe/v1/0123456789abcdef/create").Once(),
		fault.NotApplied("create", "probe/v1/0123456789abcdef/replace").Once(),
		fault.Refused("create", "probe/v1/0123456789abcdef/list", objstore.ErrConflict).Once())
	if _, err := run(t, s, false); err != nil {
		t.Error(err)
	}
}

func TestCauseIsKept(t *testing.T) {
	_, err := run(t, fault.New(mem.New(nil), 1, fault.Refused("", "", objstore.ErrNoBucket)), false)
	if !errors.Is(err, objstore.ErrNoBucket) || !errors.Is(err, accept.ErrNotQualified) || strings.Contains(err.Error(), "\n\n") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Run(ctx, mem.New(nil), Options{RunID: "r"})
	if !errors.Is(err, accept.ErrNotQualified) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Run(t.Context(), mem.New(nil), Options{}); !errors.Is(err, objstore.ErrInvalid) {
		t.Error(err)
	}
}

// TestUnansweredIsNothingWorse: a store that breaks its promise and is silent besides
// has broken its promise.
func TestUnansweredIsNothingWorse(t *testing.T) {
	late := fault.NotApplied("get", "")
	for name, c := range map[string]struct {
		store objstore.Store
		want  bool
	}{
		"silent":            {fault.New(mem.New(nil), 1, fault.NotApplied("", "")), true},
		"silent reads":      {fault.New(mem.New(nil), 1, late), true},
		"broken":            {ignoresIfNoneMatch{mem.New(nil)}, false},
		"broken and silent": {fault.New(ignoresIfNoneMatch{mem.New(nil)}, 1, fault.NotApplied("list", "")), false},
		"denies":            {fault.New(mem.New(nil), 1, fault.Refused("", "", objstore.ErrDenied)), false},
	} {
		_, err := run(t, c.store, false)
		if err == nil || Unanswered(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !Unanswered(objstore.ErrUnavailable) || Unanswered(objstore.ErrDenied) {
		t.Error("errors of single requests")
	}
}

// TestTwoWinnersAreSeenBesideAnUnknown: of the racers, one is told nothing and two are
// told that they have won.
func TestTwoWinnersAreSeenBesideAnUnknown(t *testing.T) {
	s := fault.New(ignoresIfNoneMatch{mem.New(nil)}, 1, fault.NotApplied("create", layout.ProbePrefix+"0123456789abcdef/race-").Nth(1))
	r, err := run(t, s, false)
	if err == nil {
		t.Fatal("qualified")
	}
	for _, row := range r.Rows {
		if row.Check == "racing creates" && (row.Status != Fail || errors.Is(row.Err, objstore.ErrUnknown)) {
			t.Errorf("%+v", row)
		}
	}
}
