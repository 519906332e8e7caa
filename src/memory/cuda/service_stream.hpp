// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <mutex>

#include "sluice/status.hpp"

struct CUstream_st;

namespace sluice::memory {

/// A stream for copies and fills that the library waits for at once: one of each GPU for the whole process, while somebody
/// holds it. Streams are given a few hardware queues in turn, in which they wait for each other: ranks that are threads
/// of one process should have all but one for their calls. No kernel that waits for others runs there.
class ServiceStream {
 public:
  /// The stream, for one thread at a time: from what it queues until it has come.
  class Use {
   public:
    explicit Use(ServiceStream& of) : lock_(of.mutex_), stream_(of.stream_) {}
    CUstream_st* get() const noexcept { return stream_; }

   private:
    std::lock_guard<std::mutex> lock_;
    CUstream_st* stream_;
  };

  static Result<std::shared_ptr<ServiceStream>> of(int device);
  ~ServiceStream();
  ServiceStream(const ServiceStream&) = delete;
  ServiceStream& operator=(const ServiceStream&) = delete;

 private:
  explicit ServiceStream(int device) noexcept : device_(device) {}

  int device_;
  std::mutex mutex_;
  CUstream_st* stream_ = nullptr;
};

}  // namespace sluice::memory
