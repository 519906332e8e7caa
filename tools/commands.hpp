// SPDX-License-Identifier: MIT
#pragma once

namespace CLI {
class App;
}

namespace sluice::tools {

/// Each adds its subcommand to the app; the callback stores the program's exit status in `result`.
void add_bench_command(CLI::App& app, int argc, char** argv, int& result);
void add_info_command(CLI::App& app, int& result);
void add_size_command(CLI::App& app, int& result);

}  // namespace sluice::tools
