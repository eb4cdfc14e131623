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

// landGroup is how many batches land before their files are removed together. So a watermark is
// written once per boot and group, and not once per batch.
const landGroup = 64

// Lander submits spooled batches to the store, oldest first.
type Lander struct {
	Spool *Spool
	// Interval between two rounds.
	Interval time.Duration
	// Parallel is the number of concurrent landings within a group; 0 means 8.
	Parallel int
}

// Run lands until ctx ends. What has not landed stays in the spool for the next start.
func (l *Lander) Run(ctx context.Context) error {
	for {
		if err := l.Land(ctx); err != nil && ctx.Err() == nil && l.Spool.cfg.Events.LandingFailed != nil {
			l.Spool.cfg.Events.LandingFailed(err)
		}
		if err := l.Spool.cfg.Clock.Sleep(ctx, l.Interval); err != nil {
			return nil // a sleep fails only because ctx ended
		}
	}
}

// Land is one round: every batch that the spool holds now, then every quarantined
// frame. An error ends the round early; batches that landed before it stay landed.
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
	// A quarantined frame lands only after its winner: then the store answers "conflict", and has
	// its blob and its quarantine record. Before the winner it would be accepted.
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

// landing is the result of one file. The zero value means that the file stays in the spool.
type landing struct {
	outcome accept.Outcome // of the target; 0 if it gave none
	refused error          // the target refuses it permanently
}

func (l *Lander) land(ctx context.Context, group []*entry, losers bool) error {
	out := make([]landing, len(group))
	err := l.landEach(ctx, group, out)
	// After an error, too: what did land must not be submitted again in every round.
	return errors.Join(err, l.Spool.removeLanded(group, out, losers))
}

// landEach lands a group. With Parallel 1 it lands them in order, stops at the first error,
// and starts no goroutine, so that tests can replay it.
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
		s.reportUnreadable(e, err) // it stays in the spool, and the other batches land
		return landing{}, nil
	}
	failpoint.Hit("ingest.spool.land.before")
	m := h.manifest
	res, err := s.cfg.Target.Accept(ctx, m.Submission(frame, h.spoolID))
	failpoint.Hit("ingest.spool.land.after")
	var refused *accept.RefusedError
	var retry *accept.RetryError
	switch {
	case err == nil:
		return landing{outcome: res.Outcome}, nil
	case errors.As(err, &refused):
		if refused.Reason == accept.ReasonBootIDClash {
			s.recordClash(m.Identity.BootOf())
		}
		return landing{refused: err}, nil
	case errors.As(err, &retry) && blocksOneBatch(retry.Reason):
		// An operator must repair this one. The round continues, because the others can land.
		if s.cfg.Events.LandingFailed != nil {
			s.cfg.Events.LandingFailed(err)
		}
		return landing{}, nil
	}
	return landing{}, err
}

// blocksOneBatch reports whether the reason is a fault of one batch's records, so that others can land.
func blocksOneBatch(r accept.Reason) bool {
	switch r {
	case accept.ReasonCorruptManifest, accept.ReasonCorruptBootRecord, accept.ReasonCorruptCondemnedHour, accept.ReasonNewerRecord, accept.ReasonStoreRefused:
		return true
	}
	return false
}

// removeLanded removes landed files from the spool: watermarks first, then the index,
// then the files. After a crash in between a batch lands again, as a duplicate.
func (s *Spool) removeLanded(group []*entry, out []landing, losers bool) error {
	marks := map[identity.Boot]uint64{}
	for i, e := range group {
		if out[i] != (landing{}) {
			id := e.manifest.Identity
			marks[id.BootOf()] = max(marks[id.BootOf()], id.SeqEnd)
		}
	}
	for _, b := range slices.SortedFunc(maps.Keys(marks), identity.Boot.Compare) {
		if err := s.raiseWatermark(b, marks[b]); err != nil {
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
	// The index forgets the batch before its file goes: a submission in between is decided by
	// the watermark, never by an entry without a file.
	if err := s.cfg.FS.Remove(s.tree.abs(e.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %q: %w", e.path, err)
	}
	failpoint.Hit("ingest.spool.trim.removed")
	s.mu.Lock()
	s.used -= freed
	s.mu.Unlock()
	return nil
}

// park links the file into conflicts and reports whether it is kept there. A frame that the store
// has as well is kept only while all such take at most a quarter of the spool, so that conflicts
// can't fill it. With only, the spool has the only copy (the target refused it): always kept.
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
	// A link, because the file keeps its name in batches until the index entry is deleted. The link
	// may exist already, from before a crash.
	if err := s.cfg.FS.Link(s.tree.abs(e.path), s.tree.abs(to)); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	failpoint.Hit("ingest.spool.trim.parked")
	return true, s.cfg.FS.SyncDir(filepath.Dir(s.tree.abs(to)))
}
