package queue

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// planted are known bugs of the queue. TestQueuePowerLossMutants has those that only a loss
// of power shows.
var planted = []mutants.Mutant{
	{Name: "numbers of a batch are used again", File: "append.go", Old: `q.next.nextSeq = e.seqEnd + 1`, New: `q.next.nextSeq = e.seqEnd`, By: "TestAppendAckReopen"},
	{Name: "a start forgets the numbers of the log", File: "recover.go", Old: `q.next.nextSeq = f.id.SeqEnd + 1`, New: ``, By: "TestAppendAckReopen"},
	{Name: "a start forgets what was acknowledged", File: "recover.go", Old: `if e := q.byNo[h.no]; e != nil {`, New: `if e := q.byNo[h.no]; e != nil && false {`, By: "TestAppendAckReopen"},
	{Name: "an acknowledged batch stays", File: "state.go", Old: `err := q.note(e.no, s)`, New: `err := q.note(e.no, s); if s == Acked { return err }`, By: "TestAppendAckReopen"},
	{Name: "a failed write leaves its bytes", File: "append.go", Old: `_ = q.repairTail()
		if vfs.IsFull(err) {`, New: `q.repair = false
		if vfs.IsFull(err) {`, By: "TestFailed|TestBroken|TestNoSpace"},
	{Name: "the bound counts no parked batches", File: "bound.go", Old: `n := q.heldBytes[Parked] + q.heldBytes[Dead]`, New: `n := int64(0)`, By: "TestParked"},
	{Name: "a full disk keeps what is done", File: "append.go", Old: `freed, freeErr := q.rotateDone()`, New: `freed, freeErr := false, error(nil)`, By: "TestNoSpace"},
	{Name: "the last block of a full disk is not the queue's", File: "bound.go", Old: `errors.Is(err, ErrFull) && q.spendReserve()`, New: `false`, By: "TestNoSpace"},
	{Name: "a batch that fits nowhere makes room for itself", File: "append.go", Old: `n > q.opts.MaxBytes {`, New: `n < 0 {`, By: "TestTooLarge"},
	{Name: "memory is unbounded while nothing is sent", File: "append.go", Old: `q.pending+len(fresh) > q.opts.MaxBatches`, New: `false`, By: "TestTooMany"},
	{Name: "damaged bytes are sent", File: "state.go", Old: `err = h.check(rec[recordHeader:])`, New: `err = nil`, By: "TestDamage"},
	{Name: "a copy of the directory goes on with the numbers", File: "recover.go", Old: `case q.next.fingerprint != q.opts.Fingerprint:`, New: `case false:`, By: "TestNewBoots"},
	{Name: "another agent goes on with the numbers", File: "recover.go", Old: `case q.next.boot.Agent != q.opts.Agent:`, New: `case false:`, By: "TestNewBoots"},
	{Name: "dead letters are unbounded", File: "held.go", Old: `q.heldBytes[Dead] > q.opts.DeadBytes &&`, New: `false &&`, By: "TestAsides"},
	{Name: "a requeued batch gets other numbers", File: "held.go", Old: `q.queueAs(a.Identity(), a.SpoolID,`, New: `q.queueAs(identity.Batch{Agent: a.AgentID, Boot: a.BootID, SeqStart: q.next.nextSeq, SeqEnd: q.next.nextSeq}, a.SpoolID,`, By: "TestRequeue|TestAsides"},
	{Name: "a frame that is pending is queued once more", File: "held.go", Old: `if !e.done && e.public().Identity == id {`, New: `if false {`, By: "TestQueueAs"},
	{Name: "another batch takes numbers of this queue", File: "held.go", Old: `if id.BootOf() == q.next.boot {`, New: `if false {`, By: "TestQueueAs"},
	{Name: "damaged bytes of a parked batch are used", File: "held.go", Old: `if err == nil && identity.Sum(frame) != q.held[s][i].FrameSHA256 {`, New: `if false {`, By: "TestQueueAs"},
	{Name: "a requeued batch may have other bytes", File: "held.go", Old: `identity.Sum(frame) != a.FrameSHA256`, New: `false`, By: "TestRequeue|TestAsides"},

	{Name: "a refused batch takes no numbers", File: "skip.go", Old: `q.next.nextSeq += records`, New: ``, By: "TestSkip"},
	{Name: "skipped numbers are in memory only", File: "skip.go", Old: `if err := q.writeSkips(); err != nil {
		return fmt.Errorf("queue skip: %w", err)
	}`, New: ``, By: "TestSkip"},
	{Name: "skipped numbers are not synced", File: "skip.go", Old: `if err := q.skipFile.Sync(); err != nil {`, New: `if err := error(nil); err != nil {`, By: "TestSkip"},
	{Name: "both slots are one", File: "skip.go", Old: `int64(s.generation%2)*skipSlot`, New: `0`, By: "TestTornNote"},
	{Name: "the older slot counts", File: "skip.go", Old: `s.generation > q.skip.generation`, New: `(q.skip.generation == 0 || s.generation < q.skip.generation)`, By: "TestSkip"},
	{Name: "a start forgets skipped numbers", File: "skip.go", Old: `q.next.nextSeq = max(q.next.nextSeq, s.next)`, New: ``, By: "TestSkip"},
	{Name: "a gap stands before a boot's first batch", File: "skip.go", Old: `case q.next.nextSeq == 1:`, New: `case false:`, By: "TestSkip"},
	{Name: "what is owed is never taken", File: "skip.go", Old: `q.next.nextSeq += q.skip.owed
		q.skip.owed = 0`, New: `q.skip.owed = 0`, By: "TestSkip"},
	{Name: "what is owed is taken twice", File: "skip.go", Old: `q.next.nextSeq += q.skip.owed
		q.skip.owed = 0`, New: `q.next.nextSeq += q.skip.owed`, By: "TestSkip"},
	{Name: "a new boot forgets what no batch followed", File: "skip.go", Old: `q.skip.owed += q.next.nextSeq - q.skip.from`, New: ``, By: "TestSkip"},
	{Name: "a new boot takes over what a batch followed", File: "skip.go", Old: `	q.skip.from = 0
	q.takeOwedNumbers()`, New: `	q.takeOwedNumbers()`, By: "TestSkip"},
	{Name: "a kill at the start of a boot forgets what it took over", File: "skip.go", Old: `s.owed, s.from = s.owed+s.next-s.from, 0`, New: `s.from = 0`, By: "TestSkip"},
	{Name: "a queue that refuses does not say so", File: "skip.go", Old: `q.refusing = true`, New: ``, By: "TestRefusing"},
	{Name: "a queue that takes again says that it refuses", File: "skip.go", Old: `q.refusing = false`, New: ``, By: "TestRefusing"},
}

func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: planted, Run: "TestAppend|TestFailed|TestBroken|TestDamage|TestNewBoots|TestAsides|TestRequeue|TestRefuse|TestDropOldest|TestNoSpace|TestTooLarge|TestTooMany|TestSkip|TestTornNote|TestRefusing|TestParked|TestQueueAs", Timeout: 30 * time.Second})
}
