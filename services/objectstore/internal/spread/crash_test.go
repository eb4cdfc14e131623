package spread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// life is what became of a body: the calls that were recorded when it was finished, when its removal
// began (-1 never), and between which a shard was damaged: the loss of a drive is one too many then.
type life struct{ size, finished, removed, damaged, mended int }

// codedHistory writes bodies, codes them, drops their copies, damages and mends shards, codes them
// under another policy, and removes some.
func codedHistory(t *testing.T, f *crashfs.FS) map[string]life {
	p := &process{}
	r := &rig{t: t, fs: f, Store: p.mustOpen(t, f)}
	ctx := context.Background()
	lives := map[string]life{}
	for i := range 4 {
		id, n := fmt.Sprintf("%02x%030x", i*70, i), 3000+i*1000
		r.check(r.put(id, bytesOf(n)))
		l := life{size: n, finished: f.Len(), removed: -1}
		code := code21
		code.MinChunk, code.MaxChunk = 1, 700
		shards := r.encode(id, code)
		if i%2 == 1 {
			l.damaged = f.Len()
			r.flip(file(shards[i%3].Located), 60)
			_, err := r.Heal(ctx, shards[i%3].Located, code)
			r.check(err)
			l.mended = f.Len()
		}
		if i == 2 {
			again := r.encode(id, Coding{2, code.Params})
			for _, s := range shards {
				if s.Located != again[s.Index].Located {
					r.check(r.RemoveFile(ctx, s.Located))
				}
			}
		}
		if i == 3 {
			l.removed = f.Len()
			r.check(r.Remove(id))
		}
		lives[id] = l
	}
	r.check(r.Store.Close())
	return lives
}

func (p *process) mustOpen(t *testing.T, fsys vfs.FS) *Store {
	t.Helper()
	s := p.open(fsys, nil)
	if err := s.Recover(); err != nil {
		t.Fatal(err)
	}
	return p.last
}

// TestPowerLossWhileCoding: behind every call of coding, dropping copies, mending and removing, a loss
// of power, and of a drive with it, leaves every body readable.
func TestPowerLossWhileCoding(t *testing.T) {
	disks, err := codedPowerLoss(t, crashfs.New())
	t.Logf("%d disks", disks)
	if err != nil {
		t.Error(err)
	}
}

// TestPowerLossWhileCodingMutants: shards that are not durable when the copies go are noticed.
func TestPowerLossWhileCodingMutants(t *testing.T) {
	for name, lie := range map[string]func(crashfs.Op) bool{
		"no fsync of files":   func(o crashfs.Op) bool { return o.Kind == crashfs.Sync && strings.Contains(o.Path, "/tmp/") },
		"no fsync of folders": func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && strings.Contains(o.Path, "/files/") },
	} {
		f := crashfs.New()
		f.Lie = lie
		if _, err := codedPowerLoss(t, f); err == nil {
			t.Errorf("%s: not caught", name)
		}
	}
}

func codedPowerLoss(t *testing.T, f *crashfs.FS) (disks int, err error) {
	lives := codedHistory(t, f)
	w := f.Walk()
	for ok := true; ok && err == nil; ok = w.Step() {
		if testing.Short() && w.At()%5 != 0 {
			continue
		}
		for i := range uint64(5) {
			left := w.Kill()
			how := "killed"
			if i > 0 {
				left, how = w.Crash(crashfs.Model(i-1), i), crashfs.Model(i-1).String()
			}
			lost := append([]string{""}, drives...)[(uint64(w.At())+i)%4]
			erase(left, lost)
			disks++
			if err = stillThere(left, lives, w.At(), lost); err != nil {
				return disks, fmt.Errorf("behind call %d of %d, %s, without drive %q: %w", w.At(), w.Len(), how, lost, err)
			}
		}
	}
	return disks, err
}

// stillThere opens a store and reads what was finished by so many calls.
func stillThere(fsys vfs.FS, lives map[string]life, calls int, lost string) error {
	p := &process{}
	b := p.open(fsys, nil)
	if err := b.Recover(); err != nil {
		return err
	}
	for id, l := range lives {
		if l.finished > calls || l.removed >= 0 && l.removed <= calls || lost != "" && calls > l.damaged && calls < l.mended {
			continue
		}
		r, err := p.last.OpenBody(context.Background(), id)
		if err != nil {
			return fmt.Errorf("%s, finished by call %d: %w", id, l.finished, err)
		}
		got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, bytesOf(l.size)) {
			return fmt.Errorf("%s, finished by call %d: %d bytes of %d: %w", id, l.finished, len(got), l.size, err)
		}
	}
	return p.last.Close()
}
