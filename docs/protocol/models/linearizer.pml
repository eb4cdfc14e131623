/* The identity linearizer: claims, take-over, release, two regions with a manifest
   store and a journal each, etcd that is restored from any older copy, and a region
   that is retired. One identity, two frames (hashes 1 and 2). Folding and ranges are
   in fold.pml.

   A claim in etcd is NONE, CLAIMED, BOUND (the hash is decided and so is the home: it
   was found by a recovery, or its home was retired; nobody releases or replaces it),
   DURABLE (its home's manifest stands at the claim's stamp) or SETTLED (an entry for
   it stands in the home's journal too). A stamp is the pair of epoch and fence. The
   fence is the etcd revision that made the claim, so it grows within an epoch; the
   epoch lives in S3 and grows over restores.

   Calls run for ever: each picks a region and a frame, as a collector does for an
   agent, or a reconciler for a manifest that it found. One request is one atomic
   step: applied and answered, or applied and its answer lost, or late, and it lands at
   any time or never. A call that is not scheduled any more is a crash.

   A restore puts etcd back to what it was at any earlier moment, its epoch key
   included. Until a recovery has opened it again it takes transactions as before,
   also from coordinators that have noticed nothing; only, whoever reads an answer sees
   the other cluster id in it and does not believe it.

   QUIET: at any moment everything but recovery and reconcilers stops for ever, agents
   and late requests included. Then nothing may stay claimed.

   The README has the mutants, which are chosen with -D. */
#ifndef CALLERS
#define CALLERS 2
#endif
/* HOMES: a caller always sends the same frame through the same region: one of each, and a third caller sends frame 1 through the other region */
#ifndef MAXR
#define MAXR 1                    /* restores */
#endif
#ifndef RECOVERERS
#define RECOVERERS 1
#endif
#ifndef MAXE
#ifdef RETIRE
#define MAXE (MAXR+2)
#else
#define MAXE (MAXR+RECOVERERS)    /* the last epoch */
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

#define NONE    0
#define CLAIMED 1
#define BOUND   2
#define DURABLE 3
#define SETTLED 4

/* etcd, and a copy of it */
byte state, hash, home, fence;    /* the claim */
byte rev;                         /* the last fence */
byte ekey = 1;                    /* etcd's own epoch key */
byte cState, cHash, cHome, cFence, cRev, cEkey = 1;

bool believed = 1;                /* etcd's cluster id is the one that coordinators serve under */
byte served = 1;                  /* the epoch that coordinators serve, or served until they noticed */
byte epoch = 1;                   /* in S3, moved by If-Match */
byte restores;
bool retired;                     /* region 1 */
bool both;                        /* it was retired when etcd had been restored and not recovered */
byte kept;                        /* in S3 of the living regions: the hash of the identity whose home was retired */
bool quiet;

byte man[2];                      /* per region: 0 none, else the manifest's hash ... */
byte stamp[2];                    /* ... and the highest stamp that it was written or affirmed with */
byte entry[2];                    /* a bit per hash: the journal has an entry whose home is this region */

byte ack, refused;                /* a bit per hash: told accepted or duplicate; told conflict */
byte forgot;                      /* the epoch in which the promises began anew, because region and etcd were lost at once */

/* requests that are late */
#define NOTHING  0
#define MANIFEST 1
#define AFFIRM   2
#define CLAIM    3
#define TAKE     4
#define COMPLETE 5
#define SETTLE   6
#define LATES    (LATE+1)
byte lKind[LATES], lRegion[LATES], lHash[LATES], lEpoch[LATES], lFence[LATES];

#define NOT_BOTH(x) ((x) != (BIT(1)|BIT(2)))
#define ONE_ANSWER (NOT_BOTH(ack) && !(refused & ack))
/* what is acknowledged is a manifest's, and counts in that region */
#define KEPT(h) (!(ack & BIT(h)) || (man[0] == h && (entry[0] & BIT(h))) || (man[1] == h && (entry[1] & BIT(h))))
#define COUNTED_ONCE (NOT_BOTH(entry[0]) && (retired || ((entry[0] == 0 || entry[1] == 0) && NOT_BOTH(entry[1]))))

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
#define MAY_CLAIM(e)             (IN_EPOCH(e) && state == NONE && rev < MAXF)
#define MAY_TAKE(h, f, e)        (IN_EPOCH(e) && TAKEABLE && hash == (h) && fence == (f) && rev < MAXF)
#define MAY_COMPLETE(h, r, e, f) (IN_EPOCH(e) && (state == CLAIMED || state == BOUND) && SAME_CLAIM(h, r, f))
#define MAY_SETTLE(h, r, e, f)   (IN_EPOCH(e) && state == DURABLE && fence == (f) && hash == (h) && home == (r))
#ifdef TAKE_BOUND
#define TAKEABLE (state == CLAIMED || state == BOUND)
#else
#ifdef TAKE_DURABLE
#define TAKEABLE (state == CLAIMED || state == DURABLE)
#else
#define TAKEABLE (state == CLAIMED)
#endif
#endif
#ifdef RELEASE_BOUND
#define RELEASABLE (state == CLAIMED || state == BOUND)
#else
#define RELEASABLE (state == CLAIMED)
#endif
#ifdef REPLACE_BOUND
#define REPLACEABLE (state == CLAIMED || state == BOUND)
#else
#define REPLACEABLE (state == CLAIMED)
#endif
#define LIVES(r) ((r) == 0 || !retired)
#define SERVED(r) (!quiet && LIVES(r))
#define HOME_GONE (retired && home == 1)

inline claim(h, r) { state = CLAIMED; hash = h; home = r; rev++; fence = rev }
inline noClaim() { state = NONE; hash = 0; home = 0; fence = 0 }
inline create(r, h, s) {
	if
	:: man[r] == 0 -> man[r] = h; stamp[r] = s
	:: else
	fi
}
inline affirm(r, s) { stamp[r] = (stamp[r] < s -> s : stamp[r]) }

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
		:: lKind[i] == CLAIM && MAY_CLAIM(lEpoch[i]) -> claim(lHash[i], lRegion[i])
		:: lKind[i] == TAKE && MAY_TAKE(lHash[i], lFence[i], lEpoch[i]) -> claim(lHash[i], lRegion[i])
		:: lKind[i] == COMPLETE && MAY_COMPLETE(lHash[i], lRegion[i], lEpoch[i], lFence[i]) -> state = DURABLE; home = lRegion[i]
		:: lKind[i] == SETTLE && MAY_SETTLE(lHash[i], lRegion[i], lEpoch[i], lFence[i]) -> state = SETTLED
		:: else
		fi;
		lKind[i] = NOTHING; lHash[i] = 0; lRegion[i] = 0; lEpoch[i] = 0; lFence[i] = 0;
#if LATE == 2
		i = 0
#endif
		}
	/* a release: whoever sent it compared the fence, and may have slept before or after */
	:: atomic { RELEASABLE && ekey == served && !quiet -> noClaim() }
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
		r = _pid & 1; h = (_pid == 1 -> 2 : 1)
#else
		r = 0; h = 0;
		if :: r = 0 :: r = 1 fi;
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
		:: SERVED(r) && ROOM && state == NONE -> late(CLAIM, h, r, served, 0); goto again
		:: SERVED(r) && ROOM && TAKEABLE && hash == h -> late(TAKE, h, r, served, fence); goto again
		:: SERVED(r) && BELIEVED -> e = served; f = fence;
			if
			:: MAY_CLAIM(e) -> claim(h, r); f = fence;
#ifdef ACK_ON_CLAIM
				goto answer
#else
				goto manifest
#endif
			:: (state == CLAIMED || state == BOUND) && hash == h && home == r -> goto manifest     /* shared with another call of this region */
			:: home != r && MAY_TAKE(h, f, e) -> claim(h, r); f = fence; goto manifest
			:: HOME_GONE && (state == BOUND || state == DURABLE || state == SETTLED) && hash == h && rev < MAXF ->
				claim(h, r); state = BOUND; f = fence; goto manifest
#ifdef CONFLICT_ON_CLAIM
			:: state != NONE && hash != h -> refused = refused | BIT(h); goto again
#else
			:: (state == DURABLE || state == SETTLED) && hash != h -> refused = refused | BIT(h); goto again
#endif
			:: state == DURABLE && hash == h && home == r -> goto journal
#ifdef DUPLICATE_UNSETTLED
			:: state == DURABLE && hash == h -> goto answer
#endif
			:: state == SETTLED && hash == h && !HOME_GONE -> goto answer
			:: goto again                                                                       /* contested, or to be tried again */
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
		h = man[r]; claim(h, r); f = fence; goto manifest }
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
	atomic { ack = (e >= forgot -> ack | BIT(h) : ack) };
	if
	:: atomic { MAY_SETTLE(h, r, e, f) -> state = SETTLED; goto again }
	:: atomic { ROOM && home == r -> late(SETTLE, h, r, e, f); goto again }
	:: goto again
	fi
}

/* a copy of etcd is made at any time, and put back at any later time */
active proctype Disaster() {
end:
	do
	:: atomic { restores < MAXR && believed && !quiet ->
		cState = state; cHash = hash; cHome = home; cFence = fence; cRev = rev; cEkey = ekey }
	:: atomic { restores < MAXR && !quiet -> restores++; believed = 0;
		state = cState; hash = cHash; home = cHome; fence = cFence; rev = cRev; ekey = cEkey;
		if
		:: restores == MAXR -> cState = 0; cHash = 0; cHome = 0; cFence = 0; cRev = 0; cEkey = 0
		:: else
		fi }
#ifdef RETIRE
	/* region 1 is retired, lost or not. That moves the epoch on, and then keeps what had its home there */
	:: atomic { !retired && believed && !quiet && epoch < MAXE -> retired = 1; epoch++; ekey = epoch; served = epoch;
#ifndef RETIRED_IS_FORGOTTEN
		if
		:: state >= BOUND && home == 1 -> kept = hash
		:: else
		fi
#endif
		}
#endif
#ifdef BOTH
	/* or while the recovery waits for it */
	:: atomic { !retired && !believed && !quiet -> retired = 1; both = 1 }
#endif
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
#define RECOVERED DURABLE
#else
#define RECOVERED BOUND
#endif
/* what was durable may be a claim again: its home's next call affirms and completes it */
#define FOUND(h, r) state = RECOVERED; hash = h; home = r; rev = 1; fence = 1
#ifdef OPENED_UNFENCED
#define OURS 1
#else
#define OURS (restores == inc && ekey == me)      /* etcd is the one that this recovery began with, and no later recovery has begun */
#endif
#ifdef COPY_TRUSTED
#define KEEPS_COPY (state >= DURABLE)
#define DROP skip
#else
#define KEEPS_COPY 0
#define DROP if :: ekey <= me -> noClaim(); rev = 0 :: else fi
#endif
#define FENCE_ETCD ekey = (ekey < me -> me : ekey)

active [RECOVERERS] proctype Recovery() {
	byte me, inc, h0, s0, h1, s1;
end:
	do
	:: atomic { !believed && epoch < MAXE ->
		inc = restores;
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
		/* from here on etcd refuses what was sent in an earlier epoch */
		atomic { FENCE_ETCD };
		atomic { DROP };
		atomic { h0 = SCANNED(0); s0 = stamp[0] };
		/* a region that does not answer is waited for; one that is retired is not asked */
		atomic {
			if
#ifdef SILENT_REGION_SKIPPED
			:: h1 = 0
#endif
			:: LIVES(1) -> h1 = SCANNED(1); s1 = stamp[1]
			:: !LIVES(1) -> h1 = 0
			fi };
		atomic {
			if
			:: !OURS
			:: OURS && KEEPS_COPY
			:: OURS && kept != 0 && h0 != kept -> state = SETTLED; hash = kept; home = 1; rev = 1; fence = 1
			:: OURS && kept != 0 && h0 == kept -> FOUND(h0, 0)
			:: OURS && !KEEPS_COPY && kept == 0 && h0 == 0 && h1 == 0
#ifdef FIRST_REGION_WINS
			:: OURS && !KEEPS_COPY && kept == 0 && h0 != 0 -> FOUND(h0, 0)
			:: OURS && !KEEPS_COPY && kept == 0 && h0 == 0 && h1 != 0 -> FOUND(h1, 1)
#else
			:: OURS && !KEEPS_COPY && kept == 0 && h0 != 0 && (h1 == 0 || s0 >= s1) -> FOUND(h0, 0)
			:: OURS && !KEEPS_COPY && kept == 0 && h1 != 0 && (h0 == 0 || s1 > s0) -> FOUND(h1, 1)
#endif
			fi };
		atomic {
			if
			:: !OURS
			:: OURS -> believed = 1; served = me;
				if
				:: both -> ack = 0; refused = 0; forgot = me
				:: else
				fi
			fi;
			me = 0; inc = 0; h0 = 0; s0 = 0; h1 = 0; s1 = 0 }
	od
}

#ifdef QUIET
#define AT_HOME (quiet && believed && LIVES(home))
/* what is bound to a region that is retired waits for its agent, which brings it elsewhere */
#define SETTLED_OR_FREE (state == NONE || state == SETTLED || (retired && state != CLAIMED))
/* the reconcilers of both regions, with nobody else at work */
active proctype Reconciler() {
end:
	do
	:: atomic { AT_HOME && (state == CLAIMED || state == BOUND) && man[home] == hash && stamp[home] < STAMPED(ekey, fence) ->
		stamp[home] = STAMPED(ekey, fence) }
	:: atomic { AT_HOME && (state == CLAIMED || state == BOUND) && man[home] == hash && stamp[home] >= STAMPED(ekey, fence) ->
		state = DURABLE }
	:: atomic { AT_HOME && state == DURABLE -> entry[home] = entry[home] | BIT(hash); state = SETTLED }
#ifndef NO_RELEASE
	:: atomic { quiet && believed && state == CLAIMED && (HOME_GONE || man[home] == 0) -> noClaim() }
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
	:: atomic { quiet && timeout -> assert(!believed || SETTLED_OR_FREE); assert(!believed || !ack || (ack & BIT(hash))); quiet = 0; break }
#endif
	od
}
