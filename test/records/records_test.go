// Package records keeps one file of every version of every kind of stored record; those of internal
// packages of a service lie beside them.
package records

import (
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/derived/putback"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/derived/scrub"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/record/recordtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// kind is a recordtest.Kind.
type kind struct {
	record.Kind
	example func() []byte
	read    func(b []byte) ([]byte, error)
}

// with are examples of versions with a field that came later.
func with() map[string]map[string]func() []byte {
	at := catalog.ReadThrough(journal.Positions{Head: 5, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}, {Run: journal.RunID{2}, Next: 2, Ended: true}}})
	parse := func(schema string) []byte { return must(os.ReadFile(filepath.Join("testdata", schema+".json"))) }
	block := func(schema string, n catalog.Name) map[string]func() []byte {
		return map[string]func() []byte{"journal": func() []byte {
			r := must(catalog.ParseRecord(n.Key(), parse(schema)))
			r.Block.Journal = at
			return r.Marshal()
		}}
	}
	source := catalog.Name{Hour: 498_000, Shard: 3, Resolution: timegrid.Raw, Generation: 1}
	return map[string]map[string]func() []byte{
		catalog.BlockKind.Schema:     block(catalog.BlockKind.Schema, source),
		catalog.CompactedKind.Schema: block(catalog.CompactedKind.Schema, source),
		accept.ManifestKind.Schema: {"claim_fence": func() []byte {
			m := must(accept.ParseManifest(parse(accept.ManifestKind.Schema)))
			m.ClaimFence = 70
			return m.Marshal()
		}},
		accept.ConflictKind.Schema: {"accepted_seq_end": func() []byte {
			c := must(accept.ParseConflictRecord(parse(accept.ConflictKind.Schema)))
			c.Met = c.Identity
			c.Met.SeqStart, c.Met.SeqEnd = 0, 7
			return c.Marshal()
		}},
		accept.InlineConflictKind.Schema: {"accepted_seq_end": func() []byte {
			c := must(accept.ParseConflictRecord([]byte(string(parse(accept.InlineConflictKind.Schema)) + "\n" + carried)))
			c.Met = c.Identity
			c.Met.SeqStart, c.Met.SeqEnd = 0, 7
			return c.Marshal()
		}},
		regions.Kind.Schema: {"dissolved": func() []byte {
			r := must(regions.ParseRecord(parse(regions.Kind.Schema)))
			r.Regions, r.Dissolved = []claims.Region{r.Region}, true
			return r.Marshal()
		}, "joining": func() []byte {
			r := must(regions.ParseRecord(parse(regions.Kind.Schema)))
			r.Joining = []claims.Region{"asia"}
			return r.Marshal()
		}},
		queue.HeldKind.Schema: {"accepted_seq_end": func() []byte {
			var h queue.HeldBatch
			if err := queue.HeldKind.Unmarshal(parse(queue.HeldKind.Schema), &h); err != nil {
				panic(err)
			}
			first, last := uint64(0), uint64(7)
			h.AcceptedSeqStart, h.AcceptedSeqEnd = &first, &last
			return queue.HeldKind.Marshal(h)
		}},
		gc.StateKind.Schema: {"inventory": func() []byte {
			st := must(gc.ParseState(parse(gc.StateKind.Schema)))
			st.Sweep.Inventory = "lists/metrics/daily/2026-11-22T01-00Z/manifest.json"
			return st.Marshal()
		}, "postponed_reports": func() []byte {
			st := must(gc.ParseState(parse(gc.StateKind.Schema)))
			st.Settled, st.Postponed = 6, []gc.Postponed{{Key: layout.OrphanReport(time.Unix(5, 0), identity.Sum(nil)), Attempts: 2, Due: 900}}
			return st.Marshal()
		}},
		reconcile.RepairKind.Schema: {"history": func() []byte {
			r := must(reconcile.ParseRepair(parse(reconcile.RepairKind.Schema)))
			r.Tries, r.TriedAt = 2, 8
			r.Answered([]putback.Answer{{Place: "replica", Said: putback.SaidNone}, {Place: "collector 10.0.0.7:4750", Said: putback.SaidFailed, Detail: "no route"}})
			r.Note(reconcile.Event{At: 9, What: reconcile.EventRetry, By: "ann"})
			r.Note(reconcile.Event{At: 10, What: reconcile.EventAsked, By: "r1", Detail: "no place has the frame"})
			return r.Marshal()
		}},
		scrub.Kind.Schema: {"last": func() []byte {
			r := must(scrub.ParseRecord(parse(scrub.Kind.Schema)))
			r.Chunks[0].Bytes, r.Chunks[0].Suspects, r.EndedAt, r.Bytes, r.Suspects = 30, 1, 7, 90, 2
			r.Last = &scrub.Pass{Pass: 1, BeganAt: 1, EndedAt: 4, Checked: 6, Bytes: 80, Suspects: 3}
			return r.Marshal()
		}},
		rollup.PlanKind.Schema: {"journal": func() []byte {
			p := must(rollup.ParsePlan(parse(rollup.PlanKind.Schema)))
			p.Journal = at
			return must(p.Marshal())
		}},
	}
}

// again is a reader that needs no key.
func again[T any](parse func([]byte) (T, error), write func(T) []byte) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		v, err := parse(b)
		if err != nil {
			return nil, err
		}
		return write(v), nil
	}
}

// carried is the frame behind the records that carry one; the files here have the records alone, and those of
// internal/acceptance/accept the whole objects.
const carried = "a frame\nof two lines"

// carries reads a record of the kind with the frame behind it.
func carries(k record.Kind, read func([]byte) ([]byte, error)) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		if record.SchemaOf(b) == k.Schema {
			b = append(append(b[:len(b):len(b)], '\n'), carried...)
		}
		return read(b)
	}
}

// at is a reader that checks the key of the record.
func at[T any](key string, parse func(string, []byte) (T, error), write func(*T) []byte) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		v, err := parse(key, b)
		if err != nil {
			return nil, err
		}
		return write(&v), nil
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type reference struct {
	ManifestKey string          `json:"manifest_key"`
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	FrameBytes  uint64          `json:"frame_bytes,omitempty"`
	RawBlobKey  string          `json:"raw_blob_key"`
	AcceptedAt  int64           `json:"accepted_at_unix_ns,omitempty"`
	ObservedAt  int64           `json:"observed_at_unix_ns,omitempty"`
}

type retention struct {
	AuthorityID string `json:"authority_id"`
	Resolution  string `json:"window"`
	Hour        string `json:"hour"`
	RemovedAt   int64  `json:"removed_at_unix_ns"`
	WorkerID    string `json:"worker_id"`
	Blocks      []struct {
		Key     string `json:"key"`
		Samples uint64 `json:"samples"`
		Objects int    `json:"objects"`
		Bytes   uint64 `json:"bytes"`
		Into    string `json:"into,omitempty"`
	} `json:"blocks"`
}

type packHeader struct {
	Shard   shard.ID         `json:"shard"`
	Shards  uint32           `json:"shards"`
	Entries []accepted.Batch `json:"entries"`
}

// readPack puts the header before frames of zeros, which are not looked at.
func readPack(b []byte) ([]byte, error) {
	out := append([]byte("\x89LMPACK\x01"), make([]byte, 8)...)
	binary.LittleEndian.PutUint32(out[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(out[12:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	p, err := snapshot.DecodePack(append(append(out, b...), make([]byte, 9)...))
	if err != nil {
		return nil, err
	}
	return snapshot.PackKind.Marshal(packHeader{p.Shard, p.Shards, p.Entries}), nil
}

func journalSpan(key string, first, last uint64) journal.Span {
	return journal.Span{Key: key, First: first, Last: last, Entries: 3, Bytes: 200, MinAt: 1, MaxAt: 5, MinTime: -1, MaxTime: 4}
}

type reprocessRequest struct {
	Number uint64 `json:"number"`
	reprocess.Request
}

type snapshotJob struct {
	Shard  shard.ID `json:"shard"`
	Number uint64   `json:"number"`
}

type snapshotProgress struct {
	Base   uint64          `json:"base"`
	Pieces []snapshotPiece `json:"pieces"`
}

type snapshotPiece struct {
	SHA256 identity.Digest   `json:"sha256"`
	From   []identity.Digest `json:"from,omitempty"`
}

const authority = "authority-1"

func kinds() []kind {
	digest := identity.Sum([]byte("frame"))
	agent := "host"
	for i := 0; shard.Of(agent, 4) != 3; i++ {
		agent += "x"
	}
	m := accept.Manifest{
		AuthorityID: authority, Identity: identity.Batch{Agent: agent, Boot: "boot-1", SeqStart: 5, SeqEnd: 14}, FrameSHA256: digest, FrameBytes: 9, RawBlobKey: layout.Blob(digest, 0),
		AcceptedAt: 1_800_000_000_000_000_000, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: strings.Repeat("0", 32), RecordCount: 10, MinTime: -5, MaxTime: 7,
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", HomeRegion: "eu-north-1", ClaimEpoch: 3,
	}
	hour := timegrid.HourStarting(time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC))
	name := catalog.Name{Hour: hour, Shard: 3, Resolution: timegrid.OneMinute, Generation: 2}
	span := catalog.Name{Hour: hour, Shard: 3, Resolution: timegrid.Raw, Generation: 3, Span: 24}
	source := catalog.Name{Hour: hour, Shard: 3, Resolution: timegrid.Raw, Generation: 1}
	inputs := must(catalog.NewInputs([]identity.Batch{m.Identity}))
	block := &catalog.Block{AuthorityID: authority, Name: source, Shards: 4, Fence: 7, TransactionID: "t", PlanKey: layout.BlockPlan(source), PlanSHA256: digest, CreatedAt: 9, WorkerID: "w", Inputs: inputs,
		Counts: catalog.Counts{Records: 10, Published: 10}}
	compaction := &catalog.Block{AuthorityID: authority, Name: span, Shards: 4, Fence: 7, TransactionID: "t", PlanKey: layout.BlockPlan(span), PlanSHA256: digest, CreatedAt: 9, WorkerID: "w", Sources: []catalog.Name{source}}
	aside := &catalog.Aside{AuthorityID: authority, Shard: 3, Hour: hour, Agent: agent, Series: 1, Records: 2, Bytes: 3, Limit: 4, Reason: "too large", By: "w", At: 5}
	attempt := &catalog.Attempt{AuthorityID: authority, Shard: 3, Hour: hour, Generation: 2, By: "w", At: 5}
	order := &catalog.RepairRequest{AuthorityID: authority, Shard: 3, Hour: hour, Above: 2, Damaged: []string{name.Key()}, Reason: "damaged", By: "op", RequestedAt: 5}
	expiry := catalog.Expiry{AuthorityID: authority, Through: map[timegrid.Resolution]timegrid.Hour{timegrid.Raw: hour}, DecidedAt: 5, WorkerID: "w"}
	plan := &rollup.Plan{AuthorityID: authority, Shard: 3, Shards: 4, Hour: hour, Generation: 2, Parts: 1, Inputs: []accepted.Batch{m.Batch()}}
	compactPlan := &compact.Plan{AuthorityID: authority, Name: span, Shards: 4, Sources: []catalog.Name{source}, ObjectBytes: 1, Rows: 2, BlockSeries: 3, BlockValues: 4}
	item := publish.Item{Keys: []string{name.Key()}, Reason: "superseded", Since: 4, Due: 5}
	log := framelog.Log{AuthorityID: authority, By: "w", Before: 8, RemovedAt: 9, Frames: []framelog.Frame{{Identity: m.Identity, FrameSHA256: digest, FrameBytes: 9, Keys: []string{m.RawBlobKey}}}}
	snap := snapshot.Snapshot{AuthorityID: authority, Shard: 3, Shards: 4, Number: 7, Fence: 3, CreatedAt: 5, Packs: []snapshot.Ref{{Number: 2, SHA256: digest, Bytes: 500, Batches: 1, MaxTime: 7, Inputs: inputs}}}
	l := ledger.New(m.Identity.BootOf())
	l.Add(ledger.Entry{Start: 5, End: 14, AcceptedAt: 1})
	derived := reconcile.DerivedOf(m, m.Marshal())
	quarantine := accept.ConflictRecord{
		AuthorityID: authority, Identity: m.Identity, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: digest, SubmittedBlobKey: layout.Blob(identity.Sum(nil), 0), SubmittedSHA256: identity.Sum(nil),
		AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 9, CollectorID: "c",
	}
	inline := m
	inline.Inline, inline.RawBlobKey, inline.FrameSHA256, inline.FrameBytes = true, "", identity.Sum([]byte(carried)), uint64(len(carried))
	inlineConflict := quarantine
	inlineConflict.AcceptedBlobKey, inlineConflict.SubmittedBlobKey, inlineConflict.SubmittedSHA256, inlineConflict.SubmittedBytes = "", "", inline.FrameSHA256, inline.FrameBytes
	sweep := gc.Sweep{BeganAt: 5, Cursor: m.RawBlobKey, Listed: 9, Named: 3, Young: 2, Foreign: 1, Candidates: 3, Deleted: 1, Kept: 1, Doubtful: 1, Bytes: 7, Ages: []uint64{1, 2, 0, 0}}
	gcState := gc.State{AuthorityID: authority, Moves: 8, Plan: 7, Holder: "r", Claim: "random", UpdatedAt: 6, CreatedAt: 4, Requested: true, Sweep: sweep, Last: gc.Sweep{BeganAt: 1, EndedAt: 2},
		Witnesses: []string{layout.Accepted(m.Identity)}, Day: 20_000, Requests: 11, Deleted: 2, Bytes: 12, Markers: 3,
		Breaker: &gc.Breaker{Cause: gc.Hidden, Plan: 6, At: 5, Candidates: 60, Listed: 80, Key: layout.Accepted(m.Identity), Released: true, By: "op"}}
	decision := resolution.Resolution{AuthorityID: authority, Number: 7, Action: resolution.KeepBoth, AgentID: agent, Conflicts: []resolution.Conflict{{BootID: "boot-1", SeqStart: 5, SeqEnd: 14, SubmittedSHA256: digest}},
		Principal: "ann", DecidedAt: 9, Note: "a cloned disk", AttemptID: strings.Repeat("0", 32)}
	settled := resolution.Settled{AuthorityID: authority, AgentID: agent, BootID: "boot-1", SeqStart: 5, SeqEnd: 14, SubmittedSHA256: digest, Number: 7, Action: resolution.KeepBoth,
		KeptBootID: resolution.Kept(agent, digest).Boot, KeptSeqEnd: 10, SettledAt: 11, CollectorID: "c"}
	clash := resolution.Clash{AuthorityID: authority, AgentID: agent, BootID: "boot-1", SpoolID: "s2", Peer: "192.0.2.7", ObservedAt: 11, CollectorID: "c"}
	parkedAt := resolution.Parked{AuthorityID: authority, AgentID: agent, BootID: "boot-1", SeqStart: 5, SeqEnd: 14, SubmittedSHA256: digest, Host: "db-7", Page: "http://127.0.0.1:4320", Directory: "/var/lib/agent/queue/parked",
		Peer: "192.0.2.7", ObservedAt: 11, CollectorID: "c"}
	records := func(k record.Kind, key string, v interface{ Marshal() []byte }) kind {
		return kind{k, v.Marshal, at(key, catalog.ParseRecord, func(r *catalog.Record) []byte { return r.Marshal() })}
	}
	gcStateOfEpochs := gcState
	gcStateOfEpochs.EpochsAt = 9
	epoch := epochs.Epoch{AuthorityID: authority, Number: 64, By: "r", At: 9, Whole: true, Names: "AAAAAAAAAAEAAAAAAAAAAg=="}
	return []kind{
		{accept.ManifestKind, m.Marshal, again(accept.ParseManifest, accept.Manifest.Marshal)},
		{accept.ConflictKind, quarantine.Marshal, again(accept.ParseConflictRecord, accept.ConflictRecord.Marshal)},
		// Read in the place of the kinds before them, whose versions they follow.
		{accept.InlineManifestKind, inline.Marshal, carries(accept.InlineManifestKind, again(accept.ParseManifest, accept.Manifest.Marshal))},
		{accept.InlineConflictKind, inlineConflict.Marshal, carries(accept.InlineConflictKind, again(accept.ParseConflictRecord, accept.ConflictRecord.Marshal))},
		{resolution.Kind, decision.Marshal, at(layout.Resolution(7), resolution.Parse, func(r *resolution.Resolution) []byte { return r.Marshal() })},
		{resolution.SettledKind, settled.Marshal, at(settled.Key(), resolution.ParseSettled, func(s *resolution.Settled) []byte { return s.Marshal() })},
		{resolution.ClashKind, clash.Marshal, at(clash.Key(), resolution.ParseClash, func(c *resolution.Clash) []byte { return c.Marshal() })},
		{resolution.ParkedKind, parkedAt.Marshal, at(parkedAt.Key(), resolution.ParseParked, func(p *resolution.Parked) []byte { return p.Marshal() })},
		{accept.AffirmationKind, accept.Affirmation{AuthorityID: authority, Identity: m.Identity, FrameSHA256: digest, Stamp: accepted.Stamp{Epoch: 3, Fence: 70}, HomeRegion: "eu-north-1"}.Marshal,
			again(accept.ParseAffirmation, accept.Affirmation.Marshal)},
		{regions.Kind, regions.Record{Region: "eu", Number: 7, ID: claims.ID{1, 2}, Regions: []claims.Region{"asia", "eu"}, Retired: []regions.Retired{{Name: "us", Done: true}}, Cluster: 9}.Marshal,
			again(regions.ParseRecord, regions.Record.Marshal)},
		{regions.PreparationKind, regions.Preparation{Region: "eu", Through: 9, Batches: 1200, Left: 3, Folded: 12, FoldedBatches: 44, AcceptedAt: 5, UpdatedAt: 7}.Marshal,
			again(regions.ParsePreparation, regions.Preparation.Marshal)},
		{accept.BootKind, accept.BootRecord{AuthorityID: authority, Boot: m.Identity.BootOf(), SpoolID: "s", Mode: accept.ModeS3Manifest, FirstSeen: 5, CollectorID: "c"}.Marshal, again(accept.ParseBootRecord, accept.BootRecord.Marshal)},
		{accept.UnboundAuthorityKind, accept.AuthorityRecord{AuthorityID: authority}.Marshal, again(accept.ParseAuthorityRecord, accept.AuthorityRecord.Marshal)},
		{accept.AuthorityKind, accept.AuthorityRecord{AuthorityID: authority, Place: objstore.Place{Endpoint: "minio.example:9000", Region: "eu-north-1", Bucket: "metrics", Prefix: "prod/"}, CreatedAt: 5, BoundAt: 7}.Marshal, again(accept.ParseAuthorityRecord, accept.AuthorityRecord.Marshal)},
		{accept.CondemnedKind, accept.CondemnedMarker{FrameSHA256: digest, Generation: 3, CondemnedAt: 9, PlanID: "p"}.Marshal, recordtest.ReadPlain[accept.CondemnedMarker](accept.CondemnedKind)},
		{accept.CondemnedHourKind, accept.CondemnedHour{AuthorityID: authority, Hour: hour, Below: 2, RaisedAt: 9, By: "w"}.Marshal, again(accept.ParseCondemnedHour, accept.CondemnedHour.Marshal)},
		{gc.StateKind, gcState.Marshal, again(gc.ParseState, gc.State.Marshal)},
		{gc.EpochsStateKind, gcStateOfEpochs.Marshal, again(gc.ParseState, gc.State.Marshal)},
		{epochs.Kind, epoch.Marshal, at(epoch.Key(), func(key string, b []byte) (epochs.Epoch, error) {
			e, _, err := epochs.Parse(key, b)
			return e, err
		}, func(e *epochs.Epoch) []byte { return e.Marshal() })},
		{gc.OrphanReportKind, func() []byte {
			return must(gc.OrphanReport{AuthorityID: authority, CollectorID: "c", ReportedAt: 9, Submissions: 100, Witness: layout.Accepted(m.Identity), Frames: []identity.Digest{digest}}.Marshal())
		}, again(gc.ParseOrphanReport, func(r gc.OrphanReport) []byte { return must(r.Marshal()) })},
		{gc.LogKind, gc.Log{AuthorityID: authority, By: "r", Plan: "gc-7", Source: gc.FromSweep, At: 9, Entries: []gc.LogEntry{
			{Key: m.RawBlobKey, Action: gc.Condemned, Bytes: 9}, {Key: layout.Blob(digest, 3), Action: gc.KeptBlob, Reason: gc.FrameUnreadable, Detail: "d", Bytes: 8},
		}}.Marshal, again(gc.ParseLog, gc.Log.Marshal)},
		{accept.RewrittenKind, accept.RewrittenNote{AuthorityID: authority, FrameSHA256: digest, Generation: 1, RewrittenAt: 9, CollectorID: "c"}.Marshal, recordtest.ReadPlain[accept.RewrittenNote](accept.RewrittenKind)},
		{reconcile.RepairKind, reconcile.RepairRecord{ManifestKey: layout.Accepted(m.Identity), Cause: reconcile.CauseMissing, Detail: "d", FrameSHA256: digest, RawBlobKey: m.RawBlobKey, FirstSeen: 5, ReconcilerID: "r"}.Marshal,
			again(reconcile.ParseRepair, reconcile.RepairRecord.Marshal)},
		{reconcile.AcceptedByBlobKind, func() []byte { return derived[0].Body }, recordtest.ReadPlain[reference](reconcile.AcceptedByBlobKind)},
		{reconcile.RawBlobByTimeKind, func() []byte { return derived[1].Body }, recordtest.ReadPlain[reference](reconcile.RawBlobByTimeKind)},
		{reconcile.QuarantineByBlobKind, func() []byte {
			return reconcile.QuarantineByBlobKind.Marshal(reference{ManifestKey: "k", FrameSHA256: digest, RawBlobKey: m.RawBlobKey, ObservedAt: 9})
		}, recordtest.ReadPlain[reference](reconcile.QuarantineByBlobKind)},
		{shards.Kind, func() []byte { return shards.Marshal(4) }, again(shards.Parse, shards.Marshal)},
		records(catalog.BlockKind, source.Key(), block),
		records(catalog.CompactionKind, span.Key(), compaction),
		records(catalog.CompactedKind, source.Key(), block.Compacted(span, 6, "w")),
		records(catalog.UnrolledKind, name.Key(), &catalog.Block{AuthorityID: authority, Name: name, Shards: 4, Fence: 7, TransactionID: "t", PlanKey: layout.BlockPlan(name), PlanSHA256: digest, Supersedes: 1, CreatedAt: 9,
			WorkerID: "w", Inputs: inputs, Counts: block.Counts, Unrolled: true}),
		records(catalog.AbortedKind, name.Key(), &catalog.Aborted{AuthorityID: authority, Name: name, Reason: "r", AbortedAt: 5, WorkerID: "w"}),
		records(catalog.RemovedKind, source.Key(), block.Remove(2, 6, "w")),
		{catalog.AsideKind, aside.Marshal, at(aside.Key(), catalog.ParseAside, (*catalog.Aside).Marshal)},
		{catalog.AttemptKind, attempt.Marshal, at(attempt.Key(), catalog.ParseAttempt, (*catalog.Attempt).Marshal)},
		{catalog.RepairRequestKind, order.Marshal, at(order.Key(), catalog.ParseRepairRequest, (*catalog.RepairRequest).Marshal)},
		{catalog.ExpiryKind, expiry.Marshal, again(catalog.ParseExpiry, catalog.Expiry.Marshal)},
		{rollup.PlanKind, func() []byte { return must(plan.Marshal()) }, again(rollup.ParsePlan, func(p *rollup.Plan) []byte { return must(p.Marshal()) })},
		{compact.PlanKind, func() []byte { return must(compactPlan.Marshal()) },
			at(layout.BlockPlan(span), compact.ParsePlan, func(p **compact.Plan) []byte { return must((*p).Marshal()) })},
		{compact.FrameProgressKind, compact.FrameProgress{AuthorityID: authority, Shard: 3, Through: hour, Since: 5, Full: 6, Keep: time.Hour, Again: []timegrid.Hour{hour}}.Marshal,
			again(compact.ParseFrameProgress, compact.FrameProgress.Marshal)},
		{compact.RetentionKind, func() []byte {
			return compact.RetentionKind.Marshal(retention{authority, "raw", hour.String(), 5, "w", nil})
		}, recordtest.ReadPlain[retention](compact.RetentionKind)},
		{progress.Kind, func() []byte {
			return must(progress.Progress{AuthorityID: authority, Shard: 3, Shards: 4, Fence: 7, Pending: []accepted.Batch{m.Batch()},
				Positions: journal.Positions{Head: 5, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}, {Run: journal.RunID{2}, Next: 2, Ended: true}}}}.Marshal())
		}, again(progress.Parse, func(p progress.Progress) []byte { return must(p.Marshal()) })},
		{helps.Kind, func() []byte {
			return helps.Record{AuthorityID: authority, Helps: []helps.Help{
				{Name: "requests_total", Text: "Requests \"so far\",\nin all.", Agent: "hostx", Time: 1_800_000_000_000_000_000}, {Name: "up", Text: "Whether it is up.", Agent: "hosty", Time: -5}}}.Marshal()
		}, again(helps.Parse, helps.Record.Marshal)},
		{framelog.Kind, func() []byte { return must(log.Marshal()) }, again(framelog.Parse, func(l framelog.Log) []byte { return must(l.Marshal()) })},
		{snapshot.Kind, func() []byte { return must(snap.Marshal()) }, again(snapshot.Parse, func(s *snapshot.Snapshot) []byte { return must(s.Marshal()) })},
		{snapshot.PackKind, func() []byte { return snapshot.PackKind.Marshal(packHeader{3, 4, []accepted.Batch{m.Batch()}}) }, readPack},
		{reprocess.RequestKind, func() []byte {
			return reprocess.RequestKind.Marshal(reprocessRequest{2, reprocess.Request{From: time.Unix(1_800_000_000, 0).UTC(), To: time.Unix(1_800_003_600, 0).UTC(), Agent: agent}})
		}, recordtest.ReadPlain[reprocessRequest](reprocess.RequestKind)},
		{reprocess.ProgressKind, func() []byte {
			return reprocess.ProgressKind.Marshal(reprocess.Progress{Shards: 4, Through: 7, Batches: 1, Hours: 3, Done: true})
		}, again(reprocess.ParseProgress, func(p reprocess.Progress) []byte { return reprocess.ProgressKind.Marshal(p) })},
		{snapshot.JobKind, func() []byte { return snapshot.JobBody(3, 7) }, recordtest.ReadPlain[snapshotJob](snapshot.JobKind)},
		{snapshot.ProgressKind, func() []byte {
			return snapshot.ProgressKind.Marshal(snapshotProgress{6, []snapshotPiece{{SHA256: digest, From: []identity.Digest{digest}}, {SHA256: digest}}})
		}, recordtest.ReadPlain[snapshotProgress](snapshot.ProgressKind)},
		{queue.HeldKind, func() []byte {
			at := time.Unix(1_800_000_000, 5).UTC()
			return queue.HeldKind.Marshal(queue.HeldBatch{ID: "i", AgentID: agent, BootID: "boot-1", SpoolID: "s", SeqStart: 5, SeqEnd: 14, FrameSHA256: digest, FrameBytes: 9, QueuedAt: at, At: at,
				HoldReason: queue.HoldReason{Reason: "IDENTITY_CONFLICT", Detail: "d", Collector: "c", AcceptedSHA256: digest.String(), AcceptedBy: "c2", AcceptedAt: &at, QuarantineKey: "k"}})
		}, recordtest.ReadPlain[queue.HeldBatch](queue.HeldKind)},
		{journal.BeginKind, func() []byte {
			return journal.BeginKind.Marshal(journal.Begin{AuthorityID: "a", By: journal.ByAuthority})
		},
			again(journal.ParseBegin, func(b journal.Begin) []byte { return journal.BeginKind.Marshal(b) })},
		{journal.HeadKind, func() []byte {
			return must(journal.Head{Number: 7, Forgotten: 2,
				Runs:  []journal.HeadRun{{Run: journal.RunID{1}, Writer: "c", Role: journal.RoleCollector, Folded: 4, Deleted: 3, Ended: 6, Fenced: true}},
				Lists: []journal.FileList{{Span: journalSpan("l", 1, 5)}}, Files: []journal.FoldedFile{{Span: journalSpan("f", 6, 7)}}}.Marshal())
		}, again(journal.ParseHead, func(h journal.Head) []byte { return must(h.Marshal()) })},
		{journal.ListKind, func() []byte { return must(journal.MarshalList([]journal.FoldedFile{{Span: journalSpan("f", 6, 7)}})) },
			again(journal.ParseList, func(l []journal.FoldedFile) []byte { return must(journal.MarshalList(l)) })},
		{audit.Kind, func() []byte {
			return audit.Record{Scope: audit.Full, By: "r", StartedAt: 5, UpdatedAt: 7, FinishedAt: 7, Cursor: "k", Manifests: 9, Conflicts: 1, Journalled: 2, Unusable: 1, Foreign: 3, Digest: digest}.Marshal()
		}, again(audit.ParseRecord, audit.Record.Marshal)},
		{scrub.Kind, scrub.Record{Pass: 2, BeganAt: 5, Through: 9, Checked: 7, Chunks: []scrub.Chunk{{First: 4, Last: 9, Done: 3, Key: "f", By: "r", Claim: "c", At: 8}}}.Marshal,
			again(scrub.ParseRecord, scrub.Record.Marshal)},
		{ledgers.RootKind, func() []byte {
			return ledgers.Root{Number: 3, Positions: journal.Positions{Head: 2, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}}}, Boots: 2,
				Parts: []ledgers.Part{{}, {Key: layout.LedgersPart(3, [16]byte{2}, 1), Boots: 2, Bytes: 90}}}.Marshal()
		}, again(ledgers.ParseRoot, ledgers.Root.Marshal)},
		{publish.EpochKind, publish.Epoch{Number: 2, ID: strings.Repeat("0a", 16)}.Marshal, again(publish.ParseEpoch, publish.Epoch.Marshal)},
		{publish.ItemKind, item.Marshal, at(item.Key(), publish.ParseItem, func(i *publish.Item) []byte { return i.Marshal() })},
	}
}

func TestRecords(t *testing.T) {
	var all []recordtest.Kind
	for _, k := range kinds() {
		all = append(all, recordtest.Kind{Kind: k.Kind, Example: k.example, With: with()[k.Schema], Read: k.read})
	}
	recordtest.Run(t, all)
}

// Every schema in the sources is in the list above.
func TestEveryKindIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, k := range kinds() {
		listed[k.Schema] = true
	}
	schema := regexp.MustCompile(`Schema: +"(lightmetrics\.[a-z_]+\.v[0-9]+)"`)
	found := 0
	for _, root := range []string{"internal", "services", "agent", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, line := range strings.Split(string(b), "\n") {
				if m := schema.FindStringSubmatch(line); m != nil && !strings.HasPrefix(strings.TrimSpace(line), "//") {
					if _, err := os.Stat(filepath.Join(filepath.Dir(path), "testdata", m[1]+".json")); err == nil {
						continue // in an internal package, which keeps its own
					}
					found++
					if !listed[m[1]] {
						t.Errorf("%s: %s is not in the list of kinds", path, m[1])
					}
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found != len(listed) {
		t.Errorf("%d schemas in the sources, %d kinds", found, len(listed))
	}
}
