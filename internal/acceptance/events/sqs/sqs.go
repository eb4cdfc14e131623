// Package sqs is the SQS back end of events: an adapter over the AWS SDK. The SDK signs and encodes; it never tries a
// request again, since the consumer does.
package sqs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// batch is the most messages that a request may be about.
const batch = 10

// maxAnswer bounds an answer: ten messages, with room for how JSON writes them.
const maxAnswer = 4 * batch * events.MaxMessage

// requestTimeout bounds a request, beside the time that it waits for messages.
const requestTimeout = 10 * time.Second

// Queue is one queue.
type Queue struct {
	cfg    events.Queue
	client *awssqs.Client
	http   *http.Transport
}

var _ events.MessageQueue = (*Queue)(nil)

// Open makes the client; it sends no request to the queue. Credentials and region that the settings leave out are those of the store.
func Open(ctx context.Context, cfg events.Queue, store s3.Config) (*Queue, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("sqs: url: %w", err)
	}
	if cfg.Region == "" {
		cfg.Region = store.Region
	}
	if cfg.AccessKeyID == "" {
		cfg.AccessKeyID, cfg.SecretAccessKey = store.AccessKeyID, store.SecretAccessKey
	}
	var creds aws.CredentialsProvider = credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey.Reveal(), "")
	if cfg.AccessKeyID == "" {
		// As the store's: the chain of the AWS SDK, and only where neither has keys in its settings.
		chain, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(cfg.Region))
		if err != nil {
			return nil, fmt.Errorf("sqs: default credentials: %w", err)
		}
		creds = chain.Credentials
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if t.TLSClientConfig.RootCAs, err = tlsfile.ReadPool(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("sqs: ca_file: %w", err)
		}
	}
	q := &Queue{cfg: cfg, http: t}
	q.client = awssqs.New(awssqs.Options{
		Region: cfg.Region, Credentials: creds, Retryer: aws.NopRetryer{}, HTTPClient: &http.Client{Transport: bounded{t}},
		// The queue's URL says where it is, whatever the region's endpoint would be.
		BaseEndpoint: aws.String(u.Scheme + "://" + u.Host),
	})
	return q, nil
}

// bounded bounds answers, which the SDK reads whole.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// Close drops idle connections.
func (q *Queue) Close() { q.http.CloseIdleConnections() }

func (q *Queue) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqs: %s %s: %w", op, q.cfg.URL, err)
}

// Receive implements events.MessageQueue.
func (q *Queue) Receive(ctx context.Context) ([]events.QueuedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Wait+requestTimeout)
	defer cancel()
	out, err := q.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: &q.cfg.URL, MaxNumberOfMessages: batch,
		WaitTimeSeconds: int32(q.cfg.Wait / time.Second), VisibilityTimeout: int32(q.cfg.Visibility / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameSentTimestamp},
	})
	if err != nil {
		return nil, q.wrap("receive", err)
	}
	ms := make([]events.QueuedMessage, 0, len(out.Messages))
	for _, m := range out.Messages {
		var sent time.Time
		if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
			sent = time.UnixMilli(ms)
		}
		ms = append(ms, events.QueuedMessage{ID: aws.ToString(m.MessageId), Receipt: aws.ToString(m.ReceiptHandle), Body: aws.ToString(m.Body), Sent: sent})
	}
	return ms, nil
}

// Delete implements events.MessageQueue.
func (q *Queue) Delete(ctx context.Context, ms []events.QueuedMessage) (failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &q.cfg.URL}
	for i, m := range ms {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(m.Receipt)})
	}
	out, err := q.client.DeleteMessageBatch(ctx, in)
	if err != nil {
		return 0, q.wrap("delete", err)
	}
	return len(out.Failed), nil
}

// Length implements events.MessageQueue.
func (q *Queue) Length(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	const visible = types.QueueAttributeNameApproximateNumberOfMessages
	out, err := q.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &q.cfg.URL, AttributeNames: []types.QueueAttributeName{visible}})
	if err != nil {
		return 0, q.wrap("attributes", err)
	}
	n, err := strconv.Atoi(out.Attributes[string(visible)])
	return n, q.wrap("attributes", err)
}
