package main

import (
	"context"
	"fmt"
	"strings"
	"time"

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

// What a bucket's policy denies to collectors: puts without a condition, deletes, and creates of what only others write.
var (
	guarded = []string{layout.AcceptedPrefix, layout.QuarantinePrefix, layout.AuthorityKey, layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix, layout.JournalBeginKey, layout.JournalHeadKey}
	kept    = append([]string{layout.RawBlobsPrefix, layout.CondemnedPrefix}, guarded...)
	others  = []string{layout.JournalFoldedPrefix, layout.JournalHeadKey, layout.CondemnedPrefix}
)

// denied is the policy's answer to a request for the key; except is a prefix that a rule leaves out.
func denied(op, key string, prefixes []string, except string) error {
	for _, p := range prefixes {
		if p != except && strings.HasPrefix(key, p) {
			return &objstore.Error{Op: op, Key: key, Err: objstore.ErrDenied}
		}
	}
	return nil
}

// leftOut is the prefix of records where the store lacks the rule.
func (u unsound) leftOut(rule string) string {
	if u.lacks == rule {
		return layout.AcceptedPrefix
	}
	return ""
}

func (u unsound) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	if err := denied("create", key, others, ""); err != nil {
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
	if err := denied("put", key, guarded, u.leftOut(putRule)); err != nil {
		return objstore.Info{}, err
	}
	return u.Store.Put(ctx, key, body, o)
}

func (u unsound) Delete(ctx context.Context, key string) error {
	if err := denied("delete", key, kept, u.leftOut(dropRule)); err != nil {
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
