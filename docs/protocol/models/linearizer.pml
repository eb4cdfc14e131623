/* The identity linearizer, a start: one identity, two frames (hashes 1 and 2), two
   regions with a manifest store each, one claim record, and restores of the claim
   store from nothing (the oldest copy there is) up to MAXR times.

   Collectors run for ever; each call picks a region and a frame. One request is one
   atomic step; creates of manifests and affirmations may be applied and not answered,
   or land late. A call that is not scheduled any more is a crash.

   The README has the mutants, which are chosen with -D. */
#ifndef CALLERS
#define CALLERS 2
#endif
/* HOMES: a caller always sends the same frame through the same region */
#ifndef MAXR
#define MAXR 2
#endif
#ifndef LATE
#define LATE 1                    /* requests that are late at one time, at most */
#endif
#define BIT(i) (1<<(i))
#define NONE 0
#define CLAIMED 1
#define DURABLE 2

byte state, hash, home, owner;    /* the claim; owner is the call's claim id, 0 if that call is gone */
bool open = 1;                    /* the linearizer serves */
byte epoch = 1, restores;

byte man[2];                      /* per region: 0 none, else the manifest's hash ... */
byte stamp[2];                    /* ... and the highest epoch that it was stamped or affirmed with */
byte lateMan[2];                  /* a bit per (hash, epoch): manifests that may still land */
byte lateAffirm[2];               /* a bit per epoch */
byte late;
byte ack;                         /* a bit per hash: told accepted or duplicate */

#define ONE_ANSWER (ack != (BIT(1)|BIT(2)))
#define HAS_MANIFEST ((!(ack & BIT(1)) || man[0] == 1 || man[1] == 1) && (!(ack & BIT(2)) || man[0] == 2 || man[1] == 2))
#define SLOT(h, e) BIT(((h)-1)*4 + (e)-1)

inline create(r, h, e) {
	if
	:: man[r] == 0 -> man[r] = h; stamp[r] = e
	:: else
	fi
}

active proctype Network() {
	byte r, h, e;
end:
	do
	:: atomic { late ->
		if :: r = 0 :: r = 1 fi;
		if :: h = 1 :: h = 2 fi;
		if :: e = 1 :: e = 2 :: e = 3 :: e = 4 fi;
		if
		:: lateMan[r] & SLOT(h, e) -> late--; lateMan[r] = lateMan[r] & ~SLOT(h, e); create(r, h, e)
		:: h == 1 && (lateAffirm[r] & BIT(e)) -> late--; lateAffirm[r] = lateAffirm[r] & ~BIT(e);
			stamp[r] = (stamp[r] < e -> e : stamp[r])
		:: else
		fi;
		r = 0; h = 0; e = 0 }
	od
}

#ifdef ACK_ON_CLAIM
#define CLAIM_IS_OURS answer
#else
#define CLAIM_IS_OURS manifest
#endif
/* Complete: the claim is still for this hash, in the epoch in which it was read */
#ifdef EPOCH_UNCHECKED
#define COMPLETE_GUARD open && state == CLAIMED && hash == h
#else
#define COMPLETE_GUARD open && epoch == e && state == CLAIMED && hash == h
#endif

active [CALLERS] proctype Call() {
	byte r, h, e;
again:
	atomic {
		if                            /* a new call has a new claim id */
		:: owner == _pid+1 -> owner = 0
		:: else
		fi;
		e = 0;
#ifdef HOMES
		r = _pid & 1; h = 1 + (_pid & 1)
#else
		if :: r = 0 :: r = 1 fi;
		if :: h = 1 :: h = 2 fi
#endif
	}
#ifdef NO_CLAIM
	e = epoch; goto manifest;
#endif
end:
	atomic { open -> e = epoch;
		if
		:: state == NONE -> state = CLAIMED; hash = h; home = r; owner = _pid+1; goto CLAIM_IS_OURS
		:: state != NONE && hash != h -> goto again                 /* conflict */
		:: state == DURABLE && hash == h -> goto answer              /* duplicate */
		:: state == CLAIMED && hash == h && owner != _pid+1 -> goto other
		fi
	}
other:
	/* somebody else's claim with our hash: his manifest is there, or we take the claim over */
	if
#ifdef ACK_ON_CLAIM
	:: goto answer
#endif
	:: atomic { man[home] == h && hash == h && state == CLAIMED -> r = home; goto present }
	:: atomic { open && epoch == e && state == CLAIMED && hash == h -> home = r; owner = _pid+1; goto manifest }
	:: goto again
	fi;
manifest:
	if
	:: atomic { man[r] == 0 -> man[r] = h; stamp[r] = e; goto complete }
	:: atomic { man[r] == 0 -> man[r] = h; stamp[r] = e; goto manifest }              /* answer lost */
	:: atomic { late < LATE && !(lateMan[r] & SLOT(h, e)) -> late++; lateMan[r] = lateMan[r] | SLOT(h, e); goto manifest }
	:: atomic { man[r] == h -> goto present }
	:: atomic { man[r] != 0 && man[r] != h -> goto again }                            /* quarantined, not acknowledged */
	:: goto again
	fi;
present:
	/* a manifest with our hash that may be of an older epoch: affirm it in this one */
#ifndef NO_AFFIRMATION
	if
	:: atomic { stamp[r] >= e -> goto complete }
	:: atomic { stamp[r] < e -> stamp[r] = e; goto complete }
	:: atomic { stamp[r] < e && late < LATE && !(lateAffirm[r] & BIT(e)) -> late++; lateAffirm[r] = lateAffirm[r] | BIT(e); goto present }
	:: goto again
	fi;
#endif
complete:
#ifdef NO_CLAIM
	goto answer;
#endif
#ifdef NO_RECHECK
	atomic {
		if
		:: open && state == CLAIMED && hash == h -> state = DURABLE; home = r
		:: else
		fi;
		goto answer
	}
#endif
	/* one transaction: the epoch and the claim are what they were */
	if
	:: atomic { COMPLETE_GUARD ->
		state = DURABLE; home = r; owner = 0; goto answer }
	:: atomic { COMPLETE_GUARD ->
		state = DURABLE; home = r; owner = 0; goto again }          /* answer lost */
	:: goto again
	fi;
answer:
	atomic { ack = ack | BIT(h); goto again }
}

/* what was durable may be a claim again: the next call completes it */
#define RECOVERED(h, r) state = RECOVERED_STATE; hash = h; home = r
#ifdef NO_AFFIRMATION
#define RECOVERED_STATE DURABLE
#else
#define RECOVERED_STATE CLAIMED
#endif

active proctype Restore() {
	byte h0, e0, h1, e1;
	do
	:: restores < MAXR ->
#ifndef SERVES_WHILE_RECOVERING
		atomic { open = 0; restores++; state = NONE; hash = 0; home = 0; owner = 0 }
#else
		atomic { restores++; state = NONE; hash = 0; home = 0; owner = 0 }
#endif
#ifndef EPOCH_STAYS
		epoch++;
#endif
#ifndef NO_RECOVERY
		atomic { h0 = man[0]; e0 = stamp[0] }                        /* scan region 0 */
		atomic { h1 = man[1]; e1 = stamp[1] }                        /* scan region 1 */
#endif
		atomic {
			if
			:: h0 == 0 && h1 == 0
#ifdef FIRST_REGION_WINS
			:: h0 != 0 -> RECOVERED(h0, 0)
			:: h0 == 0 && h1 != 0 -> RECOVERED(h1, 1)
#else
			:: h0 != 0 && (h1 == 0 || e0 >= e1) -> RECOVERED(h0, 0)
			:: h1 != 0 && (h0 == 0 || e1 > e0) -> RECOVERED(h1, 1)
#endif
			fi;
			h0 = 0; e0 = 0; h1 = 0; e1 = 0; open = 1
		}
	:: restores == MAXR -> break
	od
}

active proctype Monitor() {
end:
	atomic { !(ONE_ANSWER && HAS_MANIFEST) -> assert(ONE_ANSWER); assert(HAS_MANIFEST) }
}
