package work

import (
	"context"
	"errors"
	"time"
)

// Submit makes a job pending and sends its message. The row comes first, so that the sweep notices a message that
// is lost or was never sent. A job that is pending already gets another message; a completed one gets none. The
// job starts from r.State, and not before delay (0 to MaxDelay) has passed.
func Submit(ctx context.Context, q Queue, t Table, r Row, delay time.Duration) error {
	switch _, err := t.Create(ctx, r, nil); {
	// Nothing is left to do, so a message would only be received and deleted.
	case errors.Is(err, ErrCompleted):
		return nil
	case err != nil && !errors.Is(err, ErrExists):
		return err
	}
	return q.Send(ctx, r.Topic, r.Body, SendOptions{Delay: delay, DedupeKey: dedupe(r.Key)})
}

// dedupe is the key of a job's message; "" for a log whose name leaves no room for the number.
func dedupe(k Key) string {
	if s := k.String(); len(s) <= MaxName {
		return s
	}
	return ""
}

// Sweep finds rows whose message is lost. It goes by the state and not by events: every row that is pending, not
// live and unchanged for a while gets its message again.
type Sweep struct {
	Queue Queue
	Table Table
	// Prefix of the logs that are swept; "" is all.
	Prefix string
	// Grace is how long a row must be unchanged before its message is sent again.
	Grace time.Duration
	// MaxAttempts as in Config: rows that reached it wait for an operator.
	MaxAttempts uint32
	// Forget removes what is left of logs whose last job was completed so long ago; 0 keeps it. It must be longer
	// than any message or its duplicate can exist.
	Forget time.Duration
}

// Swept counts what a sweep did.
type Swept struct {
	Rows    int // checked
	Sent    int // messages sent again
	Stuck   int // rows beyond MaxAttempts
	Forgot  int // logs
	Refused int // rows that changed meanwhile
}

// Run goes once through all rows and logs. now is compared with times of the back end's clock; skew makes a
// message early or late, and both are harmless.
func (s Sweep) Run(ctx context.Context, now time.Time) (Swept, error) {
	var n Swept
	for after := ""; ; {
		rows, next, err := s.Table.Rows(ctx, s.Prefix, after, MaxPage)
		if err != nil {
			return n, err
		}
		for _, r := range rows {
			if err := s.row(ctx, r, now, &n); err != nil {
				return n, err
			}
		}
		if next == "" {
			break
		}
		after = next
	}
	if s.Forget <= 0 {
		return n, nil
	}
	return n, s.logs(ctx, now, &n)
}

func (s Sweep) row(ctx context.Context, r Row, now time.Time, n *Swept) error {
	n.Rows++
	switch {
	case r.Live || now.Sub(r.Modified) < s.Grace:
		return nil
	case r.Attempts >= s.MaxAttempts:
		n.Stuck++
		return nil
	}
	if err := s.Queue.Send(ctx, r.Topic, r.Body, SendOptions{DedupeKey: dedupe(r.Key)}); err != nil {
		return err
	}
	n.Sent++
	// The row is touched after the message was sent, so that a crash in between sends one message too many, not
	// one too few.
	switch _, err := s.Table.Touch(ctx, r); {
	case errors.Is(err, ErrMoved), errors.Is(err, ErrLive):
		n.Refused++
	case err != nil:
		return err
	}
	return nil
}

func (s Sweep) logs(ctx context.Context, now time.Time, n *Swept) error {
	for after := ""; ; {
		logs, next, err := s.Table.Logs(ctx, s.Prefix, after, MaxPage)
		if err != nil {
			return err
		}
		for _, l := range logs {
			// While the log exists, a late duplicate of its messages is recognized as completed.
			if now.Sub(l.Completed) < s.Forget {
				continue
			}
			switch err := s.Table.Forget(ctx, l); {
			case err == nil:
				n.Forgot++
			// Another job of the log was completed since it was listed, so it is young again.
			case !errors.Is(err, ErrMoved):
				return err
			}
		}
		if next == "" {
			return nil
		}
		after = next
	}
}
