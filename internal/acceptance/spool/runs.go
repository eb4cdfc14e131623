package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// runsFile has the runs of the journal that were opened over this spool, one a line in hex, oldest first.
// Those of earlier processes can be ended once what these left in the spool has landed.
const runsFile = "runs"

// maxRunsBytes bounds the file: 10,000 starts of which none was followed by a landing.
const maxRunsBytes = 10_000 * 33

// loadRuns reads the runs of earlier processes.
func (s *Spool) loadRuns() error {
	b, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(runsFile), maxRunsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		run, err := journal.ParseRunID(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return fmt.Errorf("%q: %w", runsFile, err)
		}
		s.runs = append(s.runs, run)
	}
	s.earlierRuns = len(s.runs)
	return nil
}

// NoteRun makes durable that a run is being opened. It is called before anything of the run is sent.
func (s *Spool) NoteRun(run journal.RunID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := append(slices.Clone(s.runs), run)
	if err := s.writeRuns(runs); err != nil {
		return fmt.Errorf("spool: note a run of the journal: %w", err)
	}
	s.runs = runs
	return nil
}

// EndedRuns are the runs of earlier processes, once nothing that these left is in the spool; nil before.
// Their processes are dead: the directory was locked by them and is locked by this one.
func (s *Spool) EndedRuns() []journal.RunID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.earlierRuns == 0 {
		return nil
	}
	for _, e := range s.entries {
		if e.order <= s.recovered {
			return nil
		}
	}
	return slices.Clone(s.runs[:s.earlierRuns])
}

// ForgetRuns forgets the runs of EndedRuns, which have been ended.
func (s *Spool) ForgetRuns() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := slices.Clone(s.runs[s.earlierRuns:])
	if err := s.writeRuns(runs); err != nil {
		return fmt.Errorf("spool: forget ended runs: %w", err)
	}
	s.runs, s.earlierRuns = runs, 0
	return nil
}

func (s *Spool) writeRuns(runs []journal.RunID) error {
	var b strings.Builder
	for _, r := range runs {
		b.WriteString(r.String() + "\n")
	}
	return s.replaceLocked(".", runsFile, []byte(b.String()))
}
