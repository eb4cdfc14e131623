package bucketpolicy

import (
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// Role is what credentials are for. One process may have several, as a reconciler that collects garbage.
type Role string

// The roles.
const (
	Ingest      Role = "ingest"
	Reconciler  Role = "reconciler"
	GC          Role = "gc"
	Rollup      Role = "rollup"
	Query       Role = "query"
	Coordinator Role = "coordinator"
	// Operator is for lmctl in daily work. Moves of the authority are for the bucket's owner.
	Operator Role = "operator"
)

// Roles are all of them, in the order of documents.
var Roles = []Role{Ingest, Reconciler, GC, Rollup, Query, Coordinator, Operator}

// Op is a kind of request. Writes differ by their condition.
type Op uint8

// The kinds. Put is a write without a condition, and who may do that may also create and replace.
const (
	Get     Op = 1 << iota // GET and HEAD
	List                   // by prefix
	Create                 // PUT with If-None-Match
	Replace                // PUT with If-Match
	Put                    // PUT without either
	Delete
	Tag // x-amz-tagging of a PUT

	read = Get | List
	cas  = Get | Create | Replace // a record that moves by comparison
)

// Ops are all kinds, in the order of documents.
var Ops = []Op{Get, List, Create, Replace, Put, Delete, Tag}

var opNames = map[Op]string{Get: "get", List: "list", Create: "create", Replace: "replace", Put: "put", Delete: "delete", Tag: "tag"}

func (o Op) String() string { return opNames[o] }

// Has reports whether o, of a grant, includes one: a put without a condition includes those with one.
func (o Op) Has(one Op) bool {
	return o&one != 0 || o&Put != 0 && (one == Create || one == Replace)
}

// Grant is what a role may do with the keys that begin with one of Keys, and what for. "" is every key.
type Grant struct {
	Keys []string
	Ops  Op
	Why  string
}

func grant(ops Op, why string, keys ...string) Grant { return Grant{keys, ops, why} }

// Prefixes that have no name in the layout of their own.
const (
	quarantine    = "quarantine/v1/"
	gcPrefix      = "gc/v1/"
	resolution    = "resolution/v1/"
	settled       = resolution + "settled/"
	decided       = resolution + "log/"
	parked        = resolution + "parked/"
	coordinatorV1 = "coordinator/v1/"
	gcState       = gcPrefix + "state.json"
	orphans       = gcPrefix + "orphans/"
	blobLog       = gcPrefix + "log/blobs/"
)

// grants is the whole truth about who may do what: policies, the guide and the tests are made of it.
// Every service reads the record of the authority, so that it works for no other.
var grants = map[Role][]Grant{
	Ingest: {
		grant(cas, "binds the bucket to its authority at the first start", layout.AuthorityKey),
		grant(read|Create, "frames: writes them, reads those that exist already", layout.RawBlobsPrefix),
		grant(Get, "is a frame condemned? asked before every answer", layout.CondemnedPrefix),
		grant(Get|Create, "notes of frames that it wrote again after retention", layout.RewrittenPrefix),
		grant(Create, "reports of frames whose submissions ended without an outcome", orphans),
		grant(read|Create, "claims of boots", layout.BootsPrefix),
		grant(read|Create, "identity manifests; lists those of a boot for the hello", layout.AcceptedPrefix),
		grant(Get|Create, "records of conflicts", layout.QuarantinePrefix),
		grant(Get|Create, "affirmations of manifests, with several regions; reads one that is said to exist", layout.AffirmedPrefix),
		grant(Get, "is the bucket one of several regions'?", layout.RegionsKey),
		grant(List|Create, "boot ids that several spools use", layout.ClashPrefix),
		grant(read|Create, "segments of its runs; follows the journal for the ranges of boots", layout.JournalOpenPrefix, layout.JournalRunPrefix),
		grant(read, "what is folded of its runs, and of those that it follows", layout.JournalHeadKey, layout.JournalFoldedPrefix),
		grant(cas, "the begin of the journal of a new authority", layout.JournalBeginKey),
		grant(Get, "a checkpoint of the ledgers, to follow the journal from", layout.ReconcilePrefix),
		grant(read, "resolutions of conflicts", resolution),
		grant(Create, "conflicts that are settled; where frames are parked", settled, parked),
		grant(List, "parked frames that the store has lost", layout.RepairPrefix),
		grant(read|Put|Delete, "the probe at the start and daily, and the store's clock", layout.ProbePrefix),
	},
	Reconciler: {
		grant(Get, "the authority", layout.AuthorityKey),
		grant(read|Create, "checks frames, and puts them back", layout.RawBlobsPrefix),
		grant(Create, "notes of frames that it put back after retention", layout.RewrittenPrefix),
		grant(read, "frames that retention or garbage collection removed are not missing", gcPrefix),
		grant(Get|Create, "affirmations of manifests, with several regions; reads one that is said to exist", layout.AffirmedPrefix),
		grant(Get, "is the bucket one of several regions', or was it?", layout.RegionsKey),
		grant(read, "audits", layout.BootsPrefix, layout.AcceptedPrefix, quarantine, resolution),
		grant(Create, "manifests that lost to another region's, with several regions", quarantine),
		grant(read|Create|Delete, "its own run, fences, folded files; deletes what is folded", layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix),
		grant(cas, "moves the head; enters what a lost file had", layout.JournalHeadKey, layout.JournalBeginKey),
		grant(read|Create|Replace|Delete, "ledgers, and the scrub's progress", layout.ReconcilePrefix),
		grant(read|Create|Replace, "records of audits", layout.AuditPrefix),
		grant(read|Create|Replace|Delete, "records of missing and corrupt frames", layout.RepairPrefix),
		grant(Create, "resolutions of conflicts", decided),
		grant(read|Create, "derived keys (derived: objects)", layout.AcceptedByTimePrefix, layout.AcceptedByBlobPrefix, layout.RawBlobsByTimePrefix, layout.QuarantineByBlobPrefix),
	},
	GC: {
		grant(Get, "the authority", layout.AuthorityKey),
		grant(read|Delete, "proves that frames have no reference, and deletes them", layout.RawBlobsPrefix),
		grant(read|Create, "condemns generations of frames", layout.CondemnedPrefix),
		grant(cas, "who collects, how far the sweep is, the breaker", gcState),
		grant(read|Delete, "reports of frames that may be orphans", orphans),
		grant(read|Create, "the log of what went and why", blobLog),
		grant(read, "the proof", layout.AcceptedPrefix, quarantine, layout.RewrittenPrefix, layout.JournalPrefix, resolution),
	},
	Rollup: {
		grant(Get, "the authority", layout.AuthorityKey),
		grant(read|Delete, "frames to roll up; deletes those that retention removes", layout.RawBlobsPrefix),
		grant(read, "overlapping and duplicate batches, conflicts, open repairs", layout.AcceptedPrefix, quarantine, layout.RepairPrefix, resolution),
		grant(read, "finds batches in the journal", layout.JournalPrefix),
		grant(Get, "is the bucket one of several regions'? asked where batches overlap", layout.RegionsKey),
		grant(cas, "condemns the frames of an hour before it removes them; raises the record", layout.CondemnedPrefix),
		grant(read|Delete, "notes of rewritten frames", layout.RewrittenPrefix),
		grant(read|Create, "log of what retention removed", layout.LogPrefix),
		grant(read|Create|Delete, "objects to collect", layout.DelayedPrefix),
		grant(cas, "the epoch of the references", layout.ReferencesKey),
		grant(read|Put|Delete, "plans, deltas, progress and other records of shards", layout.RollupPrefix),
		grant(Tag, "marks chunks and indexes that are not published yet", layout.RollupPrefix, layout.IndexPrefix),
		grant(read|Create|Replace|Delete, "indexes and blocks", layout.IndexPrefix, layout.ManifestsPrefix),
		grant(read|Create|Delete, "snapshots of live state", layout.LivePrefix),
	},
	Query: {
		grant(Get, "the authority", layout.AuthorityKey),
		grant(read, "the live tail, and frames of conflicts", layout.RawBlobsPrefix, layout.JournalPrefix, layout.LivePrefix),
		grant(read, "agents, boots, conflicts, what is complete", layout.BootsPrefix, layout.AcceptedPrefix, quarantine, resolution, layout.ReconcilePrefix, layout.RepairPrefix),
		grant(read, "frames that retention removed", gcPrefix),
		grant(read, "blocks and deltas", layout.RollupPrefix, layout.IndexPrefix, layout.ManifestsPrefix),
	},
	Coordinator: {
		grant(cas, "the number of the last term, which etcd restored from a backup does not know", coordinatorV1),
		grant(cas, "the epoch of the identity linearizer, with several regions", layout.RegionsKey),
		grant(cas|List, "identities that are settled, which etcd need not keep; lists them after etcd was restored", layout.FoldsPrefix),
		grant(cas|List, "what a region has accepted before it is added, prepared to be folded", layout.PreparedPrefix),
		grant(Get, "the same, from the region's journal", layout.JournalHeadKey, layout.JournalFoldedPrefix),
		grant(read, "what every region decided, after etcd was restored; which frame stands in the way", layout.AcceptedPrefix, layout.AffirmedPrefix),
		grant(read, "conflicts of an identity, for people: lmctl identity trace", layout.QuarantinePrefix),
		grant(read, "what the journal has of an identity, for lmctl identity trace", layout.JournalPrefix),
		grant(Get, "whose journal it is, for the same", layout.AuthorityKey),
	},
	Operator: {
		grant(read, "status, fsck, audits, show", ""),
		grant(Create, "fences and drops runs of lost collectors", layout.JournalRunPrefix, layout.JournalOpenPrefix),
		grant(Create|Replace|Delete, "repair requests; agents set aside", layout.RollupPrefix),
		grant(Create|Replace, "a new epoch of the references; the breaker of garbage collection", layout.ReferencesKey, gcState),
		grant(Create, "begins audits", layout.AuditPrefix),
		grant(Put|Delete, "store qualify", layout.ProbePrefix),
	},
}

// Families are the keys that requests are told apart by: each is a prefix, or one key. A table of who
// may do what has a line for each.
var Families = []string{
	layout.AuthorityKey, layout.RawBlobsPrefix, layout.AcceptedPrefix, layout.QuarantinePrefix, layout.ClashPrefix, layout.BootsPrefix, layout.AffirmedPrefix,
	layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix, layout.JournalHeadKey, layout.JournalBeginKey,
	layout.CondemnedPrefix, layout.RewrittenPrefix, layout.DelayedPrefix, layout.ReferencesKey,
	gcState, orphans, blobLog, layout.FrameLogsPrefix, layout.LogPrefix + "retention/",
	decided, settled, parked,
	layout.ReconcilePrefix, layout.AuditPrefix, layout.RepairPrefix,
	layout.AcceptedByTimePrefix, layout.AcceptedByBlobPrefix, layout.RawBlobsByTimePrefix, layout.QuarantineByBlobPrefix,
	layout.RollupPrefix, layout.IndexPrefix, layout.ManifestsPrefix, layout.LivePrefix,
	coordinatorV1, layout.RegionsKey, layout.FoldsPrefix, layout.PreparedPrefix, layout.ProbePrefix,
	"other/",
}

// Probe is a key of the family that no program writes.
func Probe(family string) string {
	if strings.HasSuffix(family, ".json") {
		return family + ".probe"
	}
	return family + "probe/policy"
}

// Denied reports whether the bucket refuses op on the key to somebody who has none but these roles.
func Denied(roles []Role, op Op, key string) bool {
	for _, r := range rules {
		excepted := slices.ContainsFunc(roles, func(role Role) bool { return slices.Contains(r.except, role) })
		if r.deny&op != 0 && under(key, r.keys) && !excepted {
			return true
		}
	}
	return false
}

// Grants are what a role may do.
func Grants(r Role) []Grant { return grants[r] }

// May reports whether one of the roles is allowed op on the key, relative to the authority's prefix.
// Of List, key is the prefix that is listed.
func May(roles []Role, op Op, key string) bool {
	for _, r := range roles {
		for _, g := range grants[r] {
			if g.Ops.Has(op) && under(key, g.Keys) {
				return true
			}
		}
	}
	return false
}

// rule is what the bucket refuses to whoever asks, but to some roles.
type rule struct {
	sid  string
	keys []string
	// deny are the kinds that are refused: Put, Create|Replace|Put for every write, Delete.
	deny Op
	// copies are refused as well: they are writes whose bytes the sender has never seen.
	copies bool
	except []Role
	why    string
}

// rules. Where a key ends without a slash, the probe of the policy has a key of its own beside it.
var rules = []rule{
	{sid: "AcceptanceIsOnlyCreated", deny: Put | Replace, copies: true, why: "what was accepted, and what was removed and why, is never overwritten",
		keys: []string{layout.RawBlobsPrefix, layout.AcceptedPrefix, layout.AffirmedPrefix, layout.BootsPrefix, quarantine, resolution, layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix, layout.LogPrefix}},
	{sid: "HeadAndAuthorityAreReplacedByIfMatch", deny: Put, why: "records that move are replaced by who has read them alone",
		keys: []string{layout.JournalHeadKey, layout.JournalBeginKey, layout.AuthorityKey, layout.CondemnedPrefix}},
	{sid: "AcceptanceIsNeverDeleted", deny: Delete, why: "what was accepted, condemned or logged stays",
		keys: []string{layout.AcceptedPrefix, layout.AffirmedPrefix, layout.BootsPrefix, quarantine, resolution, layout.AuthorityKey, layout.JournalBeginKey, layout.JournalHeadKey, layout.CondemnedPrefix, layout.LogPrefix}},
	{sid: "OnlyReconcilersFoldTheJournal", deny: Create | Replace | Put, except: []Role{Reconciler}, why: "one kind of writer moves the head",
		keys: []string{layout.JournalHeadKey, layout.JournalFoldedPrefix}},
	{sid: "OnlyReconcilersDeleteFromTheJournal", deny: Delete, except: []Role{Reconciler}, why: "segments go when they are folded",
		keys: []string{layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix}},
	{sid: "OnlyReconcilersResolveConflicts", deny: Create | Replace | Put, except: []Role{Reconciler}, why: "what is decided in one place is written by one kind of writer",
		keys: []string{decided}},
	{sid: "OnlyCollectorsOfGarbageDeleteFrames", deny: Delete, except: []Role{GC, Rollup}, why: "frames go by proof or by retention",
		keys: []string{layout.RawBlobsPrefix}},
	{sid: "OnlyCollectorsOfGarbageCondemn", deny: Create | Replace | Put, except: []Role{GC, Rollup}, why: "a marker makes a frame unusable",
		keys: []string{layout.CondemnedPrefix}},
}

// Refusal is what the bucket refuses to all but some roles.
type Refusal struct {
	Keys   []string
	Ops    Op
	Copies bool
	Except []Role
	Why    string
}

// Refusals are all of them, for people.
func Refusals() []Refusal {
	out := make([]Refusal, len(rules))
	for i, r := range rules {
		out[i] = Refusal{r.keys, r.deny, r.copies, r.except, r.why}
	}
	return out
}
