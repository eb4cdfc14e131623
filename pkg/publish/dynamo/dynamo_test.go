package dynamo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/publish/refstest"
	"lightmetrics.dev/lightmetrics/pkg/work/worktest"
)

func client(endpoint string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("a", "b", ""), Retryer: aws.NopRetryer{},
	})
}

func TestConformance(t *testing.T) {
	c := client(worktest.Moto(t))
	var n atomic.Int64
	refstest.Run(t, func(t *testing.T) publish.Refs {
		table := fmt.Sprintf("refs-%d", n.Add(1))
		for range 2 { // the second time it is there
			if err := CreateTable(t.Context(), c, table); err != nil {
				t.Fatal(err)
			}
		}
		return New(c, table, 10*time.Second)
	}, refstest.Features{}) // the emulator does not isolate transactions: no races
}

// What is not there is told apart from what does not answer.
func TestNoTableAndNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + l.Addr().String()
	l.Close()
	r := New(client(endpoint), "none", time.Second)
	if _, err := r.Get(context.Background(), "k"); !errors.Is(err, publish.ErrRefsUnknown) {
		t.Errorf("without a server: %v", err)
	}
	r = New(client(worktest.Moto(t)), "none", 10*time.Second)
	if _, err := r.Get(context.Background(), "k"); !errors.Is(err, publish.ErrRefsInvalid) {
		t.Errorf("without a table: %v", err)
	}
}
