package dynamo_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"lightmetrics.dev/lightmetrics/pkg/work/dynamo"
	"lightmetrics.dev/lightmetrics/pkg/work/worktest"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestTableConformance(t *testing.T) {
	c := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: aws.String(worktest.Moto(t)), Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
	var n atomic.Int64
	worktest.Table(t, func(t *testing.T, _ worktest.Options) worktest.Env {
		cl := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		tab := dynamo.New(c, dynamo.Options{Table: fmt.Sprintf("work-%d", n.Add(1)), Timeout: time.Minute, Now: cl.Now})
		if err := tab.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		return worktest.Env{Table: tab, Wait: cl.Wait, Short: time.Second}
	})
}
