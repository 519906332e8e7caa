// SPDX-License-Identifier: MIT
#pragma once

#if defined(SLUICE_MUTANTS)
#include <string>

#include "base/environment.hpp"
#endif

/// Deliberate bugs, compiled in only for the test that each of them is found (tests/mutants). In a
/// normal build `mutant` is a constant false and nothing of them remains.
namespace sluice::base {

enum class Mutant {
  two_banks,                 // Banks by parity, although two operations may be in flight.
  guard_skipped,             // Banks are reused without proof.
  guard_late,                // The guard asks for one epoch too few.
  told_early,                // A send half tells its own epoch, not the last one read.
  epoch_not_compared,        // Any epoch in a cell is taken for the awaited one.
  publish_relaxed,           // The cell is stored without release.
  cell_before_payload,       // The cell is published before the payload is written.
  ring_before_publish,       // Peers are woken before the signal is there.
  done_wait_skipped,         // A zero-copy input is given back while peers still read it.
  stage_not_rotated,         // Every operation stages in the same place.
  sum_descending,            // Terms are added in descending order of k.
  duplicate_twice,           // A duplicate takes part at every k.
  capacity_off_by_one,       // One row more than the capacity is stored.
  lost_not_counted,          // Lost routes do not appear in the report.
  lost_not_scaled,           // The sum is not renormalised when routes are lost.
  look_back_skipped,         // Rows pulled from a source that gave this rank up are believed.
  suspect_forgiven,          // Suspicion ends with the operation.
  mismatch_ignored,          // Cells of another codec or layout are taken.
  bad_ids_kept,              // Ids out of range are clamped instead of dropped.
  records_not_checked,       // The number of records of a cell is not compared.
  told_not_stored,           // Nobody is told what this rank has read.
  tell_relaxed,              // What was read is told without release.
  missing_accepted,          // Cells of missing ranks are looked at.
  refused_taken,             // A refusing rank's cell is taken for an ordinary one.
  lost_rows_not_zeroed,      // A cached dispatch leaves a lost source's rows as they were.
  foreign_ids_sent,          // A record holds the routes of other ranks too.
  scales_not_copied,         // Rows are received without their scales.
  duplicate_weight_dropped,  // A duplicate's weight is not added to that of its lowest k.
  given_weights_ignored,     // combine uses the weights of dispatch, whatever it was given.
  surviving_counts_all,      // surviving_weight includes the lost routes.
  single_unsorted,           // The single chain takes routes rank by rank, not by k.
  lease_ignored,             // What arrives from another node is taken, however late.
  echo_for_all,              // One echo stands for all beats, whichever of them it answers.
};

#if defined(SLUICE_MUTANTS)
inline const char* mutant_name(Mutant mutant) noexcept {
  switch (mutant) {
    case Mutant::two_banks: return "two_banks";
    case Mutant::guard_skipped: return "guard_skipped";
    case Mutant::guard_late: return "guard_late";
    case Mutant::told_early: return "told_early";
    case Mutant::epoch_not_compared: return "epoch_not_compared";
    case Mutant::publish_relaxed: return "publish_relaxed";
    case Mutant::cell_before_payload: return "cell_before_payload";
    case Mutant::ring_before_publish: return "ring_before_publish";
    case Mutant::done_wait_skipped: return "done_wait_skipped";
    case Mutant::stage_not_rotated: return "stage_not_rotated";
    case Mutant::sum_descending: return "sum_descending";
    case Mutant::duplicate_twice: return "duplicate_twice";
    case Mutant::capacity_off_by_one: return "capacity_off_by_one";
    case Mutant::lost_not_counted: return "lost_not_counted";
    case Mutant::lost_not_scaled: return "lost_not_scaled";
    case Mutant::look_back_skipped: return "look_back_skipped";
    case Mutant::suspect_forgiven: return "suspect_forgiven";
    case Mutant::mismatch_ignored: return "mismatch_ignored";
    case Mutant::bad_ids_kept: return "bad_ids_kept";
    case Mutant::records_not_checked: return "records_not_checked";
    case Mutant::told_not_stored: return "told_not_stored";
    case Mutant::tell_relaxed: return "tell_relaxed";
    case Mutant::missing_accepted: return "missing_accepted";
    case Mutant::refused_taken: return "refused_taken";
    case Mutant::lost_rows_not_zeroed: return "lost_rows_not_zeroed";
    case Mutant::foreign_ids_sent: return "foreign_ids_sent";
    case Mutant::scales_not_copied: return "scales_not_copied";
    case Mutant::duplicate_weight_dropped: return "duplicate_weight_dropped";
    case Mutant::given_weights_ignored: return "given_weights_ignored";
    case Mutant::surviving_counts_all: return "surviving_counts_all";
    case Mutant::single_unsorted: return "single_unsorted";
    case Mutant::lease_ignored: return "lease_ignored";
    case Mutant::echo_for_all: return "echo_for_all";
  }
  return "";
}

/// Whether the environment selects this mutant (SLUICE_MUTANT=name). Read once.
inline bool mutant(Mutant which) noexcept {
  static const std::string selected =
      Environment::at_start().get(Variable::mutant).value_or(std::string());
  return selected == mutant_name(which);
}
#else
constexpr bool mutant(Mutant /*which*/) noexcept {
  return false;
}
#endif

}  // namespace sluice::base
