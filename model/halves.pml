// SPDX-License-Identifier: MIT
// The two halves of an operation. Each `atomic` touches the shared words of one step only, so every
// interleaving of loads and stores of the library's protocol is an interleaving here.
// Local to the caller: me, kind, epoch, sent[], done[], seen.

// --- the words that mutants change ---------------------------------------------------------------
#if defined(MUTANT_ANY_EPOCH)
#define CELL_MATCHES(word) ((word) != 0)
#elif defined(MUTANT_NEWER_EPOCH)
#define CELL_MATCHES(word) ((word) >= epoch)
#else
#define CELL_MATCHES(word) ((word) == epoch)
#endif

#if defined(MUTANT_TELL_SENT)
#define LAST_READ sent[kind]
#elif defined(MUTANT_TELL_ONE_MORE)
#define LAST_READ (done[kind] + 1)
#else
#define LAST_READ done[kind]
#endif

#ifdef STAGED
#define REUSE_AFTER FLIGHT
#else
#define REUSE_AFTER BANKS
#endif
#if defined(MUTANT_GUARD_LATE)
#define GUARD_DISTANCE (REUSE_AFTER + 1)
#else
#define GUARD_DISTANCE REUSE_AFTER
#endif

// Where a clock counts deadlines, the guard is left out: at BANKS >= 2 * FLIGHT it never waits.
#if defined(TIMED) && BANKS < 2 * FLIGHT
#error "timed scenarios have no guard"
#endif
#if defined(TIMED) || defined(MUTANT_NO_GUARD)
#define NO_GUARD
#endif

#ifdef MUTANT_WRITE_SUSPECT
#define WRITES(peer) (true)
#else
#define WRITES(peer) (ACTIVE(peer) && LIVES(peer))
#endif

// One-way traffic: rank 0 sends to rank 1 and nothing else moves; empty messages have no cell.
#ifdef SPARSE
#define FLOWS(from, to) ((from) == 0 && (to) == 1)
#else
#define FLOWS(from, to) (true)
#endif

// --- steps ---------------------------------------------------------------------------------------
inline tell(peer, value) {
    atomic { if :: ACTIVE(peer) && LIVES(peer) -> told[LANE(kind, peer, me)] = value :: else fi }
}

#define GUARD_OPEN(peer) (!FLOWS(me, peer) || told[LANE(kind, me, peer)] + GUARD_DISTANCE >= epoch)
inline await_guard(peer) {
#ifdef ASSERT_GUARD_OPEN
    atomic { assert(!ACTIVE(peer) || GUARD_OPEN(peer)) };
#endif
    await(peer, GUARD_OPEN(peer))
}

#ifdef HAS_PAYLOAD
inline put_payload(part, peer) {
    atomic {
        if
        :: WRITES(peer) && FLOWS(me, peer) -> payload[BANK(part, kind, peer, me, epoch)] = epoch
        :: else
        fi
    }
}
#endif

inline put_cell(part, peer) {
    atomic {
        if
        :: WRITES(peer) && FLOWS(me, peer) -> cell[BANK(part, kind, peer, me, epoch)] = epoch
        :: else
        fi
    }
}

#ifdef HAS_PAYLOAD
inline publish(part, peer) {
#ifdef MUTANT_CELL_FIRST
    put_cell(part, peer);
    put_payload(part, peer)
#else
    put_payload(part, peer);
    put_cell(part, peer)
#endif
}
#endif

#ifdef PULL
inline publish_result() {
    atomic { stage[STAGE(kind, me, epoch)] = epoch };
    put_cell(RESULT, NEXT(me));
    put_cell(RESULT, PREV(me))
}
#else
inline publish_result() {
    publish(RESULT, NEXT(me));
    publish(RESULT, PREV(me))
}
#endif

inline await_cell(part, peer) {
    await(peer, !FLOWS(peer, me) || CELL_MATCHES(cell[BANK(part, kind, me, peer, epoch)]))
}

#ifdef MUTANT_READ_SUSPECT
#define READS(peer) (true)
#else
#define READS(peer) ACTIVE(peer)
#endif

#ifdef HAS_PAYLOAD
// The safety property: what is read belongs to the epoch that is being received.
inline take(part, peer) {
    atomic {
        if
        :: READS(peer) && FLOWS(peer, me) ->
           assert(payload[BANK(part, kind, me, peer, epoch)] == epoch)
        :: else
        fi
    }
}
#endif

#ifdef PULL
// The reader cannot keep a source that gave up on it from reusing the stage, so it looks, after the
// copy, whether the source had given up; the source says so before it reuses anything.
inline pull(peer) {
#ifdef MUTANT_TELL_BEFORE_READ
    tell(peer, epoch);
#endif
    atomic { if :: ACTIVE(peer) -> seen = stage[STAGE(kind, peer, epoch)] :: else fi };
    atomic {
        if
#if defined(FAULTS) && !defined(MUTANT_NO_LOOK_BACK)
        :: ACTIVE(peer) && suspects[PAIR(peer, me)] -> suspects[PAIR(me, peer)] = true
        :: ACTIVE(peer) && !suspects[PAIR(peer, me)] -> assert(seen == epoch)
#else
        :: ACTIVE(peer) -> assert(seen == epoch)
#endif
        :: else
        fi;
        seen = 0
    };
#ifndef MUTANT_TELL_BEFORE_READ
    tell(peer, epoch)
#endif
}
#endif

// --- the send half -------------------------------------------------------------------------------
inline send_half() {
    begin_half();
    epoch = sent[kind] + 1;
#if !defined(MUTANT_TELL_AFTER_GUARD) && !defined(TIMED)
    tell(NEXT(me), LAST_READ);
    tell(PREV(me), LAST_READ);
#endif
#ifndef NO_GUARD
    await_guard(NEXT(me));
    await_guard(PREV(me));
#endif
#ifdef MUTANT_TELL_AFTER_GUARD
    tell(NEXT(me), LAST_READ);
    tell(PREV(me), LAST_READ);
#endif
#ifdef WEIGHTS
    publish(WEIGHT, NEXT(me));
    publish(WEIGHT, PREV(me));
#else
    publish_result();
#endif
    end_half();
    sent[kind] = epoch;
    epoch = 0
}

// --- the receive half ----------------------------------------------------------------------------
inline receive_half() {
    begin_half();
    epoch = done[kind] + 1;
#ifdef WEIGHTS
#ifndef MUTANT_NO_WEIGHTS_WAIT
    await_cell(WEIGHT, NEXT(me));
    await_cell(WEIGHT, PREV(me));
#endif
    take(WEIGHT, NEXT(me));
    take(WEIGHT, PREV(me));
    publish_result();
#endif
    await_cell(RESULT, NEXT(me));
    await_cell(RESULT, PREV(me));
#ifdef PULL
    pull(NEXT(me));
    pull(PREV(me));
#else
    take(RESULT, NEXT(me));
    take(RESULT, PREV(me));
#endif
#ifdef ZERO_COPY
#ifndef MUTANT_NO_READERS_WAIT
    await(NEXT(me), told[LANE(kind, me, NEXT(me))] >= epoch);
    await(PREV(me), told[LANE(kind, me, PREV(me))] >= epoch);
#endif
    atomic { stage[STAGE(kind, me, epoch)] = 0 };     // the caller reuses its input
#endif
    end_half();
    done[kind] = epoch;
    epoch = 0
}
