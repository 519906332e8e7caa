// SPDX-License-Identifier: MIT
#pragma once

/// Deliberate bugs in kernels, for the test that each of them is found (tests/mutants, which reads the names
/// here).
// clang-format off
#define SLUICE_KERNEL_MUTANTS(EACH)                                                            \
  EACH(packet_not_emptied)    /* What was read stays in its slot. */ \
  EACH(stale_header_taken)    /* A header of any operation is taken for the awaited one. */ \
  EACH(any_cell_taken)        /* A cell of any operation is taken for the awaited one. */ \
  EACH(poison_sent)           /* Payload that looks like an empty packet is sent as it is. */ \
  EACH(opening_not_awaited)   /* Warps go on before it is known which operation this is. */ \
  EACH(copies_not_awaited)    /* Rows are summed before they are in shared memory. */ \
  EACH(epoch_of_own_block)    /* A block notes its progress for itself only. */ \
  EACH(own_rank_counted)      /* Rows begin after those of their own source. */ \
  EACH(capacity_off_by_one)   /* One row more than the capacity is stored. */ \
  EACH(scales_not_stored)     /* Rows are received without their scales. */ \
  EACH(padding_kept)          /* Rows that hold nothing are not zeroed. */ \
  EACH(signature_ignored)     /* Cells of another call are taken. */ \
  EACH(product_rounded)       /* A product is rounded before it is added. */ \
  EACH(ranks_descending)      /* Sums are added in descending order of ranks. */ \
  EACH(duplicate_dropped)     /* A duplicate's weight is not added to that of its lowest k. */ \
  EACH(evidence_not_kept)     /* What had come of a source when it was given up counts for nothing. */ \
  EACH(silence_taken_for_death) /* Who waits gives no sign of life. */ \
  EACH(patience_without_end)  /* Who waits is waited for without end. */ \
  EACH(end_taken_for_all)     /* Who is gone is not asked once more. */ \
  EACH(lost_rows_kept)        /* Rows of a source that was given up are not zeroed. */ \
  EACH(parts_kept)            /* A record that came in part is added where it came. */ \
  EACH(loss_not_scaled)       /* The sum is not renormalised when routes are lost. */ \
  EACH(loss_not_counted)      /* Lost routes do not appear in the report. */ \
  EACH(given_weights_ignored) /* combine uses the weights of dispatch, whatever it was given. */ \
  EACH(blocks_before_forgotten) /* Throughput: a block numbers its tokens as if it were the first. */ \
  EACH(published_by_the_first) /* Throughput: the first block that ends says that all have done their part. */ \
  EACH(read_by_the_first)     /* Throughput: the first block that has read all says that all have. */ \
  EACH(any_arrival_taken)     /* Throughput: a cell of any operation is taken for the awaited one. */ \
  EACH(rows_before_cell)      /* Throughput: a token is summed without those whose cell has not come. */ \
  EACH(numbers_not_kept)      /* Throughput: between the halves of a dispatch the numbers of its records are lost. */ \
  EACH(place_ignored)         /* Throughput: rows are pulled from the stage, wherever they lie. */ \
  EACH(told_before_staged)    /* Throughput: a row is said to be in the stage before it is there. */ \
  EACH(part_told_early)       /* Throughput: all of a part are said to be there when some are. */ \
  EACH(readers_not_awaited)   /* Throughput: who reads rows in place is not waited for. */ \
  EACH(weights_not_missed)    /* Sums are sent without the weights of a home that was given up. */ \
  EACH(answered_too_early)    /* Throughput: a record's answer does not wait for its row. */ \
  EACH(accusation_ignored)    /* Throughput: rows count that may have been overwritten. */ \
  EACH(slot_not_awaited)      /* Throughput: rows come into shared memory that others have not left. */ \
  EACH(pieces_not_awaited)    /* Throughput: rows are summed before they are in shared memory. */ \
  EACH(ring_left_early)       /* Throughput: a warp ends before the rows that it copies are there. */ \
  EACH(given_scales_left)     /* Throughput: scales of rows that are encoded already are not staged. */ \
  EACH(sent_too_early)        /* Throughput: the first part that is there for other nodes is taken for all. */ \
  EACH(said_before_carried)   /* Throughput: what came from another node is said to be there before it is. */ \
  EACH(counts_not_awaited)    /* Throughput: counts of other nodes are taken as soon as their cells are there. */ \
  EACH(stale_partials_taken)  /* A node's sum takes answers of any operation. */ \
  EACH(node_not_rounded)      /* The sum of the own node is not rounded as those of others are. */ \
  EACH(older_word_told)       /* A word that came from another node is told over a newer one. */ \
  EACH(ring_kept)             /* A block that has carried leaves, and its ring stays taken. */ \
  EACH(duty_ignored)          /* The ferry's kernel goes although operations have left it the duty to stay. */ \
  EACH(nobody_carries)        /* Operations across nodes leave what comes to a kernel that has to be launched. */ \
  EACH(network_writes_not_awaited) /* What an adapter wrote into a GPU's memory is not waited for (by the simulated driver). */ \
  EACH(refusal_counted)       /* The host is told of rows that a refused dispatch did not bring. */
// clang-format on

namespace sluice::engine::cuda {

#define SLUICE_ENUMERATOR(name) name,
enum class KernelMutant { none, SLUICE_KERNEL_MUTANTS(SLUICE_ENUMERATOR) };
#undef SLUICE_ENUMERATOR

}  // namespace sluice::engine::cuda
