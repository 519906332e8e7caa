// SPDX-License-Identifier: MIT
#include "nccl_link.hpp"

#include <fmt/format.h>

#include <charconv>

namespace sluice::bench {
namespace {

std::string hex_of(const NcclLibrary::UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  }
  return text;
}

Status read_hex(const std::string& text, NcclLibrary::UniqueId& id) {
  bool good = text.size() == 2 * sizeof(id.bytes);
  for (std::size_t i = 0; good && i < sizeof(id.bytes); ++i) {
    unsigned value = 0;
    const char* at = text.data() + 2 * i;
    good = std::from_chars(at, at + 2, value, 16).ptr == at + 2;
    id.bytes[i] = static_cast<char>(value);
  }
  return good ? Status()
              : Status(StatusCode::internal, "rank 0 sent something that is no id of NCCL's");
}

}  // namespace

Result<std::unique_ptr<NcclLink>> NcclLink::create(World& world, Place& place,
                                                   const std::string& library) {
  Result<NcclLibrary> nccl = NcclLibrary::load(library);
  if (!nccl) return nccl.status();
  std::unique_ptr<NcclLink> link(
      new NcclLink(std::move(nccl).value(), place, world.rank(), world.size()));
  if (Status status = link->join(world); !status) return status;
  if (Status status = link->connect(); !status) return status;
  return link;
}

NcclLink::~NcclLink() {
  for (const Memory& memory : memory_) {
    if (memory.handle != nullptr) (void)nccl_.comm_deregister(comm_, memory.handle);
  }
  // Not ncclCommDestroy: that may wait for ranks which have given up.
  if (comm_ != nullptr) (void)nccl_.comm_abort(comm_);
  for (const Memory& memory : memory_) (void)nccl_.mem_free(memory.data);
}

Status NcclLink::join(World& world) {
  NcclLibrary::UniqueId id = {};
  if (rank_ == 0) {
    if (Status status = nccl_.check(nccl_.get_unique_id(&id), "asking for an id"); !status) {
      return status;
    }
  }
  // Who has not found NCCL is missing here, where that is noticed, and not within NCCL, where it is
  // waited for.
  const Result<std::vector<std::string>> ids = world.all_gather(rank_ == 0 ? hex_of(id) : "");
  if (!ids) return ids.status();
  if (Status status = read_hex(ids->front(), id); !status) return status;
  return nccl_.check(nccl_.comm_init_rank(&comm_, ranks_, id, rank_), "joining the ranks");
}

Status NcclLink::connect() {
  constexpr std::size_t kBytes = 16;
  const std::size_t ranks = static_cast<std::size_t>(ranks_);
  ExchangePlan::Side side;
  for (std::int64_t peer = 0; peer < ranks_; ++peer) {
    side.first.push_back(peer);
    side.count.push_back(1);
  }
  Result<std::byte*> memory = take(2 * ranks * kBytes);
  if (!memory) return memory.status();
  Status status = exchange(*memory, side, *memory + ranks * kBytes, side, kBytes);
  return status ? place_.finish() : status;
}

Result<std::byte*> NcclLink::take(std::size_t bytes) {
  if (bytes == 0) bytes = 16;
  if (!nccl_.registers_memory()) return place_.take(bytes);
  void* data = nullptr;
  Status status = nccl_.check(nccl_.mem_alloc(&data, bytes), "taking memory");
  if (!status) return status;
  memory_.push_back({data, nullptr});
  status = nccl_.check(nccl_.comm_register(comm_, data, bytes, &memory_.back().handle),
                       "registering memory");
  if (!status) return status;
  return static_cast<std::byte*>(data);
}

Status NcclLink::exchange(const std::byte* from, const ExchangePlan::Side& out, std::byte* to,
                          const ExchangePlan::Side& in, std::size_t bytes) {
  Status status = nccl_.check(nccl_.group_start(), "beginning a group");
  if (!status) return status;
  status = queue(from, out, to, in, bytes);
  const Status ended = nccl_.check(nccl_.group_end(), "ending a group");
  return status ? ended : status;
}

Status NcclLink::queue(const std::byte* from, const ExchangePlan::Side& out, std::byte* to,
                       const ExchangePlan::Side& in, std::size_t bytes) {
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (rank_ + step) % ranks_;
    const std::size_t at = static_cast<std::size_t>(peer);
    const auto scaled = [bytes](std::int64_t records) {
      return static_cast<std::size_t>(records) * bytes;
    };
    int result = NcclLibrary::kSuccess;
    if (out.count[at] > 0) {
      result = nccl_.send(from + scaled(out.first[at]), scaled(out.count[at]), NcclLibrary::kBytes,
                          peer, comm_, place_.stream());
    }
    if (result == NcclLibrary::kSuccess && in.count[at] > 0) {
      result = nccl_.recv(to + scaled(in.first[at]), scaled(in.count[at]), NcclLibrary::kBytes,
                          peer, comm_, place_.stream());
    }
    if (Status status = nccl_.check(result, "a send or receive"); !status) return status;
  }
  return {};
}

}  // namespace sluice::bench
