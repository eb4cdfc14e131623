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
		vs = append(vs, Variant{Model: s.model, Name: Designed, Scope: s.flags})
	}
	for _, m := range mutants {
		for _, name := range m.names {
			vs = append(vs, Variant{Model: m.model, Name: name, Scope: m.flags, Breaks: true})
		}
	}
	return vs
}

type scope struct{ model, flags string }

var small = []scope{
	{"acceptance", "-DCALLS=2 -DLATE=2"},
	{"acceptance", "-DCALLS=3 -DLATE=1 -DSPOOLS=1"},
	{"gc", "-DNH=1 -DG=2 -DLATE=1"},
	{"gc", "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1"},
	{"linearizer", "-DMAXR=1 -DLATE=0"},
	{"linearizer", "-DMAXR=1 -DLATE=1 -DHOMES"},
	{"linearizer", "-DMAXR=3 -DLATE=0 -DHOMES"},
}

var large = []scope{
	{"acceptance", "-DCALLS=2 -DLATE=9"},
	{"acceptance", "-DCALLS=3 -DLATE=9"},
	{"gc", "-DNH=1 -DG=3 -DLATE=1"},
	{"gc", "-DNH=1 -DG=2 -DLATE=2"},
	{"gc", "-DNH=1 -DG=2 -DLATE=1 -DGCS=2"},
	{"gc", "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1"},
	{"gc", "-DNH=2 -DG=2 -DLATE=0"},
	{"linearizer", "-DMAXR=1 -DLATE=1"},
	{"linearizer", "-DMAXR=3 -DLATE=0"},
	{"linearizer", "-DMAXR=3 -DLATE=1 -DHOMES"},
}

var mutants = []struct {
	model, flags string
	names        []string
}{
	{"acceptance", "-DCALLS=2 -DLATE=1", []string{
		"NO_BOOT", "BOOT_NOT_COMPARED", "BOOT_UNKNOWN_IS_OURS", "BOOT_AFTER_MANIFEST",
		"NO_CHECKSUM", "TRUST_EXISTING", "CONFLICT_409_IS_EXISTS", "MANIFEST_FIRST",
		"OVERWRITE", "CHECK_THEN_WRITE", "NOT_COMPARED", "NO_ATTEMPT_ID", "ATTEMPT_ID_OF_FRAME",
		"CLEAN_UP_ON_UNKNOWN", "NO_QUARANTINE", "QUARANTINE_UNKNOWN_IS_DONE",
	}},
	{"gc", "-DNH=1 -DG=2 -DLATE=1", []string{
		"NO_MARKER", "NO_MARKER_ON_DUPLICATE", "HEAD_FOR_MARKER", "MARKER_BEFORE_MANIFEST",
		"SAME_GENERATION", "CLEAN_UP_ON_UNKNOWN", "PROVE_FIRST", "NO_CONDEMN", "MARKER_UNCONFIRMED",
		"UNCONDEMN", "DOUBT_DELETES", "DELETE_ALL_GENERATIONS",
	}},
	{"gc", "-DNH=2 -DG=2 -DLATE=1 -DCOLLECTORS=1", []string{
		"NO_MARKER_ON_CONFLICT", "NO_QUARANTINE", "QUARANTINE_UNKNOWN_IS_DONE", "NO_QUARANTINE_PROOF",
	}},
	{"linearizer", "-DMAXR=1 -DLATE=0", []string{
		"NO_CLAIM", "ACK_ON_CLAIM", "NO_RECOVERY", "NO_RECHECK",
	}},
	{"linearizer", "-DMAXR=3 -DLATE=0 -DHOMES", []string{"FIRST_REGION_WINS", "EPOCH_STAYS", "EPOCH_UNCHECKED", "NO_AFFIRMATION"}},
}
