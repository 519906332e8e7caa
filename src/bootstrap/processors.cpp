// SPDX-License-Identifier: MIT
#include "bootstrap/processors.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/byte_stream.hpp"
#include "base/processor_quota.hpp"
#include "bootstrap/host_identity.hpp"

namespace sluice::bootstrap {

Result<int> processors_of_rank(Group& group, base::Deadline deadline) {
  const Result<HostIdentity> host = this_host();
  const std::string machine = host.ok() ? host->machine : "";
  const auto quota = base::processor_quota();
  const std::string limited = quota ? quota->group : "";
  cpu_set_t own;
  if (::sched_getaffinity(0, sizeof(own), &own) != 0) CPU_ZERO(&own);  // There are too many.
  const auto all = group.all_gather(
      base::ByteWriter().put_string(machine).put_string(limited).put(own).take(), deadline);
  if (!all.ok()) return all.status();
  std::array<int, CPU_SETSIZE> sharers{};  // Of each processor of this machine.
  int limited_sharers = 0;                 // Of the quota.
  for (const std::string& theirs : *all) {
    base::ByteReader reader(theirs);
    if (reader.get_string() != machine) continue;
    if (reader.get_string() == limited) ++limited_sharers;
    const auto set = reader.get<cpu_set_t>();
    for (std::size_t i = 0; i < sharers.size(); ++i) sharers[i] += CPU_ISSET(i, &set) ? 1 : 0;
  }
  double processors = 0;
  for (std::size_t i = 0; i < sharers.size(); ++i) {
    if (CPU_ISSET(i, &own)) processors += 1.0 / sharers[i];
  }
  if (quota) processors = std::min(processors, quota->processors / limited_sharers);
  return static_cast<int>(processors + 0.01);  // What thirds lack of a whole.
}

}  // namespace sluice::bootstrap
