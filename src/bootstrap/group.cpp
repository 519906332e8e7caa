// SPDX-License-Identifier: MIT
#include "bootstrap/group.hpp"

#include "bootstrap/agreement.hpp"

namespace sluice::bootstrap {

Status Group::agree(const Status& mine, base::Deadline deadline) {
  auto gathered = all_gather(encode_status(mine), deadline);
  return gathered.ok() ? agreed_status(*gathered) : gathered.status();
}

}  // namespace sluice::bootstrap
