package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// JournalConfig is the collector's own runs of the acceptance journal.
type JournalConfig struct {
	Linger  time.Duration `koanf:"linger" help:"how long a segment of the journal waits for further batches, where some are to be expected and the store is slow; answers wait as long"`
	Idle    time.Duration `koanf:"idle" help:"after which time without batches the collector closes its run of the journal, so that nobody polls it"`
	Entries int           `koanf:"entries" help:"batches that wait for the journal, in memory; further ones are answered RETRY"`
	// FramesMemory counts whole buffers, which are up to twice as large as their frames.
	FramesMemory config.Bytes `koanf:"frames_memory" help:"memory for the frames of the batches accepted last, which query nodes and rollup workers take from here in place of the store; 0 keeps none"`
}

func (c JournalConfig) validate() error {
	switch {
	case c.Linger < 0 || c.Linger > time.Second:
		return fmt.Errorf("journal.linger is %v, not 0 to 1s", c.Linger)
	case c.Idle <= 0:
		return errors.New("journal.idle must be positive")
	case c.Entries <= 0:
		return errors.New("journal.entries must be positive")
	case c.FramesMemory < 0:
		return errors.New("journal.frames_memory must not be negative; 0 keeps no frames")
	}
	return nil
}

// journalNotReady is how long the journal may fail before the collector says that it is not ready. Its
// senders have got RETRY all the time.
const journalNotReady = 10 * time.Second

// openJournal returns the writer of the journal, which is made once: a repeated probe of the store
// goes on with the same run. The run says which authority it is of, so another one ends the collector.
func (s *Service) openJournal(authorityID string) (*commit.Committer, error) {
	switch {
	case s.journal != nil && s.journalOf == authorityID:
		return s.journal, nil
	case s.journal != nil:
		return nil, &accept.AuthorityError{Reason: accept.AuthorityOther, Want: s.journalOf, Got: authorityID}
	}
	role, idle := journal.RoleCollector, s.cfg.Journal.Idle
	if accept.Mode(s.cfg.Acceptance) == accept.ModeLocalSpool {
		// While the run of a spooler is open, readers know that there may be batches that they can't see.
		role, idle = journal.RoleSpooler, 0
	}
	var names journal.Epochs
	if n := s.sparing(authorityID); n != nil {
		names = n
		s.condemned.Store(n)
	}
	c, err := commit.New(commit.Config{
		Epochs: names,
		Store:  s.store, Now: s.now,
		Opening: journal.Opening{Writer: s.collectorID, Role: role, Authority: authorityID},
		Linger:  s.cfg.Journal.Linger, Idle: idle, Entries: s.cfg.Journal.Entries,
		KeepOpen: func() bool { return s.unlanded() > 0 },
		Events:   s.journalEvents(),
	})
	if err != nil {
		return nil, err
	}
	s.journal, s.journalOf = c, authorityID
	s.committing <- c
	return c, nil
}

func (s *Service) journalEvents() commit.Events {
	log := s.tel.Log
	return commit.Events{
		Writing: func() { failpoint.Hit("ingest.journal.segment.before") },
		Durable: func(at journal.Position, entries []*journal.Entry, oldest time.Duration) {
			failpoint.Hit("ingest.journal.segment.durable")
			s.metrics.segments.Inc()
			s.metrics.segmentEntries.Observe(float64(len(entries)))
			s.metrics.journalWait.Observe(oldest.Seconds())
			s.recent.durable(entries)
			s.hub.durable(at)
			s.notify.durable(at)
		},
		Failed: func(err error) {
			s.metrics.journalFailures.Inc()
			s.errlog.log(context.Background(), "the journal could not be written; it is tried again", "reason", string(accept.ReasonJournalUnavailable), "error", err)
			if denied(err) {
				s.storeDenied(err)
			}
		},
		Fenced: func(at journal.Position) {
			s.metrics.fences.Inc()
			log.Warn("the run of the journal was ended by another, after a long silence of this collector; a new one is opened", "position", at.String())
		},
		Opened: s.noteRun,
		Closed: func() { log.Debug("the run of the journal is closed") },
	}
}

// writeJournal runs the writer of the journal. It ends after the last answer.
func (s *Service) writeJournal(ctx context.Context) error {
	select {
	case c := <-s.committing:
		s.writing.Store(c)
		return c.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// journalFailing says for how long the journal has failed, for readiness.
func (s *Service) journalFailing() error {
	c := s.writing.Load()
	if c == nil {
		return nil
	}
	since, err := c.Failing()
	if err == nil || s.now().Sub(since) < journalNotReady {
		return nil
	}
	return fmt.Errorf("the journal can't be written since %s: %w", since.UTC().Format(time.RFC3339), err)
}

// unlanded is how many accepted batches are in the local spool and in no segment of the journal.
func (s *Service) unlanded() int {
	if sp := s.spool.Load(); sp != nil {
		return sp.Unlanded()
	}
	return 0
}

// positionText is a position as answers carry it; empty for none.
func positionText(p journal.Position) string {
	if p == (journal.Position{}) {
		return ""
	}
	return p.String()
}
