package ingest

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"

	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// SubmitBatch implements IngestServiceServer for gRPC and, through the gateway, for
// HTTP, where takeBody has admitted the frame before it read the body.
func (s *Service) SubmitBatch(ctx context.Context, req *ingestv1.SubmitBatchRequest) (*ingestv1.SubmitBatchResponse, error) {
	b := req.GetFrame()
	spoolID := req.GetSpoolId()
	body, overHTTP := ctx.Value(bodyKey{}).(*frameBody)
	if overHTTP {
		spoolID = body.spoolID // from a header
	}
	if !s.enter() {
		if !overHTTP {
			s.buffers.put(b)
		}
		return nil, s.draining()
	}
	defer s.leave()
	if err := checkSpoolID(spoolID); err != nil {
		return nil, s.describe(err).Err()
	}
	if !overHTTP {
		err := s.admit(ctx, len(b))
		connOf(ctx).admitted()
		if err != nil {
			s.buffers.put(b)
			f := s.describe(err)
			s.metrics.countRefused(f)
			return nil, f.Err()
		}
		defer s.release(len(b))
	}
	work, cancel := s.finishing(ctx)
	defer cancel()
	v := s.handle(work, submission{frame: b, spoolID: spoolID})
	if overHTTP {
		body.decision = v // takeBody returns the buffer
	} else {
		s.recycle(b, v)
	}
	failpoint.Hit("ingest.unary.answer.before")
	if v.err != nil {
		return nil, s.describe(v.err).Err()
	}
	if v.result.Outcome == accept.Conflict {
		return nil, conflict(v).Err()
	}
	return &ingestv1.SubmitBatchResponse{Duplicate: v.result.Outcome == accept.Duplicate, Acceptance: acceptance(v.result)}, nil
}

// conflict is the status of an identity conflict. It is FAILED_PRECONDITION and not ABORTED, because
// gRPC clients retry ABORTED.
func conflict(v decision) rpc.Failure {
	m := v.result.Manifest
	f := rpc.Failure{
		Code: codes.FailedPrecondition, Reason: ReasonIdentityConflict,
		Message: "another frame is accepted for " + v.id.String(),
		Metadata: map[string]string{
			"accepted_sha256":  m.FrameSHA256.String(),
			"submitted_sha256": v.sha256.String(),
			"manifest_key":     layout.Accepted(v.id),
		},
	}
	if met := v.result.Met; met != (identity.Batch{}) {
		f.Message = metDetail(v.id, met)
		f.Metadata["manifest_key"] = layout.Accepted(met)
		f.Metadata["accepted_seq_start"], f.Metadata["accepted_seq_end"] = fmt.Sprint(met.SeqStart), fmt.Sprint(met.SeqEnd)
	}
	// Which collector accepted it and when, the linearizer does not say.
	if m.AcceptedAt != 0 {
		f.Metadata["accepted_at"], f.Metadata["collector_id"] = m.AcceptedTime().Format(timeFormat), m.CollectorID
	}
	// With local_spool both exist only after the landing.
	if k := v.result.QuarantineKey; k != "" {
		f.Metadata["quarantine_key"] = k
	}
	if at := positionText(v.result.Position); at != "" {
		f.Metadata["journal_position"] = at
	}
	return f
}

// metDetail says which batch is in the way of one that has other numbers.
func metDetail(id, met identity.Batch) string {
	return fmt.Sprintf("the batch %d-%d is accepted, which shares sequence numbers with %s", met.SeqStart, met.SeqEnd, id)
}

const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// nameOf returns what identifies a frame in an answer to its sender, without decoding it.
func nameOf(b []byte) (identity.Batch, identity.Digest) {
	h, err := frame.ParseHeader(b)
	if err != nil {
		return identity.Batch{}, identity.Sum(b)
	}
	return h.Identity, identity.Sum(b)
}
