// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "case.hpp"

namespace CLI {
class App;
}

namespace sluice::bench {

/// How a case is run and where its results go.
struct RunSettings {
  bool peer_mpi = false;
  bool peer_nccl = false;
  std::string nccl_library = "libnccl.so.2";  ///< As for dlopen.
  std::string cublas_library;                 ///< As for dlopen; empty: the usual names.
  bool peer_alone = false;  ///< sluice-bench-mpi only: measure the peer without Sluice.
  bool check = false;
  bool threads = false;
  bool netns = false;  ///< Nodes are namespaces: see NodeNamespaces.
  bool bind = true;    ///< Rank r on processor r mod n: both contestants run in the same processes.
  bool quiet = false;
  std::string profile_dir;
  std::string json;  ///< Path, "-" for standard output, empty for none.
  std::string csv;
  std::string samples;  ///< Likewise: every sample of every rank.
  double watchdog_s = 120.0;
  std::string command;  ///< As typed, for the record.
};

/// The options of `sluice bench`, also understood by the MPI peer's executable, which is started
/// with the same arguments.
class BenchOptions {
 public:
  void add_to(CLI::App& app);
  /// After parsing: fills the case and the settings, or says which option is wrong.
  Status finish(const CLI::App& app, int argc, const char* const* argv);

  Case bench_case;
  RunSettings settings;
  bool ranks_given = false;
  bool nodes_given = false;

 private:
  struct Texts {
    std::string engine = "cpu";
    std::string layout = "expert_slab";
    std::string mode = "automatic";
    std::string dispatch_codec = "fp8";
    std::string combine_codec = "bf16";
    std::string reduce = "automatic";
    std::string y_memory = "automatic";
    std::string registered = "yes";
    std::string routing = "uniform";
    std::string weights = "dispatch";
    std::string launch = "both";
    std::string peer;
    std::string gemm;
  };
  Status parse_texts();
  Status parse_engine();
  Status parse_peer();
  Status parse_gemm();
  Status parse_reduce_text();

  Texts texts_;
};

}  // namespace sluice::bench
