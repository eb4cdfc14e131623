/* The identity linearizer: folds, looking them up, and ranges. One boot of one agent, whose
   settled claims are folded into a head in each of REGIONS regions and then leave etcd;
   etcd has the heads that have everything, and may forget the boot.

   Promises: of two frames that exclude each other one at most is answered accepted or
   duplicate, and that one is not answered conflict, too; what was answered accepted is in a
   head or in a claim that stays, so it is found for ever.

   Abstracted: what a claim goes through, and which region is its home (linearizer.pml; here
   a manifest is one step, with its stamp); lists of regions that change (spread.pml). What
   a head consists of is left out.

   Four frames: 0 and 1 are the two hashes of the identity 3..4, frame 2 is 2..3, frame 3
   is 1..2. Two frames exclude each other if their ranges meet and they are not the same
   frame. FRAMES has a bit for each that there is.

   A head is a set of frames with a generation, moved by If-Match. To read it, unite and
   write it again until the condition holds is one step: a union. A region does not answer
   at any moment. Calls claim by what they have looked at, at any earlier moment; with CACHE
   it stays with them for their next claims. A claim may be completed after its caller has
   left. Folders run for ever and may sleep between any two steps. The revision at which a
   boot was forgotten is the number of times that it was, in this epoch.

   etcd is restored from any older copy, as in linearizer.pml. ADD: recoveries begin at any
   time, as when a region is added. A recovery is one step, after etcd has its epoch.

   The README has the mutants, which are chosen with -D. */
#ifndef FRAMES
#define FRAMES 11                 /* a bit per frame: 0, 1 and 3 */
#endif
#ifndef REGIONS
#define REGIONS 3
#endif
#ifndef CALLERS
#define CALLERS 2
#endif
#ifndef FOLDERS
#define FOLDERS 1
#endif
#ifndef MAXR
#define MAXR 0                    /* restores */
#endif
#ifndef MAXE
#define MAXE (MAXR+1)             /* the last epoch */
#endif
#ifndef MAXF
#define MAXF 2                    /* fences of an epoch */
#endif
#ifndef MAXFOLDS
#define MAXFOLDS 2                /* folds that are begun */
#endif
#ifndef FORGETS
#define FORGETS 1                 /* in an epoch */
#endif
#define BIT(f) (1<<(f))
#define STAMP(e, n) ((e)*8 + (n))
#define OTHER_HASH(f) ((f) == 0 -> 2 : ((f) == 1 -> 1 : 0))
#define OTHER_RANGE(f) ((f) < 2 -> 4 : ((f) == 2 -> 11 : 4))
#ifdef NO_RANGES
#define EXCLUDES(f) OTHER_HASH(f)
#else
#define EXCLUDES(f) (OTHER_HASH(f) | OTHER_RANGE(f))
#endif
#define FIRST(f) ((f) < 2 -> 3 : ((f) == 2 -> 2 : 1))
/* the number from which on a set of frames has nothing */
#define END(fs) (((fs) & 3) -> 5 : (((fs) & 4) -> 4 : (((fs) & 8) -> 3 : 0)))
#ifdef ABOVE_IS_THE_LAST
#define ABOVE(fs) (END(fs) -> END(fs) - 1 : 0)
#else
#define ABOVE(fs) END(fs)
#endif

/* etcd: a bit per frame; the heads that have everything, of each region the generation and one, 0 where it is not named; the number from
   which on nothing is folded; how often the boot was forgotten */
byte claimed, found, settled;
byte heads[REGIONS], above, forgotten;
byte ekey = 1;
#if MAXE > 1
byte fence[4], rev;
byte stamp[4];                    /* the manifest's, with its affirmations; 0: there is none */
byte epoch = 1, served = 1;
#define SERVED served
#define EPOCH_IS(e) (ekey == (e))
#define TO_CLAIM rev < MAXF
#define CLAIM_IT rev++; claimed = claimed | BIT(f); fence[f] = rev; n = rev
#define SAME_FENCE (fence[f] == n)
#else
#define SERVED 1
#define EPOCH_IS(e) 1
#define TO_CLAIM 1
#define CLAIM_IT claimed = claimed | BIT(f)
#define SAME_FENCE 1
#endif
#if MAXR
byte cClaimed, cFound, cSettled, cHeads[REGIONS], cAbove, cForgotten, cEkey = 1, cFence[4], cRev;
bool believed = 1;
byte restores;
#else
#define believed 1
#endif
byte folds;                       /* that were begun */

/* S3 */
byte head[REGIONS], gen[REGIONS];

byte ack, refused;                /* answered accepted or duplicate; conflict or range conflict */

#define CLASH(x) ((((x) & 1) && ((x) & 6)) || (((x) & 2) && ((x) & 4)) || (((x) & 4) && ((x) & 8)))
#define ONE_ANSWER (!CLASH(ack) && !(ack & refused))
/* something of each region */
#if REGIONS == 2
#define EACH(x, y) x(0) y x(1)
#elif REGIONS == 3
#define EACH(x, y) x(0) y x(1) y x(2)
#else
#define EACH(x, y) x(0) y x(1) y x(2) y x(3)
#endif
#define HEAD(r) head[r]
#define NAMES(r) heads[r]
#define ALL_HEADS (EACH(HEAD, |))
#define ANY_HEAD (EACH(NAMES, ||))
#define COVERS (EACH(ONE_COVERS, ||))
#define NAMED_COVERS (EACH(ONE_NAMED, ||))
#if REGIONS == 2
#define COUNT(a) ((a[0] != 0) + (a[1] != 0))
#define SET(a, b) a[0] = b[0]; a[1] = b[1]
#define CLEAR(a) a[0] = 0; a[1] = 0
#define SAME(a, b) (a[0] == b[0] && a[1] == b[1])
#elif REGIONS == 3
#define COUNT(a) ((a[0] != 0) + (a[1] != 0) + (a[2] != 0))
#define SET(a, b) a[0] = b[0]; a[1] = b[1]; a[2] = b[2]
#define CLEAR(a) a[0] = 0; a[1] = 0; a[2] = 0
#define SAME(a, b) (a[0] == b[0] && a[1] == b[1] && a[2] == b[2])
#else
#define COUNT(a) ((a[0] != 0) + (a[1] != 0) + (a[2] != 0) + (a[3] != 0))
#define SET(a, b) a[0] = b[0]; a[1] = b[1]; a[2] = b[2]; a[3] = b[3]
#define CLEAR(a) a[0] = 0; a[1] = 0; a[2] = 0; a[3] = 0
#define SAME(a, b) (a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3])
#endif
/* what was answered accepted is in a head or a claim that stays */
#define NOTHING_LOST (!believed || !(ack & ~(ALL_HEADS | found | settled)))
#define ANY (claimed | found | settled)

inline forget(fs) {
	claimed = claimed & ~(fs); found = found & ~(fs); settled = settled & ~(fs);
#if MAXE > 1
	fence[0] = ((fs) & 1 -> 0 : fence[0]); fence[1] = ((fs) & 2 -> 0 : fence[1]);
	fence[2] = ((fs) & 4 -> 0 : fence[2]); fence[3] = ((fs) & 8 -> 0 : fence[3])
#endif
}

/* how an answer is found in what was looked at */
#ifdef NO_DIGEST
#define IS_FOLDED(f) (looked & (BIT(f) | OTHER_HASH(f)))
#define IS_REFUSED(f) (looked & EXCLUDES(f) & ~OTHER_HASH(f))
#else
#define IS_FOLDED(f) (looked & BIT(f))
#ifdef FOLDED_RANGES_UNCHECKED
#define IS_REFUSED(f) (looked & OTHER_HASH(f))
#else
#define IS_REFUSED(f) (looked & EXCLUDES(f))
#endif
#endif
/* has a call looked at one of the heads that etcd names, or a later one of the same region? */
#define ONE_COVERS(r) (heads[r] && at[r] >= heads[r])
#ifdef HEADS_UNCHECKED
#define LOOKED_AT_HEADS (COUNT(at) != 0)
#else
#define LOOKED_AT_HEADS COVERS
#endif
#ifdef FORGOTTEN_UNCHECKED
#define LOOKED_SINCE (since != 0)
#else
#ifdef FORGOTTEN_IN_ANY_EPOCH
#define LOOKED_SINCE (since > forgotten)
#else
#define LOOKED_SINCE (since > forgotten && sinceEpoch == e)
#endif
#endif
/* the same of what etcd named, or of how often the boot was forgotten when etcd was asked */
#define KNOWS ((COUNT(named) && NAMED_COVERS) || (!COUNT(named) && since > asked && sinceEpoch == e))
#define ONE_NAMED(r) (named[r] && at[r] >= named[r])
#define IS_FREE (!IS_FOLDED(f) && !IS_REFUSED(f))
#define SEEN ((ANY_HEAD && (FIRST(f) >= above || (IS_FREE && LOOKED_AT_HEADS))) || (!ANY_HEAD && IS_FREE && LOOKED_SINCE))
#ifdef CLAIMED_RANGES_UNCHECKED
#define FREE_CLAIM(f) !(ANY & (BIT(f) | OTHER_HASH(f)))
#else
#define FREE_CLAIM(f) !(ANY & (BIT(f) | EXCLUDES(f)))
#endif
#ifdef ALL_BUT_TWO
#define ENOUGH (REGIONS-2)
#else
#define ENOUGH (REGIONS-1)
#endif

active [CALLERS] proctype Call() {
	byte f, e, n, r;
	/* what was looked at: frames, of which regions' heads (the generation and one), how often the boot was forgotten before (and one) */
	byte looked, at[REGIONS], since, sinceEpoch;
	byte named[REGIONS], asked;
again:
	atomic { e = 0; f = 0; n = 0; r = 0; CLEAR(named); asked = 0;
		if
#ifdef CACHE
		:: looked || since || COUNT(at)
#endif
		:: looked = 0; CLEAR(at); since = 0; sinceEpoch = 0
		fi };
end:
	atomic { believed && EPOCH_IS(SERVED) -> e = SERVED;
		if
		:: (FRAMES & 1) -> f = 0
		:: (FRAMES & 2) -> f = 1
		:: (FRAMES & 4) -> f = 2
		:: (FRAMES & 8) -> f = 3
		fi };
claim:
	/* one transaction: in the epoch; answered by a claim; or nothing excludes it, and the heads are those that were looked at; or which are they? */
	atomic {
		if
		:: !EPOCH_IS(e) || !believed -> goto again
		:: else
		fi;
		if
		:: settled & BIT(f) -> ack = ack | BIT(f); goto again
		:: settled & EXCLUDES(f) -> refused = refused | BIT(f); goto again
#if MAXE > 1
		:: (claimed | found) & BIT(f) -> n = fence[f]; goto manifest
#else
		:: (claimed | found) & BIT(f) -> goto manifest
#endif
		:: (claimed | found) & EXCLUDES(f) -> goto again
		:: FREE_CLAIM(f) && TO_CLAIM && SEEN ->
			if
			:: !ANY_HEAD -> SET(heads, at); above = ABOVE(looked)
			:: else
			fi;
			CLAIM_IT; goto manifest
		:: FREE_CLAIM(f) && !SEEN -> SET(named, heads); asked = forgotten
		:: goto again
		fi };
	/* look: one of the heads that etcd names, or those of all regions but one, which have to say the same */
	atomic {
		if
		:: KNOWS -> goto decide                                              /* it has looked at enough before */
		:: else -> looked = 0; CLEAR(at); since = 0; sinceEpoch = 0
		fi };
	if
	:: COUNT(named) ->
		if
		:: r = 0
		:: r = 1
#if REGIONS > 2
		:: r = 2
#endif
#if REGIONS > 3
		:: r = 3
#endif
		:: goto away
		fi;
		atomic {
			if
#ifdef HEAD_NOT_NAMED
			:: looked = head[r]; SET(at, named)
#else
			:: named[r] && gen[r] + 1 >= named[r] -> looked = head[r]; at[r] = gen[r] + 1
			:: else -> goto away
#endif
			fi }
	:: else ->
		do
		:: r < REGIONS ->
			if
			:: atomic {
				if
				:: COUNT(at) && looked != head[r] -> 
#ifdef DIFFERENT_HEADS
					looked = looked | head[r]
#else
					goto away                        /* a folder brings them to the same */
#endif
				:: else -> looked = head[r]
				fi;
				at[r] = gen[r] + 1; r++ }
			:: r++
			fi
		:: else -> break
		od;
		atomic {
			if
			:: COUNT(at) >= ENOUGH -> since = asked + 1; sinceEpoch = e
			:: else -> goto away
			fi }
	fi;
decide:
	atomic { CLEAR(named); asked = 0; r = 0;
		if
		:: IS_FOLDED(f) -> ack = ack | BIT(f); goto again
		:: !IS_FOLDED(f) && IS_REFUSED(f) -> refused = refused | BIT(f); goto again
		:: IS_FREE -> goto claim
		fi };
away:
	atomic { looked = 0; CLEAR(at); since = 0; sinceEpoch = 0; goto again };
manifest:
#if MAXE > 1
	/* created, or affirmed */
	if
	:: atomic { stamp[f] = (stamp[f] < STAMP(e, n) -> STAMP(e, n) : stamp[f]) }
	:: goto again
	fi;
#endif
	if
	:: atomic { EPOCH_IS(e) && ((claimed | found) & BIT(f)) && SAME_FENCE ->
		claimed = claimed & ~BIT(f); found = found & ~BIT(f); settled = settled | BIT(f);
		if
		:: believed -> ack = ack | BIT(f)
		:: else
		fi;
		goto again }
	:: goto again
	fi
}

#if MAXE > 1
#define AFFIRMED(f) stamp[f] = (stamp[f] < STAMP(ekey, fence[f]) -> STAMP(ekey, fence[f]) : stamp[f])
#else
#define AFFIRMED(f) skip
#endif
inline completed(f) { AFFIRMED(f); claimed = claimed & ~BIT(f); found = found & ~BIT(f); settled = settled | BIT(f) }
#define CLAIMED(f) (((claimed | found) & BIT(f)) && EPOCH_IS(SERVED))

/* claims that their callers complete when they have left, or release; and the boot is forgotten */
active proctype Linearizer() {
end:
	do
	:: atomic { CLAIMED(0) -> completed(0) }
	:: atomic { CLAIMED(1) -> completed(1) }
	:: atomic { CLAIMED(2) -> completed(2) }
	:: atomic { CLAIMED(3) -> completed(3) }
	:: atomic { (claimed & 1) && EPOCH_IS(SERVED) -> forget(1) }
	:: atomic { (claimed & 2) && EPOCH_IS(SERVED) -> forget(2) }
	:: atomic { (claimed & 4) && EPOCH_IS(SERVED) -> forget(4) }
	:: atomic { (claimed & 8) && EPOCH_IS(SERVED) -> forget(8) }
	:: atomic { believed && EPOCH_IS(SERVED) && ANY_HEAD && !ANY && forgotten < FORGETS ->
		CLEAR(heads); above = 0; forgotten++ }
	od
}

#ifdef FOLDS_CLAIMED
#define FOLDABLE (settled | claimed)
#else
#define FOLDABLE settled
#endif
#ifdef FOLDS_THE_COPY
#define READABLE EPOCH_IS(SERVED)
#else
#define READABLE (believed && EPOCH_IS(SERVED))
#endif
#ifdef ONE_REGION
#define COPIES 1
#else
#define COPIES 2
#endif
#ifdef HEADS_NOT_COMPARED
#define SAME_HEADS 1
#else
#define SAME_HEADS SAME(heads, named)
#endif
#ifdef ABOVE_OF_THE_ADDED
#define TO_ABOVE ABOVE(fs)
#else
#define TO_ABOVE ABOVE(has)
#endif

#ifdef NO_IF_MATCH
#define UNITE(r) gen[r] = (head[r] == want -> gen[r] : was[r] + 1); head[r] = want
#else
#define UNITE(r) gen[r] = ((want & ~head[r]) -> gen[r] + 1 : gen[r]); head[r] = head[r] | want
#endif
#define IS_NAMED(r) ((there & BIT(r)) && named[r] && gen[r] + 1 >= named[r])
#define READ_FROM(r) ((there & BIT(r)) -> head[r] : 0)
#if REGIONS == 2
#define HOW_MANY ((there & 1) + ((there & 2) != 0))
#elif REGIONS == 3
#define HOW_MANY ((there & 1) + ((there & 2) != 0) + ((there & 4) != 0))
#else
#define HOW_MANY ((there & 1) + ((there & 2) != 0) + ((there & 4) != 0) + ((there & 8) != 0))
#endif

active [FOLDERS] proctype Folder() {
	byte e, fs, named[REGIONS], r, want, has, there, moved[REGIONS];
#ifdef NO_IF_MATCH
	byte was[REGIONS];
#endif
again:
	atomic { e = 0; fs = 0; CLEAR(named); r = 0; want = 0; has = 0; there = 0; CLEAR(moved) };
end:
	atomic { READABLE && folds < MAXFOLDS -> folds++; e = ekey; SET(named, heads);
		/* some or all of them: a folder takes what is old enough. Or none, of heads that differ */
		if
		:: FOLDABLE -> fs = FOLDABLE
		:: (FOLDABLE & 3) && (FOLDABLE & 12) -> fs = FOLDABLE & 3
		:: (FOLDABLE & 3) && (FOLDABLE & 12) -> fs = FOLDABLE & 12
		:: !FOLDABLE
		fi };
#ifdef CLAIMS_FIRST
	atomic {
		if
		:: believed && EPOCH_IS(e) && SAME_HEADS -> forget(fs)
		:: else -> goto again
		fi };
#endif
	/* the heads of all that answer, one that etcd names among them, or all but one. Later ones of some of them would have more, and do no harm */
	atomic {
		do
		:: r < REGIONS && !(there & BIT(r)) -> there = there | BIT(r)
		:: r < REGIONS -> r++
		:: else -> break
		od;
		if
		:: COUNT(named) && (EACH(IS_NAMED, ||))
		:: !COUNT(named) && HOW_MANY >= ENOUGH
#ifdef FOLD_WITHOUT_NAMED
		:: there != 0
#endif
		:: else -> goto again
		fi;
		want = (EACH(READ_FROM, |)) | fs; r = 0;
#ifdef NO_IF_MATCH
		SET(was, gen)
#endif
	};
	/* each is brought to that */
	do
	:: there & BIT(r) ->
		if
		:: atomic { UNITE(r); has = head[r]; moved[r] = gen[r] + 1; there = there & ~BIT(r) }
#ifdef UNKNOWN_IS_MOVED
		:: atomic { has = want; moved[r] = gen[r] + 2; there = there & ~BIT(r) }
#endif
		:: atomic { there = there & ~BIT(r) }
		fi
	:: there && !(there & BIT(r)) -> r++
	:: !there -> break
	od;
	/* one transaction: etcd's heads and the claims are what they were. Applied, answered or not */
	atomic { r = 0;
		if
		:: COUNT(moved) >= COPIES && fs && EPOCH_IS(e) && SAME_HEADS && !(fs & ~FOLDABLE) -> SET(heads, moved); above = TO_ABOVE; forget(fs)
#ifdef CLAIMS_FIRST
		:: COUNT(moved) >= COPIES && fs && EPOCH_IS(e) && SAME_HEADS -> SET(heads, moved); above = TO_ABOVE
#endif
		:: skip
		fi;
		goto again }
}

#if MAXR
active proctype Disaster() {
end:
	do
	:: atomic { restores < MAXR && believed -> cClaimed = claimed; cFound = found; cSettled = settled; SET(cHeads, heads); cAbove = above; cForgotten = forgotten; cRev = rev; cEkey = ekey;
		cFence[0] = fence[0]; cFence[1] = fence[1]; cFence[2] = fence[2]; cFence[3] = fence[3] }
	:: atomic { restores < MAXR -> restores++; believed = 0;
		claimed = cClaimed; found = cFound; settled = cSettled; SET(heads, cHeads); above = cAbove; forgotten = cForgotten; rev = cRev; ekey = cEkey;
		fence[0] = cFence[0]; fence[1] = cFence[1]; fence[2] = cFence[2]; fence[3] = cFence[3];
		if
		:: restores == MAXR -> cClaimed = 0; cFound = 0; cSettled = 0; CLEAR(cHeads); cAbove = 0; cForgotten = 0; cRev = 0; cEkey = 0; cFence[0] = 0; cFence[1] = 0; cFence[2] = 0; cFence[3] = 0
		:: else
		fi }
	od
}
#define FORGOT !believed
#else
#define FORGOT 0
#endif

#if MAXE > 1
#ifdef HEADS_OF_THE_COPY
#define NO_HEADS skip
#else
#define NO_HEADS CLEAR(heads); above = 0; forgotten = 0
#endif
#ifdef RECOVERY_IGNORES_RANGES
#define AGAINST(f) OTHER_HASH(f)
#else
#define AGAINST(f) EXCLUDES(f)
#endif
#ifdef RECOVERY_IGNORES_FOLDS
#define IN_FOLDS 0
#else
#define IN_FOLDS ALL_HEADS
#endif
#ifdef RECOVERY_LEAVES_HEADS
#define BRING(r) skip
#else
#define BRING(r) gen[r] = (head[r] == h -> gen[r] : gen[r] + 1); head[r] = h
#endif
/* f is found: it has a manifest, is not folded, nothing that is folded excludes it, and nothing with a higher stamp does that is found */
#define FINDABLE(f) (stamp[f] != 0 && !((IN_FOLDS | seen) & BIT(f)))
#define HIGHEST(f) (FINDABLE(f) && (!FINDABLE(0) || stamp[f] >= stamp[0]) && (!FINDABLE(1) || stamp[f] >= stamp[1]) && (!FINDABLE(2) || stamp[f] >= stamp[2]) && (!FINDABLE(3) || stamp[f] >= stamp[3]))
#define TAKE(f) seen = seen | BIT(f); found = ((found | IN_FOLDS) & AGAINST(f) -> found : found | BIT(f))

active proctype Recovery() {
	byte inc, h, seen;
end:
	do
	:: atomic {
#ifdef ADD
		epoch < MAXE ->
#else
		FORGOT && epoch < MAXE ->
#endif
		epoch++; ekey = epoch;
#if MAXR
		inc = restores
#endif
		};
		/* every region is brought to what any of them has; then the scan of the manifests, the highest stamp first */
		atomic {
			if
#if MAXR
			:: restores != inc
			:: restores == inc ->
#else
			:: true ->
#endif
				forget(15); NO_HEADS;
				h = ALL_HEADS; EACH(BRING, ;);
				do
				:: HIGHEST(0) -> TAKE(0)
				:: HIGHEST(1) -> TAKE(1)
				:: HIGHEST(2) -> TAKE(2)
				:: HIGHEST(3) -> TAKE(3)
				:: !FINDABLE(0) && !FINDABLE(1) && !FINDABLE(2) && !FINDABLE(3) -> break
				od;
				rev = (found -> 1 : 0);
				fence[0] = (found & 1 -> 1 : 0); fence[1] = (found & 2 -> 1 : 0); fence[2] = (found & 4 -> 1 : 0); fence[3] = (found & 8 -> 1 : 0);
				served = epoch;
#if MAXR
				believed = 1
#endif
			fi;
			inc = 0; h = 0; seen = 0 }
	od
}
#endif

active proctype Monitor() {
end:
	do
	:: atomic { !(ONE_ANSWER && NOTHING_LOST) -> assert(ONE_ANSWER); assert(NOTHING_LOST) }
	od
}
