// SPDX-License-Identifier: MIT
#include "bootstrap/group.hpp"

#include <fmt/format.h>

#include <random>

#include "bootstrap/agreement.hpp"

namespace sluice::bootstrap {

Status Group::agree(const Status& mine, base::Deadline deadline) {
  auto gathered = all_gather(encode_status(mine), deadline);
  return gathered.ok() ? agreed_status(*gathered) : gathered.status();
}

Result<std::uint64_t> Group::number(base::Deadline deadline) {
  std::random_device device;
  auto gathered = all_gather(fmt::format("{:08x}{:08x}", device(), device()), deadline);
  if (!gathered) return gathered.status();
  return std::stoull(gathered->front(), nullptr, 16);
}

}  // namespace sluice::bootstrap
