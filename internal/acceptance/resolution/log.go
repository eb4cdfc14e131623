package resolution

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of what a Log has in memory. A decision that would exceed them is refused. The last decisions are for senders
// alone: one that does harm can be stopped, and one that is stopped be released, when frames have filled the log.
const (
	MaxDecisions = 100_000
	MaxFrames    = 200_000
	forSenders   = 10_000
)

// ErrFull says that a bound of the log is reached.
var ErrFull = errors.New("the log of resolutions is full")

// StandingError says that another decision stands, and whose.
type StandingError struct {
	// By is the decision, without its conflicts.
	By *Resolution
	// Conflict that it is about; nil of a sender.
	Conflict *Conflict
}

func (e *StandingError) Error() string {
	what := "agent " + e.By.AgentID
	if e.Conflict != nil {
		what = e.Conflict.Of(e.By.AgentID).String()
	}
	return fmt.Sprintf("%s: resolution %d, %s by %q, stands", what, e.By.Number, e.By.Action, e.By.Principal)
}

type frameKey struct {
	id  identity.Batch
	sum identity.Digest
}

// Log follows the decisions, and adds to them. The first decision about a frame stands for ever,
// since an agent may have acted on it; of a sender the last one stands. For concurrent use.
type Log struct {
	store objstore.Store
	fan   journal.Fan

	reading sync.Mutex // held over requests, so that each number is read once
	mu      sync.Mutex
	through uint64
	frames  map[frameKey]*Resolution
	senders map[identity.Boot]*Resolution // an agent as a whole has no boot
	// attempt is the id of the decision that is being made, and own its record, when it was read.
	attempt string
	own     *Resolution
}

// NewLog makes a log that has read nothing. fan reads several numbers at a time; journal.OneByOne when nil.
func NewLog(s objstore.Store, fan journal.Fan) *Log {
	if fan == nil {
		fan = journal.OneByOne
	}
	return &Log{store: s, fan: fan, frames: map[frameKey]*Resolution{}, senders: map[identity.Boot]*Resolution{}}
}

// Read applies the decisions that are new. Numbers have no gaps, because number n+1 is created only by who
// has read n, so that one GET of the next number finds that there is none.
func (l *Log) Read(ctx context.Context, authority string) error {
	l.reading.Lock()
	defer l.reading.Unlock()
	return l.read(ctx, authority)
}

// Ahead is how many numbers are read at a time once there are some: a process that starts reads them all.
const Ahead = 32

func (l *Log) read(ctx context.Context, authority string) error {
	for width := 1; ; width = min(2*width, Ahead) {
		bodies, errs := make([][]byte, width), make([]error, width)
		first := l.Through() + 1
		_ = l.fan(ctx, width, func(ctx context.Context, i int) error { // the errors are in errs
			bodies[i], _, errs[i] = l.store.Get(ctx, layout.Resolution(first+uint64(i)), objstore.GetOptions{Limit: int64(Kind.MaxBytes)})
			return nil
		})
		for i, body := range bodies {
			key := layout.Resolution(first + uint64(i))
			// A number behind it that was found is a newer one, and read again with this one.
			if errors.Is(errs[i], objstore.ErrNotFound) {
				return nil
			}
			if errs[i] != nil {
				return fmt.Errorf("read resolution %s: %w", key, errs[i])
			}
			if err := l.take(key, body, authority); err != nil {
				return err
			}
		}
	}
}

func (l *Log) take(key string, b []byte, authority string) error {
	r, err := Parse(key, b)
	if err != nil {
		return err
	}
	if r.AuthorityID != authority {
		return Kind.Corrupt(key, "it is of the authority %q, ours is %q", r.AuthorityID, authority)
	}
	l.apply(r)
	return nil
}

// apply takes the decision with the next number.
func (l *Log) apply(r Resolution) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.through = r.Number
	head := r
	head.Conflicts = nil
	if l.attempt != "" && r.AttemptID == l.attempt {
		l.own = &head
	}
	if r.Action.Holds() {
		l.senders[identity.Boot{Agent: r.AgentID, Boot: r.BootID}] = &head
		return
	}
	for _, c := range r.Conflicts {
		k := frameKey{c.Of(r.AgentID), c.SubmittedSHA256}
		// The first one stands: an agent may have dropped the frame.
		if l.frames[k] == nil {
			l.frames[k] = &head
		}
	}
}

// Through is the number of the last decision that was read.
func (l *Log) Through() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.through
}

// Of returns the decision about a parked frame, without its conflicts; nil where there is none.
func (l *Log) Of(id identity.Batch, submitted identity.Digest) *Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frames[frameKey{id, submitted}]
}

// Quarantined returns the decision by which nothing is taken of the boot, of the boot or of its
// agent; nil where there is none.
func (l *Log) Quarantined(b identity.Boot) *Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range []identity.Boot{{Agent: b.Agent}, b} {
		if r := l.senders[of]; r != nil && r.Action == Quarantine {
			return r
		}
	}
	return nil
}

// Senders lists the decisions by which nothing is taken, by agent and boot, of one agent or of all ("").
func (l *Log) Senders(agent string) []*Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Resolution
	for of, r := range l.senders {
		if r.Action == Quarantine && (agent == "" || of.Agent == agent) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resolution) int {
		if c := strings.Compare(a.AgentID, b.AgentID); c != 0 {
			return c
		}
		return strings.Compare(a.BootID, b.BootID)
	})
	return out
}

// maxAttempts bounds how often Decide may lose its number to others, or learn nothing.
const maxAttempts = 32

// Decide adds r, without its number. It returns the decision that stands, and whether this call has
// written it: a repeated call finds what it asked for. A *StandingError says that something else was
// decided before.
func (l *Log) Decide(ctx context.Context, r Resolution) (*Resolution, bool, error) {
	if err := r.Check(); err != nil {
		return nil, false, err
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	l.begin(r.AttemptID)
	defer l.begin("")
	var unknown error
	for range maxAttempts {
		if err := l.read(ctx, r.AuthorityID); err != nil {
			return nil, false, errors.Join(err, unknown)
		}
		// An attempt before may have written it, and the answer was lost. Whatever others decided since then came after
		// it: a quarantine that was released meanwhile must not begin again.
		if own := l.written(); own != nil {
			return own, true, nil
		}
		rest, stands, err := l.judge(r)
		if err != nil {
			return nil, false, err
		}
		if stands != nil {
			return stands, false, nil
		}
		next := r
		next.Number, next.Conflicts = l.Through()+1, rest
		key, body := layout.Resolution(next.Number), next.Marshal()
		if len(body) > Kind.MaxBytes { // nobody could read it, nor anything after it
			return nil, false, fmt.Errorf("write resolution %s: %d bytes, at most %d", key, len(body), Kind.MaxBytes)
		}
		there, _, err := objstore.CreateOrGet(ctx, l.store, key, body, int64(Kind.MaxBytes), objstore.PutOptions{ContentType: "application/json"})
		switch {
		case err == nil && bytes.Equal(there, body):
			l.apply(next)
			head := next
			head.Conflicts = nil
			return &head, true, nil
		case err == nil: // somebody else's, which the next round reads
		case errors.Is(err, objstore.ErrUnknown) && ctx.Err() == nil:
			unknown = err
		default:
			return nil, false, fmt.Errorf("write resolution %s: %w", key, err)
		}
	}
	return nil, false, errors.Join(fmt.Errorf("write resolution: others took %d numbers", maxAttempts), unknown)
}

// begin notes the id of the decision that is being made; "" at its end.
func (l *Log) begin(attempt string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempt, l.own = attempt, nil
}

// written is the record of the decision that is being made, when it was read.
func (l *Log) written() *Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own
}

// judge says what of r is still to be decided, or which decision has all of it already.
func (l *Log) judge(r Resolution) (rest []Conflict, stands *Resolution, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Action.Holds() {
		of := identity.Boot{Agent: r.AgentID, Boot: r.BootID}
		now := l.senders[of]
		switch {
		case now != nil && now.Action == r.Action:
			return nil, now, nil
		case now == nil && r.Action == Release:
			return nil, nil, fmt.Errorf("%w: agent %q, boot %q", ErrNotHeld, of.Agent, of.Boot)
		}
	}
	for _, c := range r.Conflicts {
		c := c
		switch d := l.frames[frameKey{c.Of(r.AgentID), c.SubmittedSHA256}]; {
		case d == nil:
			rest = append(rest, c)
		case d.Action != r.Action:
			return nil, nil, &StandingError{By: d, Conflict: &c}
		default:
			stands = d
		}
	}
	if len(rest) > 0 {
		stands = nil
	}
	bound := uint64(MaxDecisions)
	if r.Action.Settles() {
		bound -= forSenders
	}
	if stands == nil && (l.through >= bound || len(l.frames)+len(rest) > MaxFrames) {
		return nil, nil, fmt.Errorf("%w: %d decisions about %d frames", ErrFull, l.through, len(l.frames))
	}
	return rest, stands, nil
}

// ErrNotHeld says that nothing is to be released.
var ErrNotHeld = errors.New("not in quarantine")
