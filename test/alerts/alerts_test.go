// Package alerts plays the alert rules of deploy/alerts.
package alerts

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

var root = filepath.Join("..", "..")

func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	path := filepath.Join(root, "deploy", "alerts", "lightmetrics.yaml")
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.Fatal("no groups")
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out
}

// Each rule has a page, the index names it, and its metrics are in the code.
func TestEveryAlertHasAPageAndAMetric(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs", "runbook", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := declaredMetrics(t)
	for name, r := range rules(t) {
		page := r.Annotations["runbook"]
		b, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.HasPrefix(string(b), "# "+name+"\n") || !strings.Contains(string(index), "| "+name+" | ["+strings.TrimSuffix(filepath.Base(page), ".md")+"]") {
			t.Errorf("%s: the page is another's, or the index lacks it", name)
		}
		if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s has no summary or severity", name)
		}
		for _, m := range metricsOf(t, r.Expr) {
			if !declared(m) {
				t.Errorf("%s: no service has %s", name, m)
			}
		}
	}
}

// Every rule fires on what it is for, and is silent where all is well.
func TestAlertsFire(t *testing.T) {
	played := map[string]struct{ bad, good string }{
		"RollupBehind":           {`lightmetrics_rollup_lag_seconds{shard="0001"} 7201x120`, `lightmetrics_rollup_lag_seconds{shard="0001"} 0x60 3000x60`},
		"RollupDamaged":          {`lightmetrics_rollup_damaged_total{what="record"} 0x110 1x10`, `lightmetrics_rollup_damaged_total{what="record"} 3x120`},
		"RollupConservation":     {`lightmetrics_rollup_conservation_failures_total 0x100 1x20`, `lightmetrics_rollup_conservation_failures_total 1x120`},
		"RollupUnreadableFrames": {`lightmetrics_rollup_unreadable_frames_total 0x100 5x20`, `lightmetrics_rollup_unreadable_frames_total 5x120`},
		"RollupFenced": {`lightmetrics_rollup_publications_refused_total{reason="fenced"} 0+1x120`,
			`lightmetrics_rollup_publications_refused_total{reason="exists"} 0+1x120`},
		"RollupPublicationsFail": {`lightmetrics_rollup_publications_refused_total{reason="undecided"} 0+1x120`,
			`lightmetrics_rollup_publications_refused_total{reason="conflict"} 0+1x120`},
		"RollupBatchesDeferred": {`lightmetrics_rollup_deferred_batches{shard="0001",why="failing"} 3x120`, `lightmetrics_rollup_deferred_batches{shard="0001",why="failing"} 0x120`},
		"RollupAgentAside":      {`lightmetrics_rollup_agent_hours_aside{shard="0001"} 1x120`, `lightmetrics_rollup_agent_hours_aside{shard="0001"} 1x100 0x20`},
		"RollupWorkerKilled":    {`lightmetrics_rollup_jobs_died_total 0x90 2x30`, `lightmetrics_rollup_jobs_died_total 3x120`},
		"RollupProgressStays":   {`lightmetrics_rollup_progress_age_seconds{shard="0001"} 7200+60x120`, `lightmetrics_rollup_progress_age_seconds{shard="0001"} 3600x120`},
		"RollupJournalUnread": {`lightmetrics_rollup_journal_polls_total{instance="a",outcome="failed"} 0+3x120`,
			"lightmetrics_rollup_journal_polls_total{instance=\"a\",outcome=\"failed\"} 0+1x120\n  lightmetrics_rollup_journal_polls_total{instance=\"a\",outcome=\"ok\"} 0+9x120"},
		"RollupMaintenanceFails": {`lightmetrics_rollup_maintenance_failures_total{what="compaction"} 0+1x120`,
			`lightmetrics_rollup_maintenance_failures_total{what="compaction"} 0x100 1x20`},
		"RollupRepairRequestsFail": {"lightmetrics_rollup_repair_requests_total{outcome=\"failed\"} 0+1x120\n  lightmetrics_rollup_repair_requests_pending{shard=\"0001\"} 1x120",
			"lightmetrics_rollup_repair_requests_total{outcome=\"failed\"} 0+1x120\n  lightmetrics_rollup_repair_requests_pending{shard=\"0001\"} 0x120"},
		"IngestOutOfBounds": {`lightmetrics_ingest_batches_total{outcome="rejected",reason="SERIES_LIMIT"} 0x100 1x20`,
			"lightmetrics_ingest_batches_total{outcome=\"accepted\",reason=\"\"} 0+9x120\n  lightmetrics_ingest_batches_total{outcome=\"rejected\",reason=\"BAD_MAGIC\"} 0+1x120"},
		"IngestClockBehind":     {`lightmetrics_ingest_clock_behind_seconds{instance="a"} -90x120`, `lightmetrics_ingest_clock_behind_seconds{instance="a"} -2x120`},
		"IngestStoreUnguarded":  {"lightmetrics_ingest_store_policy_violations{instance=\"a\"} 6x120\n  lightmetrics_ingest_store_policy_violations{instance=\"b\"} 0x120", `lightmetrics_ingest_store_policy_violations{instance="a"} 0x118 6x2`},
		"ReconcilerBehind":      {`lightmetrics_reconciler_complete_through_timestamp_seconds 0x120`, `lightmetrics_reconciler_complete_through_timestamp_seconds 0+60x120`},
		"JournalNotFolded":      {`lightmetrics_reconciler_journal_waiting_seconds{instance="a"} 0+60x120`, `lightmetrics_reconciler_journal_waiting_seconds{instance="a"} 0+60x15 0+60x15 0+60x15 0x75`},
		"JournalHeadLarge":      {`lightmetrics_reconciler_journal_head_bytes{instance="a"} 9000000x120`, `lightmetrics_reconciler_journal_head_bytes{instance="a"} 4000000x120`},
		"JournalIncomplete":     {`lightmetrics_reconciler_journal_complete{instance="a"} 0x120`, "lightmetrics_reconciler_journal_complete{instance=\"a\"} 0x120\n  lightmetrics_reconciler_journal_complete{instance=\"b\"} 1x120"},
		"AuditOverdue":          {"lightmetrics_reconciler_audit_overdue_seconds{instance=\"a\",scope=\"news\"} 90000+60x120\n  lightmetrics_reconciler_audit_overdue_seconds{instance=\"b\",scope=\"news\"} 90000+60x120", "lightmetrics_reconciler_audit_overdue_seconds{instance=\"a\",scope=\"full\"} 90000+60x120\n  lightmetrics_reconciler_audit_overdue_seconds{instance=\"b\",scope=\"full\"} 0x120"},
		"ScrubOverdue":          {`lightmetrics_reconciler_scrub_overdue_seconds{instance="a"} 90000+60x120`, "lightmetrics_reconciler_scrub_overdue_seconds{instance=\"a\"} 90000+60x120\n  lightmetrics_reconciler_scrub_overdue_seconds{instance=\"b\"} 0x120"},
		"ReconcilerQueueBehind": {`lightmetrics_reconciler_queue_age_seconds{instance="a"} 90x120`, `lightmetrics_reconciler_queue_age_seconds{instance="a"} 3x120`},
		"EventsBehind":          {"lightmetrics_event_queue_failing_seconds{instance=\"a\"} 0x60 60+60x60\n  lightmetrics_event_queue_age_seconds{instance=\"a\"} 0x120", "lightmetrics_event_queue_failing_seconds{instance=\"a\"} 0 30 0x120\n  lightmetrics_event_queue_age_seconds{instance=\"a\"} 0x60 700x5 0x60"},
		"ReconcilerRepairsOpen": {`lightmetrics_reconciler_open_repairs 1x120`, `lightmetrics_reconciler_open_repairs 0x120`},
		"LinearizerNotOpen":     {"lightmetrics_coordinator_identity_open{instance=\"a\"} 0x120\n  lightmetrics_coordinator_identity_open{instance=\"b\"} 0x120", "lightmetrics_coordinator_identity_open{instance=\"a\"} 0x120\n  lightmetrics_coordinator_identity_open{instance=\"b\"} 1x120"},
		"RecoveryWaitsForRegion": {"lightmetrics_coordinator_identity_waits_for_region{instance=\"a\",region=\"eu\"} 1x120\n  lightmetrics_coordinator_identity_waits_for_region{instance=\"b\",region=\"eu\"} 0x120",
			`lightmetrics_coordinator_identity_waits_for_region{instance="a",region="eu"} 0x118 1x2`},
		"RegionSettingsDoNotFit": {`lightmetrics_coordinator_identity_closed{instance="a",reason="settings"} 1x120`, "lightmetrics_coordinator_identity_closed{instance=\"a\",reason=\"settings\"} 0x120\n  lightmetrics_coordinator_identity_closed{instance=\"a\",reason=\"region\"} 1x120"},
		"ClaimsLeftAlone": {`lightmetrics_coordinator_identity_oldest_claim_seconds{region="eu",state="durable"} 0+60x120`,
			"lightmetrics_coordinator_identity_oldest_claim_seconds{region=\"eu\",state=\"settled\"} 0+60x120\n  lightmetrics_coordinator_identity_oldest_claim_seconds{region=\"eu\",state=\"claimed\"} 600x120"},
		"ClaimsNotFolded": {`lightmetrics_coordinator_identity_fold_lag_seconds 0+60x120`, `lightmetrics_coordinator_identity_fold_lag_seconds 1800x120`},
		"ClaimsStuck": {"lightmetrics_reconciler_claims_left{instance=\"a\",action=\"stuck\"} 1x120\n  lightmetrics_reconciler_claims_oldest_seconds{instance=\"a\"} 800+60x120",
			"lightmetrics_reconciler_claims_left{instance=\"a\",action=\"waits\"} 1x120\n  lightmetrics_reconciler_claims_left{instance=\"a\",action=\"stuck\"} 0x120\n  lightmetrics_reconciler_claims_oldest_seconds{instance=\"a\"} 800+60x120"},
		"SecondaryCopiesGrow":        {`lightmetrics_reconciler_secondary_copies{instance="a"} 0+10000x120`, `lightmetrics_reconciler_secondary_copies{instance="a"} 200000x120`},
		"ReconcilerForeignKeys":      {`lightmetrics_reconciler_foreign_keys_total{family="accepted"} _x100 1x20`, `lightmetrics_reconciler_foreign_keys_total{family="accepted"} 1x120`},
		"GarbageBreakerTripped":      {"lightmetrics_reconciler_gc_breaker_tripped{instance=\"a\"} 1x120\n  lightmetrics_reconciler_gc_breaker_tripped{instance=\"b\"} 0x120", `lightmetrics_reconciler_gc_breaker_tripped{instance="a"} 0x115 1x5`},
		"GarbageSweepOverdue":        {`lightmetrics_reconciler_gc_sweep_overdue_seconds{instance="a"} 260000+60x120`, "lightmetrics_reconciler_gc_sweep_overdue_seconds{instance=\"a\"} 260000+60x120\n  lightmetrics_reconciler_gc_sweep_overdue_seconds{instance=\"b\"} 0x120"},
		"GarbageReportsWait":         {`lightmetrics_reconciler_gc_oldest_report_seconds{instance="a"} 90000+60x120`, "lightmetrics_reconciler_gc_oldest_report_seconds{instance=\"a\"} 90000+60x120\n  lightmetrics_reconciler_gc_oldest_report_seconds{instance=\"b\"} 400x120"},
		"GarbageAwaitsCollectors":    {"lightmetrics_reconciler_gc_awaited_runs{instance=\"a\"} 1x120\n  lightmetrics_reconciler_gc_awaited_runs{instance=\"b\"} 0x120", `lightmetrics_reconciler_gc_awaited_runs{instance="a"} 1x50 0x70`},
		"AgentIDShared":              {`lightmetrics_reconciler_shared_agent_ids{instance="a"} 1x120`, `lightmetrics_reconciler_shared_agent_ids{instance="a"} 0x120`},
		"CoordinatorEtcdDown":        {`lightmetrics_coordinator_etcd_up{instance="a"} 0x120`, "lightmetrics_coordinator_etcd_up{instance=\"a\"} 0x120\n  lightmetrics_coordinator_etcd_up{instance=\"b\"} 1x120"},
		"CoordinatorNotLeading":      {"lightmetrics_coordinator_leading{instance=\"a\"} 0x120\n  lightmetrics_coordinator_leading{instance=\"b\"} 0x120", "lightmetrics_coordinator_leading{instance=\"a\"} 1x120\n  lightmetrics_coordinator_leading{instance=\"b\"} 0x120"},
		"CoordinatorShardsMisplaced": {`lightmetrics_coordinator_misplaced_shards{kind="rollup"} 2x120`, `lightmetrics_coordinator_misplaced_shards{kind="rollup"} 2x100 0x20`},
		"ServiceDown":                {`up{job="lightmetrics-query",instance="a"} 0x120`, "up{job=\"lightmetrics-query\",instance=\"a\"} 1x120\n  up{job=\"lightmetrics-agent\",instance=\"a\"} 0x120\n  up{job=\"node\",instance=\"a\"} 0x120"},
		"ServiceNotReady":            {`lightmetrics_ready{job="lightmetrics-ingest",instance="a",part="store"} 0x120`, `lightmetrics_ready{job="lightmetrics-ingest",instance="a",part="store"} 0x118 1x2`},
		"ConfigReloadFailed":         {`lightmetrics_config_last_reload_successful{instance="a"} 0x120`, `lightmetrics_config_last_reload_successful{instance="a"} 0x100 1x20`},
		"CertificateExpires": {"lightmetrics_tls_certificate_expiry_timestamp_seconds{file=\"c.pem\"} 9000000x120\n  lightmetrics_agent_client_certificate_expiry_timestamp_seconds{file=\"d.pem\"} 300000x120",
			"lightmetrics_tls_certificate_expiry_timestamp_seconds{file=\"c.pem\"} 9000000x120\n  lightmetrics_agent_client_certificate_expiry_timestamp_seconds{file=\"d.pem\"} 9000000x120"},
		"AgentDown":         {`up{job="lightmetrics-agent",instance="a"} 0x120`, `up{job="lightmetrics-query",instance="a"} 0x120`},
		"AgentDisconnected": {`lightmetrics_agent_disconnected_seconds{instance="a"} 0+60x120`, `lightmetrics_agent_disconnected_seconds{instance="a"} 30x120`},
		"AgentOnFallback":   {`lightmetrics_agent_fallback_seconds{instance="a"} 0+60x120`, `lightmetrics_agent_fallback_seconds{instance="a"} 0+60x50 0x70`},
		"AgentTurnedAway": {`lightmetrics_agent_alert{instance="a",id="UNAUTHENTICATED"} 1x120`,
			"lightmetrics_agent_alert{instance=\"a\",id=\"UNAUTHENTICATED\"} 0x120\n  lightmetrics_agent_alert{instance=\"a\",id=\"NO_COLLECTOR\"} 1x120"},
		"AgentDropsSamples": {`lightmetrics_agent_dropped_samples_total{instance="a",reason="queue_full"} 0x110 1x10`, `lightmetrics_agent_dropped_samples_total{instance="a",reason="queue_full"} 7x120`},
		"AgentQueueAge":     {`lightmetrics_agent_lag_seconds{instance="a"} 700x120`, `lightmetrics_agent_lag_seconds{instance="a"} 700x100 5x20`},
		"AgentQueueFull": {"lightmetrics_agent_queue_disk_bytes{instance=\"a\"} 95x120\n  lightmetrics_agent_queue_max_bytes{instance=\"a\"} 100x120",
			"lightmetrics_agent_queue_disk_bytes{instance=\"a\"} 89x120\n  lightmetrics_agent_queue_max_bytes{instance=\"a\"} 100x120"},
		"AgentDeadLetters": {`lightmetrics_agent_queue_batches{instance="a",state="dead"} 1x120`, "lightmetrics_agent_queue_batches{instance=\"a\",state=\"dead\"} 0x120\n  lightmetrics_agent_queue_batches{instance=\"a\",state=\"pending\"} 9x120"},
		"AgentConflicts":   {`lightmetrics_agent_conflicts_parked{instance="a"} 1x120`, `lightmetrics_agent_conflicts_parked{instance="a"} 0x120`},
		"AgentClockOffset": {`lightmetrics_agent_clock_offset_seconds{instance="a"} -11x120`, `lightmetrics_agent_clock_offset_seconds{instance="a"} -9x120`},
		"IngestAcksSlow": {"lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"5\"} 0+1x120\n  lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"10\"} 0+9x120\n  lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"+Inf\"} 0+9x120",
			"lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"5\"} 0+9x120\n  lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"10\"} 0+9x120\n  lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"accepted\",le=\"+Inf\"} 0+9x120\n  lightmetrics_ingest_ack_duration_seconds_bucket{outcome=\"retry\",le=\"+Inf\"} 0+9x120"},
		"IngestRetries": {"lightmetrics_ingest_batches_total{outcome=\"accepted\",reason=\"\"} 0+80x120\n  lightmetrics_ingest_batches_total{outcome=\"retry\",reason=\"NOT_READY\"} 0+20x120",
			"lightmetrics_ingest_batches_total{outcome=\"accepted\",reason=\"\"} 0+80x120\n  lightmetrics_ingest_batches_total{outcome=\"retry\",reason=\"NOT_READY\"} 0+5x120\n  lightmetrics_ingest_batches_total{outcome=\"retry\",reason=\"DRAINING\"} 0+90x120"},
		"StoreRequestsFail": {"lightmetrics_store_requests_total{op=\"put\",outcome=\"ok\"} 0+90x120\n  lightmetrics_store_requests_total{op=\"put\",outcome=\"denied\"} 0+9x120",
			"lightmetrics_store_requests_total{op=\"put\",outcome=\"ok\"} 0+90x120\n  lightmetrics_store_requests_total{op=\"put\",outcome=\"exists\"} 0+90x120"},
		"IngestSheds":             {`lightmetrics_ingest_sheds_total{resource="streams"} 0+1x120`, `lightmetrics_ingest_sheds_total{resource="streams"} 5x120`},
		"IngestResolutionsUnread": {`lightmetrics_ingest_resolutions_age_seconds{instance="c1"} 0+60x120`, `lightmetrics_ingest_resolutions_age_seconds{instance="c1"} 30x120`},
		"IngestConflicts":         {`lightmetrics_ingest_batches_total{outcome="conflict"} 0x100 1x20`, "lightmetrics_ingest_batches_total{outcome=\"conflict\"} 1x120\n  lightmetrics_ingest_batches_total{outcome=\"duplicate\"} 0+1x120"},
		"IngestRejects":           {`lightmetrics_ingest_batches_total{outcome="rejected",reason="BAD_MAGIC"} _x100 1x20`, "lightmetrics_ingest_batches_total{outcome=\"rejected\",reason=\"BAD_MAGIC\"} 4x120\n  lightmetrics_ingest_batches_total{outcome=\"rejected\",reason=\"SERIES_LIMIT\"} 0+1x120"},
		"IngestJournalFails":      {`lightmetrics_ingest_journal_failing_seconds{instance="c1"} 0x100 60+60x20`, `lightmetrics_ingest_journal_failing_seconds{instance="c1"} 0 30 0x120`},
		"IngestJournalFenced":     {`lightmetrics_ingest_journal_fences_total{instance="c1"} 0+1x120`, `lightmetrics_ingest_journal_fences_total{instance="c1"} 0x60 2x60`},
		"IngestCorruptRecords":    {`lightmetrics_ingest_corrupt_records_total{step="manifest"} 0x100 1x20`, `lightmetrics_ingest_corrupt_records_total{step="manifest"} 2x120`},
		"QueryIncomplete":         {"lightmetrics_query_complete_through_timestamp_seconds{instance=\"a\"} 0+60x90 5400x30\n  lightmetrics_query_complete_through_timestamp_seconds{instance=\"b\"} 0+60x120", `lightmetrics_query_complete_through_timestamp_seconds{instance="a"} 0+60x120`},
		"QueryPartialAnswers": {"lightmetrics_query_partial_answers_total 0+1x120\n  lightmetrics_query_request_seconds_count{path=\"/api/v1/query\"} 0+10x120",
			"lightmetrics_query_partial_answers_total 0+1x120\n  lightmetrics_query_request_seconds_count{path=\"/api/v1/query\"} 0+30x120"},
		"QueryUnreadable": {"lightmetrics_query_unreadable_batches{instance=\"a\"} 0x120\n  lightmetrics_query_published_problems_total{instance=\"a\"} 0+1x120",
			"lightmetrics_query_unreadable_batches{instance=\"a\"} 0x120\n  lightmetrics_query_published_problems_total{instance=\"a\"} 3x120"},
		"QueryEvicts":    {`lightmetrics_query_live_evicted_batches_total{instance="a",reason="oldest"} 0+1x120`, `lightmetrics_query_live_evicted_batches_total{instance="a",reason="oldest"} 9x120`},
		"QueriesRefused": {`lightmetrics_query_errors_total{type="unavailable"} 0+1x120`, `lightmetrics_query_errors_total{type="bad_data"} 0+1x120`},
		"StorePoisoned":  {`lightmetrics_objectstore_poisoned{instance="a"} 1x120`, `lightmetrics_objectstore_poisoned{instance="a"} 0x120`},
		"StoreDriveOut": {"lightmetrics_objectstore_mirror_drives{instance=\"a\"} 2x120\n  lightmetrics_objectstore_mirror_drives_in_sync{instance=\"a\"} 1x120",
			"lightmetrics_objectstore_mirror_drives{instance=\"a\"} 2x120\n  lightmetrics_objectstore_mirror_drives_in_sync{instance=\"a\"} 2x120"},
		"StoreFull": {`lightmetrics_objectstore_full{instance="a"} 1x120`, `lightmetrics_objectstore_full{instance="a"} 1x100 0x20`},
		"StoreDiskLow": {"lightmetrics_objectstore_disk_free_bytes{instance=\"a\"} 100000-500x120\n  lightmetrics_objectstore_reserve_bytes{instance=\"a\"} 1000x120",
			"lightmetrics_objectstore_disk_free_bytes{instance=\"a\"} 100000-5x120\n  lightmetrics_objectstore_reserve_bytes{instance=\"a\"} 1000x120"},
		"StoreDamaged":    {`lightmetrics_objectstore_damaged{instance="a"} 1x120`, `lightmetrics_objectstore_damaged{instance="a"} 0x120`},
		"StoreUncertain":  {`lightmetrics_objectstore_uncertain{instance="a"} 1x120`, `lightmetrics_objectstore_uncertain{instance="a"} 0x120`},
		"StoreKeyMissing": {`lightmetrics_objectstore_key_missing_bytes{instance="a"} 1x120`, `lightmetrics_objectstore_key_missing_bytes{instance="a"} 0x120`},
		"StoreFsyncSlow": {"lightmetrics_objectstore_fsync_seconds_bucket{le=\"0.512\"} 0+1x120\n  lightmetrics_objectstore_fsync_seconds_bucket{le=\"1.024\"} 0+9x120\n  lightmetrics_objectstore_fsync_seconds_bucket{le=\"+Inf\"} 0+9x120",
			"lightmetrics_objectstore_fsync_seconds_bucket{le=\"0.256\"} 0+9x120\n  lightmetrics_objectstore_fsync_seconds_bucket{le=\"0.512\"} 0+9x120\n  lightmetrics_objectstore_fsync_seconds_bucket{le=\"+Inf\"} 0+9x120"},
		"StoreFails": {"lightmetrics_objectstore_requests_total{op=\"PutObject\",status=\"200\"} 0+90x120\n  lightmetrics_objectstore_requests_total{op=\"PutObject\",status=\"503\"} 0+9x120",
			"lightmetrics_objectstore_requests_total{op=\"PutObject\",status=\"200\"} 0+90x120\n  lightmetrics_objectstore_requests_total{op=\"PutObject\",status=\"412\"} 0+90x120"},
		"StoreSlowBodies": {`lightmetrics_objectstore_slow_bodies_total 0+1x120`, `lightmetrics_objectstore_slow_bodies_total 5x120`},
		"StoreWebhookFails": {"lightmetrics_objectstore_webhook_posts_total{webhook=\"w\",outcome=\"failed\"} 0+1x120\n  lightmetrics_objectstore_webhook_posts_total{webhook=\"w\",outcome=\"taken\"} 0x120",
			"lightmetrics_objectstore_webhook_posts_total{webhook=\"w\",outcome=\"failed\"} 0+1x120\n  lightmetrics_objectstore_webhook_posts_total{webhook=\"w\",outcome=\"taken\"} 0+1x120"},
		"StoreWebhookMissed":    {`lightmetrics_objectstore_webhook_missed_records_total{webhook="w"} 0x100 1x20`, `lightmetrics_objectstore_webhook_missed_records_total{webhook="w"} 5x120`},
		"StorePlaceAway":        {`lightmetrics_objectstore_place_up{instance="a",place="p"} 0x120`, `lightmetrics_objectstore_place_up{instance="a",place="p"} 1x115 0x5`},
		"StorePlaceFull":        {`lightmetrics_objectstore_place_full{instance="a",place="p"} 1x120`, `lightmetrics_objectstore_place_full{instance="a",place="p"} 1x50 0x70`},
		"StoreFilesMissing":     {`lightmetrics_objectstore_redundancy_missing_files{instance="a"} 3x120`, `lightmetrics_objectstore_redundancy_missing_files{instance="a"} 3x50 0x70`},
		"StoreRedundancyBehind": {`lightmetrics_objectstore_redundancy_backlog_seconds{instance="a"} 4000+60x120`, `lightmetrics_objectstore_redundancy_backlog_seconds{instance="a"} 4000x5 10x115`},
		"StoreDeadLetters":      {`lightmetrics_objectstore_redundancy_dead_letters{instance="a"} 1x120`, `lightmetrics_objectstore_redundancy_dead_letters{instance="a"} 0x120`},
		"StoreScrubOverdue":     {`lightmetrics_objectstore_redundancy_scrub_overdue_seconds{instance="a"} 90000+60x120`, `lightmetrics_objectstore_redundancy_scrub_overdue_seconds{instance="a"} 0x120`},
		"StoreFilesDamaged":     {`lightmetrics_objectstore_redundancy_damaged_files_total{instance="a"} 0x100 2x20`, `lightmetrics_objectstore_redundancy_damaged_files_total{instance="a"} 2x120`},
		"StoreLedgerDown":       {`lightmetrics_objectstore_redundancy_ledger_down{instance="a"} 1x120`, `lightmetrics_objectstore_redundancy_ledger_down{instance="a"} 0x120`},
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	t.Cleanup(func() { _ = engine.Close() })
	all := rules(t)
	for name, r := range all {
		p, ok := played[name]
		if !ok {
			t.Errorf("%s is not played", name)
			continue
		}
		for _, c := range []struct {
			series string
			fires  bool
		}{{p.bad, true}, {p.good, false}} {
			if got := fires(t, engine, r, c.series); got != c.fires {
				t.Errorf("%s fires %v, want %v, of\n%s", name, got, c.fires, c.series)
			}
		}
	}
	if len(all) != len(played) {
		t.Errorf("%d rules, %d played", len(all), len(played))
	}
}

// A linearizer that an operator has dissolved is not open, and nothing is wrong.
func TestADissolvedLinearizerIsNoAlarm(t *testing.T) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	r := rules(t)["LinearizerNotOpen"]
	for reason, want := range map[string]bool{"dissolved": false, "dissolving": true} {
		closed := "lightmetrics_coordinator_identity_open{instance=\"a\"} 0x120\n  lightmetrics_coordinator_identity_closed{instance=\"a\",reason=\"dissolved\"} 0x120\n  " +
			"lightmetrics_coordinator_identity_closed{instance=\"b\",reason=\"" + reason + "\"} 1x120"
		if got := fires(t, engine, r, closed); got != want {
			t.Errorf("%s: it fires %v", reason, got)
		}
	}
}

// What one region does hides nothing of another one, where their targets have the label site.
func TestARegionHidesNothingOfAnother(t *testing.T) {
	const r, c = "lightmetrics_reconciler_", "lightmetrics_coordinator_"
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	all := rules(t)
	for name, p := range map[string]struct{ metric, bad, good string }{
		"ReconcilerBehind":      {r + "complete_through_timestamp_seconds{%s}", "0x120", "0+60x120"},
		"JournalIncomplete":     {r + "journal_complete{%s}", "0x120", "1x120"},
		"AuditOverdue":          {r + "audit_overdue_seconds{scope=\"news\",%s}", "90000+60x120", "0x120"},
		"ScrubOverdue":          {r + "scrub_overdue_seconds{%s}", "90000+60x120", "0x120"},
		"GarbageSweepOverdue":   {r + "gc_sweep_overdue_seconds{%s}", "260000+60x120", "0x120"},
		"GarbageReportsWait":    {r + "gc_oldest_report_seconds{%s}", "90000+60x120", "0x120"},
		"CoordinatorEtcdDown":   {c + "etcd_up{%s}", "0x120", "1x120"},
		"CoordinatorNotLeading": {c + "leading{%s}", "0x120", "1x120"},
	} {
		// Each region has a coordinator that leads, and a reconciler; in the second case one of them fails.
		series := func(eu, us string) string {
			return fmt.Sprintf(p.metric, `instance="a",site="eu"`) + " " + eu + "\n  " + fmt.Sprintf(p.metric, `instance="b",site="us"`) + " " + us
		}
		if fires(t, engine, all[name], series(p.good, p.good)) {
			t.Errorf("%s fires where both regions are well", name)
		}
		if !fires(t, engine, all[name], series(p.good, p.bad)) {
			t.Errorf("%s is silent where one of two regions fails", name)
		}
	}
}

// fires reports whether the rule holds at minute 120 and at every minute of its "for" before.
func fires(t *testing.T, engine *promql.Engine, r rulefmt.Rule, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+series+"\n")
	t.Cleanup(func() { _ = storage.Close() })
	at := time.Unix(120*60, 0)
	for back := time.Duration(0); back <= time.Duration(r.For); back += time.Minute {
		q, err := engine.NewInstantQuery(context.Background(), storage, nil, r.Expr, at.Add(-back))
		if err != nil {
			t.Fatal(err)
		}
		v, err := q.Exec(context.Background()).Vector()
		n := len(v)
		q.Close()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return false
		}
	}
	return true
}
