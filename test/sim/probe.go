package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The protocol relies on what the start-up probe finds. Each of these stores lacks
// one thing, and the probe must refuse it; the sound one it must take.
type unsound struct {
	*mem.Store
	lacks string
}

const (
	nothing   = "nothing"
	atomicity = "an atomic create: it looks, then writes"
	condition = "the condition: a proxy drops If-None-Match"
	checksums = "a check of the body's hash"
	putRule   = "a policy against unconditional puts of records"
	dropRule  = "a policy against deletes of records"
)

// denied is the answer of the bucket's policy, as the table of permissions has it for collectors. Where the store lacks the rule,
// records of acceptances are left out.
func (u unsound) denied(op bucketpolicy.Op, key, rule string) error {
	if u.lacks == rule && strings.HasPrefix(key, layout.AcceptedPrefix) {
		return nil
	}
	if bucketpolicy.Denied([]bucketpolicy.Role{bucketpolicy.Ingest}, op, key) {
		return &objstore.Error{Op: op.String(), Key: key, Err: objstore.ErrDenied}
	}
	return nil
}

func (u unsound) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := u.denied(bucketpolicy.Create, key, ""); err != nil {
		return objstore.Info{}, err
	}
	switch u.lacks {
	case atomicity:
		if _, err := u.Store.Head(ctx, key); err == nil {
			return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrExists}
		}
		time.Sleep(5 * time.Millisecond) // long enough for all racers to have looked
		return u.Store.Put(ctx, key, body, o)
	case condition:
		return u.Store.Put(ctx, key, body, o)
	case checksums:
		o.SHA256 = identity.Digest{}
	}
	return u.Store.Create(ctx, key, body, o)
}

func (u unsound) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := u.denied(bucketpolicy.Put, key, putRule); err != nil {
		return objstore.Info{}, err
	}
	return u.Store.Put(ctx, key, body, o)
}

func (u unsound) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if err := u.denied(bucketpolicy.Replace, key, ""); err != nil {
		return objstore.Info{}, err
	}
	return u.Store.Replace(ctx, key, body, etag, o)
}

func (u unsound) Delete(ctx context.Context, key string) error {
	if err := u.denied(bucketpolicy.Delete, key, dropRule); err != nil {
		return err
	}
	return u.Store.Delete(ctx, key)
}

// probeStores runs the strict probe against each; but not where the hash is not checked, which the
// probes of the policy would notice as well.
func probeStores(ctx context.Context) error {
	for _, lacks := range []string{nothing, atomicity, condition, checksums, putRule, dropRule} {
		r, err := qualify.Run(ctx, unsound{mem.New(nil), lacks}, qualify.Options{RunID: "sim", Strict: lacks != checksums, Rounds: 1})
		if (err == nil) != (lacks == nothing) {
			return fmt.Errorf("the store that lacks %s: %v %+v", lacks, err, r)
		}
	}
	return nil
}
