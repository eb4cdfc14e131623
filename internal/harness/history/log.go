package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// maxReported bounds the identities that Check names.
const maxReported = 5

// Log is the history of any number of senders, each submission of theirs a call. It is
// bounded: of an identity it keeps the calls with an answer, and of those without the first for each hash.
type Log struct {
	// Register is what each identity's answers are compared with; set before the first call.
	Register porcupine.Model

	start time.Time
	max   int

	mu      sync.Mutex
	kept    int
	dropped int
	of      map[identity.Batch]*calls
}

// calls are those of one identity.
type calls struct {
	answered []porcupine.Operation
	// An unanswered call may take effect at any time after its start, and only once does it
	// matter: the first one can stand in for all that follow with the same bytes.
	lost map[identity.Digest]porcupine.Operation
}

// Call is a submission without an answer yet.
type Call struct {
	log    *Log
	client int
	id     identity.Batch
	mine   identity.Digest
	from   int64
}

// NewLog keeps at most this many calls; identities that come later are not recorded.
func NewLog(most int) *Log {
	return &Log{Register: Register, start: time.Now(), max: most, of: map[identity.Batch]*calls{}}
}

// Call begins a submission: no byte of it was sent before. A nil log keeps nothing.
func (l *Log) Call(client int, id identity.Batch, mine identity.Digest) Call {
	if l == nil {
		return Call{}
	}
	return Call{l, client, id, mine, time.Since(l.start).Nanoseconds()}
}

// End ends it with what the sender saw; the zero Reply is a failure, or "try again", and
// leaves the outcome open.
func (c Call) End(r Reply) {
	l := c.log
	if l == nil {
		return
	}
	to := time.Since(l.start).Nanoseconds()
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.of[c.id]
	if x == nil {
		// Only new identities are left out: a history with some calls missing could look wrong when it is
		// right.
		if l.kept >= l.max {
			l.dropped++
			return
		}
		x = &calls{lost: map[identity.Digest]porcupine.Operation{}}
		l.of[c.id] = x
	}
	op := Operation(c.client, c.mine, c.from, to, r)
	if r.Outcome != 0 {
		x.answered = append(x.answered, op)
		l.kept++
		return
	}
	// The earliest start is kept: it allows every moment that a later one would allow.
	if first, ok := x.lost[c.mine]; !ok || op.Call < first.Call {
		x.lost[c.mine] = op
		if !ok {
			l.kept++
		}
	}
}

// Stats of a log.
type Stats struct {
	Identities int
	Answers    int
	// Open are the hashes of identities of which some call had no answer.
	Open int
	// Unseen are identities that no answer said to be accepted, though they are held: the
	// answer to the call that took effect was lost.
	Unseen int
	// Dropped calls had no room.
	Dropped int
}

// Check checks every identity, and names those whose answers are not those of a register.
func (l *Log) Check() (Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Identities: len(l.of), Dropped: l.dropped}
	var errs []error
	for id, x := range l.of {
		ops := append([]porcupine.Operation(nil), x.answered...)
		// Calls without an answer are part of the history: one of them may be the write that later answers
		// tell of.
		for _, op := range x.lost {
			ops = append(ops, op)
		}
		s.Answers += len(x.answered)
		s.Open += len(x.lost)
		if len(x.answered) > 0 && !slices.ContainsFunc(x.answered, accepted) {
			s.Unseen++
		}
		if Linearizable(l.Register, ops) {
			continue
		}
		if len(errs) < maxReported {
			errs = append(errs, fmt.Errorf("the answers of %s are not those of a write-once register:%s", id, describe(ops)))
		}
	}
	return s, errors.Join(errs...)
}

func accepted(op porcupine.Operation) bool { return op.Output.(Reply).Outcome == accept.Accepted }

func describe(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range ops {
		r := op.Output.(Reply)
		if r.Outcome == 0 {
			fmt.Fprintf(&b, "\n  client %d sends %s from %v on, without an answer", op.ClientId, op.Input, time.Duration(op.Call))
			continue
		}
		fmt.Fprintf(&b, "\n  client %d sends %s at %v and gets %s at %v, holder %s", op.ClientId, op.Input,
			time.Duration(op.Call), r.Outcome, time.Duration(op.Return), r.Holder)
	}
	return b.String()
}
