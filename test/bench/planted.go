package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// slowRequest is what every request takes longer over a slow store.
const slowRequest = 30 * time.Millisecond

// planted are batches that stand in the journal alone, without manifests and frames: followers that restart read neither
// of batches before their window.
type planted struct {
	boots, batches int
	// until is the time of the newest batch; the others lie before it, evenly over span.
	until time.Time
	span  time.Duration
}

// entry is batch i: the boots take turns.
func (p planted) entry(i int) journal.Entry {
	boot, turn := i%p.boots, uint64(i/p.boots)
	at := p.until.Add(-p.span).UnixNano() + int64(i)*int64(p.span)/int64(p.batches)
	e := journal.Entry{
		ID:      identity.Batch{Agent: fmt.Sprintf("host-%06d", boot), Boot: fmt.Sprintf("01J9ZC3V7Q5W8KX2-%06d", boot), SeqStart: turn*500 + 1, SeqEnd: turn*500 + 500},
		Outcome: journal.Accepted, Bytes: 3000, Generation: 1, At: at, MinTime: at - int64(30*time.Second), MaxTime: at,
	}
	// Hashes do not compress; these need not be of anything.
	_, _ = rand.Read(e.SHA256[:])
	binary.BigEndian.PutUint64(e.SHA256[:], uint64(i)+1)
	return e
}

// plantedAtOnce is how many batches one segment has, and one move of the head folds: those of a minute of 160 a second.
const plantedAtOnce = journal.MaxSegmentEntries

// plant writes the batches into segments, folds these as a reconciler does every minute, and deletes them.
func (p planted) plant(ctx context.Context, s objstore.Store) error {
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: s, Rand: rand.Reader, Clock: func() int64 { return p.until.Add(-p.span).UnixNano() },
		Opening: journal.Opening{Writer: "planted", Role: journal.RoleCollector, Authority: authority},
	})
	if err != nil {
		return err
	}
	folder, err := journal.NewFolder(journal.FolderConfig{Store: s, Rand: rand.Reader})
	if err != nil {
		return err
	}
	from, err := folder.Load(ctx)
	if err != nil {
		return err
	}
	follower, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority, From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return errors.New("somebody else folds the journal") },
	})
	if err != nil {
		return err
	}
	now := int64(0)
	fold := func() error {
		if _, err := follower.Poll(ctx); err != nil {
			return err
		}
		now += int64(time.Minute)
		_, err := folder.Fold(ctx, now)
		return err
	}
	for i := range p.batches {
		if _, err := w.Add(p.entry(i)); err != nil {
			return err
		}
		if w.Waiting() < plantedAtOnce && i+1 < p.batches {
			continue
		}
		if _, _, err := w.Flush(ctx); err != nil {
			return err
		}
		if err := fold(); err != nil {
			return err
		}
	}
	// The last two delete what the ones before have folded.
	return errors.Join(w.Close(ctx), fold(), fold(), fold())
}

// rolledUp writes the progress records of all shards as if everything that is planted were in blocks.
func (p planted) rolledUp(ctx context.Context, s objstore.Store) error {
	head, _, err := journal.ReadHead(ctx, s)
	if err != nil {
		return err
	}
	for i := range requestShards {
		_, err := progress.Progress{AuthorityID: authority, Shard: shard.ID(i), Shards: requestShards, Fence: 1, Positions: head.Positions()}.Write(ctx, s, "")
		if err != nil {
			return err
		}
	}
	return nil
}

// follower is a service that follows the journal, over a rig.
type follower struct {
	command string
	http    string
	section section
}

// follower makes the settings of one with a store at endpoint: "" is directly. A rollup worker needs the
// address of a coordinator.
func (r *rig) follower(command, endpoint, coordinator string) (*follower, error) {
	if endpoint == "" {
		endpoint = "http://" + r.storeAddr
	}
	var addrs [2]string
	for i := range addrs {
		var err error
		if addrs[i], err = proc.FreePort(0); err != nil {
			return nil, err
		}
	}
	s := section{"http": section{"listen": addrs[0]}, "pprof": true, "store": r.collectorSettings(endpoint)["store"]}
	switch command {
	case "reconciler":
		// The frames are not there.
		s["grpc"], s["authority_id"], s["scrub"] = section{"listen": addrs[1]}, authority, section{"period": "0s"}
	case "query":
		s["grpc"] = section{"listen": addrs[1]}
	case "rollup":
		s["id"], s["authority_id"], s["shards"], s["coordinator"] = "rollup-1", authority, requestShards, section{"addresses": []string{coordinator}}
	}
	return &follower{command: command, http: addrs[0], section: s}, nil
}

// start starts it and waits until it is ready: it has read the journal then. A worker is ready before, so each of its
// shards has to have read on from where its progress says.
func (f *follower) start(ctx context.Context, r *rig) (*proc.Process, time.Duration, error) {
	began := time.Now()
	p, err := r.start(ctx, f.command, "http://"+f.http+"/-/ready", f.section)
	if err == nil && f.command == "rollup" {
		wctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		err = cluster.Poll(wctx, "the shards to catch up", func() (bool, error) {
			s, err := scrape(ctx, f.http)
			return s.sum("lightmetrics_rollup_catch_ups_total") >= requestShards, err
		})
		if err != nil {
			p.Kill()
		}
	}
	return p, time.Since(began), err
}

// asks is what it has asked the store so far.
func (f *follower) asks(ctx context.Context) (asked, error) {
	s, err := scrape(ctx, f.http)
	if err != nil {
		return nil, err
	}
	a := asked{}
	a.count(f.command, s)
	return a, nil
}

// founded starts a store whose bucket has an authority, and whose journal is complete; no collector runs.
func founded(ctx context.Context, e *env) (*rig, error) {
	r, err := newRig(e)
	if err != nil {
		return nil, err
	}
	if err = r.startBoth(ctx); err == nil {
		err = r.collector.Stop(readyTimeout)
		r.collector = nil
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}
