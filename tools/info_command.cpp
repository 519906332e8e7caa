// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <hwloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "case.hpp"
#include "commands.hpp"
#include "gpus.hpp"
#include "launch.hpp"
#include "machine.hpp"
#include "path_matrix.hpp"
#include "sluice/world.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kJoinLimit(60);

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) return;
    hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  Json describe() const {
    if (!loaded_) return Json(nullptr);
    Json json;
    json["packages"] = count(HWLOC_OBJ_PACKAGE);
    json["numa_nodes"] = count(HWLOC_OBJ_NUMANODE);
    json["cores"] = count(HWLOC_OBJ_CORE);
    json["processing_units"] = count(HWLOC_OBJ_PU);
    json["caches"] = caches();
    return json;
  }

 private:
  int count(hwloc_obj_type_t type) const { return hwloc_get_nbobjs_by_type(topology_, type); }

  Json caches() const {
    Json list = Json::array();
    for (const hwloc_obj_type_t type :
         {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology_, type, 0);
      if (cache == nullptr) continue;
      list.push_back({{"level", cache->attr->cache.depth},
                      {"bytes", cache->attr->cache.size},
                      {"instances", count(type)}});
    }
    return list;
  }

  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

Json describe(const bench::Gpus& gpus) {
  if (!gpus.built) return Json(nullptr);
  Json json;
  json["problem"] = gpus.problem.empty() ? Json(nullptr) : Json(gpus.problem);
  json["driver"] = gpus.driver;
  json["list"] = Json::array();
  for (const bench::Gpu& gpu : gpus.list) {
    Json reachable = Json::object();
    for (const bench::Gpu::Reachable& other : gpu.reachable) {
      reachable[std::to_string(other.gpu)] = other.way.empty() ? Json(nullptr) : Json(other.way);
    }
    json["list"].push_back(
        {{"name", gpu.name},
         {"bus", gpu.bus},
         {"memory_bytes", gpu.memory_bytes},
         {"multiprocessors", gpu.multiprocessors},
         {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
         {"sharing", gpu.sharing},
         {"reachable", reachable}});
  }
  return json;
}

struct InfoArguments {
  bool as_json = false;
  int ranks = 0;  ///< 0: those of the launcher's world, if there is one.
  int nodes = 1;
};

/// Of which ranks paths are shown, and whether this process is the one that prints.
struct Paths {
  std::optional<bench::PathMatrix> matrix;
  bool prints = true;
};

Result<Paths> find_paths(const InfoArguments& arguments, const bench::Gpus& gpus) {
  Paths paths;
  if (arguments.ranks > 0) {
    bench::Case shape;
    shape.ranks = arguments.ranks;
    shape.nodes = arguments.nodes;
    if (Status status = shape.settle(); !status) return status;
    paths.matrix = bench::PathMatrix::of_sizes(shape.node_sizes(), gpus);
    return paths;
  }
  if (!bench::launched_as_rank()) return paths;
  WorldOptions options;
  options.deadline = kJoinLimit;
  Result<World> world = World::from_environment(options);
  if (!world) return world.status();
  Result<bench::PathMatrix> matrix = bench::PathMatrix::of_world(*world, gpus);
  if (!matrix) return matrix.status();
  paths.matrix = std::move(matrix).value();
  paths.prints = world->rank() == 0;
  if (Status status = world->leave(kJoinLimit); !status) return status;
  return paths;
}

Json collect(const bench::Gpus& gpus, const Paths& paths) {
  const bench::Machine machine = bench::Machine::here();
  Json json;
  json["version"] = machine.version;
  json["build"] = {{"compiler", machine.compiler},
                   {"flags", machine.build},
                   {"sanitizers", bench::sanitizers()}};
  json["cpu"] = {{"model", machine.cpu},
                 {"usable", machine.cpus},
                 {"instruction_sets", bench::instruction_sets()},
                 {"row_kernels", machine.row_kernels}};
  json["memory_bytes"] = machine.memory_bytes;
  json["kernel"] = machine.kernel;
  json["topology"] = Topology().describe();
  json["engines"] = {{"cpu", "built"}, {"cuda", gpus.built ? "built" : "not built"}};
  json["gpus"] = describe(gpus);
  json["paths"] = paths.matrix ? paths.matrix->json() : Json(nullptr);
  const base::Environment environment = base::Environment::read();
  json["environment"] = Json::object();
  for (const base::VariableFacts& variable : base::all_variables()) {
    const std::optional<std::string>& value = environment.get(variable.variable);
    json["environment"][variable.name] = value ? Json(*value) : Json(nullptr);
  }
  return json;
}

void print_topology(const Json& topology) {
  if (topology.is_null()) {
    fmt::print("topology      unknown: hwloc cannot read it\n");
    return;
  }
  fmt::print("topology      {} package(s), {} NUMA node(s), {} core(s), {} processing unit(s)\n",
             topology["packages"].get<int>(), topology["numa_nodes"].get<int>(),
             topology["cores"].get<int>(), topology["processing_units"].get<int>());
  for (const Json& cache : topology["caches"]) {
    fmt::print("              L{} cache: {} x {} KiB\n", cache["level"].get<int>(),
               cache["instances"].get<int>(), cache["bytes"].get<std::uint64_t>() / 1024);
  }
}

void print_gpus(const Json& gpus) {
  if (gpus.is_null()) return;
  if (!gpus["problem"].is_null()) {
    fmt::print("GPUs          none: {}\n", gpus["problem"].get<std::string>());
    return;
  }
  fmt::print("GPUs          driver {}\n", gpus["driver"].get<std::string>());
  int number = 0;
  for (const Json& gpu : gpus["list"]) {
    std::string reached;
    for (const auto& [other, way] : gpu["reachable"].items()) {
      reached += fmt::format(" {} ({})", other, way.is_null() ? "P2P" : way.get<std::string>());
    }
    fmt::print("              {}: {} at {}, {:.0f} GiB, {} multiprocessors, sm_{}; reaches:{}\n",
               number++, gpu["name"].get<std::string>(), gpu["bus"].get<std::string>(),
               static_cast<double>(gpu["memory_bytes"].get<std::int64_t>()) / (1U << 30U),
               gpu["multiprocessors"].get<int>(), gpu["compute_capability"].get<std::string>(),
               reached.empty() ? " no other" : reached);
    fmt::print("                 shares memory by: {}\n", gpu["sharing"].get<std::string>());
  }
}

void print(const Json& json, const Paths& paths) {
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  std::string sets;
  for (const Json& set : json["cpu"]["instruction_sets"]) sets += " " + text(set);
  fmt::print("sluice        {}\n", text(json["version"]));
  fmt::print("build         {}, {}, sanitizers: {}\n", text(json["build"]["compiler"]),
             text(json["build"]["flags"]), text(json["build"]["sanitizers"]));
  fmt::print("cpu           {}, {} usable\n", text(json["cpu"]["model"]),
             json["cpu"]["usable"].get<int>());
  fmt::print("              instruction sets:{}\n", sets.empty() ? " none known" : sets);
  fmt::print("              row kernels: {}\n", text(json["cpu"]["row_kernels"]));
  fmt::print("memory        {:.1f} GiB\n",
             static_cast<double>(json["memory_bytes"].get<std::int64_t>()) / (1U << 30U));
  fmt::print("kernel        {}\n", text(json["kernel"]));
  print_topology(json["topology"]);
  for (const auto& [engine, state] : json["engines"].items()) {
    fmt::print("engine        {}: {}\n", engine, text(state));
  }
  print_gpus(json["gpus"]);
  if (paths.matrix) paths.matrix->print(stdout);
  for (const base::VariableFacts& variable : base::all_variables()) {
    const Json& value = json["environment"][variable.name];
    fmt::print("environment   {:<28} {:<12} {}\n", variable.name,
               value.is_null() ? "(not set)" : text(value), variable.meaning);
  }
}

int run(const InfoArguments& arguments) {
  const bench::Gpus gpus = bench::Gpus::here();
  const Result<Paths> paths = find_paths(arguments, gpus);
  if (!paths) {
    fmt::print(stderr, "sluice info: {}\n", paths.status().to_string());
    return 2;
  }
  if (!paths->prints) return 0;
  const Json json = collect(gpus, *paths);
  if (arguments.as_json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    print(json, *paths);
  }
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, int& result) {
  CLI::App* command = app.add_subcommand(
      "info",
      "Version, build, processor, topology, engines, GPUs, paths between ranks, environment");
  auto arguments = std::make_shared<InfoArguments>();
  command->add_flag("--json", arguments->as_json, "Print JSON");
  command->add_option(
      "--ranks", arguments->ranks,
      "Show the paths between so many ranks on this machine; under a launcher those "
      "between its ranks are shown");
  command->add_option("--nodes", arguments->nodes, "... on so many nodes")
      ->needs("--ranks")
      ->capture_default_str();
  command->callback([=, &result] { result = run(*arguments); });
}

}  // namespace sluice::tools
