// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/test_point.hpp"
#include "faults/round.hpp"

/// What goes wrong on one rank, and what the others must then see.
namespace sluice::faults {

struct Fault {
  const char* name;
  Stage stage;  ///< The fault is set off within this half, or at once when it is not `inside`.
  bool inside = false;
  base::TestPoint point = base::TestPoint::before_tell;
  int passes = 0;  ///< The fault strikes when the point has been passed this often: peers served.
};

/// Every place where a rank may end: before, inside and between all four halves.
const std::vector<Fault>& all_faults();
/// The same for "inside" only, where some peers were served and others were not.
const Fault& fault_named(const std::string& name);

/// A signal for this process itself at a place of its own. Set before the half begins.
void arm(const Fault& fault, int signal);

/// Whether `victim` had served `peer` in the round's dispatch, or in its combine, when it ended.
/// Cells are published in the order victim + 1, victim + 2, ...
bool served_dispatch(const Fault& fault, int victim, int peer, int ranks);
bool served_combine(const Fault& fault, int victim, int peer, int ranks);

}  // namespace sluice::faults
