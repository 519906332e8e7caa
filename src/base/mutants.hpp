// SPDX-License-Identifier: MIT
#pragma once

#if defined(SLUICE_MUTANTS)
#include <cstdlib>
#include <cstring>
#endif

/// Deliberate bugs, compiled in only for the test that each of them is found (tests/mutants). In a
/// normal build `mutant` is a constant false and nothing of them remains.
namespace sluice::base {

enum class Mutant {
  two_banks,            // Banks by parity, although two operations may be in flight.
  guard_skipped,        // Banks are reused without proof.
  guard_late,           // The guard asks for one epoch too few.
  told_early,           // A send half tells its own epoch, not the last one read.
  epoch_not_compared,   // Any epoch in a cell is taken for the awaited one.
  publish_relaxed,      // The cell is stored without release.
  cell_before_payload,  // The cell is published before the payload is written.
  ring_before_publish,  // Peers are woken before the signal is there.
  done_wait_skipped,    // A zero-copy input is given back while peers still read it.
  stage_not_rotated,    // Every operation stages in the same place.
  sum_descending,       // Terms are added in descending order of k.
  duplicate_twice,      // A duplicate takes part at every k.
  capacity_off_by_one,  // One row more than the capacity is stored.
  lost_not_counted,     // Lost routes do not appear in the report.
  lost_not_scaled,      // The sum is not renormalised when routes are lost.
  suspect_forgiven,     // Suspicion ends with the operation.
  mismatch_ignored,     // Cells of another codec or layout are taken.
  bad_ids_kept,         // Ids out of range are clamped instead of dropped.
  records_not_checked,  // The number of records of a cell is not compared.
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
    case Mutant::suspect_forgiven: return "suspect_forgiven";
    case Mutant::mismatch_ignored: return "mismatch_ignored";
    case Mutant::bad_ids_kept: return "bad_ids_kept";
    case Mutant::records_not_checked: return "records_not_checked";
  }
  return "";
}

/// Whether the environment selects this mutant (SLUICE_MUTANT=name). Read once.
inline bool mutant(Mutant which) noexcept {
  static const char* const selected = std::getenv("SLUICE_MUTANT");
  return selected != nullptr && std::strcmp(selected, mutant_name(which)) == 0;
}
#else
constexpr bool mutant(Mutant /*which*/) noexcept {
  return false;
}
#endif

}  // namespace sluice::base
