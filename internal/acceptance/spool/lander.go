package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// landGroup batches land before their files are removed together: one watermark
// write per boot and group, not per batch.
const landGroup = 64

// Lander brings spooled batches to the store, oldest first.
type Lander struct {
	Spool *Spool
	// Interval between two rounds.
	Interval time.Duration
	// Parallel landings within a group; 0 means 8.
	Parallel int
}

// Run lands until ctx ends. What has not landed stays in the spool for the next start.
func (l *Lander) Run(ctx context.Context) error {
	for {
		if err := l.Land(ctx); err != nil && ctx.Err() == nil && l.Spool.cfg.Events.LandingFailed != nil {
			l.Spool.cfg.Events.LandingFailed(err)
		}
		if err := l.Spool.cfg.Clock.Sleep(ctx, l.Interval); err != nil {
			return nil // only the end of ctx ends a sleep
		}
	}
}

// Land is one round: every batch that the spool holds now, then every quarantined
// frame. An error ends the round early; nothing that landed is taken back.
func (l *Lander) Land(ctx context.Context) error {
	s := l.Spool
	s.mu.Lock()
	batches := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		batches = append(batches, e)
	}
	losers := slices.Clone(s.losers)
	s.mu.Unlock()
	slices.SortFunc(batches, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
	for group := range slices.Chunk(batches, landGroup) {
		if err := l.land(ctx, group, false); err != nil {
			return err
		}
	}
	// A frame in quarantine goes after its winner: landing it gives the store its
	// blob and its quarantine record.
	losers = slices.DeleteFunc(losers, func(e *entry) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.entries[e.manifest.Identity] != nil
	})
	for group := range slices.Chunk(losers, landGroup) {
		if err := l.land(ctx, group, true); err != nil {
			return err
		}
	}
	return nil
}

// landing is what became of one file.
type landing struct {
	outcome accept.Outcome // 0: it stays
	refused error          // the target refuses it for good
}

func (l *Lander) land(ctx context.Context, group []*entry, losers bool) error {
	out := make([]landing, len(group))
	err := l.landEach(ctx, group, out)
	return errors.Join(err, l.Spool.leave(group, out, losers))
}

// landEach lands a group; one at a time it does so in order and up to the first error,
// without a goroutine.
func (l *Lander) landEach(ctx context.Context, group []*entry, out []landing) (err error) {
	if l.Parallel == 1 {
		for i, e := range group {
			if out[i], err = l.landOne(ctx, e); err != nil {
				return err
			}
		}
		return nil
	}
	var g errgroup.Group
	g.SetLimit(cmp.Or(l.Parallel, 8))
	for i, e := range group {
		g.Go(func() (err error) {
			out[i], err = l.landOne(ctx, e)
			return err
		})
	}
	return g.Wait()
}

func (l *Lander) landOne(ctx context.Context, e *entry) (landing, error) {
	s := l.Spool
	h, frame, err := s.read(e)
	if err != nil {
		s.damaged(e, err) // kept, loud, and in nobody's way
		return landing{}, nil
	}
	failpoint.Hit("ingest.spool.land.before")
	m := h.manifest
	res, err := s.cfg.Target.Accept(ctx, accept.Submission{
		Frame: frame, Identity: m.Identity, SHA256: m.FrameSHA256, Records: m.RecordCount,
		MinTime: m.MinTime, MaxTime: m.MaxTime, WireVersion: m.WireVersion, FrameVersion: m.FrameVersion,
		SpoolID: h.spoolID, Traceparent: m.Traceparent,
	})
	failpoint.Hit("ingest.spool.land.after")
	var refused *accept.RefusedError
	var retry *accept.RetryError
	switch {
	case err == nil:
		return landing{outcome: res.Outcome}, nil
	case errors.As(err, &refused):
		if refused.Reason == accept.ReasonBootIDClash {
			s.noteClash(m.Identity.BootOf())
		}
		return landing{refused: err}, nil
	case errors.As(err, &retry) && ofThisAlone(retry.Reason):
		// An operator must mend this one; the others need not wait for that.
		if s.cfg.Events.LandingFailed != nil {
			s.cfg.Events.LandingFailed(err)
		}
		return landing{}, nil
	}
	return landing{}, err
}

// ofThisAlone reports that others may land where this one can't.
func ofThisAlone(r accept.Reason) bool {
	return r == accept.ReasonCorruptManifest || r == accept.ReasonCorruptBootRecord || r == accept.ReasonNewerRecord || r == accept.ReasonStoreRefused
}

// leave takes landed files out of the spool: watermarks first, then the index,
// then the files. A crash in between lands a batch again, and finds a duplicate.
func (s *Spool) leave(group []*entry, out []landing, losers bool) error {
	marks := map[identity.Boot]uint64{}
	for i, e := range group {
		if out[i] != (landing{}) {
			id := e.manifest.Identity
			marks[id.BootOf()] = max(marks[id.BootOf()], id.SeqEnd)
		}
	}
	for _, b := range slices.SortedFunc(maps.Keys(marks), identity.Boot.Compare) {
		if err := s.raise(b, marks[b]); err != nil {
			return fmt.Errorf("raise landing watermark of %s: %w", b, err)
		}
	}
	failpoint.Hit("ingest.spool.trim.marked")
	var errs []error
	for i, e := range group {
		o := out[i]
		if o == (landing{}) {
			continue
		}
		lost := o.refused != nil || o.outcome == accept.Conflict
		if err := s.remove(e, o, lost, losers); err != nil {
			errs = append(errs, err)
			continue
		}
		if ev := s.cfg.Events; lost && ev.Parked != nil {
			ev.Parked(e.manifest.Identity, e.manifest.FrameSHA256, o.refused)
		} else if !lost && ev.Landed != nil {
			ev.Landed(e.manifest.Identity, o.outcome)
		}
	}
	return errors.Join(errs...)
}

func (s *Spool) remove(e *entry, o landing, lost, loser bool) error {
	freed := e.cost
	if lost {
		kept, err := s.park(e, o.refused != nil)
		if err != nil {
			return fmt.Errorf("park %s: %w", e.manifest.Identity, err)
		}
		if kept {
			freed = 0
		}
	}
	s.mu.Lock()
	if loser {
		s.losers = slices.DeleteFunc(s.losers, func(l *entry) bool { return l == e })
	} else {
		delete(s.entries, e.manifest.Identity)
	}
	s.mu.Unlock()
	failpoint.Hit("ingest.spool.trim.forgotten")
	if err := s.cfg.FS.Remove(s.tree.abs(e.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %q: %w", e.path, err)
	}
	failpoint.Hit("ingest.spool.trim.removed")
	s.mu.Lock()
	s.used -= freed
	s.mu.Unlock()
	return nil
}

// park gives the file a place in conflicts. What the store has as well is kept only
// up to a quarter of the spool, so that conflicts can't crowd out acceptance; a refused frame is nowhere else and is always kept.
func (s *Spool) park(e *entry, only bool) (bool, error) {
	s.mu.Lock()
	room := only || s.parked+e.cost <= s.cfg.MaxBytes/4
	if room && !only {
		s.parked += e.cost
	}
	to := loserPath(conflictsDir, e.manifest.Identity, e.manifest.FrameSHA256)
	var err error
	if room {
		err = s.tree.mkdirs(filepath.Dir(to))
	}
	s.mu.Unlock()
	if !room || err != nil {
		return false, err
	}
	if err := s.cfg.FS.Link(s.tree.abs(e.path), s.tree.abs(to)); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	failpoint.Hit("ingest.spool.trim.parked")
	return true, s.cfg.FS.SyncDir(filepath.Dir(s.tree.abs(to)))
}
