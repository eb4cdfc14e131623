package load

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

// Path and header of a submission.
const (
	batchesPath = "/v1/batches"
	spoolHeader = "X-Lightmetrics-Spool-Id"
)

// maxAnswerBytes bounds the body of an answer.
const maxAnswerBytes = 1 << 20

// answer is what a collector said over HTTP.
type answer struct {
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

// durable reports whether the frame is in the bucket.
func (a answer) durable() bool { return a.Status == http.StatusOK }

// retry reports whether nothing may be assumed, and the same bytes should be sent again.
func (a answer) retry() bool {
	return a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable
}

// post submits one frame to the collector at base, such as "http://127.0.0.1:4751". After an
// error its outcome is unknown.
func post(ctx context.Context, c *http.Client, base, spool string, f []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+batchesPath, bytes.NewReader(f))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", frame.MediaType)
	req.Header.Set(spoolHeader, spool)
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return answer{}, err
	}
	var body struct {
		Duplicate bool
		Error     string
		Message   string
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return answer{}, fmt.Errorf("%s: %s: answer %.200q: %w", base, resp.Status, b, err)
	}
	a := answer{Status: resp.StatusCode, Duplicate: body.Duplicate, Reason: body.Error, Message: body.Message}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		a.RetryAfter = time.Duration(s) * time.Second
	}
	return a, nil
}
