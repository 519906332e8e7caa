// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <memory>

#include "commands.hpp"
#include "launch.hpp"
#include "mpi_launch.hpp"
#include "options.hpp"
#include "run_rank.hpp"

namespace sluice::tools {
namespace {

int run(bench::BenchOptions& options, const CLI::App& command, int argc, char** argv) {
  if (Status status = options.finish(command, argc, argv); !status) {
    return bench::complain(status, -1);
  }
  // Only what follows the subcommand's name is the peer's: it has no subcommands.
  if (options.settings.peer_mpi) return bench::run_mpi_peer(options, argc - 2, argv + 2);
  if (options.settings.threads) return bench::run_threads(options);
  if (bench::launched_as_rank()) return bench::run_from_environment(options);
  return bench::run_forked(options);
}

}  // namespace

void add_bench_command(CLI::App& app, int argc, char** argv, int& result) {
  CLI::App* command = app.add_subcommand(
      "bench", "Time dispatch and combine over several ranks, and verify them (docs/benchmarking)");
  auto options = std::make_shared<bench::BenchOptions>();
  options->add_to(*command);
  command->callback([=, &result] { result = run(*options, *command, argc, argv); });
}

}  // namespace sluice::tools
