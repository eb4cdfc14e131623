package main

import (
	"fmt"
	"strings"
)

// What the identity linearizer takes, from docs/benchmarks.md (claims, claims-size, recovery) and from its constants.
const (
	claimBytes   = 326.  // of etcd's database, of a claim that is not folded
	historyBytes = 1153. // of it, of an accepted batch until etcd is compacted
	memberBytes  = 3200. // between the three members, of an accepted batch
	batchOps     = 3.    // claim, complete, settle
	foldLeast    = 64.   // settled claims of a boot that are folded at once
	horizon      = 300.  // identity.settle_horizon, s
	siteCount    = 3.    // regions, with a coordinator each
	checkEvery   = 10.   // of each coordinator, of the record in each bucket, s
	recoverAhead = 64.   // requests of a recovery at once, but for its listings
	s3Seconds    = 0.030 // of a request of a recovery
	listed       = 1000. // keys of a LIST
	partEntries  = 2048. // identities of a part of folds
	worthAhead   = 32.   // identities of a boot that are worth a listing of its own
)

// regionsFleet is an example of a fleet over three regions. Times are in seconds, compaction is etcd.embedded.compaction.
type regionsFleet struct {
	agents, batchEvery, compaction float64
}

var regionsFleets = []regionsFleet{
	{10_000, 30, 300}, {10_000, 120, 300}, {100_000, 30, 60}, {100_000, 120, 60}, {1_000_000, 120, 60}, {1_000_000, 600, 60},
}

// batches a second of all regions.
func (f regionsFleet) batches() float64 { return f.agents / f.batchEvery }

// claims of an active boot that are not folded, on average: those within the horizon, and half of what is folded at once.
func (f regionsFleet) claims() float64 { return horizon/f.batchEvery + foldLeast/2 }

// history is the age of what etcd keeps of changes: it compacts every so often, to as long ago.
func (f regionsFleet) history() float64 { return 2 * f.compaction }

func (f regionsFleet) database() float64 {
	return f.agents*f.claims()*claimBytes + f.batches()*f.history()*historyBytes
}

// writes and reads a month of folds and checks: a head in each region for each fold, a record in each region for each check.
func (f regionsFleet) requests() (writes, reads float64) {
	folds := f.batches() * monthSeconds / foldLeast
	return siteCount * folds, siteCount*folds + siteCount*siteCount*monthSeconds/checkEvery
}

// recovery takes so many seconds when so many batches were ever accepted. Side by side: of each boot the heads and the listings of
// affirmations of all regions, all parts, the manifests that are not folded, and a page of manifests behind what is. One after the
// other: the keys of heads and parts in each region, and all manifests, if boots have few of them.
func (f regionsFleet) recovery(accepted float64) float64 {
	parts := accepted / partEntries
	ahead := f.agents*(2*siteCount+f.claims()) + parts
	listings := siteCount * (f.agents + parts) / listed
	if accepted/f.agents > worthAhead {
		ahead += f.agents
	} else {
		listings += accepted / listed
	}
	return s3Seconds * (listings + ahead/recoverAhead)
}

func regionsTable(p prices) string {
	var b strings.Builder
	b.WriteString("| Agents | Batches every | Batches/s | Operations of etcd/s | Claims not folded | etcd's database, MB | with `compaction` | Between members, MB/s | Folds and checks a month, USD | Recovery after a day, min | after a month, min |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, f := range regionsFleets {
		w, r := f.requests()
		fmt.Fprintf(&b, "| %.0f | %.0f s | %.0f | %.0f | %.2f M | %.0f | %.0fm | %.1f | %.0f | %.0f | %.0f |\n",
			f.agents, f.batchEvery, f.batches(), f.batches()*batchOps, f.agents*f.claims()/1e6, f.database()/1e6, f.compaction/60,
			f.batches()*memberBytes/1e6, w*p.write+r*p.read, f.recovery(f.batches()*86400)/60, f.recovery(f.batches()*monthSeconds)/60)
	}
	return b.String()
}
