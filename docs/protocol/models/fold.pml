/* The identity linearizer, its folds and ranges: one boot of one agent, whose settled
   claims are folded into an object in S3 and then leave etcd, and identities whose
   ranges overlap. What one claim goes through is in linearizer.pml; here a manifest is
   one step, with its stamp, and a region is not told from another.

   Four frames: 0 and 1 are the two hashes of the identity 1..2, frame 2 is 2..3, frame
   3 is 3..4. Two frames exclude each other if their ranges meet and they are not the
   same frame. FRAMES says which of them there are.

   The fold of a boot is one head in S3 that moves by If-Match, with a generation, and
   etcd has the generation that it has last seen moved. Linearizers look identities up
   in a cache of the head, which was read at any earlier moment. Folders run for ever
   and may sleep between any two steps, which is a move of the head that comes late, or
   whose answer is lost. etcd is restored from any older copy, as in linearizer.pml.

   The README has the mutants, which are chosen with -D. */
#ifndef FRAMES
#define FRAMES 11                 /* a bit per frame: 0, 1 and 3 */
#endif
#ifndef CALLERS
#define CALLERS 2
#endif
#ifndef FOLDERS
#define FOLDERS 1
#endif
#ifndef MAXR
#define MAXR 1                    /* restores */
#endif
#ifndef MAXF
#define MAXF 2                    /* fences of an epoch */
#endif
#ifndef MAXG
#define MAXG 2                    /* moves of the head */
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

/* etcd, and a copy of it: a bit per frame */
byte claimed, bound, settled;
byte fence[4];
byte gen, rev, ekey = 1;
byte cClaimed, cBound, cSettled, cFence[4], cGen, cRev, cEkey = 1;

bool believed = 1;
byte served = 1, epoch = 1, restores;

byte stamp[4];                    /* the manifest's, with its affirmations; 0: there is none */
byte head, headGen;               /* the fold: a bit per frame, which stands for the identity and its digest */
byte cache, cacheGen;             /* of a linearizer */

byte ack, refused;                /* told accepted or duplicate; told conflict or range conflict */

#define CLASH(x) ((((x) & 1) && ((x) & 6)) || (((x) & 2) && ((x) & 4)) || (((x) & 4) && ((x) & 8)))
#define ONE_ANSWER (!CLASH(ack) && !(ack & refused))
/* what is acknowledged is in the fold or a claim that stays */
#define NOTHING_LOST (!believed || !(ack & ~(head | bound | settled)))

#define ANY (claimed | bound | settled)
inline forget(fs) {
	claimed = claimed & ~(fs); bound = bound & ~(fs); settled = settled & ~(fs);
	fence[0] = ((fs) & 1 -> 0 : fence[0]); fence[1] = ((fs) & 2 -> 0 : fence[1]);
	fence[2] = ((fs) & 4 -> 0 : fence[2]); fence[3] = ((fs) & 8 -> 0 : fence[3])
}

/* how an answer is found in the cache */
#ifdef NO_DIGEST
#define IS_FOLDED(f) (cache & (BIT(f) | OTHER_HASH(f)))
#define IS_REFUSED(f) (cache & EXCLUDES(f) & ~OTHER_HASH(f))
#else
#define IS_FOLDED(f) (cache & BIT(f))
#ifdef FOLDED_RANGES_UNCHECKED
#define IS_REFUSED(f) (cache & OTHER_HASH(f))
#else
#define IS_REFUSED(f) (cache & EXCLUDES(f))
#endif
#endif
#ifdef CACHE_UNCHECKED
#define CACHE_IS_NEW 1
#else
#define CACHE_IS_NEW (cacheGen >= gen)
#endif
#ifdef GENERATION_UNCHECKED
#define SAME_GENERATION 1
#else
#define SAME_GENERATION (gen == g)
#endif
#ifdef RANGE_CHECKED_BEFORE
#define MAY_CLAIM (believed && ekey == e && SAME_GENERATION && !(ANY & (BIT(f) | OTHER_HASH(f))) && rev < MAXF)
#define FREE_RANGE !(ANY & OTHER_RANGE(f))
#else
#define MAY_CLAIM (believed && ekey == e && SAME_GENERATION && !(ANY & (BIT(f) | EXCLUDES(f))) && rev < MAXF)
#define FREE_RANGE 1
#endif

active [CALLERS] proctype Call() {
	byte f, e, g, n;
again:
	atomic { e = 0; g = 0; n = 0; f = 0 };
end:
	/* look: first etcd, with the generation, then a cache that is not older */
	atomic { believed && CACHE_IS_NEW -> e = served; g = gen;
		if
		:: (FRAMES & 1) -> f = 0
		:: (FRAMES & 2) -> f = 1
		:: (FRAMES & 4) -> f = 2
		:: (FRAMES & 8) -> f = 3
		fi;
		if
		:: IS_FOLDED(f) -> ack = ack | BIT(f); goto again
		:: !IS_FOLDED(f) && IS_REFUSED(f) -> refused = refused | BIT(f); goto again
		:: settled & BIT(f) -> ack = ack | BIT(f); goto again
		:: settled & EXCLUDES(f) -> refused = refused | BIT(f); goto again
		:: (claimed | bound) & BIT(f) -> n = fence[f]; goto manifest
		:: !IS_FOLDED(f) && !IS_REFUSED(f) && !(ANY & BIT(f)) && FREE_RANGE
		:: (claimed | bound) & EXCLUDES(f) -> goto again
		fi };
	/* claim: one transaction, that nothing excludes it, and that the generation is the one looked at */
	if
	:: atomic { MAY_CLAIM -> rev++; claimed = claimed | BIT(f); fence[f] = rev; n = rev }
	:: goto again
	fi;
manifest:
	/* created, or affirmed */
	if
	:: atomic { stamp[f] = (stamp[f] < STAMP(e, n) -> STAMP(e, n) : stamp[f]) }
	:: goto again
	fi;
	if
	:: atomic { ekey == e && ((claimed | bound) & BIT(f)) && fence[f] == n ->
		claimed = claimed & ~BIT(f); bound = bound & ~BIT(f); settled = settled | BIT(f);
		if
		:: believed -> ack = ack | BIT(f)
		:: else
		fi;
		goto again }
	:: goto again
	fi
}

#ifdef NO_IF_MATCH
#define HEAD_IS(n) 1
#else
#define HEAD_IS(n) (headGen == (n))
#endif

/* releases, and the linearizer's reads of the head */
active proctype Linearizer() {
end:
	do
	:: atomic { (claimed & 1) && ekey == served -> forget(1) }
	:: atomic { (claimed & 2) && ekey == served -> forget(2) }
	:: atomic { (claimed & 4) && ekey == served -> forget(4) }
	:: atomic { (claimed & 8) && ekey == served -> forget(8) }
	:: atomic { cacheGen != headGen -> cache = head; cacheGen = headGen }
	od
}

#ifdef FOLDS_CLAIMED
#define FOLDABLE (settled | claimed)
#else
#define FOLDABLE settled
#endif
#ifdef FOLDS_THE_COPY
#define READABLE 1
#else
#define READABLE believed
#endif

active [FOLDERS] proctype Folder() {
	byte e, g, fs, was, wasGen;
again:
	atomic { e = 0; g = 0; fs = 0; was = 0; wasGen = 0 };
end:
	atomic { READABLE && FOLDABLE && headGen < MAXG -> e = ekey; g = gen;
		/* some or all of them: a folder takes what is old enough */
		if
		:: fs = FOLDABLE
		:: (FOLDABLE & 3) -> fs = FOLDABLE & 3
		fi };
#ifdef CLAIMS_FIRST
	atomic {
		if
		:: believed && ekey == e && gen == g -> forget(fs)
		:: else -> goto again
		fi };
#endif
	atomic { was = head; wasGen = headGen };
	if
	:: atomic { HEAD_IS(wasGen) && headGen < MAXG -> head = was | fs; headGen++ }
#ifdef UNKNOWN_IS_MOVED
	:: skip
#endif
	:: goto again
	fi;
	/* one transaction: generation and claims are what they were. Applied, answered or not */
	if
	:: atomic { ekey == e && gen == g && !(fs & ~settled) -> gen = wasGen + 1; forget(fs); goto again }
#ifdef FOLDS_CLAIMED
	:: atomic { ekey == e && gen == g -> gen = wasGen + 1; forget(fs); goto again }
#endif
	:: goto again
	fi
}

active proctype Disaster() {
end:
	do
	:: atomic { restores < MAXR && believed -> cClaimed = claimed; cBound = bound; cSettled = settled; cGen = gen; cRev = rev; cEkey = ekey;
		cFence[0] = fence[0]; cFence[1] = fence[1]; cFence[2] = fence[2]; cFence[3] = fence[3] }
	:: atomic { restores < MAXR -> restores++; believed = 0;
		claimed = cClaimed; bound = cBound; settled = cSettled; gen = cGen; rev = cRev; ekey = cEkey;
		fence[0] = cFence[0]; fence[1] = cFence[1]; fence[2] = cFence[2]; fence[3] = cFence[3];
		if
		:: restores == MAXR -> cClaimed = 0; cBound = 0; cSettled = 0; cGen = 0; cRev = 0; cEkey = 0; cFence[0] = 0; cFence[1] = 0; cFence[2] = 0; cFence[3] = 0
		:: else
		fi }
	od
}

#ifdef GENERATION_OF_THE_COPY
#define TAKE_GENERATION skip
#else
#define TAKE_GENERATION gen = hg
#endif
#ifdef RECOVERY_IGNORES_RANGES
#define AGAINST(f) OTHER_HASH(f)
#else
#define AGAINST(f) EXCLUDES(f)
#endif
#ifdef RECOVERY_IGNORES_FOLDS
#define FOLDED 0
#else
#define FOLDED h
#endif
/* f is found: it has a manifest, is not folded, nothing that is folded excludes it, and nothing with a higher stamp does that is found */
#define FINDABLE(f) (stamp[f] != 0 && !((FOLDED | done) & BIT(f)))
#define HIGHEST(f) (FINDABLE(f) && (!FINDABLE(0) || stamp[f] >= stamp[0]) && (!FINDABLE(1) || stamp[f] >= stamp[1]) && (!FINDABLE(2) || stamp[f] >= stamp[2]) && (!FINDABLE(3) || stamp[f] >= stamp[3]))
#define TAKE(f) done = done | BIT(f); bound = ((bound | FOLDED) & AGAINST(f) -> bound : bound | BIT(f))

active proctype Recovery() {
	byte inc, h, hg, done;
end:
	do
	:: atomic { !believed && epoch <= MAXR -> inc = restores; epoch++ };
		atomic { ekey = epoch; forget(15); rev = 0 };
		atomic { h = head; hg = headGen };
		/* the scan of the manifests; the highest stamp first */
		atomic {
			if
			:: restores != inc
			:: restores == inc -> TAKE_GENERATION;
				do
				:: HIGHEST(0) -> TAKE(0)
				:: HIGHEST(1) -> TAKE(1)
				:: HIGHEST(2) -> TAKE(2)
				:: HIGHEST(3) -> TAKE(3)
				:: !FINDABLE(0) && !FINDABLE(1) && !FINDABLE(2) && !FINDABLE(3) -> break
				od;
				rev = 1;
				fence[0] = (bound & 1 -> 1 : 0); fence[1] = (bound & 2 -> 1 : 0); fence[2] = (bound & 4 -> 1 : 0); fence[3] = (bound & 8 -> 1 : 0);
				done = 0; believed = 1; served = epoch
			fi;
			inc = 0; h = 0; hg = 0 }
	od
}

active proctype Monitor() {
end:
	do
	:: atomic { !(ONE_ANSWER && NOTHING_LOST) -> assert(ONE_ANSWER); assert(NOTHING_LOST) }
	od
}
