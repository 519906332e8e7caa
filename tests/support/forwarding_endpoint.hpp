// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/transport.hpp"

namespace sluice::support {

/// An endpoint that does what another one does: what tests change is overridden.
class ForwardingEndpoint : public transport::Endpoint {
 public:
  explicit ForwardingEndpoint(std::unique_ptr<Endpoint> inner) : inner_(std::move(inner)) {}

  const transport::Traits& traits() const noexcept override { return inner_->traits(); }
  Result<transport::Region> add_region(std::byte* base, std::size_t bytes) override {
    return inner_->add_region(base, bytes);
  }
  Result<transport::Region> add_device_region(const transport::DeviceRegion& region) override {
    return inner_->add_device_region(region);
  }
  Result<std::string> introduction() override { return inner_->introduction(); }
  Status connect(int peer, std::string_view introduction) override {
    return inner_->connect(peer, introduction);
  }
  transport::Posted put(const transport::Chunk& chunk) override { return inner_->put(chunk); }
  std::size_t poll(std::span<transport::Event> events) override { return inner_->poll(events); }
  void took(int peer, int chunks) override { inner_->took(peer, chunks); }
  void abandon(int peer) override { inner_->abandon(peer); }
  std::optional<std::uint64_t> mark(int peer) override { return inner_->mark(peer); }
  bool is_out(int peer, std::uint64_t mark) const override { return inner_->is_out(peer, mark); }
  std::uint64_t bytes_put(int peer) const noexcept override { return inner_->bytes_put(peer); }

 protected:
  /// The other one ends: for destructors, of what it uses.
  void close() { inner_.reset(); }

 private:
  std::unique_ptr<Endpoint> inner_;
};

}  // namespace sluice::support
