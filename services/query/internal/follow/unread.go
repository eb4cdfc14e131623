package follow

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/missing"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// batches are reused for decoding; the live store copies what it keeps.
var batches = sync.Pool{New: func() any { return new(frame.Batch) }}

// Unread is an accepted batch that can't be read: no generation of its blob has the frame's bytes, or they do
// not decode.
type Unread struct {
	accepted.Batch
	Err   string
	Since time.Time // by this machine's clock
	shard uint32
}

// maxUnread bounds the batches that are listed; if there are more, every answer is partial.
const maxUnread = 10_000

func (f *Follower) isUnread(id identity.Batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unread[id] != nil
}

func (f *Follower) noteUnread(b accepted.Batch, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.unread[b.Identity]; old != nil {
		// Since stays as it is: the log and the age count from the first failure.
		if text := err.Error(); text != old.Err {
			// Answers that are made now read the old one.
			changed := *old
			changed.Err = text
			f.unread[b.Identity], f.unreadable = &changed, nil
		}
		return
	}
	f.d.Log.Warn("accepted batch can't be read; answers that need it are partial", "batch", b.Identity, "error", err)
	// Beyond the bound only the number is kept: without the times no range can be said to be unaffected.
	if len(f.unread) >= maxUnread {
		f.overflow++
		return
	}
	f.unread[b.Identity] = &Unread{Batch: b, Err: err.Error(), Since: f.d.Now(), shard: f.ShardOf(b.Identity.Agent)}
	f.unreadable = nil
}

// ShardOf is the shard that rolls an agent up; missing.NoShard while there are no rollups.
func (f *Follower) ShardOf(agent string) uint32 {
	if n := f.d.Blocks.Shards(); n > 0 {
		return uint32(shard.Of(agent, n))
	}
	return missing.NoShard
}

// hoursOf are the hours from the first sample of a batch to its last one.
func hoursOf(b *accepted.Batch) missing.Hours {
	return missing.Hours{From: timegrid.HourOfNS(b.MinTime), To: timegrid.HourOfNS(b.MaxTime)}
}

func (f *Follower) readable(id identity.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread[id] != nil {
		f.d.Log.Info("batch can be read again, or is in a block", "batch", id)
		delete(f.unread, id)
		f.unreadable = nil
	}
}

// RetryUnread tries every unreadable batch again: a repair may have written its frame, or a block may have it.
func (f *Follower) RetryUnread(ctx context.Context) {
	f.mu.Lock()
	list := make([]accepted.Batch, 0, len(f.unread))
	for _, u := range f.unread {
		list = append(list, u.Batch)
	}
	f.mu.Unlock()
	// A fixed order makes logs and tests repeatable.
	slices.SortFunc(list, func(a, b accepted.Batch) int { return a.Identity.Compare(b.Identity) })
	var g errgroup.Group
	g.SetLimit(f.cfg.Fetchers)
	for _, b := range list {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
			defer cancel()
			if err := f.take(ctx, b); err != nil {
				f.d.Log.Debug("the store can't be asked for an unreadable batch", "batch", b.Identity, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
}

// unreadSet are unreadable batches at one moment. It is made once after they have changed, and never changes, so that a
// query costs the same however many there are.
type unreadSet struct {
	list  []*Unread // by their first samples, then by identity
	first []int64   // samples, milliseconds; ascending
	last  []int64   // samples, milliseconds; ascending
	// most is a heap-shaped tree over list: the last sample of all below a node. It has a power of two of leaves.
	most  []int64
	tally missing.Tally
}

// unreadableNow returns the set as it is now. The caller holds mu.
func (f *Follower) unreadableNow() *unreadSet {
	if f.unreadable == nil {
		f.unreadable = newUnreadSet(f.unread)
	}
	return f.unreadable
}

func newUnreadSet(all map[identity.Batch]*Unread) *unreadSet {
	x := &unreadSet{list: slices.Collect(maps.Values(all))}
	slices.SortFunc(x.list, func(a, b *Unread) int {
		return cmp.Or(cmp.Compare(a.MinTime, b.MinTime), a.Identity.Compare(b.Identity))
	})
	leaves := 1
	for leaves < len(x.list) {
		leaves *= 2
	}
	x.most = slices.Repeat([]int64{math.MinInt64}, 2*leaves)
	for i, u := range x.list {
		// Rounded down as samples are, so that a batch counts for exactly the milliseconds of its samples.
		first, last := floorMS(u.MinTime), floorMS(u.MaxTime)
		x.first, x.last = append(x.first, first), append(x.last, last)
		x.most[leaves+i] = last
		x.tally.Add(u.shard, hoursOf(&u.Batch), 1)
	}
	slices.Sort(x.last)
	for i := leaves - 1; i > 0; i-- {
		x.most[i] = max(x.most[2*i], x.most[2*i+1])
	}
	return x
}

// count is how many have samples in [mint, maxt]: those that begin by then, but for those that end before.
func (x *unreadSet) count(mint, maxt int64) int {
	begun := sort.Search(len(x.first), func(i int) bool { return x.first[i] > maxt })
	return begun - sort.Search(len(x.last), func(i int) bool { return x.last[i] >= mint })
}

// some are at most n of those, the earliest ones.
func (x *unreadSet) some(mint, maxt int64, n int) (out []Unread) {
	begun := sort.Search(len(x.first), func(i int) bool { return x.first[i] > maxt })
	leaves := len(x.most) / 2
	var walk func(node, from, size int)
	walk = func(node, from, size int) {
		switch {
		case len(out) == n || from >= begun || x.most[node] < mint:
		case size == 1:
			out = append(out, *x.list[from])
		default:
			walk(2*node, from, size/2)
			walk(2*node+1, from+size/2, size/2)
		}
	}
	walk(1, 0, leaves)
	return out
}

// Unreadable says which unreadable batches have samples in [mint, maxt], milliseconds.
type Unreadable struct {
	// Batches, Hours and Shards of all of them. More of them are counted without their times.
	missing.Summary
	More int
	// Named are some of them.
	Named []Unread
}

// Unreadable looks for the unreadable batches with samples in [mint, maxt], milliseconds, and names at most so many.
func (s Status) Unreadable(mint, maxt int64, names int) (out Unreadable) {
	out.More = s.overflow
	if s.unread == nil { // the zero Status
		return out
	}
	n := s.unread.count(mint, maxt)
	if n == 0 {
		return out
	}
	out.Summary = s.unread.tally.In(missing.Hours{From: timegrid.HourOf(mint), To: timegrid.HourOf(maxt)})
	out.Batches, out.Named = n, s.unread.some(mint, maxt, names)
	return out
}

func floorMS(ns int64) int64 {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return ms
}
