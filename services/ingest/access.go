package ingest

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// sees are the roles that may look at a collector.
var sees = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}

// access allows senders only. Whether a sender may write an agent's batches is checked for each batch.
var access = rpc.Access{
	ingestv1.IngestService_StreamBatches_FullMethodName: {rpc.RoleSender},
	ingestv1.IngestService_SubmitBatch_FullMethodName:   {rpc.RoleSender},

	ingestv1.IngestService_SettleConflicts_FullMethodName: {rpc.RoleSender},
}

// journalAccess allows watches, and frames, to other services. A collector takes no hints; the method has a line because
// every method needs one.
var journalAccess = rpc.Access{
	journalv1.JournalService_NotifyJournal_FullMethodName: {rpc.RoleWorker},
	journalv1.JournalService_WatchJournal_FullMethodName:  {rpc.RoleWorker},
	journalv1.JournalService_ReadFrames_FullMethodName:    {rpc.RoleWorker},
}
