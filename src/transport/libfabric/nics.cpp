// SPDX-License-Identifier: MIT
#include "transport/libfabric/nics.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <system_error>
#include <utility>

namespace sluice::transport {
namespace {

using Indices = std::vector<std::size_t>;

// Of a path, how many of its parts two have in common before they part. Of one that is not known: none.
int shared_parts(std::string_view a, std::string_view b) noexcept {
  if (a.empty() || b.empty()) return 0;
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  int parts = static_cast<int>(std::count(a.begin(), end, '/'));
  // The last one counts if it is whole in both.
  const bool whole = (end == a.end() || *end == '/') && (other == b.end() || *other == '/');
  return whole ? parts + 1 : parts;
}

// Those for which it is largest.
template <typename Value>
Indices best(const Indices& from, const Value& value) {
  Indices kept = from;
  if (kept.empty()) return kept;
  const auto most = value(*std::ranges::max_element(from, {}, value));
  std::erase_if(kept, [&](std::size_t i) { return value(i) < most; });
  return kept;
}

Indices named(std::span<const Nic> nics, const std::vector<std::string>& names) {
  Indices found;
  for (const std::string& name : names) {
    const auto at = std::ranges::find(nics, name, &Nic::name);
    if (at == nics.end()) return {};
    found.push_back(static_cast<std::size_t>(at - nics.begin()));
  }
  return found;
}

Indices unasked(std::span<const Nic> nics, bool one) {
  Indices all(nics.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  all = best(all, [&](std::size_t i) { return nics[i].reachable; });
  if (one && !all.empty()) all.resize(1);
  const auto speed = [&](std::size_t i) { return nics[i].speed; };
  return std::ranges::find(all, std::uint64_t{0}, speed) == all.end() ? best(all, speed) : all;
}

}  // namespace

std::vector<std::size_t> choose_nics(std::span<const Nic> nics, const NicWishes& wishes) {
  const Indices usable =
      wishes.names.empty() ? unasked(nics, wishes.one) : named(nics, wishes.names);
  const auto nearest = [&](const std::string& path) {
    return best(usable, [&](std::size_t i) { return shared_parts(nics[i].path, path); });
  };
  const Indices own = nearest(wishes.near);
  if (own.empty()) return {};
  Indices rails(static_cast<std::size_t>(wishes.rails));
  // Those of who chooses from the same ones come first.
  const auto before = std::ranges::count(wishes.before, own, nearest);
  std::size_t turn = static_cast<std::size_t>(before) * rails.size();
  for (std::size_t& rail : rails) rail = own[turn++ % own.size()];
  return rails;
}

Nic completed(Nic nic, const std::string& sysfs) {
  const std::filesystem::path folder = std::filesystem::path(sysfs) / nic.name;
  if (nic.speed == 0) {
    double gigabits = 0;  // "200 Gb/sec (4X HDR)"
    if (std::ifstream(folder / "ports/1/rate") >> gigabits && gigabits > 0) {
      nic.speed = static_cast<std::uint64_t>(gigabits * 1e9);
    }
  }
  std::error_code error;
  if (nic.path.empty()) nic.path = std::filesystem::canonical(folder / "device", error).string();
  return nic;
}

std::string bus_path(std::string_view address) {
  if (address.empty()) return {};
  std::string folder = "/sys/bus/pci/devices/";
  for (const char letter : address) {
    folder += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  std::error_code error;
  return std::filesystem::canonical(folder, error).string();
}

}  // namespace sluice::transport
