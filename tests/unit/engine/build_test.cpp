// SPDX-License-Identifier: MIT
#include "engine/build.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "bootstrap/thread_group.hpp"
#include "unit/bootstrap/ranks.hpp"

namespace sluice::engine {
namespace {

// One rank has no memory, or no thread, for its engine: then no rank has one.
TEST(Build, FailsOnAllRanksOrOnNone) {
  for (const bool memory : {false, true}) {
    auto groups = bootstrap::ThreadGroup::create_all(3);
    testing::for_each_rank(3, [&](int rank) {
      const auto built =
          build(*groups[static_cast<std::size_t>(rank)],
                base::Deadline::after(std::chrono::seconds(60)), [&]() -> std::unique_ptr<Engine> {
                  if (rank == 1 && memory) throw std::bad_alloc();
                  if (rank == 1) throw std::system_error(EAGAIN, std::generic_category());
                  return nullptr;
                });
      ASSERT_FALSE(built.ok());
      EXPECT_EQ(built.status().code(), memory ? StatusCode::out_of_memory : StatusCode::io_error);
      EXPECT_EQ(built.status().message().rfind("rank 1: ", 0), 0U) << built.status().to_string();
    });
  }
}

}  // namespace
}  // namespace sluice::engine
