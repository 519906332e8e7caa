// SPDX-License-Identifier: MIT
//
// What a launcher starts: joins, lets a blob and a word of shared memory go round, leaves.
#include <cstdio>
#include <string>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "sluice/world.hpp"

namespace {

int fail(const char* what, const sluice::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  using std::chrono::seconds;
  auto world = sluice::World::from_environment({seconds(60)});
  if (!world.ok()) return fail("from_environment", world.status());
  auto all = world->all_gather(std::to_string(world->rank()));
  if (!all.ok()) return fail("all_gather", all.status());
  for (int rank = 0; rank < world->size(); ++rank) {
    if ((*all)[static_cast<std::size_t>(rank)] != std::to_string(rank)) return 2;
  }
  auto region = world->group()->share(4096, true, sluice::base::Deadline::after(seconds(60)));
  if (!region.ok()) return fail("share", region.status());
  const int next = (world->rank() + 1) % world->size();
  region->base(next)[0] = static_cast<std::byte>(world->rank() + 1);
  if (sluice::Status status = world->barrier(); !status.ok()) return fail("barrier", status);
  const int before = (world->rank() + world->size() - 1) % world->size();
  if (region->base(world->rank())[0] != static_cast<std::byte>(before + 1)) return 3;
  if (sluice::Status status = world->leave(seconds(60)); !status.ok()) return fail("leave", status);
  std::printf("rank %d of %d joined and left\n", world->rank(), world->size());
  return 0;
}
