package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// reprocess does an order, as a handler of its job.
type reprocess struct {
	store  objstore.Store
	queue  work.Queue
	table  work.Table
	shards uint32
	run    string // names the intake segments of this process
	page   int    // batches of one piece
	now    func() time.Time
	tell   func(string)

	order  reprocessOrder
	last   reprocessProgress
	writer *intake.Writer
}

const (
	// reprocessTopic has no readers: whoever gives the order does it. The sweep may send
	// a message of an order that was left; it stays there as a note.
	reprocessTopic = "reprocess"
	// reprocessPage is one piece between two checkpoints.
	reprocessPage  = 500
	reprocessReads = 16
	reprocessHold  = time.Minute
	maxManifest    = 64 << 10
	// manyHours of one batch are told by their first and last only: the intake says the rest.
	manyHours = 48
)

// do begins the order, or goes on with the pending one that equals it or has the id.
func (r *reprocess) do(ctx context.Context, o reprocessOrder, id string) (string, reprocessOrder, reprocessProgress, error) {
	if id == "" {
		d := identity.Sum(o.body())
		id = fmt.Sprintf("%x", d[:6])
	}
	log, err := r.table.Log(ctx, "reprocess/"+id)
	if err != nil {
		return id, o, r.last, err
	}
	k := work.Key{Log: log.Name, Number: log.Last + 1}
	row, err := r.table.Get(ctx, k)
	switch {
	case errors.Is(err, work.ErrNotFound) && o.From.IsZero():
		return id, o, r.last, errNoOrder
	case errors.Is(err, work.ErrNotFound):
		r.tell("reprocess " + id + " begins")
	case err != nil:
		return id, o, r.last, err
	default:
		if err := json.Unmarshal(row.Body, &o); err != nil {
			return id, o, r.last, fmt.Errorf("order %s: %w", k, err)
		}
		r.tell("reprocess " + id + " goes on")
	}
	r.order, r.writer = o, intake.NewWriter(r.store, r.run, r.shards)
	w, err := work.NewWorker(r.queue, r.table, r, work.Config{Topic: reprocessTopic, Owner: "lmctl." + r.run, Hold: reprocessHold, MaxAttempts: 1 << 30}, r.now)
	if err != nil {
		return id, o, r.last, err
	}
	outcome, err := w.Do(ctx, k, 0, o.body())
	switch {
	case err != nil:
		return id, o, r.last, err
	case outcome == work.Busy:
		return id, o, r.last, fmt.Errorf("another run works on order %s (up to %s after it died)", id, reprocessHold)
	case outcome != work.Completed:
		return id, o, r.last, fmt.Errorf("order %s: %s; go on with --resume %s", id, outcome, id)
	}
	return id, o, r.last, nil
}

// Job is not asked: no message brings orders.
func (r *reprocess) Job(context.Context, work.Message) (work.Key, uint64, error) {
	return work.Key{}, 0, work.ErrSkip
}

// Run walks on from the checkpoint.
func (r *reprocess) Run(ctx context.Context, j *work.Job) error {
	r.last = reprocessProgress{}
	if s := j.State(); len(s) > 0 {
		if err := json.Unmarshal(s, &r.last); err != nil {
			return fmt.Errorf("checkpoint of %s: %w", j.Key(), err)
		}
	}
	return r.walk(ctx, r.order, r.last, func(p reprocessProgress, batches []accept.Manifest) error {
		segments, messages, err := r.give(ctx, batches)
		if err != nil {
			return err
		}
		p.Segments, p.Messages = r.last.Segments+segments, r.last.Messages+messages
		state, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := j.Checkpoint(ctx, state); err != nil {
			return err
		}
		r.last = p
		return nil
	})
}

// count walks without writing.
func (r *reprocess) count(ctx context.Context, o reprocessOrder) (reprocessProgress, error) {
	told := map[dirty]bool{}
	shards := map[shard.ID]bool{}
	var last reprocessProgress
	err := r.walk(ctx, o, last, func(p reprocessProgress, batches []accept.Manifest) error {
		for _, m := range batches {
			e := intake.EntryOf(m)
			id := shard.Of(e.AgentID, r.shards)
			shards[id] = true
			for _, h := range hoursOf(e) {
				told[dirty{id, h}] = true
			}
		}
		last = p
		return nil
	})
	last.Messages, last.Segments = uint64(len(told)), uint64(len(shards))
	return last, err
}

// walk calls piece for every page of batches of the order, from where p is.
func (r *reprocess) walk(ctx context.Context, o reprocessOrder, p reprocessProgress, piece func(reprocessProgress, []accept.Manifest) error) error {
	if p.Hour.IsZero() {
		p.Hour = o.From.Truncate(time.Hour)
	}
	for ; p.Hour.Before(o.To); p.Hour, p.After = p.Hour.Add(time.Hour), "" {
		for {
			page, err := r.store.List(ctx, objstore.ListOptions{Prefix: layout.AcceptedByTimeHour(p.Hour), StartAfter: p.After, Limit: r.page})
			if err != nil {
				return err
			}
			if len(page.Objects) == 0 {
				break
			}
			batches, err := r.read(ctx, o, page.Objects)
			if err != nil {
				return err
			}
			p.After = page.Objects[len(page.Objects)-1].Key
			p.Batches += uint64(len(batches))
			if err := piece(p, batches); err != nil {
				return err
			}
			if page.Next == "" {
				break
			}
		}
	}
	return nil
}

// read gets the manifests that the order means.
func (r *reprocess) read(ctx context.Context, o reprocessOrder, objects []objstore.Info) ([]accept.Manifest, error) {
	all := make([]*accept.Manifest, len(objects))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(reprocessReads)
	for i, obj := range objects {
		g.Go(func() error {
			b, _, err := r.store.Get(gctx, obj.Key, objstore.GetOptions{Limit: maxManifest})
			if errors.Is(err, objstore.ErrNotFound) {
				return nil // moved by a repair since it was listed
			}
			if err != nil {
				return err
			}
			m, err := accept.ParseManifest(b)
			if err != nil {
				return fmt.Errorf("%s: %w", obj.Key, err)
			}
			at := m.AcceptedTime()
			if !at.Before(o.From) && at.Before(o.To) && (o.Agent == "" || o.Agent == m.Identity.Agent) {
				all[i] = &m
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var batches []accept.Manifest
	for _, m := range all {
		if m != nil {
			batches = append(batches, *m)
		}
	}
	return batches, nil
}

// dirty is what an owner is told of.
type dirty struct {
	Shard shard.ID
	Hour  window.Hour
}

func hoursOf(e intake.Entry) []window.Hour {
	first, last := e.Hours()
	if last-first >= manyHours {
		return []window.Hour{first, last}
	}
	var hs []window.Hour
	for h := first; h <= last; h++ {
		hs = append(hs, h)
	}
	return hs
}

// give writes the batches into the intake of their shards, where the owners find them.
func (r *reprocess) give(ctx context.Context, batches []accept.Manifest) (segments, messages uint64, err error) {
	entries := map[shard.ID][]intake.Entry{}
	told := map[dirty]bool{}
	for _, m := range batches {
		e := intake.EntryOf(m)
		id := shard.Of(e.AgentID, r.shards)
		entries[id] = append(entries[id], e)
		for _, h := range hoursOf(e) {
			told[dirty{id, h}] = true
		}
	}
	for id, es := range entries {
		for part := range slices.Chunk(es, intake.MaxEntries) {
			if err := r.writer.Write(ctx, id, part); err != nil {
				return 0, 0, err
			}
			segments++
		}
	}
	return segments, uint64(len(told)), nil
}
