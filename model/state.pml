// SPDX-License-Identifier: MIT
// What the ranks share. Every word has exactly one writer, as in the windows of the library:
// a lane at rank `at` that belongs to rank `by` is written by `by` and read by `at`.
//
// Sizes come from the scenario (scenarios.txt): BANKS, FLIGHT, OPS, KINDS, OP_KIND(n).

#define RANKS 3

#ifndef BANKS
#define BANKS 5
#endif
#ifndef FLIGHT          // operations of one kind that may be in flight
#define FLIGHT 2
#endif
#ifndef OPS             // operations of all kinds in the run
#define OPS 8
#endif
// The kind of operation n = 1..OPS: 0 is dispatch, 1 is combine. The order is equal on all ranks.
#if defined(ALTERNATE)
#define KINDS 2
#define OP_KIND(n) (((n) + 1) % 2)
#elif defined(COMBINES_REPEAT)
#define KINDS 2
#define OP_KIND(n) ((n) > 1)
#else
#define KINDS 1
#define OP_KIND(n) 0
#endif

#if defined(STAGED) || defined(ZERO_COPY)
#define PULL
#endif
#ifdef WEIGHTS
#define PARTS 2                     // what a bank holds: the result, and the weights given to combine
#else
#define PARTS 1
#endif
#define RESULT 0
#define WEIGHT 1
#if defined(CRASH) || defined(FREEZE) || defined(SLOW) || defined(TIMED)
#define FAULTS
#endif
#if defined(CRASH) || defined(TIMED)
#define STOPS
#endif

#define NEXT(rank) (((rank) + 1) % RANKS)
#define PREV(rank) (((rank) + 2) % RANKS)
#define PAIR(at, by) ((at) * RANKS + (by))
#define LANE(of, at, by) ((of) * RANKS * RANKS + PAIR(at, by))
#define BANK(part, of, at, by, number) \
    ((LANE(of, at, by) * PARTS + (part)) * BANKS + (number) % BANKS)
#define STAGE(of, source, number) (((of) * RANKS + (source)) * FLIGHT + (number) % FLIGHT)

// A payload is represented by the epoch of the operation that wrote it; 0 is 'never written'.
byte told[KINDS * RANKS * RANKS];
byte cell[KINDS * RANKS * RANKS * PARTS * BANKS];
#ifdef PULL
byte stage[KINDS * RANKS * FLIGHT];
#endif
#if !defined(PULL) || defined(WEIGHTS)
#define HAS_PAYLOAD                 // something is pushed into the lanes
byte payload[KINDS * RANKS * RANKS * PARTS * BANKS];
#endif

#ifdef FAULTS
bool suspects[RANKS * RANKS];       // PAIR(who suspects, whom): published by 'who', never cleared
#define ACTIVE(peer) (!suspects[PAIR(me, peer)])
#else
#define ACTIVE(peer) (true)
#endif

// Nobody reads the window of a dead rank: it is cleared at death and left alone, which saves states.
#ifdef STOPS
bool dead[RANKS];
#define LIVES(rank) (!dead[rank])
#else
#define LIVES(rank) (true)
#endif
