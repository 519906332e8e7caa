// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "buffer.hpp"
#include "shuttle.hpp"
#include "sluice/communicator.hpp"

namespace sluice::bench {

/// What it takes to copy between a device and pinned memory of its host, in one piece.
class Staging {
 public:
  virtual ~Staging() = default;
  /// Microseconds, on the device's clock. `out`: from the device.
  virtual Result<double> time(bool out) = 0;
};

/// Where the tensors of one rank lie and its operations run.
class Place {
 public:
  virtual ~Place() = default;

  virtual Device device() const noexcept { return Device::cpu; }
  /// Of the device; empty: the host, or not known.
  virtual std::string pci_address() const { return {}; }
  virtual void adapt(CommunicatorOptions& /*options*/) const {}
  virtual void* stream() const noexcept { return nullptr; }
  /// Memory of the device, freed with the place; null where that is the host's own memory.
  virtual Result<std::byte*> take(std::size_t /*bytes*/) {
    return static_cast<std::byte*>(nullptr);
  }
  /// Between the host and memory of take(), after everything that was queued.
  virtual Status write(std::byte* /*to*/, const std::byte* /*from*/, std::size_t /*bytes*/) {
    return {};
  }
  virtual Status read(std::byte* /*to*/, const std::byte* /*from*/, std::size_t /*bytes*/) {
    return {};
  }
  /// Of so many bytes; null where the device's memory is the host's. The place must outlive it.
  virtual Result<std::unique_ptr<Staging>> staging(std::size_t /*bytes*/) {
    return std::unique_ptr<Staging>();
  }
  /// For so many bytes of one operation, out and in; null likewise.
  virtual Result<std::unique_ptr<Shuttle>> shuttle(std::uint64_t /*out*/, std::uint64_t /*in*/,
                                                   double /*deadline_s*/) {
    return std::unique_ptr<Shuttle>();
  }
  /// Waits for everything that was queued.
  virtual Status finish() { return {}; }
};

/// Memory that the host fills and looks at, and the device works on: the same bytes, or a copy of
/// them on each side.
class Mirror {
 public:
  Mirror() = default;
  static Result<Mirror> make(Place& place, std::size_t bytes) {
    Result<std::byte*> device = place.take(bytes);
    if (!device) return device.status();
    return of(*device, bytes);
  }
  /// Of memory that somebody else has taken and frees; null: there is the host's only.
  static Result<Mirror> of(std::byte* device, std::size_t bytes) {
    Result<Buffer> host = Buffer::make(bytes, Buffer::Pages::huge);
    if (!host) return host.status();
    Mirror mirror;
    mirror.host_ = std::move(host).value();
    mirror.device_ = device;
    mirror.bytes_ = bytes;
    return mirror;
  }

  std::byte* host() const noexcept { return host_.data(); }
  std::byte* device() const noexcept { return device_ != nullptr ? device_ : host_.data(); }
  /// After the host has filled its side.
  Status push(Place& place) const {
    return device_ == nullptr ? Status() : place.write(device_, host_.data(), bytes_);
  }
  /// Before the host looks at its side.
  Status pull(Place& place) const {
    return device_ == nullptr ? Status() : place.read(host_.data(), device_, bytes_);
  }

 private:
  Buffer host_;
  std::byte* device_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::bench
