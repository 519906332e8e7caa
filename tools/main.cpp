// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "commands.hpp"

/// Argument parsing throws; nothing may leave main as an uncaught exception.
int main(int argc, char** argv) {
  try {
    CLI::App app("Sluice: expert-parallel dispatch and combine", "sluice");
    app.require_subcommand(1);
    int result = 0;
    sluice::tools::add_bench_command(app, argc, argv, result);
    sluice::tools::add_info_command(app, result);
    sluice::tools::add_size_command(app, result);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    return result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: %s\n", error.what());
    return 2;
  }
}
