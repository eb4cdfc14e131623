package reconciler

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/derived/putback"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

const (
	// repairsTimeout bounds a call about repairs.
	repairsTimeout = 30 * time.Second
	// maxRetries bounds the repairs of one RetryRepairs.
	maxRetries = 100
	// maxGenerations bounds the generations of a frame that GetRepair reads.
	maxGenerations = 16
)

// ListRepairs lists the records under repair/v1/.
func (g server) ListRepairs(ctx context.Context, req *reconcilerv1.ListRepairsRequest) (*reconcilerv1.ListRepairsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, repairsTimeout)
	defer cancel()
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(after) > 0 && !strings.HasPrefix(string(after), layout.RepairPrefix) {
		return nil, invalid("page_token is not from a response before")
	}
	// Records of accepted batches and of conflicts have prefixes of their own for one agent, so an agent's are
	// selected from all of them.
	page, err := g.s.store.List(ctx, objstore.ListOptions{Prefix: layout.RepairPrefix, StartAfter: string(after), Limit: size})
	if err != nil {
		return nil, err
	}
	out := &reconcilerv1.ListRepairsResponse{}
	var keys []string
	for _, o := range page.Objects {
		manifest, ok := repairedKey(o.Key)
		if !ok {
			continue // a foreign key, which the sweep reports
		}
		if id, _, _ := parseManifestKey(manifest); req.GetAgentId() == "" || id.Agent == req.GetAgentId() {
			keys = append(keys, o.Key)
		}
	}
	list := make([]*reconcilerv1.Repair, len(keys))
	err = readEach(ctx, len(keys), func(ctx context.Context, i int) (err error) {
		list[i], err = g.repair(ctx, keys[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r != nil && (req.GetCause() == "" || r.GetCause() == req.GetCause()) {
			out.Repairs = append(out.Repairs, r)
		}
	}
	if page.Next != "" {
		out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page.Next))
	}
	return out, nil
}

// parseManifestKey is what the key of a manifest or quarantine record says; quarantined has the frame's hash.
func parseManifestKey(key string) (id identity.Batch, quarantined identity.Digest, err error) {
	if id, err := layout.ParseAccepted(key); err == nil {
		return id, identity.Digest{}, nil
	}
	return layout.ParseQuarantine(key)
}

// repair reads a record; nil if there is none. One that can't be read is a part of the answer.
func (g server) repair(ctx context.Context, key string) (*reconcilerv1.Repair, error) {
	manifest, _ := repairedKey(key)
	id, sum, err := parseManifestKey(manifest)
	if err != nil {
		return nil, invalid(fmt.Sprintf("%.300q is not the key of a repair record", key))
	}
	r := &reconcilerv1.Repair{Key: key, ManifestKey: manifest, AgentId: id.Agent, BootId: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, Quarantined: !sum.IsZero()}
	rec, _, err := record.Read(ctx, g.s.store, key, reconcile.RepairKind, reconcile.ParseRepair)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, nil
	case record.Opaque(err):
		r.Error = err.Error()
		return r, nil
	case err != nil:
		return nil, err
	}
	r.Cause, r.Detail, r.RawBlobKey, r.FirstSeenUnixNs, r.ReconcilerId = string(rec.Cause), rec.Detail, rec.RawBlobKey, rec.FirstSeen, rec.ReconcilerID
	if !rec.FrameSHA256.IsZero() {
		r.FrameSha256 = rec.FrameSHA256.String()
	}
	r.Tries, r.TriedAtUnixNs, r.Answers = rec.Tries, rec.TriedAt, answers(rec.Answers)
	for _, e := range rec.History {
		r.History = append(r.History, &reconcilerv1.RepairEvent{AtUnixNs: e.At, What: e.What, By: e.By, Detail: e.Detail})
	}
	return r, nil
}

func answers(list []putback.Answer) (out []*reconcilerv1.PlaceAnswer) {
	for _, a := range list {
		out = append(out, &reconcilerv1.PlaceAnswer{Place: a.Place, Said: string(a.Said), Detail: a.Detail})
	}
	return out
}

// GetRepair has a record, and looks at the generations of its frame.
func (g server) GetRepair(ctx context.Context, req *reconcilerv1.GetRepairRequest) (*reconcilerv1.GetRepairResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, repairsTimeout)
	defer cancel()
	r, err := g.repair(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, rpc.Failure{Code: codes.NotFound, Reason: rpc.ReasonNotFound, Message: "there is no repair record " + req.GetKey()}.Err()
	}
	out := &reconcilerv1.GetRepairResponse{Repair: r}
	for _, p := range g.s.putBacks.places {
		out.Places = append(out.Places, p.Name())
	}
	sum, err := identity.ParseDigest(r.GetFrameSha256())
	if err != nil {
		return out, nil // of a record that can't be read
	}
	for o, err := range objstore.List(ctx, g.s.store, objstore.ListOptions{Prefix: layout.BlobStem(sum)}) {
		if err != nil {
			return nil, err
		}
		_, gen, err := layout.ParseBlob(o.Key)
		if err != nil {
			continue
		}
		if len(out.Generations) == maxGenerations {
			break
		}
		b := &reconcilerv1.BlobGeneration{Key: o.Key, Bytes: uint64(o.Size)}
		if b.Fault, err = g.s.core.CheckBlob(ctx, o.Key, sum); err != nil {
			return nil, err
		}
		switch _, err := g.s.store.Head(ctx, layout.Condemned(sum, gen)); {
		case err == nil:
			b.Condemned = true
		case !errors.Is(err, objstore.ErrNotFound):
			return nil, err
		}
		out.Generations = append(out.Generations, b)
	}
	return out, nil
}

// RetryRepairs looks at each once more, and asks all places.
func (g server) RetryRepairs(ctx context.Context, req *reconcilerv1.RetryRepairsRequest) (*reconcilerv1.RetryRepairsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, repairsTimeout)
	defer cancel()
	if n := len(req.GetKeys()); n == 0 || n > maxRetries {
		return nil, invalid(fmt.Sprintf("%d keys: want 1 to %d", n, maxRetries))
	}
	for _, key := range req.GetKeys() {
		if _, ok := repairedKey(key); !ok || !strings.HasPrefix(key, layout.RepairPrefix) {
			return nil, invalid(fmt.Sprintf("%.300q is not the key of a repair record", key))
		}
	}
	by := caller(ctx)
	g.s.log.Info("repairs are tried again", "repairs", len(req.GetKeys()), "by", by)
	out := &reconcilerv1.RetryRepairsResponse{Results: make([]*reconcilerv1.RepairResult, len(req.GetKeys()))}
	// What fails for one is a part of the answer, so that it does not hide what became of the others.
	err := readEach(ctx, len(req.GetKeys()), func(ctx context.Context, i int) error {
		out.Results[i] = g.s.retryRepair(ctx, req.GetKeys()[i], by)
		return nil
	})
	return out, err
}

// Results of a retry.
const (
	resultHealed  = "healed"
	resultPutBack = "put_back"
	resultOpen    = "open"
	resultAbsent  = "absent"
)

func (s *Service) retryRepair(ctx context.Context, key, by string) *reconcilerv1.RepairResult {
	out := &reconcilerv1.RepairResult{Key: key, Result: resultOpen}
	manifest, _ := repairedKey(key)
	if _, err := s.store.Head(ctx, key); errors.Is(err, objstore.ErrNotFound) {
		out.Result = resultAbsent
		return out
	}
	res, err := s.core.Reconcile(ctx, manifest, reconcile.Options{HeadFirst: true, Recheck: true, Read: true})
	if err != nil {
		out.Error = err.Error()
		return out
	}
	s.report(&item{key: manifest, src: fromRepair}, res)
	switch res.Cause {
	case "":
		out.Result = resultHealed
		return out
	case reconcile.CauseMissing, reconcile.CauseCorrupt:
	default:
		out.Error = string(res.Cause) + ": no place can mend a record"
		return out
	}
	if len(s.putBacks.places) == 0 {
		out.Error = "repairs.collectors and repairs.replica name no place to ask"
		return out
	}
	r, err := s.putBack(ctx, manifest, by)
	out.Answers = answers(r.Answers)
	switch {
	case err != nil:
		out.Error = err.Error()
	case r.From != "":
		out.Result, out.From, out.BlobKey = resultPutBack, r.From, r.Key
	case len(r.Answers) == 0:
		out.Error = "another reconciler asks for it now"
	default:
		out.Error = "no place has the frame"
	}
	return out
}
