package dynamo

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"lightmetrics.dev/lightmetrics/pkg/publish"
)

// partitions that records are spread over. Changing it loses records.
const partitions = 16

func partition(i uint32) string { return fmt.Sprintf("record-%x", i) }

func key(k string) item {
	h := fnv.New32a()
	h.Write([]byte(k))
	return item{"p": s(partition(h.Sum32() % partitions)), "k": s(k)}
}

// defaultLimit of a page of List.
const defaultLimit = 1000

// List reads a page of every partition and merges them.
func (r *Refs) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	if limit <= 0 || limit > defaultLimit {
		limit = defaultLimit
	}
	var all []publish.Record
	for i := range uint32(partitions) {
		recs, err := r.query(ctx, partition(i), after, limit+1)
		if err != nil {
			return nil, "", err
		}
		all = append(all, recs...)
	}
	slices.SortFunc(all, func(a, b publish.Record) int { return strings.Compare(a.Key, b.Key) })
	if len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], all[limit-1].Key, nil
}

// query reads up to limit records of a partition with keys greater than after.
func (r *Refs) query(ctx context.Context, p, after string, limit int) ([]publish.Record, error) {
	var recs []publish.Record
	in := &dynamodb.QueryInput{
		TableName: &r.table, ConsistentRead: aws.Bool(true), KeyConditionExpression: aws.String("p = :p"), ExpressionAttributeValues: item{":p": s(p)},
	}
	if after != "" {
		in.KeyConditionExpression = aws.String("p = :p AND k > :k")
		in.ExpressionAttributeValues[":k"] = s(after)
	}
	for len(recs) < limit {
		in.Limit = aws.Int32(int32(limit - len(recs)))
		out, err := r.page(ctx, in)
		if err != nil {
			return nil, failed("list", after, err)
		}
		for _, i := range out.Items {
			recs = append(recs, record(i))
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; in.ExclusiveStartKey == nil {
			break
		}
	}
	return recs, nil
}

func (r *Refs) page(ctx context.Context, in *dynamodb.QueryInput) (*dynamodb.QueryOutput, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	return r.c.Query(ctx, in)
}

func text(v types.AttributeValue) string {
	if t, ok := v.(*types.AttributeValueMemberS); ok {
		return t.Value
	}
	return ""
}

func number(v types.AttributeValue) string {
	if t, ok := v.(*types.AttributeValueMemberN); ok {
		return t.Value
	}
	return ""
}

func truth(v types.AttributeValue) bool {
	t, ok := v.(*types.AttributeValueMemberBOOL)
	return ok && t.Value
}
