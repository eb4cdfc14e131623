// Package reprocess has the rollup workers read the journal once more: for batches that no block has although the
// record of their shard's progress says so, because blocks were lost or a worker was wrong. An operator's request is a
// job of pending work. A rollup worker takes its message, and puts the positions of the shards back to before the
// batches that the request names; their owners notice, and read on from there. What a published block holds already
// changes nothing.
package reprocess

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// What requests are in pending work: the body of a message, and a checkpoint. A worker that knows
// only some fields of a request would reprocess other batches than it asks for.
var (
	RequestKind  = record.Kind{Schema: "lightmetrics.reprocess_request.v1", Title: "reprocess request", MaxBytes: work.MaxBody, Exact: true}
	ProgressKind = record.Kind{Schema: "lightmetrics.reprocess_progress.v1", Title: "progress of a reprocess request", MaxBytes: work.MaxState}
)

// Topic of the messages of requests. Every rollup worker reads it.
const Topic = "reprocess"

// LogPrefix begins the names of the logs of requests.
const LogPrefix = "reprocess"

// Request says which accepted batches are to be read again.
type Request struct {
	// From and To bound the time of acceptance; To is not included.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Agent is the only one whose batches are meant; "" is all.
	Agent string `json:"agent,omitempty"`
}

// Selection asks the journal for the request's batches.
func (o Request) Selection() history.Selection {
	s := history.Selection{Accepted: history.Between(o.From, o.To)}
	if o.Agent != "" {
		s.Agents = func(agent string) bool { return agent == o.Agent }
	}
	return s
}

// ErrRequest: the request is invalid, and no later attempt can succeed.
var ErrRequest = errors.New("invalid reprocess request")

// Validate checks the bounds.
func (o Request) Validate() error {
	if !o.From.Before(o.To) {
		return fmt.Errorf("%w: from %s is not before to %s", ErrRequest, o.From.Format(time.RFC3339), o.To.Format(time.RFC3339))
	}
	// Times of the zero year are mistakes.
	if o.From.Year() < 2000 || o.To.Sub(o.From) > 20*365*24*time.Hour {
		return fmt.Errorf("%w: times before 2000, or 20 years of them", ErrRequest)
	}
	return nil
}

// ID is the same for equal requests, so that one which is made twice is one job.
func (o Request) ID() string {
	d := identity.Sum(record.JSON(o))
	return fmt.Sprintf("%x", d[:6])
}

// log is the name of the request's log.
func (o Request) log() string { return LogPrefix + "/" + o.ID() }

// message is the body of a request's message. Number distinguishes the request from an equal one that was completed
// earlier.
type message struct {
	Number uint64 `json:"number"`
	Request
}

// parse reads a message.
func parse(body []byte) (work.Key, Request, error) {
	var m message
	err := RequestKind.Unmarshal(body, &m)
	if err == nil {
		err = m.Request.Validate()
	}
	// Numbers begin with 1, and 0 is what a missing field reads as.
	if err == nil && m.Number == 0 {
		err = fmt.Errorf("%w: it has no number", ErrRequest)
	}
	if err != nil {
		return work.Key{}, Request{}, fmt.Errorf("message %.200q: %w", body, err)
	}
	return work.Key{Log: m.log(), Number: m.Number}, m.Request, nil
}

// Submit makes the request pending and sends its message. If an equal request is pending already, no other job is
// made and found is true; the second message does no harm.
func Submit(ctx context.Context, q work.Queue, t work.Table, o Request) (k work.Key, found bool, err error) {
	if err := o.Validate(); err != nil {
		return k, false, err
	}
	log, err := t.Log(ctx, o.log())
	if err != nil {
		return k, false, err
	}
	// The number after the completed ones: an equal request that is pending has just this number.
	k = work.Key{Log: log.Name, Number: log.Last + 1}
	_, err = t.Get(ctx, k)
	if err != nil && !errors.Is(err, work.ErrNotFound) {
		return k, false, err
	}
	found = err == nil
	body := RequestKind.Marshal(message{k.Number, o})
	return k, found, work.Submit(ctx, q, t, work.Row{Key: k, Topic: Topic, Body: body}, 0)
}
