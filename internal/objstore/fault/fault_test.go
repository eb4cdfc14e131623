package fault

import (
	"context"
	"errors"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

func TestConformanceWithoutRules(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return New(mem.New(nil), 1) }, storetest.Features{})
}

func create(s *Store, key string) error {
	_, err := s.Create(context.Background(), key, []byte(key), objstore.PutOptions{})
	return err
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
}

func TestLostAnswerIsApplied(t *testing.T) {
	s := New(mem.New(nil), 1, LostAnswer("create", "a/").Nth(2))
	want(t, create(s, "a/1"), nil)
	want(t, create(s, "b/1"), nil)
	want(t, create(s, "a/2"), objstore.ErrUnknown)
	want(t, create(s, "a/2"), objstore.ErrExists)
	if n := s.Count("create", "a"); n != 3 {
		t.Errorf("counted %d creates", n)
	}
	if n := s.Count("", ""); n != 4 {
		t.Errorf("counted %d operations", n)
	}
}

func TestNotApplied(t *testing.T) {
	s := New(mem.New(nil), 1, NotApplied("", "").Once())
	want(t, create(s, "a"), objstore.ErrUnknown)
	want(t, create(s, "a"), nil)
	s.Add(NotApplied("read", ""), Refused("create", "", objstore.ErrConflict))
	_, err := s.Head(t.Context(), "a")
	want(t, err, objstore.ErrUnavailable)
	want(t, create(s, "b"), objstore.ErrConflict)
	want(t, s.Delete(t.Context(), "a"), nil)
	s.Clear()
	_, err = s.Head(t.Context(), "a")
	want(t, err, objstore.ErrNotFound)
}

func TestDelayedWriteLandsWhenReleased(t *testing.T) {
	inner := mem.New(nil)
	s := New(inner, 1, Delayed("create", "").Once(), Delayed("delete", "").Once())
	body := []byte("first")
	_, err := s.Create(t.Context(), "a", body, objstore.PutOptions{})
	want(t, err, objstore.ErrUnknown)
	copy(body, "other") // the caller's bytes are the caller's again
	_, err = s.Head(t.Context(), "a")
	want(t, err, objstore.ErrNotFound)
	d := s.Delayed()
	if len(d) != 1 || d[0].Op != "create" || d[0].Key != "a" {
		t.Fatalf("delayed: %+v", d)
	}
	want(t, s.Release(t.Context(), d[0].ID), nil)
	got, _, err := s.Get(t.Context(), "a", objstore.GetOptions{})
	if err != nil || string(got) != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := s.Release(t.Context(), d[0].ID); err == nil {
		t.Error("released twice")
	}
	want(t, s.Delete(t.Context(), "a"), objstore.ErrUnknown)
	want(t, s.Release(t.Context(), s.Delayed()[0].ID), nil)
	if inner.Len() != 0 {
		t.Error("the delayed delete did nothing")
	}
}

func TestDelayedCreateMeetsItsCondition(t *testing.T) {
	s := New(mem.New(nil), 1, Delayed("create", "").Once())
	want(t, create(s, "a"), objstore.ErrUnknown)
	want(t, create(s, "a"), nil)
	want(t, s.Release(t.Context(), 0), objstore.ErrExists)
}

func TestHangEndsWithTheContext(t *testing.T) {
	s := New(mem.New(nil), 1, Rule{Kind: Hang})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, "a", nil, objstore.PutOptions{})
	want(t, err, objstore.ErrUnknown)
	want(t, err, context.Canceled)
	_, err = s.List(ctx, objstore.ListOptions{})
	want(t, err, objstore.ErrUnavailable)
}

func TestHoldGoesOnAtTheGate(t *testing.T) {
	gate := make(chan struct{})
	s := New(mem.New(nil), 1, Rule{Op: "create", Kind: Hold, Gate: gate})
	done := make(chan error)
	go func() { done <- create(s, "a") }()
	_, err := s.Head(t.Context(), "a")
	want(t, err, objstore.ErrNotFound)
	close(gate)
	want(t, <-done, nil)
}

func TestChanceFollowsTheSeed(t *testing.T) {
	run := func(seed uint64) (failed []int) {
		s := New(mem.New(nil), seed, Rule{Op: "head", Chance: 0.3, Kind: Before})
		for i := range 200 {
			if _, err := s.Head(t.Context(), "a"); errors.Is(err, objstore.ErrUnavailable) {
				failed = append(failed, i)
			}
		}
		return failed
	}
	one := run(1)
	if !slices.Equal(one, run(1)) || slices.Equal(one, run(2)) {
		t.Error("faults do not follow the seed")
	}
	if len(one) < 30 || len(one) > 90 {
		t.Errorf("%d of 200 failed, want about 60", len(one))
	}
}
