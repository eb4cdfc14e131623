// Package sqs is the queue of pending work in Amazon SQS: a standard queue and a queue of
// dead letters per topic, made when they are first used.
//
// It falls short of the others in these: no dedupe keys; no order; a deferred message is
// sent again, so that its old delivery may live on as a double; only ten dead letters are
// listed at a time, and in no order.
package sqs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"lightmetrics.dev/lightmetrics/pkg/work"
)

// Options of New.
type Options struct {
	// Prefix of the queues' names, at most 10 letters, digits, - and _.
	Prefix string
	// Timeout bounds each request; 0 means 10 s.
	Timeout time.Duration
	// MaxTries is how often a message is delivered; 0 means work.DefaultMaxTries.
	MaxTries int
}

// Queue is a work.Queue; safe for concurrent use.
type Queue struct {
	c *sqs.Client
	o Options

	mu     sync.Mutex
	topics map[string]urls
}

type urls struct{ live, dead string }

var _ work.Queue = (*Queue)(nil)

var prefixes = regexp.MustCompile(`^[A-Za-z0-9_-]{0,10}$`)

// maxTopics bounds what is remembered of topics; beyond, URLs are asked for again.
const maxTopics = 10_000

// retention is the longest that SQS keeps a message.
const retention = 14 * 24 * time.Hour

// New makes a queue over a client.
func New(c *sqs.Client, o Options) (*Queue, error) {
	if !prefixes.MatchString(o.Prefix) {
		return nil, fmt.Errorf("sqs: prefix %q: at most 10 letters, digits, - and _", o.Prefix)
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxTries <= 0 {
		o.MaxTries = work.DefaultMaxTries
	}
	return &Queue{c: c, o: o, topics: map[string]urls{}}, nil
}

// gone are the codes of a receipt that is not good any more.
var gone = map[string]bool{
	"ReceiptHandleIsInvalid": true, "MessageNotInflight": true, "InvalidParameterValue": true,
	"AWS.SimpleQueueService.MessageNotInflight": true, "InvalidParameterValueException": true,
}

func fail(op, key string, change bool, err error) error {
	var api smithy.APIError
	cause := work.ErrUnavailable
	switch {
	case errors.As(err, &api) && gone[api.ErrorCode()] && change:
		cause = work.ErrGone
	case errors.As(err, &api): // SQS answered: nothing was done
	case change:
		cause = work.ErrUnknown
	}
	return &work.Error{Op: op, Key: key, Err: fmt.Errorf("%w: sqs: %w", cause, err)}
}

func (q *Queue) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, q.o.Timeout)
}

// urls finds the queues of a topic, and makes them.
func (q *Queue) urls(ctx context.Context, topic string) (urls, error) {
	q.mu.Lock()
	u, ok := q.topics[topic]
	q.mu.Unlock()
	if ok {
		return u, nil
	}
	ctx, cancel := q.bound(ctx)
	defer cancel()
	keep := strconv.Itoa(int(retention.Seconds()))
	dead, err := q.c.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(q.o.Prefix + topic + "-dead"), Attributes: map[string]string{
		"MessageRetentionPeriod": keep,
		"VisibilityTimeout":      "0", // of a look at them; the SDK can't ask for it by request
	}})
	if err != nil {
		return u, err
	}
	a, err := q.c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: dead.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
	if err != nil {
		return u, err
	}
	policy, err := json.Marshal(map[string]any{"deadLetterTargetArn": a.Attributes["QueueArn"], "maxReceiveCount": q.o.MaxTries})
	if err != nil {
		return u, err
	}
	live, err := q.c.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(q.o.Prefix + topic),
		Attributes: map[string]string{"MessageRetentionPeriod": keep, "RedrivePolicy": string(policy)}})
	if err != nil {
		return u, err
	}
	u = urls{live: aws.ToString(live.QueueUrl), dead: aws.ToString(dead.QueueUrl)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.topics) >= maxTopics {
		clear(q.topics)
	}
	q.topics[topic] = u
	return u, nil
}

// attributes travel with a message wherever it is sent.
func attributes(id string, more map[string]string) map[string]types.MessageAttributeValue {
	set := map[string]types.MessageAttributeValue{}
	put := func(k, v string) {
		set[k] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(v)}
	}
	put("id", id)
	for k, v := range more {
		put(k, v)
	}
	return set
}

func attribute(m types.Message, name string) string {
	return aws.ToString(m.MessageAttributes[name].StringValue)
}

func seconds(d time.Duration) int32 { return int32(math.Ceil(d.Seconds())) }

func (q *Queue) put(ctx context.Context, url, id string, body []byte, delay time.Duration, more map[string]string) error {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	_, err := q.c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: aws.String(url), DelaySeconds: seconds(delay),
		MessageBody: aws.String(base64.StdEncoding.EncodeToString(body)), MessageAttributes: attributes(id, more)})
	return err
}

// take receives up to n messages.
func (q *Queue) take(ctx context.Context, url string, n int, visibility time.Duration) ([]types.Message, error) {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	r, err := q.c.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(url), MaxNumberOfMessages: int32(n), VisibilityTimeout: seconds(visibility),
		MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll}})
	if err != nil {
		return nil, err
	}
	return r.Messages, nil
}

func (q *Queue) remove(ctx context.Context, url, receipt string) error {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	_, err := q.c.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: aws.String(url), ReceiptHandle: aws.String(receipt)})
	var api smithy.APIError
	if errors.As(err, &api) && gone[api.ErrorCode()] {
		return nil
	}
	return err
}

func (q *Queue) hide(ctx context.Context, url, receipt string, d time.Duration) error {
	ctx, cancel := q.bound(ctx)
	defer cancel()
	_, err := q.c.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: aws.String(url), ReceiptHandle: aws.String(receipt), VisibilityTimeout: seconds(d)})
	return err
}
