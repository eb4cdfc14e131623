package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// MaxMessage bounds a message, and the body of a webhook. It is the most that SQS delivers.
const MaxMessage = 1 << 20

// maxDepth bounds how many envelopes stand around an event: a notification of SNS around one of EventBridge around
// the event is three, the body included.
const maxDepth = 3

// Event says that an object was created.
type Event struct {
	Bucket, Key string
	// At is when, by the store's clock; zero where the event does not say.
	At time.Time
}

// Message is what one message says.
type Message struct {
	Created []Event
	// Other are events about anything else: removals, replication, restores.
	Other int
	// Test: the store has sent it to try the configuration.
	Test bool
}

// ErrUnknownMessage: it is in none of the envelopes that are known.
var ErrUnknownMessage = errors.New("no event of an object store")

func unknown(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnknownMessage, fmt.Sprintf(format, args...))
}

// envelope has the fields by which the envelopes are told apart.
type envelope struct {
	// S3's event JSON.
	Records []s3Record `json:"Records"`
	// The message by which S3 tries a configuration.
	Service string `json:"Service"`
	Event   string `json:"Event"`
	// SNS.
	Type    string `json:"Type"`
	Message string `json:"Message"`
	// EventBridge.
	Source     string       `json:"source"`
	DetailType string       `json:"detail-type"`
	Time       string       `json:"time"`
	Detail     bridgeDetail `json:"detail"`
}

type s3Record struct {
	EventName string `json:"eventName"`
	EventTime string `json:"eventTime"`
	S3        struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key string `json:"key"`
		} `json:"object"`
	} `json:"s3"`
}

type bridgeDetail struct {
	Bucket struct {
		Name string `json:"name"`
	} `json:"bucket"`
	Object struct {
		Key string `json:"key"`
	} `json:"object"`
}

// Parse reads a message: S3's event JSON, that in a notification of SNS, or an event of EventBridge, by itself or through SNS.
func Parse(body []byte) (Message, error) { return parse(body, maxDepth) }

func parse(body []byte, depth int) (Message, error) {
	if len(body) > MaxMessage {
		return Message{}, unknown("%d bytes are more than %d", len(body), MaxMessage)
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return Message{}, unknown("%v", err)
	}
	switch {
	case e.Records != nil:
		return records(e.Records)
	case e.Event == "s3:TestEvent":
		return Message{Test: true}, nil
	case e.Type == "Notification" && depth > 1:
		return parse([]byte(e.Message), depth-1)
	case e.DetailType != "" && e.Source == "aws.s3":
		return bridged(&e)
	}
	return Message{}, unknown("no Records, Message or detail-type, in %d bytes", len(body))
}

// records reads S3's event JSON, in which keys are encoded as in a query: a space is a plus sign.
func records(rs []s3Record) (Message, error) {
	var m Message
	for i := range rs {
		r := &rs[i]
		// AWS leaves "s3:" out; other stores write it.
		if !strings.HasPrefix(strings.TrimPrefix(r.EventName, "s3:"), "ObjectCreated:") {
			m.Other++
			continue
		}
		key, err := url.QueryUnescape(r.S3.Object.Key)
		if err != nil || key == "" || r.S3.Bucket.Name == "" {
			return Message{}, unknown("record %d names no object: bucket %.80q, key %.80q", i, r.S3.Bucket.Name, r.S3.Object.Key)
		}
		m.Created = append(m.Created, Event{r.S3.Bucket.Name, key, parseTime(r.EventTime)})
	}
	return m, nil
}

// bridged reads an event of EventBridge, in which the key is as it is.
func bridged(e *envelope) (Message, error) {
	if e.DetailType != "Object Created" {
		return Message{Other: 1}, nil
	}
	if e.Detail.Bucket.Name == "" || e.Detail.Object.Key == "" {
		return Message{}, unknown("the detail names no object: bucket %.80q, key %.80q", e.Detail.Bucket.Name, e.Detail.Object.Key)
	}
	return Message{Created: []Event{{e.Detail.Bucket.Name, e.Detail.Object.Key, parseTime(e.Time)}}}, nil
}

// parseTime gives zero for what is no time: an event without one is a hint all the same.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
