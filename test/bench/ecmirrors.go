package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ecMirrors measures small PUTs with the log in one directory, in two and in three, and what they take on the drives.
func ecMirrors(ctx context.Context, e *env) (rs []Result, err error) {
	const most = 2 // mirrors
	var rigs [most + 1]*rig
	var peers [most + 1]*peer
	var puts [most + 1]int
	for n := range rigs {
		r, err := newRig(e)
		if err != nil {
			return nil, err
		}
		defer r.close()
		var mirrors []string
		for i := range n {
			mirrors = append(mirrors, filepath.Join(r.dir, fmt.Sprintf("mirror%d", i+1)))
			if err := os.Mkdir(mirrors[i], 0o750); err != nil {
				return nil, err
			}
		}
		if n > 0 {
			r.settings = section{"mirrors": mirrors}
		}
		if err := r.startStore(ctx); err != nil {
			return nil, err
		}
		rigs[n] = r
		peers[n] = &peer{name: fmt.Sprintf("store with %d mirrors", n), pid: r.store.Pid(), cfg: bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret)}
	}
	d, pairs := e.ecRun(), min(e.pairs, 3)
	for _, clients := range []int{1, 32, 128} {
		s := shape{false, smallPut, clients, 12_000}
		rate := func(n int) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) {
				before := peers[n].done
				v, err := peers[n].rate(s, d)(ctx)
				puts[n] += peers[n].done - before
				return v, err
			}
		}
		for n := range rigs { // warm up
			if _, err := rate(n)(ctx); err != nil {
				return rs, err
			}
		}
		for n := 1; n <= most; n++ {
			a, b, ratio, note, err := paired(ctx, pairs, rate(n), rate(0))
			if err != nil {
				return rs, err
			}
			rs = append(rs, Result{Name: fmt.Sprintf("ec/mirrors/%d-clients/%d-directories", clients, n+1), Value: a, Unit: "PUT/s", Baseline: "one directory", BaselineValue: b, Ratio: ratio,
				Durability: fmt.Sprintf("fsync on %d / fsync on 1", n+1), Note: note + "; 8 KiB; all directories are on one drive here, which has the bytes of each to write and their fsyncs to serve"})
		}
	}
	for n, r := range rigs {
		got, err := smallOverhead(ctx, r, n+1, puts[n])
		if err != nil {
			return rs, err
		}
		rs = append(rs, got)
	}
	return rs, nil
}

// smallOverhead is what small objects take. Segments are allocated ahead, which would be most of it with few objects: so the
// store says how long its log and index are, and the drives only how often they are there.
func smallOverhead(ctx context.Context, r *rig, directories, puts int) (Result, error) {
	m, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return Result{}, err
	}
	all, err := onDrive(r.dir)
	if err != nil {
		return Result{}, err
	}
	one, err := onDrive(filepath.Join(r.dir, "objects"))
	if err != nil {
		return Result{}, err
	}
	used := m.sum("lightmetrics_objectstore_log_bytes") + m.sum("lightmetrics_objectstore_index_disk_bytes")
	times := float64(all) / float64(one)
	return Result{Name: fmt.Sprintf("ec/overhead/8-KiB/%d-directories", directories), Value: used * times / float64(puts*smallPut), Unit: "B on drives/B", Durability: fmt.Sprintf("fsync on %d", directories),
		Note: fmt.Sprintf("%d objects: small ones are in the log, without places; log and index, %.2f times, what is allocated ahead apart", puts, times)}, nil
}

// onDrive is what the files below a directory take of the drive, bytes.
func onDrive(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok {
			total += st.Blocks * 512
		}
		return err
	})
	return total, err
}
