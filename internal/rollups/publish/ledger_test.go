package publish_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// lifeShards and lifeHours are what the schedules with compactions roll up.
const (
	lifeShards = 2
	lifeHours  = 4
)

// place is an hour of a shard.
type place struct {
	hour  timegrid.Hour
	shard shard.ID
}

// row is one record as a reader sees it.
type row struct {
	place
	t int64
}

// ledger knows what was accepted, and judges what is published: every accepted record
// counts in exactly one live block of each resolution.
type ledger struct {
	w        *sim
	accepted map[place]int
	// horizon is the last hour that retention may have removed, by resolution.
	horizon map[timegrid.Resolution]timegrid.Hour
	// last is each record as it was seen last.
	last map[catalog.Name]*catalog.Record
	// rows of the chunks, by the hash of their index, which has the agents: also of those
	// that are deleted.
	rows map[identity.Digest][]row
}

func newLedger(w *sim) *ledger {
	return &ledger{w: w, accepted: map[place]int{}, horizon: map[timegrid.Resolution]timegrid.Hour{}, last: map[catalog.Name]*catalog.Record{}, rows: map[identity.Digest][]row{}}
}

// places of the ledger, in order.
func (l *ledger) places() []place {
	return slices.SortedFunc(maps.Keys(l.accepted), func(a, b place) int { return cmp.Or(cmp.Compare(a.hour, b.hour), cmp.Compare(a.shard, b.shard)) })
}

// lifeAgents has one agent of each shard.
var lifeAgents = func() (agents [lifeShards]string) {
	for i := 0; agents[0] == "" || agents[1] == ""; i++ {
		a := fmt.Sprintf("host-%d", i)
		agents[shard.Of(a, lifeShards)] = a
	}
	return
}()

// recordTime of the i-th record that was accepted of an hour: they come in any order.
func recordTime(h timegrid.Hour, i int) int64 {
	return (h.StartMS() + 1 + int64(i*7%60)*60_000) * 1_000_000
}

// lifeOutputs are the chunks of a place with its first n records: a function of these.
// They are made once for all schedules, of which one plays at a time.
func lifeOutputs(at place, n int) []publish.Output {
	key := fmt.Sprint(at, n)
	if out := madeOutputs[key]; out != nil {
		return out
	}
	of := make([]chunk.Series, 2)
	for k := range of {
		of[k] = chunk.Series{ID: series.ID{Agent: lifeAgents[at.shard], Labels: []series.Label{{Name: "__name__", Value: []string{"up", "load"}[k]}}, Type: series.Gauge}}
	}
	for minute := range 60 {
		for i := range n {
			if i*7%60 == minute { // in the order of time
				s := &of[i%2]
				s.T, s.V = append(s.T, recordTime(at.hour, i)), append(s.V, float64(i))
			}
		}
	}
	var out []publish.Output
	for k := range of {
		if len(of[k].T) == 0 {
			continue
		}
		w := chunk.NewWriter(chunk.Options{})
		if err := w.Add(&of[k]); err != nil {
			panic(err)
		}
		f, err := w.Finish()
		if err != nil {
			panic(err)
		}
		out = append(out, publish.Output{
			Metric: of[k].Name(), Chunk: publish.Bytes(f.Chunk), Index: publish.Bytes(f.Index), FooterOffset: uint64(f.FooterOffset),
			Series: uint64(f.Series), Samples: f.Samples, MinTime: f.MinT, MaxTime: f.MaxT,
		})
	}
	madeOutputs[key] = out
	return out
}

var madeOutputs = map[string][]publish.Output{}

// lifeInputs are the first n batches of a place.
func lifeInputs(at place, n int) catalog.Inputs {
	var ids []identity.Batch
	for i := range uint64(n) {
		seq := uint64(at.hour-hour0)*1000 + i
		ids = append(ids, identity.Batch{Agent: lifeAgents[at.shard], Boot: "b", SeqStart: seq, SeqEnd: seq})
	}
	in, err := catalog.NewInputs(ids)
	if err != nil {
		panic(err)
	}
	return in
}

// changed checks the invariants after the record of n became r.
func (l *ledger) changed(n catalog.Name, r *catalog.Record) {
	was := l.last[n]
	if r == nil || was == r {
		return
	}
	l.last[n] = r
	l.checkTurn(n, was, r)
	l.checkRows(n.Resolution)
}

// checkTurn: a record continues, and never back.
func (l *ledger) checkTurn(n catalog.Name, was, r *catalog.Record) {
	switch {
	case was == nil && r.Block != nil && n.Span == 0:
		l.checkInputs(r.Block)
	case was == nil || was.Aborted != nil && r.Aborted != nil:
	case was.Block == nil:
		l.w.violated("turn: %s was not committed, or removed, and is another now", n.Key())
	case r.Block != nil && (was.Block.Redirect != nil && !was.Block.Redirect.YieldsTo(r.Block.Redirect.Name) || r.Block.Redirect == nil):
		l.w.violated("turn: %s pointed at %v, and points back", n.Key(), was.Block.Redirect)
	}
	if r.Removed != nil && r.Removed.SupersededBy == 0 {
		l.checkGone(n, was)
	}
}

// checkInputs: what a generation covered, the next ones cover.
func (l *ledger) checkInputs(s *catalog.Block) {
	n := s.Name
	if got, most := int(s.Inputs.Records()), l.accepted[place{n.Hour, n.Shard}]; got > most {
		l.w.violated("inputs: %s has %d records, %d are accepted", n.Key(), got, most)
	}
	for n.Generation--; n.Generation > 0; n.Generation-- {
		if r := l.last[n]; r != nil && r.Block != nil && r.Block.Inputs.Records() > s.Inputs.Records() {
			l.w.violated("inputs: %s has %d records, generation %d has %d", s.Name.Key(), s.Inputs.Records(), n.Generation, r.Block.Inputs.Records())
		}
	}
}

// checkGone judges a removal that no higher generation explains.
func (l *ledger) checkGone(n catalog.Name, was *catalog.Record) {
	if n.Span == 0 {
		if last, ok := l.horizon[n.Resolution]; !ok || n.Hour > last {
			l.w.violated("expired: %s is removed, and its time is not over", n.Key())
		}
		return
	}
	if was == nil || was.Block == nil {
		return
	}
	for _, src := range was.Block.Sources {
		r := l.last[src]
		if top := l.top(src); r == nil || r.Block == nil || top != src {
			continue
		}
		if i := r.Block.Redirect; i == nil || i.Name == n || i.YieldsTo(n) {
			l.w.violated("needed: %s is removed, and %s may lead there", n.Key(), src.Key())
		}
	}
}

// top is the highest generation of the name's slot that was ever committed.
func (l *ledger) top(n catalog.Name) catalog.Name {
	top := n
	for m, r := range l.last {
		if m.Hour == n.Hour && m.Shard == n.Shard && m.Resolution == n.Resolution && m.Span == n.Span && r.Aborted == nil && m.Generation > top.Generation {
			top = m
		}
	}
	return top
}

// newest are the highest generations of a resolution that were ever committed.
func (l *ledger) newest(res timegrid.Resolution) map[place]catalog.Name {
	names := map[place]catalog.Name{}
	for n, r := range l.last {
		at := place{n.Hour, n.Shard}
		if n.Resolution == res && n.Span == 0 && r.Aborted == nil && n.Generation > names[at].Generation {
			names[at] = n
		}
	}
	return names
}

// tops are the highest committed generations of a resolution, as a true view has them, and
// how many records each has. Expired ones are left out.
func (l *ledger) tops(res timegrid.Resolution) (blocks []*catalog.Block, records map[place]int) {
	records = map[place]int{}
	for at, n := range l.newest(res) {
		s := l.last[n].Block
		if s == nil {
			continue
		}
		records[at] = int(s.Inputs.Records())
		if s.Redirect != nil {
			of, into := *s, *s.Redirect
			if to := l.last[into.Name]; to != nil {
				into.Block = to.Block
			}
			if into.Block == nil {
				l.w.violated("lost: %s points at %s, which is not there", n.Key(), into.Name.Key())
				continue
			}
			of.Redirect = &into
			s = &of
		}
		blocks = append(blocks, s)
	}
	return blocks, records
}

// checkRows: each record that the highest generations cover is read once.
func (l *ledger) checkRows(res timegrid.Resolution) {
	blocks, records := l.tops(res)
	seen := map[row]int{}
	for _, p := range catalog.Pieces(blocks) {
		for i := range p.Block.Objects {
			l.count(seen, &p, l.chunkRows(&p.Block.Objects[i]))
		}
	}
	l.compare("rows", res.String(), seen, records)
}

// count adds the rows that the piece lets through.
func (l *ledger) count(seen map[row]int, p *catalog.Piece, rows []row) {
	for _, r := range rows {
		if p.Holds(lifeAgents[r.shard]) && r.hour >= p.From && r.hour <= p.To {
			seen[r]++
		}
	}
}

// compare says which records are missing, are there twice, or should not be there.
func (l *ledger) compare(rule, what string, seen map[row]int, records map[place]int) {
	for _, at := range l.places() {
		for i := range records[at] {
			r := row{at, recordTime(at.hour, i)}
			if seen[r] != 1 {
				l.w.violated("%s: %s: record %d of hour %d, shard %s is there %d times", rule, what, i, at.hour-hour0, at.shard, seen[r])
			}
			delete(seen, r)
		}
	}
	for r, n := range seen {
		l.w.violated("%s: %s: a record of hour %d, shard %s is there %d times, and no block covers it", rule, what, r.hour-hour0, r.shard, n)
	}
}

// chunkRows decodes a chunk that is in the store, or remembers it.
func (l *ledger) chunkRows(o *catalog.Object) []row {
	if rows, ok := l.rows[o.IndexSHA256]; ok {
		return rows
	}
	ctx := context.Background()
	body, _, err := l.w.store.Get(ctx, o.ChunkKey, objstore.GetOptions{})
	ib, _, ierr := l.w.store.Get(ctx, o.IndexKey, objstore.GetOptions{})
	if err != nil || ierr != nil {
		l.w.violated("missing: %s or its index can't be read: %v %v", o.ChunkKey, err, ierr)
		return nil
	}
	x, err := chunk.ReadIndex(ib, chunk.Limits{})
	if err != nil {
		l.w.violated("missing: index of %s: %v", o.ChunkKey, err)
		return nil
	}
	d := chunk.NewDecoder(x, chunk.Limits{})
	d.Put(0, body)
	var rows []row
	for i := range x.Len() {
		var c chunk.Columns
		if _, err := d.Series(i, -1<<63, 1<<63-1, chunk.AllColumns, &c); err != nil {
			l.w.violated("missing: %s: %v", o.ChunkKey, err)
		}
		for _, t := range c.T {
			rows = append(rows, row{place{timegrid.HourOfNS(t), shard.Of(x.Agent(i), lifeShards)}, t})
		}
	}
	l.rows[o.IndexSHA256] = rows
	return rows
}

// checkLog: what the retention log names is removed.
func (l *ledger) checkLog(key string) {
	if !strings.HasPrefix(key, layout.LogPrefix) {
		return
	}
	b, _, err := l.w.store.Get(context.Background(), key, objstore.GetOptions{})
	if err != nil {
		return
	}
	var log struct{ Blocks []struct{ Key string } }
	if err := json.Unmarshal(b, &log); err != nil {
		l.w.violated("log: %s: %v", key, err)
	}
	for _, s := range log.Blocks {
		if r := l.w.record(s.Key); r == nil || r.Removed == nil {
			l.w.violated("log: %s says that %s is removed", key, s.Key)
		}
	}
}

// dueAt is when all spans of the hours are over.
func dueAt() time.Time { return (hour0 + lifeHours - 1).End() }
