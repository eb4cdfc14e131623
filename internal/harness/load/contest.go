package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ContestMetric is what a contest sends.
const ContestMetric = "contest"

// Sizes of a contest. Identities of one slot share numbers with each other and with no other slot.
const (
	contestRows  = 4
	contestCount = 2 * contestRows // records of a batch
	slotNumbers  = 2 * contestCount
)

// variant is what a client sends for a slot.
type variant int

const (
	first  variant = iota // the same bytes from every client
	second                // the same identity, other bytes
	across                // another identity that shares numbers with it
	variants
)

// ContestOptions of a contest; the zero value of a field has the meaning given.
type ContestOptions struct {
	Seed uint64
	// Name begins the agents' names: contests of one system have different ones.
	Name string
	// Clients that submit at the same time: 9. Boots that their identities are of: 4.
	Clients, Boots int
	// Operations are the submissions of all clients together. They go on beyond them until Until is closed; nil is closed.
	Operations int
	Until      <-chan struct{}
	// Pause between two submissions of a client: none.
	Pause time.Duration
	// Across lets some identities meet the numbers of others, which only regions under a linearizer refuse.
	Across bool
	// Losses: a region may be lost for good, and what it had be accepted again.
	Losses bool
	// Patience with one submission: 3 s. Its client then goes on, and comes back to it in Finish.
	Patience time.Duration
	// Addresses of the collectors over gRPC, region by region.
	Addresses [][]string
	// Dial connects; nil is from this process's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Contest is a number of clients that submit the same identities to the collectors of all regions, with equal bytes,
// with other ones, and with ranges that overlap, and remember every answer.
type Contest struct {
	o      ContestOptions
	start  time.Time
	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu   sync.Mutex
	seen Contested
	left []submission
	errs []error
}

// Contested is what a contest knows.
type Contested struct {
	// Acked is the frame of every identity that was answered ACCEPTED or DUPLICATE.
	Acked map[identity.Batch]identity.Digest
	// Accepted counts how often each was answered ACCEPTED: the history allows one.
	Accepted map[identity.Batch]int
	// Submissions that were begun, and how many of them were left without an answer at first.
	Submissions, Late int
	Duplicates        int
	Conflicts         int
	// Boots of all identities, and the last number of each.
	Boots map[identity.Boot]uint64
	// Calls is the history of all slots.
	Calls *history.Log
}

// Samples of all acknowledged batches.
func (c *Contested) Samples() int { return contestCount * len(c.Acked) }

// submission is one frame of one client.
type submission struct {
	client int
	boot   int
	frame  []byte
	id     identity.Batch
}

// StartContest starts the clients. They end when they have submitted everything once, or with ctx.
func StartContest(ctx context.Context, o ContestOptions) *Contest {
	if o.Clients == 0 {
		o.Clients = 9
	}
	if o.Boots == 0 {
		o.Boots = 4
	}
	if o.Patience == 0 {
		o.Patience = 3 * time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Contest{o: o, cancel: cancel, start: time.Now().Add(-time.Hour).Truncate(time.Millisecond), seen: Contested{
		Acked: map[identity.Batch]identity.Digest{}, Accepted: map[identity.Batch]int{}, Boots: map[identity.Boot]uint64{}, Calls: history.NewLog(maxCalls)}}
	if o.Losses {
		c.seen.Calls.Register = history.RegisterWithLosses
	}
	for i := range o.Clients {
		c.wg.Go(func() {
			if err := c.client(ctx, i); err != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.errs = append(c.errs, fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	return c
}

// Finish waits for the clients, and submits what was left without an answer until it has one or ctx ends. Then every
// submission of the contest is answered, or the error says which are not.
func (c *Contest) Finish(ctx context.Context) (*Contested, error) {
	c.wg.Wait()
	c.mu.Lock()
	left := c.left
	c.left = nil
	c.mu.Unlock()
	// In the name of the client that began it: its call is still open.
	c.submitAll(ctx, left)
	c.cancel()
	return c.judged()
}

// Resubmit submits every acknowledged frame once more, and another frame with the same identity, as senders do whose
// answers were lost; after Finish.
func (c *Contest) Resubmit(ctx context.Context) (*Contested, error) {
	var again []submission
	for id, hash := range c.Seen().Acked {
		for _, v := range []variant{first, second, across} {
			s, err := c.frame(c.slotAt(id), v)
			if err != nil {
				return nil, err
			}
			if identity.Sum(s.frame) == hash || s.id == id {
				s.client = len(again) % c.o.Clients
				again = append(again, s)
			}
		}
	}
	c.submitAll(ctx, again)
	return c.judged()
}

// submitAll submits each until it has an answer, by all clients side by side.
func (c *Contest) submitAll(ctx context.Context, all []submission) {
	for i := range c.o.Clients {
		c.wg.Go(func() {
			x := c.newClient(i)
			defer x.close()
			for k := i; k < len(all); k += c.o.Clients {
				if err := x.submit(ctx, all[k], 0); err != nil {
					c.mu.Lock()
					c.errs = append(c.errs, fmt.Errorf("%s is not answered: %w", all[k].id, err))
					c.mu.Unlock()
				}
			}
		})
	}
	c.wg.Wait()
}

// judged is what was seen, and every error up to now.
func (c *Contest) judged() (*Contested, error) {
	_, err := c.seen.Calls.Check()
	errs := c.errs
	if len(errs) > maxReported {
		errs = append(errs[:maxReported:maxReported], fmt.Errorf("and %d more", len(c.errs)-maxReported))
	}
	return &c.seen, errors.Join(append(errs[:len(errs):len(errs)], err)...)
}

// Stop ends the clients at once.
func (c *Contest) Stop() {
	c.cancel()
	c.wg.Wait()
}

// Seen is a copy of what is known now.
func (c *Contest) Seen() Contested {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seen
	s.Acked, s.Accepted, s.Boots = maps.Clone(s.Acked), maps.Clone(s.Accepted), maps.Clone(s.Boots)
	return s
}

// contestant is one client: a sender for each boot.
type contestant struct {
	c       *Contest
	i       int
	rnd     *rand.Rand
	senders map[int]*Sender
}

func (c *Contest) newClient(i int) *contestant {
	return &contestant{c: c, i: i, rnd: rand.New(rand.NewPCG(c.o.Seed, uint64(i)+1)), senders: map[int]*Sender{}}
}

// client walks over the slots, as all others do, so that most slots have several clients at about the same time.
func (c *Contest) client(ctx context.Context, i int) error {
	x := c.newClient(i)
	defer x.close()
	todo := (c.o.Operations + c.o.Clients - 1) / c.o.Clients
	for slot := 0; todo > 0 || !c.over(); {
		at := slot
		switch n := x.rnd.IntN(10); {
		case n < 2: // leaves this one to the others
			slot++
			continue
		case n == 2 && slot > 0: // again, or for the first time, long after the others
			at = x.rnd.IntN(slot)
		default:
			slot++
		}
		todo--
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.o.Pause):
		}
		s, err := c.frame(at, x.variant())
		if err != nil {
			return err
		}
		s.client = i
		c.begins(s)
		if x.rnd.IntN(doubleOneIn) == 0 {
			c.double(ctx, s, x.rnd.Uint64())
		}
		switch err = x.submit(ctx, s, c.o.Patience); {
		case errors.As(err, new(*unexpected)):
			return err
		case err != nil:
			c.mu.Lock()
			c.left = append(c.left, s)
			c.seen.Late++
			c.mu.Unlock()
		}
	}
	return nil
}

func (c *Contest) over() bool {
	if c.o.Until == nil {
		return true
	}
	select {
	case <-c.o.Until:
		return true
	default:
		return false
	}
}

func (x *contestant) variant() variant {
	switch n := x.rnd.IntN(20); {
	case n < 12:
		return first
	case n < 17 || !x.c.o.Across:
		return second
	}
	return across
}

// frame makes what a client submits for a slot: a function of the contest's seed, the slot and the variant alone.
func (c *Contest) frame(slot int, v variant) (submission, error) {
	s := submission{boot: slot % c.o.Boots}
	boot := c.boot(s.boot)
	seq := uint64(slot/c.o.Boots)*slotNumbers + 1
	value := float64(slot)
	switch v {
	case second:
		value += 100_000
	case across:
		value += 200_000
		seq += contestCount / 2
	}
	var err error
	s.frame, err = Frame(boot, ContestMetric, seq, contestRows, c.start.Add(time.Duration(slot)*contestRows*RowStep), value)
	s.id = identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: seq, SeqEnd: seq + contestCount - 1}
	return s, err
}

// slotAt is the slot that an identity of the contest is of.
func (c *Contest) slotAt(id identity.Batch) int {
	for n := range c.o.Boots {
		if c.boot(n) == id.BootOf() {
			return int((id.SeqStart-1)/slotNumbers)*c.o.Boots + n
		}
	}
	return -1
}

func (c *Contest) boot(n int) identity.Boot {
	return identity.Boot{Agent: fmt.Sprintf("%s-%d", c.o.Name, n), Boot: "boot"}
}

// slotOf is the identity that stands for all of a slot: they exclude each other, so they share a register.
func slotOf(id identity.Batch) identity.Batch {
	id.SeqStart -= (id.SeqStart - 1) % slotNumbers
	id.SeqEnd = id.SeqStart + slotNumbers - 1
	return id
}

func (c *Contest) begins(s submission) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Submissions++
	b := c.boot(s.boot)
	c.seen.Boots[b] = max(c.seen.Boots[b], slotOf(s.id).SeqEnd)
}

func (x *contestant) close() {
	for _, s := range x.senders {
		s.Close()
	}
}

// sender talks to the collectors of all regions in an order of its own.
func (x *contestant) sender(boot int) *Sender {
	if s := x.senders[boot]; s != nil {
		return s
	}
	var addrs []string
	for k := range x.c.o.Addresses {
		region := x.c.o.Addresses[(x.i+boot+k)%len(x.c.o.Addresses)]
		addrs = append(addrs, region[x.rnd.IntN(len(region))])
	}
	for _, region := range x.c.o.Addresses {
		addrs = append(addrs, region[x.rnd.IntN(len(region))])
	}
	s := NewSender(x.c.boot(boot), addrs...)
	s.Dial, s.Calls, s.Register = x.c.o.Dial, x.c.seen.Calls, slotOf
	x.senders[boot] = s
	return s
}

// unexpected is an answer that no submission of a contest may get.
type unexpected struct{ error }

var errPatience = errors.New("no answer yet")

// submit tries until there is an outcome, or for as long as patience lasts; 0 is as long as ctx. Now and then it goes to
// another region's collector after a RETRY, as agents do.
func (x *contestant) submit(ctx context.Context, sub submission, patience time.Duration) error {
	s := x.sender(sub.boot)
	s.Client = sub.client
	began := time.Now()
	for {
		r, err := s.Try(ctx, sub.frame)
		var outcome string
		switch status := r.GetStatus().String(); {
		case err != nil:
			s.Close()
		case status == Accepted || status == Duplicate || status == Conflict:
			x.c.answered(sub, status)
			return nil
		case status != Retry:
			return &unexpected{fmt.Errorf("%s: %s %s %s", sub.id, r.GetStatus(), r.GetReason(), r.GetDetail())}
		default:
			outcome = r.GetReason()
			if x.rnd.IntN(3) == 0 {
				s.Close()
			}
		}
		if patience > 0 && time.Since(began) > patience {
			return errPatience
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %v %s)", ctx.Err(), err, outcome)
		case <-time.After(tryAgain + time.Duration(x.rnd.IntN(100))*time.Millisecond):
		}
	}
}

// doubleOneIn is how many submissions come for one that is sent twice at the same time.
const doubleOneIn = 12

// double sends the frame once more, by another way and beside the client, and takes whatever comes.
func (c *Contest) double(ctx context.Context, sub submission, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	region := c.o.Addresses[rnd.IntN(len(c.o.Addresses))]
	c.wg.Go(func() {
		s := NewSender(c.boot(sub.boot), region[rnd.IntN(len(region))])
		s.Dial, s.Calls, s.Register, s.Client = c.o.Dial, c.seen.Calls, slotOf, sub.client
		defer s.Close()
		r, err := s.Try(ctx, sub.frame)
		if st := r.GetStatus().String(); err == nil && (st == Accepted || st == Duplicate || st == Conflict) {
			c.answered(sub, st)
		}
	})
}

func (c *Contest) answered(s submission, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch status {
	case Conflict:
		c.seen.Conflicts++
		return
	case Duplicate:
		c.seen.Duplicates++
	default:
		c.seen.Accepted[s.id]++
	}
	// Another frame under the same identity is found by the history, too.
	if was, ok := c.seen.Acked[s.id]; ok && was != identity.Sum(s.frame) {
		c.errs = append(c.errs, fmt.Errorf("%s was acknowledged with %s and with %s", s.id, was, identity.Sum(s.frame)))
	}
	c.seen.Acked[s.id] = identity.Sum(s.frame)
}
