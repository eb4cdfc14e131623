/* Garbage collection against collectors. One identity, one frame (NH=1) or two (NH=2),
   G generations of each frame's blob.

   One request is one atomic step: applied and answered; applied and the answer lost;
   or late, and it lands at any later time or never. An unknown outcome is followed by
   the same request again, or the process gives up. Collectors and garbage collectors
   run for ever, so that their number is how many are at work at one time; a process
   that crashed is one that is not scheduled any more, or that starts afresh. There are
   no clocks: age selects candidates, so here any blob is one at any time.

   With RETAIN there are also blocks, which are published from a frame and may be lost, and the
   retention of raw frames, which removes what published blocks cover. Both frames are of one
   hour, so there is one record of condemned generations.

   With INLINE any call may let its record carry the frame, beside others that write blobs: what it creates
   has the bytes, and what it finds may have them or name a blob.

   The README has the mutants, which are chosen with -D. */
#ifndef NH
#define NH 1
#endif
#ifndef G
#define G 2
#endif
#ifndef COLLECTORS
#define COLLECTORS 2
#endif
#ifndef GCS
#define GCS 1
#endif
#ifndef LATE
#define LATE 1                    /* requests that are late at one time, at most */
#endif
#ifndef RETAINERS
#define RETAINERS 1
#endif
#ifndef LOSSES
#define LOSSES 1                  /* how many times blocks are lost */
#endif
#define BIT(i) (1<<(i))

/* per hash, a bit per generation */
byte blob[3], marker[3];
byte lateBlob[3], lateMarker[3], lateDelete[3];
byte man;                         /* 0 none, else the hash */
byte lateMan;                     /* a bit per hash */
byte quar, lateQuar;              /* quarantine records, a bit per hash */
byte late;

byte ack, lost;                   /* a bit per hash: told accepted or duplicate; told conflict */

#ifdef INLINE
byte manIn;                       /* the manifest carries its frame */
byte quarIn;                      /* a bit per hash: the quarantine record carries the frame */
byte lateManIn, lateQuarIn;       /* late creates of such records, a bit per hash */
#define CARRIED(h)      (man == h && manIn)
#define LOSER_CARRIED(h) (quarIn & BIT(h))
#else
#define CARRIED(h)      (false)
#define LOSER_CARRIED(h) (false)
#endif

#ifdef RETAIN
byte covered;                     /* a bit per hash: published blocks have its rows */
byte below;                       /* generations below it are condemned, of every frame of the hour */
byte lateBelow;                   /* what a late request makes of it; 0 none */
byte logged;                      /* a bit per hash: a log says that its frame was removed */
byte losses;
/* For the promise alone: what is acknowledged, or decided and not yet told, when a proof finds the
   batch covered is from then on the blocks' to keep, and not the frame's. */
byte owed;                        /* a bit per hash: acknowledged since the last proof */
byte decided[3];                  /* a bit per collector: its answer is decided, by hash */
byte handedOver;                  /* a bit per collector: it was before a proof */
#define OWED owed
#define KEPT(h)    (blob[h] || CARRIED(h) || (covered & BIT(h)))
#define LOGGED(h)  (blob[h] || CARRIED(h) || (logged & BIT(h)))
#else
#define OWED ack
#define KEPT(h)    (blob[h] || CARRIED(h))
#define LOGGED(h)  (true)
#endif

#define ONE_ANSWER (ack != (BIT(1)|BIT(2)) && (!(ack & BIT(1)) || man == 1) && (!(ack & BIT(2)) || man == 2))
#define DURABLE    ((!(OWED & BIT(1)) || KEPT(1)) && (!(OWED & BIT(2)) || KEPT(2)))
#define EXPLAINED  ((!(ack & BIT(1)) || LOGGED(1)) && (!(ack & BIT(2)) || LOGGED(2)))
#define LOSER_KEPT ((lost & ~quar) == 0 && (!(lost & BIT(1)) || blob[1] || LOSER_CARRIED(1)) && (!(lost & BIT(2)) || blob[2] || LOSER_CARRIED(2)))

inline landAny(h, g) {
	late--;
	if
	:: lateBlob[h] & BIT(g) -> lateBlob[h] = lateBlob[h] & ~BIT(g); blob[h] = blob[h] | BIT(g)
	:: lateMarker[h] & BIT(g) -> lateMarker[h] = lateMarker[h] & ~BIT(g); marker[h] = marker[h] | BIT(g)
	:: lateDelete[h] & BIT(g) -> lateDelete[h] = lateDelete[h] & ~BIT(g); blob[h] = blob[h] & ~BIT(g)
	fi
}

active proctype Network() {
	byte g;
end:
	do
	:: atomic { late -> 
		if
		:: g = 0
		:: g = 1
#if G > 2
		:: g = 2
#endif
		fi;
		if
		:: (lateBlob[1]|lateMarker[1]|lateDelete[1]) & BIT(g) -> landAny(1, g)
#if NH > 1
		:: (lateBlob[2]|lateMarker[2]|lateDelete[2]) & BIT(g) -> landAny(2, g)
#endif
		:: lateMan & BIT(1) -> late--; lateMan = lateMan & ~BIT(1); man = (man == 0 -> 1 : man)
		:: lateMan & BIT(2) -> late--; lateMan = lateMan & ~BIT(2); man = (man == 0 -> 2 : man)
		:: lateQuar & BIT(1) -> late--; lateQuar = lateQuar & ~BIT(1); quar = quar | BIT(1)
		:: lateQuar & BIT(2) -> late--; lateQuar = lateQuar & ~BIT(2); quar = quar | BIT(2)
#ifdef INLINE
		:: lateManIn & BIT(1) -> late--; lateManIn = lateManIn & ~BIT(1); manIn = (man == 0 -> 1 : manIn); man = (man == 0 -> 1 : man)
		:: lateManIn & BIT(2) -> late--; lateManIn = lateManIn & ~BIT(2); manIn = (man == 0 -> 1 : manIn); man = (man == 0 -> 2 : man)
		:: lateQuarIn & BIT(1) -> late--; lateQuarIn = lateQuarIn & ~BIT(1); quarIn = (quar & BIT(1) -> quarIn : quarIn | BIT(1)); quar = quar | BIT(1)
		:: lateQuarIn & BIT(2) -> late--; lateQuarIn = lateQuarIn & ~BIT(2); quarIn = (quar & BIT(2) -> quarIn : quarIn | BIT(2)); quar = quar | BIT(2)
#endif
#ifdef RETAIN
		:: lateBelow ->                                             /* If-Match: it never lowers */
			late--;
#ifdef BELOW_WITHOUT_CONDITION
			below = lateBelow;
#else
			below = (lateBelow > below -> lateBelow : below);
#endif
			lateBelow = 0
#endif
		:: else
		fi;
		g = 0 }
	od
}

/* what a collector does instead of step 11, or where it does it */
#ifdef NO_MARKER
#define CHECK_ACCEPTED answer
#else
#define CHECK_ACCEPTED check
#endif
#if defined(NO_MARKER) || defined(NO_MARKER_ON_DUPLICATE)
#define CHECK_DUPLICATE answer
#else
#define CHECK_DUPLICATE check
#endif
#if defined(NO_MARKER) || defined(NO_MARKER_ON_CONFLICT)
#define CHECK_CONFLICT answer
#else
#define CHECK_CONFLICT check
#endif
#ifdef NO_QUARANTINE
#define ON_CONFLICT check
#else
#define ON_CONFLICT quarantine
#endif
#ifdef CLEAN_UP_ON_UNKNOWN
#define UNKNOWN_MANIFEST cleanUp
#else
#define UNKNOWN_MANIFEST decide
#endif

#ifdef RETAIN
#define ME         BIT(_pid)
#define DECIDE(h)  decided[h] = decided[h] | ME
#ifdef NO_BELOW_ON_DUPLICATE
#define DUPLICATE_HOUR answer
#else
#define DUPLICATE_HOUR hour
#endif
#ifdef BELOW_READ_ONCE
#define OTHER_GENERATION trust
#else
#define OTHER_GENERATION put
#endif
#else
#define ME         0
#define DECIDE(h)  skip
#define DUPLICATE_HOUR answer
#endif

#ifdef QUARANTINE_UNKNOWN_IS_DONE
#define UNKNOWN_QUARANTINE CHECK_CONFLICT
#else
#define UNKNOWN_QUARANTINE quarantine
#endif

#ifdef INLINE_TRUSTS_MANIFESTS
#define FOUND_BLOB answer
#else
#define FOUND_BLOB put
#endif
#ifdef INLINE_TRUSTS_QUARANTINE
#define FOUND_LOSERS_BLOB answer
#else
#define FOUND_LOSERS_BLOB put
#endif
#ifdef INLINE_NO_MARKER
#define CHECK_INLINE answer
#else
#define CHECK_INLINE check
#endif

active [COLLECTORS] proctype Collector() {
	byte h, g, out;                /* out: 0 undecided, 1 created the manifest, 2 found it, 3 conflict */
#ifdef INLINE
	bool inl;                      /* the call lets its records carry the frame */
#endif
again:
	atomic {
#ifdef RETAIN
		decided[1] = decided[1] & ~ME; decided[2] = decided[2] & ~ME; handedOver = handedOver & ~ME;
#endif
		g = 0; out = 0;
		if
		:: h = 1
#if NH > 1
		:: h = 2
#endif
		fi;
#ifdef INLINE
		if
		:: inl = false
		:: inl = true; goto decide
		fi
#endif
	}
put:
	if
	:: atomic { !(blob[h] & BIT(g)) -> blob[h] = blob[h] | BIT(g); goto haveBlob }       /* created */
	:: atomic { !(blob[h] & BIT(g)) -> blob[h] = blob[h] | BIT(g); goto put }            /* answer lost */
	:: atomic { late < LATE && !(lateBlob[h] & BIT(g)) -> late++; lateBlob[h] = lateBlob[h] | BIT(g); goto put }
	:: blob[h] & BIT(g)                                                                  /* exists */
	:: goto again                                                                        /* crash, or gives up */
	fi;
	if                                                                                   /* HEAD */
	:: atomic { blob[h] & BIT(g) -> goto haveBlob }
	:: atomic { !(blob[h] & BIT(g)) && g < G-1 -> g++; goto put }                        /* gone: next generation */
	:: atomic { !(blob[h] & BIT(g)) && g == G-1 -> goto again }                          /* retry is answered */
	fi;
haveBlob:
	if
#ifdef INLINE
	:: inl -> goto CHECK_INLINE                                                          /* its record was found, and names a blob */
#endif
	:: out == 0 -> skip
	:: out == 1 -> goto CHECK_ACCEPTED
	:: out == 2 -> goto CHECK_DUPLICATE
	:: out == 3 -> goto CHECK_CONFLICT
	fi;
#ifdef MARKER_BEFORE_MANIFEST
	if
	:: atomic { !(marker[h] & BIT(g)) }
	:: atomic { marker[h] & BIT(g) && g < G-1 -> g++; goto put }
	:: atomic { marker[h] & BIT(g) && g == G-1 -> goto again }
	fi;
#endif
decide:
#ifdef INLINE
	if
	:: inl -> goto decideIn
	:: !inl
	fi;
#endif
	if
	:: atomic { man == 0 -> man = h; out = 1; DECIDE(h); goto CHECK_ACCEPTED }           /* created */
	:: atomic { man == 0 -> man = h; goto decide }                                       /* answer lost */
	:: atomic { late < LATE && !(lateMan & BIT(h)) -> late++; lateMan = lateMan | BIT(h); goto UNKNOWN_MANIFEST }
#ifdef INLINE
	:: atomic { man == h && manIn -> out = 2; DECIDE(h); goto answer }                   /* it has the bytes: no marker */
	:: atomic { man == h && !manIn -> out = 2; goto CHECK_DUPLICATE }
#else
	:: atomic { man == h -> out = 2; goto CHECK_DUPLICATE }                              /* exists, and read */
#endif
	:: atomic { man != 0 && man != h -> out = 3; goto ON_CONFLICT }
	:: goto again
	fi;
#ifdef CLEAN_UP_ON_UNKNOWN
cleanUp:
	atomic {
		if
		:: man == 0 -> blob[h] = blob[h] & ~BIT(g); goto again
		:: else -> goto decide
		fi
	}
#endif
quarantine:
	if
	:: atomic { quar = quar | BIT(h); goto CHECK_CONFLICT }                              /* created, or exists */
	:: atomic { !(quar & BIT(h)) -> quar = quar | BIT(h); goto quarantine }              /* answer lost */
	:: atomic { late < LATE && !(lateQuar & BIT(h)) -> late++; lateQuar = lateQuar | BIT(h); goto UNKNOWN_QUARANTINE }
	:: goto again
	fi;
#ifdef INLINE
decideIn:
	if
	:: atomic { man == 0 -> man = h; manIn = 1; out = 1; DECIDE(h); goto answer }        /* created: that is all */
	:: atomic { man == 0 -> man = h; manIn = 1; goto decideIn }                          /* answer lost */
	:: atomic { late < LATE && !(lateManIn & BIT(h)) -> late++; lateManIn = lateManIn | BIT(h); goto decideIn }
	:: atomic { man == h && manIn -> out = 2; DECIDE(h); goto answer }
	:: atomic { man == h && !manIn -> out = 2; goto FOUND_BLOB }
	:: atomic { man != 0 && man != h -> out = 3; goto quarantineIn }
	:: goto again
	fi;
quarantineIn:
	if
	:: atomic { !(quar & BIT(h)) -> quar = quar | BIT(h); quarIn = quarIn | BIT(h); goto answer }       /* created */
	:: atomic { !(quar & BIT(h)) -> quar = quar | BIT(h); quarIn = quarIn | BIT(h); goto quarantineIn } /* answer lost */
	:: atomic { late < LATE && !(lateQuarIn & BIT(h)) -> late++; lateQuarIn = lateQuarIn | BIT(h); goto quarantineIn }
	:: atomic { (quar & BIT(h)) && (quarIn & BIT(h)) -> goto answer }                    /* exists, and read */
	:: atomic { (quar & BIT(h)) && !(quarIn & BIT(h)) -> goto FOUND_LOSERS_BLOB }
	:: goto again
	fi;
#endif
check:
#ifdef MARKER_BEFORE_MANIFEST
	goto answer;
#endif
#ifdef HEAD_FOR_MARKER
	if
	:: atomic { blob[h] & BIT(g) -> goto answer }
	:: atomic { !(blob[h] & BIT(g)) && g < G-1 -> g++; goto put }
	:: atomic { !(blob[h] & BIT(g)) && g == G-1 -> goto again }
	fi;
#endif
	if
	:: atomic { !(marker[h] & BIT(g)) && out != 2 -> goto answer }
	:: atomic { !(marker[h] & BIT(g)) && out == 2 -> goto DUPLICATE_HOUR }
#ifdef SAME_GENERATION
	:: atomic { marker[h] & BIT(g) -> blob[h] = blob[h] | BIT(g); goto answer }          /* written again, answered */
#else
	:: atomic { marker[h] & BIT(g) && g < G-1 -> g++; goto put }
#endif
	:: atomic { marker[h] & BIT(g) && g == G-1 -> goto again }                           /* retry is answered */
	:: goto again
	fi;
#ifdef RETAIN
hour:                                                                                    /* retention condemns by hour */
	if
	:: atomic { below <= g -> DECIDE(h); goto answer }
	:: atomic { below > g && below < G -> g = below; goto OTHER_GENERATION }
	:: atomic { below == G -> goto again }                                               /* retry is answered */
	:: goto again
	fi;
#ifdef BELOW_READ_ONCE
trust:
	atomic { blob[h] = blob[h] | BIT(g); DECIDE(h); goto answer }
#endif
#endif
answer:
	atomic {
		if
		:: out < 3 -> ack = ack | BIT(h)
		:: out == 3 -> lost = lost | BIT(h)
		fi;
#ifdef RETAIN
		owed = (out < 3 && !(handedOver & ME) -> owed | BIT(h) : owed);
#endif
		goto again
	}
}

/* the collector of garbage: plan, condemn, prove, delete */
#ifdef MARKER_UNCONFIRMED
#define UNKNOWN_MARKER prove
#else
#define UNKNOWN_MARKER condemn
#endif

#ifdef PROVE_FIRST
#define CONDEMNED remove
#else
#define CONDEMNED prove
#endif

#if GCS > 0
active [GCS] proctype GC() {
	byte h, g;
plan:
	atomic {
		if
		:: blob[1] & BIT(0) -> h = 1; g = 0
		:: blob[1] & BIT(1) -> h = 1; g = 1
#if G > 2
		:: blob[1] & BIT(2) -> h = 1; g = 2
#endif
#if NH > 1
		:: blob[2] & BIT(0) -> h = 2; g = 0
		:: blob[2] & BIT(1) -> h = 2; g = 1
#if G > 2
		:: blob[2] & BIT(2) -> h = 2; g = 2
#endif
#endif
		fi
	}
#ifdef NO_CONDEMN
	goto prove;
#endif
#ifdef PROVE_FIRST
	goto prove;
#endif
condemn:
	if
	:: atomic { marker[h] = marker[h] | BIT(g); goto CONDEMNED }                          /* created, or exists */
	:: atomic { !(marker[h] & BIT(g)) -> marker[h] = marker[h] | BIT(g); goto UNKNOWN_MARKER } /* answer lost */
	:: atomic { late < LATE && !(lateMarker[h] & BIT(g)) -> late++; lateMarker[h] = lateMarker[h] | BIT(g); goto UNKNOWN_MARKER }
	:: goto giveUp
	fi;
prove:
	if                                                                                    /* GET the identity's manifest */
#ifdef INLINE_MANIFESTS_KEEP_NOTHING
	:: skip
#else
	:: atomic { man == h && !CARRIED(h) -> goto keep }
	:: man != h || CARRIED(h)                                                             /* one with the frame refers to no blob */
#endif
#ifdef DOUBT_DELETES
	:: skip                                                                               /* no answer, so nothing there */
#else
	:: goto giveUp                                                                        /* no answer: keep */
#endif
	fi;
#ifndef NO_QUARANTINE_PROOF
	if                                                                                    /* GET the quarantine record */
	:: atomic { quar & BIT(h) -> goto keep }
	:: !(quar & BIT(h))
	:: goto giveUp
	fi;
#endif
#ifdef PROVE_FIRST
	goto condemn;
#endif
remove:
	if
#ifdef DELETE_ALL_GENERATIONS
	:: blob[h] = 0
#else
	:: atomic { blob[h] = blob[h] & ~BIT(g) }                                             /* answered, or lost */
#endif
	:: atomic { late < LATE && !(lateDelete[h] & BIT(g)) -> late++; lateDelete[h] = lateDelete[h] | BIT(g) }
	fi;
#ifdef UNCONDEMN
	marker[h] = marker[h] & ~BIT(g);
#endif
	goto giveUp;
keep:
	skip;
giveUp:
	atomic { h = 0; g = 0; goto plan }
}
#endif

#ifdef RETAIN
/* the rollup: a block of the accepted batch is published from its frame; blocks may be lost */
active proctype Blocks() {
end:
	do
	:: atomic { man && (blob[man] != 0 || CARRIED(man)) && !(covered & BIT(man)) -> covered = covered | BIT(man) }
	:: atomic { losses < LOSSES && covered -> losses++; covered = 0 }
	od
}

/* the retention of raw frames: condemn the generation for the whole hour, prove, log, delete */
#ifdef BELOW_UNCONFIRMED
#define UNKNOWN_BELOW proveCovered
#else
#define UNKNOWN_BELOW condemnHour
#endif

#ifdef COVERED_FIRST
#define HOUR_CONDEMNED removeFrame
#else
#define HOUR_CONDEMNED proveCovered
#endif

#ifdef LOG_AFTER
#define PROVED_COVERED removeFrame
#else
#define PROVED_COVERED writeLog
#endif

active [RETAINERS] proctype Retention() {
	byte h, g;
plan2:
	atomic {
		if
		:: (man != 0) && !CARRIED(man) && (blob[man] & BIT(0)) -> g = 0
		:: (man != 0) && !CARRIED(man) && (blob[man] & BIT(1)) -> g = 1
#if G > 2
		:: (man != 0) && !CARRIED(man) && (blob[man] & BIT(2)) -> g = 2
#endif
		fi;
		h = man
	}
#ifdef COVERED_FIRST
	goto proveCovered;
#endif
#ifdef NO_BELOW
	goto proveCovered;
#endif
condemnHour:
	if
	:: below > g -> goto HOUR_CONDEMNED
	:: atomic { below <= g -> below = g + 1; goto HOUR_CONDEMNED }
	:: atomic { below <= g -> below = g + 1; goto UNKNOWN_BELOW }                         /* answer lost */
	:: atomic { below <= g && late < LATE && lateBelow == 0 -> late++; lateBelow = g + 1; goto UNKNOWN_BELOW }
	:: goto forget
	fi;
proveCovered:
	if
	:: atomic { covered & BIT(h) -> owed = owed & ~BIT(h); handedOver = handedOver | decided[h] }
#ifdef NOT_COVERED
	:: skip
#else
	:: !(covered & BIT(h)) -> goto forget                                                 /* or no answer */
#endif
	fi;
#ifdef COVERED_FIRST
	if
	:: logged & BIT(h) -> goto condemnHour
	:: else -> logged = logged | BIT(h); goto condemnHour
	fi;
#endif
	goto PROVED_COVERED;
writeLog:
	if
	:: logged = logged | BIT(h)                                                           /* created, or exists */
	:: goto forget                                                                        /* no answer */
	fi;
removeFrame:
	if
#ifdef ALL_GENERATIONS_OF_FRAME
	:: blob[h] = 0
#else
	:: atomic { blob[h] = blob[h] & ~BIT(g) }                                             /* answered, or lost */
#endif
	:: atomic { late < LATE && !(lateDelete[h] & BIT(g)) -> late++; lateDelete[h] = lateDelete[h] | BIT(g) }
	fi;
#ifdef LOG_AFTER
	logged = logged | BIT(h);
#endif
#ifdef BELOW_REMOVED
	below = 0;
#endif
forget:
	atomic { h = 0; g = 0; goto plan2 }
}
#endif

active proctype Monitor() {
end:
	atomic { !(ONE_ANSWER && DURABLE && EXPLAINED && LOSER_KEPT) ->
		assert(ONE_ANSWER); assert(DURABLE); assert(EXPLAINED); assert(LOSER_KEPT) }
}
