package sqs_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"lightmetrics.dev/lightmetrics/pkg/work/sqs"
	"lightmetrics.dev/lightmetrics/pkg/work/worktest"
)

func TestQueueConformance(t *testing.T) {
	c := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: aws.String(worktest.Moto(t)), Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
	var n atomic.Int64
	worktest.Queue(t, func(t *testing.T, o worktest.Options) worktest.Env {
		q, err := sqs.New(c, sqs.Options{Prefix: fmt.Sprintf("t%d-", n.Add(1)), MaxTries: o.MaxTries, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return worktest.Env{Queue: q, Short: time.Second,
			Features: worktest.Features{NoDedupe: true, NoOrder: true, LateReceipts: true, Doubles: true, NoPages: true}}
	})
}

func TestPrefixIsChecked(t *testing.T) {
	if _, err := sqs.New(nil, sqs.Options{Prefix: "much-too-long-"}); err == nil {
		t.Error("a prefix that leaves no room for topics is taken")
	}
}
