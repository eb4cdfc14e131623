package sqs

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// Send implements work.Queue; dedupe keys do nothing.
func (q *Queue) Send(ctx context.Context, topic string, body []byte, o work.SendOptions) error {
	if err := work.CheckSend(topic, body, o); err != nil {
		return err
	}
	u, err := q.urls(ctx, topic)
	if err != nil {
		return fail("send", topic, false, err)
	}
	if err := q.put(ctx, u.live, run.RandomID(), body, o.Delay, nil); err != nil {
		return fail("send", topic, true, err)
	}
	return nil
}

// Receive implements work.Queue.
func (q *Queue) Receive(ctx context.Context, topic string, n int, visibility time.Duration) ([]work.Message, error) {
	if err := work.CheckReceive(topic, n, visibility); err != nil {
		return nil, err
	}
	u, err := q.urls(ctx, topic)
	if err != nil {
		return nil, fail("receive", topic, false, err)
	}
	ms, err := q.take(ctx, u.live, n, visibility)
	if err != nil {
		return nil, fail("receive", topic, false, err)
	}
	var got []work.Message
	for _, m := range ms {
		body, err := base64.StdEncoding.DecodeString(aws.ToString(m.Body))
		if err != nil {
			body = []byte(aws.ToString(m.Body)) // not one of ours: the worker refuses it with a reason
		}
		got = append(got, work.Message{ID: id(m), Topic: topic, Body: body, Tries: number(m, types.MessageSystemAttributeNameApproximateReceiveCount), Receipt: aws.ToString(m.ReceiptHandle)})
	}
	return got, nil
}

func id(m types.Message) string {
	if v := attribute(m, "id"); v != "" {
		return v
	}
	return aws.ToString(m.MessageId)
}

func number(m types.Message, name types.MessageSystemAttributeName) int {
	n, _ := strconv.Atoi(m.Attributes[string(name)])
	return n
}

// delivery finds the queue of a delivery.
func (q *Queue) delivery(ctx context.Context, op string, m work.Message) (urls, error) {
	if err := work.CheckDelivery(op, m); err != nil {
		return urls{}, err
	}
	u, err := q.urls(ctx, m.Topic)
	if err != nil {
		return u, fail(op, m.Key(), false, err)
	}
	return u, nil
}

// Extend implements work.Queue.
func (q *Queue) Extend(ctx context.Context, m work.Message, d time.Duration) error {
	if err := work.CheckExtend(m, d); err != nil {
		return err
	}
	return q.change(ctx, "extend", m, d)
}

// Terminate implements work.Queue.
func (q *Queue) Terminate(ctx context.Context, m work.Message) error {
	return q.change(ctx, "terminate", m, 0)
}

func (q *Queue) change(ctx context.Context, op string, m work.Message, d time.Duration) error {
	u, err := q.delivery(ctx, op, m)
	if err != nil {
		return err
	}
	if err := q.hide(ctx, u.live, m.Receipt, d); err != nil {
		return fail(op, m.Key(), true, err)
	}
	return nil
}

// Defer implements work.Queue: SQS can't take a try back, so the message is sent again
// and then deleted. A crash between leaves a double.
func (q *Queue) Defer(ctx context.Context, m work.Message, delay time.Duration) error {
	if err := work.CheckDefer(m, delay); err != nil {
		return err
	}
	u, err := q.delivery(ctx, "defer", m)
	if err != nil {
		return err
	}
	return q.move(ctx, "defer", m, u.live, u.live, delay, nil)
}

// move sends m to another queue and then deletes it.
func (q *Queue) move(ctx context.Context, op string, m work.Message, from, to string, delay time.Duration, more map[string]string) error {
	if err := q.put(ctx, to, m.ID, m.Body, delay, more); err != nil {
		return fail(op, m.Key(), true, err)
	}
	if err := q.remove(ctx, from, m.Receipt); err != nil {
		return fail(op, m.Key(), true, err)
	}
	return nil
}

// Delete implements work.Queue. By an old delivery SQS may leave the message, which then comes again.
func (q *Queue) Delete(ctx context.Context, m work.Message) error {
	u, err := q.delivery(ctx, "delete", m)
	if err != nil {
		return err
	}
	if err := q.remove(ctx, u.live, m.Receipt); err != nil {
		return fail("delete", m.Key(), true, err)
	}
	return nil
}

// Bury implements work.Queue.
func (q *Queue) Bury(ctx context.Context, m work.Message, reason string) error {
	u, err := q.delivery(ctx, "bury", m)
	if err != nil {
		return err
	}
	if reason == "" {
		reason = "-" // an attribute can't be empty
	}
	return q.move(ctx, "bury", m, u.live, u.dead, 0, map[string]string{"reason": work.CutReason(reason), "tries": strconv.Itoa(m.Tries)})
}

// DeadLetters implements work.Queue: some of the letters, at most ten, and no next page.
func (q *Queue) DeadLetters(ctx context.Context, topic, after string, limit int) ([]work.DeadLetter, string, error) {
	if err := work.CheckDeadLetters(topic, after, limit); err != nil {
		return nil, "", err
	}
	u, err := q.urls(ctx, topic)
	if err != nil {
		return nil, "", fail("dead letters", topic, false, err)
	}
	ms, err := q.take(ctx, u.dead, min(limit, work.MaxReceive), 0)
	if err != nil {
		return nil, "", fail("dead letters", topic, false, err)
	}
	var ds []work.DeadLetter
	for _, m := range ms {
		body, err := base64.StdEncoding.DecodeString(aws.ToString(m.Body))
		if err != nil {
			body = []byte(aws.ToString(m.Body))
		}
		d := work.DeadLetter{ID: id(m), Topic: topic, Body: body, Reason: attribute(m, "reason"),
			Buried: time.UnixMilli(int64(number(m, types.MessageSystemAttributeNameSentTimestamp))).UTC()}
		if d.Tries, err = strconv.Atoi(attribute(m, "tries")); err != nil {
			// SQS itself has moved it.
			d.Tries, d.Reason = q.o.MaxTries, fmt.Sprintf("delivered %d times", q.o.MaxTries)
		}
		ds = append(ds, d)
	}
	return ds, "", nil
}

const (
	// redriveLooks of ten letters each are taken to find one.
	redriveLooks = 100
	redriveHide  = 30 * time.Second
)

// Redrive implements work.Queue. It looks at up to 1,000 dead letters.
func (q *Queue) Redrive(ctx context.Context, topic, letter string) error {
	if err := work.CheckTopic("redrive", topic); err != nil {
		return err
	}
	key := topic + "/" + letter
	u, err := q.urls(ctx, topic)
	if err != nil {
		return fail("redrive", key, false, err)
	}
	var passed []types.Message
	defer func() { // whatever happens, the others are as they were
		for _, m := range passed {
			_ = q.hide(context.WithoutCancel(ctx), u.dead, aws.ToString(m.ReceiptHandle), 0)
		}
	}()
	for range redriveLooks {
		ms, err := q.take(ctx, u.dead, work.MaxReceive, redriveHide)
		if err != nil {
			return fail("redrive", key, false, err)
		}
		if len(ms) == 0 {
			break
		}
		for i, m := range ms {
			if id(m) != letter {
				passed = append(passed, m)
				continue
			}
			passed = append(passed, ms[i+1:]...)
			body, err := base64.StdEncoding.DecodeString(aws.ToString(m.Body))
			if err != nil {
				body = []byte(aws.ToString(m.Body))
			}
			return q.move(ctx, "redrive", work.Message{ID: letter, Topic: topic, Body: body, Receipt: aws.ToString(m.ReceiptHandle)}, u.dead, u.live, 0, nil)
		}
	}
	return &work.Error{Op: "redrive", Key: key, Err: work.ErrNotFound}
}

// Depth implements work.Queue; SQS's numbers are approximate.
func (q *Queue) Depth(ctx context.Context, topic string) (work.Depth, error) {
	if err := work.CheckTopic("depth", topic); err != nil {
		return work.Depth{}, err
	}
	u, err := q.urls(ctx, topic)
	if err != nil {
		return work.Depth{}, fail("depth", topic, false, err)
	}
	live, err := q.counts(ctx, u.live)
	if err != nil {
		return work.Depth{}, fail("depth", topic, false, err)
	}
	dead, err := q.counts(ctx, u.dead)
	if err != nil {
		return work.Depth{}, fail("depth", topic, false, err)
	}
	return work.Depth{Ready: live[0], Hidden: live[1] + live[2], Dead: dead[0] + dead[1] + dead[2]}, nil
}

// counts are the visible, delivered and delayed messages.
func (q *Queue) counts(ctx context.Context, url string) (n [3]int, err error) {
	names := [3]types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible, types.QueueAttributeNameApproximateNumberOfMessagesDelayed}
	ctx, cancel := q.bound(ctx)
	defer cancel()
	r, err := q.c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: aws.String(url), AttributeNames: names[:]})
	if err != nil {
		return n, err
	}
	for i, name := range names {
		n[i], _ = strconv.Atoi(r.Attributes[string(name)])
	}
	return n, nil
}
