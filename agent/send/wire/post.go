package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Post's path and header.
const (
	path        = "/v1/batches"
	spoolHeader = "X-Lightmetrics-Spool-Id"
)

// maxAnswer bounds the body of an answer.
const maxAnswer = 1 << 20

// Answer is what a collector said over HTTP.
type Answer struct {
	// Status is the HTTP status: 200 is durable, 409 a conflict, 429 and 503 a retry, and
	// any other 4xx a reject.
	Status int
	// Duplicate: with 200, the same bytes were accepted before.
	Duplicate bool
	// Reason is stable, in lower case; Message is for people. Both are empty with 200.
	Reason, Message string
	// RetryAfter goes with 429 and 503.
	RetryAfter time.Duration
}

// Durable reports whether the frame is in the bucket.
func (a Answer) Durable() bool { return a.Status == http.StatusOK }

// Retry reports whether nothing may be assumed, and the same bytes should be sent again.
func (a Answer) Retry() bool {
	return a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable
}

// Post submits one frame to the collector at base, such as "http://127.0.0.1:4751". After an
// error its outcome is unknown.
func Post(ctx context.Context, c *http.Client, base, spool string, f []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(f))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", frame.MediaType)
	req.Header.Set(spoolHeader, spool)
	resp, err := c.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Answer{}, err
	}
	var body struct {
		Duplicate bool
		Error     string
		Message   string
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return Answer{}, fmt.Errorf("%s: %s: answer %.200q: %w", base, resp.Status, b, err)
	}
	a := Answer{Status: resp.StatusCode, Duplicate: body.Duplicate, Reason: body.Error, Message: body.Message}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		a.RetryAfter = time.Duration(s) * time.Second
	}
	return a, nil
}
