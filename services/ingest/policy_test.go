package ingest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

const violations = "lightmetrics_ingest_store_policy_violations"

// TestAPolicyIsRequired: a store in memory has no policy. What follows is for the setting to say.
func TestAPolicyIsRequired(t *testing.T) {
	for mode, want := range map[string]struct {
		ready      bool
		violations float64
	}{"require": {false, 9}, "warn": {true, 9}, "off": {true, 0}} {
		c := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) { c.Store.BucketPolicy = mode })
		probed := func() bool {
			err := c.NotReady()
			return err == nil || strings.Contains(err.Error(), "store.policy is require")
		}
		eventually(t, mode+": a verdict", probed)
		if ready := c.NotReady() == nil; ready != want.ready || c.gauge(t, violations) != want.violations {
			t.Errorf("%s: ready %v, %v violations", mode, ready, c.gauge(t, violations))
		}
		if err := c.NotReady(); err != nil && !errors.Is(err, accept.ErrNotQualified) {
			t.Errorf("%s: %v", mode, err)
		}
		if code := get(t, c.HTTPURL()+"/status"); code != http.StatusOK {
			t.Errorf("%s: the page: %d", mode, code)
		}
	}
	cfg := testConfig()
	cfg.Store.BucketPolicy = "maybe"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "require, warn or off") {
		t.Errorf("a value that is none: %v", err)
	}
}

// guarded denies what the policy of a bucket denies to a collector, or does not answer such requests.
type guarded struct {
	*mem.Store
	silent atomic.Bool
	asked  atomic.Int64
}

// answer is nil where the request is not denied.
func (g *guarded) answer(op bucketpolicy.Op, key string) error {
	if !bucketpolicy.Denied([]bucketpolicy.Role{bucketpolicy.Ingest}, op, key) {
		return nil
	}
	g.asked.Add(1)
	if g.silent.Load() {
		return &objstore.Error{Op: op.String(), Key: key, Err: objstore.ErrUnknown}
	}
	return &objstore.Error{Op: op.String(), Key: key, Err: objstore.ErrDenied}
}

func (g *guarded) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := g.answer(bucketpolicy.Put, key); err != nil {
		return objstore.Info{}, err
	}
	return g.Store.Put(ctx, key, body, o)
}

func (g *guarded) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := g.answer(bucketpolicy.Create, key); err != nil {
		return objstore.Info{}, err
	}
	return g.Store.Create(ctx, key, body, o)
}

func (g *guarded) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if err := g.answer(bucketpolicy.Replace, key); err != nil {
		return objstore.Info{}, err
	}
	return g.Store.Replace(ctx, key, body, etag, o)
}

func (g *guarded) Delete(ctx context.Context, key string) error {
	if err := g.answer(bucketpolicy.Delete, key); err != nil {
		return err
	}
	return g.Store.Delete(ctx, key)
}

// TestAPolicyIsNotForgotten: a probe that the store leaves unanswered is no proof that the policy went.
func TestAPolicyIsNotForgotten(t *testing.T) {
	g := &guarded{Store: mem.New(time.Now)}
	c := launch(t, &faulty{Store: g}, rpc.ClientConfig{}, func(c *ingest.Config) { c.QualifyInterval = 20 * time.Millisecond })
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	if n := c.gauge(t, violations); n != 0 {
		t.Errorf("%v violations of a policy that holds", n)
	}
	g.silent.Store(true)
	before := g.asked.Load()
	eventually(t, "probes without an answer", func() bool { return g.asked.Load() > before+60 })
	if n := c.gauge(t, violations); n != 0 || c.NotReady() != nil {
		t.Errorf("a silent store: %v violations, %v", n, c.NotReady())
	}
}

// TestACopyEndsTheCollector: with and without a configured id.
func TestACopyEndsTheCollector(t *testing.T) {
	place := objstore.Place{Endpoint: "s3.example", Region: "north", Bucket: "metrics"}
	for _, id := range []string{"", "one"} {
		s := mem.New(time.Now)
		s.SetPlace(place)
		if _, err := s.Create(t.Context(), layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "one", Place: objstore.Place{Endpoint: "s3.example", Region: "north", Bucket: "origin"}}.Marshal(), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		cfg := testConfig()
		cfg.AuthorityID = id
		c, err := ingest.New(cfg, ingest.Deps{Store: s, Telemetry: telemetry.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		var e *accept.AuthorityError
		if err := c.Run(bound(t)); !errors.As(err, &e) || e.Reason != accept.AuthorityOtherBucket {
			t.Errorf("authority_id %q: %v", id, err)
		}
	}
}

// TestAReplicatedManifestIsNotBelieved: the sender of a batch whose manifest came by replication is
// told to try again, and neither "duplicate" nor "conflict".
func TestAReplicatedManifestIsNotBelieved(t *testing.T) {
	s := mem.New(time.Now)
	s.SetPlace(objstore.Place{Endpoint: "s3.example", Region: "north", Bucket: "metrics"})
	c := start(t, &faulty{Store: s}, nil)
	f := encode(t, boot, 0, 10, 0)
	if r := c.submit(t, f); r != "accepted" {
		t.Fatal(r)
	}
	page, err := s.List(t.Context(), objstore.ListOptions{Prefix: layout.AcceptedPrefix})
	if err != nil || len(page.Objects) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	key := page.Objects[0].Key
	body, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Replicate(key, body, time.Now().Add(time.Hour))
	if r := c.submit(t, f); r != string(accept.ReasonReplica) {
		t.Errorf("answered %q", r)
	}
}
