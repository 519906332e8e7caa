// SPDX-License-Identifier: MIT
#include "memory/mapping.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <utility>

#include "memory/pages.hpp"
#include "memory/shared_region.hpp"
#include "support/address_space.hpp"
#include "support/sanitizers.hpp"

namespace sluice::memory {
namespace {

constexpr bool kSanitized = sluice::testing::kAddressSanitizer || sluice::testing::kThreadSanitizer;

TEST(Pages, RoundsUpAndNeverOverflows) {
  const std::size_t page = page_bytes();
  EXPECT_EQ(rounded_to_pages(0), 0U);
  EXPECT_EQ(rounded_to_pages(1), page);
  EXPECT_EQ(rounded_to_pages(page), page);
  EXPECT_EQ(rounded_to_pages(page + 1), 2 * page);
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(rounded_to_pages(most) % page, 0U);
  EXPECT_GT(rounded_to_pages(most), most - page);
}

TEST(MemoryFile, TwoMappingsSeeOneMemory) {
  for (const bool committed : {false, true}) {
    auto file = create_memory_file(10000, committed);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_NE(::fcntl(file->number(), F_GETFD) & FD_CLOEXEC, 0);
    auto one = Mapping::of_file(*file, 10000);
    auto two = Mapping::of_file(*file, 10000);
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(one->bytes(), rounded_to_pages(10000));
    EXPECT_NE(one->base(), two->base());
    file->reset();
    EXPECT_EQ(one->base()[9999], std::byte{0});
    std::memset(one->base(), 0x5a, one->bytes());
    EXPECT_EQ(two->base()[one->bytes() - 1], std::byte{0x5a});
  }
}

TEST(MemoryFile, CommittedMemoryIsTaken) {
  for (const std::size_t bytes : {std::size_t{1} << 20, (std::size_t{9} << 20) + page_bytes()}) {
    auto lazy = create_memory_file(bytes, false);
    auto taken = create_memory_file(bytes, true);
    ASSERT_TRUE(lazy.ok() && taken.ok());
    struct stat lazy_facts {};
    struct stat taken_facts {};
    ASSERT_EQ(::fstat(lazy->number(), &lazy_facts), 0);
    ASSERT_EQ(::fstat(taken->number(), &taken_facts), 0);
    EXPECT_EQ(lazy_facts.st_blocks, 0);
    EXPECT_GE(taken_facts.st_blocks * 512, static_cast<long>(bytes));
  }
}

TEST(MemoryFile, NothingIsLegal) {
  auto file = create_memory_file(0, true);
  ASSERT_TRUE(file.ok());
  auto mapping = Mapping::of_file(*file, 0);
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->base(), nullptr);
  EXPECT_EQ(mapping->bytes(), 0U);
}

TEST(MemoryFile, TooMuchIsAStatus) {
  for (const bool committed : {false, true}) {
    auto file = create_memory_file(std::numeric_limits<std::size_t>::max(), committed);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), StatusCode::out_of_memory);
  }
  auto mapping = Mapping::anonymous(std::numeric_limits<std::size_t>::max(), false);
  ASSERT_FALSE(mapping.ok());
  EXPECT_EQ(mapping.status().code(), StatusCode::out_of_memory);
}

TEST(Mapping, AnonymousIsZeroedAndMoves) {
  auto mapping = Mapping::anonymous(5000, true);
  ASSERT_TRUE(mapping.ok());
  for (std::size_t at = 0; at < mapping->bytes(); ++at) {
    ASSERT_EQ(mapping->base()[at], std::byte{0});
  }
  std::byte* base = mapping->base();
  Mapping moved = std::move(*mapping);
  EXPECT_EQ(moved.base(), base);
  EXPECT_EQ(mapping->base(), nullptr);
  moved.base()[4999] = std::byte{1};
}

// Runs `body` in a child, which answers by its exit code: limits would outlive the test.
template <typename Body>
int exit_code_of(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(MemoryFile, AFileSizeLimitIsAStatusNotASignal) {
  for (const bool committed : {false, true}) {
    const int code = exit_code_of([committed] {
      const rlimit limit{1 << 16, 1 << 16};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
      auto refused = create_memory_file(1 << 20, committed);
      if (refused.ok() || refused.status().code() != StatusCode::out_of_memory) return 3;
      return create_memory_file(1 << 12, committed).ok() ? 0 : 4;
    });
    EXPECT_EQ(code, 0) << "committed " << committed;
  }
}

TEST(Mapping, AnAddressSpaceLimitIsAStatus) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve more address space than the limit";
  const rlim_t taken = sluice::testing::address_space();
  ASSERT_GT(taken, 0U);
  const int code = exit_code_of([taken] {
    const rlimit limit{taken + (256 << 20), taken + (256 << 20)};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    auto file = create_memory_file(1 << 30, false);
    if (!file.ok()) return 3;
    auto refused = Mapping::of_file(*file, 1 << 30);
    if (refused.ok() || refused.status().code() != StatusCode::out_of_memory) return 4;
    return Mapping::of_file(*file, 1 << 20).ok() ? 0 : 5;
  });
  EXPECT_EQ(code, 0);
}

TEST(SharedRegion, ReleasesExactlyOnce) {
  int releases = 0;
  std::byte memory{};
  {
    SharedRegion first({{&memory, 1}}, [&] { ++releases; });
    SharedRegion second = std::move(first);
    EXPECT_EQ(second.base(0), &memory);
    EXPECT_EQ(second.bytes(0), 1U);
    SharedRegion third;
    third = std::move(second);
    EXPECT_EQ(releases, 0);
  }
  EXPECT_EQ(releases, 1);
}

}  // namespace
}  // namespace sluice::memory
