package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// segmentBytes is the length of the segments. Stores have larger ones by default, of which fewer would be closed.
	segmentBytes = 16 << 20
	// goalCoded is what small objects may take on all drives once their segments are coded with 4+2, beside their bytes: index, footers and
	// the segment that is being written, at most 2 x 16 MiB whatever the amount of data, are in it.
	goalCoded = 1.5
	// goalSegmentGet is that of reading small objects from coded segments beside reading them from the log.
	goalSegmentGet = 0.5
)

// ecSegments measures small objects of a store whose log is on two drives: in the log, and once its segments are coded over six
// places.
func ecSegments(ctx context.Context, e *env) (rs []Result, err error) {
	inLog, err := e.segmentRig(ctx, false)
	if err != nil {
		return nil, err
	}
	defer inLog.close()
	coded, err := e.segmentRig(ctx, true)
	if err != nil {
		return nil, err
	}
	defer coded.close()
	for _, r := range []*rig{inLog, coded} {
		if err := r.putSmall(ctx, e.segmentObjects()); err != nil {
			return nil, err
		}
	}
	if err := coded.codedSegments(ctx, e.segmentObjects()*smallPut/segmentBytes); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		r    *rig
		name string
	}{{inLog, "log"}, {coded, "coded"}} {
		got, err := c.r.segmentOverhead(ctx, c.name)
		if err != nil {
			return rs, err
		}
		rs = append(rs, got)
	}
	// Two of the places are taken away, of another store with the same data.
	if err := coded.stopStore(); err != nil {
		return rs, err
	}
	degraded, err := coded.withoutTwo(e)
	if err != nil {
		return rs, err
	}
	defer degraded.close()
	for _, r := range []*rig{coded, degraded} {
		if err := r.startStore(ctx); err != nil {
			return rs, err
		}
	}
	rate := func(r *rig, clients int) (func(context.Context) (float64, error), error) {
		keys := make([]string, e.segmentObjects()/2) // the older half: all of it is in closed segments
		for i := range keys {
			keys[i] = fmt.Sprintf("small/%d", i*7919%(e.segmentObjects()/2))
		}
		gets, err := recordGets(ctx, bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret), keys)
		run := func(ctx context.Context) (float64, error) {
			got, err := gets.replay(ctx, r.storeAddr, clients, e.ecRun())
			return got.rate(), err
		}
		if err == nil {
			_, err = run(ctx) // warm up
		}
		return run, err
	}
	for _, clients := range []int{1, 32} {
		base, err := rate(inLog, clients)
		if err != nil {
			return rs, err
		}
		for _, c := range []struct {
			r          *rig
			name, note string
		}{{coded, "whole", "all six places there"}, {degraded, "without-2-places", "two of six places away: a third of the objects is decoded"}} {
			of, err := rate(c.r, clients)
			if err != nil {
				return rs, err
			}
			a, b, ratio, note, err := paired(ctx, e.pairs, of, base)
			if err != nil {
				return rs, err
			}
			rs = append(rs, Result{Name: fmt.Sprintf("ec/segments/get/%d-clients/%s", clients, c.name), Value: a, Unit: "GET/s", Baseline: "from the log", BaselineValue: b, Ratio: ratio,
				Goal: fmt.Sprintf(">= %g", goalSegmentGet), Pass: ratio >= goalSegmentGet, Durability: "page cache", Note: note + "; 8 KiB, keys in no order; " + c.note})
		}
	}
	return rs, nil
}

// segmentObjects of 8 KiB fill 47 segments, beside which the one that is being written weighs little.
func (e *env) segmentObjects() int {
	if e.quick {
		return 5_000
	}
	return 96_000
}

// putSmall writes objects over 32 connections.
func (r *rig) putSmall(ctx context.Context, n int) error {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("small/%d", i)
	}
	ps, err := record(ctx, bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret), keys, smallPut)
	if err != nil {
		return err
	}
	got, err := ps.replay(ctx, r.storeAddr, 32, time.Hour)
	if err == nil && len(got.acked) != n {
		err = fmt.Errorf("%d of %d objects were written", len(got.acked), n)
	}
	return err
}

// segmentRig is a store with its log on two drives and six places; its segments are coded as soon as they are closed, or never.
func (e *env) segmentRig(ctx context.Context, code bool) (*rig, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.mirror(), 0o750); err != nil {
		return nil, err
	}
	if err := r.withSegments(code); err != nil {
		return nil, err
	}
	return r, r.startStore(ctx)
}

func (r *rig) mirror() string { return filepath.Join(r.dir, "mirror1") }

func (r *rig) withSegments(code bool) error {
	if err := r.onPlaces(true); err != nil {
		return err
	}
	after := "0s"
	if code {
		after = "1ms"
	}
	r.settings["redundancy"] = section{"data": ecData, "parity": ecParity, "segments_after": after}
	r.settings["mirrors"] = []string{r.mirror()}
	r.settings["segment"] = fmt.Sprint(segmentBytes)
	return nil
}

// segments is what GET /redundancy says of segments.
type segments struct {
	Segments struct {
		Coded      int   `json:"coded_segments"`
		CodedBytes int64 `json:"coded_bytes"`
		Waiting    int   `json:"waiting_segments"`
	} `json:"segments"`
	Queued int64 `json:"queued_bodies"`
}

// codedSegments waits until so many segments are coded, and nothing is left to do.
func (r *rig) codedSegments(ctx context.Context, least int) error {
	ctx, cancel := context.WithTimeout(ctx, ecSettle)
	defer cancel()
	for {
		var s segments
		if err := r.ask(ctx, "/redundancy", &s); err != nil {
			return err
		}
		if s.Segments.Coded >= least && s.Segments.Waiting == 0 && s.Queued == 0 {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d coded segments: %w: %+v", least, ctx.Err(), s)
		}
	}
}

// segmentOverhead is what small objects take: the log, its stubs and footers on both drives, the files of the places, index and ledger. What is
// allocated ahead is not in it.
func (r *rig) segmentOverhead(ctx context.Context, name string) (Result, error) {
	e := r.e
	m, err := scrape(ctx, r.storeAdmin)
	if err != nil {
		return Result{}, err
	}
	places, err := r.bytesOnPlaces()
	if err != nil {
		return Result{}, err
	}
	footers, err := lengths(filepath.Join(r.dir, "objects", "footers"))
	if err != nil {
		return Result{}, err
	}
	ledger, err := lengths(filepath.Join(r.dir, "objects", "ledger"))
	if err != nil {
		return Result{}, err
	}
	const drives, stub = 2, 256
	stubs := stub * m.sum("lightmetrics_objectstore_coded_segments")
	log := m.sum("lightmetrics_objectstore_log_bytes")
	index := m.sum("lightmetrics_objectstore_index_disk_bytes")
	objects := float64(e.segmentObjects() * smallPut)
	written := drives*m.sum("lightmetrics_objectstore_log_written_bytes_total") + m.sum("lightmetrics_objectstore_redundancy_made_bytes_total")
	out := Result{Name: "ec/segments/overhead/8-KiB/" + name, Value: (drives*(log+stubs+footers) + float64(places) + index + ledger) / objects, Unit: "B on drives/B", Durability: "fsync on 2",
		Note: fmt.Sprintf("%d objects; log %.3f, footers %.3f, places %.3f, index %.3f, ledger %.3f; %.2f B written to log and places for each", e.segmentObjects(),
			drives*log/objects, drives*footers/objects, float64(places)/objects, index/objects, ledger/objects, written/objects)}
	if name == "coded" {
		out.Goal, out.Pass = fmt.Sprintf("<= %g", goalCoded), out.Value <= goalCoded
	}
	return out, nil
}

// lengths is the sum of the lengths of the files below a directory.
func lengths(dir string) (total float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += float64(info.Size())
		}
		return err
	})
	return total, err
}

// withoutTwo is a copy of a stopped store that lacks two places.
func (r *rig) withoutTwo(e *env) (*rig, error) {
	c, err := newRig(e)
	if err != nil {
		return nil, err
	}
	c.accessKey, c.secret = r.accessKey, r.secret
	if err := os.CopyFS(c.dir, os.DirFS(r.dir)); err != nil {
		return nil, err
	}
	if err := c.withSegments(true); err != nil {
		return nil, err
	}
	for i := range 2 {
		if err := os.RemoveAll(c.place(i)); err != nil {
			return nil, err
		}
	}
	return c, nil
}
