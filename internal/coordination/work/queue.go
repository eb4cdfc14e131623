package work

import (
	"context"
	"time"
)

// Bounds of the time that a message is hidden.
const (
	MinVisibility = time.Second
	MaxVisibility = 12 * time.Hour
	// MaxDelay bounds SendOptions.Delay and the delay of Defer.
	MaxDelay = 15 * time.Minute
)

// DefaultMaxTries is how often a queue delivers a message before it is a dead letter.
// It is a backstop: a Worker buries a job that makes no progress long before.
const DefaultMaxTries = 100

// MaxMessages is the most messages of a topic, not counting dead letters.
const MaxMessages = 100_000

// MaxDeadLetters is the most dead letters of a topic; one more drops the oldest. The rows
// of their jobs stay.
const MaxDeadLetters = 10_000

// SendOptions go with a message.
type SendOptions struct {
	// Delay hides the message at first; 0 to MaxDelay. A back end may round up to whole seconds.
	Delay time.Duration
	// DedupeKey drops the message while another with the same key waits in the topic and was never delivered. ""
	// always keeps it. It only saves work: a back end may let duplicates pass.
	DedupeKey string
}

// Message is one delivery.
type Message struct {
	// ID is the same in every delivery of the message.
	ID    string
	Topic string
	Body  []byte
	// Tries counts the deliveries, this one included, since the message was sent,
	// redriven or deferred: 1 is the first.
	Tries int
	// Receipt identifies this delivery.
	Receipt string
}

// DeadLetter is a message that is no longer delivered.
type DeadLetter struct {
	ID     string
	Topic  string
	Body   []byte
	Tries  int
	Reason string
	// Buried is when, by the back end's clock.
	Buried time.Time
}

// Depth counts the messages of a topic; approximate while it is in use.
type Depth struct {
	Ready  int // to be delivered now
	Hidden int // delivered and not yet visible again, or delayed
	Dead   int
}

// Queue delivers messages at least once, roughly in the order in which they became visible. Topics need not be
// created. Times are those of the back end.
type Queue interface {
	// Send adds a message. After ErrUnknown it may have been added; sending again is harmless.
	Send(ctx context.Context, topic string, body []byte, o SendOptions) error
	// Receive takes up to n (1 to MaxReceive) visible messages and hides them for visibility. It does not wait: no
	// message is an empty result. A message beyond the queue's tries becomes a dead letter instead.
	Receive(ctx context.Context, topic string, n int, visibility time.Duration) ([]Message, error)
	// Extend hides the delivered message for d (MinVisibility to MaxVisibility) from now; ErrGone.
	Extend(ctx context.Context, m Message, d time.Duration) error
	// Terminate makes the delivered message visible at once; the try counts. ErrGone.
	Terminate(ctx context.Context, m Message) error
	// Defer makes it visible after delay (0 to MaxDelay) as if it had not been delivered. ErrGone.
	Defer(ctx context.Context, m Message, delay time.Duration) error
	// Delete removes the message, whichever delivery m is. If it is gone already, that is no error.
	Delete(ctx context.Context, m Message) error
	// Bury makes the delivered message a dead letter; ErrGone.
	Bury(ctx context.Context, m Message, reason string) error
	// DeadLetters reads a page (1 to MaxPage) of dead letters; after is "" or the next of
	// the page before, which is "" at the end.
	DeadLetters(ctx context.Context, topic, after string, limit int) (letters []DeadLetter, next string, err error)
	// Redrive sends a dead letter again, untried; ErrNotFound.
	Redrive(ctx context.Context, topic, id string) error
	// Depth counts.
	Depth(ctx context.Context, topic string) (Depth, error)
}

// CheckTopic refuses a name that no topic can have.
func CheckTopic(op, topic string) error {
	if !plain(topic, "-_", MaxTopic) {
		return invalid(op, topic, "a topic is 1 to %d letters, digits, - and _", MaxTopic)
	}
	return nil
}

// CheckSend refuses what no back end accepts.
func CheckSend(topic string, body []byte, o SendOptions) error {
	if err := CheckTopic("send", topic); err != nil {
		return err
	}
	switch {
	case len(body) == 0 || len(body) > MaxBody:
		return invalid("send", topic, "a body of %d bytes; 1 to %d", len(body), MaxBody)
	case o.Delay < 0 || o.Delay > MaxDelay:
		return invalid("send", topic, "a delay of %v; 0 to %v", o.Delay, MaxDelay)
	case o.DedupeKey != "" && !checkName(o.DedupeKey):
		return invalid("send", topic, "dedupe key %q", o.DedupeKey)
	}
	return nil
}

// CheckReceive refuses what no back end accepts.
func CheckReceive(topic string, n int, visibility time.Duration) error {
	if err := CheckTopic("receive", topic); err != nil {
		return err
	}
	if n < 1 || n > MaxReceive {
		return invalid("receive", topic, "%d messages; 1 to %d", n, MaxReceive)
	}
	return checkVisibility("receive", topic, visibility)
}

// CheckDelivery refuses a message that did not come from Receive.
func CheckDelivery(op string, m Message) error {
	if err := CheckTopic(op, m.Topic); err != nil {
		return err
	}
	if m.ID == "" || m.Receipt == "" || len(m.ID) > MaxState || len(m.Receipt) > MaxState {
		return invalid(op, m.Topic, "a message without id or receipt")
	}
	return nil
}

// CheckExtend refuses what no back end accepts.
func CheckExtend(m Message, d time.Duration) error {
	if err := CheckDelivery("extend", m); err != nil {
		return err
	}
	return checkVisibility("extend", m.Key(), d)
}

// CheckDefer refuses what no back end accepts.
func CheckDefer(m Message, delay time.Duration) error {
	if err := CheckDelivery("defer", m); err != nil {
		return err
	}
	if delay < 0 || delay > MaxDelay {
		return invalid("defer", m.Key(), "a delay of %v; 0 to %v", delay, MaxDelay)
	}
	return nil
}

// CheckDeadLetters refuses what no back end accepts.
func CheckDeadLetters(topic, after string, limit int) error {
	if err := CheckTopic("dead letters", topic); err != nil {
		return err
	}
	return CheckPage("dead letters", topic, after, limit)
}

// CheckPage refuses a page that no back end returns.
func CheckPage(op, key, after string, limit int) error {
	if limit < 1 || limit > MaxPage {
		return invalid(op, key, "a page of %d; 1 to %d", limit, MaxPage)
	}
	if len(after) > 4*MaxName {
		return invalid(op, key, "a page token of %d bytes", len(after))
	}
	return nil
}

func checkVisibility(op, key string, d time.Duration) error {
	if d < MinVisibility || d > MaxVisibility {
		return invalid(op, key, "a visibility of %v; %v to %v", d, MinVisibility, MaxVisibility)
	}
	return nil
}

// Key is topic and id, for errors and logs.
func (m Message) Key() string { return m.Topic + "/" + m.ID }

// CutReason cuts the reason to what a dead letter keeps.
func CutReason(s string) string { return s[:min(len(s), MaxReasonBytes)] }
