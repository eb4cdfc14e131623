// Package notify posts the events of objects to webhooks as S3 event JSON: at least once, in the
// order of the log, from a position that is stored on disk.
package notify

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

const (
	batchSize   = 100
	postTimeout = 15 * time.Second
	firstDelay  = 100 * time.Millisecond
	maxDelay    = 30 * time.Second
	saveEvery   = time.Second
)

// Hook is one webhook.
type Hook struct {
	// ID is that of the position which is kept; it may be the URL, with a token in it. Name is what is printed.
	ID, Name            string
	URL, Bucket, Prefix string
	Events              []string
	Authorization       string
}

// Options of a Sender.
type Options struct {
	Engine *engine.Engine
	Hook   Hook
	FS     vfs.FS // of the store's directory
	Dir    string // in FS; keeps the position
	Region string
	Log    *slog.Logger
	Client *http.Client
	// Observe is called after every POST with the number of its events and its outcome.
	Observe func(events int, err error)
	// Missed is called with the number of records that were reclaimed before they were sent.
	Missed func(records uint64)
}

// Sender delivers to one webhook.
type Sender struct {
	Options
	file string
	next atomic.Uint64 // every event with a lower sequence was delivered
}

// ValidEvent reports whether an event's name is known.
func ValidEvent(name string) bool {
	switch strings.TrimPrefix(name, "s3:") {
	case "ObjectCreated:*", "ObjectCreated:Put", "ObjectRemoved:*", "ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated",
		"LifecycleExpiration:*", "LifecycleExpiration:Delete", "LifecycleExpiration:DeleteMarkerCreated":
		return true
	}
	return false
}

type saved struct {
	Name string `json:"name"`
	Next uint64 `json:"next_sequence"`
}

// New reads the position of a webhook. A new webhook starts at the end of the log.
func New(o Options) (*Sender, error) {
	// The id may be a URL with slashes, so the file is named by a hash of it.
	sum := sha256.Sum256([]byte(o.Hook.ID))
	s := &Sender{Options: o, file: o.Dir + "/" + hex.EncodeToString(sum[:8]) + ".json"}
	if err := vfs.EnsureDir(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("webhook %s: %w", o.Hook.Name, err)
	}
	b, _, err := vfs.ReadFile(o.FS, s.file, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		end, _ := o.Engine.End()
		s.next.Store(end)
		return s, s.save()
	case err != nil:
		return nil, fmt.Errorf("webhook %s: %w", o.Hook.Name, err)
	}
	var at saved
	if err := json.Unmarshal(b, &at); err != nil || at.Name != o.Hook.ID {
		return nil, fmt.Errorf("webhook %s: position in %s can't be read: %v", o.Hook.Name, s.file, err)
	}
	s.next.Store(at.Next)
	return s, nil
}

// Next gives the first sequence that was not delivered yet.
func (s *Sender) Next() uint64 { return s.next.Load() }

// save stores the position by a rename, so that the file is always whole. The directory is not
// synced: an old position after a crash only sends events again.
func (s *Sender) save() error {
	b, err := json.Marshal(saved{s.Hook.ID, s.next.Load()})
	if err != nil {
		return err
	}
	failpoint.Hit("objectstore.webhook.cursor.before")
	temp := s.Dir + "/position-" + rand.Text()
	f, err := s.FS.Create(temp)
	if err != nil {
		return fmt.Errorf("webhook %s: %w", s.Hook.Name, err)
	}
	_, err = f.WriteAt(b, 0)
	failpoint.Hit("objectstore.webhook.cursor.written")
	err = errors.Join(err, f.Sync(), f.Close())
	failpoint.Hit("objectstore.webhook.cursor.synced")
	if err == nil {
		err = s.FS.Rename(temp, s.file)
	}
	if err != nil {
		_ = s.FS.Remove(temp)
		return fmt.Errorf("webhook %s: save position: %w", s.Hook.Name, err)
	}
	failpoint.Hit("objectstore.webhook.cursor.after")
	return nil
}

// Run delivers until ctx ends.
func (s *Sender) Run(ctx context.Context) (err error) {
	cur := s.Engine.Tail(s.next.Load())
	defer func() { err = errors.Join(err, s.save()) }()
	lastSave := time.Time{}
	for ctx.Err() == nil {
		// Taken before the read: a write between the read and the wait below must wake it.
		_, changed := s.Engine.End()
		events, missed, more, err := cur.Read(batchSize, s.matches)
		if missed > 0 && s.Missed != nil {
			s.Missed(missed)
		}
		if err != nil {
			return fmt.Errorf("webhook %s: %w", s.Hook.Name, err)
		}
		if len(events) > 0 && !s.deliver(ctx, events) {
			return nil
		}
		moved := s.next.Swap(cur.Next()) != cur.Next()
		// The wall clock only limits how often the position is written.
		if now := time.Now(); moved && now.Sub(lastSave) > saveEvery {
			lastSave = now
			if err := s.save(); err != nil {
				s.Log.Warn("the position of a webhook could not be saved; events may be sent again", "error", err)
			}
		}
		if more {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func (s *Sender) matches(e *engine.Event) bool {
	h := &s.Hook
	if h.Bucket != "" && e.Bucket != h.Bucket || !strings.HasPrefix(e.Key, h.Prefix) {
		return false
	}
	for _, p := range h.Events {
		p = strings.TrimPrefix(p, "s3:")
		if strings.TrimSuffix(p, "*") == name(e) || strings.HasSuffix(p, ":*") && strings.HasPrefix(name(e), strings.TrimSuffix(p, "*")) {
			return true
		}
	}
	return len(h.Events) == 0 && !e.Removed
}

func name(e *engine.Event) string {
	switch {
	case e.Marker && e.Expired:
		return "LifecycleExpiration:DeleteMarkerCreated"
	case e.Marker:
		return "ObjectRemoved:DeleteMarkerCreated"
	case e.Removed && e.Expired:
		return "LifecycleExpiration:Delete"
	case e.Removed:
		return "ObjectRemoved:Delete"
	}
	return "ObjectCreated:Put"
}

// deliver posts the events until the webhook answers with success; false when ctx ended first.
// Later events wait: their order is part of what webhooks rely on.
func (s *Sender) deliver(ctx context.Context, events []engine.Event) bool {
	body := s.encode(events)
	backoff := run.NewBackoff(firstDelay, maxDelay)
	for {
		err := s.post(ctx, body)
		if s.Observe != nil {
			s.Observe(len(events), err)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		wait := backoff.Next()
		s.Log.Warn("webhook will be tried again", "webhook", s.Hook.Name, "events", len(events), "after", wait, "error", err)
		if run.Sleep(ctx, wait) != nil {
			return false
		}
	}
}

func (s *Sender) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	failpoint.Hit("objectstore.webhook.post.before")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Hook.URL, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	// The configured text is the whole header, so that any scheme can be used.
	if s.Hook.Authorization != "" {
		req.Header.Set("Authorization", s.Hook.Authorization)
	}
	resp, err := s.Client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	failpoint.Hit("objectstore.webhook.post.after")
	// The body is read so that the connection can be reused, up to a bound: the answer's
	// content means nothing.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answer %s", resp.Status)
	}
	return nil
}

// withoutURL leaves out the address, which may have a token in it, and which the log names by the hook.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

type message struct {
	Records []eventRecord `json:"Records"`
}

type eventRecord struct {
	EventVersion string  `json:"eventVersion"`
	EventSource  string  `json:"eventSource"`
	AWSRegion    string  `json:"awsRegion"`
	EventTime    string  `json:"eventTime,omitempty"`
	EventName    string  `json:"eventName"`
	S3           s3Event `json:"s3"`
}

type s3Event struct {
	SchemaVersion   string `json:"s3SchemaVersion"`
	ConfigurationID string `json:"configurationId"`
	Bucket          struct {
		Name string `json:"name"`
		ARN  string `json:"arn"`
	} `json:"bucket"`
	Object struct {
		Key       string `json:"key"` // query-escaped, '/' kept
		Size      int64  `json:"size"`
		ETag      string `json:"eTag,omitempty"`
		VersionID string `json:"versionId,omitempty"`
		Sequencer string `json:"sequencer"` // 16 hex digits, grows
	} `json:"object"`
}

func (s *Sender) encode(events []engine.Event) []byte {
	var m message
	for i := range events {
		e := &events[i]
		r := eventRecord{EventVersion: "2.1", EventSource: "aws:s3", AWSRegion: s.Region, EventName: name(e)}
		if !e.Modified.IsZero() {
			r.EventTime = e.Modified.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		r.S3.SchemaVersion, r.S3.ConfigurationID = "1.0", s.Hook.Name
		r.S3.Bucket.Name, r.S3.Bucket.ARN = e.Bucket, "arn:aws:s3:::"+e.Bucket
		r.S3.Object.Key = strings.ReplaceAll(url.QueryEscape(e.Key), "%2F", "/")
		r.S3.Object.Size, r.S3.Object.ETag = e.Size, e.ETag
		r.S3.Object.VersionID = e.Version
		seq := strings.ToUpper(strconv.FormatUint(e.Seq, 16))
		r.S3.Object.Sequencer = strings.Repeat("0", 16-len(seq)) + seq
		m.Records = append(m.Records, r)
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}
