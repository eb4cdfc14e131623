package batch

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/mutants"
)

// planted are known bugs of the batcher.
var planted = []mutants.Mutant{
	{Name: "a batch has one record too many", File: "batch.go", Old: `b.builder.Records() >= b.cfg.MaxRecords`, New: `b.builder.Records() > b.cfg.MaxRecords`},
	{Name: "bytes are not counted", File: "batch.go", Old: `b.bytes += recordBytes`, New: ``},
	{Name: "a jump of the clock stays in the batch", File: "batch.go", Old: ` || b.jumps(sample.Time) {`, New: ` {`},
	{Name: "a jump backwards is none", File: "batch.go", Old: `min(b.first, t)`, New: `b.first`},
	{Name: "samples out of order are sent", File: "batch.go", Old: `b.drop(DropOrder, 1)`, New: `b.drop(DropSeries, 1)`},
	{Name: "a bad series ends the scrape", File: "batch.go", Old: `b.drop(DropSeries, 1)
				continue`, New: `b.drop(DropSeries, 1)
				return`},
	{Name: "a full queue is not counted", File: "batch.go", Old: `b.refused(DropQueueFull, n)`, New: ``},
	{Name: "what a full queue refuses leaves no gap", File: "batch.go", Old: `if err := b.queue.Skip(uint64(n)); err != nil {`, New: `if err := error(nil); err != nil {`},
	{Name: "an error of the disk counts as a full queue", File: "batch.go", Old: `b.refused(DropQueue, n)`, New: `b.refused(DropQueueFull, n)`},
	{Name: "series of the batch before are kept", File: "batch.go", Old: `clear(b.ids)`, New: ``},
	{Name: "a stop forgets the unfinished batch", File: "batch.go", Old: `				b.flush()
				return nil`, New: `				return nil`},
	{Name: "a stop forgets what waits in the channel", File: "batch.go", Old: `				case s := <-in:
					take(s)
					continue
				default:`, New: `				default:`},
	{Name: "every batch has all helps", File: "helps.go", Old: `at == h.hour`, New: `at == 0`},
	{Name: "a help is sent once", File: "helps.go", Old: `at == h.hour`, New: `at <= h.hour`},
	{Name: "helps of a batch that was refused are forgotten", File: "batch.go", Old: `b.helps.next(err == nil)`, New: `b.helps.next(true)`},
	{Name: "helps fill a frame", File: "helps.go", Old: `h.bytes += len(name) + len(s.Help)`, New: ``},
	{Name: "names of helps are not bounded", File: "helps.go", Old: `!ok && !h.room()`, New: `false`},
	{Name: "a name that is gone is remembered", File: "helps.go", Old: `at < h.hour-1 || at > h.hour`, New: `at > h.hour && name != ""`},
	{Name: "a name of the last hour is forgotten", File: "helps.go", Old: `at < h.hour-1 ||`, New: `at < h.hour ||`},
	{Name: "a batch has no greatest age", File: "batch.go", Old: `timer.Reset(b.cfg.MaxAge)`, New: ``},
}

func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: planted, Timeout: 20 * time.Second})
}
