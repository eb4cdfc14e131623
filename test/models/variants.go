// Package models builds and runs the Promela models of docs/protocol/models with Spin:
// the protocols as designed, which must hold in the whole state space, and mutants
// with one guard left out or moved, which must be violated.
package models

// Variant is one build of a model.
type Variant struct {
	Model string
	// Name is "designed", or the -D flag of a mutant.
	Name string
	// Scope is the -D flags that bound the model.
	Scope string
	// Breaks: the guard is gone, and a violation must be found.
	Breaks bool
	// Deep: a mutant's search goes depth first.
	Deep bool
	// Reverse: a depth-first search takes the processes in the opposite order, which finds some violations in far fewer states.
	Reverse bool
	// Long: the search takes so long that the verifier is compiled with optimizations.
	Long bool
	// Whole: this scope alone reaches every statement, so no step of it is idle.
	Whole bool
}

// Designed is the name of the variants that leave nothing out.
const Designed = "designed"

// Variants of one run. At soak size the designed protocols are run in larger scopes;
// the mutants stay, because the smallest scope that finds them is the best.
func Variants(soak bool) []Variant {
	scopes := small
	if soak {
		scopes = large
	}
	var vs []Variant
	for _, s := range scopes {
		vs = append(vs, Variant{Model: s.model, Name: Designed, Scope: s.flags, Whole: s.whole, Long: s.long || soak})
	}
	for _, m := range mutants {
		for _, name := range m.names {
			vs = append(vs, Variant{Model: m.model, Name: name, Scope: m.flags, Breaks: true, Deep: m.deep || m.reverse, Reverse: m.reverse, Long: m.long})
			if soak && m.shown {
				vs = append(vs, Variant{Model: m.model, Name: name, Scope: m.flags + " -DUNTIL_A_FOLLOWER_SEES_IT", Breaks: true})
			}
		}
	}
	if !soak {
		return vs
	}
	for _, a := range alternatives {
		vs = append(vs, Variant{Model: a.model, Name: a.name, Scope: a.flags, Long: true})
	}
	return vs
}

type scope struct {
	model, flags string
	whole        bool
	// long: a million states, or many transitions. For fewer, to compile the verifier better costs more than the search saves.
	long bool
}

var small = []scope{
	{model: "acceptance", flags: "-DCALLS=2 -DLATE=2"},
	{model: "acceptance", flags: "-DCALLS=3 -DLATE=1 -DSPOOLS=1"},
	{model: "gc", flags: "-DNH=1 -DG=2 -DLATE=1"},
	{model: "gc", flags: "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1", long: true},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=1 -DGCS=0"},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=0 -DCOLLECTORS=2 -DGCS=0"},
	{model: "gc", flags: "-DRETAIN -DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1 -DGCS=0", long: true},
	{model: "gc", flags: "-DINLINE -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=1"},
	{model: "gc", flags: "-DINLINE -DNH=1 -DG=2 -DLATE=0"},
	{model: "gc", flags: "-DINLINE -DNH=2 -DG=2 -DLATE=0 -DCOLLECTORS=1", long: true},
	{model: "gc", flags: "-DINLINE -DRETAIN -DNH=1 -DG=2 -DLATE=0 -DCOLLECTORS=2 -DGCS=0", long: true},
	{model: "epochs", flags: "-DRUNS=1 -DCLOSE -DPLAIN"},
	{model: "epochs", flags: "-DRUNS=2 -DSEGMENTS=2"},
	{model: "epochs", flags: "-DRUNS=1 -DBEGINS"},
	{model: "epochs", flags: "-DRUNS=1 -DFOLD", long: true},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=1 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=2 -DLATE=0 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=0 -DADD -DMAXE=4"},
	{model: "linearizer", flags: "-DHOMES -DCALLERS=3 -DMAXR=1 -DLATE=0"},
	{model: "linearizer", flags: "-DHOMES -DKEEPERS=2 -DMAXR=1 -DLATE=0 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DFOLD -DMAXE=3"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=1 -DRETIRE -DFOLD"},
	{model: "linearizer", flags: "-DHOMES -DREGIONS=3 -DCALLERS=3 -DMAXR=0 -DLATE=0 -DRETIRE -DFOLD"},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=0 -DRETIRE -DFOLD -DMAXE=2 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DQUIET"},
	{model: "linearizer", flags: "-DHOMES -DREGIONS=3 -DCALLERS=3 -DMAXR=0 -DLATE=0 -DRETIRE -DQUIET -DMAXE=2"},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=2 -DCALLERS=1 -DFORGETS=0"},
	{model: "fold", flags: "-DFRAMES=12 -DREGIONS=2 -DCALLERS=1 -DCACHE"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=3 -DCALLERS=1 -DCACHE -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DFOLDERS=2 -DFORGETS=0"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE -DADD -DMAXE=2 -DMAXF=1 -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=5 -DREGIONS=2 -DCALLERS=1 -DADD -DMAXE=2 -DMAXF=1 -DMAXFOLDS=1 -DFORGETS=0"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DMAXR=1 -DMAXF=1 -DMAXFOLDS=1 -DFORGETS=0"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1"},
	{model: "spread", flags: "-DMAXE=2 -DMAXFOLDS=1 -DTHREE"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=2 -DFRAMES=1"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1 -DFRAMES=1 -DKEEPERS=2"},
	{model: "journal", flags: "-DRUNS=2 -DHASHES -DCLOSE"},
	{model: "journal", flags: "-DRUNS=3 -DFENCES=2 -DLATE=0 -DCLOSE"},
	{model: "journal", flags: "-DRUNS=2 -DFOLLOWERS=2 -DLATE=0"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3 -DCLOSE -DFORGETS=1", whole: true},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2 -DHASHES -DLATE=0"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2 -DLATE=0 -DFORGETS=1"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3 -DPIPELINE -DCLOSE"},
	{model: "journal", flags: "-DFOLD=2 -DRUNS=1 -DCLOSE -DFORGETS=1", whole: true, long: true},
}

var large = []scope{
	{model: "acceptance", flags: "-DCALLS=2 -DLATE=9"},
	{model: "acceptance", flags: "-DCALLS=3 -DLATE=9"},
	{model: "gc", flags: "-DNH=1 -DG=3 -DLATE=1"},
	{model: "gc", flags: "-DNH=1 -DG=2 -DLATE=2"},
	{model: "gc", flags: "-DNH=1 -DG=2 -DLATE=1 -DGCS=2"},
	{model: "gc", flags: "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1"},
	{model: "gc", flags: "-DNH=2 -DG=2 -DLATE=0"},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=1 -DGCS=1"},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=2 -DGCS=0"},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=2 -DCOLLECTORS=1 -DGCS=0 -DRETAINERS=2"},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=3 -DLATE=1 -DCOLLECTORS=1 -DGCS=0 -DLOSSES=2"},
	{model: "gc", flags: "-DINLINE -DNH=1 -DG=2 -DLATE=1"},
	{model: "gc", flags: "-DINLINE -DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1"},
	{model: "gc", flags: "-DINLINE -DRETAIN -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=1 -DGCS=1"},
	{model: "epochs", flags: "-DRUNS=1 -DCLOSE -DPLAIN -DFOLD -DBEGINS"},
	{model: "epochs", flags: "-DRUNS=1 -DGCS=2 -DFOLD"},
	{model: "epochs", flags: "-DRUNS=2"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=2 -DLATE=1 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=3 -DLATE=0 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=2 -DLATE=0"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=2"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=1 -DADD -DMAXE=4"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DADD -DMAXE=4"},
	{model: "linearizer", flags: "-DMAXR=1 -DLATE=0"},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=1 -DMAXF=3"},
	{model: "linearizer", flags: "-DHOMES -DCALLERS=3 -DMAXR=2 -DLATE=0"},
	{model: "linearizer", flags: "-DHOMES -DKEEPERS=2 -DMAXR=1 -DLATE=0"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=1 -DRETIRE -DFORGET -DMAXE=3"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DFOLD"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DADD -DMAXE=3"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DADD -DMAXE=4 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=2 -DLATE=0 -DRETIRE -DFORGET -DFOLD -DMAXE=4 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DREGIONS=3 -DCALLERS=3 -DMAXR=1 -DLATE=0 -DRETIRE -DMAXE=3 -DIMMORTAL"},
	{model: "linearizer", flags: "-DHOMES -DKEEPERS=2 -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DMAXE=3"},
	{model: "linearizer", flags: "-DHOMES -DREGIONS=3 -DCALLERS=3 -DMAXR=0 -DLATE=1 -DRETIRE -DFOLD"},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=0 -DRETIRE -DFOLD -DMAXF=3"},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DQUIET"},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=0 -DRETIRE -DQUIET"},
	{model: "fold", flags: "-DFRAMES=15 -DREGIONS=2 -DCALLERS=1"},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=2 -DCALLERS=1 -DCACHE"},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=3 -DCALLERS=1 -DCACHE -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=4 -DCALLERS=1 -DCACHE -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=3 -DCALLERS=1 -DCACHE"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE -DFOLDERS=2"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=2 -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE -DADD -DMAXE=2 -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=5 -DREGIONS=2 -DCALLERS=1 -DADD -DMAXE=2 -DMAXFOLDS=1 -DFORGETS=0"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=3 -DCALLERS=1 -DADD -DMAXE=2 -DMAXF=1 -DMAXFOLDS=1"},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DMAXR=1 -DMAXFOLDS=1"},
	{model: "spread", flags: "-DMAXE=4 -DMAXFOLDS=2"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1 -DTHREE"},
	{model: "spread", flags: "-DMAXE=4 -DMAXFOLDS=1 -DTHREE"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1 -DKEEPERS=2"},
	{model: "spread", flags: "-DMAXE=4 -DMAXFOLDS=1 -DKEEPERS=2"},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=2 -DFRAMES=1 -DFOLDERS=2"},
	{model: "journal", flags: "-DRUNS=3"},
	{model: "journal", flags: "-DRUNS=3 -DFENCES=2 -DLATE=0 -DCLOSE"},
	{model: "journal", flags: "-DRUNS=2 -DSEGMENTS=3 -DFENCES=2 -DCLOSE"},
	{model: "journal", flags: "-DRUNS=2 -DFENCES=2 -DLATE=2 -DCLOSE"},
	{model: "journal", flags: "-DRUNS=2 -DFOLLOWERS=2"},
	{model: "journal", flags: "-DRUNS=2 -DHASHES -DCLOSE"},
	{model: "journal", flags: "-DRUNS=3 -DHASHES -DLATE=0"},
	{model: "journal", flags: "-DRUNS=2 -DSEGMENTS=3 -DPIPELINE"},
	{model: "journal", flags: "-DRUNS=2 -DLATE=2 -DPIPELINE -DCLOSE"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2 -DLATE=0 -DCLOSE -DFORGETS=1"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2 -DSEGMENTS=3 -DLATE=0"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=3 -DLATE=0"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=4 -DFENCES=2 -DCLOSE -DFORGETS=1"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3 -DFENCES=2 -DLATE=2 -DCLOSE -DFORGETS=1", whole: true},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3 -DLATE=2 -DPIPELINE -DCLOSE"},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2 -DHASHES -DLATE=0"},
	{model: "journal", flags: "-DFOLD=2 -DRUNS=1 -DSEGMENTS=3 -DCLOSE -DFORGETS=1", whole: true},
	{model: "journal", flags: "-DFOLD=2 -DRUNS=2 -DLATE=0"},
}

// alternatives were not chosen, and hold: a guard that matters only together with
// another, or another design that costs more.
var alternatives = []struct{ model, name, flags string }{
	{"fold", "RECOVERY_IGNORES_FOLDS", "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE -DADD -DMAXE=2 -DMAXFOLDS=1"},
	{"journal", "FENCE_AT_0", "-DFOLD=1 -DRUNS=2"},
	{"journal", "FENCE_DELETED_WHEN_LEFT", "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3 -DFENCES=2 -DLATE=2 -DCLOSE -DFORGETS=1"},
	{"journal", "FENCE_DELETED_WHEN_LEFT", "-DFOLD=1 -DRUNS=2 -DLATE=0 -DCLOSE"},
	{"journal", "RUN_REUSED", "-DRUNS=2 -DCLOSE"},
	{"journal", "RUN_SHARED", "-DRUNS=3 -DSEGMENTS=3 -DCLOSE"},
	{"journal", "RETRY_OTHER_BYTES", "-DRUNS=2"},
	{"journal", "FENCER_TRUSTS_200", "-DRUNS=2"},
}

var mutants = []struct {
	model, flags string
	names        []string
	// deep: the search goes depth first, which finds some violations in far fewer states than breadth first.
	deep bool
	// reverse: it goes depth first, and takes the processes in the opposite order.
	reverse bool
	// long: compiled with optimizations.
	long bool
	// shown: the entry is lost first, and a follower's wrong answer comes later. Soak waits for that too.
	shown bool
}{
	{model: "acceptance", flags: "-DCALLS=2 -DLATE=1", names: []string{
		"NO_BOOT", "BOOT_NOT_COMPARED", "BOOT_UNKNOWN_IS_OURS", "BOOT_AFTER_MANIFEST",
		"NO_CHECKSUM", "TRUST_EXISTING", "CONFLICT_409_IS_EXISTS", "MANIFEST_FIRST",
		"OVERWRITE", "CHECK_THEN_WRITE", "NOT_COMPARED", "NO_ATTEMPT_ID", "ATTEMPT_ID_OF_FRAME",
		"CLEAN_UP_ON_UNKNOWN", "NO_QUARANTINE", "QUARANTINE_UNKNOWN_IS_DONE",
	}},
	{model: "gc", flags: "-DNH=1 -DG=2 -DLATE=1", names: []string{
		"NO_MARKER", "NO_MARKER_ON_DUPLICATE", "HEAD_FOR_MARKER", "MARKER_BEFORE_MANIFEST",
		"SAME_GENERATION", "CLEAN_UP_ON_UNKNOWN", "PROVE_FIRST", "NO_CONDEMN", "MARKER_UNCONFIRMED",
		"UNCONDEMN", "DOUBT_DELETES", "DELETE_ALL_GENERATIONS",
	}},
	{model: "gc", flags: "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1", names: []string{
		"NO_MARKER_ON_CONFLICT", "NO_QUARANTINE", "QUARANTINE_UNKNOWN_IS_DONE", "NO_QUARANTINE_PROOF",
	}},
	{model: "gc", flags: "-DINLINE -DNH=1 -DG=2 -DLATE=1", names: []string{"INLINE_TRUSTS_MANIFESTS", "INLINE_NO_MARKER", "INLINE_MANIFESTS_KEEP_NOTHING"}},
	{model: "gc", flags: "-DINLINE -DNH=2 -DG=2 -DLATE=0 -DCOLLECTORS=1", names: []string{"INLINE_TRUSTS_QUARANTINE"}},
	{model: "gc", flags: "-DRETAIN -DNH=1 -DG=2 -DLATE=1 -DCOLLECTORS=1 -DGCS=0", names: []string{
		"NO_BELOW", "NO_BELOW_ON_DUPLICATE", "BELOW_UNCONFIRMED", "BELOW_REMOVED", "BELOW_WITHOUT_CONDITION", "BELOW_READ_ONCE",
		"COVERED_FIRST", "NOT_COVERED", "ALL_GENERATIONS_OF_FRAME", "LOG_AFTER",
	}},
	{model: "epochs", flags: "-DRUNS=1", deep: true, names: []string{
		"NO_BARRIER", "PROVE_BEFORE_BARRIER", "LISTED_BEFORE_THE_EPOCH", "UNNAMED_PASSES", "MARKER_EXISTS_IS_NAMED", "OLD_GC",
		"SEGMENT_0_NAMES", "EPOCH_READ_BEFORE_OPENING", "EPOCH_GOES_BACK", "CHECKED_WHEN_ADDED", "UNNAMED_SPARES", "ANSWER_BEFORE_SEGMENT",
	}},
	{model: "epochs", flags: "-DRUNS=2 -DSEGMENTS=2", deep: true, names: []string{"FENCED_STAYS_CHECKED"}},
	{model: "epochs", flags: "-DRUNS=1 -DBEGINS", deep: true, names: []string{"BEGIN_READ_FIRST"}},
	{model: "epochs", flags: "-DRUNS=1 -DFOLD", deep: true, names: []string{"LISTED_ALONE", "FENCE_UNCHECKED"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=0", deep: true, names: []string{
		"NO_CLAIM", "ACK_ON_CLAIM", "NO_RECHECK", "CONFLICT_ON_CLAIM", "JOURNAL_BEFORE_COMPLETE",
	}},
	{model: "linearizer", flags: "-DHOMES -DCALLERS=3 -DMAXR=0 -DLATE=0", deep: true, names: []string{"DUPLICATE_UNSETTLED", "TAKE_DURABLE"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0", deep: true, names: []string{
		"NO_RECOVERY", "STAMP_WITHOUT_FENCE", "COPY_TRUSTED", "RELEASE_RECOVERED", "ANSWERS_OF_THE_COPY", "SILENT_REGION_SKIPPED", "FIRST_REGION_WINS",
	}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=1", deep: true, names: []string{"DROP_UNFENCED"}},
	{model: "linearizer", flags: "-DHOMES -DCALLERS=3 -DMAXR=1 -DLATE=0", deep: true, names: []string{"COMPLETE_UNFENCED", "TAKE_RECOVERED"}},
	{model: "linearizer", flags: "-DHOMES -DKEEPERS=2 -DMAXR=1 -DLATE=0", deep: true, names: []string{"OPENED_UNFENCED"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=0 -DADD -DMAXE=4", deep: true, names: []string{"EPOCH_UNCHECKED", "NO_AFFIRMATION", "RECOVERED_IS_DURABLE"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DADD -DMAXE=4", deep: true, names: []string{"EPOCH_STAYS", "EPOCH_OF_THE_COPY"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=0 -DRETIRE", deep: true, names: []string{
		"RETIRED_IS_FORGOTTEN", "KEEP_BEFORE_THE_EPOCH", "KEEP_AFTER_DELETE", "NOT_DONE_IGNORED", "BOUND_IS_FREE", "RECOVERY_TAKES_OTHER_HASH",
	}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE", deep: true, names: []string{"RETIRED_MAY_CLAIM"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DMAXE=3", reverse: true, names: []string{"KEEP_OF_A_COPY", "RETIRE_BY_CLUSTER"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=1 -DLATE=0 -DRETIRE -DFORGET -DADD -DMAXE=4 -DIMMORTAL", reverse: true, long: true, names: []string{"KEEP_RECOVERED_OF_A_COPY"}},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=0 -DMAXF=3 -DRETIRE -DMAXE=2", reverse: true, names: []string{"REPLACE_BOUND"}},
	{model: "linearizer", flags: "-DMAXR=0 -DLATE=0 -DMAXF=3 -DRETIRE -DMAXE=2 -DQUIET", reverse: true, names: []string{"BOUND_IS_HELD"}},
	{model: "linearizer", flags: "-DHOMES -DMAXR=0 -DLATE=0 -DQUIET", deep: true, names: []string{"NO_RELEASE"}},
	{model: "linearizer", flags: "-DHOMES -DCALLERS=3 -DMAXR=0 -DLATE=0 -DQUIET", deep: true, names: []string{"NO_REPLACE"}},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE", reverse: true, names: []string{
		"NO_DIGEST", "HEADS_UNCHECKED", "FORGOTTEN_UNCHECKED", "ALL_BUT_TWO", "CLAIMS_FIRST", "UNKNOWN_IS_MOVED", "FOLDS_CLAIMED", "ONE_REGION",
	}},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=3 -DCALLERS=1 -DCACHE -DMAXFOLDS=1", reverse: true, names: []string{"HEAD_NOT_NAMED"}},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=3 -DCALLERS=1 -DCACHE -DMAXFOLDS=1", reverse: true, names: []string{"DIFFERENT_HEADS"}},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=4 -DCALLERS=1 -DCACHE -DFORGETS=0", reverse: true, names: []string{"FOLD_WITHOUT_NAMED"}},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=2 -DCALLERS=1 -DCACHE -DFOLDERS=2 -DFORGETS=0", reverse: true, names: []string{"NO_IF_MATCH", "HEADS_NOT_COMPARED"}},
	{model: "fold", flags: "-DFRAMES=5 -DREGIONS=2 -DCALLERS=1 -DCACHE", deep: true, names: []string{
		"NO_RANGES", "FOLDED_RANGES_UNCHECKED", "CLAIMED_RANGES_UNCHECKED", "ABOVE_IS_THE_LAST",
	}},
	{model: "fold", flags: "-DFRAMES=11 -DREGIONS=2 -DCALLERS=1 -DCACHE -DFORGETS=0", reverse: true, names: []string{"ABOVE_OF_THE_ADDED"}},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DCACHE -DADD -DMAXE=2 -DMAXF=1 -DMAXFOLDS=1", reverse: true, names: []string{
		"FORGOTTEN_IN_ANY_EPOCH", "HEADS_OF_THE_COPY", "RECOVERY_LEAVES_HEADS",
	}},
	{model: "fold", flags: "-DFRAMES=5 -DREGIONS=2 -DCALLERS=1 -DADD -DMAXE=2 -DMAXFOLDS=1 -DFORGETS=0", reverse: true, names: []string{"RECOVERY_IGNORES_RANGES"}},
	{model: "fold", flags: "-DFRAMES=3 -DREGIONS=2 -DCALLERS=1 -DMAXR=1 -DMAXFOLDS=1 -DFORGETS=0", reverse: true, names: []string{"FOLDS_THE_COPY"}},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1", deep: true, names: []string{"NO_SPREAD", "SPREAD_WHEN_RETIRED", "SPREAD_TO_ONE", "ONE_REGION"}},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=1 -DFRAMES=1 -DKEEPERS=2", deep: true, names: []string{"UNKNOWN_HOME_IS_RETIRED"}},
	{model: "spread", flags: "-DMAXE=3 -DMAXFOLDS=2 -DFRAMES=1 -DTHREE", deep: true, names: []string{"HOME_STAYS"}},
	{model: "journal", flags: "-DRUNS=1", names: []string{
		"FENCER_NOT_COMPARED", "FOLLOWER_SKIPS_ABSENT", "ERROR_IS_ABSENT", "LISTED_NOT_POLLED", "STALE_LIST",
		"T_AT_FIRST_ANSWER", "FENCE_NOT_COMPARED",
	}},
	{model: "journal", flags: "-DRUNS=1", shown: true, names: []string{"ANSWER_BEFORE_SEGMENT", "NEXT_BEFORE_CONFIRMED_WITH_ANSWER"}},
	{model: "journal", flags: "-DRUNS=1 -DHASHES", names: []string{"ENTRY_BEFORE_MANIFEST", "ANSWER_WITHOUT_MANIFEST"}},
	{model: "journal", flags: "-DRUNS=1 -DHASHES", shown: true, names: []string{"DUPLICATE_WITHOUT_ENTRY"}},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1", names: []string{"HEAD_ONCE", "HEAD_FIRST"}},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1", shown: true, names: []string{"RETRY_OTHER_BYTES", "RUN_REUSED", "FENCE_DELETED"}},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=2", shown: true, names: []string{"RUN_SHARED"}},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DSEGMENTS=3", names: []string{"FENCE_UNCHECKED", "FENCER_TRUSTS_200"}},
	{model: "journal", flags: "-DFOLD=1 -DRUNS=1 -DFORGETS=1", names: []string{"FORGET_UNCHECKED"}},
	{model: "journal", flags: "-DFOLD=2 -DRUNS=1", shown: true, names: []string{
		"FOLD_DELETES_FIRST", "FOLD_DELETES_ON_UNKNOWN", "HEAD_BEFORE_INDEX", "HEAD_NO_IF_MATCH",
	}},
}
