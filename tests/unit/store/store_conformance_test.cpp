// SPDX-License-Identifier: MIT
//
// One suite for every store. A new one adds itself to the list at the end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/in_process_store.hpp"
#include "store/socket_store.hpp"
#include "store/socket_store_server.hpp"
#include "store/store.hpp"
#include "unit/store/soon.hpp"

namespace sluice::store {
namespace {

using base::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Something that holds one store, and opens ways to it for threads.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class InProcessBackend final : public Backend {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<InProcessStore>();
};

class SocketBackend final : public Backend {
 public:
  explicit SocketBackend(const Address& address) {
    auto server = SocketStoreServer::start(address, 0);
    EXPECT_TRUE(server.ok()) << server.status().to_string();
    if (server.ok()) server_ = std::move(*server);
  }
  std::shared_ptr<Store> open() override {
    auto client = SocketStore::connect(server_->address(), {}, soon());
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return client.ok() ? std::shared_ptr<Store>(std::move(*client)) : nullptr;
  }

 private:
  std::unique_ptr<SocketStoreServer> server_;
};

std::unique_ptr<Backend> in_process() {
  return std::make_unique<InProcessBackend>();
}
std::unique_ptr<Backend> over_unix() {
  static std::atomic<int> count{0};
  Address address;
  address.kind = Address::Kind::unix_abstract;
  address.name = "sluice-store-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
  return std::make_unique<SocketBackend>(address);
}
std::unique_ptr<Backend> over_tcp() {
  Address address;
  address.host = "127.0.0.1";  // Port 0: a free one.
  return std::make_unique<SocketBackend>(address);
}

struct Case {
  const char* name;
  std::unique_ptr<Backend> (*make)();
};

class StoreConformance : public ::testing::TestWithParam<Case> {
 protected:
  StoreConformance() : backend_(GetParam().make()), store_(backend_->open()) {}
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Store> store_;
};

TEST_P(StoreConformance, SetThenGet) {
  EXPECT_TRUE(store_->set("a", "1", soon()).ok());
  EXPECT_TRUE(store_->set("a", std::string("\0two\n", 5), soon()).ok());
  EXPECT_TRUE(store_->set("empty", "", soon()).ok());
  EXPECT_EQ(store_->get("a", soon()).value(), std::string("\0two\n", 5));
  EXPECT_EQ(backend_->open()->get("empty", soon()).value(), "");
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  auto other = backend_->open();
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_TRUE(other->set("noise", "x", soon()).ok());
    EXPECT_TRUE(other->set("late", "here", soon()).ok());
  });
  EXPECT_EQ(store_->get("late", soon()).value(), "here");
  setter.join();
}

TEST_P(StoreConformance, GetEndsAtItsDeadlineAndTheStoreGoesOn) {
  for (int round = 0; round < 3; ++round) {
    const auto missing = store_->get("never", Deadline::after(milliseconds(30)));
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), StatusCode::deadline_exceeded);
    EXPECT_NE(missing.status().message().find("never"), std::string::npos);
    EXPECT_TRUE(store_->set("other", std::to_string(round), soon()).ok());
    EXPECT_EQ(store_->get("other", soon()).value(), std::to_string(round));
  }
  // A wait that gave up must not answer a later call.
  EXPECT_TRUE(backend_->open()->set("never", "now", soon()).ok());
  EXPECT_EQ(store_->get("other", soon()).value(), "2");
  EXPECT_EQ(store_->get("never", soon()).value(), "now");
}

TEST_P(StoreConformance, GetAllWaitsForEveryKey) {
  const std::vector<std::string> keys{"x", "y", "z", "x"};
  auto other = backend_->open();
  std::thread setter([&] {
    for (const char* key : {"z", "noise", "x"}) {
      std::this_thread::sleep_for(milliseconds(5));
      EXPECT_TRUE(other->set(key, std::string("of ") + key, soon()).ok());
    }
    // One that was there already may go and come again.
    EXPECT_TRUE(other->erase("x", soon()).value());
    EXPECT_TRUE(other->set("y", "", soon()).ok());
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(other->set("x", "again", soon()).ok());
  });
  const auto values = store_->get_all(keys, soon());
  setter.join();
  ASSERT_TRUE(values.ok()) << values.status().to_string();
  EXPECT_EQ(*values, (std::vector<std::string>{"again", "", "of z", "again"}));
  EXPECT_TRUE(store_->get_all({}, soon())->empty());
}

TEST_P(StoreConformance, GetAllEndsAtItsDeadlineAndTheStoreGoesOn) {
  const std::vector<std::string> keys{"here", "never"};
  EXPECT_TRUE(store_->set("here", "1", soon()).ok());
  for (int round = 0; round < 3; ++round) {
    const auto missing = store_->get_all(keys, Deadline::after(milliseconds(30)));
    EXPECT_EQ(missing.status().code(), StatusCode::deadline_exceeded);
    EXPECT_NE(missing.status().message().find("here"), std::string::npos);
    EXPECT_EQ(store_->get("here", soon()).value(), "1");
  }
  EXPECT_TRUE(backend_->open()->set("never", "now", soon()).ok());
  EXPECT_EQ(*store_->get_all(keys, soon()), (std::vector<std::string>{"1", "now"}));
  const std::vector<std::string> nameless{"here", ""};
  EXPECT_EQ(store_->get_all(nameless, soon()).status().code(), StatusCode::invalid_argument);
  const std::vector<std::string> many(2000, std::string(kKeyBytesMax, 'k'));
  EXPECT_EQ(store_->get_all(many, soon()).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(store_->get("here", soon()).value(), "1");
}

// In as many answers as it takes.
TEST_P(StoreConformance, GetAllOfLongValues) {
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (const std::size_t bytes : {kValueBytesMax, std::size_t{3}, kValueBytesMax / 2,
                                  kValueBytesMax / 2 - 16, std::size_t{0}, kValueBytesMax}) {
    keys.push_back("long/" + std::to_string(keys.size()));
    values.emplace_back(bytes, static_cast<char>('a' + keys.size()));
    EXPECT_TRUE(store_->set(keys.back(), values.back(), soon()).ok());
  }
  const auto seen = store_->get_all(keys, soon());
  ASSERT_TRUE(seen.ok()) << seen.status().to_string();
  EXPECT_TRUE(*seen == values);
}

TEST_P(StoreConformance, AddCounts) {
  EXPECT_EQ(store_->add("n", 5, soon()).value(), 5);
  EXPECT_EQ(store_->add("n", -7, soon()).value(), -2);
  EXPECT_EQ(store_->get("n", soon()).value(), "-2");
  EXPECT_TRUE(store_->set("n", "40", soon()).ok());
  EXPECT_EQ(store_->add("n", 2, soon()).value(), 42);
  EXPECT_TRUE(store_->set("word", "4x", soon()).ok());
  EXPECT_EQ(store_->add("word", 1, soon()).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(store_->get("word", soon()).value(), "4x");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(store_->add("big", kMost, soon()).value(), kMost);
  EXPECT_EQ(store_->add("big", 1, soon()).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(store_->get("big", soon()).value(), std::to_string(kMost));
}

TEST_P(StoreConformance, CompareAndSet) {
  auto swap = store_->compare_and_set("c", "x", "y", soon());
  ASSERT_TRUE(swap.ok());
  EXPECT_FALSE(swap->swapped);
  EXPECT_FALSE(swap->value.has_value());
  swap = store_->compare_and_set("c", std::nullopt, "first", soon());
  ASSERT_TRUE(swap.ok());
  EXPECT_TRUE(swap->swapped);
  swap = store_->compare_and_set("c", std::nullopt, "again", soon());
  ASSERT_TRUE(swap.ok());
  EXPECT_FALSE(swap->swapped);
  EXPECT_EQ(swap->value, "first");
  swap = store_->compare_and_set("c", "first", "", soon());
  ASSERT_TRUE(swap.ok());
  EXPECT_TRUE(swap->swapped);
  swap = store_->compare_and_set("c", "", "third", soon());  // Empty is not absent.
  ASSERT_TRUE(swap.ok());
  EXPECT_TRUE(swap->swapped);
  EXPECT_EQ(swap->value, "third");
}

TEST_P(StoreConformance, Erase) {
  EXPECT_FALSE(store_->erase("e", soon()).value());
  EXPECT_TRUE(store_->set("e", "1", soon()).ok());
  EXPECT_TRUE(store_->erase("e", soon()).value());
  EXPECT_FALSE(store_->erase("e", soon()).value());
  EXPECT_EQ(store_->get("e", Deadline::after(milliseconds(10))).status().code(),
            StatusCode::deadline_exceeded);
}

TEST_P(StoreConformance, SizesHaveLimits) {
  const std::string longest_key(kKeyBytesMax, 'k');
  const std::string longest_value(kValueBytesMax, 'v');
  EXPECT_TRUE(store_->set(longest_key, longest_value, soon()).ok());
  EXPECT_EQ(store_->get(longest_key, soon()).value(), longest_value);
  const auto swap = store_->compare_and_set(longest_key, longest_value, longest_value, soon());
  EXPECT_TRUE(swap.ok() && swap.value().swapped);
  for (const std::string& key : {std::string(), longest_key + "k"}) {
    EXPECT_EQ(store_->set(key, "", soon()).code(), StatusCode::invalid_argument);
    EXPECT_EQ(store_->get(key, soon()).status().code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(store_->set("k", longest_value + "v", soon()).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(store_->set("k", "still works", soon()).ok());
}

TEST_P(StoreConformance, ThreadsCountTogether) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, way = backend_->open()] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(way->add("count", 1, soon()).ok());
        // The same by compare-and-set, against the others.
        std::optional<std::string> seen;
        for (;;) {
          const int next = seen.has_value() ? std::stoi(*seen) + 1 : 1;
          auto swap = way->compare_and_set("swapped", seen, std::to_string(next), soon());
          ASSERT_TRUE(swap.ok());
          if (swap->swapped) break;
          seen = swap->value;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->get("count", soon()).value(), std::to_string(kThreads * kRounds));
  EXPECT_EQ(store_->get("swapped", soon()).value(), std::to_string(kThreads * kRounds));
}

INSTANTIATE_TEST_SUITE_P(AllStores, StoreConformance,
                         ::testing::Values(Case{"in_process", in_process},
                                           Case{"unix_socket", over_unix},
                                           Case{"tcp_socket", over_tcp}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace sluice::store
