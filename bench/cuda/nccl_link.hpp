// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange_plan.hpp"
#include "nccl_library.hpp"
#include "place.hpp"
#include "sluice/world.hpp"

namespace sluice::bench {

/// One rank's communicator of NCCL, and memory that it exchanges.
class NcclLink {
 public:
  /// Collective. Every pair of ranks is connected: nothing is left to be set up while a
  /// graph is captured. `place` must outlive it.
  static Result<std::unique_ptr<NcclLink>> create(World& world, Place& place,
                                                  const std::string& library);
  /// Local. What was captured with it must be gone.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Memory to send from and to receive into; freed with this. It is NCCL's own and registered with
  /// it where it can do that: then nothing need be copied within NCCL.
  Result<std::byte*> take(std::size_t bytes);
  /// Queues one group: records of `bytes` each to and from all other ranks. Nothing is posted for
  /// an empty pair, on either side.
  Status exchange(const std::byte* from, const ExchangePlan::Side& out, std::byte* to,
                  const ExchangePlan::Side& in, std::size_t bytes);

  const std::string& version() const noexcept { return nccl_.version; }
  bool registers_memory() const noexcept { return nccl_.registers_memory(); }

 private:
  struct Memory {
    void* data;
    void* handle;
  };

  NcclLink(NcclLibrary nccl, Place& place, int rank, int ranks)
      : nccl_(std::move(nccl)), place_(place), rank_(rank), ranks_(ranks) {}
  Status join(World& world);
  Status connect();
  Status queue(const std::byte* from, const ExchangePlan::Side& out, std::byte* to,
               const ExchangePlan::Side& in, std::size_t bytes);

  NcclLibrary nccl_;
  Place& place_;
  int rank_;
  int ranks_;
  NcclLibrary::Comm comm_ = nullptr;
  std::vector<Memory> memory_;
};

}  // namespace sluice::bench
