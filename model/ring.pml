// SPDX-License-Identifier: MIT
// Who carries the items of one ring (src/engine/cuda/ferry_block.cuh): launches of the ferry's own kernel, which come, stay and go when
// they like, and carriers of operations of KINDS kinds, OPS of each, which follow one another. An operation ends when its one
// worker has seen all items of its number or less carried, and its carrier is gone: with or without a ferry.
// docs/protocol-model.md says what stands for what.

#ifndef KINDS
#define KINDS 2
#endif
#ifndef OPS             // of each kind
#define OPS 2
#endif
#ifndef FERRIES         // launches of the ferry's own kernel that there may be, one after the other
#define FERRIES 2
#endif
#define ITEMS OPS

// The ring's word: [duties, modulo DUTIES] [items] [stays] [taken]
#ifdef MUTANT_NOT_COUNTED
#define DUTIES 1
#else
#define DUTIES 8           // more than there are launches
#endif
#define ROOM (ITEMS + 1)
#define FREE(items) ((items) * 4)
#define TAKEN(word) ((word) % 2)
#define STAYS(word) (((word) / 2) % 2)
#define ITEMS_OF(word) (((word) / 4) % ROOM)
#define LEFT_ONE(word) (((word) + 4 * ROOM) % (4 * ROOM * DUTIES))

byte ring;
byte pushed;
byte payload[ITEMS];    // how often an item has been carried
byte carried;           // as the host and the workers see it
byte until[KINDS], blocks[KINDS];
byte over;              // operations that have ended

// By who has the ring: the next item.
inline carry(number) {
    atomic { pushed > number -> payload[number]++; assert(payload[number] == 1); number++; carried = number }
}

proctype Host() {
    do
    :: pushed < ITEMS -> pushed++
    :: else -> break
    od
}

proctype Ferries() {
    byte launched, number, word, kind, worked;
    bool owes, settled;
    do
    :: launched < FERRIES ->
       launched++;
       // Takes the ring, or goes without.
       if
       :: atomic { !TAKEN(ring) -> word = ring; ring = ring + 1 };
          number = ITEMS_OF(word);
          ring = word + 3;
          do
          :: carry(number)
          :: atomic { word = ring; settled = (over == KINDS * OPS) };
             owes = false; kind = 0;
             do
             :: kind < KINDS ->
                worked = blocks[kind];
                owes = owes || worked < until[kind];
                kind++
             :: else -> break
             od;
             assert(!(settled && owes));     // It does not stay for ever.
             worked = 0;
#ifdef MUTANT_DUTY_IGNORED
             owes = false;
#endif
             if
             :: owes     // It looks for items again, then asks again.
#ifdef MUTANT_STORES
             :: else -> ring = FREE(number); break
#else
             :: atomic { !owes && ring == word -> ring = FREE(number); break }
             :: !owes && ring != word
#endif
             fi
          od
       :: skip
       fi;
       number = 0; word = 0; kind = 0; owes = false; settled = false
    :: break
    od
}

proctype Worker(byte kind; chan ended) {
    byte op;
    do
    :: op < OPS ->
       carried > op;
       blocks[kind]++;
       op++;
       ended ! 0
    :: else -> break
    od
}

proctype Carrier(byte kind; chan ended) {
    byte op, number, word;
    do
    :: op < OPS ->
       op++;
#if defined(MUTANT_UNTIL_TOO_FAR)
       until[kind] = op + 1;
#elif !defined(MUTANT_UNTIL_LATER)
       until[kind] = op;
#endif
       do
#ifdef MUTANT_SHARED
       :: atomic { number = ITEMS_OF(ring); ring = ring - TAKEN(ring) + 1 };
#else
       :: atomic { !TAKEN(ring) -> number = ITEMS_OF(ring); ring = ring + 1 };
#endif
#ifdef MUTANT_UNTIL_LATER
          until[kind] = op;
#endif
          do
          :: carry(number)
          :: blocks[kind] >= op -> ring = FREE(number); break
          od;
          break
       :: atomic { TAKEN(ring) && STAYS(ring) -> word = ring };
#ifdef MUTANT_NOT_SWAPPED
          break
#else
          if
          :: atomic { ring == word -> ring = LEFT_ONE(word) };
#ifdef MUTANT_UNTIL_LATER
             until[kind] = op;
#endif
             break
          :: ring != word
          fi
#endif
       :: blocks[kind] >= op -> break
       od;
       number = 0; word = 0;
       atomic { ended ? 0; over++ }    // A launch ends when all its blocks have; the next goes on then.
    :: else -> break
    od
}

init {
    byte kind;
    chan ended[KINDS] = [0] of { bit };
    atomic {
        run Host();
        run Ferries();
        do
        :: kind < KINDS -> run Worker(kind, ended[kind]); run Carrier(kind, ended[kind]); kind++
        :: else -> break
        od
    }
}
