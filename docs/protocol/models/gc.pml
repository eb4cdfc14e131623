/* Garbage collection against collectors. One identity, one frame (NH=1) or two (NH=2),
   G generations of each frame's blob.

   One request is one atomic step: applied and answered; applied and the answer lost;
   or late, and it lands at any later time or never. An unknown outcome is followed by
   the same request again, or the process gives up. Collectors and garbage collectors
   run for ever, so that their number is how many are at work at one time; a process
   that crashed is one that is not scheduled any more, or that starts afresh. There are
   no clocks: age selects candidates, so here any blob is one at any time.

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
#define BIT(i) (1<<(i))

/* per hash, a bit per generation */
byte blob[3], marker[3];
byte lateBlob[3], lateMarker[3], lateDelete[3];
byte man;                         /* 0 none, else the hash */
byte lateMan;                     /* a bit per hash */
byte quar, lateQuar;              /* quarantine records, a bit per hash */
byte late;

byte ack, lost;                   /* a bit per hash: told accepted or duplicate; told conflict */

#define ONE_ANSWER (ack != (BIT(1)|BIT(2)) && (!(ack & BIT(1)) || man == 1) && (!(ack & BIT(2)) || man == 2))
#define DURABLE    ((!(ack & BIT(1)) || blob[1]) && (!(ack & BIT(2)) || blob[2]))
#define LOSER_KEPT ((lost & ~quar) == 0 && (!(lost & BIT(1)) || blob[1]) && (!(lost & BIT(2)) || blob[2]))

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

#ifdef QUARANTINE_UNKNOWN_IS_DONE
#define UNKNOWN_QUARANTINE CHECK_CONFLICT
#else
#define UNKNOWN_QUARANTINE quarantine
#endif

active [COLLECTORS] proctype Collector() {
	byte h, g, out;                /* out: 0 undecided, 1 accepted or duplicate, 3 conflict */
again:
	atomic {
		g = 0; out = 0;
		if
		:: h = 1
#if NH > 1
		:: h = 2
#endif
		fi
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
	:: out == 0 -> skip
	:: out == 1 -> goto CHECK_DUPLICATE
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
	if
	:: atomic { man == 0 -> man = h; out = 1; goto CHECK_ACCEPTED }                      /* created */
	:: atomic { man == 0 -> man = h; goto decide }                                       /* answer lost */
	:: atomic { late < LATE && !(lateMan & BIT(h)) -> late++; lateMan = lateMan | BIT(h); goto UNKNOWN_MANIFEST }
	:: atomic { man == h -> out = 1; goto CHECK_DUPLICATE }                              /* exists, and read */
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
	:: atomic { !(marker[h] & BIT(g)) -> goto answer }
#ifdef SAME_GENERATION
	:: atomic { marker[h] & BIT(g) -> blob[h] = blob[h] | BIT(g); goto answer }          /* written again, answered */
#else
	:: atomic { marker[h] & BIT(g) && g < G-1 -> g++; goto put }
#endif
	:: atomic { marker[h] & BIT(g) && g == G-1 -> goto again }                           /* retry is answered */
	:: goto again
	fi;
answer:
	atomic {
		if
		:: out == 1 -> ack = ack | BIT(h)
		:: out == 3 -> lost = lost | BIT(h)
		fi;
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
	:: atomic { man == h -> goto keep }
	:: man != h
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

active proctype Monitor() {
end:
	atomic { !(ONE_ANSWER && DURABLE && LOSER_KEPT) ->
		assert(ONE_ANSWER); assert(DURABLE); assert(LOSER_KEPT) }
}
