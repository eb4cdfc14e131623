package dynamo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"lightmetrics.dev/lightmetrics/pkg/work"
)

func (c call) busy() error {
	return c.fail(fmt.Errorf("%w: changed by others %d times", work.ErrUnavailable, moves))
}

func (c call) alive(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return c.fail(fmt.Errorf("%w: %w", work.ErrUnavailable, err))
	}
	return nil
}

// Create implements work.Table.
func (t *Table) Create(ctx context.Context, r work.Row, cl *work.Claim) (work.Row, error) {
	if err := work.CheckCreate(r, cl); err != nil {
		return work.Row{}, err
	}
	c := t.at("create", r.Key.String())
	for range moves {
		if err := c.alive(ctx); err != nil {
			return work.Row{}, err
		}
		// The row first: if it is done in between, the log says so.
		old, err := c.row(ctx, r.Key)
		if err != nil {
			return work.Row{}, err
		}
		log, err := c.log(ctx, r.Log)
		if err != nil {
			return work.Row{}, err
		}
		var cur *work.Row
		if old != nil {
			cur = &old.Row
		}
		n, err := work.DecideCreate(cur, log, r, cl)
		if err != nil {
			return work.Row{}, err
		}
		now := t.o.Now()
		h := held{Row: n, until: now}
		h.Created, h.Modified, h.Increment = now, now, c.next(0)
		if cl != nil {
			h.until = now.Add(cl.Hold)
		}
		absent, same := unchanged(0, nil), unchanged(log.Increment, nil)
		err = c.transact(ctx,
			types.TransactWriteItem{Put: &types.Put{TableName: &t.o.Table, Item: fromRow(h), ConditionExpression: &absent.expr}},
			types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{TableName: &t.o.Table, Key: key("log", logSort(r.Log)),
				ConditionExpression: &same.expr, ExpressionAttributeNames: same.names, ExpressionAttributeValues: same.values}})
		if errors.Is(err, errChanged) {
			continue
		}
		return h.Row, err
	}
	return work.Row{}, c.busy()
}

func (c call) transact(ctx context.Context, items ...types.TransactWriteItem) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if _, err := c.c.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items}); err != nil {
		return c.lost(err, true)
	}
	return nil
}

// Get implements work.Table.
func (t *Table) Get(ctx context.Context, k work.Key) (work.Row, error) {
	if err := work.CheckKey("get", k); err != nil {
		return work.Row{}, err
	}
	c := t.at("get", k.String())
	h, err := c.row(ctx, k)
	if err == nil && h == nil {
		err = c.fail(work.ErrNotFound)
	}
	if err != nil {
		return work.Row{}, err
	}
	return h.Row, nil
}

// change decides by the row as it is and writes it if it still is so.
func (c call) change(ctx context.Context, k work.Key, hold time.Duration, decide func(cur *work.Row, live bool) (work.Row, error)) (work.Row, error) {
	for range moves {
		if err := c.alive(ctx); err != nil {
			return work.Row{}, err
		}
		old, err := c.row(ctx, k)
		if err != nil {
			return work.Row{}, err
		}
		var cur *work.Row
		live := false
		if old != nil {
			cur, live = &old.Row, old.Live
		}
		n, err := decide(cur, live)
		if err != nil {
			return work.Row{}, err
		}
		now := c.o.Now()
		h := held{Row: n, until: now.Add(hold)}
		h.Modified, h.Increment = now, c.next(old.Increment)
		cond := unchanged(old.Increment, &old.Owner)
		bounded, cancel := c.bound(ctx)
		_, err = c.c.PutItem(bounded, &dynamodb.PutItemInput{TableName: &c.o.Table, Item: fromRow(h),
			ConditionExpression: &cond.expr, ExpressionAttributeNames: cond.names, ExpressionAttributeValues: cond.values})
		cancel()
		if err == nil {
			return h.Row, nil
		}
		if err = c.lost(err, true); !errors.Is(err, errChanged) {
			return work.Row{}, err
		}
	}
	return work.Row{}, c.busy()
}

// Claim implements work.Table.
func (t *Table) Claim(ctx context.Context, r work.Row, cl work.Claim) (work.Row, error) {
	if err := work.CheckClaim("claim", r.Key, cl); err != nil {
		return work.Row{}, err
	}
	return t.at("claim", r.Key.String()).change(ctx, r.Key, cl.Hold, func(cur *work.Row, live bool) (work.Row, error) { return work.DecideClaim(cur, live, r, cl) })
}

// Checkpoint implements work.Table.
func (t *Table) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	if err := work.CheckCheckpoint(r.Key, state, hold); err != nil {
		return work.Row{}, err
	}
	return t.at("checkpoint", r.Key.String()).change(ctx, r.Key, hold, func(cur *work.Row, _ bool) (work.Row, error) { return work.DecideCheckpoint(cur, r, state) })
}

// Release implements work.Table.
func (t *Table) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	if err := work.CheckKey("release", r.Key); err != nil {
		return work.Row{}, err
	}
	return t.at("release", r.Key.String()).change(ctx, r.Key, 0, func(cur *work.Row, _ bool) (work.Row, error) { return work.DecideRelease(cur, r, handOver) })
}

// Touch implements work.Table.
func (t *Table) Touch(ctx context.Context, r work.Row) (work.Row, error) {
	if err := work.CheckKey("touch", r.Key); err != nil {
		return work.Row{}, err
	}
	return t.at("touch", r.Key.String()).change(ctx, r.Key, 0, func(cur *work.Row, live bool) (work.Row, error) { return work.DecideTouch(cur, live, r) })
}

// Done implements work.Table.
func (t *Table) Done(ctx context.Context, r work.Row) error {
	if err := work.CheckKey("done", r.Key); err != nil {
		return err
	}
	c := t.at("done", r.Key.String())
	for range moves {
		if err := c.alive(ctx); err != nil {
			return err
		}
		old, err := c.row(ctx, r.Key)
		if err != nil {
			return err
		}
		was, err := c.log(ctx, r.Log)
		if err != nil {
			return err
		}
		var cur *work.Row
		if old != nil {
			cur = &old.Row
		}
		l, err := work.DecideDone(cur, was, r)
		if err != nil {
			return err
		}
		l.Completed, l.Increment = t.o.Now(), c.next(was.Increment)
		row, log := unchanged(old.Increment, &old.Owner), unchanged(was.Increment, nil)
		err = c.transact(ctx,
			types.TransactWriteItem{Delete: &types.Delete{TableName: &t.o.Table, Key: key("row", rowSort(r.Key)),
				ConditionExpression: &row.expr, ExpressionAttributeNames: row.names, ExpressionAttributeValues: row.values}},
			types.TransactWriteItem{Put: &types.Put{TableName: &t.o.Table, Item: fromLog(l),
				ConditionExpression: &log.expr, ExpressionAttributeNames: log.names, ExpressionAttributeValues: log.values}})
		if !errors.Is(err, errChanged) {
			return err
		}
	}
	return c.busy()
}

// page reads items of a partition whose sort key lies below prefix.
func (c call) page(ctx context.Context, pk, prefix, after string, limit int) ([]item, string, error) {
	in := &dynamodb.QueryInput{TableName: &c.o.Table, ConsistentRead: aws.Bool(true), Limit: aws.Int32(int32(limit)),
		KeyConditionExpression: aws.String("pk = :p"), ExpressionAttributeValues: item{":p": str(pk)}}
	if prefix != "" {
		in.KeyConditionExpression, in.ExpressionAttributeValues[":s"] = aws.String("pk = :p AND begins_with(sk, :s)"), str(prefix+"/")
	}
	if after != "" {
		in.ExclusiveStartKey = key(pk, after)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := c.c.Query(ctx, in)
	if err != nil {
		return nil, "", c.lost(err, false)
	}
	return r.Items, text(r.LastEvaluatedKey, "sk"), nil
}

// Rows implements work.Table. A page may have fewer rows than there are, or none, and a next all the same.
func (t *Table) Rows(ctx context.Context, prefix, after string, limit int) ([]work.Row, string, error) {
	if err := work.CheckRows("rows", prefix, after, limit); err != nil {
		return nil, "", err
	}
	items, next, err := t.at("rows", prefix).page(ctx, "row", prefix, after, limit)
	var rows []work.Row
	for _, i := range items {
		rows = append(rows, t.toRow(i).Row)
	}
	return rows, next, err
}

// Log implements work.Table.
func (t *Table) Log(ctx context.Context, name string) (work.Log, error) {
	if err := work.CheckLog("log", name); err != nil {
		return work.Log{}, err
	}
	return t.at("log", name).log(ctx, name)
}

// Logs implements work.Table, with pages as in Rows.
func (t *Table) Logs(ctx context.Context, prefix, after string, limit int) ([]work.Log, string, error) {
	if err := work.CheckRows("logs", prefix, after, limit); err != nil {
		return nil, "", err
	}
	items, next, err := t.at("logs", prefix).page(ctx, "log", prefix, after, limit)
	var logs []work.Log
	for _, i := range items {
		logs = append(logs, toLog(i))
	}
	return logs, next, err
}

// Forget implements work.Table.
func (t *Table) Forget(ctx context.Context, l work.Log) error {
	if err := work.CheckLog("forget", l.Name); err != nil {
		return err
	}
	c := t.at("forget", l.Name)
	if l.Increment == 0 {
		return c.fail(work.ErrMoved)
	}
	cond := unchanged(l.Increment, nil)
	ctx, cancel := c.bound(ctx)
	defer cancel()
	_, err := c.c.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &t.o.Table, Key: key("log", logSort(l.Name)),
		ConditionExpression: &cond.expr, ExpressionAttributeNames: cond.names, ExpressionAttributeValues: cond.values})
	if err != nil {
		if err = c.lost(err, true); errors.Is(err, errChanged) {
			err = c.fail(work.ErrMoved)
		}
	}
	return err
}
