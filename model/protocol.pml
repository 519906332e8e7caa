// SPDX-License-Identifier: MIT
// Three ranks that run the operations OP_KIND(1), OP_KIND(2), ... by sends and receives, in every order
// that the library's contract permits. docs/protocol-model.md says what stands for what.

#include "state.pml"
#include "deadlines.pml"
#include "halves.pml"

#define IN_FLIGHT(of) (sent[of] - done[of])
#define NEXT_KIND OP_KIND(sends + 1)
#define SEND_FITS (sends < OPS && IN_FLIGHT(NEXT_KIND) < FLIGHT)

#if defined(LOCK_STEP)
#define SEND_IS_DUE (receives == sends)
#else
#define SEND_IS_DUE (true)
#endif

#if defined(EAGER)                  // every rank keeps as many in flight as it may
#define RECEIVE_IS_DUE (!SEND_FITS)
#elif defined(LATE_RANK)              // rank 2 receives only when it could not send any more
#define RECEIVE_IS_DUE (me != 2 || !SEND_FITS)
#else
#define RECEIVE_IS_DUE (true)
#endif

#if defined(ANY_RECEIVE_ORDER)      // receive halves keep the order of sends only within their kind
#define IN_ORDER(of) (true)
#else
#define IN_ORDER(of) (OP_KIND(receives + 1) == (of))
#endif
#define MAY_SEND (SEND_FITS && SEND_IS_DUE)
#define MAY_RECEIVE(of) (IN_FLIGHT(of) > 0 && IN_ORDER(of) && RECEIVE_IS_DUE)
#if KINDS > 1
#define MAY_RECEIVE_ANY (MAY_RECEIVE(0) || MAY_RECEIVE(1))
#else
#define MAY_RECEIVE_ANY MAY_RECEIVE(0)
#endif

proctype Rank(byte me) {
    byte sent[KINDS], done[KINDS];
    byte sends, receives, kind, epoch, seen;
    {
        do
        :: atomic { MAY_SEND -> kind = NEXT_KIND };
           send_half();
           sends++; kind = 0
        :: atomic {
               MAY_RECEIVE_ANY ->
               if
               :: MAY_RECEIVE(0) -> kind = 0
#if KINDS > 1
               :: MAY_RECEIVE(1) -> kind = 1
#endif
               fi
           };
           receive_half();
           receives++; kind = 0
        :: sends == OPS && receives == OPS -> break
        od
    }
#ifdef STOPS
    unless { dead[me] }
#endif
}

// Rank 2 is the one that fails: the ranks differ only by a rotation, so it stands for any.
#ifdef STOPS
proctype Crash() {
    byte lane, word;
    d_step {
        dead[2] = true;
        for (lane : PAIR(2, 0) .. PAIR(2, 1)) {
            told[lane] = 0;
            for (word : 0 .. PARTS * BANKS - 1) {
                cell[lane * PARTS * BANKS + word] = 0;
#ifdef HAS_PAYLOAD
                payload[lane * PARTS * BANKS + word] = 0
#endif
            }
        }
        lane = 0; word = 0
    }
}
#if KINDS > 1
#error "a crash clears the lanes of one kind only"
#endif
#endif

#ifdef TIMED
// Far more ticks than a run needs: a rank that still waits after them is found as a deadlock.
#define LAST_TICK (3 * OPS * RANKS)
proctype Clock() {
end:
    do
    :: timeout && now < LAST_TICK -> now++
    od
}
#endif

init {
    atomic {
#ifdef STOPS
        run Crash();
#endif
#ifdef TIMED
        run Clock();
#endif
        run Rank(0); run Rank(1); run Rank(2)      // the last may end first: then it leaves no state
    }
}
