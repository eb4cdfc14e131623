package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/agent/batch"
	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/memfs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Memory, in place of a directory, keeps the queue in memory. It is for tests: batches that are not
// sent when the Writer is closed are lost, and Close returns an error then.
const Memory = ":memory:"

// Options of a Writer. Agent is required; the zero value of all else is a sensible default.
type Options struct {
	// Agent names this program, in 1 to 128 bytes of UTF-8. Every series has it as the label "agent".
	// No two programs that run at the same time may have the same name.
	Agent string
	// Collectors are host:port of their gRPC; one is used at a time, the others are for
	// failover. Empty is 127.0.0.1:4750.
	Collectors []string
	// Fallback are further collectors, such as those of other regions. They are used only while none of Collectors gives
	// answers; the Writer goes back when one does again.
	Fallback []string
	// Credentials for the collectors.
	Credentials Credentials
	// Labels of every series, such as the host.
	Labels Labels
	// MaxBytes bounds the disk that the queue uses; 0 is 1 GiB, the least is 1 MiB. At most
	// 1,048,576 batches wait, each of which takes about 120 bytes of memory.
	MaxBytes int64
	// CloseTimeout is how long Close tries to send what is pending; 0 is 5 s.
	CloseTimeout time.Duration

	// OnConflict and OnReject are called for each refused batch, one at a time. They must return
	// soon, because nothing is sent meanwhile, and must not call the Writer.
	OnConflict func(Refusal)
	OnReject   func(Refusal)

	// Log gets the messages for operators; nil is slog.Default().
	Log *slog.Logger
	// Metrics has the sender's metrics, lightmetrics_agent_…, until Close; nil is none. For
	// several Writers at a time, prometheus.WrapRegistererWith gives each a label.
	Metrics prometheus.Registerer
}

// Bounds and defaults.
const (
	defaultMaxBytes = 1 << 30
	minMaxBytes     = 1 << 20
	// maxSegmentBytes is the size of a file of the queue, of which there are at least four.
	maxSegmentBytes     = 16 << 20
	defaultCloseTimeout = 5 * time.Second
	// keptRefusals of one RefusedError.
	keptRefusals = 100
)

// Writer queues samples and sends them. Its methods may be called concurrently.
type Writer struct {
	opts      Options
	memory    bool
	queue     *queue.Queue
	sender    *send.Sender
	committer *batch.Committer
	metrics   *prometheus.Registry // what Options.Metrics has as one collector
	ctx       context.Context      // ends with Close
	stop      context.CancelFunc
	done      chan error

	mu       sync.Mutex
	refused  []Refusal // since the last Flush
	refusals int
	written  written

	closing  sync.Once
	closeErr error
}

// Open opens the queue in dir, which it creates if it is absent, or in Memory, and starts to send
// what an earlier Writer left there. It is no error when no collector can be reached.
func Open(dir string, o Options) (*Writer, error) {
	w, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return w, nil
}

func open(dir string, o Options) (*Writer, error) {
	// The zero value of each option means its default.
	o.MaxBytes = cmp.Or(o.MaxBytes, defaultMaxBytes)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, defaultCloseTimeout)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	sc := send.DefaultConfig()
	if len(o.Collectors) > 0 {
		sc.Collectors = o.Collectors
	}
	sc.Fallback = o.Fallback
	var err error
	if sc.Client, err = o.Credentials.config(); err != nil {
		return nil, err
	}
	// The boot is not known before the queue is open. Any valid one will do to check the name of the
	// agent.
	switch err := (identity.Boot{Agent: o.Agent, Boot: "b"}).Validate(); {
	case err != nil:
		return nil, err
	case dir == "":
		return nil, errors.New("the directory is empty; client.Memory is for tests")
	case o.MaxBytes < minMaxBytes || o.CloseTimeout < 0:
		return nil, fmt.Errorf("MaxBytes %d, CloseTimeout %s: want at least %d and not less than 0", o.MaxBytes, o.CloseTimeout, minMaxBytes)
	}
	for name, list := range map[string][]string{"collectors": sc.Collectors, "fallback": sc.Fallback} {
		for _, address := range list {
			if err := config.CheckAddress(address); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err := sc.Validate(); err != nil {
		return nil, err
	}
	w := &Writer{opts: o, memory: dir == Memory, metrics: prometheus.NewRegistry(), done: make(chan error, 1)}
	if err := w.openQueue(dir); err != nil {
		return nil, err
	}
	if err := w.start(sc); err != nil {
		return nil, errors.Join(err, w.queue.Close())
	}
	return w, nil
}

// openQueue opens the queue and takes the directory's lock.
func (w *Writer) openQueue(dir string) error {
	qo := queue.Options{Agent: w.opts.Agent, MaxBytes: w.opts.MaxBytes, SegmentBytes: min(maxSegmentBytes, w.opts.MaxBytes/4),
		Policy: queue.RefuseNew, Now: time.Now, Log: w.opts.Log}
	var fsys vfs.FS = vfs.OS
	if w.memory {
		fsys, dir = memfs.New(), "queue"
		_, _ = rand.Read(qo.Fingerprint[:]) // crypto/rand never fails; each queue in memory is a new boot
	} else {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if err = vfs.MkdirAll(fsys, dir); err != nil {
			return err
		}
		if qo.Fingerprint, err = queue.FingerprintOf(dir); err != nil {
			return err
		}
	}
	var err error
	w.queue, err = queue.Open(fsys, dir, qo)
	return err
}

// start begins to send.
func (w *Writer) start(sc send.Config) error {
	var labels []series.Label
	for _, name := range slices.Sorted(maps.Keys(w.opts.Labels)) {
		labels = append(labels, series.Label{Name: name, Value: w.opts.Labels[name]})
	}
	var err error
	if w.committer, err = batch.NewCommitter(batch.DefaultConfig(), labels, w.queue, func(queue.Entry) {}); err != nil {
		return err
	}
	w.sender, err = send.New(sc, w.queue, send.Deps{Registry: w.metrics, Log: w.opts.Log, Now: time.Now, OnRefused: w.refuse, OnAccepted: w.accept})
	if err != nil {
		return err
	}
	// One collector for all metrics of the sender, so that Close can unregister them in one step.
	if w.opts.Metrics != nil {
		if err := w.opts.Metrics.Register(w.metrics); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	// Not below the context of a caller: the Writer lives until Close.
	w.ctx, w.stop = context.WithCancel(context.Background())
	go func() { w.done <- w.sender.Run(w.ctx) }()
	return nil
}

// refuse is called by the sender for each batch that leaves the queue without being accepted.
func (w *Writer) refuse(state queue.State, a queue.HeldBatch) {
	r := refusalOf(state, a)
	w.mu.Lock()
	w.refusals++
	// The number is exact; the list is bounded, since nobody may call Flush for long.
	if len(w.refused) < keptRefusals {
		w.refused = append(w.refused, r)
	}
	w.mu.Unlock() // callbacks run without the lock, so that they may do anything but call the Writer
	switch {
	case r.Conflict && w.opts.OnConflict != nil:
		w.opts.OnConflict(r)
	case !r.Conflict && w.opts.OnReject != nil:
		w.opts.OnReject(r)
	}
}

// Append queues samples, all or none of them. When it returns nil they are on disk (fsynced)
// and will be sent, by a later Writer of the directory if this one ends first. Samples may be
// in any order; two of one series may not have the same time.
//
// Each call makes at least one batch, but calls at the same time share theirs: hand over many
// samples at once where you can. Errors: *InvalidError (never as it is), ErrTooLarge,
// ErrFull, ErrClosed, or one of the disk; with any of them nothing was queued. Only where the
// error wraps ctx's the samples may have been queued or not.
func (w *Writer) Append(ctx context.Context, samples ...Sample) error {
	room := rooms.Get().(*[]input.Sample)
	b, index, err := batchOf((*room)[:0], samples, time.Now())
	if err == nil {
		err = w.committer.Append(ctx, b)
	}
	if err == nil && cap(b.Samples) <= maxRoom {
		// The samples are in the queue. After an error another call may still be writing them.
		clear(b.Samples) // of series and histograms
		*room = b.Samples
		rooms.Put(room)
	}
	var rejected *input.RejectedError
	if errors.As(err, &rejected) {
		out := &InvalidError{}
		for _, r := range rejected.Samples {
			// The indexes are those of the sorted samples; the caller knows its own order.
			at := r.Index
			if index != nil {
				at = index[at]
			}
			out.Samples = append(out.Samples, invalidOf(at, r.Err))
		}
		slices.SortFunc(out.Samples, func(a, b Invalid) int { return cmp.Compare(a.Index, b.Index) })
		err = out
	}
	if err != nil {
		return fmt.Errorf("client: append: %w", err)
	}
	return nil
}

// rooms has memory for the samples of a call, since programs call again and again with as many. maxRoom is the most
// samples that are kept.
var rooms = sync.Pool{New: func() any { return new([]input.Sample) }}

const maxRoom = 1 << 14

// batchOf sorts samples by time, since times of a series must rise within a frame. index has the
// position of each in the arguments, for errors; nil: they are in their places. It uses the memory of room.
func batchOf(room []input.Sample, samples []Sample, now time.Time) (b input.Batch, index []int, err error) {
	b.Source = "client"
	b.Samples = slices.Grow(room, len(samples))
	invalid := &InvalidError{}
	for i, s := range samples {
		if s.Series == nil {
			// All invalid samples are collected: who corrects one at a time would need a call for each.
			invalid.Samples = append(invalid.Samples, Invalid{i, frame.BadLabels, "the sample has no series"})
			continue
		}
		if s.Time.IsZero() {
			s.Time = now
		}
		prepared, err := s.Series.prepare()
		at, timeErr := nanoseconds("time", s.Time)
		if err = cmp.Or(err, timeErr); err != nil {
			invalid.Samples = append(invalid.Samples, invalidOf(i, err))
			continue
		}
		b.Samples = append(b.Samples, input.Sample{Series: prepared, Time: at, Value: s.Value, Histogram: s.Histogram})
	}
	if len(invalid.Samples) > 0 {
		return b, nil, invalid
	}
	byTime := func(a, b input.Sample) int { return cmp.Compare(a.Time, b.Time) }
	// Most programs append in the order of time, and then nothing is copied.
	if slices.IsSortedFunc(b.Samples, byTime) {
		return b, index, nil
	}
	// No sample was left out, so the places are sorted in place of the samples, which stay where they are
	// until it is done.
	index = make([]int, len(b.Samples))
	for i := range index {
		index[i] = i
	}
	slices.SortStableFunc(index, func(i, j int) int { return byTime(b.Samples[i], b.Samples[j]) })
	sorted := make([]input.Sample, len(index))
	for i, at := range index {
		sorted[i] = b.Samples[at]
	}
	b.Samples = sorted
	return b, index, nil
}

// Flush waits until collectors have answered every batch that was queued before, or ctx ends
// (then its error), or the Writer is closed (ErrClosed). nil: all of them are accepted. *RefusedError: some were refused, now or
// since the Flush before; everything else is accepted.
func (w *Writer) Flush(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Close ends a Flush that waits; its cause tells ErrClosed apart from the end of the caller's context.
	defer context.AfterFunc(w.ctx, func() { cancel(ErrClosed) })()
	if err := w.sender.Flush(ctx, w.queue.Last()); err != nil {
		return fmt.Errorf("client: flush: %w", context.Cause(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusals == 0 {
		return nil
	}
	err := &RefusedError{Batches: w.refusals, Refusals: w.refused}
	// Each refusal is reported once, so that the next Flush says nothing of what is known already.
	w.refusals, w.refused = 0, nil
	return fmt.Errorf("client: flush: %w", err)
}

// Written is what was accepted since Open: after a Flush, a query with it sees everything that was appended before. It
// says nothing of batches that a collector with local_spool has on its own disk until they have landed; answers are marked
// as partial until then.
func (w *Writer) Written() Written {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written.get()
}

// accept is called by the sender for each batch that was accepted.
func (w *Writer) accept(position string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.add(position)
}

// Close sends what is pending for as long as Options.CloseTimeout and ends the Writer. What
// is left stays on disk for the next Open; with Memory it is lost, which is an error.
func (w *Writer) Close() error {
	w.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), w.opts.CloseTimeout)
		defer cancel()
		// Drain comes first: once the sender is stopped, nothing can be sent any more.
		drainErr := w.sender.Drain(ctx)
		w.stop()
		errs := []error{<-w.done}
		// Read after the sender has stopped: the number no longer changes.
		if n := w.queue.Stats().Pending; w.memory && n > 0 {
			errs = append(errs, fmt.Errorf("%d batches in memory were not sent and are lost: %w", n, drainErr))
		}
		if w.opts.Metrics != nil {
			w.opts.Metrics.Unregister(w.metrics)
		}
		if err := errors.Join(append(errs, w.queue.Close())...); err != nil {
			w.closeErr = fmt.Errorf("client: close: %w", err)
		}
	})
	return w.closeErr
}

// Stats is the state of a Writer at one time.
type Stats struct {
	// Pending batches wait for a collector, the oldest since Oldest; zero when there are none.
	Pending      int
	PendingBytes int64
	Oldest       time.Time
	// Conflicts and Rejected are the numbers of refused batches whose bytes are kept.
	Conflicts, Rejected int
	// DiskBytes is what counts against MaxBytes.
	DiskBytes, MaxBytes int64
	// Connected: a collector is connected. Otherwise LastError says why not, if it is known.
	Connected bool
	LastError string
	// OnFallback: the collectors of Options.Fallback are used, since FallbackSince.
	OnFallback    bool
	FallbackSince time.Time
	// NextSeq is the next sequence number of the current boot.
	Boot    identity.Boot
	NextSeq uint64
}

// Stats of now.
func (w *Writer) Stats() Stats {
	q, s := w.queue.Stats(), w.sender.Status()
	boot, _, next := w.queue.Boot()
	out := Stats{Pending: q.Pending, PendingBytes: q.PendingBytes, Conflicts: q.Parked, Rejected: q.Dead,
		DiskBytes: q.DiskBytes, MaxBytes: q.MaxBytes, Boot: boot, NextSeq: next}
	for _, c := range s.Collectors {
		out.Connected = out.Connected || c.Connected
	}
	if q.Oldest != nil {
		out.Oldest = q.Oldest.Created
	}
	if s.List == send.Fallback {
		out.OnFallback, out.FallbackSince = true, s.ListSince
	}
	if n := len(s.LastErrors); n > 0 && !out.Connected {
		out.LastError = s.LastErrors[n-1].Text
	}
	return out
}

// Refusals lists the refused batches whose bytes are kept, conflicts first.
func (w *Writer) Refusals() []Refusal {
	var out []Refusal
	for _, state := range []queue.State{queue.Parked, queue.Dead} {
		for _, a := range w.queue.HeldBatches(state) {
			out = append(out, refusalOf(state, a))
		}
	}
	return out
}

// Requeue sends a rejected batch again, with its bytes and identity, after the reason was corrected.
// It is not possible for a conflict: the identity belongs to other bytes permanently.
func (w *Writer) Requeue(id string) error {
	if _, err := w.queue.Requeue(id); err != nil {
		return fmt.Errorf("client: requeue %s: %w", id, err)
	}
	return nil
}

// Discard deletes a refused batch. For a conflict, only the accepted batch remains.
func (w *Writer) Discard(id string) error {
	for _, state := range []queue.State{queue.Parked, queue.Dead} {
		err := w.queue.RemoveHeld(state, id)
		if err == nil {
			return nil
		}
		// Not found as parked: it may be a dead letter, which is tried next.
		if !errors.Is(err, queue.ErrNotFound) || state == queue.Dead {
			return fmt.Errorf("client: discard %s: %w", id, err)
		}
	}
	return nil
}
