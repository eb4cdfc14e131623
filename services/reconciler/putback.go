package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/putback"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

const (
	// askAgain is the wait after places were asked once and none had the frame; it doubles each time, up to askAgainMax.
	askAgain    = time.Minute
	askAgainMax = 6 * time.Hour
	// askTimeout bounds one question to a collector.
	askTimeout = 10 * time.Second
	// maxPieces bounds a message of a collector, which sends a quarter of it.
	maxPieces = 1 << 20
	// rememberDue bounds the repairs of which the time of the next question is remembered; of others the record is read.
	rememberDue = 100_000
)

// putBacks are the places that may have the bytes of frames, and when to ask for which.
type putBacks struct {
	places []putback.Place
	due    *lru.Cache[string, time.Time] // by manifest
}

// openPlaces makes the places that the settings name, the nearest first. Connections are made when they are needed.
func (s *Service) openPlaces(replica objstore.Reader) error {
	s.putBacks.due = lru.New[string, time.Time](rememberDue)
	for _, addr := range s.cfg.Repairs.Collectors {
		conn, err := rpc.Dial(addr, s.cfg.Repairs.Client)
		if err != nil {
			return fmt.Errorf("reconciler: repairs.collectors: %w", err)
		}
		s.Go("collector "+addr, func(ctx context.Context) error { // closes the connection at the end
			<-ctx.Done()
			return errors.Join(ctx.Err(), conn.Close())
		})
		s.putBacks.places = append(s.putBacks.places, collectorPlace{addr, journalv1.NewJournalServiceClient(conn)})
	}
	if replica != nil {
		s.putBacks.places = append(s.putBacks.places, putback.Replica{Store: replica, As: "replica"})
	}
	return nil
}

// askWait is when places are asked again after so many tries.
func askWait(tries uint64) time.Duration {
	if tries == 0 {
		return 0
	}
	return min(askAgain<<min(tries-1, 20), askAgainMax)
}

// putBack asks for the bytes of a frame that has an open repair record, and puts them back, unless places were asked a
// while ago; by is who wants it at once. The record is moved before anybody is asked, so that of several reconcilers
// one asks.
func (s *Service) putBack(ctx context.Context, manifest, by string) (putback.Result, error) {
	var out putback.Result
	if len(s.putBacks.places) == 0 {
		return out, nil
	}
	now := s.now()
	if due, ok := s.putBacks.due.Get(manifest); ok && by == "" && now.Before(due) {
		return out, nil
	}
	key, err := reconcile.RepairKey(manifest)
	if err != nil {
		return out, err
	}
	rec, info, err := record.Read(ctx, s.store, key, reconcile.RepairKind, reconcile.ParseRepair)
	if errors.Is(err, objstore.ErrNotFound) || record.Opaque(err) {
		return out, nil // healed meanwhile; or the next pass writes it again, or a newer release deals with it
	}
	if err != nil {
		return out, err
	}
	// The clocks of reconcilers may differ: one that is ahead asks more often, which is harmless.
	if due := time.Unix(0, rec.TriedAt).Add(askWait(rec.Tries)); by == "" && now.Before(due) {
		s.putBacks.due.Put(manifest, due, 1)
		return out, nil
	}
	authority, err := s.journal.authority(ctx)
	if err != nil {
		return out, err
	}
	rec.Tries, rec.TriedAt = rec.Tries+1, now.UnixNano()
	if by != "" {
		rec.Note(reconcile.Event{At: rec.TriedAt, What: reconcile.EventRetry, By: by})
	}
	info, err = s.store.Replace(ctx, key, rec.Marshal(), info.ETag, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrNotFound) {
		return out, nil // another one asks
	}
	if err != nil {
		return out, err
	}
	s.putBacks.due.Put(manifest, now.Add(askWait(rec.Tries)), 1)
	r := putback.Repairer{
		Config: accept.Config{Store: s.store, AuthorityID: authority, CollectorID: s.ID(), Clock: wall(s.now)}, Places: shares(s.putBacks.places),
	}
	out, err = r.Repair(ctx, manifest)
	if err == nil && out.From != "" {
		s.m.putBack.WithLabelValues("put_back").Inc()
		s.log.Warn("a frame was put back", "manifest", manifest, "from", out.From, "key", out.Key, "written", out.Written, "unusable_generations", out.Skipped, "by", by)
		// The record goes once the bytes were read from the store.
		res, err := s.core.Reconcile(ctx, manifest, reconcile.Options{HeadFirst: true, Recheck: true, Read: true})
		if err == nil {
			s.putBacks.due.Remove(manifest)
			s.report(&item{key: manifest, src: fromRepair}, res)
		}
		return out, err
	}
	result, detail := "none", "no place has the frame"
	if err != nil {
		result, detail = "failed", err.Error()
	}
	s.m.putBack.WithLabelValues(result).Inc()
	rec.Answered(out.Answers)
	rec.Note(reconcile.Event{At: s.now().UnixNano(), What: reconcile.EventAsked, By: s.ID(), Detail: detail})
	if _, rerr := s.store.Replace(ctx, key, rec.Marshal(), info.ETag, objstore.PutOptions{ContentType: "application/json"}); rerr != nil && !errors.Is(rerr, objstore.ErrPreconditionFailed) {
		err = errors.Join(err, rerr)
	}
	return out, err
}

// shares gives each place a part of what is left of ctx's time, and leaves as much for those behind it and for what comes after
// the answer. Otherwise a few collectors that have gone without a word would take all of it, each time, and those behind them would
// never be asked.
func shares(places []putback.Place) []putback.Place {
	out := make([]putback.Place, len(places))
	for i, p := range places {
		out[i] = hurried{p, len(places) - i + 1}
	}
	return out
}

// hurried is a place that has to answer in its part of the time.
type hurried struct {
	putback.Place
	parts int
}

// Find implements putback.Place.
func (h hurried) Find(ctx context.Context, ref accept.Reference) ([]byte, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(h.parts))
		defer cancel()
	}
	return h.Place.Find(ctx, ref)
}

// wall is a clock.
type wall func() time.Time

func (w wall) Now() time.Time { return w() }

func (w wall) Sleep(ctx context.Context, d time.Duration) error { return run.Sleep(ctx, d) }

// collectorPlace is the memory of a collector.
type collectorPlace struct {
	addr   string
	client journalv1.JournalServiceClient
}

// Name implements putback.Place.
func (c collectorPlace) Name() string { return "collector " + c.addr }

// Find asks for a frame that the collector has accepted lately.
func (c collectorPlace) Find(ctx context.Context, ref accept.Reference) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := c.client.ReadFrames(ctx, &journalv1.ReadFramesRequest{FrameSha256: [][]byte{ref.SHA256[:]}}, grpc.MaxCallRecvMsgSize(maxPieces))
	if err != nil {
		return nil, err
	}
	limit := ref.Bytes
	if limit == 0 {
		limit = objstore.DefaultGetLimit
	}
	var frame []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if len(frame) == 0 {
				return nil, putback.ErrNone
			}
			return frame, nil
		}
		if err != nil {
			return nil, err
		}
		for _, p := range m.GetPieces() {
			if p.GetMissing() {
				return nil, putback.ErrNone
			}
			if uint64(len(frame)+len(p.GetData())) > limit {
				return nil, fmt.Errorf("it sends more than the %d bytes of the frame", limit)
			}
			frame = append(frame, p.GetData()...)
		}
	}
}
