package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func testOptions() Options {
	at := time.Unix(1_700_000_000, 0)
	return Options{Agent: "agent/ä", MaxBytes: 1 << 20, SegmentBytes: 64 << 10, Policy: RefuseNew,
		Now: func() time.Time { at = at.Add(time.Second); return at }, Log: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, fsys vfs.FS, o Options) *Queue {
	t.Helper()
	q, err := Open(fsys, "/q", o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// frameOf is what a test queues: any bytes that depend on the identity and a salt.
func frameOf(id identity.Batch, salt string, n int) []byte {
	b := []byte(fmt.Sprintf("%s|%s|", id, salt))
	for len(b) < n {
		b = append(b, byte(len(b)*31))
	}
	return b
}

func part(records uint64, salt string, n int) Part {
	return Part{Records: records, Encode: func(id identity.Batch) ([]byte, error) { return frameOf(id, salt, n), nil }}
}

func mustAppend(t *testing.T, q *Queue, parts ...Part) []Entry {
	t.Helper()
	es, err := q.Append(parts...)
	if err != nil {
		t.Fatal(err)
	}
	return es
}

func wantFrame(t *testing.T, q *Queue, e Entry, want []byte) {
	t.Helper()
	got, err := q.Frame(e.No)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("frame of %s: %d bytes, %v; want %d bytes", e.Identity, len(got), err, len(want))
	}
}

func TestAppendAckReopen(t *testing.T) {
	fsys := newDisk(1)
	q := open(t, fsys, testOptions())
	boot, spool, next := q.Boot()
	if next != 1 || q.Recovered().NewBoot == "" {
		t.Fatalf("new queue: next %d, recovered %+v", next, q.Recovered())
	}
	es := mustAppend(t, q, part(10, "a", 100), part(5, "b", 200))
	es = append(es, mustAppend(t, q, part(1, "c", 300))...)
	if es[0].Identity != (identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 10}) ||
		es[1].Identity.SeqStart != 11 || es[2].Identity.SeqEnd != 16 {
		t.Fatalf("identities %v", es)
	}
	if err := q.Ack(es[1].No); err != nil {
		t.Fatal(err)
	}
	if err := q.Ack(es[1].No); !errors.Is(err, ErrNotFound) {
		t.Fatalf("second ack: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}

	q = open(t, fsys, testOptions())
	if b, s, n := q.Boot(); b != boot || s != spool || n != 17 || q.Recovered().NewBoot != "" {
		t.Fatalf("reopened: %v %q %d %+v", b, s, n, q.Recovered())
	}
	list := q.Pending(0, 10)
	if len(list) != 2 || list[0] != es[0] || list[1] != es[2] {
		t.Fatalf("pending %v, want the first and third of %v", list, es)
	}
	wantFrame(t, q, list[0], frameOf(es[0].Identity, "a", 100))
	if got := q.Pending(list[0].No, 10); len(got) != 1 || got[0] != es[2] {
		t.Fatalf("pending after the first: %v", got)
	}
	if e := mustAppend(t, q, part(3, "d", 1))[0]; e.Identity.SeqStart != 17 {
		t.Fatalf("next batch is %s", e.Identity)
	}
}

// An Encode that fails, and a write that fails, leave the numbers free and the log whole.
func TestFailedAppendLeavesNoTrace(t *testing.T) {
	fsys := newDisk(2)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(1, "a", 50))
	boom := errors.New("boom")
	if _, err := q.Append(part(2, "x", 50), Part{Records: 1, Encode: func(identity.Batch) ([]byte, error) { return nil, boom }}); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	for _, op := range []errorfs.Kind{errorfs.Write, errorfs.Sync} {
		fsys.fail = func(o errorfs.Kind, _ string) error {
			if o == op {
				fsys.fail = nil
				return boom
			}
			return nil
		}
		if _, err := q.Append(part(2, "y", 5000)); !errors.Is(err, boom) {
			t.Fatalf("failing %s: got %v", op, err)
		}
		e := mustAppend(t, q, part(2, "z"+string(op), 40))[0]
		wantFrame(t, q, e, frameOf(e.Identity, "z"+string(op), 40))
	}
	if _, _, next := q.Boot(); next != 6 {
		t.Fatalf("next is %d, want 6", next)
	}
	q = open(t, fsys.crash(), testOptions())
	if r := q.Recovered(); r.Entries != 3 || r.CutBytes != 0 {
		t.Fatalf("recovered %+v", r)
	}
}

// While the tail can't be repaired nothing is queued, so that no number is used twice.
func TestBrokenTailRefusesUntilRepaired(t *testing.T) {
	fsys := newDisk(3)
	q := open(t, fsys, testOptions())
	mustAppend(t, q, part(1, "a", 50))
	boom := errors.New("boom")
	fsys.fail = func(op errorfs.Kind, _ string) error {
		if op == errorfs.Sync || op == errorfs.Truncate {
			return boom
		}
		return nil
	}
	for range 3 {
		if _, err := q.Append(part(1, "lost", 50)); !errors.Is(err, boom) {
			t.Fatalf("got %v", err)
		}
	}
	fsys.fail = nil
	e := mustAppend(t, q, part(1, "kept", 50))[0]
	q = open(t, fsys.crash(), testOptions())
	list := q.Pending(0, 10)
	if len(list) != 2 || list[1].Identity != e.Identity {
		t.Fatalf("pending %v", list)
	}
	wantFrame(t, q, list[1], frameOf(e.Identity, "kept", 50))
}

// What only the page cache has after a kill is durable once Open has shown it.
func TestOpenSyncsWhatItFinds(t *testing.T) {
	fsys := newDisk(14)
	q := open(t, fsys, testOptions())
	fsys.mem.Lie = func(o crashfs.Op) bool { return o.Kind == crashfs.Sync }
	mustAppend(t, q, part(1, "a", 500))
	fsys.mem.Lie = nil
	fsys = fsys.kill() // written, not synced, then killed
	list := open(t, fsys, testOptions()).Pending(0, 10)
	if len(list) != 1 {
		t.Fatalf("pending %v", list)
	}
	for range 20 {
		q = open(t, fsys.crash(), testOptions())
		wantFrame(t, q, list[0], frameOf(list[0].Identity, "a", 500))
	}
}

func TestTornTailAtEveryByte(t *testing.T) {
	fsys := newDisk(4)
	q := open(t, fsys, testOptions())
	first := mustAppend(t, q, part(2, "a", 60))[0]
	whole := q.active().size
	mustAppend(t, q, part(3, "b", 70))
	if err := q.Ack(first.No); err != nil {
		t.Fatal(err)
	}
	name := q.active().name
	full := fsys.read(t, name)
	for cut := int(whole); cut <= len(full); cut++ {
		torn := newDisk(uint64(cut))
		if err := errors.Join(torn.Mkdir("/q"), vfs.WriteFile(torn, name, full[:cut])); err != nil {
			t.Fatal(err)
		}
		q := open(t, torn, testOptions())
		list := q.Pending(0, 10)
		_, _, next := q.Boot()
		switch {
		case len(list) == 0 || q.Recovered().NewBoot != "":
			t.Fatalf("cut at %d of %d: %v %+v", cut, len(full), list, q.Recovered())
		case next == 3:
			wantFrame(t, q, list[0], frameOf(first.Identity, "a", 60))
		case next == 6:
			wantFrame(t, q, list[len(list)-1], frameOf(list[len(list)-1].Identity, "b", 70))
		default:
			t.Fatalf("cut at %d: next is %d", cut, next)
		}
		// What follows is whole again.
		e := mustAppend(t, q, part(1, "c", 10))[0]
		if e.Identity.SeqStart != next {
			t.Fatalf("cut at %d: %s after %d", cut, e.Identity, next)
		}
		if r := open(t, torn.kill(), testOptions()).Recovered(); r.CutBytes != 0 || r.NewBoot != "" {
			t.Fatalf("cut at %d: second recovery %+v", cut, r)
		}
	}
}

// Damage before the tail's end may hide numbers that were sent: a new boot, and the bytes kept.
func TestDamageInsideTailStartsANewBoot(t *testing.T) {
	fsys := newDisk(5)
	q := open(t, fsys, testOptions())
	boot, _, _ := q.Boot()
	mustAppend(t, q, part(1, "a", 60))
	at := q.active().size
	mustAppend(t, q, part(1, "b", 60))
	mustAppend(t, q, part(1, "c", 60))
	fsys.flip(t, q.active().name, at+recordHeader+40, 1)
	disk := fsys.kill()
	q = open(t, disk, testOptions())
	if b, _, next := q.Boot(); b == boot || next != 1 || len(q.Pending(0, 9)) != 1 {
		t.Fatalf("boot %v next %d pending %v", b, next, q.Pending(0, 9))
	}
	if !strings.Contains(disk.list(t), ".cut") {
		t.Fatalf("the tail is not kept:\n%s", disk.list(t))
	}
}

// Damage in a sealed segment costs that record alone; the file is kept when it is done.
func TestDamageInSealedSegment(t *testing.T) {
	fsys := newDisk(6)
	o := testOptions()
	o.SegmentBytes = 8 << 10
	q := open(t, fsys, o)
	for range 12 {
		mustAppend(t, q, part(1, "a", 3000))
	}
	s := q.segments[0]
	fsys.flip(t, s.name, q.entries[0].off+100, 1)
	boot, _, next := q.Boot()
	disk := fsys.kill()
	q = open(t, disk, o)
	if r := q.Recovered(); r.Damaged != 1 || r.Entries != 11 || r.NewBoot != "" {
		t.Fatalf("recovered %+v", r)
	}
	if b, _, n := q.Boot(); b != boot || n != next {
		t.Fatalf("boot %v next %d", b, n)
	}
	for _, e := range q.Pending(0, 100) {
		if err := q.Ack(e.No); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(disk.list(t), filepath.Base(s.name)+".corrupt") {
		t.Fatalf("damaged segment is gone:\n%s", disk.list(t))
	}
}

func TestSegmentsAreRemovedAndNumbersStay(t *testing.T) {
	fsys := newDisk(7)
	o := testOptions()
	o.SegmentBytes = 8 << 10
	q := open(t, fsys, o)
	for range 40 {
		e := mustAppend(t, q, part(7, "a", 3000))[0]
		if err := q.Ack(e.No); err != nil {
			t.Fatal(err)
		}
	}
	if n := q.Stats().Segments; n > 2 {
		t.Fatalf("%d segments for nothing pending", n)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q = open(t, fsys, o)
	if _, _, next := q.Boot(); next != 281 || q.Stats().Pending != 0 {
		t.Fatalf("next %d, pending %d", next, q.Stats().Pending)
	}
}

// A batch that stays pending must not pin the disk behind it.
func TestStuckEntryIsRelocated(t *testing.T) {
	fsys := newDisk(8)
	o := testOptions()
	o.SegmentBytes, o.MaxBytes = 8<<10, 64<<10
	q := open(t, fsys, o)
	stuck := mustAppend(t, q, part(1, "stuck", 1000))[0]
	for range 200 {
		e := mustAppend(t, q, part(1, "a", 3000))[0]
		if err := q.Ack(e.No); err != nil {
			t.Fatal(err)
		}
	}
	if b := q.Stats().DiskBytes; b > o.MaxBytes {
		t.Fatalf("disk %d", b)
	}
	for i, fsys := range []*disk{fsys.kill(), fsys.crash()} {
		q := open(t, fsys, o)
		list := q.Pending(0, 10)
		if len(list) == 0 || list[0] != stuck {
			t.Fatalf("%d: pending %v, want %v first", i, list, stuck)
		}
		wantFrame(t, q, list[0], frameOf(stuck.Identity, "stuck", 1000))
		if _, _, next := q.Boot(); next != 202 {
			t.Fatalf("%d: next %d", i, next)
		}
	}
}

func TestRefuseNew(t *testing.T) {
	o := testOptions()
	o.SegmentBytes, o.MaxBytes = 8<<10, 32<<10
	q := open(t, newDisk(9), o)
	var queued []Entry
	for {
		es, err := q.Append(part(1, "a", 3000))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		queued = append(queued, es...)
	}
	if st := q.Stats(); st.DiskBytes > o.MaxBytes || st.Pending != len(queued) || len(queued) < 8 {
		t.Fatalf("%+v with %d queued", st, len(queued))
	}
	for _, e := range queued {
		wantFrame(t, q, e, frameOf(e.Identity, "a", 3000))
		if err := q.Ack(e.No); err != nil {
			t.Fatal(err)
		}
	}
	e := mustAppend(t, q, part(1, "b", 3000))[0]
	if e.Identity.SeqStart != queued[len(queued)-1].Identity.SeqEnd+1 {
		t.Fatalf("a refused batch took numbers: %s", e.Identity)
	}
}

func TestDropOldest(t *testing.T) {
	o := testOptions()
	o.SegmentBytes, o.MaxBytes, o.Policy = 8<<10, 32<<10, DropOldest
	var dropped []Entry
	o.OnDrop = func(e Entry) { dropped = append(dropped, e) }
	fsys := newDisk(10)
	q := open(t, fsys, o)
	for range 50 {
		mustAppend(t, q, part(1, "a", 3000))
		if b := q.Stats().DiskBytes; b > o.MaxBytes {
			t.Fatalf("disk %d", b)
		}
	}
	list := q.Pending(0, 100)
	if len(list)+len(dropped) != 50 || list[0].No != dropped[len(dropped)-1].No+1 || list[len(list)-1].Identity.SeqEnd != 50 {
		t.Fatalf("%d pending from %v, %d dropped", len(list), list[0], len(dropped))
	}
	if got := open(t, fsys.kill(), o).Pending(0, 100); len(got) != len(list) || got[0] != list[0] {
		t.Fatalf("after reopening %d pending from %v", len(got), got[0])
	}
}

// A disk that is full by others behaves like the bound.
func TestNoSpace(t *testing.T) {
	for _, policy := range []Policy{RefuseNew, DropOldest} {
		t.Run(string(policy), func(t *testing.T) {
			o := testOptions()
			o.SegmentBytes, o.Policy = 8<<10, policy
			dropped := 0
			o.OnDrop = func(Entry) { dropped++ }
			fsys := newDisk(11)
			q := open(t, fsys, o)
			for range 6 {
				mustAppend(t, q, part(1, "a", 3000))
			}
			free := 0 // writes that fit after each removal
			fsys.fail = func(op errorfs.Kind, name string) error {
				switch {
				case op == errorfs.Remove:
					free += 2
				case op == errorfs.Write && free == 0:
					return fmt.Errorf("write %s: %w", name, syscall.ENOSPC)
				case op == errorfs.Write:
					free--
				}
				return nil
			}
			es, err := q.Append(part(1, "new", 3000))
			switch policy {
			case RefuseNew:
				if !errors.Is(err, ErrFull) || dropped != 0 || q.Stats().Pending != 6 {
					t.Fatalf("%v, %d dropped, %+v", err, dropped, q.Stats())
				}
			case DropOldest:
				if err != nil || dropped == 0 || q.Stats().Pending != 7-dropped {
					t.Fatalf("%v, %d dropped, %+v", err, dropped, q.Stats())
				}
				wantFrame(t, q, es[0], frameOf(es[0].Identity, "new", 3000))
			}
			fsys.fail = nil
			e := mustAppend(t, q, part(1, "later", 3000))[0]
			wantFrame(t, q, e, frameOf(e.Identity, "later", 3000))
		})
	}
}

// TestNoSpaceForDone: a disk that is full by the queue itself, far below its bound, takes
// batches again once those that filled it are acknowledged; after a start in that state, too.
func TestNoSpaceForDone(t *testing.T) {
	for _, policy := range []Policy{RefuseNew, DropOldest} {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reopened %t", policy, reopen), func(t *testing.T) {
				o := testOptions()
				o.SegmentBytes, o.MaxBytes, o.Policy = 1<<20, 8<<20, policy
				dropped := 0
				o.OnDrop = func(Entry) { dropped++ }
				mem := newDisk(14)
				// limited is the disk with twelve blocks. What is only overwritten needs none.
				limited := func() vfs.FS {
					return errorfs.Wrap(mem, func(op errorfs.Op) errorfs.Fault {
						if op.Kind != errorfs.Write || strings.Contains(op.Name, skipName) {
							return errorfs.Fault{}
						}
						blocks := (op.Size + 4095) >> 12
						for name := range strings.Lines(mem.list(t)) {
							if name = strings.TrimSpace(name); name != "parked" && name != "dead" {
								blocks += (len(mem.read(t, "/q/"+name)) + 4095) >> 12
							}
						}
						if blocks > 12 {
							return errorfs.Fault{Err: fmt.Errorf("write %s: %w", op.Name, syscall.ENOSPC)}
						}
						return errorfs.Fault{}
					})
				}
				q := open(t, limited(), o)
				for range 20 {
					es, err := q.Append(part(1, "a", 3000))
					if errors.Is(err, ErrFull) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					wantFrame(t, q, es[0], frameOf(es[0].Identity, "a", 3000))
				}
				for _, e := range q.Pending(0, 100) {
					if err := q.Ack(e.No); err != nil && !errors.Is(err, syscall.ENOSPC) {
						t.Fatal(err)
					}
				}
				if reopen {
					mem = mem.kill()
					q = open(t, limited(), o)
					for _, e := range q.Pending(0, 100) { // notes that found no room
						_ = q.Ack(e.No)
					}
				}
				_, _, next := q.Boot()
				before := dropped
				e := mustAppend(t, q, part(1, "b", 3000))[0]
				if e.Identity.SeqStart != next || dropped != before {
					t.Errorf("%s, want %d; %d dropped", e.Identity, next, dropped-before)
				}
				wantFrame(t, q, e, frameOf(e.Identity, "b", 3000))
			})
		}
	}
}

// TestTooManyBatches: pending batches take memory, so their number is bounded, too.
func TestTooManyBatches(t *testing.T) {
	for _, policy := range []Policy{RefuseNew, DropOldest} {
		o := testOptions()
		o.MaxBatches, o.Policy = 10, policy
		q := open(t, newDisk(16), o)
		var last Entry
		for i := range 25 {
			es, err := q.Append(part(1, "a", 10))
			if refused := policy == RefuseNew && i >= 10; refused != errors.Is(err, ErrFull) {
				t.Fatalf("%s, batch %d: %v", policy, i, err)
			}
			if err == nil {
				last = es[0]
			}
			if n := q.Stats().Pending; n > 10 {
				t.Fatalf("%s: %d pending", policy, n)
			}
		}
		wantFrame(t, q, last, frameOf(last.Identity, "a", 10))
		if err := q.Ack(last.No); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, q, part(1, "b", 10))
	}
}

// TestTooLarge: what an empty queue could not hold is refused, and costs nothing that is queued.
func TestTooLarge(t *testing.T) {
	for _, policy := range []Policy{RefuseNew, DropOldest} {
		o := testOptions()
		o.SegmentBytes, o.MaxBytes, o.Policy = 8<<10, 32<<10, policy
		q := open(t, newDisk(15), o)
		mustAppend(t, q, part(1, "a", 3000))
		if _, err := q.Append(part(1, "b", 32<<10)); !errors.Is(err, ErrTooLarge) || errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", policy, err)
		}
		if _, _, next := q.Boot(); q.Stats().Pending != 1 || next != 2 {
			t.Errorf("%s: %d pending, next %d", policy, q.Stats().Pending, next)
		}
	}
}

func TestAsides(t *testing.T) {
	fsys := newDisk(12)
	o := testOptions()
	o.DeadBytes = 500
	q := open(t, fsys, o)
	es := mustAppend(t, q, part(1, "a", 300), part(1, "b", 300), part(1, "c", 300), part(1, "d", 300))
	at := time.Unix(5, 0).UTC()
	parked, err := q.Park(es[1].No, HoldReason{Reason: "IDENTITY_CONFLICT", AcceptedSHA256: "ab", AcceptedAt: &at})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []Entry{es[0], es[2]} {
		if _, err := q.DeadLetter(e.No, HoldReason{Reason: "FRAME_CRC"}); err != nil {
			t.Fatal(err)
		}
	}
	disk := fsys.crash()
	q = open(t, disk, o)
	if got := q.HeldBatches(Parked); len(got) != 1 || got[0].ID != parked.ID || got[0].Reason != "IDENTITY_CONFLICT" ||
		got[0].Identity() != es[1].Identity || !got[0].AcceptedAt.Equal(at) {
		t.Fatalf("parked %+v", got)
	}
	if got := disk.read(t, "/q/parked/"+parked.ID+".lmbatch"); !bytes.Equal(got, frameOf(es[1].Identity, "b", 300)) {
		t.Fatal("parked bytes differ")
	}
	dead := q.HeldBatches(Dead)
	if len(dead) != 1 || dead[0].Identity() != es[2].Identity {
		t.Fatalf("dead letters are over their bound, or the newest went: %+v", dead)
	}
	// Only the notes were unsynced: what comes back is sent again, never lost.
	for _, e := range q.Pending(0, 10) {
		if e.Identity == es[3].Identity {
			continue
		}
		if _, err := q.Park(e.No, HoldReason{Reason: "again"}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := q.Requeue(dead[0].ID)
	if err != nil || e.Identity != es[2].Identity {
		t.Fatalf("requeue: %v %v", e, err)
	}
	wantFrame(t, q, e, frameOf(es[2].Identity, "c", 300))
	if _, _, next := q.Boot(); next != 5 {
		t.Fatalf("next is %d: a requeued batch took numbers", next)
	}
	if err := q.RemoveHeld(Parked, parked.ID); err != nil {
		t.Fatal(err)
	}
	if err := q.RemoveHeld(Parked, parked.ID); !errors.Is(err, ErrNotFound) {
		t.Fatalf("second removal: %v", err)
	}
	if err := q.RemoveHeld(Parked, "../../LOCK"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("path: %v", err)
	}
}

func TestNewBoots(t *testing.T) {
	fsys := newDisk(13)
	o := testOptions()
	q := open(t, fsys, o)
	boot, spool, _ := q.Boot()
	old := mustAppend(t, q, part(9, "a", 100))[0]
	if err := q.NewBoot("clash"); err != nil {
		t.Fatal(err)
	}
	b2, s2, next := q.Boot()
	if b2 == boot || s2 != spool || next != 1 {
		t.Fatalf("new boot %v %q %d", b2, s2, next)
	}
	mustAppend(t, q, part(2, "b", 100))
	for name, change := range map[string]func(*Options){
		"agent": func(o *Options) { o.Agent = "other" },
		"copy":  func(o *Options) { o.Fingerprint[3] = 9 },
	} {
		o := o
		change(&o)
		q := open(t, fsys.crash(), o)
		b3, s3, next := q.Boot()
		if b3.Boot == b2.Boot || b3.Agent != o.Agent || s3 == spool || next != 1 || q.Recovered().NewBoot == "" {
			t.Fatalf("%s: boot %v spool %q next %d", name, b3, s3, next)
		}
		list := q.Pending(0, 10)
		if len(list) != 2 || list[0] != old || list[1].Identity.Boot != b2.Boot || list[1].Spool != spool {
			t.Fatalf("%s: pending %v", name, list)
		}
	}
	if b, _, next := open(t, fsys.kill(), o).Boot(); b != b2 || next != 3 {
		t.Fatalf("reopened: %v %d", b, next)
	}
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "q")
	q, err := Open(vfs.OS, dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(vfs.OS, dir, testOptions()); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, err = Open(vfs.OS, dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Append(part(1, "x", 10)); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Append(part(1, "x", 10)); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
}

// script runs a random mix of calls until the disk crashes or n calls are done. It notes
// what was acknowledged to the caller.
type script struct {
	given map[identity.Batch][]byte // identities that Append gave out, with their bytes
	tried map[identity.Batch][][]byte
	ended map[identity.Batch]bool
}

func (s *script) run(q *Queue, rng *rand.Rand, n int) {
	for i := range n {
		switch list := q.Pending(0, 50); {
		case len(list) > 3 && rng.IntN(3) > 0:
			e := list[rng.IntN(len(list))]
			s.ended[e.Identity] = true // from the call on, even when it fails: it was answered
			switch rng.IntN(5) {
			case 0:
				_, _ = q.Park(e.No, HoldReason{Reason: "x"})
			case 1:
				_, _ = q.DeadLetter(e.No, HoldReason{Reason: "y"})
			default:
				_ = q.Ack(e.No)
			}
		case rng.IntN(12) == 0:
			_ = q.NewBoot("test")
		case rng.IntN(6) == 0 && len(q.HeldBatches(Dead)) > 0:
			if e, err := q.Requeue(q.HeldBatches(Dead)[0].ID); err == nil {
				delete(s.ended, e.Identity)
			}
		default:
			salt := fmt.Sprintf("%d-%d", i, rng.Uint64())
			p := func() Part {
				size := 20 + rng.IntN(1500)
				return Part{Records: 1 + rng.Uint64N(50), Encode: func(id identity.Batch) ([]byte, error) {
					b := frameOf(id, salt, size)
					s.tried[id] = append(s.tried[id], b)
					return b, nil
				}}
			}
			parts := []Part{p()}
			if rng.IntN(4) == 0 {
				parts = append(parts, p())
			}
			es, err := q.Append(parts...)
			if err != nil {
				continue
			}
			for _, e := range es {
				tried := s.tried[e.Identity]
				s.given[e.Identity] = tried[len(tried)-1]
			}
		}
	}
}

// TestCrashAtEverySyscall: power fails at call k of a random history, for every k. What was given
// out is there byte for byte, nothing is there that was not encoded, and no identity ever
// has two frames.
func TestCrashAtEverySyscall(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for seed := range uint64(rounds) {
		for k := 1; ; k++ {
			if !crashOnce(t, seed+100, k) {
				if k < 150 {
					t.Fatalf("seed %d: history has only %d calls", seed, k)
				}
				t.Logf("seed %d: crashed at each of %d calls", seed+100, k-1)
				break
			}
		}
	}
}

// crashOnce reports whether the history was long enough to reach call k.
func crashOnce(t *testing.T, seed uint64, k int) bool {
	t.Helper()
	o := testOptions()
	o.SegmentBytes, o.MaxBytes = 4<<10, 48<<10
	s := &script{given: map[identity.Batch][]byte{}, tried: map[identity.Batch][][]byte{}, ended: map[identity.Batch]bool{}}
	if seed%2 == 1 {
		o.MaxBytes, o.Policy = 16<<10, DropOldest
		o.OnDrop = func(e Entry) { s.ended[e.Identity] = true }
	}
	rng := rand.New(rand.NewPCG(seed, 7))
	fsys := newDisk(seed*1000 + uint64(k))
	fsys.crashAt = k
	if q, err := Open(fsys, "/q", o); err == nil {
		s.run(q, rng, 60)
	}
	reached := fsys.calls >= k
	for range 3 { // and again: crash, go on, crash
		fsys = fsys.crash()
		q, err := Open(fsys, "/q", o)
		if err != nil {
			t.Fatalf("seed %d, call %d: open: %v", seed, k, err)
		}
		if d := q.Recovered().Damaged; d != 0 {
			t.Fatalf("seed %d, call %d: %d sealed records damaged by a mere crash", seed, k, d)
		}
		s.check(t, q, fmt.Sprintf("seed %d, call %d", seed, k))
		s.run(q, rng, 8)
	}
	return reached
}

func (s *script) check(t *testing.T, q *Queue, at string) {
	t.Helper()
	found := map[identity.Batch]bool{}
	for _, e := range q.Pending(0, 1<<20) {
		got, err := q.Frame(e.No)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		if want, ok := s.given[e.Identity]; ok {
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: %s has other bytes than were given out", at, e.Identity)
			}
		} else {
			ok := false
			for _, tried := range s.tried[e.Identity] {
				ok = ok || bytes.Equal(got, tried)
			}
			if !ok {
				t.Fatalf("%s: %s was invented", at, e.Identity)
			}
			s.given[e.Identity] = got // from here on it is given out
		}
		if found[e.Identity] {
			t.Fatalf("%s: %s is there twice", at, e.Identity)
		}
		found[e.Identity] = true
	}
	for _, state := range []State{Parked, Dead} {
		for _, a := range q.HeldBatches(state) {
			frame, err := q.readFile(filepath.Join(q.heldDir(state), a.ID+frameExt), maxBody)
			if err != nil || identity.Sum(frame) != a.FrameSHA256 {
				t.Fatalf("%s: aside %s: %v", at, a.ID, err)
			}
			if want, ok := s.given[a.Identity()]; !ok || !bytes.Equal(frame, want) {
				t.Fatalf("%s: aside %s has other bytes than were given out", at, a.ID)
			}
		}
	}
	boot, _, next := q.Boot()
	for id := range s.given {
		if !found[id] && !s.ended[id] {
			t.Fatalf("%s: %s is lost", at, id)
		}
		if id.BootOf() == boot && id.SeqEnd >= next {
			t.Fatalf("%s: next is %d, but %s was given out", at, next, id)
		}
	}
}

// A dead letter whose bytes are not what was set aside never gets its identity back.
func TestRequeueChecksTheBytes(t *testing.T) {
	fsys := newDisk(1)
	q := open(t, fsys, testOptions())
	e := mustAppend(t, q, part(1, "a", 100))[0]
	dead, err := q.DeadLetter(e.No, HoldReason{Reason: "FRAME_CRC"})
	if err != nil {
		t.Fatal(err)
	}
	fsys.flip(t, "/q/dead/"+dead.ID+".lmbatch", 50, 1)
	if _, err := q.Requeue(dead.ID); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("requeue: %v", err)
	}
	if len(q.Pending(0, 10)) != 0 || len(q.HeldBatches(Dead)) != 1 {
		t.Errorf("pending %v, dead %v", q.Pending(0, 10), q.HeldBatches(Dead))
	}
}

// TestSegmentOfANewerReleaseIsNotTouched: after a downgrade the log has segments that this
// release can't read. They are not damaged: set aside, their batches would never be sent.
func TestSegmentOfANewerReleaseIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	q, err := Open(vfs.OS, dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	e := mustAppend(t, q, part(3, "a", 100))[0]
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	name := segmentName(dir, 1)
	was, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Clone(was)
	newer[len(segmentMagic)-1]++
	n := binary.LittleEndian.Uint32(newer[len(segmentMagic):])
	binary.LittleEndian.PutUint32(newer[n-4:], crc32.Checksum(newer[:n-4], castagnoli))
	if err := os.WriteFile(name, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if q, err := Open(vfs.OS, dir, testOptions()); !errors.Is(err, record.ErrNewerVersion) || errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("%v, %v", q, err)
		}
	}
	if err := os.WriteFile(name, was, 0o600); err != nil { // the release that wrote it is back
		t.Fatal(err)
	}
	if q, err = Open(vfs.OS, dir, testOptions()); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if got := q.Pending(0, 10); len(got) != 1 || got[0].Identity != e.Identity || q.Recovered().NewBoot != "" {
		t.Errorf("pending %v, %+v", got, q.Recovered())
	}
}

// TestQueueAs: a frame that has its identity already is queued once, under no number of this queue, and held bytes
// that are damaged are not given out.
func TestQueueAs(t *testing.T) {
	fsys := newDisk(1)
	q := open(t, fsys, testOptions())
	es := mustAppend(t, q, part(2, "a", 100), part(2, "b", 100))
	held, err := q.Park(es[0].No, HoldReason{Reason: "IDENTITY_CONFLICT"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := q.HeldFrame(Parked, held.ID); err != nil || !bytes.Equal(b, frameOf(es[0].Identity, "a", 100)) {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := q.HeldFrame(Dead, held.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("not held: %v", err)
	}
	own, _, next := q.Boot()
	if err := q.QueueAs(identity.Batch{Agent: own.Agent, Boot: own.Boot, SeqStart: next, SeqEnd: next}, "s", time.Unix(1, 0), []byte("x")); err == nil {
		t.Error("a number of this queue is taken")
	}
	id := identity.Batch{Agent: own.Agent, Boot: "kept", SeqStart: 1, SeqEnd: 2}
	for range 2 {
		if err := q.QueueAs(id, "spool", time.Unix(1, 0), []byte("frame")); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q = open(t, fsys, testOptions())
	list := q.Pending(es[1].No, 10)
	if len(list) != 1 || list[0].Identity != id || list[0].Spool != "spool" {
		t.Fatalf("pending %v", list)
	}
	wantFrame(t, q, list[0], []byte("frame"))
	if boot, _, n := q.Boot(); boot != own || n != next {
		t.Errorf("the queue goes on with %v at %d, want %v at %d", boot, n, own, next)
	}
	fsys.flip(t, "/q/parked/"+held.ID+".lmbatch", 50, 1)
	if _, err := q.HeldFrame(Parked, held.ID); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("damaged: %v", err)
	}
}
