// SPDX-License-Identifier: MIT
// When a wait may end without what it waited for, and what follows.
//
// Untimed scenarios: a deadline may pass at any moment, but only on the rank that fails (2) or on one
// that has given up on the waiter and so will never answer.
// TIMED: a clock ticks only while no rank can move, and a wait expires one tick after its half began.

#if defined(TIMED)

byte now;
byte began[RANKS];                  // when the half that the rank is in began its waits
bool in_wait[RANKS];                // the rank is inside a half: a living one is seen to beat
#ifdef BEATS
byte beats[RANKS];                  // halves that the rank has finished
byte beats_seen[RANKS * RANKS];
byte restarts[RANKS];
#define SHOWS_LIFE(peer) ((in_wait[peer] && LIVES(peer)) || \
                          beats[peer] != beats_seen[PAIR(me, peer)])
#define MAY_RESTART(peer) (SHOWS_LIFE(peer) && restarts[me] < RANKS - 1)
#else
#define MAY_RESTART(peer) (false)
#endif
#define EXPIRED(peer) (now > began[me])

inline begin_half() {
    atomic {
        began[me] = now; in_wait[me] = true;
#ifdef BEATS
        restarts[me] = 0;
        beats_seen[PAIR(me, NEXT(me))] = beats[NEXT(me)];
        beats_seen[PAIR(me, PREV(me))] = beats[PREV(me)];
#endif
    }
}
inline end_half() {
    atomic {
        in_wait[me] = false; began[me] = 0;
#ifdef BEATS
        beats[me]++; restarts[me] = 0;
        beats_seen[PAIR(me, NEXT(me))] = 0;     // not used between halves: fewer states
        beats_seen[PAIR(me, PREV(me))] = 0
#endif
    }
}
inline expire(peer) {
    if
#ifdef BEATS
    :: MAY_RESTART(peer) ->
       restarts[me]++; began[me] = now; beats_seen[PAIR(me, peer)] = beats[peer]
#endif
    :: !MAY_RESTART(peer) ->
       assert(!LIVES(peer));                    // no living rank is suspected
       suspects[PAIR(me, peer)] = true
    fi
}

#else

#define begin_half() skip
#define end_half() skip
#if defined(CRASH)
#define EXPIRED(peer) (dead[peer] || suspects[PAIR(peer, me)])
#elif defined(FREEZE)
// Rank 2 may stand still anywhere (any schedule may leave it there) and go on later.
#define EXPIRED(peer) ((peer) == 2 || suspects[PAIR(peer, me)])
#elif defined(SLOW)
// Rank 2 is alive and slow: others may give up on it and, its clock running too, it on others.
#define EXPIRED(peer) ((peer) == 2 || me == 2 || suspects[PAIR(peer, me)])
#endif
inline expire(peer) { suspects[PAIR(me, peer)] = true }

#endif

// A wait for `condition`, which only `peer` can make true. A suspected peer is not waited for.
#if defined(FAULTS)
inline await(peer, condition) {
    do
    :: !ACTIVE(peer) || (condition) -> break
    :: atomic { ACTIVE(peer) && !(condition) && EXPIRED(peer) -> expire(peer) }
    od
}
#else
inline await(peer, condition) { (condition) }
#endif
