/* Acceptance of one identity. Calls of collectors with two frames (hashes 1 and 2)
   from two spools (a boot id and its clone) race for one manifest.

   One request is one atomic step. A request is applied and answered; or applied and
   its answer lost, and the call creates again; or late, and lands at any later time
   or never. A 409, and an unknown outcome that was not applied, change nothing: the
   call creates again, which is to stay where it is. A crash is a process that is not
   scheduled any more. There are no clocks and no garbage collector (see gc.pml).

   The README has the mutants, which are chosen with -D. */
#ifndef CALLS
#define CALLS 3
#endif
#ifndef SPOOLS
#define SPOOLS 2                  /* 1: all calls come from the spool that has claimed the boot */
#endif
#ifndef LATE
#define LATE 1                    /* requests that are late at one time, at most */
#endif
#define G 2                       /* generations of a blob */
#define BIT(i) (1<<(i))

byte boot;                        /* boots record: 0 none, else spool 1 or 2 */
byte blob[3];                     /* per hash, a bit per generation: the right bytes are there */
byte junk[3];                     /* the same: something else is there */
byte man, attempt;                /* manifest: 0 none, else its hash and its attempt id */
byte quar;                        /* quarantine records, a bit per hash */

byte lateBoot, lateBlob[3], lateMan, lateQuar;   /* requests that may still land */
byte late;                        /* how many those are */
byte hashOf[CALLS], spoolOf[CALLS];

/* what senders and readers have seen */
byte ack;                         /* a bit per hash: told accepted or duplicate */
byte lost;                        /* a bit per hash: told conflict */
byte accepts;                     /* calls that answered accepted: each counts once */
byte writers;                     /* a bit per spool: may have written more than a boots record */
bool lie;                         /* an answer that was wrong when it was given */

#define ONE_ANSWER   (ack != (BIT(1)|BIT(2)) && (!(ack & BIT(1)) || man == 1) && (!(ack & BIT(2)) || man == 2))
#define DURABLE      ((!(ack & BIT(1)) || blob[1]) && (!(ack & BIT(2)) || blob[2]))
#define LOSER_KEPT   ((lost & ~quar) == 0 && (!(lost & BIT(1)) || blob[1]) && (!(lost & BIT(2)) || blob[2]))
#define READABLE     (man == 0 || blob[man])
#define COUNTED_ONCE (accepts <= 1)
#define ONE_SPOOL    (writers != (BIT(1)|BIT(2)))

inline landBlob(h, g) {
	late--; lateBlob[h] = lateBlob[h] & ~BIT(g);
	if
	:: !((blob[h]|junk[h]) & BIT(g)) -> blob[h] = blob[h] | BIT(g)
	:: else
	fi
}

inline landMan(c) {
	late--; lateMan = lateMan & ~BIT(c);
#ifdef OVERWRITE
	man = hashOf[c]; attempt = c+1
#else
	if
	:: man == 0 -> man = hashOf[c]; attempt = c+1
	:: else
	fi
#endif
}

active proctype Network() {
end:
	do
	:: atomic { lateBoot & BIT(1) -> late--; lateBoot = lateBoot & ~BIT(1); boot = (boot == 0 -> 1 : boot) }
	:: atomic { lateBoot & BIT(2) -> late--; lateBoot = lateBoot & ~BIT(2); boot = (boot == 0 -> 2 : boot) }
	:: atomic { lateBlob[1] & BIT(0) -> landBlob(1, 0) }
	:: atomic { lateBlob[1] & BIT(1) -> landBlob(1, 1) }
	:: atomic { lateBlob[2] & BIT(0) -> landBlob(2, 0) }
	:: atomic { lateBlob[2] & BIT(1) -> landBlob(2, 1) }
	:: atomic { lateMan & BIT(0) -> landMan(0) }
	:: atomic { lateMan & BIT(1) -> landMan(1) }
#if CALLS > 2
	:: atomic { lateMan & BIT(2) -> landMan(2) }
#endif
#if CALLS > 3
	:: atomic { lateMan & BIT(3) -> landMan(3) }
#endif
	:: atomic { lateQuar & BIT(1) -> late--; lateQuar = lateQuar & ~BIT(1); quar = quar | BIT(1) }
	:: atomic { lateQuar & BIT(2) -> late--; lateQuar = lateQuar & ~BIT(2); quar = quar | BIT(2) }
	od
}

#ifdef MANIFEST_FIRST
#define PUT_AGAIN blobPut
#else
#define PUT_AGAIN put
#endif
#ifdef CLEAN_UP_ON_UNKNOWN
#define UNKNOWN_MANIFEST readBack
#else
#define UNKNOWN_MANIFEST decide
#endif
#ifdef BOOT_AFTER_MANIFEST
#define AFTER_BOOT   answer
#define AFTER_DECIDE claim
#elif defined(MANIFEST_FIRST)
#define AFTER_BOOT   put
#define AFTER_DECIDE blobPut
#else
#define AFTER_BOOT   put
#define AFTER_DECIDE answer
#endif

#ifdef BOOT_UNKNOWN_IS_OURS
#define UNKNOWN_BOOT AFTER_BOOT
#else
#define UNKNOWN_BOOT claim
#endif
#ifdef QUARANTINE_UNKNOWN_IS_DONE
#define UNKNOWN_QUARANTINE AFTER_DECIDE
#else
#define UNKNOWN_QUARANTINE quarantine
#endif

proctype Call(byte c) {
	byte h, s, g, out;              /* out: 0 undecided, 1 accepted, 2 duplicate, 3 conflict */

	atomic { h = hashOf[c]; s = spoolOf[c] }
#if defined(NO_BOOT) || defined(BOOT_AFTER_MANIFEST)
	goto put;
#endif
claim:
	if
	:: atomic { boot == 0 -> boot = s; goto AFTER_BOOT }          /* created */
	:: atomic { boot == 0 -> boot = s; goto UNKNOWN_BOOT }        /* created, answer lost */
	:: atomic { late < LATE && !(lateBoot & BIT(s)) -> late++; lateBoot = lateBoot | BIT(s); goto UNKNOWN_BOOT }
	:: atomic { boot != 0 ->                                      /* exists: read, compare */
		if
		:: boot == s -> goto AFTER_BOOT
#ifdef BOOT_NOT_COMPARED
		:: else -> goto AFTER_BOOT
#else
		:: else -> goto done                                      /* refused: BOOT_ID_CLASH */
#endif
		fi }
	fi;

put:
#ifdef MANIFEST_FIRST
	goto decide;
blobPut:
#endif
	if
	:: atomic { !((blob[h]|junk[h]) & BIT(g)) ->                  /* created */
		writers = writers | BIT(s); blob[h] = blob[h] | BIT(g); goto haveBlob }
#ifdef NO_CHECKSUM
	:: atomic { !((blob[h]|junk[h]) & BIT(g)) ->                  /* damaged on its way, and stored */
		writers = writers | BIT(s); junk[h] = junk[h] | BIT(g); goto haveBlob }
#endif
	:: atomic { !((blob[h]|junk[h]) & BIT(g)) ->                  /* created, answer lost */
		writers = writers | BIT(s); blob[h] = blob[h] | BIT(g); goto PUT_AGAIN }
	:: atomic { late < LATE && !(lateBlob[h] & BIT(g)) -> late++;
		writers = writers | BIT(s); lateBlob[h] = lateBlob[h] | BIT(g); goto PUT_AGAIN }
#ifdef CONFLICT_409_IS_EXISTS
	:: atomic { writers = writers | BIT(s); goto haveBlob }       /* somebody else is writing it, so it is there */
#endif
	:: atomic { blob[h] & BIT(g) -> goto haveBlob }               /* exists, HEAD says ours */
#ifdef TRUST_EXISTING
	:: atomic { junk[h] & BIT(g) -> goto haveBlob }
#else
	:: atomic { junk[h] & BIT(g) -> g = g+1; goto PUT_AGAIN }     /* exists, HEAD says corrupt: next generation */
#endif
	fi;

haveBlob:
	skip;
#ifdef MANIFEST_FIRST
	goto answer;
#endif
decide:
#ifdef CHECK_THEN_WRITE
	if
	:: man == 0 -> atomic { man = h; attempt = c+1; out = 1; goto AFTER_DECIDE }
	:: man != 0
	fi;
#endif
	if
#ifdef OVERWRITE
	:: atomic { man = h; attempt = c+1; out = 1; goto AFTER_DECIDE }
#endif
	:: atomic { man == 0 -> man = h; attempt = c+1; out = 1; goto AFTER_DECIDE }
	:: atomic { man == 0 -> man = h; attempt = c+1; goto decide }  /* created, answer lost */
	:: atomic { late < LATE && !(lateMan & BIT(c)) -> late++; lateMan = lateMan | BIT(c); goto UNKNOWN_MANIFEST }
	:: man != 0                                                   /* exists */
	fi;
	atomic {                                                      /* read, compare */
		if
#ifdef NOT_COMPARED
		:: man != h -> out = 2
#endif
#ifdef NO_ATTEMPT_ID
		:: man == h -> out = 2
#elif defined(ATTEMPT_ID_OF_FRAME)
		:: man == h -> out = 1
#else
		:: man == h && attempt == c+1 -> out = 1                  /* our own write: the 200 was lost */
		:: man == h && attempt != c+1 -> out = 2
#endif
#ifndef NOT_COMPARED
		:: man != h && man != 0 -> out = 3
#endif
		fi;
		if
		:: out == 3 -> goto quarantine
		:: else -> goto AFTER_DECIDE
		fi
	}

#ifdef CLEAN_UP_ON_UNKNOWN
readBack:
	atomic {
		if
		:: man == 0 -> blob[h] = 0; goto done                     /* not found: so it did not happen */
		:: else -> goto decide
		fi
	}
#endif

quarantine:
#ifdef NO_QUARANTINE
	goto AFTER_DECIDE;
#endif
	if
	:: atomic { quar = quar | BIT(h); goto AFTER_DECIDE }         /* created, or exists */
	:: atomic { quar = quar | BIT(h); goto quarantine }           /* answer lost */
	:: atomic { late < LATE && !(lateQuar & BIT(h)) -> late++; lateQuar = lateQuar | BIT(h); goto UNKNOWN_QUARANTINE }
	fi;

answer:
	atomic {
		if
		:: out == 1 -> accepts = accepts+1; ack = ack | BIT(h); lie = lie || man != h
		:: out == 2 -> ack = ack | BIT(h); lie = lie || man != h || attempt == c+1
		:: out == 3 -> lost = lost | BIT(h); lie = lie || man == h || man == 0
		fi
	}
done:
	atomic { h = 0; s = 0; g = 0; out = 0 }
}

active proctype Monitor() {
end:
	atomic { !(ONE_ANSWER && DURABLE && LOSER_KEPT && READABLE && COUNTED_ONCE && ONE_SPOOL && !lie) ->
		assert(ONE_ANSWER); assert(DURABLE); assert(LOSER_KEPT); assert(READABLE);
		assert(COUNTED_ONCE); assert(ONE_SPOOL); assert(!lie) }
}

init {
	byte c;
	atomic {
		if                        /* generation 0 of either frame: free, an old orphan, or garbage */
		:: skip
		:: blob[1] = BIT(0)
		:: junk[1] = BIT(0)
		fi;
		if
		:: skip
		:: junk[2] = BIT(0)
		fi;
		hashOf[0] = 1; spoolOf[0] = 1;   /* the names of hashes and spools are arbitrary */
#if SPOOLS == 1
		boot = 1;
#endif
		c = 1;
		do
		:: c < CALLS ->
			if :: hashOf[c] = 1 :: hashOf[c] = 2 fi;
#if SPOOLS > 1
			if :: spoolOf[c] = 1 :: spoolOf[c] = 2 fi;
#else
			spoolOf[c] = 1;
#endif
			c++
		:: else -> break
		od;
		c = 0;
		do
		:: c < CALLS -> run Call(c); c++
		:: else -> break
		od
	}
}
