package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// OrphansConfig is for the reports of submissions that ended without an outcome.
type OrphansConfig struct {
	ReportInterval time.Duration `koanf:"report_interval" help:"time that a submission without an outcome has to be sent again before its frame is reported to the garbage collection, and between two reports; 0 reports none, and leaves them to its sweeps"`
}

// maxAbandoned bounds the frames that wait to be reported. What is dropped the sweep of the garbage collection finds.
const maxAbandoned = 10_000

// abandoned remembers the frames of submissions that ended without an outcome: the blob may be written, and if the
// sender never sends the same again it stays an orphan. And those of blobs that were written before the call found that the
// manifest carries the frame. It is a hint for the garbage collection, and may be lost.
type abandoned struct {
	// submissions since the last report that was written, and how many frames wait, readable without mu.
	submissions atomic.Uint64
	waiting     atomic.Int64
	dropped     atomic.Uint64

	mu     sync.Mutex
	frames map[identity.Digest]time.Time
	// witness is the key of a manifest that was observed.
	witness string
}

func newAbandoned() *abandoned { return &abandoned{frames: map[identity.Digest]time.Time{}} }

// witnessEach is how many submissions one witness is noted for: any will do, and each note takes the lock.
const witnessEach = 256

// watched is an acceptor whose failures are remembered.
type watched struct {
	accept.Acceptor
	a *abandoned
}

// Accept implements accept.Acceptor.
func (w watched) Accept(ctx context.Context, s accept.Submission) (accept.Result, error) {
	res, err := w.Acceptor.Accept(ctx, s)
	w.a.ended(s.SHA256, &res, err)
	return res, err
}

// ended notes the end of a submission.
func (a *abandoned) ended(sum identity.Digest, res *accept.Result, err error) {
	n := a.submissions.Add(1)
	if err == nil {
		if n%witnessEach != 1 && a.waiting.Load() == 0 {
			return
		}
		// Nothing in this bucket refers to the blob of a batch that another region counts.
		if res.Elsewhere && res.Outcome != accept.Conflict {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if !res.Elsewhere {
			a.witness = res.ManifestKey
		}
		// Sent again, with an outcome: its blob is referenced, unless the manifest carries the frame.
		if res.Outcome == accept.Conflict || !res.Manifest.Inline {
			delete(a.frames, sum)
			a.waiting.Store(int64(len(a.frames)))
		}
		return
	}
	var refused *accept.RefusedError
	if errors.As(err, &refused) { // before anything was written
		return
	}
	a.note(sum)
}

// unneeded notes a blob that this collector created or found, and that nothing refers to: the manifest carries the frame.
func (a *abandoned) unneeded(key string) {
	if sum, _, err := layout.ParseBlob(key); err == nil {
		a.note(sum)
	}
}

func (a *abandoned) note(sum identity.Digest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.frames[sum]; !known && len(a.frames) >= maxAbandoned {
		a.dropped.Add(1)
		return
	}
	a.frames[sum] = time.Now()
	a.waiting.Store(int64(len(a.frames)))
}

// old are frames whose submissions ended at least so long ago, as many as a report has.
func (a *abandoned) old(least time.Duration) (frames []identity.Digest, witness string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for d, at := range a.frames {
		if len(frames) < gc.MaxReported && time.Since(at) >= least {
			frames = append(frames, d)
		}
	}
	return frames, a.witness
}

// reported forgets what a report has.
func (a *abandoned) reported(frames []identity.Digest, submissions uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range frames {
		delete(a.frames, d)
	}
	a.waiting.Store(int64(len(a.frames)))
	a.submissions.Add(-submissions)
}

// reportTimeout bounds the writing of one report, also of the last one of a process that ends.
const reportTimeout = 5 * time.Second

// reportOrphans writes reports until ctx ends, and then one of everything that is left.
func (s *Service) reportOrphans(ctx context.Context) error {
	every := s.cfg.Orphans.ReportInterval
	if every <= 0 {
		return nil
	}
	for {
		ended := run.Sleep(ctx, every) != nil
		least := every
		if ended {
			least = 0
		}
		for {
			rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
			more, err := s.reportAbandoned(rctx, least)
			cancel()
			if err != nil {
				s.metrics.orphanReports.WithLabelValues("failed").Inc()
				s.tel.Log.Warn("frames of submissions without an outcome were not reported; tried again later, or found by the sweep of the garbage collection", "error", err)
			}
			if err != nil || !more {
				break
			}
		}
		if ended {
			return nil
		}
	}
}

// reportAbandoned writes one report; more says that there is another one to write.
func (s *Service) reportAbandoned(ctx context.Context, least time.Duration) (more bool, err error) {
	st := s.state.Load()
	frames, witness := s.abandoned.old(least)
	if len(frames) == 0 || st.authority == nil {
		return false, nil
	}
	r := gc.OrphanReport{
		AuthorityID: st.authority.authorityID, CollectorID: s.collectorID, ReportedAt: max(s.now().UnixNano(), 0),
		Submissions: s.abandoned.submissions.Load(), Witness: witness, Frames: frames,
	}
	body, err := r.Marshal()
	if err != nil {
		return false, err
	}
	_, err = s.store.Create(ctx, r.Key(body), body, objstore.PutOptions{ContentType: "application/json"})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return false, fmt.Errorf("report possible orphans: %w", err)
	}
	s.metrics.orphanReports.WithLabelValues("ok").Inc()
	s.abandoned.reported(frames, r.Submissions)
	return len(frames) == gc.MaxReported, nil
}
