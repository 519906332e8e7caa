// SPDX-License-Identifier: MIT
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "transport/libfabric/provider.hpp"
#include "transport/transport.hpp"

namespace sluice::transport {

struct CloseObject {
  template <typename Object>
  void operator()(Object* object) const noexcept {
    if (const int error = fi_close(&object->fid); error != 0) {
      base::log_warn("libfabric: an object cannot be closed ({})", error);
    }
  }
};
template <typename Object>
using Owned = std::unique_ptr<Object, CloseObject>;

/// What a peer needs to write into memory of this rank.
struct RemoteMemory {
  std::uint64_t base = 0;
  std::uint64_t key = 0;
};

/// One endpoint of libfabric with all that belongs to it, and no policy.
class Rail {
 public:
  static Result<std::unique_ptr<Rail>> open(const Library& library, const fi_info& info,
                                            std::size_t arrivals_max);

  /// Registers memory: the number by which write() names it.
  Result<int> add_memory(std::byte* base, std::size_t bytes);
  /// Likewise; `how`: by its dmabuf, or by its address.
  Result<int> add_device_memory(const DeviceRegion& memory, const char*& how);
  void drop_last_memory() noexcept { memories_.pop_back(); }
  RemoteMemory remote(int memory) const noexcept;
  Result<std::string> name() const;
  Result<fi_addr_t> insert(std::string_view name);

  struct Piece {
    int memory = -1;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    std::uint64_t to = 0;
    std::uint64_t key = 0;
  };
  static constexpr std::size_t kPiecesMax = 4;
  /// How many one write may have, kPiecesMax at most.
  static std::size_t pieces_max(const fi_info& info) noexcept;
  struct Write {
    fi_addr_t peer = FI_ADDR_UNSPEC;
    std::array<Piece, kPiecesMax> pieces;
    std::size_t count = 1;    // Of them.
    std::uint64_t flags = 0;  // FI_REMOTE_CQ_DATA, FI_DELIVERY_COMPLETE
    std::uint64_t data = 0;
    void* context = nullptr;
  };
  /// 0, or libfabric's negative error.
  long write(const Write& write) noexcept;

  fid_cq* sent() const noexcept { return sent_.get(); }
  fid_cq* arrived() const noexcept { return arrived_.get(); }

 private:
  Rail(const Library& library, bool virtual_addresses, bool bind_memory,
       std::uint64_t first_key) noexcept
      : library_(library),
        virtual_addresses_(virtual_addresses),
        bind_memory_(bind_memory),
        first_key_(first_key) {}

  struct Memory {
    Owned<fid_mr> region;
    std::byte* base = nullptr;
  };

  static Result<std::uint64_t> random_key(std::size_t bytes);
  std::uint64_t next_key() const noexcept;
  Result<int> keep(fid_mr* region, std::byte* base);

  const Library& library_;
  bool virtual_addresses_;
  bool bind_memory_;
  std::uint64_t first_key_;  // 0: the provider chooses them.
  // Closed in the opposite order.
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> peers_;
  Owned<fid_cq> sent_;
  Owned<fid_cq> arrived_;
  Owned<fid_ep> endpoint_;
  std::vector<Memory> memories_;
};

}  // namespace sluice::transport
