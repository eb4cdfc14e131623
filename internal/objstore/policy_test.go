package objstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// noTime is a clock whose waits take none.
type noTime struct{ slept []time.Duration }

func (*noTime) Now() time.Time { return time.Unix(0, 0) }

func (c *noTime) Sleep(_ context.Context, d time.Duration) error {
	c.slept = append(c.slept, d)
	return nil
}

var policy = objstore.Policy{Timeout: time.Minute, Retry: retry.Policy{Attempts: 4, Base: 10, Cap: 100}}

func withPolicy(s objstore.Store) objstore.Store {
	return objstore.WithPolicy(s, policy, &noTime{}, nil, nil)
}

func TestConformanceOfDecorators(t *testing.T) {
	for name, decorate := range map[string]func(objstore.Store) objstore.Store{
		"deadline": func(s objstore.Store) objstore.Store { return objstore.Deadline(s, time.Minute) },
		"observe": func(s objstore.Store) objstore.Store {
			return objstore.Observe(s, func(string, string, time.Duration, error) {}, time.Now)
		},
		"policy": withPolicy,
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) objstore.Store { return decorate(mem.New(nil)) }, storetest.Features{})
		})
	}
}

// operations are all of a store, on the key "k" with the bytes "b".
var operations = map[string]func(context.Context, objstore.Store) error{
	"get": func(ctx context.Context, s objstore.Store) error {
		_, _, err := s.Get(ctx, "k", objstore.GetOptions{})
		return err
	},
	"head": func(ctx context.Context, s objstore.Store) error { _, err := s.Head(ctx, "k"); return err },
	"list": func(ctx context.Context, s objstore.Store) error {
		_, err := s.List(ctx, objstore.ListOptions{})
		return err
	},
	"create": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Create(ctx, "k", []byte("b"), objstore.PutOptions{})
		return err
	},
	"replace": func(ctx context.Context, s objstore.Store) error {
		info, err := objstore.Unwrap(s).Head(ctx, "k")
		if err != nil {
			return err
		}
		_, err = s.Replace(ctx, "k", []byte("b2"), info.ETag, objstore.PutOptions{})
		return err
	},
	"put": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Put(ctx, "k", []byte("b"), objstore.PutOptions{})
		return err
	},
	"delete": func(ctx context.Context, s objstore.Store) error { return s.Delete(ctx, "k") },
}

// opened is a store with the object that an operation needs, and faults in front of it.
func opened(t *testing.T, op string, rules ...fault.Rule) (*fault.Store, *noTime, objstore.Store) {
	t.Helper()
	m := mem.New(nil)
	if op != "create" {
		if _, err := m.Create(t.Context(), "k", []byte("a"), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f, c := fault.New(m, 1, rules...), &noTime{}
	return f, c, objstore.WithPolicy(f, policy, c, nil, nil)
}

// What another attempt can mend is tried again, with waits that grow; what it can't mend is
// asked for once.
func TestRetryByError(t *testing.T) {
	for op, run := range operations {
		for err, again := range map[error]bool{
			objstore.ErrUnknown: true, objstore.ErrUnavailable: true, objstore.ErrConflict: true, objstore.ErrChecksum: true,
			errors.New("no sentinel at all"): true,
			objstore.ErrDenied:               false, objstore.ErrNoBucket: false, objstore.ErrInvalid: false,
			objstore.ErrNotFound: false, objstore.ErrExists: false, objstore.ErrPreconditionFailed: false,
		} {
			f, c, s := opened(t, op, fault.Refused(op, "", err).Once())
			got := run(t.Context(), s)
			if again && (got != nil || f.Count(op, "") != 2 || !slices.Equal(c.slept, []time.Duration{10})) {
				t.Errorf("%s, %v once: %v, %d requests, waits %v", op, err, got, f.Count(op, ""), c.slept)
			}
			if !again && (!errors.Is(got, err) || f.Count(op, "") != 1) {
				t.Errorf("%s, %v: %v, %d requests", op, err, got, f.Count(op, ""))
			}
			f, c, s = opened(t, op, fault.Refused(op, "", err))
			got = run(t.Context(), s)
			if again && (!errors.Is(got, err) || f.Count(op, "") != 4 || !slices.Equal(c.slept, []time.Duration{10, 20, 40})) {
				t.Errorf("%s, %v for ever: %v, %d requests, waits %v", op, err, got, f.Count(op, ""), c.slept)
			}
		}
	}
}

// A write that is answered by a refusal after an attempt of unknown outcome may have
// been, or may be, applied all the same: the error says both.
func TestNothingIsGuessedAfterUnknown(t *testing.T) {
	for _, c := range []struct {
		op    string
		rules []fault.Rule
		want  []error // all of these
	}{
		// The caller's own write: applied, its answer lost, and then met by the second attempt.
		{"create", []fault.Rule{fault.LostAnswer("create", "").Once()}, []error{objstore.ErrExists, objstore.ErrUnknown}},
		{"replace", []fault.Rule{fault.LostAnswer("replace", "").Once()}, []error{objstore.ErrPreconditionFailed, objstore.ErrUnknown}},
		// The first attempt is still on its way when the second is refused.
		{"create", []fault.Rule{fault.Delayed("create", "").Once(), fault.Refused("create", "", objstore.ErrDenied)}, []error{objstore.ErrDenied, objstore.ErrUnknown}},
		{"delete", []fault.Rule{fault.Delayed("delete", "").Once(), fault.Refused("delete", "", objstore.ErrDenied)}, []error{objstore.ErrDenied, objstore.ErrUnknown}},
		{"create", []fault.Rule{fault.Delayed("create", "").Once(), fault.Refused("create", "", objstore.ErrConflict)}, []error{objstore.ErrConflict, objstore.ErrUnknown}},
		// It never came, or comes when the second attempt has its answer: that is exact.
		{"create", []fault.Rule{fault.Delayed("create", "").Once()}, nil},
		{"replace", []fault.Rule{fault.Delayed("replace", "").Once()}, nil},
		{"delete", []fault.Rule{fault.LostAnswer("delete", "").Once()}, nil},
	} {
		f, _, s := opened(t, c.op, c.rules...)
		err := operations[c.op](t.Context(), s)
		if len(c.want) == 0 && err != nil {
			t.Errorf("%s: %v", c.op, err)
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", c.op, err, want)
			}
		}
		if e := (*objstore.Error)(nil); err != nil && (!errors.As(err, &e) || e.Op != c.op || e.Key != "k") {
			t.Errorf("%s: %v names no operation", c.op, err)
		}
		for _, d := range f.Delayed() {
			if err := f.Release(t.Context(), d.ID); len(c.want) == 0 && err == nil {
				t.Errorf("%s: the first attempt was applied after the second one's success", c.op)
			}
		}
	}
}

// Exists without an unknown outcome before it is another's, and says so.
func TestExistsIsAnothersWithoutUnknown(t *testing.T) {
	_, _, s := opened(t, "get", fault.Refused("create", "", objstore.ErrConflict).Once())
	if err := operations["create"](t.Context(), s); !errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrUnknown) {
		t.Errorf("%v", err)
	}
}

func TestDeadlineEndsARequestAndNotTheOperation(t *testing.T) {
	for op, run := range operations {
		f, _, _ := opened(t, op, fault.Rule{Op: op, Kind: fault.Hang, Times: 1})
		s := objstore.WithPolicy(f, objstore.Policy{Timeout: 20 * time.Millisecond, Retry: policy.Retry}, &noTime{}, nil, nil)
		if err := run(t.Context(), s); err != nil || f.Count(op, "") != 2 {
			t.Errorf("%s: %v after %d requests", op, err, f.Count(op, ""))
		}
	}
}

// Who did not answer is the store: a caller that looks for the end of its own context does not
// find it, unless that is what ended the request.
func TestTheStoresDeadlineIsNotTheCallers(t *testing.T) {
	for op, run := range operations {
		f, _, _ := opened(t, op, fault.Rule{Op: op, Kind: fault.Hang})
		want := objstore.ErrUnavailable
		if (objstore.Op{Name: op}).Writes() {
			want = objstore.ErrUnknown
		}
		if err := run(t.Context(), objstore.Deadline(f, 20*time.Millisecond)); !errors.Is(err, want) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", op, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := run(ctx, objstore.Deadline(f, time.Minute))
		cancel()
		if !errors.Is(err, want) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, ended by its caller: %v", op, err)
		}
	}
}

func TestRetriesAreReported(t *testing.T) {
	var seen []objstore.Op
	f := fault.New(mem.New(nil), 1, fault.NotApplied("create", "").Once())
	s := objstore.WithPolicy(f, policy, &noTime{}, nil, func(op objstore.Op, err error) {
		if !errors.Is(err, objstore.ErrUnknown) {
			t.Error(err)
		}
		seen = append(seen, op)
	})
	if err := operations["create"](t.Context(), s); err != nil || !slices.Equal(seen, []objstore.Op{{Name: "create", Key: "k"}}) {
		t.Errorf("%v, %v", err, seen)
	}
}

// A store without tags stays one: nothing depends on them.
func TestTagsOfAStoreThatHasNone(t *testing.T) {
	s := withPolicy(struct{ objstore.Store }{mem.New(nil)})
	if err := s.(objstore.Tagger).SetTags(t.Context(), "k", nil); !errors.Is(err, objstore.ErrInvalid) {
		t.Error(err)
	}
}
