// SPDX-License-Identifier: MIT
//
// Raw speed of the transport between two threads of this process over loopback: puts of many chunks
// in one direction, and one chunk to and fro. docs/performance/transport.md has figures.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/libfabric.hpp"
#include "transport/transport.hpp"

namespace {

using sluice::Result;
using sluice::transport::Chunk;
using sluice::transport::Endpoint;
using sluice::transport::Event;
using sluice::transport::LibfabricSettings;
using sluice::transport::Posted;
using sluice::transport::SignalMode;

constexpr int kWindow = 64;

struct Side {
  std::vector<std::byte> memory;
  std::unique_ptr<Endpoint> endpoint;
};

/// Two endpoints that know each other; none, and `why_not`, where that cannot be.
class Pair {
 public:
  Pair(const std::string& provider, SignalMode mode, std::size_t bytes) {
    std::array<std::string, 2> introductions;
    for (int rank = 0; rank < 2; ++rank) {
      LibfabricSettings settings;
      settings.providers = {provider};
      settings.signals = mode;
      settings.address = "127.0.0.1";
      settings.window = kWindow;
      Result<std::unique_ptr<Endpoint>> endpoint =
          sluice::transport::open_libfabric(rank, 2, settings);
      if (!endpoint.ok()) {
        why_not = endpoint.status().to_string();
        return;
      }
      Side& side = at(rank);
      side.endpoint = std::move(*endpoint);
      side.memory.resize(bytes);
      if (!side.endpoint->add_region(side.memory.data(), bytes).ok()) why_not = "no region";
      const Result<std::string> introduction = side.endpoint->introduction();
      if (introduction.ok()) introductions[static_cast<std::size_t>(rank)] = *introduction;
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto status =
          at(rank).endpoint->connect(1 - rank, introductions[static_cast<std::size_t>(1 - rank)]);
      if (!status.ok()) why_not = status.to_string();
    }
  }
  Side& at(int rank) { return sides_[static_cast<std::size_t>(rank)]; }

  std::string why_not;

 private:
  std::array<Side, 2> sides_;
};

int take_arrivals(Endpoint& endpoint, int peer) {
  std::array<Event, 16> events;
  int arrived = 0;
  const std::size_t count = endpoint.poll(events);
  for (std::size_t i = 0; i < count; ++i) {
    if (events[i].kind == Event::Kind::arrived) ++arrived;
  }
  if (arrived > 0) endpoint.took(peer, arrived);
  return arrived;
}

/// Puts a chunk to the other side, and polls until it can: how many chunks arrived meanwhile.
int put(Endpoint& endpoint, int peer, std::size_t offset, std::size_t bytes) {
  Chunk chunk;
  chunk.peer = peer;
  chunk.from = chunk.to = 0;
  chunk.from_offset = chunk.to_offset = offset;
  chunk.bytes = static_cast<std::uint32_t>(bytes);
  int arrived = 0;
  while (endpoint.put(chunk) == Posted::busy) arrived += take_arrivals(endpoint, peer);
  return arrived;
}

void stream(benchmark::State& state, const std::string& provider, SignalMode mode) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Pair pair(provider, mode, bytes * kWindow);
  if (!pair.why_not.empty()) return state.SkipWithError(pair.why_not.c_str());
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> received{0};
  std::thread receiver([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      received.fetch_add(take_arrivals(*pair.at(1).endpoint, 0), std::memory_order_relaxed);
    }
  });
  std::int64_t sent = 0;
  for (auto _ : state) {
    put(*pair.at(0).endpoint, 1, static_cast<std::size_t>(sent % kWindow) * bytes, bytes);
    ++sent;
  }
  // Outside the time: at most a window of chunks.
  while (received.load(std::memory_order_relaxed) < sent) take_arrivals(*pair.at(0).endpoint, 1);
  stop = true;
  receiver.join();
  state.SetBytesProcessed(sent * state.range(0));
}

void to_and_fro(benchmark::State& state, const std::string& provider, SignalMode mode) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Pair pair(provider, mode, bytes);
  if (!pair.why_not.empty()) return state.SkipWithError(pair.why_not.c_str());
  std::atomic<bool> stop{false};
  std::thread mirror([&] {
    Endpoint& endpoint = *pair.at(1).endpoint;
    int owed = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      owed += take_arrivals(endpoint, 0);
      for (; owed > 0; --owed) owed += put(endpoint, 0, 0, bytes);
    }
  });
  for (auto _ : state) {
    Endpoint& endpoint = *pair.at(0).endpoint;
    int back = put(endpoint, 1, 0, bytes);
    while (back == 0) back += take_arrivals(endpoint, 1);
  }
  stop = true;
  mirror.join();
  state.counters["one_way"] =
      benchmark::Counter(2.0 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

}  // namespace

int main(int argc, char** argv) {
  for (const char* provider : {"tcp", "net", "tcp;ofi_rxm"}) {
    for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered, SignalMode::serial}) {
      const std::string name = fmt::format("{}/{}", provider, to_string(mode));
      benchmark::RegisterBenchmark(("stream/" + name).c_str(), stream, provider, mode)
          ->Arg(7168)
          ->Arg(14336)
          ->Arg(1 << 20)
          ->UseRealTime();
      benchmark::RegisterBenchmark(("to_and_fro/" + name).c_str(), to_and_fro, provider, mode)
          ->Arg(8)
          ->Arg(7168)
          ->UseRealTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
