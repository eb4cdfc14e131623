package ingest

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// access: senders only; whether one may write an agent's batches is asked for each batch.
var access = rpc.Access{
	ingestv1.IngestService_StreamBatches_FullMethodName: {rpc.RoleSender},
	ingestv1.IngestService_SubmitBatch_FullMethodName:   {rpc.RoleSender},
}
