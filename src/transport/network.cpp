// SPDX-License-Identifier: MIT
#include "transport/network.hpp"

#include <charconv>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "transport/own_address.hpp"

namespace sluice::transport {
namespace {

class MemoryNetwork final : public Network {
 public:
  explicit MemoryNetwork(const Adversity& adversity) : adversity_(adversity) {}

  Result<std::unique_ptr<Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                         const Purpose& /*purpose*/) override {
    const std::lock_guard lock(mutex_);
    Meeting& here = meetings_[meeting];
    if (here.fabric == nullptr) {
      Adversity adversity = adversity_;
      adversity.seed += 1'000'003 * opened_++;
      here.fabric = std::make_unique<MemoryFabric>(ranks, adversity);
    }
    std::unique_ptr<Endpoint> endpoint = here.fabric->endpoint(rank);
    if (++here.came == ranks) meetings_.erase(meeting);  // Endpoints outlive their fabric.
    return endpoint;
  }

 private:
  struct Meeting {
    std::unique_ptr<MemoryFabric> fabric;
    int came = 0;
  };

  const Adversity adversity_;
  std::mutex mutex_;
  std::map<std::uint64_t, Meeting> meetings_;
  std::uint64_t opened_ = 0;
};

class LibfabricNetwork final : public Network {
 public:
  explicit LibfabricNetwork(LibfabricSettings settings) : settings_(std::move(settings)) {}

  Result<std::unique_ptr<Endpoint>> open(int rank, int ranks, std::uint64_t /*meeting*/,
                                         const Purpose& purpose) override {
    LibfabricSettings settings = settings_;
    settings.device_memory = purpose.device_memory;
    settings.processors = purpose.processors;
    settings.near = purpose.near;
    settings.near_before = purpose.near_before;
    settings.loopback_network = purpose.loopback_network;
    return open_libfabric(rank, ranks, settings);
  }

 private:
  const LibfabricSettings settings_;
};

class BundlingNetwork final : public Network {
 public:
  BundlingNetwork(std::shared_ptr<Network> below, const BundlingSettings& settings)
      : below_(std::move(below)), settings_(settings) {
    relay = below_->relay;
  }

  Result<std::unique_ptr<Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                         const Purpose& purpose) override {
    Result<std::unique_ptr<Endpoint>> endpoint = below_->open(rank, ranks, meeting, purpose);
    if (!endpoint) return endpoint;
    return BundlingEndpoint::over(std::move(endpoint).value(), rank, ranks, settings_);
  }
  Network& plain() noexcept override { return *below_; }

 private:
  const std::shared_ptr<Network> below_;
  const BundlingSettings settings_;
};

using base::Environment;
using base::Variable;

Status unusable(Variable variable, const std::string& seen, const char* expected) {
  return {StatusCode::invalid_argument,
          std::string(base::name_of(variable)) + " = '" + seen + "', expected " + expected};
}

template <typename T>
bool parse(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status read_signals(const std::string& text, std::optional<SignalMode>& out) {
  for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered, SignalMode::serial}) {
    if (text == to_string(mode)) out = mode;
  }
  if (out) return {};
  return unusable(Variable::network_signals, text, "immediate, ordered or serial");
}

// What stands between commas.
Status read_list(const Environment& environment, Variable variable, std::vector<std::string>& out) {
  const auto& text = environment.get(variable);
  std::string_view left = text ? std::string_view(*text) : std::string_view();
  while (!left.empty()) {
    const std::size_t comma = std::min(left.find(','), left.size());
    const std::string_view part = left.substr(0, comma);
    if (part.empty() || part.find(' ') != part.npos || comma + 1 == left.size()) {
      return unusable(variable, *text, "names with commas between them, and no spaces");
    }
    out.emplace_back(part);
    left.remove_prefix(std::min(comma + 1, left.size()));
  }
  return {};
}

Result<LibfabricSettings> read_libfabric(const Environment& environment) {
  LibfabricSettings settings;
  Status lists = read_list(environment, Variable::network, settings.providers);
  if (lists.ok()) lists = read_list(environment, Variable::network_nics, settings.nics);
  if (!lists.ok()) return lists;
  for (const std::string& provider : settings.providers) {
    // Memory that ranks of one machine share; and only if they share namespaces, too.
    if (provider == "shm" || provider == "sm2") {
      return unusable(Variable::network, provider, "a provider that reaches other machines");
    }
  }
  if (const auto& text = environment.get(Variable::network_signals)) {
    if (Status status = read_signals(*text, settings.signals); !status.ok()) return status;
  }
  if (const auto& text = environment.get(Variable::network_rails)) {
    if (!parse(*text, settings.rails) || settings.rails < 1 || settings.rails > 8) {
      return unusable(Variable::network_rails, *text, "1 to 8");
    }
  }
  if (const auto& text = environment.get(Variable::network_credits)) {
    if (!parse(*text, settings.window) || settings.window < LibfabricSettings::kWindowMin ||
        settings.window > LibfabricSettings::kWindowMax) {
      return unusable(Variable::network_credits, *text, "4 to 65536");
    }
  }
  if (const auto& text = environment.get(Variable::network_receiver)) {
    if (*text != "yes" && *text != "no") {
      return unusable(Variable::network_receiver, *text, "yes or no");
    }
    settings.receiver = *text == "yes";
  }
  if (const auto& text = environment.get(Variable::network_address); text && !text->empty()) {
    const Result<std::string> address = own_address(*text);
    if (!address) {
      return unusable(
          Variable::network_address, *text,
          ("an address or a name of this machine: " + address.status().message()).c_str());
    }
    settings.address = *address;
  }
  return settings;
}

Result<RelaySettings> read_relay(const Environment& environment) {
  RelaySettings settings;
  if (const auto& text = environment.get(Variable::network_patience)) {
    std::int64_t patience_ms = 0;
    if (!parse(*text, patience_ms) || patience_ms < 1 ||
        patience_ms > RelaySettings::kPatienceMsMax) {
      return unusable(Variable::network_patience, *text, "1 to 86400000 milliseconds, a day");
    }
    settings.patience = std::chrono::milliseconds(patience_ms);
  }
  if (const auto& text = environment.get(Variable::network_chunk)) {
    if (!parse(*text, settings.chunk_bytes) ||
        settings.chunk_bytes < RelaySettings::kChunkBytesMin ||
        settings.chunk_bytes > RelaySettings::kChunkBytesMax) {
      return unusable(Variable::network_chunk, *text, "4096 to 1073741824 bytes");
    }
  }
  if (const auto& text = environment.get(Variable::network_message_rows)) {
    if (!parse(*text, settings.message_rows) || settings.message_rows < 1 ||
        settings.message_rows > RelaySettings::kMessageRowsMax) {
      return unusable(Variable::network_message_rows, *text, "1 to 256");
    }
  }
  if (const auto& text = environment.get(Variable::network_gpu)) {
    if (text == "staged") {
      settings.gpu_rows = RelaySettings::GpuRows::staged;
    } else if (text == "direct") {
      settings.gpu_rows = RelaySettings::GpuRows::direct;
    } else {
      return unusable(Variable::network_gpu, *text, "staged or direct");
    }
  }
  return settings;
}

}  // namespace

std::shared_ptr<Network> memory_network(const Adversity& adversity) {
  return std::make_shared<MemoryNetwork>(adversity);
}

std::shared_ptr<Network> bundling_network(std::shared_ptr<Network> below,
                                          const BundlingSettings& settings) {
  return std::make_shared<BundlingNetwork>(std::move(below), settings);
}

std::shared_ptr<Network> libfabric_network(const LibfabricSettings& settings) {
  return std::make_shared<LibfabricNetwork>(settings);
}

Result<std::shared_ptr<Network>> network_of(const Environment& environment) {
  constexpr std::string_view kMemory = "memory";
  constexpr std::string_view kMemoryOfGpus = "memory-gpu";
  const std::string named = environment.get(Variable::network).value_or("");
  // Also where they are for others, so that what is wrong is seen.
  Result<LibfabricSettings> settings = read_libfabric(environment);
  if (!settings) return settings.status();
  std::shared_ptr<Network> network;
  BundlingSettings bundling;
  if (named.starts_with(kMemory)) {
    Adversity adversity;
    adversity.device_memory = named.starts_with(kMemoryOfGpus);
    const std::string_view seed = std::string_view(named).substr(
        adversity.device_memory ? kMemoryOfGpus.size() : kMemory.size());
    if (!seed.empty() && (seed[0] != ':' || !parse(seed.substr(1), adversity.seed))) {
      return unusable(Variable::network, named,
                      "memory or memory-gpu, with :seed, a number, behind it or not");
    }
    // Both have to be tested: what comes one by one, and what comes together.
    if (adversity.seed % 2 == 1) bundling.chunk_bytes_max = 0;
    adversity.pieces_max = 1 + adversity.seed / 2 % 4;
    network = memory_network(adversity);
  } else {
    network = libfabric_network(*settings);
  }
  if (const auto& text = environment.get(Variable::network_bundle)) {
    if (!parse(*text, bundling.chunk_bytes_max)) {
      return unusable(Variable::network_bundle, *text, "0 to 4294967295 bytes");
    }
  }
  network = bundling_network(std::move(network), bundling);
  Result<RelaySettings> relay = read_relay(environment);
  if (!relay) return relay.status();
  network->relay = *relay;
  if (const NetworkHook hook = network_hook.load(std::memory_order_relaxed)) return hook(network);
  return network;
}

}  // namespace sluice::transport
