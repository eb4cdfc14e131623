// Package sqstest is for tests with queues: a server that answers the part of SQS's JSON protocol that is used here, with visibility,
// long polls and repeated deliveries as SQS has them; and a client for it, which also talks to emulators of other hands.
package sqstest

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server has queues, each made by the first request that names it.
type Server struct {
	*httptest.Server

	mu     sync.Mutex
	queues map[string]*queue
	change chan struct{} // closed at each change
	refuse int           // requests that are yet to be refused
	counts map[string]int
}

type queue struct{ messages []*message }

type message struct {
	id, body string
	receipt  string // of the last delivery
	sent     time.Time
	hidden   time.Time // until then
}

// Start serves until the test ends.
func Start(t testing.TB) *Server {
	s := &Server{queues: map[string]*queue{}, change: make(chan struct{}), counts: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// QueueURL is that of the queue with a name.
func (s *Server) QueueURL(name string) string { return s.URL + "/000000000000/" + name }

// Refuse has the next n requests answered with an error.
func (s *Server) Refuse(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = n
}

// Count is how often an action was asked for.
func (s *Server) Count(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[action]
}

// Left is how many messages a queue has, hidden or not.
func (s *Server) Left(queueURL string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue(queueURL).messages)
}

func (s *Server) queue(queueURL string) *queue {
	name := queueURL[strings.LastIndexByte(queueURL, '/')+1:]
	q := s.queues[name]
	if q == nil {
		q = &queue{}
		s.queues[name] = q
	}
	return q
}

func (s *Server) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// request has the fields of all actions.
type request struct {
	QueueURL            string `json:"QueueUrl"`
	QueueName           string
	MessageBody         string
	MaxNumberOfMessages int
	WaitTimeSeconds     int
	VisibilityTimeout   int
	Entries             []struct {
		ID            string `json:"Id"`
		ReceiptHandle string
	}
}

type object map[string]any

// ServeHTTP answers one action.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	var in request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20)).Decode(&in); err != nil {
		refused(w, http.StatusBadRequest, "InvalidParameterValue")
		return
	}
	s.mu.Lock()
	s.counts[action]++
	refuse := s.refuse > 0
	if refuse {
		s.refuse--
	}
	s.mu.Unlock()
	if refuse {
		refused(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential=") {
		refused(w, http.StatusForbidden, "MissingAuthenticationToken")
		return
	}
	switch action {
	case "CreateQueue":
		answer(w, object{"QueueUrl": s.QueueURL(in.QueueName)})
	case "SendMessage":
		answer(w, object{"MessageId": s.send(in.QueueURL, in.MessageBody), "MD5OfMessageBody": sum(in.MessageBody)})
	case "ReceiveMessage":
		answer(w, object{"Messages": s.receive(r.Context(), &in)})
	case "DeleteMessageBatch":
		answer(w, s.delete(&in))
	case "GetQueueAttributes":
		answer(w, object{"Attributes": object{"ApproximateNumberOfMessages": fmt.Sprint(s.visible(in.QueueURL))}})
	default:
		refused(w, http.StatusBadRequest, "UnsupportedOperation")
	}
}

func answer(w http.ResponseWriter, v object) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(v) // the client went away
}

func refused(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object{"__type": "com.amazonaws.sqs#" + reason, "message": reason})
}

func sum(body string) string {
	d := md5.Sum([]byte(body))
	return hex.EncodeToString(d[:])
}

func (s *Server) send(queueURL, body string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &message{id: rand.Text(), body: body, sent: time.Now()}
	q := s.queue(queueURL)
	q.messages = append(q.messages, m)
	s.changed()
	return m.id
}

// receive delivers what is visible, and waits for it as long as it is asked to.
func (s *Server) receive(ctx context.Context, in *request) []object {
	end := time.NewTimer(time.Duration(in.WaitTimeSeconds) * time.Second)
	defer end.Stop()
	for {
		s.mu.Lock()
		out, changed := s.deliver(in), s.change
		s.mu.Unlock()
		if len(out) > 0 {
			return out
		}
		again := time.NewTimer(50 * time.Millisecond) // something may be visible again
		select {
		case <-ctx.Done():
			again.Stop()
			return nil
		case <-end.C:
			again.Stop()
			return nil
		case <-changed:
			again.Stop()
		case <-again.C:
		}
	}
}

func (s *Server) deliver(in *request) (out []object) {
	now := time.Now()
	for _, m := range s.queue(in.QueueURL).messages {
		if len(out) == in.MaxNumberOfMessages {
			break
		}
		if m.hidden.After(now) {
			continue
		}
		m.receipt, m.hidden = rand.Text(), now.Add(time.Duration(in.VisibilityTimeout)*time.Second)
		out = append(out, object{"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": sum(m.body),
			"Attributes": object{"SentTimestamp": fmt.Sprint(m.sent.UnixMilli())}})
	}
	return out
}

func (s *Server) visible(queueURL string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, m := range s.queue(queueURL).messages {
		if !m.hidden.After(now) {
			n++
		}
	}
	return n
}

// delete removes deliveries. The receipt of an earlier one is refused, as SQS may.
func (s *Server) delete(in *request) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue(in.QueueURL)
	ok, failed := []object{}, []object{}
	for _, e := range in.Entries {
		found := false
		for i, m := range q.messages {
			if found = m.receipt != "" && m.receipt == e.ReceiptHandle; found {
				q.messages = append(q.messages[:i:i], q.messages[i+1:]...)
				break
			}
		}
		if found {
			ok = append(ok, object{"Id": e.ID})
		} else {
			failed = append(failed, object{"Id": e.ID, "Code": "ReceiptHandleIsInvalid", "SenderFault": true})
		}
	}
	return object{"Successful": ok, "Failed": failed}
}

// Do asks a server for an action. service is sqs, sns or events: emulators tell by the signature whose request it is, and do not
// check it.
func Do(ctx context.Context, endpoint, service, target string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", target)
	Sign(req, service)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.500s (%v)", target, resp.Status, body, err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// Sign says for which service a request is, without a signature that anybody could check.
func Sign(req *http.Request, service string) {
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/"+service+"/aws4_request, SignedHeaders=host, Signature=0")
}

// CreateQueue gives the URL of a queue, which is made.
func CreateQueue(ctx context.Context, endpoint, name string) (string, error) {
	var out struct {
		QueueURL string `json:"QueueUrl"`
	}
	err := Do(ctx, endpoint, "sqs", "AmazonSQS.CreateQueue", object{"QueueName": name}, &out)
	return out.QueueURL, err
}

// Send puts a message into a queue.
func Send(ctx context.Context, queueURL, body string) error {
	scheme, rest, _ := strings.Cut(queueURL, "://")
	host, _, _ := strings.Cut(rest, "/")
	return Do(ctx, scheme+"://"+host+"/", "sqs", "AmazonSQS.SendMessage", object{"QueueUrl": queueURL, "MessageBody": body}, nil)
}
