package cluster

import (
	"context"
	"fmt"
	"time"

	promapi "github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Range asks the query service for a range, as Instant does for one time.
func (c *Cluster) Range(ctx context.Context, expression string, r promv1.Range) (model.Matrix, []string, error) {
	client, err := promapi.NewClient(promapi.Config{Address: "http://" + c.Addr.QueryHTTP})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	v, warnings, _, err := promv1.NewAPI(client).QueryRange(ctx, expression, r)
	if err != nil {
		return nil, nil, fmt.Errorf("query %s: %w", expression, err)
	}
	m, ok := v.(model.Matrix)
	if !ok {
		return nil, nil, fmt.Errorf("query %s: got a %s", expression, v.Type())
	}
	return m, warnings, nil
}

// RawBlocks reads, from the bucket itself, the block of each shard and hour from
// from to to that counts: raw samples, highest generation.
func (c *Cluster) RawBlocks(ctx context.Context, from, to time.Time) ([]*catalog.Block, error) {
	view, err := c.blocks(ctx, from, to)
	if err != nil {
		return nil, err
	}
	var blocks []*catalog.Block
	for _, h := range view.Hours() {
		blocks = append(blocks, view.Blocks(h, timegrid.Raw)...)
	}
	return blocks, nil
}

// RolledUp counts, in the bucket itself, the batches that blocks of hours from from to to have, and those that only
// deltas have. A batch with samples of two hours counts twice.
func (c *Cluster) RolledUp(ctx context.Context, from, to time.Time) (blocks, deltas int, err error) {
	view, err := c.blocks(ctx, from, to)
	if err != nil {
		return 0, 0, err
	}
	for _, h := range view.Hours() {
		for _, b := range view.Blocks(h, timegrid.Raw) {
			blocks += int(b.Inputs.Batches())
		}
		for _, l := range view.Late(h) {
			deltas += len(l.Batches)
		}
	}
	return blocks, deltas, nil
}

func (c *Cluster) blocks(ctx context.Context, from, to time.Time) (*catalog.View, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	cat, err := catalog.New(catalog.Config{Reader: store, AuthorityID: c.o.AuthorityID})
	if err != nil {
		return nil, err
	}
	if _, err := cat.Refresh(ctx, timegrid.HourStarting(from)-1, timegrid.HourStarting(to)); err != nil {
		return nil, err
	}
	return cat.RefreshDeltas(ctx)
}
