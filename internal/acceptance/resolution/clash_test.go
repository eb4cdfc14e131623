package resolution_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func clash(spool string, at int64) resolution.Clash {
	return resolution.Clash{AuthorityID: authority, AgentID: "agent", BootID: "boot", SpoolID: spool, ObservedAt: at, CollectorID: "c"}
}

// Each other spool of a boot is recorded once, with its first time, and not more than a bound of them.
func TestClashesAreRecordedOnceAndBounded(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	for i := range resolution.MaxClashes {
		for at := range int64(2) {
			must(t, resolution.RecordClash(ctx, store, clash(fmt.Sprint("spool ", i), 5+at)))
		}
	}
	if err := resolution.RecordClash(ctx, store, clash("one more", 9)); !errors.Is(err, resolution.ErrManyClashes) {
		t.Errorf("beyond the bound: %v", err)
	}
	must(t, resolution.RecordClash(ctx, store, clash("spool 0", 9))) // one that is there
	other := clash("spool 0", 9)
	other.BootID = "another"
	must(t, resolution.RecordClash(ctx, store, other))
	n := 0
	must(t, storetest.Each(ctx, store, layout.ClashPrefix, func(o objstore.Info) error {
		n++
		b, _, err := store.Get(ctx, o.Key, objstore.GetOptions{})
		must(t, err)
		c, err := resolution.ParseClash(o.Key, b)
		if err != nil || c.BootID == "boot" && c.ObservedAt != 5 {
			t.Errorf("%s: %+v, %v", o.Key, c, err)
		}
		return nil
	}))
	if n != resolution.MaxClashes+1 {
		t.Errorf("%d records", n)
	}
}

// Where a frame is parked is recorded once, and only of one that lost a conflict.
func TestParkedFramesAreRecordedOnce(t *testing.T) {
	ctx, store := t.Context(), mem.New(time.Now)
	p := resolution.Parked{AuthorityID: authority, AgentID: "agent", BootID: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSHA256: identity.Sum(nil), Host: "h", ObservedAt: 5, CollectorID: "c"}
	must(t, resolution.RecordParked(ctx, store, p))
	if _, err := store.Head(ctx, p.Key()); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a frame without a conflict: %v", err)
	}
	_, err := store.Create(ctx, layout.Quarantine(p.Identity(), p.SubmittedSHA256), []byte("{}"), objstore.PutOptions{})
	must(t, err)
	for _, host := range []string{"first", "second"} {
		p.Host, p.Directory = host, strings.Repeat("ä", 5000)
		must(t, resolution.RecordParked(ctx, store, p.Cut()))
	}
	b, _, err := store.Get(ctx, p.Key(), objstore.GetOptions{})
	must(t, err)
	got, err := resolution.ParseParked(p.Key(), b)
	if err != nil || got.Host != "first" || len(got.Directory) > 600 || !strings.HasPrefix(p.Directory, got.Directory) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestNotesOfOthersAreRefused(t *testing.T) {
	c := clash("s", 5)
	p := resolution.Parked{AgentID: "agent", BootID: "boot", SeqStart: 1, SeqEnd: 2, SubmittedSHA256: identity.Sum(nil)}
	elsewhere := p
	elsewhere.SeqEnd = 3
	before := clash("s", -1)
	long := clash(strings.Repeat("s", 200), 1)
	for name, err := range map[string]error{
		"another spool":  second(resolution.ParseClash(c.Key(), clash("t", 5).Marshal())),
		"before 1970":    second(resolution.ParseClash(before.Key(), before.Marshal())),
		"long":           second(resolution.ParseClash(long.Key(), long.Marshal())),
		"torn":           second(resolution.ParseClash(c.Key(), []byte("{"))),
		"another frame":  second(resolution.ParseParked(elsewhere.Key(), p.Marshal())),
		"a torn whereof": second(resolution.ParseParked(p.Key(), []byte("{"))),
	} {
		if !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
