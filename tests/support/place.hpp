// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/communicator.hpp"

namespace sluice::support {

/// Where a rank's tensors lie and what its calls need there. The host's by default; a suite that runs
/// on GPUs sets one for every rank's thread. Test tensors stay in memory that the host can read, too.
class Place {
 public:
  virtual ~Place() = default;
  virtual Device device() const { return Device::cpu; }
  /// Memory for a tensor, 64-byte aligned.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);
  /// Stream of all calls.
  virtual void* stream() const { return nullptr; }
  /// Waits for all calls.
  virtual void finish() {}
  /// Copies from memory of allocate() to memory of the device, or fills it with one byte: before whatever
  /// follows on stream().
  virtual void write(void* to, const void* from, std::size_t bytes);
  virtual void fill(void* to, unsigned char byte, std::size_t bytes);
  /// A copy in host memory.
  virtual std::vector<std::byte> read(const void* from, std::size_t bytes);
  /// What is put on stream() from begin_capture() on is kept, not run; what end_capture() returns puts it there, once each time.
  /// alone: meanwhile no thread of this process may do what could disturb a capture, those of the library included; else this
  /// thread may not.
  virtual void begin_capture(bool alone);
  virtual std::function<void()> end_capture();
  /// What is put on stream() from now on comes after what is on that of `other`, a place of this rank.
  virtual void follow(Place& /*other*/) {}
  /// What a communicator needs here.
  virtual void adapt(CommunicatorOptions& /*options*/) const {}
};

/// That of this thread.
Place& place();
/// Sets it, or the host's with null. Not owned.
void set_place(Place* place);

}  // namespace sluice::support
