package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Statuses as they stand on the wire.
const (
	Accepted  = "BATCH_STATUS_ACCEPTED"
	Duplicate = "BATCH_STATUS_DUPLICATE"
	Conflict  = "BATCH_STATUS_IDENTITY_CONFLICT"
	Retry     = "BATCH_STATUS_RETRY"
)

// Poster sends frames over HTTP.
type Poster struct {
	Spool string
	// Client sends; nil is http.DefaultClient.
	Client *http.Client
	// Calls, where it is not nil, gets each submission, under the name ClientID.
	Calls    *history.Log
	ClientID int
}

// Post sends the frame to one collector after the other until it has an outcome, and
// gives it as the stream's status. Anything but 200, 409, 429 and 503 is an error.
func (p *Poster) Post(ctx context.Context, f []byte, addrs ...string) (string, error) {
	h, err := frame.ParseHeader(f)
	if err != nil {
		return "", err
	}
	d := identity.Sum(f)
	var last error
	for i := 0; ; i++ {
		call := p.Calls.Call(p.ClientID, h.Identity, d)
		status, err := p.post(ctx, f, addrs[i%len(addrs)])
		// An unknown status gives the zero outcome, which leaves the call open in the history.
		call.End(history.Reply{Outcome: outcomes[status], Unnamed: true})
		if status != "" {
			return status, err
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(ctx.Err(), last)
		case <-time.After(tryAgain):
		}
	}
}

// post gives "" where the outcome is unknown, and "failed" with an error where no retry helps.
func (p *Poster) post(ctx context.Context, f []byte, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	client := p.Client
	if client == nil {
		client = http.DefaultClient
	}
	a, err := post(ctx, client, "http://"+addr, p.Spool, f)
	switch {
	case err != nil:
		return "", err
	case a.durable() && a.Duplicate:
		return Duplicate, nil
	case a.durable():
		return Accepted, nil
	case a.Status == http.StatusConflict:
		return Conflict, nil
	}
	err = fmt.Errorf("%d %s: %s", a.Status, a.Reason, a.Message)
	if a.retry() {
		return "", err
	}
	return "failed", err
}
