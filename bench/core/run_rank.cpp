// SPDX-License-Identifier: MIT
#include "run_rank.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/deadline.hpp"
#include "board_bridge.hpp"
#include "bootstrap/group.hpp"
#include "gpu.hpp"
#include "machine.hpp"
#include "results.hpp"
#include "sluice_contestant.hpp"

namespace sluice::bench {
namespace {

constexpr int kProfileRounds = 20;
/// More than any run has.
constexpr int kSeriesMax = (kPair + 1) * RankRecord::kContestantsMax + 2 * kGemmParts + 1;

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return {};
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed) return {};
  return Status(StatusCode::io_error,
                fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

/// Prints the results where the settings say. The table goes to standard error when standard output
/// carries data.
Status report(const Results& results, const RunSettings& settings) {
  if (!settings.quiet) {
    const bool data_on_stdout =
        settings.json == "-" || settings.csv == "-" || settings.samples == "-";
    print_table(results, data_on_stdout ? stderr : stdout);
    std::fflush(stdout);
  }
  if (!settings.json.empty()) {
    if (Status status = write_text(settings.json, to_json(results)); !status) return status;
  }
  if (!settings.csv.empty()) return write_text(settings.csv, to_csv(results));
  return {};
}

Status write_profiles(Board& board, const Contestants& contestants, const RunSettings& settings) {
  if (settings.profile_dir.empty()) return {};
  // The phases are recorded in rounds of their own, so that the figures above do not contain them.
  std::error_code error;
  std::filesystem::create_directories(settings.profile_dir, error);
  if (error) {
    return Status(StatusCode::io_error,
                  fmt::format("cannot create {}: {}", settings.profile_dir, error.message()));
  }
  const Result<std::int64_t> start_ns = board.pass();
  if (!start_ns) return start_ns.status();
  return contestants.front()->profile(
      kProfileRounds, fmt::format("{}/rank{}.json", settings.profile_dir, board.rank()));
}

/// Operations with the raw network before and behind them, so that neither is all of the time ahead where a
/// machine's speed drifts.
Status measure_on_nodes(Board& board, const Case& bench_case, const Contestants& contestants,
                        Progress& progress, NetworkMeter& network, decltype(&measure) measured) {
  const int rounds = NetworkNumbers::rounds(bench_case);
  if (Status status = network.watch(board, *contestants.front(), progress); !status) {
    return status;
  }
  if (Status status = network.measure(board, 0, rounds / 2, progress); !status) return status;
  if (Status status = measured(board, bench_case, contestants, progress); !status) return status;
  return network.measure(board, rounds / 2, rounds, progress);
}

Status run_rounds(Board& board, const Workload& workload, const Contestants& contestants,
                  const RunSettings& settings, Progress& progress, NetworkMeter* network) {
  const Case& bench_case = workload.bench_case;
  const auto measured = bench_case.engine == Device::cuda ? measure_launched : measure;
  if (Status status = network != nullptr ? measure_on_nodes(board, bench_case, contestants,
                                                            progress, *network, measured)
                                         : measured(board, bench_case, contestants, progress);
      !status) {
    return status;
  }
  if (bench_case.gemm) {
    if (Status status = measure_gemm(board, bench_case, contestants, progress); !status) {
      return status;
    }
  }
  if (settings.check) {
    if (Status status = verify(board, bench_case, contestants, progress); !status) return status;
  }
  return write_profiles(board, contestants, settings);
}

/// Sluice's contestant, on a GPU in each of its ways, the peer that the settings ask for, and the GEMM
/// that goes between its halves.
Result<Contestants> make_contestants(World& world, const Workload& workload, Place& place,
                                     const RunSettings& settings) {
  Result<std::unique_ptr<SluiceContestant>> ours = SluiceContestant::create(world, workload, place);
  if (!ours) return ours.status();
  Contestants contestants;
  if (workload.bench_case.engine == Device::cpu) {
    contestants.push_back(std::move(ours).value());
    return contestants;
  }
  const std::shared_ptr<SluiceContestant> sluice = std::move(ours).value();
  contestants = launched(sluice, place, workload.bench_case);
  if (workload.bench_case.late_us > 0) {
    Case graphs = workload.bench_case;
    graphs.plain_launches = false;
    for (const Role role : {Role::late_all, Role::late_one}) {
      for (auto& late :
           launched(late_ranks(sluice, place, graphs, world.rank(), role), place, graphs)) {
        contestants.push_back(std::move(late));
      }
    }
  }
  if (settings.peer_nccl) {
    Result<std::shared_ptr<QueuedContestant>> peer =
        nccl_peer(world, workload, place, settings.nccl_library);
    if (!peer) return peer.status();
    for (auto& contestant : launched(std::move(peer).value(), place, workload.bench_case)) {
      contestants.push_back(std::move(contestant));
    }
  }
  if (workload.bench_case.gemm) {
    Result<std::unique_ptr<Contestant>> gemm =
        gemm_between(sluice, place, workload.bench_case, world.rank(), settings.cublas_library);
    if (!gemm) return gemm.status();
    contestants.push_back(std::move(gemm).value());
  }
  return contestants;
}

}  // namespace

int complain(const Status& status, int rank) {
  const std::string place = rank >= 0 ? fmt::format(" rank {}:", rank) : std::string();
  fmt::print(stderr, "sluice bench:{} {}\n", place, status.to_string());
  return kExitFailed;
}

int run_contestants(Board& board, const Workload& workload, const Contestants& contestants,
                    const RunSettings& settings, Progress& progress, NetworkMeter* network) {
  Machine machine = Machine::here();
  if (workload.bench_case.engine == Device::cuda) machine.gpu = gpu_text();
  Status status = run_rounds(board, workload, contestants, settings, progress, network);
  if (status.ok()) status = board.spread();
  if (status.ok() && board.rank() == 0) {
    Results results = collect(board, workload, contestants, settings.check, network);
    results.machine = machine;
    results.command = settings.command;
    status = report(results, settings);
    if (status.ok() && !settings.samples.empty()) {
      status = write_text(settings.samples,
                          samples_csv(board, contestants, workload.bench_case.combines));
    }
    if (status.ok()) return results.exit_status();
  }
  if (status.ok()) return kExitOk;
  board.fail(status);
  return complain(status, board.rank());
}

std::size_t board_bytes(const Case& bench_case) {
  return Board::Form{kSeriesMax, bench_case.iterations, bench_case.singles,
                     NetworkNumbers::count(bench_case)}
      .bytes();
}

int run_sluice(World& world, std::byte* board_memory, const Workload& workload,
               const RunSettings& settings, Progress& progress) {
  const std::shared_ptr<bootstrap::Group>& group = world.group();
  const routing::NodeMap& nodes = group->nodes();
  const bool apart = nodes.several() && board_memory == nullptr;
  if (settings.bind) {
    // Between nodes others work for a rank: one makes progress, one may receive. Nodes that share no memory are machines.
    const auto here = static_cast<int>(nodes.ranks_of(nodes.node_of(world.rank())).size());
    bind_to_processors(apart ? nodes.place_of(world.rank()) : world.rank(),
                       apart ? here : world.size(), nodes.several());
  }
  const Case& bench_case = workload.bench_case;
  const bool on_gpu = bench_case.engine == Device::cuda;
  Result<std::unique_ptr<Place>> place =
      on_gpu ? gpu_place(world.rank()) : Result<std::unique_ptr<Place>>(std::make_unique<Place>());
  if (!place) return complain(place.status(), world.rank());
  Result<Contestants> made = make_contestants(world, workload, **place, settings);
  if (!made) return complain(made.status(), world.rank());
  Contestants contestants = std::move(made).value();
  Board::Form form{series_count(contestants) + (bench_case.combines ? 1 : 0), bench_case.iterations,
                   bench_case.singles, 0};
  std::unique_ptr<NetworkMeter> network;
  if (group->nodes().several()) {
    Result<std::unique_ptr<NetworkMeter>> meter = NetworkMeter::open(world, bench_case, **place);
    if (!meter) return complain(meter.status(), world.rank());
    network = std::move(meter).value();
    form.network = NetworkNumbers::count(bench_case);
  }

  std::unique_ptr<BoardBridge> bridge;
  if (apart) {
    Result<std::unique_ptr<BoardBridge>> opened = BoardBridge::open(*group, bench_case.deadline_s);
    if (!opened) return complain(opened.status(), world.rank());
    bridge = std::move(opened).value();
  }
  memory::SharedRegion shared;
  std::vector<std::vector<std::byte>> copies;  // Of pieces of other nodes.
  std::vector<std::byte*> pieces;
  if (board_memory == nullptr) {
    Result<memory::SharedRegion> region =
        group->share(form.bytes(), true, base::Deadline::after(std::chrono::seconds(60)));
    if (!region) return complain(region.status(), world.rank());
    shared = std::move(region).value();
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (board_memory != nullptr) {
      pieces.push_back(board_memory + static_cast<std::size_t>(rank) * board_bytes(bench_case));
    } else if (nodes.together(rank, world.rank())) {
      pieces.push_back(shared.base(rank));
    } else {
      pieces.push_back(copies.emplace_back(form.bytes()).data());
    }
  }
  const auto dead_peer = [&group] {
    for (int peer = 0; peer < group->size(); ++peer) {
      if (peer != group->rank() && group->is_dead(peer)) return peer;
    }
    return -1;
  };
  Board board(std::move(pieces), world.rank(), form, settings.watchdog_s, dead_peer, bridge.get());
  const int exit_status =
      run_contestants(board, workload, contestants, settings, progress, network.get());
  network
      .reset();  // Its kernels, where somebody has failed, wait no longer then: contestants may wait for them.
  contestants.clear();
  bridge.reset();
  if (exit_status == kExitFailed) return exit_status;
  const Status left = world.leave(std::chrono::seconds(10));
  return left ? exit_status : complain(left, world.rank());
}

}  // namespace sluice::bench
