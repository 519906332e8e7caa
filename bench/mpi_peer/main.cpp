// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>

#include "board_memory.hpp"
#include "machine.hpp"
#include "mpi_peer.hpp"
#include "network_meter.hpp"
#include "node_namespaces.hpp"
#include "options.hpp"
#include "pair_paths.hpp"
#include "peer_floor.hpp"
#include "place.hpp"
#include "run_rank.hpp"
#include "sluice/world.hpp"
#include "sluice_contestant.hpp"

namespace sluice::bench {
namespace {

/// World::create asks its caller for one thing only; MPI has it.
Result<std::vector<std::string>> all_gather(std::string_view blob) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::size_t ranks = static_cast<std::size_t>(size);
  const int length = static_cast<int>(blob.size());
  std::vector<int> lengths(ranks);
  std::vector<int> firsts(ranks);
  int code = MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return Status(StatusCode::io_error, "MPI_Allgather failed");
  int total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    firsts[rank] = total;
    total += lengths[rank];
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  code = MPI_Allgatherv(blob.data(), length, MPI_CHAR, all.data(), lengths.data(), firsts.data(),
                        MPI_CHAR, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return Status(StatusCode::io_error, "MPI_Allgatherv failed");
  std::vector<std::string> blobs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    blobs.push_back(all.substr(static_cast<std::size_t>(firsts[rank]),
                               static_cast<std::size_t>(lengths[rank])));
  }
  return blobs;
}

/// Where a rank on a node of its own finds what the command has made or named outside.
struct Outside {
  std::string board;   ///< A file for the samples.
  std::string root;    ///< Before absolute paths of files.
  std::string folder;  ///< That paths begin in.

  std::string path(const std::string& name) const {
    if (root.empty() || name.empty() || name == "-") return name;
    return root + (std::filesystem::path(folder) / name).string();
  }
};

Status add_peers(const Workload& workload, Contestants& contestants) {
  Result<std::unique_ptr<MpiPeer>> peer =
      MpiPeer::create(MPI_COMM_WORLD, workload, SendOrder::Rows::per_route);
  if (!peer) return peer.status();
  MpiPeer& usual = **peer;
  if (workload.bench_case.nodes > 1) {
    Result<std::string> paths = pair_paths(MPI_COMM_WORLD, NodeNamespaces::interface());
    if (!paths) return paths.status();
    usual.say("pairs of ranks that MPI takes " + *paths);
  }
  contestants.push_back(std::move(peer).value());
  if (workload.bench_case.layout == Layout::rank_major) {
    peer = MpiPeer::create(MPI_COMM_WORLD, workload, SendOrder::Rows::per_rank);
    if (!peer) return peer.status();
    contestants.push_back(std::move(peer).value());
  }
  contestants.push_back(std::make_unique<PeerFloor>(usual));
  return {};
}

Status run(BenchOptions& options, const Outside& outside, int rank, int& exit_status) {
  // MPI waits for ever for a rank that is frozen.
  Progress progress(nullptr, rank == 0);
  progress.end_process_after(options.settings.watchdog_s);
  const Case& bench_case = options.bench_case;
  const bool on_nodes = bench_case.nodes > 1;
  if (options.settings.bind) bind_to_processors(rank, bench_case.ranks, on_nodes);
  const Workload workload(bench_case);
  if (Status status = workload.check_capacity(); !status) return status;
  Place place;
  Contestants contestants;
  std::unique_ptr<World> world;
  std::unique_ptr<NetworkMeter> network;
  if (!options.settings.peer_alone) {
    Result<World> joined = World::create(rank, bench_case.ranks, all_gather);
    if (!joined) return joined.status();
    world = std::make_unique<World>(std::move(joined).value());
    Result<std::unique_ptr<SluiceContestant>> ours =
        SluiceContestant::create(*world, workload, place);
    if (!ours) return ours.status();
    contestants.push_back(std::move(ours).value());
    if (on_nodes) {
      Result<std::unique_ptr<NetworkMeter>> meter = NetworkMeter::open(*world, bench_case, place);
      if (!meter) return meter.status();
      network = std::move(meter).value();
    }
  }
  if (Status status = add_peers(workload, contestants); !status) return status;
  Board::Form form{series_count(contestants), bench_case.iterations, 0};
  if (network != nullptr) form.network = NetworkNumbers::count(bench_case);
  {
    BoardMemory memory;
    const Status shared = on_nodes
                              ? memory.map(outside.board, board_bytes(bench_case), bench_case.ranks)
                              : memory.allocate(form.bytes(), bench_case.ranks);
    if (!shared) return shared;
    // A rank that dies takes the whole MPI job with it, so nobody need be asked.
    Board board(memory.pieces(), rank, form, options.settings.watchdog_s, nullptr);
    exit_status =
        run_contestants(board, workload, contestants, options.settings, progress, network.get());
    if (exit_status == kExitFailed) return {};
  }
  contestants.clear();
  network.reset();
  return world ? world->leave(std::chrono::seconds(10)) : Status();
}

int start(int argc, char** argv) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CLI::App app("Sluice and its MPI peer in one run; started by sluice bench --peer mpi");
  BenchOptions options;
  options.add_to(app);
  app.add_flag("--peer-alone", options.settings.peer_alone, "Measure the peer only");
  // Said by the command that has made the nodes.
  Outside outside;
  app.add_option("--outside-board", outside.board)->group("");
  app.add_option("--outside-root", outside.root)->group("");
  app.add_option("--outside-folder", outside.folder)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return rank == 0 && app.exit(error) == 0 ? kExitOk : kExitFailed;
  }
  Status status = options.finish(app, argc, argv);
  if (status.ok() && options.bench_case.ranks != size) {
    status =
        Status(StatusCode::invalid_argument,
               fmt::format("--ranks is {}, but mpirun started {}", options.bench_case.ranks, size));
  }
  if (!status) return rank == 0 ? complain(status, -1) : kExitFailed;
  RunSettings& settings = options.settings;
  // As typed: those come last, and the program was named from inside.
  settings.command = settings.command.substr(0, settings.command.find(" --outside-board"));
  if (!outside.root.empty() && settings.command.starts_with(outside.root)) {
    settings.command.erase(0, outside.root.size());
  }
  for (std::string* name :
       {&settings.json, &settings.csv, &settings.samples, &settings.profile_dir}) {
    *name = outside.path(*name);
  }
  int exit_status = kExitOk;
  status = run(options, outside, rank, exit_status);
  return status.ok() ? exit_status : complain(status, rank);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int exit_status = sluice::bench::kExitFailed;
  try {
    exit_status = sluice::bench::start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-bench-mpi: %s\n", error.what());
  }
  std::fflush(nullptr);
  // A rank that failed alone would leave the others waiting in a collective call.
  if (exit_status == sluice::bench::kExitFailed) MPI_Abort(MPI_COMM_WORLD, exit_status);
  MPI_Finalize();
  return exit_status;
}
