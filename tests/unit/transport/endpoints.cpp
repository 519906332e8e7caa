// SPDX-License-Identifier: MIT
#include "unit/transport/endpoints.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "transport/libfabric.hpp"

namespace sluice::transport {

std::vector<Kind> all_kinds() {
  constexpr auto all = Kind::Receivers::all;
  std::vector<Kind> kinds{{"memory", "memory"}};
  const std::pair<const char*, const char*> providers[] = {
      {"tcp", "tcp"}, {"net", "net"}, {"rxm", "tcp;ofi_rxm"}};
  for (const auto& [name, provider] : providers) {
    for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered, SignalMode::serial}) {
      kinds.push_back({fmt::format("{}_{}", name, to_string(mode)), provider, mode});
      kinds.push_back(
          {fmt::format("{}_{}_receiver", name, to_string(mode)), provider, mode, 1, all});
    }
    kinds.push_back({fmt::format("{}_two_rails", name), provider, SignalMode::immediate, 2});
    kinds.push_back({fmt::format("{}_two_rails_ordered", name), provider, SignalMode::ordered, 2});
    kinds.push_back({fmt::format("{}_two_rails_serial", name), provider, SignalMode::serial, 2});
    for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered}) {
      kinds.push_back(
          {fmt::format("{}_two_rails_{}_receiver", name, to_string(mode)), provider, mode, 2, all});
    }
    kinds.push_back({fmt::format("{}_some_receive", name), provider, SignalMode::immediate, 1,
                     Kind::Receivers::some});
  }
  kinds.push_back({"ipv6", kAnyTcp, SignalMode::immediate, 1, Kind::Receivers::none, "::1"});
  return kinds;
}

std::unique_ptr<Joined> join(const Kind& kind, int ranks, std::size_t bytes, int window,
                             std::uint64_t seed, std::string& why_not, const Introduce& introduce) {
  auto joined = std::make_unique<Joined>();
  if (kind.provider == "memory") {
    Adversity adversity;
    adversity.seed = seed;
    adversity.window = window;
    adversity.pieces_max = 3;
    joined->fabric.emplace(ranks, adversity);
  }
  std::vector<std::string> introductions;
  for (int rank = 0; rank < ranks; ++rank) {
    if (joined->fabric) {
      joined->endpoints.push_back(joined->fabric->endpoint(rank));
    } else {
      LibfabricSettings settings;
      // "net" is what libfabric 1.17 calls "tcp".
      settings.providers = kind.provider == kAnyTcp ? std::vector<std::string>{"tcp", "net"}
                                                    : std::vector{kind.provider};
      settings.signals = kind.signals;
      settings.rails = kind.rails;
      settings.receiver = kind.receivers == Kind::Receivers::all ||
                          (kind.receivers == Kind::Receivers::some && rank % 2 == 1);
      // As where it has a processor to itself.
      if (rank % 2 == 1) settings.processors = LibfabricSettings::kReceiverProcessors;
      settings.address = kind.address;
      settings.window = window;
      auto endpoint = open_libfabric(rank, ranks, settings);
      if (!endpoint.ok()) {
        why_not = endpoint.status().to_string();
        return nullptr;
      }
      joined->endpoints.push_back(std::move(*endpoint));
    }
    joined->memory.emplace_back(bytes);
    auto& endpoint = *joined->endpoints.back();
    const auto region = endpoint.add_region(joined->memory.back().data(), bytes);
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    const auto introduction = endpoint.introduction();
    EXPECT_TRUE(introduction.ok()) << introduction.status().to_string();
    introductions.push_back(introduction.ok() ? *introduction : std::string());
    if (introduce) introductions.back() = introduce(introductions.back());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const Status status = joined->endpoints[static_cast<std::size_t>(rank)]->connect(
          peer, introductions[static_cast<std::size_t>(peer)]);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
  }
  return joined;
}

std::vector<std::int64_t> talk(Joined& joined, int messages, const Load& load) {
  const int ranks = static_cast<int>(joined.endpoints.size());
  std::atomic<int> ready{0};
  std::vector<std::int64_t> wrong(joined.endpoints.size(), -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto self = static_cast<std::size_t>(rank);
      Endpoint& endpoint = *joined.endpoints[self];
      Talker talker(endpoint, joined.memory[self], rank, ranks, messages, Scheme::per_message,
                    /*naps=*/true, load);
      if (talker.run(base::Deadline::after(std::chrono::seconds(60)))) wrong[self] = talker.wrong();
      ++ready;
      // Its peers' last chunks move while it polls.
      const auto deadline = base::Deadline::after(std::chrono::seconds(60));
      while (ready < ranks && !deadline.expired()) {
        talker.keep_polling();
        std::this_thread::yield();
      }
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(endpoint.bytes_put(peer), talker.bytes_sent(peer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

}  // namespace sluice::transport
