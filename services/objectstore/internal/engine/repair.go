package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// quarantineDir holds the damaged files that a repair moved out of the store.
const quarantineDir = "quarantine"

// Repaired is what a repair has done.
type Repaired struct {
	Before Verified `json:"before"`
	// Salvaged counts the records of which one damaged byte was put right.
	Salvaged int64 `json:"salvaged"`
	// Lost objects stay in listings, and reading them is an error, until they are written or deleted.
	Lost []LostObject `json:"lost"`
	// Files were moved into quarantine.
	Files []string `json:"files"`
}

// Repair moves everything damaged out of the store: it verifies, copies the readable records of
// damaged segments to the end of the log, records the lost objects, and moves damaged files into
// quarantine. No byte is deleted. Afterwards lost keys that are unknown count as absent. The
// committer must run, and nothing else may write. A repair that was interrupted can be repeated.
func (e *Engine) Repair(ctx context.Context) (Repaired, error) {
	var r Repaired
	var err error
	if r.Before, err = e.Verify(ctx); err != nil {
		return r, err
	}
	if err := vfs.EnsureDir(e.fs, quarantineDir); err != nil {
		return r, err
	}
	// The active segment may be damaged too. With a new one every damaged segment is closed,
	// and the copies go into a segment that is whole.
	if err := e.submit(ctx, &op{roll: true}); err != nil {
		return r, fmt.Errorf("repair: %w", err)
	}
	p := &repair{e: e, ctx: ctx, out: &r}
	// The order matters: survivors and losses are durable at the end of the log before the
	// damaged segments leave it, and the damage is forgotten last.
	for _, step := range []func() error{p.copySurvivors, p.writeLosses, p.moveSegments, p.moveBodies, p.forgetAllDamage} {
		if err := step(); err != nil {
			return r, fmt.Errorf("repair: %w", err)
		}
	}
	return r, nil
}

type repair struct {
	e        *Engine
	ctx      context.Context
	out      *Repaired
	segments []uint64 // damaged ones
}

// copySurvivors copies what can be read of damaged segments.
func (p *repair) copySurvivors() error {
	e := p.e
	for _, num := range e.closed() {
		s := e.segmentOf(num)
		if s == nil {
			continue
		}
		var err error
		if s.bad != nil || e.damages.in(segName(num)) {
			p.segments = append(p.segments, num)
			var n int64
			n, err = e.copyLiveRecords(p.ctx, s, e.segmentLength(num), false, nil)
			p.out.Salvaged += n
		}
		s.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// writeLosses replaces every object that cannot be read by a record of its loss, so that the
// key is listed and reading it is an error, rather than absent.
func (p *repair) writeLosses() error {
	e := p.e
	for _, l := range p.out.Before.Lost {
		if l.Earlier {
			continue // an earlier repair wrote the record of its loss
		}
		key := recordKey(l.Key, l.Version)
		now, err := e.idx.record(l.Bucket, key)
		if err != nil {
			return err
		}
		if now == nil || now.pos != l.entry.pos {
			continue // it was salvaged
		}
		o := Object{Size: l.Size, ETag: l.ETag, Modified: time.Unix(0, l.entry.modified), Lock: l.entry.lock}
		if l.Version == "" {
			o.Order = l.entry.order
		}
		w := &op{obj: o, cond: Cond{at: l.entry.pos, atIsSet: true}, keepFiles: true}
		w.rec = record{kind: kindPut, flags: flagQuiet | flagMarker, bucket: l.Bucket, key: key, meta: encodeMeta(&o)}
		if !l.entry.isMarker() {
			if err := w.rec.lose(l); err != nil {
				return err
			}
		}
		if err := e.submit(p.ctx, w); err != nil {
			return err
		}
		if l.entry.isMarker() {
			p.out.Salvaged++ // the index has all that there is of a delete marker
		} else {
			p.out.Lost = append(p.out.Lost, l)
		}
	}
	return nil
}

// lose makes the record that of a loss.
func (r *record) lose(l LostObject) error {
	d := Damage{File: segName(l.entry.pos.seg), Offset: l.entry.pos.off, Length: l.entry.recordSize(), Reason: l.Reason}.of(l.Bucket, r.key)
	body, err := json.Marshal(d)
	r.kind, r.flags = kindLost, flagQuiet
	r.body, r.bodyLen, r.bodyCRC = body, uint32(len(body)), crc32.Checksum(body, castagnoli)
	return err
}

// moveSegments takes damaged segments out of the log, and forgets those that are missing.
func (p *repair) moveSegments() error {
	e := p.e
	if err := e.finishCopy(p.ctx); err != nil {
		return err
	}
	for _, num := range p.segments {
		if err := e.removeFooter(num); err != nil {
			return err
		}
		if err := p.moveFile(segName(num)); err != nil {
			return err
		}
		e.mu.Lock()
		s := e.segments[num]
		delete(e.segments, num)
		if st := s.coded(); st != nil {
			delete(e.codedBy, st.body) // what is left of it is set aside with the bodies that nothing names
		}
		e.mu.Unlock()
		s.release()
	}
	if err := e.fs.SyncDir(logDir); err != nil {
		return err
	}
	for _, d := range e.damages.all() {
		if num, ok := parseSegPath(d.File); ok && e.segmentOf(num) == nil {
			if err := e.removeFooter(num); err != nil {
				return err
			}
			p.segments = append(p.segments, num)
		}
		if num, ok := parseSegName(strings.TrimPrefix(d.File, footerDir+"/") + ".seg"); ok {
			if err := e.removeFooter(num); err != nil { // Seal makes it again from the segment
				return err
			}
		}
	}
	return nil
}

// moveFile puts a file into quarantine.
func (p *repair) moveFile(name string) error {
	return p.noteMoved(vfs.MoveAside(p.e.fs, name, quarantineDir))
}

// noteMoved notes what was put into quarantine.
func (p *repair) noteMoved(to string, err error) error {
	if err == nil && to != "" {
		p.out.Files = append(p.out.Files, to)
	}
	return err
}

// moveBodies moves the bodies that no object names into quarantine: those of lost objects, and
// those whose record was lost. An ordinary start would delete them.
func (p *repair) moveBodies() error {
	return p.e.eachUnnamedBody(func(id string) error { return p.noteMoved(p.e.bodies.SetAside(id)) })
}

// forgetAllDamage records that nothing is damaged any more.
func (p *repair) forgetAllDamage() error {
	e := p.e
	b := e.idx.db.NewBatch()
	defer b.Close()
	for _, d := range e.damages.all() {
		if err := e.forgetDamage(b, d.File, func(Damage) bool { return true }); err != nil {
			return err
		}
	}
	e.mu.Lock()
	for _, num := range p.segments {
		delete(e.live, num)
		delete(e.tombs, num)
		delete(e.length, num)
		if err := b.Delete(segmentKey(num), nil); err != nil {
			e.mu.Unlock()
			return err
		}
	}
	e.mu.Unlock()
	if err := b.Commit(pebble.NoSync); err != nil {
		return err
	}
	return e.finishCopy(p.ctx)
}
