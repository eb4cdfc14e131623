// Package putback puts frames back whose blobs are damaged or gone in the bucket, from places that may still have their
// bytes. It looks, compares and repairs: what a place gives counts only if it has the hash that the identity manifest, or
// the quarantine record, says; nothing is overwritten and no record is changed (accept.Restore).
// docs/protocol/reconcile.md has the order and the reasons.
//
// The package starts no goroutines and reads no clock of its own.
package putback

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrNone says that a place does not have the frame.
var ErrNone = errors.New("it does not have the frame")

// Place may have bytes of frames. It proves nothing: what it gives is hashed.
type Place interface {
	// Name in records, such as "replica" or "collector 10.0.0.7:4711".
	Name() string
	// Find gives the bytes of a frame; an error wraps ErrNone where the place answers that it does not have them.
	Find(ctx context.Context, ref accept.Reference) ([]byte, error)
}

// Said is what a place answered.
type Said string

// Answers of places.
const (
	SaidNone   Said = "none"        // it does not have the frame
	SaidOther  Said = "other_bytes" // it gave bytes that are not the frame's
	SaidFailed Said = "failed"      // it could not be asked
	SaidFrame  Said = "frame"       // it gave the frame
)

// Answer of one place.
type Answer struct {
	Place  string `json:"place"`
	Said   Said   `json:"said"`
	Detail string `json:"detail,omitempty"`
}

// maxDetail bounds an answer's detail in bytes.
const maxDetail = 300

// Result of one attempt.
type Result struct {
	// Answers of the places that were asked, in order; the last one gave the frame if one did.
	Answers []Answer
	// From is the place that gave it; empty where none did.
	From string
	accept.Restored
}

// Repairer puts frames back.
type Repairer struct {
	// Config is what accept.Restore needs of it: store, authority, name and clock.
	Config accept.Config
	Places []Place
}

// Repair asks the places for the frame of the record under key, until one gives it, and puts it back. A result without
// From says that no place has it. An error says that the record can't be used, or that the store did not answer; a
// repeat is harmless.
func (r *Repairer) Repair(ctx context.Context, key string) (Result, error) {
	var out Result
	ref, err := accept.ReadReference(ctx, r.Config.Store, r.Config.AuthorityID, key)
	if err != nil {
		return out, err
	}
	if ref.Inline {
		return out, fmt.Errorf("put back %s: %w", key, accept.ErrRecordHasFrame)
	}
	for _, p := range r.Places {
		frame, err := p.Find(ctx, ref)
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		a := Answer{Place: p.Name(), Said: SaidFrame}
		switch {
		case errors.Is(err, ErrNone):
			a.Said = SaidNone
			if err != ErrNone { //nolint:errorlint // the sentinel alone says nothing more
				a.Detail = clip(err.Error())
			}
		case err != nil:
			a.Said, a.Detail = SaidFailed, clip(err.Error())
		default:
			// Before any request: bytes of another frame must not become a generation of this one.
			if sum := identity.Sum(frame); sum != ref.SHA256 {
				a.Said, a.Detail = SaidOther, fmt.Sprintf("%d bytes that hash to %s", len(frame), sum)
			}
		}
		out.Answers = append(out.Answers, a)
		if a.Said != SaidFrame {
			continue
		}
		out.Restored, err = accept.Restore(ctx, r.Config, key, frame)
		if err == nil {
			out.From = p.Name()
		}
		return out, err
	}
	return out, nil
}

func clip(s string) string {
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "")
	}
	return s
}

// Replica is another bucket, or another prefix, that has copies of this authority's objects. It is only read.
type Replica struct {
	Store objstore.Reader
	// As is its name.
	As string
}

// Name implements Place.
func (r Replica) Name() string { return r.As }

// Find takes the frame from any of its generations, or from a record that carries it.
func (r Replica) Find(ctx context.Context, ref accept.Reference) ([]byte, error) {
	size := ref.Bytes
	if size == 0 {
		size = objstore.DefaultGetLimit
	}
	frame, err := accept.ReadFrame(ctx, r.Store, ref.FrameKey, ref.SHA256, size)
	var gone *accept.FrameError
	if errors.As(err, &gone) || errors.Is(err, objstore.ErrNotFound) || record.Opaque(err) {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	return frame, err
}
