// SPDX-License-Identifier: MIT
#include "memory/cuda/ipc_memory.hpp"

#include <cuda_runtime_api.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/system_error.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::memory {
namespace {

/// What lies in the socket.
struct Ticket {
  static constexpr std::uint64_t kMagic = 0x31'63'70'69'75'6C'73;  // "slui" "pc1"

  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;
  cudaIpcMemHandle_t handle = {};
};

/// The number of the open socket behind a descriptor: the same for all duplicates, in all processes.
ino_t number_of(const base::Descriptor& socket) noexcept {
  struct stat about {};
  return ::fstat(socket.number(), &about) == 0 ? about.st_ino : 0;
}

/// Memory that this process has taken and not freed yet: by the number of the socket handed over, and spare.
/// Never destroyed: the process's end frees what is left.
class Taken {
 public:
  struct Memory {
    int device = -1;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    base::Descriptor owners_end;
    bool left = false;  // by its owner
  };

  static Taken& instance() {
    static Taken* const taken = new Taken;
    return *taken;
  }

  void add(ino_t number, Memory memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory_[number] = std::move(memory);
  }
  void leave(ino_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory_[number].left = true;
  }
  /// -1 and null: of another process.
  std::pair<int, std::byte*> find(ino_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = memory_.find(number);
    return found == memory_.end() ? std::pair<int, std::byte*>{-1, nullptr}
                                  : std::pair{found->second.device, found->second.base};
  }
  /// Makes spare what its owner has left and nobody maps any more.
  void sweep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto at = memory_.begin(); at != memory_.end();) {
      Memory& memory = at->second;
      pollfd end{memory.owners_end.number(), 0, 0};
      if (memory.left && ::poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0) {
        memory.owners_end.reset();
        spare_.push_back(std::move(memory));
        at = memory_.erase(at);
      } else {
        ++at;
      }
    }
  }
  /// Spare memory of so many bytes, or null.
  std::byte* take_spare(int device, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found =
        std::find_if(spare_.begin(), spare_.end(), [device, bytes](const Memory& memory) {
          return memory.device == device && memory.bytes == bytes;
        });
    if (found == spare_.end()) return nullptr;
    std::byte* const base = found->base;
    spare_.erase(found);
    return base;
  }
  /// Frees the spare memory of a GPU; whether there was any.
  bool free_spare(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::erase_if(spare_, [device](const Memory& memory) {
             return memory.device == device &&
                    cuda_status(cudaFree(memory.base), "freeing GPU memory").ok();
           }) != 0;
  }

 private:
  std::mutex mutex_;
  std::map<ino_t, Memory> memory_;
  std::vector<Memory> spare_;
};

/// Memory of the runtime, spare or new.
Result<std::byte*> take(int device, std::size_t bytes, const std::string& whose) {
  Taken& taken = Taken::instance();
  taken.sweep();
  if (std::byte* const spare = taken.take_spare(device, bytes); spare != nullptr) return spare;
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation && taken.free_spare(device)) {
    (void)cudaGetLastError();
    error = cudaMalloc(&memory, bytes);
  }
  if (Status status = cuda_status(error, "cannot take " + whose); !status.ok()) return status;
  return static_cast<std::byte*>(memory);
}

/// Memory as mapped here, and a descriptor of the socket handed over.
class Ipc final : public SharedAllocation {
 public:
  /// What is done with it at the end: the owner's, a peer's of another process, or one of another rank
  /// of this process.
  enum class End : std::uint8_t { leave, close, nothing };

  Ipc(int device, std::byte* base, std::size_t bytes, End end, base::Descriptor socket)
      : device_(device), base_(base), bytes_(bytes), end_(end), socket_(std::move(socket)) {}
  ~Ipc() override {
    if (end_ == End::leave) Taken::instance().leave(number_of(socket_));
    if (end_ == End::close) {
      const DeviceGuard guard(device_);
      (void)cuda_status(cudaIpcCloseMemHandle(base_), "closing a peer's memory");
    }
    socket_.reset();
    Taken::instance().sweep();
  }

  std::byte* base() const noexcept override { return base_; }
  std::size_t bytes() const noexcept override { return bytes_; }
  Result<base::Descriptor> share() const override { return base::duplicate(socket_); }

 private:
  int device_;
  std::byte* base_;
  std::size_t bytes_;
  End end_;
  base::Descriptor socket_;
};

Status reach(int device, int other) {
  if (device == other) return {};
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return {};
  }
  return cuda_status(error, "GPU " + std::to_string(device) + " cannot reach memory of GPU " +
                                std::to_string(other));
}

}  // namespace

OwnedAllocation create_ipc(int device, std::size_t bytes) {
  const std::string whose =
      std::to_string(bytes) + " bytes of memory of GPU " + std::to_string(device);
  int ends[2] = {-1, -1};
  base::Descriptor owners_end;
  base::Descriptor end;
  {
    // A child of any process that has an end would keep this memory taken.
    const base::NoFork meanwhile;
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
      owners_end = base::Descriptor(meanwhile, ends[0]);
      end = base::Descriptor(meanwhile, ends[1]);
    }
  }
  if (!end.open()) return base::system_status(errno, "cannot share " + whose);
  const Result<std::byte*> memory = take(device, bytes, whose);
  if (!memory) return memory.status();
  std::byte* const base = memory.value();
  Taken::instance().add(number_of(end), {device, base, bytes, std::move(owners_end), false});
  auto own = std::make_unique<Ipc>(device, base, bytes, Ipc::End::leave, std::move(end));
  Ticket ticket;
  ticket.bytes = bytes;
  if (Status status =
          cuda_status(cudaIpcGetMemHandle(&ticket.handle, base), "cannot share " + whose);
      !status.ok()) {
    return status;
  }
  if (::send(ends[0], &ticket, sizeof(ticket), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(ticket)) {
    return base::system_status(errno, "cannot share " + whose);
  }
  return std::unique_ptr<SharedAllocation>(std::move(own));
}

OwnedAllocation import_ipc(int device, const base::Descriptor& socket, std::size_t bytes) {
  const std::string whose = std::to_string(bytes) + " bytes of a peer's memory";
  Ticket ticket;
  if (::recv(socket.number(), &ticket, sizeof(ticket), MSG_PEEK | MSG_DONTWAIT) != sizeof(ticket) ||
      ticket.magic != Ticket::kMagic) {
    return Status(StatusCode::invalid_argument,
                  "cannot import " + whose + ": expected a socket with an IPC handle");
  }
  if (bytes > ticket.bytes) {
    return Status(StatusCode::invalid_argument,
                  "cannot import " + whose + ": it has " + std::to_string(ticket.bytes) + " bytes");
  }
  Result<base::Descriptor> end = base::duplicate(socket);
  if (!end) return end.status();
  auto [owner, memory] = Taken::instance().find(number_of(socket));
  const bool foreign = memory == nullptr;
  if (foreign) {
    void* opened = nullptr;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&opened, ticket.handle, cudaIpcMemLazyEnablePeerAccess);
    if (Status status =
            cuda_status(error, "GPU " + std::to_string(device) + " cannot reach " + whose);
        !status.ok()) {
      return Status(StatusCode::unavailable, status.message());
    }
    memory = static_cast<std::byte*>(opened);
  } else if (Status status = reach(device, owner); !status.ok()) {
    return Status(StatusCode::unavailable, status.message());
  }
  return std::unique_ptr<SharedAllocation>(
      std::make_unique<Ipc>(device, memory, bytes, foreign ? Ipc::End::close : Ipc::End::nothing,
                            std::move(end).value()));
}

bool is_ipc(const base::Descriptor& file) noexcept {
  struct stat about {};
  return ::fstat(file.number(), &about) == 0 && S_ISSOCK(about.st_mode);
}

}  // namespace sluice::memory
