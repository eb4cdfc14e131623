// Package access holds the table of who may call what, and asks every service, over
// every method and every HTTP route that it has, whether it keeps to it.
package access

// open needs no credentials.
const open = "open"

// regional are the methods that are called for a region, for which the caller must be one who may act.
var regional = map[string]bool{
	"/lightmetrics.coordinator.v1.IdentityService/ChangeClaims": true,
	"/lightmetrics.coordinator.v1.IdentityService/ScanClaims":   true,
}

// methods has a line for every gRPC method: the roles of which one is enough.
var methods = map[string]string{
	"/lightmetrics.ingest.v1.IngestService/StreamBatches": "sender",
	"/lightmetrics.ingest.v1.IngestService/SubmitBatch":   "sender",

	"/lightmetrics.ingest.v1.IngestService/SettleConflicts": "sender",

	"/lightmetrics.journal.v1.JournalService/NotifyJournal": "worker",
	"/lightmetrics.journal.v1.JournalService/WatchJournal":  "worker",
	"/lightmetrics.journal.v1.JournalService/ReadFrames":    "worker",

	"/lightmetrics.reconciler.v1.ReconcilerService/ListLedgers":    "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/GetStatus":      "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/GetGarbage":     "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/StartSweep":     "operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/ReleaseBreaker": "operator",

	"/lightmetrics.reconciler.v1.ReconcilerService/ListRepairs":      "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/GetRepair":        "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/RetryRepairs":     "operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/ListConflicts":    "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/GetOverlap":       "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/GetConflict":      "reader operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/ResolveConflicts": "operator",
	"/lightmetrics.reconciler.v1.ReconcilerService/SetQuarantine":    "operator",

	"/lightmetrics.query.v1.QueryService/Query":         "reader",
	"/lightmetrics.query.v1.QueryService/QueryRange":    "reader",
	"/lightmetrics.query.v1.QueryService/ListAgents":    "reader operator",
	"/lightmetrics.query.v1.QueryService/ListConflicts": "reader operator",
	"/lightmetrics.query.v1.RegionService/Read":         "worker",

	"/lightmetrics.coordinator.v1.OwnershipService/Own":         "worker",
	"/lightmetrics.coordinator.v1.OwnershipService/Drain":       "operator",
	"/lightmetrics.coordinator.v1.OwnershipService/ListShards":  "reader operator",
	"/lightmetrics.coordinator.v1.OwnershipService/ListWorkers": "reader operator",
	"/lightmetrics.coordinator.v1.OwnershipService/ListMoves":   "reader operator",

	"/lightmetrics.coordinator.v1.WorkService/SendMessage":       "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ReceiveMessages":   "worker",
	"/lightmetrics.coordinator.v1.WorkService/ReturnMessage":     "worker",
	"/lightmetrics.coordinator.v1.WorkService/DeleteMessage":     "worker",
	"/lightmetrics.coordinator.v1.WorkService/ListDeadLetters":   "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/RedriveDeadLetter": "operator",
	"/lightmetrics.coordinator.v1.WorkService/GetDepth":          "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/CreateJob":         "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/GetJob":            "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ClaimJob":          "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/CheckpointJob":     "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ReleaseJob":        "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/TouchJob":          "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/CompleteJob":       "operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ListJobs":          "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/GetLog":            "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ListLogs":          "reader operator worker",
	"/lightmetrics.coordinator.v1.WorkService/ForgetLog":         "operator worker",

	"/lightmetrics.coordinator.v1.IdentityService/ChangeClaims":       "worker",
	"/lightmetrics.coordinator.v1.IdentityService/ListClaims":         "reader operator worker",
	"/lightmetrics.coordinator.v1.IdentityService/ScanClaims":         "worker",
	"/lightmetrics.coordinator.v1.IdentityService/ListRegions":        "reader operator",
	"/lightmetrics.coordinator.v1.IdentityService/AddRegion":          "operator",
	"/lightmetrics.coordinator.v1.IdentityService/PrepareRegion":      "operator",
	"/lightmetrics.coordinator.v1.IdentityService/RetireRegion":       "operator",
	"/lightmetrics.coordinator.v1.IdentityService/DissolveLinearizer": "operator",
	"/lightmetrics.coordinator.v1.IdentityService/TraceIdentity":      "reader operator",

	"/lightmetrics.coordinator.v1.RefsService/GetEpoch":         "reader operator worker",
	"/lightmetrics.coordinator.v1.RefsService/InitEpoch":        "worker",
	"/lightmetrics.coordinator.v1.RefsService/AddRefs":          "worker",
	"/lightmetrics.coordinator.v1.RefsService/GetRefRecords":    "reader operator worker",
	"/lightmetrics.coordinator.v1.RefsService/SwapRefRecord":    "worker",
	"/lightmetrics.coordinator.v1.RefsService/CondemnRefs":      "worker",
	"/lightmetrics.coordinator.v1.RefsService/DeleteRefRecords": "worker",
	"/lightmetrics.coordinator.v1.RefsService/ListRefRecords":   "reader operator worker",

	// Of every server.
	"/grpc.health.v1.Health/Check":                                   open,
	"/grpc.health.v1.Health/List":                                    open,
	"/grpc.health.v1.Health/Watch":                                   open,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "sender reader operator worker",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "sender reader operator worker",
	"/grpc.channelz.v1.Channelz/GetTopChannels":                      "operator",
	"/grpc.channelz.v1.Channelz/GetServers":                          "operator",
	"/grpc.channelz.v1.Channelz/GetServer":                           "operator",
	"/grpc.channelz.v1.Channelz/GetServerSockets":                    "operator",
	"/grpc.channelz.v1.Channelz/GetChannel":                          "operator",
	"/grpc.channelz.v1.Channelz/GetSubchannel":                       "operator",
	"/grpc.channelz.v1.Channelz/GetSocket":                           "operator",
}

// admin are the routes that every service has.
var admin = map[string]string{
	"GET /-/healthy": open, "GET /-/ready": open,
	"GET /metrics": "reader operator", "GET /config": "operator",
	"GET /debug/pprof/": "operator", "GET /debug/pprof/profile": "operator", "GET /debug/pprof/symbol": "operator", "GET /debug/pprof/trace": "operator",
}

// routes has a line for every HTTP route of each service, beside those of admin.
var routes = map[string]map[string]string{
	"ingest":       {"POST /v1/batches": "sender", "GET /status": "reader operator"},
	"ingest admin": {},
	"reconciler": {
		"GET /v1/ledgers": "reader operator", "GET /v1/status": "reader operator",
		"GET /v1/gc": "reader operator", "POST /v1/gc/sweep": "operator", "POST /v1/gc/breaker": "operator",
		"GET /v1/reconciler/conflicts": "reader operator", "GET /v1/reconciler/overlap": "reader operator", "GET /v1/reconciler/conflicts/{submitted_sha256}": "reader operator",
		"GET /v1/reconciler/repairs": "reader operator", "GET /v1/reconciler/repair": "reader operator", "POST /v1/reconciler/repairs": "operator",
		"POST /v1/reconciler/resolutions": "operator", "POST /v1/reconciler/quarantine": "operator",
		"POST /v1/events": "worker",
	},
	"query": {
		" /api/v1/": "reader", "GET /v1/query": "reader", "GET /v1/query_range": "reader",
		"GET /v1/agents": "reader operator", "GET /v1/conflicts": "reader operator", "GET /status": "reader operator",
		"POST /v1/events": "worker",
	},
	"rollup": {"GET /v1/rollup/shards": "reader operator"},
	"coordinator": {
		"POST /v1/ownership/{kind}/workers/{worker_id}": "operator",
		"GET /v1/ownership/{kind}/shards":               "reader operator",
		"GET /v1/ownership/{kind}/workers":              "reader operator",
		"GET /v1/ownership/{kind}/moves":                "reader operator",
		"GET /v1/topics/{topic}/dead-letters":           "reader operator worker",
		"GET /v1/topics/{topic}/depth":                  "reader operator worker",
		"GET /v1/jobs":                                  "reader operator worker",
		"GET /v1/logs":                                  "reader operator worker",
	},
}
