package spool_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

type fastClock struct{ run.WallClock }

func (fastClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func target(t testing.TB, s accept.Store, collector string) *accept.Protocol {
	t.Helper()
	p, err := accept.New(accept.Config{Store: s, AuthorityID: "authority-1", CollectorID: collector, Clock: fastClock{}, Rand: crand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func config(t testing.TB, dir string, f vfs.FS, to accept.Acceptor) spool.Config {
	return spool.Config{
		Dir: dir, FS: f, AuthorityID: "authority-1", CollectorID: "c1", Target: to, Clock: fastClock{},
		Events: spool.Events{
			Corrupt: func(path string, err error) { t.Errorf("corrupt %s: %v", path, err) },
		},
	}
}

func open(t testing.TB, c spool.Config) *spool.Spool {
	t.Helper()
	s, err := spool.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func batch(k int, variant string) accept.Submission {
	id := identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: uint64(10 * k), SeqEnd: uint64(10*k + 9)}
	f := []byte(fmt.Sprintf("frame %d %s", k, variant))
	return accept.Submission{Frame: f, Identity: id, SHA256: identity.Sum(f), Records: 10, MaxTime: 1, SpoolID: "spool-1"}
}

func mustAccept(t testing.TB, a accept.Acceptor, s accept.Submission, want accept.Outcome) accept.Result {
	t.Helper()
	r, err := a.Accept(t.Context(), s)
	if err != nil || r.Outcome != want {
		t.Fatalf("%s: %s, %v; want %s", s.Identity, r.Outcome, err, want)
	}
	return r
}

func land(t testing.TB, s *spool.Spool) {
	t.Helper()
	l := spool.Lander{Spool: s, Parallel: 1}
	if err := l.Land(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func inStore(t testing.TB, s *mem.Store, sub accept.Submission) bool {
	t.Helper()
	raw, _, err := s.Get(context.Background(), layout.Accepted(sub.Identity), objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return false
	}
	m, perr := accept.ParseManifest(raw)
	b, _, berr := s.Get(context.Background(), layout.Blob(sub.SHA256, 0), objstore.GetOptions{})
	if e := errors.Join(err, perr, berr); e != nil {
		t.Fatal(e)
	}
	return m.FrameSHA256 == sub.SHA256 && string(b) == string(sub.Frame)
}

func TestAcceptReadLand(t *testing.T) {
	st := mem.New(nil)
	dir := t.TempDir()
	c := config(t, dir, nil, target(t, st, "c1"))
	var landed []string
	c.Events.Landed = func(id identity.Batch, o accept.Outcome) {
		landed = append(landed, fmt.Sprintf("%d %s", id.SeqStart, o))
	}
	s := open(t, c)
	defer s.Close()
	for _, k := range []int{2, 0, 1} {
		mustAccept(t, s, batch(k, "a"), accept.Accepted)
	}
	mustAccept(t, s, batch(1, "a"), accept.Duplicate)
	if st.Len() != 0 {
		t.Error("the store was written before the landing")
	}
	frame, m, err := s.Read(batch(1, "a").Identity)
	if err != nil || string(frame) != string(batch(1, "a").Frame) || m.FrameSHA256 != batch(1, "a").SHA256 {
		t.Errorf("read: %q, %v", frame, err)
	}
	sum := uint64(0)
	s.Ranges(batch(0, "").Identity.BootOf(), func(start, end uint64) { sum += start + end })
	s.Ranges(identity.Boot{Agent: "agent-1", Boot: "other"}, func(start, _ uint64) { sum += 1000 })
	if sum != 0+9+10+19+20+29 {
		t.Errorf("ranges add up to %d", sum)
	}
	if l := s.List(); len(l) != 3 || l[0].Identity.SeqStart != 20 || l[2].Identity.SeqStart != 10 {
		t.Errorf("list: %v", l)
	}
	if _, err := spool.Open(c); err == nil {
		t.Error("two processes have the spool")
	}
	land(t, s)
	if got := strings.Join(landed, ","); got != "20 accepted,0 accepted,10 accepted" {
		t.Errorf("landed %s, want the oldest first", got)
	}
	for k := range 3 {
		if !inStore(t, st, batch(k, "a")) {
			t.Errorf("batch %d is not in the store", k)
		}
	}
	if x := s.Stats(); x.Batches != 0 || x.Bytes != 0 || x.Oldest != 0 {
		t.Errorf("stats after landing: %+v", x)
	}
	if _, _, err := s.Read(batch(1, "a").Identity); !errors.Is(err, spool.ErrNotFound) {
		t.Errorf("read after landing: %v", err)
	}
}

// An identity keeps its one hash after it left the spool, across restarts too.
func TestLandedIdentityIsDecidedByTheStore(t *testing.T) {
	st := mem.New(nil)
	dir := t.TempDir()
	c := config(t, dir, nil, target(t, st, "c1"))
	s := open(t, c)
	mustAccept(t, s, batch(5, "a"), accept.Accepted)
	land(t, s)
	for range 2 {
		mustAccept(t, s, batch(5, "a"), accept.Duplicate)
		mustAccept(t, s, batch(5, "b"), accept.Conflict)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, c)
	}
	mustAccept(t, s, batch(6, "a"), accept.Accepted) // above the watermark: local
	if inStore(t, st, batch(6, "a")) {
		t.Error("a new range went to the store")
	}
	s.Close()
}

func TestConflictInTheSpool(t *testing.T) {
	st := mem.New(nil)
	c := config(t, t.TempDir(), nil, target(t, st, "c1"))
	parked := 0
	c.Events.Parked = func(identity.Batch, identity.Digest, error) { parked++ }
	s := open(t, c)
	a, b := batch(1, "a"), batch(1, "b")
	mustAccept(t, s, a, accept.Accepted)
	for range 2 {
		r := mustAccept(t, s, b, accept.Conflict)
		if r.Manifest.FrameSHA256 != a.SHA256 || r.QuarantineKey != "" { // its record is written at the landing
			t.Errorf("conflict: %+v", r)
		}
		s.Close()
		s = open(t, c)
	}
	defer s.Close()
	if x := s.Stats(); x.Quarantined != 1 || x.Batches != 1 {
		t.Errorf("stats: %+v", x)
	}
	land(t, s) // the winner
	land(t, s) // the loser, which the store now quarantines
	if !inStore(t, st, a) {
		t.Error("the winner is not in the store")
	}
	for _, key := range []string{layout.Quarantine(b.Identity, b.SHA256), layout.Blob(b.SHA256, 0)} {
		if _, err := st.Head(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	if x := s.Stats(); parked != 1 || x.Quarantined != 0 || x.Bytes == 0 {
		t.Errorf("%d parked, stats %+v", parked, x)
	}
}

// An acceptance elsewhere is found by landing: a conflict is parked and reported, and nothing is lost.
func TestLandingFindsAnotherAcceptance(t *testing.T) {
	st := mem.New(nil)
	dir := t.TempDir()
	c := config(t, dir, nil, target(t, st, "c1"))
	var cause []error
	c.Events.Parked = func(_ identity.Batch, _ identity.Digest, err error) { cause = append(cause, err) }
	s := open(t, c)
	defer s.Close()
	lost, same, clone := batch(1, "a"), batch(2, "a"), batch(3, "a")
	clone.Identity.Boot = "boot-2"
	for _, x := range []accept.Submission{lost, same, clone} {
		mustAccept(t, s, x, accept.Accepted)
	}
	other := target(t, st, "c2")
	mustAccept(t, other, batch(1, "b"), accept.Accepted)
	mustAccept(t, other, same, accept.Accepted)
	taken := batch(9, "x")
	taken.Identity.Boot, taken.SpoolID = "boot-2", "spool-2"
	mustAccept(t, other, taken, accept.Accepted)
	land(t, s)
	var refused *accept.RefusedError
	if len(cause) != 2 || cause[0] != nil || !errors.As(cause[1], &refused) {
		t.Errorf("parked: %v", cause)
	}
	for _, x := range []accept.Submission{lost, clone} {
		found, _ := filepath.Glob(filepath.Join(dir, "conflicts", "*", "*", "*", x.SHA256.String()+".lmspool"))
		if len(found) != 1 {
			t.Errorf("%s is not in the folder conflicts", x.Identity)
			continue
		}
		if raw, err := os.ReadFile(found[0]); err != nil || !strings.HasSuffix(string(raw), string(x.Frame)) {
			t.Errorf("%s: the bytes are not there (%v)", x.Identity, err)
		}
	}
	if s.Stats().Batches != 0 {
		t.Error("something still waits to land")
	}
}

func TestSpoolIsBounded(t *testing.T) {
	st := mem.New(nil)
	for name, limit := range map[string]func(*spool.Config){
		"bytes":   func(c *spool.Config) { c.MaxBytes = 3 * 8192 },
		"batches": func(c *spool.Config) { c.MaxBatches = 3 },
	} {
		c := config(t, t.TempDir(), nil, target(t, st, "c1"))
		limit(&c)
		s := open(t, c)
		for k := range 3 {
			mustAccept(t, s, batch(k, name), accept.Accepted)
		}
		for range 2 {
			_, err := s.Accept(t.Context(), batch(3, name))
			var retry *accept.RetryError
			if !errors.As(err, &retry) || retry.Reason != accept.ReasonSpoolFull || retry.After <= 0 {
				t.Errorf("%s: %v", name, err)
			}
			s.Close()
			s = open(t, c) // what is there is charged again
		}
		mustAccept(t, s, batch(2, name), accept.Duplicate) // needs no room
		s.Close()
	}
}

func TestStoreDownKeepsTheOrder(t *testing.T) {
	st := mem.New(nil)
	down := &outage{Acceptor: target(t, st, "c1"), down: true}
	s := open(t, config(t, t.TempDir(), nil, down))
	defer s.Close()
	for k := range 4 {
		mustAccept(t, s, batch(k, "a"), accept.Accepted)
	}
	l := spool.Lander{Spool: s, Parallel: 1}
	if err := l.Land(t.Context()); err == nil {
		t.Error("landed in an outage")
	}
	if s.Stats().Batches != 4 {
		t.Error("a batch is gone")
	}
	down.down = false
	land(t, s)
	if fmt.Sprint(down.seen) != "[0 10 20 30]" {
		t.Errorf("landed in the order %v", down.seen)
	}
}

type outage struct {
	accept.Acceptor
	down bool
	seen []uint64
}

func (o *outage) Accept(ctx context.Context, s accept.Submission) (accept.Result, error) {
	if o.down {
		return accept.Result{}, &accept.RetryError{Reason: accept.ReasonStoreUnavailable, Err: errors.New("outage")}
	}
	o.seen = append(o.seen, s.Identity.SeqStart)
	return o.Acceptor.Accept(ctx, s)
}

func TestBootClaimIsLocal(t *testing.T) {
	c := config(t, t.TempDir(), nil, target(t, mem.New(nil), "c1"))
	s := open(t, c)
	mustAccept(t, s, batch(0, "a"), accept.Accepted)
	for range 2 {
		x := batch(1, "a")
		x.SpoolID = ""
		_, err := s.Accept(t.Context(), x)
		var refused *accept.RefusedError
		if !errors.As(err, &refused) || refused.Reason != accept.ReasonBootIDClash {
			t.Errorf("clone: %v", err)
		}
		s.Close()
		s = open(t, c)
	}
	s.Close()
}

func TestLongestAgentID(t *testing.T) {
	c := config(t, t.TempDir(), nil, target(t, mem.New(nil), "c1"))
	s := open(t, c)
	x := batch(0, "a")
	x.Identity.Agent = strings.Repeat("ä", identity.MaxAgentIDBytes/2)
	x.Identity.Boot = strings.Repeat("b", identity.MaxBootIDBytes)
	mustAccept(t, s, x, accept.Accepted)
	s.Close()
	s = open(t, c)
	defer s.Close()
	mustAccept(t, s, x, accept.Duplicate)
}

// TestDamagedFiles: a damaged head is set aside at the start, a damaged frame is never served or landed.
func TestDamagedFiles(t *testing.T) {
	st := mem.New(nil)
	dir := t.TempDir()
	c := config(t, dir, nil, target(t, st, "c1"))
	var corrupt []string
	c.Events.Corrupt = func(path string, _ error) { corrupt = append(corrupt, path) }
	s := open(t, c)
	for k := range 3 {
		mustAccept(t, s, batch(k, "a"), accept.Accepted)
	}
	s.Close()
	for k, damage := range map[int]func([]byte) []byte{
		0: func(b []byte) []byte { b[30] ^= 1; return b },       // in the manifest
		1: func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, // in the frame
	} {
		found, _ := filepath.Glob(filepath.Join(dir, "batches", "*", "*", fmt.Sprintf("%020d-*", 10*k)))
		raw, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(found[0], damage(raw), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, c)
	defer s.Close()
	if len(corrupt) != 1 || !strings.HasPrefix(corrupt[0], "corrupt/") {
		t.Errorf("corrupt at the start: %v", corrupt)
	}
	mustAccept(t, s, batch(0, "a"), accept.Accepted) // can be sent again
	if _, _, err := s.Read(batch(1, "a").Identity); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a damaged frame was served: %v", err)
	}
	land(t, s)
	if len(corrupt) != 2 || s.Stats().Batches != 1 {
		t.Errorf("corrupt: %v, %+v", corrupt, s.Stats())
	}
	if inStore(t, st, batch(1, "a")) || !inStore(t, st, batch(0, "a")) || !inStore(t, st, batch(2, "a")) {
		t.Error("the wrong batches landed")
	}
}

// TestFailedSyncEndsAcceptance: after a failed directory sync nothing is acknowledged until a restart.
func TestFailedSyncEndsAcceptance(t *testing.T) {
	f := newDisk()
	c := config(t, "/spool", f, target(t, mem.New(nil), "c1"))
	failed := 0
	c.Events.Failed = func(error) { failed++ }
	s := open(t, c)
	mustAccept(t, s, batch(0, "a"), accept.Accepted)
	broken := true
	f.failed = func(op errorfs.Op) error {
		if broken && op.Kind == errorfs.SyncDir {
			broken = false
			return errPower
		}
		return nil
	}
	for range 2 {
		_, err := s.Accept(t.Context(), batch(1, "a"))
		var retry *accept.RetryError
		if !errors.As(err, &retry) || retry.Reason != accept.ReasonSpoolFailed {
			t.Fatalf("after a failed sync: %v", err)
		}
	}
	if failed != 1 {
		t.Errorf("%d events", failed)
	}
	s.Close()
	s = open(t, c)
	mustAccept(t, s, batch(1, "a"), accept.Duplicate)
	s.Close()
}

// TestPowerLossMatrix cuts the power before and after each operation on the disk, drops
// what was not synced by seed, starts again, and lands: whatever was acknowledged is there.
func TestPowerLossMatrix(t *testing.T) {
	cases := 0
	for cut := 0; ; cut++ {
		finished := false
		for seed := range uint64(6) {
			f, st := newDisk(), mem.New(nil)
			c := config(t, "/spool", f, target(t, st, "c1"))
			acked := map[identity.Batch]accept.Submission{}
			f.failAt, f.done = cut/2, cut%2 == 1
			finished = script(t, c, acked)
			c.FS = f.powerLoss(rand.New(rand.NewPCG(seed, uint64(cut))))
			s, err := spool.Open(c)
			if err != nil {
				t.Fatalf("cut %d, seed %d: %v", cut, seed, err)
			}
			for id, sub := range acked {
				frame, _, err := s.Read(id)
				if !inStore(t, st, sub) && (err != nil || string(frame) != string(sub.Frame)) {
					t.Errorf("cut %d, seed %d: %s was acknowledged and is gone: %v", cut, seed, id, err)
				}
				mustAccept(t, s, sub, accept.Duplicate)
				bad := batch(int(id.SeqStart/10), "other")
				mustAccept(t, s, bad, accept.Conflict)
			}
			land(t, s)
			for id, sub := range acked {
				if !inStore(t, st, sub) {
					t.Errorf("cut %d, seed %d: %s did not land", cut, seed, id)
				}
			}
			s.Close()
			cases++
		}
		if finished {
			break
		}
	}
	t.Logf("%d cases", cases)
}

func script(t *testing.T, c spool.Config, acked map[identity.Batch]accept.Submission) bool {
	s, err := spool.Open(c)
	if err != nil {
		return false
	}
	ok := true
	for _, sub := range []accept.Submission{batch(0, "a"), batch(1, "a"), batch(1, "b"), batch(1, "a"), batch(2, "a")} {
		r, err := s.Accept(t.Context(), sub)
		ok = ok && err == nil
		if err == nil && r.Outcome != accept.Conflict {
			acked[sub.Identity] = sub
		}
	}
	l := spool.Lander{Spool: s, Parallel: 1}
	err = l.Land(t.Context())
	ok = ok && err == nil
	r, err := s.Accept(t.Context(), batch(3, "a"))
	if err == nil && r.Outcome != accept.Conflict {
		acked[r.Manifest.Identity] = batch(3, "a")
	}
	return ok && err == nil
}

// TestRun lands in the background until its context ends.
func TestRun(t *testing.T) {
	st := mem.New(nil)
	c := config(t, t.TempDir(), nil, target(t, st, "c1"))
	landed := make(chan identity.Batch, 200)
	c.Events.Landed = func(id identity.Batch, _ accept.Outcome) { landed <- id }
	c.Clock = run.WallClock{}
	s := open(t, c)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- (&spool.Lander{Spool: s, Interval: time.Millisecond}).Run(ctx) }()
	for k := range 100 {
		mustAccept(t, s, batch(k, "a"), accept.Accepted)
	}
	for range 100 {
		<-landed
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for k := range 100 {
		if !inStore(t, st, batch(k, "a")) {
			t.Errorf("batch %d is not in the store", k)
		}
	}
}

// damage flips the last byte of the one file that matches, or removes the file.
func damage(t testing.TB, remove bool, pattern ...string) {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(pattern...))
	if len(found) != 1 {
		t.Fatalf("%d files match %v", len(found), pattern)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	if err = os.WriteFile(found[0], raw, 0o600); err == nil && remove {
		err = os.Remove(found[0])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDuplicateRestsOnReadableBytes: whatever became of a spooled file, the answer
// "duplicate" is given only when the bytes are there, if need be the sender's; and one
// bad file keeps no other from landing.
func TestDuplicateRestsOnReadableBytes(t *testing.T) {
	for _, remove := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			if remove && restart {
				continue // the spool can't know of a file that is gone
			}
			st := mem.New(nil)
			dir := t.TempDir()
			c := config(t, dir, nil, target(t, st, "c1"))
			reports := 0
			c.Events.Corrupt = func(string, error) { reports++ }
			s := open(t, c)
			for k := range 3 {
				mustAccept(t, s, batch(k, "a"), accept.Accepted)
			}
			mustAccept(t, s, batch(0, "b"), accept.Conflict)
			damage(t, remove, dir, "batches", "*", "*", fmt.Sprintf("%020d-*", 0))
			damage(t, remove, dir, "quarantine", "*", "*", "*", "*")
			if restart {
				s.Close()
				s = open(t, c)
			}
			land(t, s)
			land(t, s)
			if reports != 1 || !inStore(t, st, batch(1, "a")) || !inStore(t, st, batch(2, "a")) || inStore(t, st, batch(0, "a")) {
				t.Errorf("removed %v, restart %v: %d reports, or the wrong batches landed", remove, restart, reports)
			}
			// Its hash is known: other bytes still lose, the same bytes mend it.
			mustAccept(t, s, batch(0, "b"), accept.Conflict)
			mustAccept(t, s, batch(0, "a"), accept.Duplicate)
			if b, _, err := s.Read(batch(0, "a").Identity); err != nil || string(b) != string(batch(0, "a").Frame) {
				t.Errorf("after a duplicate: %q, %v", b, err)
			}
			land(t, s)
			if !inStore(t, st, batch(0, "a")) || s.Stats() != (spool.Stats{Bytes: s.Stats().Bytes, MaxBytes: 4 << 30}) {
				t.Errorf("not landed: %+v", s.Stats())
			}
			if _, err := st.Head(t.Context(), layout.Quarantine(batch(0, "b").Identity, batch(0, "b").SHA256)); err != nil {
				t.Errorf("the loser's record: %v", err)
			}
			s.Close()
		}
	}
}

// TestClashFoundAtLandingEndsTheBoot: once the store has said that a boot is another
// spool's, its sender is told, and the folder of refused frames grows no more.
func TestClashFoundAtLandingEndsTheBoot(t *testing.T) {
	st := mem.New(nil)
	taken := batch(0, "x")
	taken.SpoolID = "spool-2"
	mustAccept(t, target(t, st, "c2"), taken, accept.Accepted)
	c := config(t, t.TempDir(), nil, target(t, st, "c1"))
	s := open(t, c)
	mustAccept(t, s, batch(5, "a"), accept.Accepted)
	land(t, s)
	for range 2 {
		_, err := s.Accept(t.Context(), batch(6, "a"))
		var refused *accept.RefusedError
		if !errors.As(err, &refused) || refused.Reason != accept.ReasonBootIDClash {
			t.Errorf("after the clash: %v", err)
		}
		if err := s.ClaimBoot(t.Context(), batch(6, "a").Identity.BootOf(), "spool-1"); !errors.As(err, &refused) {
			t.Errorf("claim: %v", err)
		}
		s.Close()
		s = open(t, c)
	}
	other := batch(7, "a")
	other.Identity.Boot = "boot-2"
	mustAccept(t, s, other, accept.Accepted)
	s.Close()
}

// refuses is a store that takes no key of one boot.
type refuses struct {
	accept.Store
	boot string
}

func (r refuses) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if strings.Contains(key, "/boot="+r.boot) {
		return objstore.Info{}, objstore.ErrInvalid
	}
	return r.Store.Create(ctx, key, body, o)
}

// TestOneRefusedBatchHoldsUpNoOther: what the store can't take stays, the rest lands.
func TestOneRefusedBatchHoldsUpNoOther(t *testing.T) {
	st := mem.New(nil)
	c := config(t, t.TempDir(), nil, target(t, refuses{st, layout.HexText("boot-0")}, "c1"))
	s := open(t, c)
	defer s.Close()
	for k := range 70 {
		x := batch(k, "a")
		if k < 3 {
			x.Identity.Boot = "boot-0"
		}
		mustAccept(t, s, x, accept.Accepted)
	}
	land(t, s)
	if n := s.Stats().Batches; n != 3 || !inStore(t, st, batch(69, "a")) {
		t.Errorf("%d batches have not landed", n)
	}
}

// smallDisk is the machine's file system with room for so many bytes and files of ours.
type smallDisk struct {
	vfs.FS       // of the machine
	root         string
	bytes, files int64
}

func (d smallDisk) used() (bytes, files int64) {
	_ = filepath.Walk(d.root, func(_ string, i os.FileInfo, err error) error {
		if err == nil && !i.IsDir() {
			bytes += (i.Size() + 4095) / 4096 * 4096
			files++
		}
		return nil
	})
	return bytes, files
}

func (d smallDisk) Free(string) (bytes, files int64, err error) {
	b, f := d.used()
	return d.bytes - b, d.files - f, nil
}

func (d smallDisk) Create(path string) (vfs.File, error) {
	if _, files, _ := d.Free(path); files < 1 {
		return nil, syscall.ENOSPC
	}
	f, err := d.FS.Create(path)
	return smallFile{f, d}, err
}

type smallFile struct {
	vfs.File
	disk smallDisk
}

func (f smallFile) WriteAt(p []byte, off int64) (int, error) {
	if bytes, _, _ := f.disk.Free(""); bytes < int64(len(p)) {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

// TestFullDiskDrains: a disk that is smaller than the spool's bound is not filled to
// the end, because landing needs room to free any.
func TestFullDiskDrains(t *testing.T) {
	for name, d := range map[string]smallDisk{
		"bytes": {bytes: 2 << 20, files: 1 << 30},
		"files": {bytes: 1 << 40, files: 300},
	} {
		st := mem.New(nil)
		d.FS, d.root = vfs.OS, t.TempDir()
		c := config(t, d.root, d, target(t, st, "c1"))
		s := open(t, c)
		accepted := 0
		var full *accept.RetryError
		for k := 0; full == nil; k++ {
			x := batch(k, strings.Repeat("x", 100<<10))
			x.Identity.Boot = fmt.Sprint(k % 3) // landing writes a watermark of each
			if _, err := s.Accept(t.Context(), x); err == nil {
				accepted++
			} else if !errors.As(err, &full) || full.Reason != accept.ReasonSpoolFull {
				t.Fatalf("%s: %v", name, err)
			}
		}
		land(t, s)
		if n := s.Stats().Batches; n != 0 || accepted < 5 {
			t.Errorf("%s: %d of %d batches are left in the spool", name, n, accepted)
		}
		mustAccept(t, s, batch(1<<20, "again"), accept.Accepted)
		s.Close()
	}
}

// A wrong bucket in the settings must not cost the batches that wait for the right one.
func TestSpoolOfAnotherAuthorityIsNotTouched(t *testing.T) {
	st := mem.New(nil)
	c := config(t, t.TempDir(), nil, target(t, st, "c1"))
	s := open(t, c)
	mustAccept(t, s, batch(1, "a"), accept.Accepted)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wrong := c
	wrong.AuthorityID = "authority-2"
	for range 2 {
		if s, err := spool.Open(wrong); !errors.Is(err, spool.ErrOtherAuthority) {
			t.Fatalf("%v, %v", s, err)
		}
	}
	s = open(t, c)
	mustAccept(t, s, batch(1, "a"), accept.Duplicate)
	land(t, s)
	if !inStore(t, st, batch(1, "a")) {
		t.Error("it did not land")
	}
}

// TestBatchOfANewerReleaseIsNotTouched: after a downgrade the spool holds acknowledged batches
// that this release can't read. They are not damaged: set aside, they would never land.
func TestBatchOfANewerReleaseIsNotTouched(t *testing.T) {
	st := mem.New(nil)
	c := config(t, t.TempDir(), nil, target(t, st, "c1"))
	s := open(t, c)
	mustAccept(t, s, batch(1, "a"), accept.Accepted)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := batchFile(t, c.Dir)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, newer := range map[string][]byte{
		"manifest": bytes.Replace(was, []byte("accepted_batch.v1"), []byte("accepted_batch.v9"), 1),
		"file":     bytes.Replace(was, []byte("LMSPOOL1"), []byte("LMSPOOL2"), 1),
	} {
		if bytes.Equal(newer, was) {
			t.Fatal(name)
		}
		if err := os.WriteFile(path, spool.Reseal(newer), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if s, err := spool.Open(c); !errors.Is(err, record.ErrNewerVersion) || errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("%s: %v, %v", name, s, err)
			}
		}
	}
	if err := os.WriteFile(path, was, 0o600); err != nil { // the release that wrote it is back
		t.Fatal(err)
	}
	s = open(t, c)
	land(t, s)
	if !inStore(t, st, batch(1, "a")) {
		t.Error("it did not land")
	}
}

// batchFile is the one file of an accepted batch below dir.
func batchFile(t *testing.T, dir string) (path string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "batches"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			path = p
		}
		return err
	})
	if err != nil || path == "" {
		t.Fatal(path, err)
	}
	return path
}
