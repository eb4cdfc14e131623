package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ecHeal writes bodies as copies, lets the store code them, and takes away what is on one place again and again.
func ecHeal(ctx context.Context, e *env) (rs []Result, err error) {
	const size = 8 << 20
	n := 32
	if e.quick {
		n = 6
	}
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var used [2]int64
	for i, coded := range []bool{false, true} {
		if err := r.onPlaces(coded); err != nil {
			return nil, err
		}
		if err := r.startStore(ctx); err != nil {
			return nil, err
		}
		files := n * ecPlaces
		if !coded {
			files = n * ecCopies
			if err := r.put(ctx, "heal", n, size); err != nil {
				return nil, err
			}
		}
		if err := r.settled(ctx, int64(files), 0); err != nil {
			return nil, err
		}
		if used[i], err = r.bytesOnPlaces(); err != nil {
			return nil, err
		}
		if coded {
			break
		}
		if err := r.stopStore(); err != nil {
			return nil, err
		}
	}
	bodies := float64(n * size)
	rs = append(rs, Result{Name: "ec/overhead/8-MiB", Value: float64(used[1]) / bodies, Unit: "B on drives/B", Baseline: "two copies, before coding", BaselineValue: float64(used[0]) / bodies,
		Ratio: float64(used[1]) / float64(used[0]), Durability: "fsync", Note: fmt.Sprintf("4+2, sizes of all files on six places, %d bodies; any two places may be lost, with two copies one", n)})
	lost := &lostPlace{r: r, files: int64(n * ecPlaces), spare: filepath.Join(r.dir, "spare")}
	a, b, ratio, note, err := paired(ctx, min(e.pairs, 3), lost.heal, lost.copy)
	if err != nil {
		return rs, err
	}
	return append(rs, Result{Name: "ec/heal", Value: a, Unit: "MB/s", Baseline: "a copy of the same files, an fsync each", BaselineValue: b, Ratio: ratio, Durability: "fsync",
		Note: fmt.Sprintf("%s; %d shards of 2 MiB, 4+2, are made again from four others each, fsynced, and read back from the place; from the first that is missed until all is durable", note, n)}), nil
}

// lostPlace takes the files of the first place away.
type lostPlace struct {
	r     *rig
	files int64 // of the whole store
	spare string
	made  int64 // files that the store made before
}

// heal is the rate at which the store puts back what was there, MB/s of files.
func (l *lostPlace) heal(ctx context.Context) (float64, error) {
	s, err := l.r.redundancy(ctx)
	if err != nil {
		return 0, err
	}
	l.made = s.Since.Made
	files, err := l.r.bodyFiles(0)
	if err != nil {
		return 0, err
	}
	bytes := int64(0)
	for name, n := range files {
		bytes += n
		if err := os.Remove(name); err != nil {
			return 0, err
		}
	}
	syscall.Sync()
	if err := l.r.healNow(ctx); err != nil {
		return 0, err
	}
	// The next look at the places is up to ten seconds away, whatever there is to heal.
	if err := l.r.until(ctx, "files to be missed", func(s redundancy) bool { return s.Missing > 0 || s.Since.Made > l.made }); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := l.r.settled(ctx, l.files, l.made+int64(len(files))); err != nil {
		return 0, err
	}
	return float64(bytes) / 1e6 / time.Since(began).Seconds(), nil
}

// copy is the rate of a bare copy of the place's files.
func (l *lostPlace) copy(context.Context) (rate float64, err error) {
	files, err := l.r.bodyFiles(0)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(l.spare, 0o750); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.spare)) }()
	syscall.Sync()
	began, bytes := time.Now(), int64(0)
	for name, n := range files {
		bytes += n
		if err := copyFile(filepath.Join(l.spare, filepath.Base(name)), name); err != nil {
			return 0, err
		}
	}
	return float64(bytes) / 1e6 / time.Since(began).Seconds(), nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Sync()
}
