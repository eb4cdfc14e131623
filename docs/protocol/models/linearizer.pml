/* The identity linearizer: what a claim goes through. Claims, take-over, replace, release,
   settling and folding; late transactions; etcd restored from any older copy; recoveries;
   a region that is retired. One identity, two frames (hashes 1 and 2), REGIONS regions
   with a manifest and a journal each, of which region 1 may be retired.

   Promises: no two frames are answered accepted or duplicate, and none of these is
   answered conflict, too; what was answered so has its manifest and its entry in a region;
   one region counts it; folds do not contradict each other; nothing stays claimed.

   Abstracted: a fold is one object in S3, looked up and written in one step with the claim
   (fold.pml has the heads of regions and what etcd knows of them, spread.pml has them when
   the list of regions changes). The record of the epoch is one object, too. Left out: the
   blob and its marker (gc.pml), ranges (fold.pml), coordinators as processes: what one of
   them has read or knows is a call's.

   A claim in etcd is NONE, CLAIMED, BOUND (claimed, and the hash is fixed: it is folded with
   a home that was retired), RECOVERED (claimed, and hash and home are fixed: a recovery
   found its manifest, and somebody may have been answered), DURABLE (its home's manifest
   stands at the claim's stamp) or SETTLED (the home's journal has it, too). A stamp is the
   pair of epoch and fence. The fence is the etcd revision that made the claim, so it grows
   within an epoch; the epoch lies in S3 and grows over restores.

   Calls run for ever: each picks a region and a frame, as a collector does for an agent,
   or a reconciler for a manifest that it found. One request is one atomic step: applied
   and answered, or applied and its answer lost, or late, and it lands at any time or
   never. A call that is not scheduled any more is a crash.

   A restore puts etcd back to what it was at any earlier moment, its epoch included, under
   another cluster id (the number of restores). Until a recovery has opened it again it
   takes transactions as before, also from coordinators that have noticed nothing; only,
   whoever reads an answer sees the other cluster id and does not believe it. Keepers
   recover and retire, and may die between any two steps.

   HOMES: a caller always sends the same frame through the same region.
   ADD: recoveries begin at any time, as when a region is added.
   FOLD: what is settled is folded, and leaves etcd.
   RETIRE: region 1 is retired at any time, lost or at work. FORGET: also where etcd lacks
   what was decided. Then, and where etcd is lost before what region 1 had is folded, what
   had its home there may be forgotten, and nothing else.
   QUIET: at any moment everything but keepers and reconcilers stops for ever, agents and
   late requests included. Then nothing may stay claimed.

   The README has the mutants, which are chosen with -D. */
#ifndef CALLERS
#define CALLERS 2
#endif
#ifndef REGIONS
#define REGIONS 2
#endif
#ifndef MAXR
#define MAXR 1                    /* restores */
#endif
#ifndef KEEPERS
#define KEEPERS 1
#endif
#ifndef MAXE
#ifdef RETIRE
#define MAXE (MAXR+3)             /* the last epoch: each restore has one, and a retirement, and a recovery that died */
#else
#define MAXE (MAXR+2)
#endif
#endif
#ifndef MAXF
#define MAXF 2                    /* fences of an epoch */
#endif
#ifndef LATE
#define LATE 1                    /* requests that are late at one time, 0 to 2 */
#endif
#define BIT(i) (1<<(i))
#define STAMP(e, f) ((e)*8 + (f))
#ifdef STAMP_WITHOUT_FENCE
#define STAMPED(e, f) STAMP(e, 0)
#else
#define STAMPED(e, f) STAMP(e, f)
#endif

#define NONE      0
#define CLAIMED   1
#define BOUND     2
#define RECOVERED 3
#define DURABLE   4
#define SETTLED   5

/* etcd, and a copy of it */
byte state, hash, home, fence;    /* the claim */
byte rev;                         /* the last fence */
byte ekey = 1;                    /* the epoch */
bool filled = 1;                  /* its recovery has ended */
byte cState, cHash, cHome, cFence, cRev, cEkey = 1;
bool cFilled = 1;
#if LATE
bool left, cLeft;                 /* the claim is of an earlier epoch: a recovery has not deleted it yet */
#define WRITTEN(x) left = x
#define COPY cLeft = left
#define RESTORE left = cLeft
#define CLEAN cLeft = 0
#else
#define WRITTEN(x) skip
#define COPY skip
#define RESTORE skip
#define CLEAN skip
#endif
/* the claim's stamp has this epoch. Only a retirement asks for it */
#ifdef RETIRE
byte made, cMade;
#define MADE(e) made = e
#define COPY_MADE cMade = made
#define RESTORE_MADE made = cMade
#define CLEAN_MADE cMade = 0
#else
#define MADE(e) skip
#define COPY_MADE skip
#define RESTORE_MADE skip
#define CLEAN_MADE skip
#endif

byte restores;                    /* the cluster id of etcd */
bool believed = 1;                /* coordinators serve under it */
byte served = 1;                  /* the epoch that they serve, or served until they noticed */

/* S3: the epoch's record, moved by If-Match, and the fold */
byte epoch = 1, cluster;          /* the epoch, and the cluster id that it was made on */
byte openEpoch = 1, openCluster;  /* the last one that somebody found filled on its cluster */
byte gone;                        /* the epoch without region 1; 0: it was not retired */
bool done;                        /* an epoch was filled since */
byte fold, foldHome;              /* the hash, 0 for none */

byte man[REGIONS];                /* 0 none, else the manifest's hash ... */
byte stamp[REGIONS];              /* ... and the highest stamp that it was written or affirmed with */
byte entry[REGIONS];              /* a bit per hash: the journal has an entry whose home is this region */

/* what was answered, a bit per hash: accepted or duplicate; conflict. ack1, refused1: by what had its home in region 1 */
byte ack, refused, ack1, refused1;
bool kept;                        /* what region 1 had is folded */
bool excused;                     /* what had its home in region 1 may be forgotten */
bool quiet;

/* requests that are late */
#define NOTHING  0
#define MANIFEST 1
#define AFFIRM   2
#define CLAIM    3
#define TAKE     4
#define COMPLETE 5
#define SETTLE   6
#define DROP     7
#define LATES    (LATE+1)
byte lKind[LATES], lRegion[LATES], lHash[LATES], lEpoch[LATES], lFence[LATES];

#define NOT_BOTH(x) ((x) != (BIT(1)|BIT(2)))
#define ANSWERED (ack | ack1)
#define ONE_ANSWER (NOT_BOTH(ANSWERED) && !((refused | refused1) & ANSWERED))
#if REGIONS == 3
#define COUNTS_ELSEWHERE(h) ((man[0] == h && (entry[0] & BIT(h))) || (man[2] == h && (entry[2] & BIT(h))))
#define OTHERS_COUNT_ONCE (NOT_BOTH(entry[0] | entry[2]) && (!entry[0] || !entry[2]))
#define ELSEWHERE (entry[0] | entry[2])
#else
#define COUNTS_ELSEWHERE(h) (man[0] == h && (entry[0] & BIT(h)))
#define OTHERS_COUNT_ONCE NOT_BOTH(entry[0])
#define ELSEWHERE entry[0]
#endif
/* what is acknowledged is a manifest's, and counts in that region */
#define KEPT(h) ((!(ack & BIT(h)) || COUNTS_ELSEWHERE(h)) && (!(ack1 & BIT(h)) || (man[1] == h && (entry[1] & BIT(h)))))
#define COUNTED_ONCE (OTHERS_COUNT_ONCE && NOT_BOTH(entry[1]) && (gone || !entry[1] || !ELSEWHERE))

#define GONE(e) (gone && (e) >= gone)
#define TAKES_PART(r, e) ((r) != 1 || !GONE(e))
#ifdef RETIRED_MAY_CLAIM
#define MAY_ASK(r, e) (!quiet)
#else
#define MAY_ASK(r, e) (!quiet && TAKES_PART(r, e))
#endif
#ifdef EPOCH_UNCHECKED
#define IN_EPOCH(e) (e)
#else
#define IN_EPOCH(e) (ekey == (e))
#endif
#ifdef COMPLETE_UNFENCED
#define SAME_CLAIM(h, r, f) (hash == (h))
#else
#define SAME_CLAIM(h, r, f) (fence == (f) && hash == (h) && home == (r))
#endif
#ifdef ANSWERS_OF_THE_COPY
#define BELIEVED 1
#else
#define BELIEVED believed
#endif
#define OPEN (state == CLAIMED || state == BOUND || state == RECOVERED)
/* what the fold says of hash h, in epoch e */
#ifdef BOUND_IS_FREE
#define FOLDED_OTHER(h, e) (fold && fold != (h) && !(foldHome == 1 && GONE(e)))
#define UNFOLDED(e)        (!fold || (foldHome == 1 && GONE(e)))
#else
#define FOLDED_OTHER(h, e) (fold && fold != (h))
#define UNFOLDED(e)        (!fold)
#endif
#define FOLDED(h, e)       (fold == (h) && !(foldHome == 1 && GONE(e)))
#define FOLDED_LOST(h, e)  (fold == (h) && foldHome == 1 && GONE(e))
#ifdef TAKE_RECOVERED
#define TAKEABLE (state == CLAIMED || state == BOUND || state == RECOVERED)
#else
#ifdef TAKE_DURABLE
#define TAKEABLE (state == CLAIMED || state == BOUND || state == DURABLE)
#else
#define TAKEABLE (state == CLAIMED || state == BOUND)
#endif
#endif
#ifdef RELEASE_RECOVERED
#define RELEASABLE OPEN
#else
#define RELEASABLE (state == CLAIMED || state == BOUND)
#endif
#ifdef REPLACE_BOUND
#define REPLACEABLE (state == CLAIMED || state == BOUND)
#else
#define REPLACEABLE (state == CLAIMED)
#endif
#define MAY_CLAIM(e)             (IN_EPOCH(e) && state == NONE && rev < MAXF)
#define MAY_TAKE(h, f, e)        (IN_EPOCH(e) && TAKEABLE && hash == (h) && fence == (f) && rev < MAXF)
#define MAY_COMPLETE(h, r, e, f) (IN_EPOCH(e) && OPEN && SAME_CLAIM(h, r, f))
#define MAY_SETTLE(h, r, e, f)   (IN_EPOCH(e) && state == DURABLE && fence == (f) && hash == (h) && home == (r))

inline claim(s, h, r) { state = s; hash = h; home = r; rev++; fence = rev; MADE(ekey) }
inline takeOver(h, r) { state = (state == BOUND -> BOUND : CLAIMED); hash = h; home = r; rev++; fence = rev; MADE(ekey) }
inline noClaim() { state = NONE; hash = 0; home = 0; fence = 0; MADE(0); WRITTEN(0) }
inline create(r, h, s) {
	if
	:: man[r] == 0 -> man[r] = h; stamp[r] = s
	:: else
	fi
}
inline affirm(r, s) { stamp[r] = (stamp[r] < s -> s : stamp[r]) }
inline accepts(h, r) {
	if
	:: r != 1 -> ack = ack | BIT(h)
	:: r == 1 && !excused -> ack1 = ack1 | BIT(h)
	:: else
	fi
}
inline refuses(h, r) {
	if
	:: r != 1 || GONE(e) -> refused = refused | BIT(h)
	:: r == 1 && !GONE(e) && !excused -> refused1 = refused1 | BIT(h)
	:: else
	fi
}

#define FREE(i) (lKind[i] == NOTHING)
#if LATE == 0
#define ROOM 0
#elif LATE == 1
#define ROOM FREE(0)
#else
#define ROOM (FREE(0) || FREE(1))
#endif
inline late(k, h, r, e, f) {
	if
	:: FREE(0) -> lKind[0] = k; lHash[0] = h; lRegion[0] = r; lEpoch[0] = e; lFence[0] = f
	:: else -> lKind[LATES-1] = k; lHash[LATES-1] = h; lRegion[LATES-1] = r; lEpoch[LATES-1] = e; lFence[LATES-1] = f
	fi
}

#ifdef DROP_UNFENCED
#define MAY_DROP(e) (ekey == (e) && state != NONE)
#else
/* the claim as it was read */
#define MAY_DROP(e) (ekey == (e) && !filled && state != NONE && left)
#endif

#if LATE == 2
active proctype Network() {
	byte i;
#else
#define i 0
active proctype Network() {
#endif
end:
	do
	:: atomic {
#if LATE == 2
		if :: i = 0 :: i = 1 fi;
#endif
		!FREE(i) && !quiet ->
		if
		:: lKind[i] == MANIFEST -> create(lRegion[i], lHash[i], STAMPED(lEpoch[i], lFence[i]))
		:: lKind[i] == AFFIRM -> affirm(lRegion[i], STAMPED(lEpoch[i], lFence[i]))
		/* the heads that it compares are those of an etcd that has forgotten, too; in the one that is believed they are new once the identity is folded */
		:: lKind[i] == CLAIM && MAY_CLAIM(lEpoch[i]) && (!fold || !believed) -> claim(CLAIMED, lHash[i], lRegion[i])
		:: lKind[i] == TAKE && MAY_TAKE(lHash[i], lFence[i], lEpoch[i]) -> takeOver(lHash[i], lRegion[i])
		:: lKind[i] == COMPLETE && MAY_COMPLETE(lHash[i], lRegion[i], lEpoch[i], lFence[i]) -> state = DURABLE; home = lRegion[i]
		:: lKind[i] == SETTLE && MAY_SETTLE(lHash[i], lRegion[i], lEpoch[i], lFence[i]) -> state = SETTLED
#if LATE
		:: lKind[i] == DROP && MAY_DROP(lEpoch[i]) -> noClaim()
#endif
		:: else
		fi;
		lKind[i] = NOTHING; lHash[i] = 0; lRegion[i] = 0; lEpoch[i] = 0; lFence[i] = 0;
#if LATE == 2
		i = 0
#endif
		}
	/* a release: whoever sent it compared the claim's id, and may have slept before or after */
	:: atomic { RELEASABLE && ekey == served && !quiet -> noClaim() }
#ifdef FOLD
	/* what is settled is folded, and leaves etcd */
	:: atomic { state == SETTLED && believed && ekey == served && !quiet ->
		assert(!fold || (fold == hash && foldHome == 1 && gone)); fold = hash; foldHome = home; noClaim() }
#endif
	od
}
#if LATE != 2
#undef i
#endif

active [CALLERS] proctype Call() {
	byte r, h, e, f;
again:
	atomic {
		e = 0; f = 0;
#ifdef HOMES
#if REGIONS == 3
		r = _pid - 1; h = (_pid == 1 -> 1 : 2)
#else
		r = _pid & 1; h = (_pid == 1 -> 2 : 1)
#endif
#else
		r = 0; h = 0;
#if REGIONS == 3
		if :: r = 0 :: r = 1 :: r = 2 fi;
#else
		if :: r = 0 :: r = 1 fi;
#endif
		if :: h = 1 :: h = 2 fi
#endif
	}
#ifdef NO_CLAIM
	e = served; goto manifest;
#endif
end:
	atomic {
		if
		/* what is sent to etcd now, and is not answered, or whose answer is not believed */
		:: MAY_ASK(r, served) && ROOM && state == NONE && UNFOLDED(served) -> late(CLAIM, h, r, served, 0); goto again
		:: MAY_ASK(r, served) && ROOM && TAKEABLE && hash == h -> late(TAKE, h, r, served, fence); goto again
		:: MAY_ASK(r, served) && BELIEVED && IN_EPOCH(served) -> e = served; f = fence;
			if
			:: MAY_CLAIM(e) && UNFOLDED(e) -> claim(CLAIMED, h, r); f = fence;
#ifdef ACK_ON_CLAIM
				goto answer
#else
				goto manifest
#endif
			:: MAY_CLAIM(e) && FOLDED_LOST(h, e) -> claim(BOUND, h, r); f = fence; goto manifest
			:: OPEN && hash == h && home == r -> goto manifest                  /* shared with another call of this region */
			:: home != r && MAY_TAKE(h, f, e) -> takeOver(h, r); f = fence; goto manifest
#ifdef CONFLICT_ON_CLAIM
			:: state != NONE && hash != h -> refuses(h, home); goto again
#else
			:: (state == DURABLE || state == SETTLED) && hash != h -> refuses(h, home); goto again
			:: state == BOUND && hash != h -> refuses(h, foldHome); goto again
#endif
			:: state == DURABLE && hash == h && home == r -> goto journal
#ifdef DUPLICATE_UNSETTLED
			:: state == DURABLE && hash == h -> goto answer
#endif
			:: state == SETTLED && hash == h -> accepts(h, home); goto again
			:: state == NONE && FOLDED(h, e) -> accepts(h, foldHome); goto again
			:: state == NONE && FOLDED_OTHER(h, e) -> refuses(h, foldHome); goto again
			:: goto again                                                       /* contested, or to be tried again */
			fi
		fi
	}
manifest:
	if
	:: atomic { man[r] == 0 -> man[r] = h; stamp[r] = STAMPED(e, f); goto complete }
	:: atomic { man[r] == 0 && ROOM -> late(MANIFEST, h, r, e, f); goto again }
	:: atomic { man[r] == h && stamp[r] >= STAMPED(e, f) -> goto complete }
#ifdef NO_AFFIRMATION
	:: atomic { man[r] == h -> goto complete }
#else
	:: atomic { man[r] == h && stamp[r] < STAMPED(e, f) -> stamp[r] = STAMPED(e, f); goto complete }
	:: atomic { man[r] == h && stamp[r] < STAMPED(e, f) && ROOM -> late(AFFIRM, h, r, e, f); goto again }
#endif
#ifndef NO_REPLACE
	/* the key has the other hash for ever: the claim becomes that one's, and the call goes on for it */
	:: atomic { man[r] != 0 && man[r] != h && BELIEVED && IN_EPOCH(e) && REPLACEABLE && SAME_CLAIM(h, r, f) && rev < MAXF ->
		h = man[r]; claim(CLAIMED, h, r); f = fence; goto manifest }
#endif
	:: goto again
	fi;
complete:
#ifdef NO_CLAIM
	goto journal;
#endif
#ifdef JOURNAL_BEFORE_COMPLETE
	atomic { entry[r] = entry[r] | BIT(h) };
#endif
#ifdef NO_RECHECK
	atomic {
		if
		:: MAY_COMPLETE(h, r, e, f) -> state = DURABLE
		:: else
		fi;
		goto journal
	}
#endif
	/* one transaction: the epoch and the claim are what they were */
	if
	:: atomic { MAY_COMPLETE(h, r, e, f) -> state = DURABLE; home = r;
		if
		:: BELIEVED -> goto journal
		:: !BELIEVED -> goto again
		fi }
	:: atomic { ROOM -> late(COMPLETE, h, r, e, f); goto again }
	:: goto again
	fi;
journal:
	if
	:: atomic { entry[r] = entry[r] | BIT(h); goto answer }
	:: goto again
	fi;
answer:
	atomic { accepts(h, r) };
	if
	:: atomic { MAY_SETTLE(h, r, e, f) -> state = SETTLED; goto again }
	:: atomic { ROOM && home == r -> late(SETTLE, h, r, e, f); goto again }
	:: goto again
	fi
}

/* what had its home in region 1 is lost with it, and the operator knows: what was answered by that need not hold from here on */
inline excuse() { excused = 1; ack1 = 0; refused1 = 0 }

/* a copy of etcd is made at any time, and put back at any later time */
active proctype Disaster() {
end:
	do
	:: atomic { restores < MAXR && !quiet ->
		cState = state; cHash = hash; cHome = home; cFence = fence; cRev = rev; cEkey = ekey; cFilled = filled;
		COPY_MADE; COPY }
	:: atomic { restores < MAXR && !quiet -> restores++; believed = 0;
		state = cState; hash = cHash; home = cHome; fence = cFence; rev = cRev; ekey = cEkey; filled = cFilled;
		RESTORE_MADE; RESTORE;
		if
		:: restores == MAXR -> cState = 0; cHash = 0; cHome = 0; cFence = 0; cRev = 0; cEkey = 0; cFilled = 0; CLEAN_MADE; CLEAN
		:: else
		fi;
		/* before what it had of a region that is gone was folded */
		if
		:: gone && !kept -> excuse()
		:: else
		fi }
#ifdef QUIET
	:: atomic { !quiet -> quiet = 1 }
#endif
	od
}

#ifdef NO_RECOVERY
#define SCANNED(r) 0
#else
#define SCANNED(r) man[r]
#endif
#ifdef RECOVERED_IS_DURABLE
#define FOUND DURABLE
#else
#define FOUND RECOVERED
#endif
#define AGREED (filled && ekey == epoch && restores == cluster)
/* etcd has everything that was decided: its epoch is the record's, or the last one that was open, and it is the cluster of that */
#ifdef RETIRE_BY_CLUSTER
#define HAS_EVERYTHING (filled && restores == cluster)
#else
#define HAS_EVERYTHING (AGREED || (filled && ekey == openEpoch && restores == openCluster))
#endif
#ifdef OPENED_UNFENCED
#define OURS 1
#else
#define OURS (restores == inc && ekey == me)      /* etcd is the one that this recovery began with, and no later one has begun */
#endif
#ifdef COPY_TRUSTED
#define KEEPS_COPY (state >= DURABLE)
#else
#define KEEPS_COPY 0
#endif
#ifdef RECOVERY_TAKES_OTHER_HASH
#define CONTRADICTS_FOLD(h) 0
#else
#define CONTRADICTS_FOLD(h) (fold != (h))
#endif
/* a manifest is left out where the identity is folded: but for its hash, where the home is gone */
#define COUNTS(r) (SCANNED(r) && (!fold || (foldHome == 1 && GONE(me) && !CONTRADICTS_FOLD(man[r]))))
#ifdef FIRST_REGION_WINS
#define BETTER(r) (COUNTS(r) && !h)
#else
#define BETTER(r) (COUNTS(r) && stamp[r] >= s)
#endif
inline scan(r) {
	if
	:: BETTER(r) -> h = man[r]; s = stamp[r]; at = r
	:: else
	fi
}
/* A claim whose home was retired stands for a manifest that nobody can read any more, with its stamp: it counts unless one of a region
   that is left has a higher one. Etcd may have been restored since the retirement began, and have claims of any earlier time */
#ifdef RETIRE
#define SUPERSEDES(r) (man[r] && stamp[r] > STAMPED(made, fence))
#if REGIONS == 3
#define NEWEST (!SUPERSEDES(0) && !SUPERSEDES(2))
#else
#define NEWEST !SUPERSEDES(0)
#endif
#else
#define NEWEST 1
#endif
#ifdef KEEP_OF_A_COPY
#define FACT (state >= DURABLE || (state == RECOVERED && inc == openCluster))
#else
#ifdef KEEP_RECOVERED_OF_A_COPY
#define FACT (state == RECOVERED || (state >= DURABLE && NEWEST))
#else
#define FACT (state >= RECOVERED && NEWEST)
#endif
#endif
#ifdef RETIRED_IS_FORGOTTEN
#define KEEPS 0
#else
#ifdef NOT_DONE_IGNORED
#define KEEPS mine
#else
#define KEEPS (GONE(me) && !done)
#endif
#endif
inline keep() {
	if
	:: KEEPS && home == 1 && FACT -> assert(!fold || fold == hash); foldHome = (fold -> foldHome : 1); fold = hash
	:: else
	fi;
	kept = ((KEEPS && inc == openCluster) -> 1 : kept)
}

#ifdef IMMORTAL
#define MORTAL
#else
#define MORTAL :: goto dead
#endif

active [KEEPERS] proctype Keeper() {
	byte me, inc, was, h, s, at;
	bool mine;
dead:
	atomic { me = 0; inc = 0; was = 0; h = 0; s = 0; at = 0; mine = 0 };
end:
	/* the records are read and moved */
	atomic {
		if
#ifdef ADD
		:: epoch < MAXE && !quiet
#else
		:: !AGREED && epoch < MAXE
#endif
#ifdef RETIRE
		:: !gone && HAS_EVERYTHING && epoch < MAXE && !quiet -> gone = epoch + 1; mine = 1
#endif
#ifdef FORGET
		:: !gone && !HAS_EVERYTHING && epoch < MAXE && !quiet -> gone = epoch + 1; mine = 1; excuse()
#endif
		fi;
		inc = restores; was = ekey;
		if
		:: AGREED -> openEpoch = epoch; openCluster = cluster
		:: else
		fi;
		/* in an epoch that was filled since it was retired others have what region 1 had */
		done = (done || (gone && gone <= epoch && filled && ekey == epoch));
		cluster = restores;
#ifdef EPOCH_STAYS
		me = epoch
#else
#ifdef EPOCH_OF_THE_COPY
		me = ekey + 1; epoch = me
#else
		epoch++; me = epoch
#endif
#endif
	};
#ifdef KEEP_BEFORE_THE_EPOCH
	atomic {
		if
		:: restores == inc -> keep()
		:: else -> goto dead
		fi };
#endif
	/* from here on etcd refuses what was sent in an earlier epoch */
	atomic {
		if
		:: ekey == was -> ekey = me; filled = 0; WRITTEN(state != NONE)
		:: else -> goto dead
		MORTAL
		fi };
#ifndef KEEP_AFTER_DELETE
#ifndef KEEP_BEFORE_THE_EPOCH
	/* what etcd has of a region that is gone nobody else has */
	atomic {
		if
		:: !OURS -> goto dead
		:: OURS -> keep()
		MORTAL
		fi };
#endif
#endif
#ifndef COPY_TRUSTED
	/* nothing else of it is believed */
	atomic {
#if LATE
		if
		:: ROOM && MAY_DROP(me) -> late(DROP, 0, 0, me, 0)                   /* and once more, later */
		:: skip
		fi;
#endif
		if
		:: ekey == me && !filled -> noClaim(); rev = 0
		:: else
		fi;
		if
		:: !OURS -> goto dead
		:: OURS
		MORTAL
		fi };
#endif
#ifdef KEEP_AFTER_DELETE
	atomic {
		if
		:: !OURS -> goto dead
		:: OURS -> keep()
		MORTAL
		fi };
#endif
	/* a region that does not answer is waited for; one that is retired is not asked */
	atomic { scan(0) };
	atomic {
		if
#ifdef SILENT_REGION_SKIPPED
		:: skip
#endif
		:: TAKES_PART(1, me) -> scan(1)
		:: !TAKES_PART(1, me)
		MORTAL
		fi };
#if REGIONS == 3
	atomic { scan(2) };
#endif
	/* what was durable may be a claim again: its home's next call affirms and completes it */
	atomic {
		if
		:: ekey == me && !filled && h && !KEEPS_COPY -> state = FOUND; hash = h; home = at; rev = 1; fence = 1; MADE(ekey); WRITTEN(0)
		:: else
		fi;
		if
		:: !OURS -> goto dead
		:: OURS
		MORTAL
		fi };
	atomic {
		if
		:: OURS -> filled = 1; believed = 1; served = me
		:: !OURS && ekey == me -> filled = 1                                 /* it arrives in the copy */
		:: else
		MORTAL
		fi;
		goto dead }
}

#ifdef QUIET
#define AT_HOME (quiet && believed && ekey == served && TAKES_PART(home, ekey))
/* the reconcilers of all regions, with nobody else at work */
active proctype Reconciler() {
end:
	do
	:: atomic { AT_HOME && OPEN && man[home] == hash && stamp[home] < STAMPED(ekey, fence) -> stamp[home] = STAMPED(ekey, fence) }
	:: atomic { AT_HOME && OPEN && man[home] == hash && stamp[home] >= STAMPED(ekey, fence) -> state = DURABLE }
	:: atomic { AT_HOME && state == DURABLE -> entry[home] = entry[home] | BIT(hash); state = SETTLED }
#ifndef NO_RELEASE
	:: atomic { AT_HOME && (state == CLAIMED || state == BOUND) && man[home] == 0 -> noClaim() }
#endif
#ifndef BOUND_IS_HELD
	:: atomic { AT_HOME && state == BOUND && man[home] != 0 && man[home] != hash -> noClaim() }
#endif
#ifndef NO_REPLACE
	:: atomic { AT_HOME && state == CLAIMED && man[home] != 0 && man[home] != hash -> hash = man[home] }
#endif
	od
}
#endif

active proctype Monitor() {
end:
	do
	:: atomic { !(ONE_ANSWER && KEPT(1) && KEPT(2) && COUNTED_ONCE) ->
		assert(ONE_ANSWER); assert(KEPT(1)); assert(KEPT(2)); assert(COUNTED_ONCE) }
#ifdef QUIET
	:: atomic { quiet && timeout -> assert(!AGREED || state == NONE || state == SETTLED);
		assert(!AGREED || !ANSWERED || (ANSWERED & BIT(state == NONE -> fold : hash))); quiet = 0; break }
#endif
	od
}
