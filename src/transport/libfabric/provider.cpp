// SPDX-License-Identifier: MIT
#include "transport/libfabric/provider.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "store/socket.hpp"
#include "transport/libfabric/nics.hpp"

namespace sluice::transport {
namespace {

constexpr std::array kPreferred{"efa-direct", "efa", "cxi",        "verbs;ofi_rxm",
                                "tcp",        "net", "tcp;ofi_rxm"};
// Asked for first; a provider that has less offers nothing then, and is asked without a number. With memory of GPUs fewer:
// ofi_rxm takes buffers for more than 1024 writes at once from the system as they are needed, and then has CUDA register them.
constexpr std::size_t kQueueEntries = 4096;
constexpr std::size_t kDeviceQueueEntries = 1024;
constexpr std::size_t kImmediateBytes = 4;
constexpr std::size_t kPutBytesMax = std::size_t{1} << 30;
// Of libfabric 2.x, a fabric of provider efa: what the adapter itself does, and nothing else.
constexpr std::string_view kEfaDirect = "efa-direct";

// Asked for "tcp", 1.17 offers "tcp;ofi_rxm" as well, which is another thing; and 2.x, asked for "efa", both of its fabrics.
bool is_called(const fi_info& info, std::string_view name) noexcept {
  const std::string_view provider = info.fabric_attr->prov_name;
  const bool direct = provider == "efa" && info.fabric_attr->name == kEfaDirect;
  return (direct ? kEfaDirect : provider) == name;
}

/// What is asked for; a provider that lacks it offers nothing.
struct Asked {
  bool device_memory = false;
  bool immediates = false;
  bool in_order = false;
  std::size_t entries = 0;  // 0: as many as it likes.
};

Info hints_for(const Library& library, const std::string& provider, const Asked& asked) {
  Info hints(library.dupinfo(nullptr), FreeInfo{&library});
  if (!hints) return hints;
  hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (asked.immediates) hints->domain_attr->cq_data_size = kImmediateBytes;
  if (asked.device_memory) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->size = asked.entries;
  if (asked.in_order) {
    hints->tx_attr->msg_order = FI_ORDER_WAW;
    hints->rx_attr->msg_order = FI_ORDER_WAW;
  }
  // freeinfo() frees them.
  hints->fabric_attr->prov_name = ::strdup(provider == kEfaDirect ? "efa" : provider.c_str());
  if (provider == kEfaDirect) hints->fabric_attr->name = ::strdup(provider.c_str());
  return hints;
}

// Of writes to one peer.
bool keeps_order(const fi_info& info) noexcept {
  return (info.tx_attr->msg_order & FI_ORDER_WAW) != 0;
}

}  // namespace

bool is_loopback(std::uint32_t format, std::string_view address) noexcept {
  const bool of_sockets =
      format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
  return of_sockets && store::is_loopback(address);
}

namespace {

// Neither loopback nor link-local; nor, as far as others are to be had, one of InfiniBand's own, which verbs offers of every card:
// over Ethernet no connection is made with it.
bool reachable(const fi_info& info) noexcept {
  if (info.addr_format == FI_SOCKADDR_IB) return false;
  if (info.src_addr == nullptr) return true;
  const std::string_view address(static_cast<const char*>(info.src_addr), info.src_addrlen);
  if (is_loopback(info.addr_format, address)) return false;
  if (info.addr_format == FI_SOCKADDR_IN) {
    sockaddr_in v4;
    std::memcpy(&v4, info.src_addr, sizeof(v4));
    return ntohl(v4.sin_addr.s_addr) >> 16 != 0xa9fe;  // 169.254.0.0/16
  }
  if (info.addr_format == FI_SOCKADDR_IN6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, info.src_addr, sizeof(v6));
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
  }
  return true;
}

Nic nic_of(const fi_info& info) {
  Nic nic;
  nic.name = info.domain_attr->name;
  nic.reachable = reachable(info);
  if (info.nic == nullptr) return completed(std::move(nic));
  if (const fi_link_attr* link = info.nic->link_attr) {
    nic.speed = link->speed;
    nic.reachable = nic.reachable && link->state != FI_LINK_DOWN;
  }
  if (const fi_bus_attr* bus = info.nic->bus_attr; bus != nullptr && bus->bus_type == FI_BUS_PCI) {
    const fi_pci_attr& pci = bus->attr.pci;
    nic.path = bus_path(fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain_id, pci.bus_id,
                                    pci.device_id, pci.function_id));
  }
  return completed(std::move(nic));
}

// What each rail is opened with, of all that was offered; empty: nothing that is wished.
std::vector<Info> pick(const Library& library, const fi_info* all, const std::string& provider,
                       const NicWishes& wishes) {
  std::vector<const fi_info*> offers;
  std::vector<Nic> nics;
  for (const fi_info* info = all; info != nullptr; info = info->next) {
    if (!is_called(*info, provider) || info->domain_attr->name == nullptr) continue;
    Nic nic = nic_of(*info);
    // One with several addresses is there as often: it has the place of the first that counts.
    const auto same = std::ranges::find(nics, nic.name, &Nic::name);
    if (same != nics.end()) {
      if (same->reachable || !nic.reachable) continue;
      offers.erase(offers.begin() + (same - nics.begin()));
      nics.erase(same);
    }
    offers.push_back(info);
    nics.push_back(std::move(nic));
  }
  std::vector<Info> rails;
  for (const std::size_t i : choose_nics(nics, wishes)) {
    rails.emplace_back(library.dupinfo(offers[i]), FreeInfo{&library});
    if (!rails.back()) return {};
  }
  return rails;
}

}  // namespace

// These take names of cards in its place, and would offer nothing.
bool takes_address(std::string_view provider) noexcept {
  return !provider.starts_with("efa") && provider != "cxi";
}

bool moved_by_processor(std::string_view provider) noexcept {
  return provider.starts_with("tcp") || provider == "net";
}

bool Provider::in_order() const noexcept {
  return std::ranges::all_of(rails, [](const Info& rail) { return keeps_order(*rail); });
}

std::size_t Provider::put_bytes_max() const noexcept {
  std::size_t bytes = kPutBytesMax;
  for (const Info& rail : rails) {
    bytes = std::min(bytes, rail->ep_attr->max_msg_size);
    // In order are those below it.
    if (signals == SignalMode::ordered)
      bytes = std::min(bytes, rail->ep_attr->max_order_waw_size - 1);
  }
  return bytes;
}

namespace {

bool can(const fi_info& info, SignalMode mode) noexcept {
  switch (mode) {
    case SignalMode::immediate:
      // cxi tells of immediates, but has none for the call that is used here (as of 2.6).
      return info.domain_attr->cq_data_size >= kImmediateBytes &&
             std::string_view(info.fabric_attr->prov_name) != "cxi";
    case SignalMode::ordered:
      return keeps_order(info) && info.ep_attr->max_order_waw_size > sizeof(std::uint64_t);
    case SignalMode::serial: return true;
  }
  return false;
}

Result<SignalMode> choose_signals(const Provider& provider, const LibfabricSettings& settings) {
  const auto all_can = [&](SignalMode mode) {
    return std::ranges::all_of(provider.rails, [&](const Info& rail) { return can(*rail, mode); });
  };
  if (settings.signals) {
    if (all_can(*settings.signals)) return *settings.signals;
    return Status(StatusCode::invalid_argument,
                  fmt::format("libfabric: provider {} cannot do signals '{}'", provider.name,
                              to_string(*settings.signals)));
  }
  for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered}) {
    if (all_can(mode)) return mode;
  }
  return SignalMode::serial;
}

std::vector<Info> offer(const Library& library, const LibfabricSettings& settings,
                        const std::string& provider, bool device_memory) {
  const bool anywhere = settings.address.empty() || !takes_address(provider);
  const char* const node = anywhere ? nullptr : settings.address.c_str();
  NicWishes wishes;
  wishes.names = settings.nics;
  // Interfaces of a host may be of networks of which some do not reach its peers.
  wishes.one = moved_by_processor(provider);
  wishes.near = bus_path(settings.near);
  for (const std::string& other : settings.near_before) wishes.before.push_back(bus_path(other));
  wishes.rails = settings.rails;
  const SignalHandlersKept kept;
  const std::size_t entries = device_memory ? kDeviceQueueEntries : kQueueEntries;
  // Strong first: what a provider lacks is refused, not left out.
  constexpr std::pair<bool, bool> kStrengths[] = {{true, true}, {false, true}, {false, false}};
  for (const auto& [immediates, in_order] : kStrengths) {
    for (const std::size_t most : {entries, std::size_t{0}}) {
      const Info hints = hints_for(library, provider, {device_memory, immediates, in_order, most});
      fi_info* all = nullptr;
      if (!hints || library.getinfo(kFabricVersion, node, nullptr, node != nullptr ? FI_SOURCE : 0,
                                    hints.get(), &all) != 0) {
        continue;
      }
      const Info owner(all, FreeInfo{&library});
      std::vector<Info> rails = pick(library, all, provider, wishes);
      if (!rails.empty()) return rails;
    }
  }
  return {};
}

}  // namespace

Result<Provider> choose_provider(const Library& library, const LibfabricSettings& settings) {
  std::vector<std::string> names = settings.providers;
  if (names.empty()) names.assign(kPreferred.begin(), kPreferred.end());
  for (const std::string& name : names) {
    Provider provider;
    provider.name = name;
    provider.rails = offer(library, settings, name, /*device_memory=*/false);
    if (provider.rails.empty()) {
      base::log_debug("libfabric: no provider {}", name);
      continue;
    }
    const Result<SignalMode> signals = choose_signals(provider, settings);
    if (!signals.ok()) return signals.status();
    provider.signals = *signals;
    return provider;
  }
  std::vector<std::string> others;
  for (const char* const name : kPreferred) {
    if (!offer(library, settings, name, /*device_memory=*/false).empty()) others.emplace_back(name);
  }
  return Status(
      StatusCode::unavailable,
      fmt::format("libfabric {}.{} has none of the providers {}{}{}{}{}",
                  FI_MAJOR(library.version()), FI_MINOR(library.version()), fmt::join(names, ", "),
                  settings.address.empty() ? "" : " at " + settings.address,
                  settings.nics.empty() ? "" : " with all of the network cards ",
                  fmt::join(settings.nics, ", "),
                  others.empty() ? "; nor any other that would do"
                                 : fmt::format(", expected one of {}", fmt::join(others, ", "))));
}

Result<Provider> with_device_memory(const Library& library, const LibfabricSettings& settings,
                                    const Provider& provider) {
  Provider found;
  found.name = provider.name;
  found.rails = offer(library, settings, provider.name, /*device_memory=*/true);
  if (found.rails.empty() || (found.info().caps & FI_HMEM) == 0) {
    return Status(StatusCode::unavailable,
                  fmt::format("provider {} does not offer it", provider.name));
  }
  const Result<SignalMode> signals = choose_signals(found, settings);
  if (!signals.ok()) return signals.status();
  found.signals = *signals;
  // Else ranks with it and ranks without could not be joined.
  const auto alike = [](const Provider& one, const Provider& other) {
    return one.signals == other.signals && one.put_bytes_max() == other.put_bytes_max();
  };
  if (!alike(found, provider)) {
    return Status(
        StatusCode::unavailable,
        fmt::format("provider {} offers other signals or lengths with it", provider.name));
  }
  return found;
}

}  // namespace sluice::transport
