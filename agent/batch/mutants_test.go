package batch

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// planted are known bugs of the batcher and the committer.
var planted = []mutants.Mutant{
	{Name: "a batch has one record too many", File: "open.go", Old: `o.builder.Records() < cfg.MaxRecords`, New: `o.builder.Records() <= cfg.MaxRecords`},
	{Name: "bytes are not counted", File: "open.go", Old: `o.bytes += sampleBytes(s)`, New: ``},
	{Name: "a jump of the clock stays in the batch", File: "open.go", Old: ` && !o.jumps(t)`, New: ``},
	{Name: "a jump backwards is none", File: "open.go", Old: `min(o.first, t)`, New: `o.first`},
	{Name: "histograms are sent as their values", File: "open.go", Old: `if s.Histogram != nil {`, New: `if s.Histogram == nil && s.Histogram != nil {`},
	{Name: "samples out of order are sent", File: "batch.go", Old: `b.drop(DropOrder, 1)`, New: `b.drop(DropSeries, 1)`},
	{Name: "a bad series ends the scrape", File: "batch.go", Old: `b.drop(DropSeries, 1)
			continue`, New: `b.drop(DropSeries, 1)
			return`},
	{Name: "a full queue is not counted", File: "batch.go", Old: `b.countRefused(DropQueueFull, n)`, New: ``},
	{Name: "what is dropped leaves no gap", File: "batch.go", Old: `if err := b.queue.Skip(n); err != nil {`, New: `if err := error(nil); err != nil {`},
	{Name: "what a busy batcher drops leaves no gap", File: "batch.go", Old: `b.skip(in.TakeDropped())
		empty`, New: `empty`},
	{Name: "what a busy batcher drops last leaves no gap", File: "batch.go", Old: `b.skip(in.TakeDropped())
				b.flush()`, New: `b.flush()`},
	{Name: "an error of the disk counts as a full queue", File: "batch.go", Old: `b.countRefused(DropQueue, n)`, New: `b.countRefused(DropQueueFull, n)`},
	{Name: "series of the batch before are kept", File: "open.go", Old: `clear(o.ids)`, New: ``},
	{Name: "a stop forgets the unfinished batch", File: "batch.go", Old: `				b.flush()
				return nil`, New: `				return nil`},
	{Name: "a stop forgets what waits in the buffer", File: "batch.go", Old: `				case s := <-in.C():
					take(s)
					continue
				default:`, New: `				default:`},
	{Name: "every batch has all helps", File: "helps.go", Old: `at == h.hour`, New: `at == 0`},
	{Name: "a help is sent once", File: "helps.go", Old: `at == h.hour`, New: `at <= h.hour`},
	{Name: "helps of a batch that was refused are forgotten", File: "batch.go", Old: `b.open.helps.endFrame(err == nil)`, New: `b.open.helps.endFrame(true)`},
	{Name: "helps fill a frame", File: "helps.go", Old: `h.bytes += len(name) + len(s.Help)`, New: ``},
	{Name: "names of helps are not bounded", File: "helps.go", Old: `!ok && !h.hasRoom()`, New: `false`},
	{Name: "a name that is gone is remembered", File: "helps.go", Old: `at < h.hour-1 || at > h.hour`, New: `at > h.hour && name != ""`},
	{Name: "a name of the last hour is forgotten", File: "helps.go", Old: `at < h.hour-1 ||`, New: `at < h.hour ||`},
	{Name: "a batch has no greatest age", File: "batch.go", Old: `timer.Reset(b.cfg.MaxAge)`, New: ``},

	{Name: "an append is answered before it is queued", File: "commit.go", Old: `	c.write(g, o)
			return g.answer(at)`, New: `	return nil`},
	{Name: "a call that joins is answered at once", File: "commit.go", Old: `		select {
		case <-g.done:
			return g.answer(at)
		case`, New: `		if at > 0 {
			return nil
		}
		select {
		case <-g.done:
			return g.answer(at)
		case`},
	{Name: "only the first bad sample is named", File: "commit.go", Old: `rejected = append(rejected, input.Rejection{Index: i, Err: err})`, New: `return nil, 0, &input.RejectedError{Samples: []input.Rejection{{Index: i, Err: err}}}`},
	{Name: "a bad sample is left out silently", File: "commit.go", Old: `if rejected != nil {`, New: `if len(rejected) > 5 {`},
	{Name: "a frame that can't be encoded costs the calls beside it", File: "commit.go", Old: `len(g.batches) > 1 && (isFrameError(err) ||`, New: `len(g.batches) > 1 && (false ||`},
	{Name: "a call that fits into no queue costs the calls beside it", File: "commit.go", Old: `|| errors.Is(err, input.ErrTooLarge)) {`, New: `) {`},
	{Name: "a full group takes more", File: "commit.go", Old: `if !first && (g.samples`, New: `if first && (g.samples`},
	{Name: "the sample that begins a frame is lost", File: "commit.go", Old: `if err := add(c.frames[n-1], s); err != nil {`, New: `if err := error(nil); err != nil {`},
	{Name: "frames of the group before are sent again", File: "commit.go", Old: `		for _, o := range c.frames[:n] {
			_ = o.reset() // its labels were taken before
		}`, New: ``},
	{Name: "a call that began a group is sent without the others", File: "commit.go", Old: `if len(g.batches) > 1 {
		checked = nil`, New: `if len(g.batches) > 99 {
		checked = nil`},
	{Name: "a checked frame is sent beyond its bounds", File: "commit.go", Old: `whole = whole && o.takes(s.Time, c.cfg)`, New: ``},
	{Name: "a checked frame has no helps", File: "commit.go", Old: `c.helps.add(checked.builder, s)`, New: `_ = s`},
	{Name: "a checked frame is used twice", File: "commit.go", Old: `		_ = o.reset() // its labels were taken before
		o.encoder`, New: `		o.encoder`},
	{Name: "series that did not come stay", File: "open.go", Old: `len(o.order) != len(o.table) || `, New: ``},
	{Name: "series that came as another stay", File: "open.go", Old: ` || len(o.ids) != len(o.table)`, New: ``},
	{Name: "the next series is taken for the one after the last", File: "open.go", Old: ` && o.table[o.next].series == s`, New: ``},
	{Name: "series of the frame before count as come", File: "open.go", Old: `	for i := range o.table {
		o.table[i].came = false
	}
`, New: ``},
	{Name: "the group that is written still collects", File: "commit.go", Old: `	c.next = nil
`, New: ``},
}

func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: planted, Timeout: 20 * time.Second})
}
