// SPDX-License-Identifier: MIT
#include "support/wired_network.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "base/byte_stream.hpp"
#include "support/forwarding_endpoint.hpp"

namespace sluice::support {
namespace {

using std::chrono::microseconds;

// As LibfabricEndpoint::introduction() writes them.
struct RemoteMemory {
  std::uint64_t base = 0;
  std::uint64_t key = 0;
};

// The provider's name of an endpoint: where it listens.
Result<std::string> leading(Wire& wire, const std::string& name, const Weather& weather) {
  sockaddr_in address{};
  if (name.size() == sizeof(address)) std::memcpy(&address, name.data(), sizeof(address));
  if (address.sin_family != AF_INET || ntohl(address.sin_addr.s_addr) != INADDR_LOOPBACK) {
    return Status(StatusCode::invalid_argument,
                  "the wire leads to 127.0.0.1 only, as SLUICE_NETWORK_ADDRESS says");
  }
  const Result<std::uint16_t> port = wire.lead_to(ntohs(address.sin_port), weather);
  if (!port.ok()) return port.status();
  address.sin_port = htons(*port);
  return std::string(reinterpret_cast<const char*>(&address), sizeof(address));
}

class WiredEndpoint final : public ForwardingEndpoint {
 public:
  WiredEndpoint(std::unique_ptr<Endpoint> inner, std::shared_ptr<Wire> wire, Weathers weathers)
      : ForwardingEndpoint(std::move(inner)),
        wire_(std::move(wire)),
        weathers_(std::move(weathers)) {}
  ~WiredEndpoint() override { close(); }  // Before its wire.

  Result<std::string> introduction() override {
    const Result<std::string> plain = ForwardingEndpoint::introduction();
    if (!plain.ok()) return plain;
    // Worlds' endpoints bundle.
    transport::BundlingEndpoint::Introduction own;
    if (!transport::BundlingEndpoint::Introduction::decode(*plain, own)) {
      return Status(StatusCode::mismatch, "the wire knows another form of introductions");
    }
    Result<std::string> led = through(*wire_, own.below, weathers_);
    if (!led.ok()) return led;
    own.below = std::move(led).value();
    return own.encode();
  }

 private:
  std::shared_ptr<Wire> wire_;
  Weathers weathers_;
};

class WiredNetwork final : public transport::Network {
 public:
  WiredNetwork(std::shared_ptr<Network> inner, std::shared_ptr<Wire> wire, Weathers weathers)
      : inner_(std::move(inner)), wire_(std::move(wire)), weathers_(std::move(weathers)) {
    relay = inner_->relay;
  }

  Result<std::unique_ptr<transport::Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                                    const transport::Purpose& purpose) override {
    auto endpoint = inner_->open(rank, ranks, meeting, purpose);
    if (!endpoint.ok()) return endpoint.status();
    return std::unique_ptr<transport::Endpoint>(
        std::make_unique<WiredEndpoint>(std::move(*endpoint), wire_, weathers_));
  }

 private:
  std::shared_ptr<Network> inner_;
  std::shared_ptr<Wire> wire_;
  Weathers weathers_;
};

}  // namespace

Weathers weathers_named(std::string_view name) {
  Weather delay;
  delay.delay = microseconds(300);
  Weather loss = delay;
  loss.losses = 10;
  loss.stall_min = microseconds(5'000);
  loss.stall_max = microseconds(40'000);
  Weather narrow = delay;
  narrow.bytes_per_second = 40'000'000;
  Weather late = loss;
  late.delay = microseconds(4'000);
  if (name == "delay") return {delay};
  if (name == "loss") return {loss};
  if (name == "narrow") return {narrow};
  if (name == "overtaking") return {late, delay};
  Weather dying = delay;
  dying.dead = &second_rail_is_dead();
  if (name == "dying") return {delay, dying};
  return {};
}

std::atomic<bool>& second_rail_is_dead() noexcept {
  static std::atomic<bool> dead{false};
  return dead;
}

Result<std::string> through(Wire& wire, std::string_view introduction, const Weathers& weathers) {
  base::ByteReader reader(introduction);
  base::ByteWriter writer;
  writer.put(reader.get<std::uint32_t>());          // libfabric's version
  writer.put_string(reader.get_string());           // whose loopback interface it has
  writer.put_string(reader.get_string());           // provider
  writer.put(reader.get<transport::SignalMode>());  // how it signals
  const auto rails = reader.get<std::uint32_t>();
  writer.put(rails).put(reader.get<std::uint32_t>());  // and the window
  const auto regions = reader.get<std::uint32_t>();
  writer.put(regions);
  for (std::uint32_t rail = 0; rail < rails && reader.ok(); ++rail) {
    const Result<std::string> name =
        leading(wire, reader.get_string(), weathers[rail % weathers.size()]);
    if (!name.ok()) return name.status();
    writer.put_string(*name);
    // Its desk, and its regions.
    for (std::uint32_t i = 0; i < 1 + regions && reader.ok(); ++i) {
      writer.put(reader.get<RemoteMemory>());
    }
  }
  if (!reader.ok() || !reader.at_end()) {
    return Status(StatusCode::mismatch, "the wire knows another form of introductions");
  }
  return writer.take();
}

Result<std::shared_ptr<transport::Network>> wired(std::shared_ptr<transport::Network> network,
                                                  const Weathers& weathers) {
  if (weathers.empty()) return Status(StatusCode::invalid_argument, "there is no such weather");
  Result<std::unique_ptr<Wire>> wire = Wire::start(1);
  if (!wire.ok()) return wire.status();
  return std::shared_ptr<transport::Network>(std::make_shared<WiredNetwork>(
      std::move(network), std::shared_ptr<Wire>(std::move(*wire)), weathers));
}

}  // namespace sluice::support
