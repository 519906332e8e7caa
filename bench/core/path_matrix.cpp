// SPDX-License-Identifier: MIT
#include "path_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bootstrap/group.hpp"
#include "bootstrap/host_identity.hpp"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Words {
  Path::Kind kind;
  const char* in_table;
  const char* in_json;
  const char* meaning;
};
constexpr std::array<Words, 5> kWords = {
    {{Path::Kind::self, "X", "self", "itself"},
     {Path::Kind::shared_memory, "SHM", "shared_memory", "one node: memory that both map"},
     {Path::Kind::same_gpu, "GPU", "same_gpu", "one node: on the same GPU"},
     {Path::Kind::peer_access, "P2P", "peer_access",
      "one node: each maps the memory of the other's GPU; NV#: over so many NVLinks; PIX, PXB, "
      "PHB, NODE, SYS: over PCIe, as nvidia-smi has it"},
     {Path::Kind::network, "NET", "network",
      "the network; NET:r: to its rail peer r there, and on through that node's memory"}}};

const Words& words_of(Path::Kind kind) {
  return kWords[static_cast<std::size_t>(kind)];
}

Json encode(const Seat& seat) {
  return {{"host", seat.host}, {"gpu", seat.gpu}, {"reachable", seat.reachable}};
}

/// A seat without a host: what came is none.
Seat decode(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  return {json.value("host", std::string()), json.value("gpu", std::string()),
          json.value("reachable", std::map<std::string, std::string>())};
}

}  // namespace

Seat Seat::here(int rank, const Gpus& gpus) {
  Seat seat;
  seat.host = bootstrap::host_name();
  if (gpus.list.empty()) return seat;
  const Gpu& own = gpus.list[static_cast<std::size_t>(rank) % gpus.list.size()];
  seat.gpu = own.bus;
  for (const Gpu::Reachable& other : own.reachable) {
    seat.reachable[gpus.list[static_cast<std::size_t>(other.gpu)].bus] = other.way;
  }
  return seat;
}

PathMatrix::PathMatrix(routing::NodeMap nodes, std::vector<Seat> seats)
    : nodes_(std::move(nodes)), seats_(std::move(seats)) {}

Result<PathMatrix> PathMatrix::of_world(World& world, const Gpus& gpus) {
  const Result<std::vector<std::string>> gathered =
      world.all_gather(encode(Seat::here(world.rank(), gpus)).dump());
  if (!gathered) return gathered.status();
  std::vector<Seat> seats;
  for (const std::string& text : *gathered) seats.push_back(decode(text));
  return PathMatrix(world.group()->nodes(), std::move(seats));
}

PathMatrix PathMatrix::of_sizes(const std::vector<int>& node_sizes, const Gpus& gpus) {
  routing::NodeMap nodes = routing::NodeMap::of_sizes(node_sizes);
  std::vector<Seat> seats;
  for (int rank = 0; rank < nodes.ranks(); ++rank) seats.push_back(Seat::here(rank, gpus));
  return {std::move(nodes), std::move(seats)};
}

Path PathMatrix::path(int from, int to) const {
  if (from == to) return {};
  if (nodes_.together(from, to)) return on_node(from, to);
  return {Path::Kind::network, nodes_.rail_peer(from, nodes_.node_of(to)), {}};
}

Path PathMatrix::on_node(int from, int to) const {
  const Seat& a = seat(from);
  const Seat& b = seat(to);
  Path path{Path::Kind::shared_memory, -1, {}};
  if (a.gpu.empty() || b.gpu.empty()) return path;
  if (a.gpu == b.gpu) {
    path.kind = Path::Kind::same_gpu;
  } else if (a.reachable.contains(b.gpu) && b.reachable.contains(a.gpu)) {
    path.kind = Path::Kind::peer_access;
    path.way = a.reachable.at(b.gpu);
  }
  return path;
}

std::string PathMatrix::word(int from, int to) const {
  const Path path = this->path(from, to);
  if (!path.way.empty()) return path.way;
  const std::string word = words_of(path.kind).in_table;
  const bool passed_on = path.kind == Path::Kind::network && path.rail_peer != to;
  return passed_on ? fmt::format("{}:{}", word, path.rail_peer) : word;
}

void PathMatrix::print(std::FILE* out) const {
  const bool gpus =
      std::any_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return !seat.gpu.empty(); });
  fmt::print(out, "paths         {} ranks on {} node{}; from the rank on the left\n",
             nodes_.ranks(), nodes_.nodes(), nodes_.nodes() == 1 ? "" : "s");
  fmt::print(out, "              {:<6}", "");
  for (int to = 0; to < nodes_.ranks(); ++to) fmt::print(out, " {:<8}", fmt::format("rank {}", to));
  fmt::print(out, " node  {:<16}{}\n", "host", gpus ? " GPU" : "");
  std::array<bool, kWords.size()> seen{};
  for (int from = 0; from < nodes_.ranks(); ++from) {
    fmt::print(out, "              {:<6}", fmt::format("rank {}", from));
    for (int to = 0; to < nodes_.ranks(); ++to) {
      fmt::print(out, " {:<8}", word(from, to));
      seen[static_cast<std::size_t>(path(from, to).kind)] = true;
    }
    fmt::print(out, " {:<5} {:<16}{}\n", nodes_.node_of(from), seat(from).host,
               gpus ? " " + seat(from).gpu : std::string());
  }
  for (const Words& words : kWords) {
    if (!seen[static_cast<std::size_t>(words.kind)]) continue;
    fmt::print(out, "              {:<4} {}\n", words.in_table, words.meaning);
  }
}

Json PathMatrix::json() const {
  Json json = {{"ranks", Json::array()}, {"matrix", Json::array()}};
  for (int from = 0; from < nodes_.ranks(); ++from) {
    const Seat& own = seat(from);
    json["ranks"].push_back({{"node", nodes_.node_of(from)},
                             {"host", own.host},
                             {"gpu", own.gpu.empty() ? Json(nullptr) : Json(own.gpu)}});
    Json row = Json::array();
    for (int to = 0; to < nodes_.ranks(); ++to) {
      const Path path = this->path(from, to);
      row.push_back({{"kind", words_of(path.kind).in_json}});
      if (path.kind == Path::Kind::network) row.back()["rail_peer"] = path.rail_peer;
      if (!path.way.empty()) row.back()["way"] = path.way;
    }
    json["matrix"].push_back(std::move(row));
  }
  return json;
}

}  // namespace sluice::bench
