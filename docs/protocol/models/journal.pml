/* The acceptance journal: lives of writers with their runs of segments, fences, a
   follower that publishes how far it is complete, folding and deletes.

   A run is one life of one writer, and writes segments 0, 1, 2, ... of its own. A
   collector answers a batch accepted or duplicate once an entry for it stands in a
   segment that is known to be there. A reconciler fences a run that seems dead: it
   creates the run's next segment itself. A follower LISTs the runs, GETs the next
   segment of each until one is not there, and publishes complete_through. A folder
   copies segments into index objects, moves the head over them and deletes them.

   One request is one atomic step: applied and answered, or late, and it lands at any
   later time or never, its answer lost. A writer that is not scheduled any more is
   paused for ever, or dead, or was fenced and is now the next writer. One batch is
   followed; any writer takes it at any time until it is answered, which is every
   sender that tries again through any collector, and the audit. All other batches are
   segments that may be written at any time. A fence comes at any moment, in any run, at
   any segment but 0, from a reconciler that may have slept and knows nothing. LIST and
   GETs of a poll come in any order. Followers only read, so one stands for any number.
   There are no clocks.

   FOLD=1: what a move of the head names is durable before it, and it moves by
   If-Match; so the move of any folder, however late, is the one step "one more segment
   is folded". Deletes land at any time after it. FOLD=2 has the folder's read, GET and
   move as steps of their own, and a move may be late.

   The README has the mutants, which are chosen with -D. */
#ifndef RUNS
#define RUNS 2                    /* 1 to 3, and as many writers */
#endif
#ifndef SEGMENTS
#define SEGMENTS 2                /* of a run, 2 to 4 */
#endif
#ifndef FOLLOWERS
#define FOLLOWERS 1
#endif
#ifndef FENCES
#define FENCES 1                  /* in all */
#endif
#ifndef LATE
#define LATE 1                    /* creates of segments that are late at one time, 0 to 2 */
#endif
#ifndef FOLD
#define FOLD 0
#endif
#ifndef FORGETS
#define FORGETS 0                 /* runs that the head forgets after their end, in all */
#endif
#if defined(PIPELINE) || defined(NEXT_BEFORE_CONFIRMED_WITH_ANSWER)
#define IN_FLIGHT 2               /* n+1 is sent before n is known to be there */
#else
#define IN_FLIGHT 1
#endif

/* A segment is 0 (not there), or PRESENT with its entries, or FENCE. CLOSED marks the
   last segment of an orderly end. Equal values are equal bytes. */
#define H1      1                 /* an entry for the batch */
#define H2      2                 /* with HASHES: for its identity, with another hash */
#define ENTRIES 3
#define PRESENT 4
#define CLOSED  8
#define FENCE   20
#define KEY(r, n) ((r)*SEGMENTS+(n))
#define SEG(r, n) seg[KEY(r, n)]
#define BIT(r)    (1<<(r))

/* X for every run, and for every segment of a run but 0 */
#if RUNS == 1
#define EACH_RUN(X) X(0)
#elif RUNS == 2
#define EACH_RUN(X) X(0) X(1)
#else
#define EACH_RUN(X) X(0) X(1) X(2)
#endif
#if SEGMENTS == 2
#define EACH_LATER(X, r) X(r, 1)
#elif SEGMENTS == 3
#define EACH_LATER(X, r) X(r, 1) X(r, 2)
#else
#define EACH_LATER(X, r) X(r, 1) X(r, 2) X(r, 3)
#endif

#ifdef HASHES
byte man;                         /* the identity manifest: 0 none, else H1 or H2 */
#else
#define man H1
#endif
byte seg[RUNS*SEGMENTS];
#if LATE > 0
byte lateKey[LATE], lateSeg[LATE]; /* creates that may still land: key, bytes (0: none) */
#endif
byte begun;                       /* runs begin in order, which loses nothing */
#if FOLD > 0
byte folded[RUNS];                /* the head, one object: of each run how many segments are folded; */
byte headEnd;                     /*   a bit per run: folded to its end; */
byte forgot;                      /*   those that it forgot since; */
byte indexed;                     /*   entries in the index objects that it names */
byte deleted[RUNS];               /* segments that a delete may hit, from now on for ever */
#endif
#if FOLD > 1
byte headNum;                     /* every move raises it: no two heads are equal */
bool lateMove; byte lateHead, lateRun, lateN, lateVal, lateIndexed;
#endif
#ifdef FENCE_DELETED_WHEN_LEFT
byte left;                        /* runs that their writer said that it left */
#endif

byte answered;                    /* what senders have seen: accepted or duplicate, by hash */

/* The promises. */
bool complete = true;             /* P1: complete_through = T is published only by who has applied all that was answered before T */
bool oneHash = true;              /* P2: what is answered is the manifest's hash */
bool inJournal = true;            /* P3: what is answered stands in an index object, or in a segment that a follower gets at */
bool notFenced = true;            /* P4: nothing is answered from a segment that is a fence */
bool entryAccepted = true;        /* P5: an entry that a follower applies has the accepted hash */

byte i_, j_, m_, v_, t_;          /* scratch, 0 between steps */

/* P2 and P3. A follower gets at a segment when there is no gap, fence or end before it. */
inline check() {
	d_step {
		oneHash = (answered & ~man) == 0;
		assert(oneHash);
		m_ = 0; i_ = 0;
		do
		:: i_ < RUNS ->
			j_ = 0;
#if FOLD > 0
			if :: (headEnd|forgot) & BIT(i_) -> j_ = SEGMENTS :: else -> j_ = folded[i_] fi;
#endif
			do
			:: j_ < SEGMENTS && SEG(i_, j_) != 0 && SEG(i_, j_) != FENCE ->
				m_ = m_ | (SEG(i_, j_) & ENTRIES);
				if :: SEG(i_, j_) & CLOSED -> j_ = SEGMENTS :: else -> j_++ fi
			:: else -> break
			od;
			i_++
		:: else -> break
		od;
#if FOLD > 0
		m_ = m_ | indexed;
#endif
		inJournal = (answered & ~m_) == 0;
#ifndef UNTIL_A_FOLLOWER_SEES_IT     /* P3 is left out, so that a mutant runs on until P1 breaks */
		assert(inJournal);
#endif
		i_ = 0; j_ = 0; m_ = 0
	}
}

/* ---- the store and the network ---- */

#if LATE > 1
#define ROOM (lateSeg[0] == 0 || lateSeg[1] == 0)
#define CREATE_LATE(k, v) if :: lateSeg[0] == 0 -> lateKey[0] = k; lateSeg[0] = v :: else -> lateKey[1] = k; lateSeg[1] = v fi
#elif LATE > 0
#define ROOM (lateSeg[0] == 0)
#define CREATE_LATE(k, v) lateKey[0] = k; lateSeg[0] = v
#endif
#define LAND(s) :: atomic { lateSeg[s] != 0 -> \
	if :: seg[lateKey[s]] == 0 -> seg[lateKey[s]] = lateSeg[s] :: else fi; lateKey[s] = 0; lateSeg[s] = 0 }

#define DELETE(r, n) :: atomic { (deleted[r] & BIT(n)) != 0 && SEG(r, n) != 0 -> SEG(r, n) = 0; check() }
#ifdef FENCE_DELETED_WHEN_LEFT    /* the fence goes once it is folded and its writer has said that it left the run */
#define UNFENCE(r, n) :: atomic { (left & BIT(r)) != 0 && ((headEnd|forgot) & BIT(r)) != 0 && SEG(r, n) == FENCE -> SEG(r, n) = 0; check() }
#define DELETES(r) DELETE(r, 0) EACH_LATER(DELETE, r) EACH_LATER(UNFENCE, r)
#else
#define DELETES(r) DELETE(r, 0) EACH_LATER(DELETE, r)
#endif

#if FOLD > 0
inline deletable(r_, n_, val_) {
#ifdef FENCE_DELETED
	deleted[r_] = deleted[r_] | BIT(n_)
#else
	if
	:: val_ != FENCE -> deleted[r_] = deleted[r_] | BIT(n_)
	:: else                                        /* a fence stays for ever */
	fi
#endif
}

/* The head moves over one more segment, whose index objects are durable. */
inline move(r_, n_, val_, ix_) {
	d_step {
		folded[r_] = n_ + 1; indexed = ix_ | (val_ & ENTRIES);
		if :: val_ == FENCE || (val_ & CLOSED) -> headEnd = headEnd | BIT(r_) :: else fi
#if FOLD > 1
		; headNum++
#endif
	};
	deletable(r_, n_, val_)
}
#ifdef HEAD_NO_IF_MATCH
#define MATCHES(num) true
#else
#define MATCHES(num) (headNum == num)
#endif
#endif

active proctype Network() {
end:
	do
	:: false
#if LATE > 0
	LAND(0)
#endif
#if LATE > 1
	LAND(1)
#endif
#ifdef HASHES
	:: atomic { man == 0 -> man = H1 }             /* some collector's create of the manifest, answered or not */
	:: atomic { man == 0 -> man = H2 }
#endif
#if FOLD > 1 && LATE > 0
	:: atomic { lateMove ->
		if :: MATCHES(lateHead) -> move(lateRun, lateN, lateVal, lateIndexed) :: else fi;
		lateMove = 0; lateHead = 0; lateRun = 0; lateN = 0; lateVal = 0; lateIndexed = 0;
		check() }
#endif
#if FOLD > 0
	EACH_RUN(DELETES)
#endif
	od
}

/* ---- writers ---- */

/* The state of segment n of the writer's run (at 0), and of n+1 (at 1). */
#define UNSENT  0
#define SENT    1                 /* late, or the answer was lost: its outcome is not known */
#define REFUSED 2                 /* 412: something is there, which is read and compared next */
#define HELD    3                 /* n+1 is known to be there, n is not: its answers wait */
#define OVER    4                 /* the run is closed or fenced; what is not answered goes to another run */

#if defined(ENTRY_BEFORE_MANIFEST) || defined(ANSWER_WITHOUT_MANIFEST)
#define MAY_ENTER(h) (man == h || man == 0)
#else
#define MAY_ENTER(h) (man == h)                    /* the manifest was observed */
#endif
#ifdef ENTRY_BEFORE_MANIFEST
#define ANSWER(v) answered = answered | ((v) & ENTRIES & man); check()
#else
#define ANSWER(v) answered = answered | ((v) & ENTRIES); check()
#endif
#ifdef ANSWER_BEFORE_SEGMENT
#define FILL(k, v) ANSWER(v); bytes[k] = v
#else
#define FILL(k, v) bytes[k] = v
#endif

/* the bytes of a segment: without the batch, or with an entry for it; not the last one, or the last */
#define WITH(k, h, end_) :: MAY_ENTER(h) && (answered & h) == 0 -> FILL(k, end_|h)
#ifdef HASHES
#define CHOOSE(k, end_) :: FILL(k, end_) WITH(k, H1, end_) WITH(k, H2, end_)
#else
#define CHOOSE(k, end_) :: FILL(k, end_) WITH(k, H1, end_)
#endif
#ifdef CLOSE
#define GATHER(k) begin(); if CHOOSE(k, PRESENT) CHOOSE(k, PRESENT|CLOSED) fi
#else
#define GATHER(k) begin(); if CHOOSE(k, PRESENT) fi
#endif

#ifdef RUN_SHARED
#define r 0
#else
#define r (_pid-1)
#endif
#define IDLE  (state[0] == UNSENT && n < SEGMENTS && r <= begun)
#define AHEAD (state[0] == SENT && (bytes[0] & CLOSED) == 0 && state[1] == UNSENT && n+1 < SEGMENTS)

inline begin() {
	if :: r == begun -> begun++ :: else fi
}

inline next() {
	n++;
#if IN_FLIGHT == 2
	bytes[0] = bytes[1]; state[0] = state[1]; bytes[1] = 0; state[1] = UNSENT
#else
	bytes[0] = 0; state[0] = UNSENT
#endif
}

inline end_run() {
#ifdef FENCE_DELETED_WHEN_LEFT
	left = left | BIT(r);
#endif
	state[0] = OVER; n = 0; bytes[0] = 0;
#if IN_FLIGHT == 2
	bytes[1] = 0; state[1] = UNSENT;
#endif
}

/* Segment n is there and ours. */
inline confirm() {
	notFenced = SEG(r, n) != FENCE; assert(notFenced);
	ANSWER(bytes[0]);
	if
	:: bytes[0] & CLOSED -> end_run()
	:: else ->
		next();
#if IN_FLIGHT == 2
		if
		:: state[0] == HELD ->
			ANSWER(bytes[0]);
			if :: bytes[0] & CLOSED -> end_run() :: else -> next() fi
		:: else
		fi
#endif
	fi
}

inline create() {
	if
	:: SEG(r, n) == 0 -> SEG(r, n) = bytes[0]; confirm()
#if FOLD > 0
	:: else -> state[0] = REFUSED
	fi
}

inline compare() {
	if
	:: SEG(r, n) == 0 -> state[0] = SENT               /* ours, folded and deleted meanwhile: create again */
#endif
	:: SEG(r, n) == bytes[0] -> confirm()
#ifdef FENCE_NOT_COMPARED
	:: else -> confirm()
#else
	:: else -> end_run()                              /* other bytes: fenced */
#endif
	fi
}

#if IN_FLIGHT == 2
inline hold() {
	state[1] = HELD;
#ifdef NEXT_BEFORE_CONFIRMED_WITH_ANSWER
	ANSWER(bytes[1])
#endif
}
#endif

active [RUNS] proctype Writer() {
	byte n, bytes[IN_FLIGHT], state[IN_FLIGHT];
end:
	do
	:: atomic { IDLE -> GATHER(0); create() }
	:: atomic { state[0] == SENT -> create() }        /* the outcome is unknown: the same bytes again */
#if LATE > 0
	:: atomic { IDLE && ROOM -> GATHER(0); state[0] = SENT; CREATE_LATE(KEY(r, n), bytes[0]) }
	:: atomic { state[0] == SENT && ROOM -> CREATE_LATE(KEY(r, n), bytes[0]) }
#endif
#if FOLD > 0
	:: atomic { state[0] == REFUSED -> compare() }
#endif
#if IN_FLIGHT == 2
	:: atomic { AHEAD -> GATHER(1);
		if :: SEG(r, n+1) == 0 -> SEG(r, n+1) = bytes[1]; hold() :: else -> end_run() fi }
	:: atomic { state[1] == SENT ->
		if
		:: SEG(r, n+1) == 0 || SEG(r, n+1) == bytes[1] -> SEG(r, n+1) = bytes[1]; hold()
		:: else -> end_run()
		fi }
#if LATE > 0
	:: atomic { AHEAD && ROOM -> GATHER(1); state[1] = SENT; CREATE_LATE(KEY(r, n+1), bytes[1]) }
#endif
#endif
#ifdef DUPLICATE_WITHOUT_ENTRY
	:: atomic { IDLE && man == H1 -> ANSWER(H1) }
#endif
#ifdef RETRY_OTHER_BYTES
	:: atomic { state[0] == SENT && bytes[0] == PRESENT && (answered & H1) == 0 -> bytes[0] = PRESENT|H1 }
#endif
#ifdef RUN_REUSED
	:: atomic { n != 0 || state[0] != UNSENT -> end_run(); state[0] = UNSENT }   /* the next life takes the same run */
#endif
	od
}
#undef r

/* ---- fences ---- */

#if FENCES > 0
#if LATE > 0
#define FENCE_LATE(r, n) :: atomic { r < begun && k < FENCES && ROOM -> k++; CREATE_LATE(KEY(r, n), FENCE) }
#else
#define FENCE_LATE(r, n)
#endif
#define FENCE_NOW(r, n) :: atomic { r < begun && k < FENCES && SEG(r, n) == 0 -> k++; SEG(r, n) = FENCE; check() } FENCE_LATE(r, n)
#ifdef FENCE_AT_0                 /* safe, but the object that opens a run would stay in every LIST */
#define FENCE_RUN(r) FENCE_NOW(r, 0) EACH_LATER(FENCE_NOW, r)
#else
#define FENCE_RUN(r) EACH_LATER(FENCE_NOW, r)
#endif

active proctype Fencer() {
	byte k;
end:
	do
	EACH_RUN(FENCE_RUN)
	od
}
#endif

/* ---- folding ---- */

#if FOLD > 0
#if FOLD > 1
#define MOVED headNum++
#else
#define MOVED skip
#endif
#if FORGETS > 0
byte forgets;
#define FORGET(x) :: atomic { forgets < FORGETS && (headEnd & BIT(x)) != 0 -> forgets++; \
	headEnd = headEnd & ~BIT(x); folded[x] = 0; forgot = forgot | BIT(x); MOVED; goto again }
#else
#define FORGET(x)
#endif
#define UNFOLDED(x) ((headEnd & BIT(x)) == 0 && folded[x] < SEGMENTS && SEG(x, folded[x]) != 0)
#endif

#if FOLD == 1
#define FOLD_RUN(x) :: atomic { UNFOLDED(x) -> j_ = folded[x]; v_ = SEG(x, j_); move(x, j_, v_, indexed); v_ = 0; check() } FORGET(x)
active proctype Folder() {
again:
end:
	do
	EACH_RUN(FOLD_RUN)
	od
}
#endif

#if FOLD == 2
#define FOLD_RUN(x) :: atomic { UNFOLDED(x) -> r = x; num = headNum; n = folded[x]; ix = indexed } FORGET(x)
active proctype Folder() {
	byte num, r, n, val, ix;
again:
end:
	if                                                /* reads the head */
	EACH_RUN(FOLD_RUN)
	fi;
	atomic {                                          /* reads the segment, writes the index objects */
		val = SEG(r, n);
#ifdef FOLD_DELETES_FIRST
		if :: val != 0 -> deletable(r, n, val) :: else fi
#endif
	};
	if                                                /* moves the head */
#ifdef HEAD_BEFORE_INDEX
	:: atomic { val != 0 && MATCHES(num) -> move(r, n, val, ix); indexed = ix; check() }; indexed = indexed | (val & ENTRIES)
#else
	:: atomic { val != 0 ->
		if :: MATCHES(num) -> move(r, n, val, ix) :: else fi;
		check() }
#endif
#if LATE > 0
	:: atomic { val != 0 && !lateMove -> lateMove = 1; lateHead = num; lateRun = r; lateN = n; lateVal = val; lateIndexed = ix;
#ifdef FOLD_DELETES_ON_UNKNOWN
		deletable(r, n, val)
#endif
		}
#endif
	:: val == 0                                       /* gone: another folder was here */
	fi;
	atomic { num = 0; r = 0; n = 0; val = 0; ix = 0; goto again }
}
#endif

/* ---- followers ---- */

/* T is a time before the poll's first request: the answers that senders have by then. */
#ifdef T_AT_FIRST_ANSWER
#define TAKE_T if :: first == 2 -> first = 1 :: first == 1 -> first = 0; before = answered :: else fi
#else
#define TAKE_T if :: first == 2 -> first = 0; before = answered :: else fi
#endif

/* LIST of the runs: page by page, so each run is looked for at a time of its own */
#ifdef STALE_LIST
#define SHOWN(x) v_ = lastPoll & BIT(x); if :: SEG(x, 0) != 0 -> lastPoll = lastPoll | BIT(x) :: else fi
#else
#define SHOWN(x) v_ = SEG(x, 0)
#endif
#ifdef LISTED_NOT_POLLED
#define TURN(x) skip
#else
#define TURN(x) todo = todo | BIT(x)
#endif
#define LIST_RUN(x) :: atomic { (listed & BIT(x)) == 0 -> TAKE_T; listed = listed | BIT(x); SHOWN(x); \
	if :: v_ != 0 && (known & BIT(x)) == 0 -> known = known | BIT(x); TURN(x) :: else fi; v_ = 0 }

/* GET of segment n of run x, and what follows from the answer */
inline get(x) {
	d_step {
		v_ = 0;
		if :: n[x] < SEGMENTS -> v_ = SEG(x, n[x]) :: else fi;
		if
		:: v_ == 0 -> todo = todo & ~BIT(x);          /* not there: the run's turn ends */
#ifdef FOLLOWER_SKIPS_ABSENT
			if :: n[x] < SEGMENTS -> n[x]++ :: else fi
#endif
		:: v_ == FENCE -> todo = todo & ~BIT(x); fenced = fenced | BIT(x)
		:: else ->
			entryAccepted = (v_ & ENTRIES & ~man) == 0; assert(entryAccepted);
			applied = applied | (v_ & ENTRIES);
			if :: v_ & CLOSED -> todo = todo & ~BIT(x); fenced = fenced | BIT(x) :: else -> n[x]++ fi
		fi;
		v_ = 0
	}
}
/* one that has the batch has nothing left to miss, and starts from nothing */
#define GET_NEXT(x) :: atomic { (todo & BIT(x)) != 0 -> TAKE_T; get(x); if :: applied != 0 -> goto nothing :: else fi }
#define GET_FAILS(x) :: atomic { (todo & BIT(x)) != 0 -> TAKE_T; todo = todo & ~BIT(x) }
#ifdef FENCER_NOT_COMPARED
#define FENCE_IT(x) :: atomic { (todo & BIT(x)) != 0 && n[x] > 0 && n[x] < SEGMENTS -> TAKE_T; \
	if :: SEG(x, n[x]) == 0 -> SEG(x, n[x]) = FENCE :: else fi; \
	fenced = fenced | BIT(x); todo = todo & ~BIT(x) }
#endif
#ifdef FENCER_TRUSTS_200
#define FENCE_IT(x) :: atomic { (todo & BIT(x)) != 0 && n[x] > 0 && n[x] < SEGMENTS && SEG(x, n[x]) == 0 -> TAKE_T; \
	SEG(x, n[x]) = FENCE; ended = ended | BIT(x); todo = todo & ~BIT(x) }
#endif

#if FOLD > 0
/* GET of the head; index objects are read where a run is folded beyond what was read.
   Then t_ is set: the poll publishes nothing. */
inline read_head() {
	d_step {
		t_ = 0;
#if FORGETS > 0
#ifndef FORGET_UNCHECKED
		if
		:: (forgot & ~seen) != 0 ->                   /* a run came and went unseen: start from nothing */
			t_ = 1; applied = applied | indexed; fenced = 0; known = 0; ended = headEnd; i_ = 0;
			do
			:: i_ < RUNS ->
				n[i_] = folded[i_];
				if :: folded[i_] > 0 -> known = known | BIT(i_) :: else fi;
				i_++
			:: else -> break
			od
		:: else
		fi;
#endif
		seen = seen | headEnd | forgot;
#endif
		i_ = 0;
		do
		:: i_ < RUNS ->
			if
#ifdef FENCE_UNCHECKED
			:: ((ended|fenced) & BIT(i_)) == 0 && folded[i_] > n[i_] ->
#else
			:: (ended & BIT(i_)) == 0 && folded[i_] > n[i_] ->
#endif
				t_ = 1; applied = applied | indexed; n[i_] = folded[i_]; known = known | BIT(i_);
				fenced = fenced & ~BIT(i_); ended = ended | (headEnd & BIT(i_))
			:: else
			fi;
			i_++
		:: else -> break
		od;
		i_ = 0
	}
}
#endif

active [FOLLOWERS] proctype Follower() {
	byte n[RUNS];                                     /* its position: the next segment of each run, */
	byte known, ended;                                /*   the runs that it knows, and those that it asks no more */
	byte applied;                                     /* the entries that it has */
	byte before;                                      /* of this poll: what was answered before T; */
	byte first;                                       /*   2 until its first request was sent; */
	byte todo, listed;                                /*   runs whose turn is on; runs that the LIST has passed; */
	byte fenced;                                      /*   runs whose fence or closed segment was read, which counts after the head */
#if FORGETS > 0
	byte seen;                                        /* ends of runs that it saw in a head */
#endif
#ifdef STALE_LIST
	byte lastPoll;
#endif
nothing:                                              /* starts from nothing */
	atomic {
		known = 0; ended = 0; applied = 0; before = 0; fenced = 0; todo = 0; listed = 0; i_ = 0;
		do
		:: i_ < RUNS -> n[i_] = 0; i_++
		:: else -> break
		od;
		i_ = 0
#if FORGETS > 0
		; seen = 0
#endif
#ifdef HEAD_ONCE
		; read_head(); t_ = 0
#endif
#ifdef FORGET_UNCHECKED
		; applied = indexed
#endif
	};
poll:
	atomic {
		if
		:: true
#if FOLD > 0
		:: known != 0 -> goto nothing                 /* another that starts now */
#endif
		fi;
		first = 2; listed = known; todo = known & ~ended
#ifdef HEAD_FIRST
		; TAKE_T; read_head(); todo = known & ~ended
#endif
	}
	do
	EACH_RUN(LIST_RUN)
	EACH_RUN(GET_NEXT)
#ifdef ERROR_IS_ABSENT
	EACH_RUN(GET_FAILS)
#endif
#ifdef FENCE_IT
	EACH_RUN(FENCE_IT)
#endif
	:: listed == BIT(RUNS)-1 && todo == 0 -> break
	od;
	atomic {
		TAKE_T;
#if FOLD > 0 && !defined(HEAD_FIRST) && !defined(HEAD_ONCE)
		read_head();
#else
		t_ = 0;
#endif
		ended = ended | fenced;
#ifdef T_AT_FIRST_ANSWER
		if :: first != 0 -> before = answered :: else fi;
#endif
		if
		:: t_ == 0 -> complete = (before & ~applied) == 0; assert(complete)   /* complete_through = T */
		:: else                                       /* reads on before it publishes anything */
		fi;
		t_ = 0; before = 0; fenced = 0; first = 0;
		if :: applied != 0 -> goto nothing :: else -> goto poll fi
	}
}
