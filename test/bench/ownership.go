package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

const (
	ownedShards      = 32
	ownedWorkers     = 3
	ownedLease       = 3 * time.Second
	ownedQuietPeriod = 500 * time.Millisecond
)

// benchOwnership lets workers share 32 shards under a coordinator of its own process with
// one etcd member: how many shards move, and how long they are nobody's, when a worker
// drains, comes back, or falls silent.
func benchOwnership(ctx context.Context, e *env) ([]Result, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer r.close()
	p, addr, err := r.startCoordinator(ctx, section{
		"lease":     section{"worker": ownedLease.String()},
		"rebalance": section{"quiet_period": ownedQuietPeriod.String(), "max_delay": (4 * ownedQuietPeriod).String()},
	})
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	o := newOwnership(addr)
	defer o.stopAll()
	for i := range ownedWorkers {
		if err := o.start(ctx, i); err != nil {
			return nil, err
		}
	}
	if err := o.settled(ctx); err != nil {
		return nil, err
	}
	var drained, silent, came []time.Duration
	most := 0
	bound := (ownedShards + ownedWorkers - 2) / (ownedWorkers - 1)
	rounds := max(1, min(e.pairs, 5))
	for i := range rounds {
		w := i % ownedWorkers
		for _, change := range []struct {
			took *[]time.Duration
			do   func() error
		}{
			{&drained, func() error { o.stop(w); return nil }},
			{&came, func() error { return o.start(ctx, w) }},
			{&silent, func() error { o.silence(w); return nil }},
			{&came, func() error { return o.start(ctx, w) }},
		} {
			before := o.owners()
			start := time.Now()
			if err := change.do(); err != nil {
				return nil, err
			}
			if err := o.settled(ctx); err != nil {
				return nil, err
			}
			*change.took = append(*change.took, o.lastGrant().Sub(start))
			moved := 0
			for s, owner := range o.owners() {
				if before[s] != owner {
					moved++
				}
			}
			most = max(most, moved)
		}
	}
	at := func(name string, d []time.Duration, note string) Result {
		v := make([]float64, len(d))
		for i := range d {
			v[i] = ms(d[i])
		}
		return Result{Name: "ownership/" + name, Value: median(v), Unit: "ms", Durability: "etcd, fsync",
			Note: fmt.Sprintf("%s; median of %d, worst %.0f ms", note, len(v), maxOf(v))}
	}
	return []Result{
		{Name: "ownership/moves", Value: float64(most), Unit: "shards", Goal: fmt.Sprintf("<= %d", bound), Pass: most <= bound, Durability: "etcd, fsync",
			Note: fmt.Sprintf("most shards that changed hands when one of %d workers came or went; ceil(%d/%d) with the fewer workers", ownedWorkers, ownedShards, ownedWorkers-1)},
		at("drain", drained, "from the worker's shutdown until all its shards are granted to others"),
		at("silent", silent, fmt.Sprintf("from a worker's last word until others have its shards; the lease is %v, the quiet period %v", ownedLease, ownedQuietPeriod)),
		at("join", came, fmt.Sprintf("from a worker's start until it has its share; the quiet period is %v", ownedQuietPeriod)),
	}, nil
}

// ownership is some workers in this process, and what they own.
type ownership struct {
	addr string

	mu      sync.Mutex
	owner   map[shard.ID]int
	running map[int]context.CancelFunc
	done    map[int]chan struct{}
	wires   map[int]*wire
	changed time.Time
}

func newOwnership(addr string) *ownership {
	return &ownership{addr: addr, owner: map[shard.ID]int{}, running: map[int]context.CancelFunc{}, done: map[int]chan struct{}{}, wires: map[int]*wire{}}
}

func (o *ownership) start(ctx context.Context, i int) error {
	link, err := newWire(o.addr)
	if err != nil {
		return err
	}
	cfg := coordinator.DefaultConfig()
	cfg.Addresses, cfg.WorkerID = []string{link.listener.Addr().String()}, fmt.Sprintf("worker-%d", i)
	w, err := coordinator.NewOwner(cfg, "rollup", ownedShards, coordinator.Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		link.cut()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	o.mu.Lock()
	if old := o.wires[i]; old != nil {
		old.cut()
	}
	o.running[i], o.done[i], o.wires[i] = cancel, done, link
	o.mu.Unlock()
	go func() {
		defer close(done)
		_ = w.Run(ctx, func(ctx context.Context, g coordinator.Grant) error {
			o.set(g.Shard, i)
			<-ctx.Done()
			o.unset(g.Shard, i)
			return nil
		})
	}()
	return nil
}

func (o *ownership) set(s shard.ID, i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner[s], o.changed = i, time.Now()
}

func (o *ownership) unset(s shard.ID, i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owner[s] == i {
		delete(o.owner, s)
	}
}

// stop drains a worker and waits for its end.
func (o *ownership) stop(i int) {
	o.mu.Lock()
	cancel, done := o.running[i], o.done[i]
	delete(o.running, i)
	o.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// silence cuts a worker off for good.
func (o *ownership) silence(i int) {
	o.mu.Lock()
	link, cancel := o.wires[i], o.running[i]
	delete(o.running, i)
	o.mu.Unlock()
	link.cut()
	time.AfterFunc(2*ownedLease, cancel) // it knows by its own clock before that
}

func (o *ownership) stopAll() {
	for i := range ownedWorkers {
		o.stop(i)
	}
	for _, w := range o.wires {
		w.cut()
	}
}

func (o *ownership) owners() map[shard.ID]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.owner)
}

func (o *ownership) lastGrant() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// settled waits until the running workers share all shards evenly.
func (o *ownership) settled(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; {
		o.mu.Lock()
		share := map[int]int{}
		for _, i := range o.owner {
			share[i]++
		}
		n, ok := len(o.running), len(o.owner) == ownedShards
		for i := range share {
			_, up := o.running[i]
			ok = ok && up
		}
		for i := range o.running {
			ok = ok && share[i] >= ownedShards/n
		}
		o.mu.Unlock()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("the shards were not shared out in a minute: by worker %v, %d workers run", share, n)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// wire forwards connections until it is cut.
type wire struct {
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
	ended bool
}

func newWire(target string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil || !w.keep(in, out) {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	return w, nil
}

func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, conns...)
	return !w.ended
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.listener.Close()
	for _, c := range w.conns {
		c.Close()
	}
}
