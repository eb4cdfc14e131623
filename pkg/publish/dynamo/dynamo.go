// Package dynamo keeps the reference sets of published objects in a DynamoDB table.
//
// The table has the partition key p and the sort key k, both strings. Records are spread
// over 16 partitions by a hash of their key; the founding has one of its own. Attributes:
// txns (string set, absent when empty), condemned (boolean, only when true), v (number,
// changes with every change); of the founding id, number and settled.
package dynamo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"lightmetrics.dev/lightmetrics/pkg/publish"
)

// Refs is safe for concurrent use.
type Refs struct {
	c       *dynamodb.Client
	table   string
	timeout time.Duration
}

var _ publish.Refs = (*Refs)(nil)

// DefaultTimeout bounds a request.
const DefaultTimeout = 5 * time.Second

// New makes a store over a table that exists. timeout 0 means DefaultTimeout. The client
// should not retry by itself: pkg/publish does.
func New(c *dynamodb.Client, table string, timeout time.Duration) *Refs {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &Refs{c, table, timeout}
}

// CreateTable makes the table, with on-demand capacity; one that is there is no error.
func CreateTable(ctx context.Context, c *dynamodb.Client, table string) error {
	str := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: types.ScalarAttributeTypeS}
	}
	_, err := c.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &table, BillingMode: types.BillingModePayPerRequest, AttributeDefinitions: []types.AttributeDefinition{str("p"), str("k")},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("p"), KeyType: types.KeyTypeHash}, {AttributeName: aws.String("k"), KeyType: types.KeyTypeRange}},
	})
	var there *types.ResourceInUseException
	if errors.As(err, &there) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create table %q: %w", table, err)
	}
	return dynamodb.NewTableExistsWaiter(c).Wait(ctx, &dynamodb.DescribeTableInput{TableName: &table}, time.Minute)
}

type item = map[string]types.AttributeValue

func s(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }

func n(v uint64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatUint(v, 10)}
}

func boolean(v bool) types.AttributeValue { return &types.AttributeValueMemberBOOL{Value: v} }

var foundingKey = item{"p": s("founding"), "k": s("founding")}

func (r *Refs) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.timeout)
}

// failed is the error of a request that DynamoDB did not decide.
func failed(op, key string, err error) error {
	kind := publish.ErrRefsUnknown
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		kind = publish.ErrRefsInvalid // there is no such table
	}
	return fmt.Errorf("%s %q: %w: %w", op, key, kind, err)
}

// Founding reads the founding.
func (r *Refs) Founding(ctx context.Context) (publish.Founding, error) {
	var f publish.Founding
	ctx, cancel := r.bound(ctx)
	defer cancel()
	out, err := r.c.GetItem(ctx, &dynamodb.GetItemInput{TableName: &r.table, Key: foundingKey, ConsistentRead: aws.Bool(true)})
	if err != nil {
		return f, failed("founding", "", err)
	}
	if out.Item == nil {
		return f, fmt.Errorf("founding: %w", publish.ErrNoRecord)
	}
	f.ID = text(out.Item["id"])
	f.Settled = truth(out.Item["settled"])
	number, err := strconv.ParseUint(number(out.Item["number"]), 10, 32)
	if err != nil {
		return f, fmt.Errorf("founding: %w: %w", publish.ErrRefsInvalid, err)
	}
	f.Number = uint32(number)
	return f, nil
}

// Found replaces the founding if it still is old.
func (r *Refs) Found(ctx context.Context, old *publish.Founding, next publish.Founding) error {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	put := &dynamodb.PutItemInput{
		TableName: &r.table, ConditionExpression: aws.String("attribute_not_exists(p)"),
		Item: item{"p": s("founding"), "k": s("founding"), "id": s(next.ID), "number": n(uint64(next.Number)), "settled": boolean(next.Settled)},
	}
	if old != nil {
		put.ConditionExpression = aws.String("#i = :i AND #n = :n AND #s = :s")
		put.ExpressionAttributeNames = map[string]string{"#i": "id", "#n": "number", "#s": "settled"}
		put.ExpressionAttributeValues = item{":i": s(old.ID), ":n": n(uint64(old.Number)), ":s": boolean(old.Settled)}
	}
	_, err := r.c.PutItem(ctx, put)
	var no *types.ConditionalCheckFailedException
	if errors.As(err, &no) {
		return fmt.Errorf("found: %w", publish.ErrChanged)
	}
	if err != nil {
		return failed("found", "", err)
	}
	return nil
}

// founded is the condition that the founding is the caller's; it is first of every transaction.
func (r *Refs) founded(id string) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &r.table, Key: foundingKey, ConditionExpression: aws.String("#i = :i"),
		ExpressionAttributeNames: map[string]string{"#i": "id"}, ExpressionAttributeValues: item{":i": s(id)},
	}}
}

// transact gives the indexes of the conditions that did not hold.
func (r *Refs) transact(ctx context.Context, op, key string, items []types.TransactWriteItem) ([]int, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	_, err := r.c.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	if err == nil {
		return nil, nil
	}
	var no *types.TransactionCanceledException
	if !errors.As(err, &no) {
		return nil, failed(op, key, err)
	}
	var failedAt []int
	for i, reason := range no.CancellationReasons {
		if aws.ToString(reason.Code) == "ConditionalCheckFailed" {
			failedAt = append(failedAt, i)
		}
	}
	if failedAt == nil { // a conflict with another transaction, or throttled
		return nil, failed(op, key, err)
	}
	if failedAt[0] == 0 {
		return nil, fmt.Errorf("%s %q: %w", op, key, publish.ErrRefsLost)
	}
	return failedAt, nil
}

// Add puts t into the sets of keys, all or none.
func (r *Refs) Add(ctx context.Context, founding string, t publish.Txn, keys []string) error {
	if err := publish.CheckAdd(t, keys); err != nil {
		return err
	}
	items := []types.TransactWriteItem{r.founded(founding)}
	for _, k := range keys {
		items = append(items, types.TransactWriteItem{Update: &types.Update{
			TableName: &r.table, Key: key(k), UpdateExpression: aws.String("ADD txns :set, v :one"),
			ConditionExpression: aws.String("attribute_not_exists(condemned) AND (attribute_not_exists(txns) OR contains(txns, :t) OR size(txns) < :max)"),
			ExpressionAttributeValues: item{
				":set": &types.AttributeValueMemberSS{Value: []string{string(t)}}, ":t": s(string(t)), ":one": n(1), ":max": n(publish.MaxTxns),
			},
		}})
	}
	no, err := r.transact(ctx, "add", keys[0], items)
	if err != nil || no == nil {
		return err
	}
	var condemned []string
	for _, i := range no {
		rec, err := r.Get(ctx, keys[i-1])
		if err != nil && !errors.Is(err, publish.ErrNoRecord) {
			return err
		}
		if rec.Condemned {
			condemned = append(condemned, rec.Key)
		}
	}
	if condemned != nil {
		return &publish.CondemnedError{Keys: condemned}
	}
	return fmt.Errorf("add to %q: %w", keys[no[0]-1], publish.ErrRefsFull)
}

// Get reads a record.
func (r *Refs) Get(ctx context.Context, k string) (publish.Record, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	out, err := r.c.GetItem(ctx, &dynamodb.GetItemInput{TableName: &r.table, Key: key(k), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return publish.Record{}, failed("get", k, err)
	}
	if out.Item == nil {
		return publish.Record{}, fmt.Errorf("record %q: %w", k, publish.ErrNoRecord)
	}
	return record(out.Item), nil
}

func record(i item) publish.Record {
	rec := publish.Record{Key: text(i["k"]), Condemned: truth(i["condemned"]), Version: number(i["v"])}
	if set, ok := i["txns"].(*types.AttributeValueMemberSS); ok {
		for _, t := range set.Value {
			rec.Txns = append(rec.Txns, publish.Txn(t))
		}
	}
	slices.Sort(rec.Txns)
	return rec
}

func txns(ts []publish.Txn) types.AttributeValue {
	set := make([]string, len(ts))
	for i, t := range ts {
		set[i] = string(t)
	}
	return &types.AttributeValueMemberSS{Value: set}
}

// unchanged is the condition that the record is as it was read. The set is part of it,
// since a record that was dropped and made anew counts from 1 again.
func unchanged(old publish.Record) (string, item, uint64, error) {
	if old.Version == "" {
		return "attribute_not_exists(k)", nil, 0, nil
	}
	v, err := strconv.ParseUint(old.Version, 10, 64)
	if err != nil {
		return "", nil, 0, fmt.Errorf("record %q: %w: version %q", old.Key, publish.ErrRefsInvalid, old.Version)
	}
	if len(old.Txns) == 0 {
		return "v = :v AND attribute_not_exists(txns)", item{":v": n(v)}, v, nil
	}
	return "v = :v AND txns = :set", item{":v": n(v), ":set": txns(old.Txns)}, v, nil
}

// Swap writes next if the record is as it was read.
func (r *Refs) Swap(ctx context.Context, founding string, old, next publish.Record) error {
	condition, values, v, err := unchanged(old)
	if err != nil {
		return err
	}
	put := key(old.Key)
	put["v"] = n(v + 1)
	if len(next.Txns) > 0 {
		put["txns"] = txns(next.Txns)
	}
	if next.Condemned {
		put["condemned"] = boolean(true)
	}
	return r.change(ctx, "swap", founding, old.Key, types.TransactWriteItem{Put: &types.Put{
		TableName: &r.table, Item: put, ConditionExpression: &condition, ExpressionAttributeValues: values,
	}})
}

// Delete drops the record if it is as it was read.
func (r *Refs) Delete(ctx context.Context, founding string, old publish.Record) error {
	condition, values, _, err := unchanged(old)
	if err != nil {
		return err
	}
	return r.change(ctx, "delete", founding, old.Key, types.TransactWriteItem{Delete: &types.Delete{
		TableName: &r.table, Key: key(old.Key), ConditionExpression: &condition, ExpressionAttributeValues: values,
	}})
}

func (r *Refs) change(ctx context.Context, op, founding, k string, w types.TransactWriteItem) error {
	no, err := r.transact(ctx, op, k, []types.TransactWriteItem{r.founded(founding), w})
	if err == nil && no != nil {
		err = fmt.Errorf("%s %q: %w", op, k, publish.ErrChanged)
	}
	return err
}
