/* Collectors that read no marker, against the collection of garbage: epochs of condemned
   names, journal segments that name an epoch, and the barrier.

   One frame, whose identity has no other, and generation 0 of its blob; a call that turns to
   a further generation relies on nothing that is deleted here, so it ends. The log of epochs
   grows by conditional creates; here its end and the epoch that names the frame first. The
   epoch of a segment is what the collector held when the segment's bytes were fixed. A
   collector has one run at a time and one segment in flight; what the journal itself needs (bytes
   that are fixed, answers lost) is checked in journal.pml. A fence comes at any moment behind segments that were
   once there, from a reconciler that may have slept meanwhile; folding is the one step "one
   more segment is folded", deletes of what is folded come at any time.

   With BEGINS the log of epochs begins at any time; without it has begun, and nothing was condemned before. With FOLD
   segments are folded and deleted, with CLOSE runs are closed, with PLAIN a run may say that it never names an epoch.

   Any number of calls, collectors that crash and begin again, collections that crash and begin again.
   The README has the mutants, which are chosen with -D. */
#ifndef COLLECTORS
#define COLLECTORS 1
#endif
#ifndef GCS
#define GCS 1
#endif
#ifndef RUNS
#define RUNS 2                    /* in all */
#endif
#ifndef SEGMENTS
#define SEGMENTS 3                /* of a run */
#endif
#ifndef EPOCHS
#define EPOCHS 2                  /* the first one is what was condemned before the log began */
#endif
#ifndef FENCES
#define FENCES 1                  /* in all */
#endif
#define BIT(r)    (1<<(r))
#define SEG(r, n) seg[(r)*SEGMENTS+(n)]

/* a segment: 0 not there; else PRESENT and the epoch that it names, 0 for none; CLOSED ends the run */
#define PRESENT 16
#define CLOSED  32
#define FENCE   64
#define EPOCH   15
#define OWN(s)  ((s) & PRESENT)

bool blob, marker, man;
bool lateDelete;
#ifdef BEGINS
bool begun;                       /* the log of epochs has begun: every collection goes by it */
byte last;                        /* the last epoch */
#else
#define begun true
byte last = 1;
#endif
byte named;                       /* the first epoch that names the frame; 0 none */
byte seg[RUNS*SEGMENTS];
byte there[RUNS];                 /* segments that were ever there */
#ifdef FOLD
byte folded[RUNS];                /* the head */
byte headEnd;                     /* a bit per run */
#define FOLDED(r) folded[r]
#else
#define FOLDED(r) 0
#define headEnd   0
#endif
byte opened;                      /* runs are opened in order, which loses nothing */
#ifdef PLAIN
byte plain;                       /* a bit per run: it says in segment 0 that it names no epochs */
#else
#define plain 0
#endif
byte fences;
bool ack;                         /* somebody was answered, and relies on the blob */

#define DURABLE (!ack || blob)
#define CONDEMNS(e) (named != 0 && named <= (e))

active proctype Network() {
	byte r, n;
end:
	do
	:: atomic { lateDelete -> lateDelete = false; blob = false; assert(DURABLE) }
	/* fences */
	:: atomic { opened > 0 ->
		if :: r = 0 :: r = RUNS-1 fi;
		if
		:: n = 1
#if SEGMENTS > 2
		:: n = SEGMENTS-1
#endif
		fi;
		if
		:: fences < FENCES && SEG(r, n) == 0 && n <= there[r] && there[r] > 0 -> fences++; SEG(r, n) = FENCE
		:: else
		fi; r = 0; n = 0 }
#ifdef FOLD
	:: atomic { opened > 0 ->
		if :: r = 0 :: r = RUNS-1 fi;
		if
		:: !(headEnd & BIT(r)) && folded[r] < SEGMENTS && SEG(r, folded[r]) != 0 ->
			if :: SEG(r, folded[r]) & (CLOSED|FENCE) -> headEnd = headEnd | BIT(r) :: else fi;
			folded[r]++
		:: else
		fi; r = 0 }
	:: atomic { opened > 0 ->
		if :: r = 0 :: r = RUNS-1 fi;
		if
		:: n = 0
		:: n = 1
#if SEGMENTS > 2
		:: n = SEGMENTS-1
#endif
		fi;
		if
		:: n < folded[r] && OWN(SEG(r, n)) -> SEG(r, n) = 0
		:: else
		fi; r = 0; n = 0 }
#endif
#ifdef BEGINS
	/* the log begins: first it says so, then the markers are listed */
	:: atomic { !begun -> begun = true }
	:: atomic { begun && last == 0 -> last = 1; named = (marker -> 1 : 0) }
#endif
	/* an epoch about other frames */
	:: atomic { last > 0 && last < EPOCHS -> last++ }
	od
}

#ifdef SEGMENT_0_NAMES
#define MAY_NAME(n)  (held > 0)
#else
#define MAY_NAME(n)  ((n) > 0 && current && held > 0)
#endif
#ifdef EPOCH_READ_BEFORE_OPENING
#define ASKED_IN_RUN true
#else
#define ASKED_IN_RUN (live && n > 0)
#endif

active [COLLECTORS] proctype Collector() {
	byte r, n;                     /* the run and its next segment */
	bool live, names;              /* names: the run may name epochs, which segment 0 says */
	byte held;                     /* the set of names is that of this epoch */
	bool asking, asked;            /* it asks for the end of the log; it began to when segment 0 was durable */
	bool current;                  /* an answer to that has come in this run */
	byte c;                        /* the call: 0 none, 1 has a blob, 2 has seen its record, 3 its segment is durable and it has to read the marker */
#ifdef CHECKED_WHEN_ADDED
	bool early;
#endif
	bool sent, within, spared, closes; byte epoch;   /* the segment in flight; the call's entry is in it; and needs no marker read */
again:
	do
	/* the call */
	:: atomic { c == 0 -> blob = true; c = 1 }                       /* created, or exists with these bytes */
	:: atomic { c == 1 -> man = true; c = 2;                           /* created, or found */
#ifdef CHECKED_WHEN_ADDED
		early = held > 0 && !CONDEMNS(held);
#endif
		}
	:: atomic { c == 3 -> if :: !marker -> ack = true :: else fi; c = 0; assert(DURABLE) }
	:: atomic { c > 0 -> c = 0; within = false; spared = false }                          /* gives up */
	/* the log of epochs */
	:: atomic { !asking -> asking = true; asked = ASKED_IN_RUN }
	:: atomic { asking -> asking = false; held = last; current = current || asked; asked = false }
	/* the journal */
	:: atomic { !live && opened < RUNS ->                             /* segment 0 */
		r = opened; opened++; live = true; n = 0; current = false;
#ifdef EPOCH_READ_BEFORE_OPENING
		current = held > 0;
#endif
#ifndef FENCED_STAYS_CHECKED
		spared = false;
#endif
		asked = false;
		if
		:: names = true
#ifdef PLAIN
		:: names = false; plain = plain | BIT(r)
#endif
		fi;
		goto seal }
	:: atomic { live && !sent && n < SEGMENTS -> goto seal }
	:: atomic { sent && SEG(r, n) == 0 && n >= FOLDED(r) ->            /* created */
		SEG(r, n) = PRESENT | epoch | (closes -> CLOSED : 0); there[r] = n+1; n++; sent = false;
		if :: closes -> live = false; names = false; current = false; asked = false; closes = false; r = 0; n = 0 :: else fi;
		if
		:: within && c == 2 && spared -> ack = true; c = 0
		:: within && c == 2 && !spared -> c = 3
		:: else
		fi;
		within = false; spared = false; epoch = 0; assert(DURABLE) }
	:: atomic { sent && SEG(r, n) & FENCE ->                           /* another run takes the entry */
		sent = false; live = false; names = false; closes = false; within = false; epoch = 0; current = false; asked = false; r = 0; n = 0;
#ifndef FENCED_STAYS_CHECKED
		spared = false
#endif
		}
	/* crash, and another life */
	:: atomic { live || c > 0 || held > 0 ->
		r = 0; n = 0; live = false; names = false; held = 0; asking = false; asked = false; current = false;
		c = 0; sent = false; within = false; spared = false; closes = false; epoch = 0 }
	od;
seal:                              /* the bytes of the segment are fixed, and what it has is checked against the epoch that it names */
	atomic {
		sent = true; within = (c == 2);
		epoch = (names && MAY_NAME(n) -> held : 0);
#ifdef CHECKED_WHEN_ADDED
		spared = within && epoch > 0 && early;
#else
		spared = spared || (within && epoch > 0 && !CONDEMNS(epoch));
#endif
#ifdef UNNAMED_SPARES
		spared = spared || (within && held > 0 && !CONDEMNS(held));
#endif
#ifdef EPOCH_GOES_BACK
		if :: held > 1 -> held = held - 1 :: skip fi;
		epoch = (names && MAY_NAME(n) -> held : 0);
		spared = within && epoch > 0 && !CONDEMNS(epoch);
#endif
#ifdef ANSWER_BEFORE_SEGMENT
		if :: within && spared -> ack = true; c = 0; within = false; assert(DURABLE) :: else fi;
#endif
		if
#ifdef CLOSE
		:: n > 0 -> closes = true
#endif
		:: true
		fi;
		goto again
	}
}

/* What lets a run pass. One that a folder has folded to its end has ended. */
#ifdef FENCE_UNCHECKED
#define FENCE_ENDS(r, n) true
#else
#define FENCE_ENDS(r, n) (FOLDED(r) <= n)
#endif
#ifdef UNNAMED_PASSES
#define NAMES(s, e) (((s) & EPOCH) >= (e) || ((s) & EPOCH) == 0)
#else
#define NAMES(s, e) (((s) & EPOCH) >= (e))
#endif
#define SHOWS(r, n) ((OWN(SEG(r, n)) && NAMES(SEG(r, n), mine)) || (SEG(r, n) & CLOSED) || ((SEG(r, n) & FENCE) && FENCE_ENDS(r, n)))

#if GCS > 0
active [GCS] proctype GC() {
	byte mine;                     /* the epoch that runs have to name */
	byte todo;                     /* a bit per run that has to pass */
#ifdef BEGIN_READ_FIRST
	bool known;
#endif
again:
	atomic { blob -> mine = 0; todo = 0;
#ifdef BEGIN_READ_FIRST
		known = begun
#endif
	}
	if
	:: atomic { !man }             /* the search */
	:: atomic { man -> goto again }
	fi;
#ifdef LISTED_BEFORE_THE_EPOCH
	atomic { todo = (there[0] > 0 && SEG(0, 0) != 0 -> 1 : 0) | (RUNS > 1 && SEG(RUNS-1, 0) != 0 -> BIT(RUNS-1) : 0) }
#endif
#ifdef MARKER_EXISTS_IS_NAMED
	if
	:: atomic { marker -> mine = last; goto listed }
	:: atomic { !marker }
	fi;
#endif
	if
	:: atomic { marker = true }    /* created, or exists */
	:: goto again                  /* crash, or of unknown outcome: kept */
	fi;
#ifdef OLD_GC
	goto prove;
#endif
	if
#ifdef BEGIN_READ_FIRST
	:: atomic { !known -> goto prove }
	:: atomic { known && last > 0 }
#else
	:: atomic { !begun -> goto prove }                               /* no epochs yet: their first one has this marker */
	:: atomic { begun && last > 0 }
#endif
	:: goto again
	fi;
	if
	:: atomic { named == 0 && last < EPOCHS -> last++; named = last; mine = last }
	:: atomic { named == 0 && last < EPOCHS -> last++; named = last; goto again }   /* answer lost, and crash */
	:: atomic { named > 0 -> mine = last }
	:: goto again
	fi;
listed:
#ifdef NO_BARRIER
	goto prove;
#endif
#ifdef PROVE_BEFORE_BARRIER
	if
	:: atomic { !man }
	:: atomic { man -> goto again }
	fi;
#endif
#ifndef LISTED_BEFORE_THE_EPOCH
	atomic { todo = (SEG(0, 0) != 0 -> 1 : 0) | (RUNS > 1 && SEG(RUNS-1, 0) != 0 -> BIT(RUNS-1) : 0) }
#endif
#ifndef LISTED_ALONE
	atomic {                       /* the head: runs whose segment 0 is deleted, and those that have ended */
		todo = todo | (FOLDED(0) > 0 -> 1 : 0) | (RUNS > 1 && FOLDED(RUNS-1) > 0 -> BIT(RUNS-1) : 0);
		todo = todo & ~headEnd }
#endif
	do
	:: atomic { todo & 1 && (SHOWS(0, 0) || SHOWS(0, 1) || SHOWS(0, SEGMENTS-1) || (headEnd & 1) || (plain & 1)) -> todo = todo & ~1 }
#if RUNS > 1
	:: atomic { todo & BIT(RUNS-1) && (SHOWS(RUNS-1, 0) || SHOWS(RUNS-1, 1) || SHOWS(RUNS-1, SEGMENTS-1) || (headEnd & BIT(RUNS-1)) || (plain & BIT(RUNS-1))) -> todo = todo & ~BIT(RUNS-1) }
#endif
	:: todo == 0 -> break
	:: goto again                  /* it waits for another round, or crashes */
	od;
prove:
#ifndef PROVE_BEFORE_BARRIER
	if
	:: atomic { !man }
	:: atomic { man -> goto again }
	fi;
#endif
	if
	:: atomic { blob = false; assert(DURABLE) }
	:: atomic { !lateDelete -> lateDelete = true }
	fi;
	goto again
}
#endif
