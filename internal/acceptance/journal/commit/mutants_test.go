package commit

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of the group commit.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "a failed segment is answered", File: "run.go", Old: "	at, done, err := c.writer.Flush(ctx)\n	if err != nil {\n		return err\n	}\n", New: "	at, done, err := c.writer.Flush(ctx)\n	if err != nil {\n		done = 1 << 60\n	}\n", By: "TestFull"},
		{Name: "the next segment's entries are answered with this one", File: "run.go", Old: "c.added[n].no <= done", New: "c.added[n].no <= done+1<<40", By: "TestMoreThanASegment"},
		{Name: "the queue is unbounded", File: "commit.go", Old: "case c.waiting >= c.cfg.Entries:", New: "case false:", By: "TestFull"},
		{Name: "an entry leaves with its caller", File: "commit.go", Old: "	case <-ctx.Done():\n", New: "	case <-ctx.Done():\n		t.entry = journal.Entry{}\n		t.c.mu.Lock()\n		t.c.queue = nil\n		t.c.mu.Unlock()\n", By: "TestACallerThatLeaves"},
		{Name: "an idle run stays open", File: "run.go", Old: "c.cfg.Now().Sub(last) >= c.cfg.Idle:", New: "false:", By: "TestIdle"},
		{Name: "the run of a spooler with batches is closed", File: "run.go", Old: "!c.writer.Open() || c.cfg.KeepOpen != nil && c.cfg.KeepOpen()", New: "!c.writer.Open()", By: "TestASpoolersRun"},
		{Name: "the end leaves the run open", File: "run.go", Old: "!c.writer.Open() || c.cfg.KeepOpen != nil && c.cfg.KeepOpen()", New: "true", By: "TestConcurrent"},
		{Name: "the end forgets what waits", File: "run.go", Old: "		case c.writer.Waiting() > 0:\n			err = c.flush(ctx)\n		case !c.writer.Open()", New: "		case !c.writer.Open()", By: "TestLinger"},
		{Name: "a full segment waits", File: "run.go", Old: "	case <-c.full:\n", New: "", By: "TestLinger"},
		{Name: "a lone entry waits", File: "pace.go", Old: "p.rate*linger.Seconds() >= 1 && ", New: "", By: "TestPace"},
		{Name: "entries wait over a fast store", File: "pace.go", Old: " && p.write*fastWrites >= linger", New: "", By: "TestPace"},
		{Name: "the rate is that of all times", File: "pace.go", Old: "p.since, p.entries, p.rate = now, 0, ", New: "p.rate = ", By: "TestPace"},
	}})
}
