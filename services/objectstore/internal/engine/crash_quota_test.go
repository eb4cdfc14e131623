package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
)

// crashQuotas: the histories that are explored set quotas, and hold the store to them.
var crashQuotas atomic.Bool

// quotaRefused and quotaKept count the batches of which the quota refused something, and of which it refused nothing.
var quotaRefused, quotaKept atomic.Int64

// quotaMark is what a world shows of a quota.
func quotaMark(q Quota) string {
	if q == (Quota{}) {
		return ""
	}
	return fmt.Sprint(q)
}

// quotaCall sets a quota near what the bucket holds: above it, below it, or none.
func quotaCall(s *session, rng *rand.Rand) call {
	now, q := bucketUsage(s.e), Quota{}
	if rng.IntN(5) > 0 {
		q.Bytes = max(1, now.bytes+int64(rng.IntN(6000))-1500)
	}
	if rng.IntN(2) == 0 {
		q.Objects = max(1, now.records+int64(rng.IntN(6))-1)
	}
	return call{
		func(e *Engine) error { return e.SetQuota(context.Background(), "bkt", q) },
		func(w world) {
			b := w[""]
			b.tags = quotaMark(q)
			w[""] = b
		},
	}
}

func bucketUsage(e *Engine) usage {
	for _, u := range e.Usage() {
		if u.Bucket == "bkt" {
			return usage{u.Objects, u.Bytes}
		}
	}
	return usage{}
}

// checkQuota: what a batch has added fits into the quota, by the counters, which are equal to a recount.
func checkQuota(e *Engine, before usage, errs []error) error {
	b, err := e.Bucket("bkt")
	if err != nil || b.Quota() == (Quota{}) {
		return nil //nolint:nilerr // the bucket is still to be made
	}
	refused := false
	for _, err := range errs {
		refused = refused || errors.Is(err, ErrQuota)
	}
	if refused {
		quotaRefused.Add(1)
	} else {
		quotaKept.Add(1)
	}
	q, now := b.Quota(), bucketUsage(e)
	if q.Bytes > 0 && now.bytes > max(q.Bytes, before.bytes) || q.Objects > 0 && now.records > max(q.Objects, before.records) {
		return fmt.Errorf("the quota %+v is passed: the bucket had %+v and has %+v", q, before, now)
	}
	return checkUsage(e)
}

// TestQuotaPowerLoss: power fails behind every call of histories with quotas that come, change and go. What recovery counts is a
// recount, the quota is the one that was acknowledged, and neither before nor behind a loss of power is it passed by a byte or an
// object.
func TestQuotaPowerLoss(t *testing.T) {
	crashQuotas.Store(true)
	defer crashQuotas.Store(false)
	defer collectLess()()
	least := int64(2000)
	m := &matrix{}
	calls, seed := 0, uint64(100)
	for m.count() < least && seed < 120 && !m.failed() {
		seed++
		calls += crashSeed(t, m, nil, seed, 30, 3)
	}
	t.Logf("seeds 101 to %d: %d calls, %d crash states; the quota refused something of %d batches, and nothing of %d", seed, calls, m.count(), quotaRefused.Load(), quotaKept.Load())
	if m.count() < least && !m.failed() {
		t.Errorf("only %d states, at least %d are promised", m.count(), least)
	}
	if quotaRefused.Load() < 50 || quotaKept.Load() < 50 {
		t.Error("the histories do not reach their quotas, or never leave them")
	}
	for _, f := range m.failures {
		t.Error(f)
	}
}

// TestQuotaIsChecked: a store that has lost count passes its quota, and checkQuota sees it.
func TestQuotaIsChecked(t *testing.T) {
	s, err := openSession(crashfs.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.e.abandon()
	for _, c := range []call{
		bucketCall(),
		{func(e *Engine) error { return e.SetQuota(context.Background(), "bkt", Quota{Bytes: 1000}) }, nil},
		putCall("k/00", pattern(900, 1), "e", Cond{}),
	} {
		if err := s.together(c)[0]; err != nil {
			t.Fatal(err)
		}
	}
	before := bucketUsage(s.e)
	if errs := s.together(putCall("k/01", pattern(900, 1), "e", Cond{})); !errors.Is(errs[0], ErrQuota) || checkQuota(s.e, before, errs) != nil {
		t.Error(errs)
	}
	s.e.mu.Lock()
	s.e.usage["bkt"] = usage{}
	s.e.mu.Unlock()
	errs := s.together(putCall("k/01", pattern(900, 1), "e", Cond{}))
	if err := checkQuota(s.e, before, errs); err == nil || errs[0] != nil {
		t.Errorf("nobody sees that the quota is passed: %v, %v", err, errs)
	}
}
