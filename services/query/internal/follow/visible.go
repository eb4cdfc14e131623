package follow

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Reasons of these errors, for callers to branch on.
const (
	ReasonNotVisible   = "TOKEN_NOT_VISIBLE"
	ReasonTokenUnknown = "TOKEN_UNKNOWN"
)

// NotVisibleError says that what a caller had been answered is not visible here yet.
type NotVisibleError struct {
	// Token is a position that was not reached; the zero one where everything was asked for.
	Token journal.Position
	Err   error // why, such as the error of the last poll; nil where only the time was over
}

func (e *NotVisibleError) Error() string {
	what := "what was accepted before the request"
	if e.Token != (journal.Position{}) {
		what = "min_token " + e.Token.String()
	}
	text := what + " is not visible here yet"
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *NotVisibleError) Unwrap() error { return e.Err }

// UnknownTokenError says that no collector of this authority has ever answered with a position.
type UnknownTokenError struct{ Token journal.Position }

func (e *UnknownTokenError) Error() string {
	return "min_token " + e.Token.String() + " is in no answer of this authority's collectors"
}

// WaitFor waits until the batches at all of these positions are in memory, in blocks or known to be missing, at
// most follow.token_timeout; with strong until everything is that was accepted before the call. Errors:
// *NotVisibleError, *UnknownTokenError, a context error.
func (f *Follower) WaitFor(ctx context.Context, tokens []journal.Position, strong bool) error {
	if len(tokens) == 0 && !strong {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, f.cfg.TokenTimeout)
	defer cancel()
	at, err := f.reach(wait, tokens, strong)
	if err == nil {
		// Everything of those segments is queued by now.
		at, err = journal.Position{}, f.queue.wait(wait)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	var unknown *UnknownTokenError
	if errors.As(err, &unknown) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &NotVisibleError{Token: at, Err: f.lastErr}
}

// reach waits until the journal was read to the positions. It returns one that was not reached.
func (f *Follower) reach(ctx context.Context, tokens []journal.Position, strong bool) (journal.Position, error) {
	f.mu.Lock()
	need := f.polls.begun + 1 // one that begins after this
	f.mu.Unlock()
	for _, p := range tokens {
		for {
			j := f.polledSince(need)
			ok, ended, _ := f.has(ctx, p)
			if ok {
				break
			}
			if j != nil {
				// Everything that was answered before the call is read. What stands there was, too, if it was answered.
				if j.Forgotten(p.Run) {
					break
				}
				return p, &UnknownTokenError{p}
			}
			if err := f.nextPoll(ctx, ended); err != nil {
				return p, err
			}
		}
	}
	for strong {
		f.mu.Lock()
		done, ended := f.polls.done, f.polls.ended
		f.mu.Unlock()
		if done >= need {
			break
		}
		if err := f.nextPoll(ctx, ended); err != nil {
			return journal.Position{}, err
		}
	}
	return journal.Position{}, nil
}

// polledSince is the journal's follower if a poll with that number, or a later one, has succeeded; else nil.
func (f *Follower) polledSince(number uint64) *journal.Follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A follower that has just been opened has read nothing yet, whatever the one before had.
	if f.polls.done < number || f.polls.by != f.journal {
		return nil
	}
	return f.journal
}

// nextPoll asks for a poll, and waits until one ends. After one that failed it waits a little longer, so that a store
// that is down is not asked without a pause.
func (f *Follower) nextPoll(ctx context.Context, ended <-chan struct{}) error {
	f.pollSoon()
	select {
	case <-ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	failed := f.lastErr != nil
	f.mu.Unlock()
	if failed {
		return run.Sleep(ctx, pollRetry)
	}
	return nil
}

// has reports whether a position was read; it reads the run's segments through it first, which costs less than a poll.
// ended is closed when the next poll ends.
func (f *Follower) has(ctx context.Context, p journal.Position) (ok bool, ended <-chan struct{}, err error) {
	f.mu.Lock()
	j, e := f.journal, f.polls.ended
	f.mu.Unlock()
	if j == nil {
		return false, e, nil
	}
	if !j.Has(p) {
		_, err = j.Read(ctx, p)
	}
	return j.Has(p), e, err
}
