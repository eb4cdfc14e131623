package dashboard

// UID of the dashboard: links to it last.
const UID = "lightmetrics"

// Lightmetrics is the dashboard of a whole deployment, scraped as docs/guide/monitoring.md
// says. $instance filters every panel.
func Lightmetrics() ([]byte, error) {
	return JSON(UID, "Lightmetrics", []Row{overview(), ingest(), journal(), reconciler(), rollup(), query(), regions(), store(), agents()})
}

// of is the filter that every selector has.
const of = `instance=~"$instance"`

// by aggregates, by labels where there are any.
func by(function, labels, selector string) string {
	if labels == "" {
		return function + "(" + selector + ")"
	}
	return function + " by (" + labels + ") (" + selector + ")"
}

// metric is a selector of this deployment; more are further matchers.
func metric(name, more string) string {
	if more != "" {
		more = "," + more
	}
	return "lightmetrics_" + name + "{" + of + more + "}"
}

// rate is the sum of a counter's rates.
func rate(labels, name, more string) string {
	return by("sum", labels, "rate("+metric(name, more)+"[$__rate_interval])")
}

// quantiles are the median and the 99th percentile of a histogram.
func quantiles(labels, name, more string) []Query {
	var out []Query
	le, legend := "le", ""
	if labels != "" {
		le, legend = labels+", le", " {{"+labels+"}}"
	}
	for _, q := range [][2]string{{"0.5", "median"}, {"0.99", "99 %"}} {
		out = append(out, Query{"histogram_quantile(" + q[0] + ", " + rate(le, name+"_bucket", more) + ")", q[1] + legend})
	}
	return out
}

// ago turns a time into its age.
func ago(expression string) string { return "time() - " + expression }

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

func overview() Row {
	return Row{"Overview", []Panel{
		{Title: "Records accepted", Unit: "ops", Stat: true, Queries: one(rate("", "ingest_records_total", `outcome="accepted"`), "")},
		{Title: "Agents with a stream", Unit: "short", Stat: true, Queries: one(by("sum", "", metric("ingest_streams", "")), "")},
		{Title: "Journal read through", About: "Age of the time before which everything that was answered is in the ledgers.", Unit: "s", Stat: true,
			Queries: one(ago(by("max", "site", metric("reconciler_complete_through_timestamp_seconds", ""))), "{{site}}")},
		{Title: "Rollups behind", About: "Age of the oldest ended hour that is not rolled up.", Unit: "s", Stat: true, Queries: one(by("max", "", metric("rollup_lag_seconds", "")), "")},
		{Title: "Open repairs", About: "Accepted batches that are damaged or missing.", Unit: "short", Stat: true, Queries: one(by("max", "", metric("reconciler_open_repairs", "")), "")},
		{Title: "Samples dropped by agents", About: "In a day.", Unit: "short", Stat: true, Queries: one("sum(increase("+metric("agent_dropped_samples_total", "")+"[1d]))", "")},
		{Title: "Parts that are not ready", About: "0 is ready; /-/ready of the instance says why it is not.", Unit: "short",
			Queries: one("1 - "+by("min", "job, instance, part", metric("ready", "")), "{{job}} {{instance}} {{part}}")},
		{Title: "Memory", Unit: "bytes", Queries: one(by("max", "job, instance", `process_resident_memory_bytes{job=~"lightmetrics-.+",`+of+`}`), "{{job}} {{instance}}")},
		{Title: "CPU", About: "Cores in use.", Unit: "short", Queries: one(by("sum", "job, instance", `rate(process_cpu_seconds_total{job=~"lightmetrics-.+",`+of+`}[$__rate_interval])`), "{{job}} {{instance}}")},
	}}
}

func ingest() Row {
	return Row{"Ingest", []Panel{
		{Title: "Batches by outcome", Unit: "ops", Queries: one(rate("outcome", "ingest_batches_total", ""), "{{outcome}}")},
		{Title: "Acknowledgement", About: "Admission of a batch to its answer.", Unit: "s", Queries: quantiles("", "ingest_ack_duration_seconds", `outcome="accepted"`)},
		{Title: "Refused, retried", About: "Batches that were not accepted, by reason.", Unit: "ops", Queries: one(rate("outcome, reason", "ingest_batches_total", `outcome=~"rejected|retry|conflict"`), "{{outcome}} {{reason}}")},
		{Title: "Frame bytes", Unit: "Bps", Queries: one(rate("instance", "ingest_frame_bytes_total", ""), "{{instance}}")},
		{Title: "Turned away for want of room", Unit: "ops", Queries: one(rate("instance, resource", "ingest_sheds_total", ""), "{{instance}} {{resource}}")},
		{Title: "Streams", Unit: "short", Queries: one(by("sum", "instance", metric("ingest_streams", "")), "{{instance}}")},
		{Title: "Admitted and not answered", Unit: "bytes", Queries: one(by("sum", "instance", metric("ingest_in_flight_bytes", "")), "{{instance}}")},
	}}
}

func reconciler() Row {
	return Row{"Reconciler", []Panel{
		{Title: "Manifests reconciled, by reason", About: "journal: derived keys as objects. full_audit, scrub, repair: what was missing or damaged.", Unit: "ops", Queries: one(rate("source", "reconciler_items_total", ""), "{{source}}")},
		{Title: "Acceptance to ledgers", Unit: "s", Queries: quantiles("", "reconciler_lag_seconds", "")},
		{Title: "Outcomes", Unit: "ops", Queries: one(rate("result", "reconciler_outcomes_total", ""), "{{result}}")},
		{Title: "Queue", Unit: "short", Queries: one(by("max", "instance", metric("reconciler_queue_length", "")), "{{instance}}")},
		{Title: "Queue age", Unit: "s", Queries: one(by("max", "instance", metric("reconciler_queue_age_seconds", "")), "{{instance}}")},
		{Title: "Frames that the scrub hashes", Unit: "ops", Queries: one(rate("instance", "reconciler_scrubbed_frames_total", ""), "{{instance}}")},
		{Title: "Longest time without a check of some frame", About: "Since the begin of the last pass of the scrub that has ended.", Unit: "s", Queries: one(by("min", "site", metric("reconciler_scrub_unverified_seconds", "")), "{{site}}")},
		{Title: "Orphan blobs, by age", About: "Blobs of the last sweep that no entry of the journal names.", Unit: "short", Queries: one(by("max", "age", metric("reconciler_gc_candidates", "")), "{{age}}")},
		{Title: "Orphan blobs deleted, and kept", Unit: "ops", Queries: one(rate("source, action", "reconciler_gc_blobs_total", ""), "{{source}} {{action}}")},
		{Title: "Bytes of orphan blobs that were deleted", Unit: "Bps", Queries: one(rate("", "reconciler_gc_deleted_bytes_total", ""), "")},
		{Title: "Reports of possible orphans, and markers", About: "Markers are permanent.", Unit: "short", Queries: []Query{
			{by("max", "", metric("reconciler_gc_reports", "")), "reports that wait"}, {by("max", "", metric("reconciler_gc_markers", "")), "markers"}}},
		{Title: "Age of the oldest report of possible orphans", About: "Of those that were never checked; a report is due after gc.delay.", Unit: "s", Queries: one(by("max", "", metric("reconciler_gc_oldest_report_seconds", "")), "")},
		{Title: "Runs of the journal that a collection waits for", About: "Where collectors answer without marker reads: nothing is deleted until their runs name what is condemned, or have ended.", Unit: "short", Queries: one(by("max", "instance", metric("reconciler_gc_awaited_runs", "")), "{{instance}}")},
		{Title: "Objects that events of the bucket name", About: "Where reconcilers or query nodes take events. segment and accepted are hints, foreign is of another bucket or prefix.", Unit: "ops", Queries: one(rate("source, kind", "event_objects_total", ""), "{{source}} {{kind}}")},
		{Title: "Queue of events", Unit: "s", Queries: []Query{
			{by("max", "instance", metric("event_queue_age_seconds", "")), "age, {{instance}}"}, {by("max", "instance", metric("event_queue_failing_seconds", "")), "failing, {{instance}}"}}},
		{Title: "Manifests of events, checked against the journal", Unit: "ops", Queries: one(rate("result", "reconciler_event_checks_total", ""), "{{result}}")},
		{Title: "Sweeps of repair records", Unit: "ops", Queries: one(rate("kind, result", "reconciler_audits_total", ""), "{{kind}} {{result}}")},
	}}
}

func journal() Row {
	return Row{"Journal", []Panel{
		{Title: "Segments written", Unit: "ops", Queries: one(rate("instance", "ingest_journal_segments_total", ""), "{{instance}}")},
		{Title: "Entries in a segment", About: "More of them are fewer requests a batch.", Unit: "short", Queries: quantiles("", "ingest_journal_segment_entries", "")},
		{Title: "Batch to durable segment", Unit: "s", Queries: quantiles("", "ingest_journal_wait_seconds", "")},
		{Title: "Batches that wait for a segment", Unit: "short", Queries: one(by("max", "instance", metric("ingest_journal_waiting", "")), "{{instance}}")},
		{Title: "Readers behind", About: "Time since everything that was answered was read; of rollups the age of the progress that stands in the bucket, which moves once an hour.", Unit: "s", Queries: []Query{
			{ago(by("max", "instance", metric("reconciler_complete_through_timestamp_seconds", ""))), "reconciler {{instance}}"},
			{ago(by("max", "instance", metric("query_complete_through_timestamp_seconds", ""))), "query {{instance}}"},
			{by("max", "shard", metric("rollup_progress_age_seconds", "")), "rollups {{shard}}"}}},
		{Title: "Frames asked of collectors", About: "What was not taken was read from the store: missing is no longer in their memory, failed calls have a reason.", Unit: "ops", Queries: []Query{
			{rate("outcome", "query_peer_frames_total", ""), "query {{outcome}}"},
			{rate("outcome", "rollup_peer_frames_total", ""), "rollups {{outcome}}"},
			{rate("reason", "query_peer_failures_total", ""), "query {{reason}}"},
			{rate("reason", "rollup_peer_failures_total", ""), "rollups {{reason}}"}}},
		{Title: "Polls that failed", Unit: "ops", Queries: []Query{
			{rate("instance", "reconciler_journal_polls_total", `result="failed"`), "reconciler {{instance}}"},
			{rate("instance", "query_journal_polls_total", `outcome="failed"`), "query {{instance}}"},
			{rate("instance", "rollup_journal_polls_total", `outcome="failed"`), "rollup {{instance}}"}}},
		{Title: "Entries that wait to be folded", Unit: "short", Queries: one(by("max", "instance", metric("reconciler_journal_waiting_entries", "")), "{{instance}}")},
		{Title: "Since when they wait", About: "About a minute.", Unit: "s", Queries: one(by("max", "instance", metric("reconciler_journal_waiting_seconds", "")), "{{instance}}")},
		{Title: "Foldings", Unit: "ops", Queries: one(rate("result", "reconciler_journal_folds_total", ""), "{{result}}")},
		{Title: "What the head names", Unit: "short", Queries: one(by("max", "what", metric("reconciler_journal_head", "")), "{{what}}")},
		{Title: "Size of the head", About: "At most 16 MiB.", Unit: "bytes", Queries: one(by("max", "", metric("reconciler_journal_head_bytes", "")), "head")},
		{Title: "Runs ended by others", About: "Of collectors that are gone; of one that lives it costs a new run.", Unit: "ops", Queries: []Query{
			{rate("", "reconciler_journal_fenced_total", ""), "ended by reconcilers"}, {rate("instance", "ingest_journal_fences_total", ""), "of {{instance}}, which lives"}}},
		{Title: "Partial answers by reason", Unit: "ops", Queries: one(rate("reason", "query_partial_reasons_total", ""), "{{reason}}")},
	}}
}

func rollup() Row {
	return Row{"Rollup", []Panel{
		{Title: "Behind, by shard", Unit: "s", Queries: one(by("max", "shard", metric("rollup_lag_seconds", "")), "{{shard}}")},
		{Title: "Pending batches", Unit: "short", Queries: one(by("sum", "instance", metric("rollup_pending_batches", "")), "{{instance}}")},
		{Title: "Generations published", Unit: "ops", Queries: one(rate("resolution", "rollup_generations_published_total", ""), "{{resolution}}")},
		{Title: "Jobs by outcome", Unit: "ops", Queries: one(rate("outcome", "rollup_jobs_total", ""), "{{outcome}}")},
		{Title: "Job duration", Unit: "s", Queries: quantiles("", "rollup_job_duration_seconds", "")},
		{Title: "Shards by worker", Unit: "short", Queries: one(by("max", "instance", metric("rollup_shards", "")), "{{instance}}")},
		{Title: "Publications refused", Unit: "ops", Queries: one(rate("reason", "rollup_publications_refused_total", ""), "{{reason}}")},
		{Title: "Shards that are misplaced", Unit: "short", Queries: one(by("max", "kind", metric("coordinator_misplaced_shards", "")), "{{kind}}")},
		{Title: "Coordinators that lead", About: "One, always; one of each site where several regions accept.", Unit: "short", Queries: one(by("sum", "site", metric("coordinator_leading", "")), "leading {{site}}")},
	}}
}

func query() Row {
	return Row{"Query", []Panel{
		{Title: "Requests", Unit: "ops", Queries: one(rate("path", "query_request_seconds_count", ""), "{{path}}")},
		{Title: "Time to answer", Unit: "s", Queries: quantiles("", "query_request_seconds", `path=~"/api/v1/query|/api/v1/query_range"`)},
		{Title: "Errors, partial answers", Unit: "ops", Queries: []Query{{rate("type", "query_errors_total", ""), "{{type}}"}, {rate("", "query_partial_answers_total", ""), "partial"}}},
		{Title: "Complete through", About: "Age of what is proved complete.", Unit: "s", Queries: one(ago(by("max", "instance", metric("query_complete_through_timestamp_seconds", ""))), "{{instance}}")},
		{Title: "Acceptance to visible", Unit: "s", Queries: quantiles("", "query_visible_seconds", "")},
		{Title: "Data in memory", Unit: "bytes", Queries: one(by("max", "instance", metric("query_live_bytes", "")), "{{instance}}")},
		{Title: "Series in memory", Unit: "short", Queries: one(by("max", "instance", metric("query_live_series", "")), "{{instance}}")},
		{Title: "Batches evicted", Unit: "ops", Queries: one(rate("instance, reason", "query_live_evicted_batches_total", ""), "{{instance}} {{reason}}")},
		{Title: "Memory of queries, queries that wait", Unit: "short", Queries: []Query{
			{by("max", "instance", metric("query_memory_bytes", "")), "{{instance}} bytes"}, {by("max", "instance", metric("query_waiting", "")), "{{instance}} waiting"}}},
	}}
}

func regions() Row {
	return Row{"Regions", []Panel{
		{Title: "Coordinators that decide identities", About: "Where several regions accept. One is enough.", Unit: "short", Queries: one(by("sum", "", metric("coordinator_identity_open", "")), "open")},
		{Title: "Why a coordinator does not", About: "And the region whose bucket a recovery waits for.", Unit: "short", Queries: []Query{
			{by("max", "instance, reason", metric("coordinator_identity_closed", "")) + " > 0", "{{instance}} {{reason}}"},
			{by("max", "region", metric("coordinator_identity_waits_for_region", "")) + " > 0", "waits for {{region}}"}}},
		{Title: "Epoch", About: "Each recovery, and each change of the regions, begins the next one.", Unit: "short", Queries: one(by("max", "", metric("coordinator_identity_epoch", "")), "epoch")},
		{Title: "Operations on claims", About: "Outcomes in lower case are refusals.", Unit: "ops", Queries: one(rate("operation, outcome", "coordinator_identity_operations_total", ""), "{{operation}} {{outcome}}")},
		{Title: "Transactions of etcd", Unit: "s", Queries: quantiles("", "coordinator_identity_transaction_seconds", "")},
		{Title: "Claims by home and state", About: "Of the coordinator that folds.", Unit: "short", Queries: one(by("max", "region, state", metric("coordinator_identity_claims", "")), "{{region}} {{state}}")},
		{Title: "Oldest claim that nobody has finished", About: "A region whose reconciler is down holds up what its collectors had begun.", Unit: "s", Queries: one(by("max", "region, state", metric("coordinator_identity_oldest_claim_seconds", `state=~"claimed|durable"`)), "{{region}} {{state}}")},
		{Title: "Folds behind", About: "For how long settled claims that are due could not be moved into the buckets.", Unit: "s", Queries: one(by("max", "", metric("coordinator_identity_fold_lag_seconds", "")), "behind")},
		{Title: "Folds", Unit: "ops", Queries: []Query{
			{rate("", "coordinator_identity_folded_total", ""), "claims folded"}, {rate("", "coordinator_identity_folds_failed_total", ""), "failed"}, {rate("", "coordinator_identity_folds_partial_total", ""), "not in every region"}}},
		{Title: "Recovery", About: "Read and inserted by the last one.", Unit: "short", Queries: []Query{
			{by("max", "", metric("coordinator_identity_recovery_manifests", "")), "manifests"}, {by("max", "", metric("coordinator_identity_recovery_claims", "")), "claims"}}},
		{Title: "Collectors without an answer of the linearizer", About: "1 while a collector asks one call at a time; its senders get RETRY.", Unit: "short", Queries: one(by("max", "instance", metric("ingest_linearizer_away", "")), "{{instance}}")},
		{Title: "Changes that collectors ask for", Unit: "ops", Queries: one(rate("operation, outcome", "ingest_claim_changes_total", ""), "{{operation}} {{outcome}}")},
		{Title: "Claims that reconcilers go on with", Unit: "ops", Queries: one(rate("action", "reconciler_claims_total", ""), "{{action}}")},
		{Title: "Claims that they can't finish", Unit: "short", Queries: one(by("max", "instance, action", metric("reconciler_claims_left", "")), "{{instance}} {{action}}")},
		{Title: "Queries of other regions", About: "What this region's nodes ask of others: an answer without one of them says so.", Unit: "ops", Queries: one(rate("region, outcome", "query_region_queries_total", ""), "{{region}} {{outcome}}")},
		{Title: "Copies that another region counts", Unit: "short", Queries: one(by("max", "instance", metric("reconciler_secondary_copies", "")), "{{instance}}")},
	}}
}

func store() Row {
	return Row{"Object store", []Panel{
		{Title: "Requests of services", About: "To the object store, whichever it is.", Unit: "ops", Queries: one(rate("job, op, outcome", "store_requests_total", ""), "{{job}} {{op}} {{outcome}}")},
		{Title: "Time of services' requests", Unit: "s", Queries: quantiles("op", "store_request_duration_seconds", "")},
		{Title: "Requests", Unit: "ops", Queries: one(rate("op, status", "objectstore_requests_total", ""), "{{op}} {{status}}")},
		{Title: "Time to answer", Unit: "s", Queries: quantiles("op", "objectstore_request_seconds", "")},
		{Title: "Fsync", Unit: "s", Queries: quantiles("", "objectstore_fsync_seconds", "")},
		{Title: "Log", Unit: "bytes", Queries: []Query{{by("max", "instance", metric("objectstore_log_bytes", "")), "{{instance}} all"}, {by("max", "instance", metric("objectstore_log_live_bytes", "")), "{{instance}} in use"}}},
		{Title: "Free disk", Unit: "bytes", Queries: []Query{{by("min", "instance", metric("objectstore_disk_free_bytes", "")), "{{instance}} free"}, {by("min", "instance", metric("objectstore_reserve_bytes", "")), "{{instance}} reserve"}}},
		{Title: "Objects", Unit: "short", Queries: []Query{{by("max", "instance", metric("objectstore_objects", "")), "{{instance}}"},
			{by("max", "instance", metric("objectstore_noncurrent_versions", "")), "{{instance}} noncurrent versions"}}},
		{Title: "Damaged, full, read-only", About: "All 0 when the store is well.", Unit: "short", Queries: []Query{
			{by("max", "instance", metric("objectstore_damaged", "")), "{{instance}} damaged places"}, {by("max", "instance", metric("objectstore_full", "")), "{{instance}} full"},
			{by("max", "instance", metric("objectstore_poisoned", "")), "{{instance}} read-only"}, {by("max", "instance", metric("objectstore_uncertain", "")), "{{instance}} keys unknown"}}},
		{Title: "Drives", About: "Of a store with mirrors. Mended copies are damaged places that another drive had whole.", Unit: "short", Queries: []Query{
			{by("min", "instance", metric("objectstore_mirror_drives_in_sync", "")), "{{instance}} in sync"}, {by("max", "instance", metric("objectstore_mirror_drives", "")), "{{instance}} of"},
			{rate("instance", "objectstore_mirror_mended_total", ""), "{{instance}} mended a second"}}},
		{Title: "Webhooks", Unit: "ops", Queries: one(rate("webhook, outcome", "objectstore_webhook_posts_total", ""), "{{webhook}} {{outcome}}")},
		{Title: "Bytes by bucket", About: "All versions, and the parts of open uploads; with a quota, how much of it.", Unit: "bytes", Queries: []Query{
			{by("max", "bucket", metric("objectstore_bucket_bytes", "")), "{{bucket}}"}, {by("max", "bucket", metric("objectstore_bucket_quota_bytes", "")), "{{bucket}} quota"}}},
		{Title: "Not encrypted with the current key", About: "Written again in the background; with a key that was not given: unreadable.", Unit: "bytes", Queries: []Query{
			{by("max", "instance", metric("objectstore_rewrite_left_bytes", "")), "{{instance}} left"}, {by("max", "instance", metric("objectstore_key_missing_bytes", "")), "{{instance}} key missing"}}},
		{Title: "Files of bodies", About: "On the places, by state: durable ones were read back.", Unit: "short", Queries: one(by("max", "instance, state", metric("objectstore_redundancy_files", "")), "{{instance}} {{state}}")},
		{Title: "Room on places", About: "What the files of the store take, of what they may. A place with too little left gets no more.", Unit: "percentunit", Queries: one("max by (instance, place) ("+metric("objectstore_place_used_bytes", "")+" / "+metric("objectstore_place_room_bytes", "")+")", "{{instance}} {{place}}")},
		{Title: "Missing files, waiting bodies, dead letters", About: "Missing files are made again.", Unit: "short", Queries: []Query{
			{by("max", "instance", metric("objectstore_redundancy_missing_files", "")), "{{instance}} missing"}, {by("max", "instance", metric("objectstore_redundancy_queued_bodies", "")), "{{instance}} waiting"},
			{by("max", "instance", metric("objectstore_redundancy_dead_letters", "")), "{{instance}} dead letters"}}},
		{Title: "Oldest waiting body", Unit: "s", Queries: one(by("max", "instance", metric("objectstore_redundancy_backlog_seconds", "")), "{{instance}}")},
		{Title: "Redundancy made and read back", Unit: "Bps", Queries: []Query{{rate("instance", "objectstore_redundancy_made_bytes_total", ""), "{{instance}} made"}, {rate("instance", "objectstore_redundancy_read_bytes_total", ""), "{{instance}} read back"},
			{rate("instance", "objectstore_decoded_bytes_total", ""), "{{instance}} decoded for readers"}}},
		{Title: "Slow bodies cut off", Unit: "ops", Queries: one(rate("instance", "objectstore_slow_bodies_total", ""), "{{instance}}")},
		{Title: "Lifecycle rules", About: "What the rules of buckets did.", Unit: "ops", Queries: one(rate("action", "objectstore_lifecycle_actions_total", ""), "{{action}}")},
	}}
}

func agents() Row {
	top := func(expr string) string { return "topk(10, " + expr + ")" }
	return Row{"Agents", []Panel{
		{Title: "Agents by alert", About: "Only a person can mend these; lmctl agent status says how.", Unit: "short", Queries: one(by("sum", "id", metric("agent_alert", "")), "{{id}}")},
		{Title: "Oldest pending batch", About: "The ten oldest.", Unit: "s", Queries: one(top(by("max", "instance", metric("agent_lag_seconds", ""))), "{{instance}}")},
		{Title: "Queue", About: "The ten fullest.", Unit: "percentunit", Queries: one(top("max by (instance) ("+metric("agent_queue_disk_bytes", "")+" / "+metric("agent_queue_max_bytes", "")+")"), "{{instance}}")},
		{Title: "Answers", Unit: "ops", Queries: one(rate("status", "agent_batches_total", ""), "{{status}}")},
		{Title: "Batch to answer", Unit: "s", Queries: quantiles("", "agent_answer_seconds", "")},
		{Title: "Samples dropped", Unit: "ops", Queries: one(rate("reason", "agent_dropped_samples_total", ""), "{{reason}}")},
		{Title: "Dead letters and parked batches", Unit: "short", Queries: one(by("sum", "state", metric("agent_queue_batches", `state=~"dead|parked"`)), "{{state}}")},
		{Title: "Without a collector", Unit: "s", Queries: one(top(by("max", "instance", metric("agent_disconnected_seconds", ""))), "{{instance}}")},
		{Title: "Clock offset", Unit: "s", Queries: one(top(by("max", "instance", "abs("+metric("agent_clock_offset_seconds", "")+")")), "{{instance}}")},
	}}
}
