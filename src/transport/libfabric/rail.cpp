// SPDX-License-Identifier: MIT
#include "transport/libfabric/rail.hpp"

#include <fmt/format.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/random.hpp"

namespace sluice::transport {
namespace {

template <typename Object>
Status open_queue(const Library& library, fid_domain* domain, std::size_t entries, Object& out) {
  fi_cq_attr attributes{};
  attributes.size = entries;
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  if (const int error = fi_cq_open(domain, &attributes, &queue, nullptr); error != 0) {
    return library.failure(
        fmt::format("cannot open a completion queue of {} entries (fewer with fewer "
                    "SLUICE_NETWORK_CREDITS)",
                    entries),
        error);
  }
  out.reset(queue);
  return {};
}

// What it may take for one node are two here, which do not share memory: containers, say. It would copy from GPUs by CUDA, too.
// A provider that does not know this option does not.
void forbid_shared_memory([[maybe_unused]] fid_ep* endpoint) noexcept {
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 21
  const bool permitted = false;
  (void)fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &permitted,
                  sizeof(permitted));
#endif
}

#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 18
long forbid_cuda(fid_ep* endpoint) noexcept {
  const bool permitted = false;
  return fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &permitted,
                   sizeof(permitted));
}
#else
long forbid_cuda(fid_ep* endpoint) noexcept {
  const int required = FI_HMEM_P2P_REQUIRED;
  return fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required,
                   sizeof(required));
}
#endif

/// ofi_rxm speaks for the messages that it copies: those that are written here it hands to verbs as they are. (It refuses wherever
/// buffers must be registered, as with verbs; 1.17's knows no such option.) CUDA it has register its own buffers: when peers
/// connect, and when more writes are under way than ever before, of which kDeviceQueueEntries leaves none.
bool may_speak_of_copies(const fi_info& info) noexcept {
  return std::string_view(info.fabric_attr->prov_name) == "verbs;ofi_rxm";
}

}  // namespace

Result<std::unique_ptr<Rail>> Rail::open(const Library& library, const fi_info& info,
                                         std::size_t arrivals_max) {
  const auto mode = static_cast<std::uint64_t>(info.domain_attr->mr_mode);
  std::uint64_t first_key = 0;
  if ((mode & FI_MR_PROV_KEY) == 0) {
    const Result<std::uint64_t> key = Rail::random_key(info.domain_attr->mr_key_size);
    if (!key.ok()) return key.status();
    first_key = *key;
  }
  std::unique_ptr<Rail> rail(
      new Rail(library, (mode & FI_MR_VIRT_ADDR) != 0, (mode & FI_MR_ENDPOINT) != 0, first_key));
  const Info own(library.dupinfo(&info), FreeInfo{&library});
  if (!own) return Status(StatusCode::out_of_memory, "libfabric: no memory for fi_info");

  fid_fabric* fabric = nullptr;
  if (const int error = library.fabric(own->fabric_attr, &fabric, nullptr); error != 0) {
    return library.failure("cannot open the fabric", error);
  }
  rail->fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  if (const int error = fi_domain(fabric, own.get(), &domain, nullptr); error != 0) {
    return library.failure("cannot open the domain", error);
  }
  rail->domain_.reset(domain);
  fi_av_attr peers_attributes{};
  peers_attributes.type = FI_AV_TABLE;
  fid_av* peers = nullptr;
  if (const int error = fi_av_open(domain, &peers_attributes, &peers, nullptr); error != 0) {
    return library.failure("cannot open an address vector", error);
  }
  rail->peers_.reset(peers);
  if (Status status = open_queue(library, domain, own->tx_attr->size, rail->sent_); !status.ok()) {
    return status;
  }
  if (Status status = open_queue(library, domain, arrivals_max, rail->arrived_); !status.ok()) {
    return status;
  }
  fid_ep* endpoint = nullptr;
  if (const int error = fi_endpoint(domain, own.get(), &endpoint, nullptr); error != 0) {
    return library.failure("cannot open an endpoint", error);
  }
  rail->endpoint_.reset(endpoint);
  forbid_shared_memory(endpoint);
  // A provider that calls CUDA while kernels wait for what it brings may wait for them.
  long refused = (own->caps & FI_HMEM) != 0 ? forbid_cuda(endpoint) : 0;
  if (may_speak_of_copies(*own)) refused = 0;
  int error = fi_ep_bind(endpoint, &peers->fid, 0);
  if (error == 0) error = fi_ep_bind(endpoint, &rail->sent_->fid, FI_TRANSMIT);
  if (error == 0) error = fi_ep_bind(endpoint, &rail->arrived_->fid, FI_RECV);
  if (error == 0) error = fi_enable(endpoint);
  if (error != 0) return library.failure("cannot enable an endpoint", error);
  // Not before: 1.17's `net` crashes when it closes an endpoint that was never enabled.
  if (refused != 0) return library.failure("it may call CUDA", refused);
  return rail;
}

// A rank of an earlier job, whose peer is no more, may come upon this endpoint at that one's port, and put what it had for it. It
// has other keys, so the provider refuses that.
Result<std::uint64_t> Rail::random_key(std::size_t bytes) {
  std::uint64_t key = 0;
  // The highest bit of a byte is left: the next ones are counted up.
  for (std::size_t i = 0; i < std::min(bytes, sizeof(key)); ++i) key = key << 8 | 0x7f;
  std::uint64_t random = 0;
  if (Status status = base::fill_random(std::as_writable_bytes(std::span(&random, 1)));
      !status.ok()) {
    return status;
  }
  return (key & random) | 1;
}

std::uint64_t Rail::next_key() const noexcept {
  return first_key_ == 0 ? 0 : first_key_ + memories_.size();
}

Result<int> Rail::add_memory(std::byte* base, std::size_t bytes) {
  fid_mr* region = nullptr;
  const int error = fi_mr_reg(domain_.get(), base, bytes, FI_WRITE | FI_REMOTE_WRITE, 0, next_key(),
                              0, &region, nullptr);
  if (error != 0) {
    return library_.failure(fmt::format("cannot register {} bytes of memory", bytes), error);
  }
  return keep(region, base);
}

Result<int> Rail::add_device_memory(const DeviceRegion& memory, const char*& how) {
  fi_mr_attr attributes{};
  attributes.iov_count = 1;
  attributes.access = FI_WRITE | FI_REMOTE_WRITE;
  attributes.requested_key = next_key();
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = memory.device;
  fid_mr* region = nullptr;
#if defined(FI_MR_DMABUF)
  fi_mr_dmabuf dmabuf{};
  dmabuf.fd = memory.dmabuf;
  dmabuf.offset = memory.dmabuf_offset;
  dmabuf.len = memory.bytes;
  dmabuf.base_addr = memory.base - memory.dmabuf_offset;
  attributes.dmabuf = &dmabuf;
  how = "dmabuf";
  if (memory.dmabuf >= 0 && fi_mr_regattr(domain_.get(), &attributes, FI_MR_DMABUF, &region) == 0) {
    return keep(region, memory.base);
  }
#endif
  // As the kernel's module for it (nvidia-peermem) makes possible.
  iovec where{};
  where.iov_base = memory.base;
  where.iov_len = memory.bytes;
  attributes.mr_iov = &where;
  how = "address";
  if (const int error = fi_mr_regattr(domain_.get(), &attributes, 0, &region); error != 0) {
    const Status status = library_.failure(
        fmt::format("cannot register {} bytes of memory of GPU {}", memory.bytes, memory.device),
        error);
    return Status(StatusCode::unavailable, status.message());
  }
  return keep(region, memory.base);
}

Result<int> Rail::keep(fid_mr* region, std::byte* base) {
  Memory memory{Owned<fid_mr>(region), base};
  if (bind_memory_) {
    int error = fi_mr_bind(region, &endpoint_->fid, 0);
    if (error == 0) error = fi_mr_enable(region);
    if (error != 0) return library_.failure("cannot bind registered memory", error);
  }
  memories_.push_back(std::move(memory));
  return static_cast<int>(memories_.size()) - 1;
}

RemoteMemory Rail::remote(int memory) const noexcept {
  const Memory& named = memories_[static_cast<std::size_t>(memory)];
  return {virtual_addresses_ ? reinterpret_cast<std::uint64_t>(named.base) : 0,
          fi_mr_key(named.region.get())};
}

Result<std::string> Rail::name() const {
  std::string name(256, '\0');
  std::size_t bytes = name.size();
  if (const int error = fi_getname(&endpoint_->fid, name.data(), &bytes); error != 0) {
    return library_.failure("an endpoint has no name", error);
  }
  name.resize(bytes);
  return name;
}

Result<fi_addr_t> Rail::insert(std::string_view name) {
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(peers_.get(), name.data(), 1, &peer, 0, nullptr);
  if (inserted < 0) return library_.failure("cannot insert a peer's address", inserted);
  if (inserted != 1) {
    return Status(StatusCode::io_error, "libfabric: the provider does not take a peer's address");
  }
  return peer;
}

std::size_t Rail::pieces_max(const fi_info& info) noexcept {
  return std::clamp<std::size_t>(std::min(info.tx_attr->iov_limit, info.tx_attr->rma_iov_limit), 1,
                                 kPiecesMax);
}

long Rail::write(const Write& write) noexcept {
  std::array<iovec, kPiecesMax> from;
  std::array<void*, kPiecesMax> descriptions;
  std::array<fi_rma_iov, kPiecesMax> to;
  for (std::size_t i = 0; i < write.count; ++i) {
    const Piece& piece = write.pieces[i];
    from[i].iov_base = const_cast<std::byte*>(piece.from);
    from[i].iov_len = piece.bytes;
    descriptions[i] = fi_mr_desc(memories_[static_cast<std::size_t>(piece.memory)].region.get());
    to[i].addr = piece.to;
    to[i].len = piece.bytes;
    to[i].key = piece.key;
  }
  fi_msg_rma message{};
  message.msg_iov = from.data();
  message.desc = descriptions.data();
  message.iov_count = write.count;
  message.addr = write.peer;
  message.rma_iov = to.data();
  message.rma_iov_count = write.count;
  message.context = write.context;
  message.data = write.data;
  return fi_writemsg(endpoint_.get(), &message, write.flags | FI_COMPLETION);
}

}  // namespace sluice::transport
