// Package dynamo is the table of pending work in Amazon DynamoDB: one table, rows under
// the partition "row", logs under "log", sorted by log and number.
//
// Holds end by the clocks of clients, since DynamoDB has none. With skewed clocks a claim
// comes early or late; what is safe is so by the conditions on increment and owner.
package dynamo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"lightmetrics.dev/lightmetrics/pkg/work"
)

// Options of New.
type Options struct {
	// Table's name; its key is pk and sk, both strings.
	Table string
	// Timeout bounds each request; 0 means 10 s.
	Timeout time.Duration
	// Now is the clock that holds run by.
	Now func() time.Time
}

// Table is a work.Table; safe for concurrent use.
type Table struct {
	c *dynamodb.Client
	o Options
}

var _ work.Table = (*Table)(nil)

// moves is how often a change is decided again because what it was decided by had changed.
const moves = 16

// New makes a table over a client. The client must not retry (aws.NopRetryer): a retry
// of a change whose answer was lost would be refused, and look as if another had won.
func New(c *dynamodb.Client, o Options) *Table {
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	return &Table{c: c, o: o}
}

// createTimeout bounds the wait for a table to become of use.
const createTimeout = 2 * time.Minute

// Ensure creates the table, paid by request, where it is absent, and waits until it is of use.
func (t *Table) Ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	_, err := t.c.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: aws.String(t.o.Table), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}, {AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange}},
	})
	if used := (*types.ResourceInUseException)(nil); err != nil && !errors.As(err, &used) {
		return fmt.Errorf("dynamodb: create table %s: %w", t.o.Table, err)
	}
	err = dynamodb.NewTableExistsWaiter(t.c, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 100*time.Millisecond, 5*time.Second
	}).Wait(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(t.o.Table)}, createTimeout)
	if err != nil {
		return fmt.Errorf("dynamodb: table %s: %w", t.o.Table, err)
	}
	return nil
}

// call is one operation, for its errors.
type call struct {
	*Table
	op, key string
}

func (t *Table) at(op, key string) call { return call{t, op, key} }

func (c call) fail(err error) error { return &work.Error{Op: c.op, Key: c.key, Err: err} }

// errChanged: a condition did not hold; nothing was written.
var errChanged = errors.New("condition failed")

// lost is the error of a request that failed.
func (c call) lost(err error, change bool) error {
	var (
		cond     *types.ConditionalCheckFailedException
		canceled *types.TransactionCanceledException
		conflict *types.TransactionConflictException
		slow     *types.ProvisionedThroughputExceededException
		limit    *types.RequestLimitExceeded
	)
	s := work.ErrUnavailable
	switch {
	case errors.As(err, &cond):
		return errChanged
	case errors.As(err, &canceled):
		for _, r := range canceled.CancellationReasons {
			if code := aws.ToString(r.Code); code == "ConditionalCheckFailed" || code == "TransactionConflict" {
				return errChanged
			}
		}
	case errors.As(err, &conflict):
		return errChanged
	case errors.As(err, &slow), errors.As(err, &limit):
	case change:
		s = work.ErrUnknown
	}
	return c.fail(fmt.Errorf("%w: dynamodb: %w", s, err))
}

func (t *Table) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.o.Timeout)
}

type item = map[string]types.AttributeValue

func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func num[N ~int64 | ~uint64 | ~uint32](n N) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: fmt.Sprint(n)}
}

func key(pk, sk string) item { return item{"pk": str(pk), "sk": str(sk)} }

func rowSort(k work.Key) string    { return fmt.Sprintf("%s/%020d", k.Log, k.Number) }
func logSort(name string) string   { return name + "/" }
func unix(ns int64) time.Time      { return time.Unix(0, ns).UTC() }
func text(i item, k string) string { v, _ := i[k].(*types.AttributeValueMemberS); return value(v) }

func value(v *types.AttributeValueMemberS) string {
	if v == nil {
		return ""
	}
	return v.Value
}

func number(i item, k string) uint64 {
	v, ok := i[k].(*types.AttributeValueMemberN)
	if !ok {
		return 0
	}
	n, _ := strconv.ParseUint(v.Value, 10, 64)
	return n
}

func bytesOf(i item, k string) []byte {
	if v, ok := i[k].(*types.AttributeValueMemberB); ok {
		return v.Value
	}
	return nil
}

// held is a row and the end of its hold.
type held struct {
	work.Row
	until time.Time
}

func (t *Table) toRow(i item) *held {
	sk := text(i, "sk")
	at := strings.LastIndexByte(sk, '/')
	n, _ := strconv.ParseUint(sk[at+1:], 10, 64)
	active, _ := i["active"].(*types.AttributeValueMemberBOOL)
	h := &held{until: unix(int64(number(i, "until"))), Row: work.Row{Key: work.Key{Log: sk[:at], Number: n}, Topic: text(i, "topic"), Body: bytesOf(i, "body"),
		Created: unix(int64(number(i, "created"))), Modified: unix(int64(number(i, "modified"))), Active: active != nil && active.Value,
		Owner: text(i, "owner"), Increment: number(i, "increment"), Attempts: uint32(number(i, "attempts")), State: bytesOf(i, "state"), Fence: number(i, "fence")}}
	h.Live = h.Active && h.until.After(t.o.Now())
	return h
}

func fromRow(h held) item {
	i := key("row", rowSort(h.Key))
	i["topic"], i["created"], i["modified"] = str(h.Topic), num(h.Created.UnixNano()), num(h.Modified.UnixNano())
	i["body"] = &types.AttributeValueMemberB{Value: h.Body}
	i["active"], i["owner"] = &types.AttributeValueMemberBOOL{Value: h.Active}, str(h.Owner)
	i["increment"], i["attempts"], i["fence"], i["until"] = num(h.Increment), num(h.Attempts), num(h.Fence), num(h.until.UnixNano())
	if len(h.State) > 0 {
		i["state"] = &types.AttributeValueMemberB{Value: h.State}
	}
	return i
}

func toLog(i item) work.Log {
	return work.Log{Name: strings.TrimSuffix(text(i, "sk"), "/"), Last: number(i, "last"), Completed: unix(int64(number(i, "completed"))),
		Fence: number(i, "fence"), Increment: number(i, "increment")}
}

func fromLog(l work.Log) item {
	i := key("log", logSort(l.Name))
	i["last"], i["completed"], i["fence"], i["increment"] = num(l.Last), num(l.Completed.UnixNano()), num(l.Fence), num(l.Increment)
	return i
}

// get reads an item, strongly consistent; nil when it is absent.
func (c call) get(ctx context.Context, pk, sk string) (item, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := c.c.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String(c.o.Table), Key: key(pk, sk), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return nil, c.lost(err, false)
	}
	return r.Item, nil
}

func (c call) row(ctx context.Context, k work.Key) (*held, error) {
	i, err := c.get(ctx, "row", rowSort(k))
	if err != nil || i == nil {
		return nil, err
	}
	return c.toRow(i), nil
}

func (c call) log(ctx context.Context, name string) (work.Log, error) {
	i, err := c.get(ctx, "log", logSort(name))
	if err != nil || i == nil {
		return work.Log{Name: name}, err
	}
	return toLog(i), nil
}

// next is an increment above was, and above those of an item that was here before.
func (c call) next(was uint64) uint64 { return max(was+1, uint64(c.o.Now().UnixNano())) }

// condition that an item is as it was read; 0 is absent.
type condition struct {
	expr   string
	names  map[string]string
	values item
}

func unchanged(increment uint64, owner *string) condition {
	if increment == 0 {
		return condition{expr: "attribute_not_exists(pk)"}
	}
	c := condition{expr: "#i = :i", names: map[string]string{"#i": "increment"}, values: item{":i": num(increment)}}
	if owner != nil {
		c.expr, c.names["#o"], c.values[":o"] = c.expr+" AND #o = :o", "owner", str(*owner)
	}
	return c
}
