/* The identity linearizer: heads of folds when the list of regions changes. One identity of
   one boot, two frames (hashes 1 and 2; FRAMES=1: one). Region 1 is retired, region 2 is added, at any
   time and in any order; region 0 stays, and so does region 3 with THREE.

   Promises: no two frames are answered accepted or duplicate, and none of these is
   answered conflict, too; of the regions that are not retired one counts the batch; folds
   do not contradict each other.

   Abstracted: what a claim goes through (linearizer.pml; here it is settled in the step
   that claims it), and etcd that is restored (there, too); generations of heads, and what
   etcd knows of them (fold.pml; here a call looks at the heads of all regions but one, and
   its claim compares that nothing was folded since etcd was asked).

   A head has the identity's hash and home, or nothing. Each epoch has a list of regions.
   Whoever moves heads, a folder or a keeper, does so in the regions of its epoch, chooses
   between two homes by what that epoch knows, and may sleep between any two steps while
   later epochs come. Of the regions one at most does not answer; a keeper waits for it.
   Keepers may die between any two steps.

   The README has the mutants, which are chosen with -D. */
#ifndef FRAMES
#define FRAMES 2
#endif
#ifndef CALLERS
#define CALLERS 1
#endif
#ifndef FOLDERS
#define FOLDERS 1
#endif
#ifndef KEEPERS
#define KEEPERS 1
#endif
#ifndef MAXE
#define MAXE 4                    /* the last epoch: two changes, and one that died */
#endif
#ifndef MAXFOLDS
#define MAXFOLDS 3                /* folds that are begun */
#endif
#define BIT(i) (1<<(i))
#define R 4                       /* places for regions */
#ifdef THREE
#define THIRD 1
#else
#define THIRD 0
#endif

/* etcd: a settled claim; how often something was folded in this epoch */
byte hash, home, moves;           /* hash 0: there is none */
byte ekey = 1;
bool filled = 1;

/* S3: the record */
byte epoch = 1, gone, added;      /* the epochs without region 1, and with region 2; 0: not yet */
bool done;                        /* an epoch was filled since region 1 was retired */
byte served = 1;

/* S3: heads, and manifests; each has an entry whose home is its region */
byte head[R], man[R];

byte ack, refused;                /* a bit per hash: answered accepted or duplicate; conflict */
byte begun;

#define MEMBER(r, e) ((r) == 0 || ((r) == 1 && !(gone && (e) >= gone)) || ((r) == 2 && added && (e) >= added) || ((r) == 3 && THIRD))
#define KNOWN(r, e)  ((r) != 2 || (added && (e) >= added))
#define MEMBERS(e) (1 + MEMBER(1, e) + MEMBER(2, e) + THIRD)
#define NOT_BOTH(x) ((x) != (BIT(1)|BIT(2)))
#define ONE_ANSWER (NOT_BOTH(ack) && !(refused & ack))
#define COUNTED_ONCE ((man[0] != 0) + (!gone && man[1] != 0) + (man[2] != 0) + (man[3] != 0) <= 1)

#define ENTRY(h, r) ((h)*4 + (r))
#define HASH(x) ((x)/4)
#define HOME(x) ((x)%4)
#define REFUSED 255
/* the entry of two that counts, for who knows what epoch e has: that of a region that is not retired. A home that e does not know was
   added since: it decides nothing, and writes nothing */
#ifdef HOME_STAYS
#define UNDECIDED(a, b, e) 0
#define LATER(a, b, e) (!(a) -> (b) : (a))
#else
#ifdef UNKNOWN_HOME_IS_RETIRED
#define UNDECIDED(a, b, e) (MEMBER(HOME(a), e) && MEMBER(HOME(b), e))
#else
#define UNDECIDED(a, b, e) (!KNOWN(HOME(a), e) || !KNOWN(HOME(b), e) || (MEMBER(HOME(a), e) && MEMBER(HOME(b), e)))
#endif
#define LATER(a, b, e) (!(a) -> (b) : ((!(b) || (a) == (b)) -> (a) : (UNDECIDED(a, b, e) -> REFUSED : (MEMBER(HOME(a), e) -> (a) : (MEMBER(HOME(b), e) -> (b) : (HOME(a) < HOME(b) -> (a) : (b)))))))
#endif
inline unite(x, y, e) {
	assert(!x || !(y) || x == REFUSED || HASH(x) == HASH(y));                /* folds do not contradict each other */
	x = (x == REFUSED -> REFUSED : LATER(x, y, e))
}

/* of how many regions one may be away */
#define ENOUGH(e) (MEMBERS(e) > 1 -> MEMBERS(e) - 1 : 1)
#ifdef ONE_REGION
#define COPIES(e) 1
#else
#define COPIES(e) (MEMBERS(e) > 1 -> 2 : 1)
#endif

#define TO_MEMBER(e) do :: at < R && !MEMBER(at, e) -> at++ :: else -> break od

active [CALLERS] proctype Call() {
	byte e, r, h, asked, looked, n, at;
	bool away;
again:
	atomic { e = 0; r = 0; h = 0; asked = 0; looked = 0; n = 0; at = 0; away = 0 };
end:
	/* etcd first */
	atomic { ekey == served && filled -> e = served;
#if FRAMES == 1
		h = 1;
#else
		if :: h = 1 :: h = 2 fi;
#endif
		if
		:: hash == h -> ack = ack | BIT(h); goto again
		:: hash && hash != h -> refused = refused | BIT(h); goto again
		:: !hash -> asked = moves
		fi };
	/* then the heads of all regions but one, which have to say the same */
	do
	:: at < R ->
		atomic {
			if
			:: n && looked != head[at] -> goto again                             /* a folder brings them to the same */
			:: !n || looked == head[at] -> looked = head[at]; n++
			:: !away -> away = 1                                                 /* one is away */
			fi;
			at++; TO_MEMBER(e) }
	:: else -> break
	od;
	atomic {
		if
		:: n < ENOUGH(e) -> goto again
		:: else -> n = 0; at = 0; away = 0
		fi;
		if
		:: looked && HASH(looked) != h -> refused = refused | BIT(h); goto again
		:: looked && HASH(looked) == h && MEMBER(HOME(looked), e) -> ack = ack | BIT(h); goto again
		:: else -> looked = 0                                                    /* free, or bound */
		fi };
	/* claimed, while nothing was folded since; manifest, entry, answer */
	atomic {
		if :: r = 0 :: r = 1 :: r = 2 :: r = 3 fi;
		if
		:: MEMBER(r, e) && ekey == e && filled && !hash && moves == asked && (!man[r] || man[r] == h) ->
			hash = h; home = r; man[r] = h; ack = ack | BIT(h)
		:: else
		fi;
		goto again }
}

active [FOLDERS] proctype Folder() {
	byte e, x, want, n, at, there;
again:
	atomic { e = 0; x = 0; want = 0; n = 0; at = 0; there = 0 };
end:
	/* the claim, or nothing, of heads that differ; the heads of all that answer, all but one at least */
	atomic { ekey == served && filled && begun < MAXFOLDS -> begun++; e = served; x = (hash -> ENTRY(hash, home) : 0) };
	atomic { want = x;
		do
		:: at < R && MEMBER(at, e) -> unite(want, head[at], e); there = there | BIT(at); n++; at++
		:: at < R -> at++
		:: else -> break
		od;
		if
		:: n < ENOUGH(e) || want == REFUSED || !want -> goto again
		:: else -> n = 0; at = 0
		fi };
	/* each is brought to that */
	do
	:: there ->
		if
		:: atomic { (there & BIT(at)) -> unite(want, head[at], e);
			if
			:: want == REFUSED -> goto again
			:: else -> head[at] = want; n++; there = there & ~BIT(at); at++
			fi }
		:: atomic { there = there & ~BIT(at); at++ }
		fi
	:: !there -> break
	od;
	/* and the claim is deleted */
	atomic {
		if
		:: ekey == e && filled && hash && x == ENTRY(hash, home) && n >= COPIES(e) -> hash = 0; home = 0; moves++
		:: else
		fi;
		goto again }
}

#define LEAVING (gone && me >= gone && !done)
#ifdef NO_SPREAD
#define SPREADS 0
#else
#ifdef SPREAD_WHEN_RETIRED
#define SPREADS LEAVING
#else
#define SPREADS 1
#endif
#endif
#ifdef SPREAD_TO_ONE
#define SPREAD_TO(r) ((r) == 0 || MANIFESTS)
#else
#define SPREAD_TO(r) 1
#endif
#define MANIFESTS (man[0] || (MEMBER(1, me) && man[1]) || (MEMBER(2, me) && man[2]) || man[3])
#define OURS (ekey == me)
#define MORTAL :: goto dead

active [KEEPERS] proctype Keeper() {
	byte me, was, want, at;
	bool differ;
dead:
	atomic { me = 0; was = 0; want = 0; at = 0; differ = 0 };
end:
	/* the record is read and moved */
	atomic { epoch < MAXE ->
		if
		:: !(filled && ekey == epoch)
		:: !gone && filled && ekey == epoch -> gone = epoch + 1
		:: !added -> added = epoch + 1
		fi;
		done = (done || (gone && gone <= epoch && filled && ekey == epoch));
		was = ekey; epoch++; me = epoch };
	/* from here on etcd refuses what was sent in an earlier epoch */
	atomic {
		if
		:: ekey == was -> ekey = me; filled = 0
		:: else -> goto dead
		MORTAL
		fi };
	/* what etcd has of a region that is gone is folded */
	atomic {
		if
		:: !OURS -> goto dead
		:: OURS -> want = ((LEAVING && hash && home == 1) -> ENTRY(hash, home) : 0)
		MORTAL
		fi };
	/* heads are brought to every region of the epoch, until all have the same */
	do
	:: SPREADS || MANIFESTS || want ->
		atomic { 
			if
			:: SPREAD_TO(at) ->
				differ = (differ || ((want || at) && want != head[at]));
				unite(want, head[at], me);
				if
				:: want == REFUSED -> goto dead
				:: else -> differ = (differ || (want != head[at])); head[at] = want
				fi
			:: else
			fi;
			at++; TO_MEMBER(me);
			if
			:: at == R && !differ -> at = 0; break
			:: at == R && differ -> at = 0; differ = 0
			:: else
			fi }
	:: !(SPREADS || MANIFESTS || want) -> break
	MORTAL
	od;
	atomic {
		if
		:: !OURS -> goto dead
		:: OURS -> hash = 0; home = 0; moves = 0
		MORTAL
		fi };
	/* a manifest that is not folded is inserted, or is of the hash whose home is gone; no two regions have one */
	atomic {
		do
		:: at < R && MEMBER(at, me) && man[at] && (!want || (!MEMBER(HOME(want), me) && HASH(want) == man[at])) -> break
		:: at < R && !(MEMBER(at, me) && man[at] && (!want || (!MEMBER(HOME(want), me) && HASH(want) == man[at]))) -> at++
		:: at >= R -> break
		od;
		if
		:: !OURS -> goto dead
		:: OURS ->
			if
			:: at < R -> hash = man[at]; home = at
			:: else
			fi
		MORTAL
		fi };
	atomic {
		if
		:: OURS -> filled = 1; served = me
		:: else
		MORTAL
		fi;
		goto dead }
}

active proctype Monitor() {
end:
	do
	:: atomic { !(ONE_ANSWER && COUNTED_ONCE) -> assert(ONE_ANSWER); assert(COUNTED_ONCE) }
	od
}
