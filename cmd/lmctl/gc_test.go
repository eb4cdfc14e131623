package main

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	objmem "lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The status has both collections: of orphans, and what retention removed in the last day.
func TestGCStatusHasBothCollections(t *testing.T) {
	ctx, s := t.Context(), objmem.New(nil)
	if _, err := accept.EnsureAuthority(ctx, s, "authority", true); err != nil {
		t.Fatal(err)
	}
	_, err := gc.MoveState(ctx, s, "authority", func(st *gc.State) error {
		st.Deleted, st.Postponed = 3, []gc.Postponed{{Key: layout.OrphanReport(time.Unix(5, 0), identity.Sum(nil)), Attempts: 1}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, age := range []time.Duration{48 * time.Hour, 3 * time.Hour, time.Hour} {
		id := identity.Batch{Agent: "a", Boot: "b", SeqStart: uint64(i), SeqEnd: uint64(i)}
		d := identity.Sum([]byte(id.String()))
		l := framelog.Log{AuthorityID: "authority", By: "worker", RemovedAt: time.Now().Add(-age).UnixNano(),
			Frames: []framelog.Frame{{Identity: id, FrameSHA256: d, FrameBytes: 7, Keys: []string{layout.Blob(d, 0), layout.Blob(d, 1)}}}}
		body, err := l.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(ctx, l.Key(body), body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v, err := showGC(ctx, s)
	if r := v.Retention; err != nil || v.Deleted != 3 || v.Postponed != 1 || r.Removals != 2 || r.Frames != 1 || r.Bytes != 7 || r.By != "worker" {
		t.Errorf("%+v, %v", v, err)
	}
	for limit, want := range map[int]int{100: 4, 3: 3} {
		views, err := readFrameLog(ctx, s, limit, time.Now().Add(-24*time.Hour))
		if err != nil || len(views) != want || views[want-1].Action != "REMOVED" || views[want-1].Bytes != 7 {
			t.Errorf("limit %d: %+v, %v", limit, views, err)
		}
	}
}
