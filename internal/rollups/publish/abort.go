package publish

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// Abort makes sure that the generation can never be committed, so that the next one can be published. It returns
// the record that decides the generation: the Aborted record, or what was there before.
func (p *Publisher) Abort(ctx context.Context, n catalog.Name, reason string) (catalog.Record, error) {
	r, err := p.abort(ctx, n, reason)
	if err != nil {
		return r, fmt.Errorf("abort %s: %w", n.Key(), err)
	}
	return r, nil
}

func (c *core) abort(ctx context.Context, n catalog.Name, reason string) (catalog.Record, error) {
	a := catalog.Record{Aborted: &catalog.Aborted{
		AuthorityID: c.cfg.AuthorityID, Name: n, Reason: reason, WorkerID: c.cfg.WorkerID, AbortedAt: max(c.cfg.Clock.Now().UnixNano(), 0),
	}}
	err := c.createRecord(ctx, n.Key(), a)
	if err == nil {
		return a, nil
	}
	// The create found something or its outcome is unknown: the key tells which record decides. A key without a
	// record proves nothing, as the create may still be applied.
	r, _, e := c.record(ctx, n.Key())
	if e == nil && r != nil {
		return *r, nil
	}
	return catalog.Record{}, errors.Join(err, e)
}
