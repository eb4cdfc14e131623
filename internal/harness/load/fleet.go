package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Metric is what every sender of a fleet sends.
const Metric = "fleet"

// DefaultRows of each of a batch's two series.
const DefaultRows = 10

// FleetOptions of a fleet; the zero value of a field has the meaning given.
type FleetOptions struct {
	Seed    uint64
	Senders int           // 6
	Rows    int           // of 2 series, in each batch: DefaultRows
	Pause   time.Duration // between two batches of a sender: none
	// BootBatches is after how many batches a sender begins a new boot; 0 is never.
	BootBatches int
	// HTTPEvery is how many batches go over a stream for one that goes over HTTP; 0 is none.
	HTTPEvery int
	// Races makes a sender send one identity twice at the same time now and then, to
	// different collectors, with equal or with other bytes.
	Races bool
	// Dial connects; nil is from this process's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Addresses of the collectors, gRPC and HTTP; the cluster's own when empty.
	Addresses []cluster.CollectorAddress
}

// Sent is what a fleet knows.
type Sent struct {
	// Acked is the frame of every identity that was answered ACCEPTED or DUPLICATE.
	Acked map[identity.Batch]identity.Digest
	// Sum and Count of the values in them.
	Sum   float64
	Count int
	// Duplicates and Conflicts that were sent on purpose and answered.
	Duplicates, Conflicts int
	// Races are identities that two senders sent at the same time.
	Races int
	// Calls is the history of every submission.
	Calls *history.Log
}

// maxCalls bounds the history: it holds a few hundred bytes a call.
const maxCalls = 1 << 19

// Fleet is a number of senders that send until they are stopped.
type Fleet struct {
	o    FleetOptions
	quit chan struct{}
	wg   sync.WaitGroup
	// busy is held for reading from the first try of a batch to its last answer.
	busy sync.RWMutex
	http *http.Client

	// start is the time of the first sample of every sender's first batch.
	start time.Time

	mu   sync.Mutex
	sent Sent
	at   map[identity.Batch]time.Time
	// lines are the batches of each agent, in the order in which it sends them.
	lines map[string]*line
	errs  []error
}

// line is what is known of one agent's batches. Batch k has the samples of the k-th span of times.
type line struct {
	// acked is when each batch that was begun was acknowledged; zero until then.
	acked []time.Time
	// token is the journal's position in the last answer that had one, and tokened its batch.
	token   string
	tokened int
}

// StartFleet starts the senders. They end with Stop, with ctx, or at an answer that breaks a promise.
func StartFleet(ctx context.Context, c *cluster.Cluster, o FleetOptions) *Fleet {
	if o.Senders == 0 {
		o.Senders = 6
	}
	if o.Rows == 0 {
		o.Rows = DefaultRows
	}
	if len(o.Addresses) == 0 {
		o.Addresses = c.Addr.Collectors
	}
	// Milliseconds, because PromQL rounds times down to them, and the Asker asks for exact ones.
	start := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	f := &Fleet{o: o, quit: make(chan struct{}), start: start, at: map[identity.Batch]time.Time{}, lines: map[string]*line{},
		sent: Sent{Acked: map[identity.Batch]identity.Digest{}, Calls: history.NewLog(maxCalls)}}
	if o.Dial != nil {
		f.http = &http.Client{Transport: &http.Transport{DialContext: o.Dial}}
	}
	for i := range o.Senders {
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			// One sender that meets a broken promise ends; the others continue to load the system until
			// Stop.
			if err := f.run(ctx, i); err != nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.errs = append(f.errs, fmt.Errorf("fleet sender %d: %w", i, err))
			}
		}()
	}
	return f
}

// Stop lets every sender finish what it began.
func (f *Fleet) Stop() (*Sent, error) {
	close(f.quit)
	f.wg.Wait()
	return &f.sent, errors.Join(f.errs...)
}

// Pause waits until every sender has an outcome of what it began, and holds all of
// them until Resume. It gives what is known now.
func (f *Fleet) Pause() (Sent, error) {
	f.busy.Lock()
	return f.Sent(), f.Err()
}

// Resume lets the senders continue.
func (f *Fleet) Resume() { f.busy.Unlock() }

// Sent is a copy of what is known now.
func (f *Fleet) Sent() Sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sent
	// The senders continue to write into the map after the lock is released.
	s.Acked = maps.Clone(s.Acked)
	return s
}

// AckedAt is when each batch was acknowledged.
func (f *Fleet) AckedAt() map[identity.Batch]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.at)
}

// Err is the first broken promise so far.
func (f *Fleet) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.errs...)
}

// sender is one boot after the other of one agent.
type sender struct {
	f     *Fleet
	agent string
	i     int
	rnd   *rand.Rand
	grpc  []string
	http  []string
	s     *Sender
	other *Sender // races s; nil until then
	seq   uint64  // next of the boot
	// position of the journal in the answer to the last batch; empty where it came another way than a stream.
	position string
}

// run sends batches in order, each until it has an outcome; now and then the same bytes
// again, and now and then other bytes for an identity that is taken.
func (f *Fleet) run(ctx context.Context, i int) error {
	x := &sender{f: f, agent: fmt.Sprintf("fleet-%d", i), i: i, rnd: rand.New(rand.NewPCG(f.o.Seed, uint64(i)+100))}
	for k := range f.o.Addresses {
		a := f.o.Addresses[(i+k)%len(f.o.Addresses)]
		x.grpc, x.http = append(x.grpc, a.GRPC), append(x.http, a.HTTP)
	}
	x.newBoot(0)
	defer func() { x.close() }()
	for k := 0; ; k++ {
		select {
		case <-f.quit:
			return nil
		case <-time.After(f.o.Pause):
		}
		if n := f.o.BootBatches; n > 0 && k > 0 && k%n == 0 {
			x.newBoot(k / n)
		}
		// Held for the whole batch: Pause takes the lock for writing, and so waits for every outcome.
		f.busy.RLock()
		f.begins(x.agent)
		err := x.batch(ctx, f.start.Add(time.Duration(k)*f.span()))
		f.busy.RUnlock()
		if err != nil {
			return err
		}
	}
}

func (x *sender) newBoot(n int) {
	x.close()
	x.seq = 1
	x.s = x.newSender(fmt.Sprintf("boot-%d", n), n, 2*x.i)
}

// newSender begins at the collector first; the boots begin at different ones.
func (x *sender) newSender(boot string, first, client int) *Sender {
	s := NewSender(identity.Boot{Agent: x.agent, Boot: boot}, x.grpc...)
	s.next, s.Dial, s.Calls, s.Client = first, x.f.o.Dial, x.f.sent.Calls, client
	return s
}

func (x *sender) close() {
	if x.s != nil {
		x.s.Close()
	}
	if x.other != nil {
		x.other.Close()
		x.other = nil
	}
}

func (x *sender) batch(ctx context.Context, at time.Time) error {
	n := uint64(2 * x.f.o.Rows)
	value := float64(x.rnd.IntN(1000))
	id := identity.Batch{Agent: x.agent, Boot: x.s.Boot.Boot, SeqStart: x.seq, SeqEnd: x.seq + n - 1}
	// Before the outcome is known: a sequence number is never used for two batches, whatever happens to
	// the first.
	x.seq += n
	body, err := Frame(x.s.Boot, Metric, id.SeqStart, x.f.o.Rows, at, value)
	if err != nil {
		return err
	}
	if x.f.o.Races && x.rnd.IntN(6) == 0 {
		return x.race(ctx, id, body, at, value)
	}
	switch st, err := x.send(ctx, body); {
	case err != nil:
		return fmt.Errorf("%s: %w", id, err)
	case st != Accepted && st != Duplicate: // DUPLICATE: an attempt before was accepted and its answer lost
		return fmt.Errorf("%s: answered %s", id, st)
	}
	x.f.acked(id, body, value, int(n))
	x.f.notes(x.agent, x.position)
	return x.provoke(ctx, id, body, at, value)
}

// provoke sends a duplicate or a conflict now and then.
func (x *sender) provoke(ctx context.Context, id identity.Batch, body []byte, at time.Time, value float64) error {
	want, into := Duplicate, &x.f.sent.Duplicates
	switch x.rnd.IntN(8) {
	case 0:
	case 1:
		var err error
		if body, err = Frame(x.s.Boot, Metric, id.SeqStart, x.f.o.Rows, at, value+5000); err != nil {
			return err
		}
		want, into = Conflict, &x.f.sent.Conflicts
	default:
		return nil
	}
	for range 1 + x.rnd.IntN(2) { // a conflict stays one
		got, err := x.send(ctx, body)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s again: answered %s, want %s", id, got, want)
		}
	}
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	*into++
	return nil
}

// send picks the way and waits for an outcome.
func (x *sender) send(ctx context.Context, body []byte) (string, error) {
	if n := x.f.o.HTTPEvery; n > 0 && x.rnd.IntN(n+1) == 0 {
		p := Poster{Spool: x.s.Spool, Client: x.f.http, Calls: x.f.sent.Calls, ClientID: 2 * x.i}
		x.position = ""
		return p.Post(ctx, body, x.http...)
	}
	r, err := x.s.Send(ctx, body)
	x.position = r.GetAcceptance().GetJournalPosition()
	return outcomeOf(r, err)
}

func outcomeOf(r *ingestv1.BatchResult, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if st := r.GetStatus().String(); st == Accepted || st == Duplicate || st == Conflict {
		return st, nil
	}
	return "", fmt.Errorf("%s (%s %s)", r.GetStatus(), r.GetReason(), r.GetDetail())
}

// acked notes an acknowledged batch: n values from value on, by steps of one.
func (f *Fleet) acked(id identity.Batch, body []byte, value float64, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.sent.Acked[id], f.at[id] = identity.Sum(body), now
	l := f.lines[id.Agent]
	l.acked[len(l.acked)-1] = now
	f.sent.Sum += float64(n)*value + float64(n*(n-1))/2
	f.sent.Count += n
}

// span is the time from the first sample of a batch to that of its sender's next one.
func (f *Fleet) span() time.Duration { return time.Duration(f.o.Rows) * RowStep }

// begins notes that an agent's next batch may be accepted from now on.
func (f *Fleet) begins(agent string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lines[agent]
	if l == nil {
		l = &line{}
		f.lines[agent] = l
	}
	l.acked = append(l.acked, time.Time{})
}

// notes notes the position of an agent's last batch.
func (f *Fleet) notes(agent, position string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.lines[agent]; position != "" {
		l.token, l.tokened = position, len(l.acked)-1
	}
}

// longest is the largest number of batches that one agent has begun.
func (f *Fleet) longest() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lines {
		n = max(n, len(l.acked))
	}
	return n
}

// some copies what is known of each agent's batches first to last-1.
func (f *Fleet) some(first, last int) map[string][]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string][]time.Time{}
	for agent, l := range f.lines {
		n := len(l.acked)
		out[agent] = slices.Clone(l.acked[min(first, n):min(last, n)])
	}
	return out
}

// lastToken is the position of a batch of some agent, and which one it is; empty where there is none yet.
func (f *Fleet) lastToken(pick int) (agent, token string, k int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	agents := slices.Sorted(maps.Keys(f.lines))
	if len(agents) == 0 {
		return "", "", 0
	}
	agent = agents[pick%len(agents)]
	return agent, f.lines[agent].token, f.lines[agent].tokened
}
