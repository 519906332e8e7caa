// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace sluice::bench {
namespace {

template <typename Value>
Status assign(Result<Value> parsed, const char* option, Value& out) {
  if (!parsed) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: {}", option, parsed.status().message()));
  }
  out = std::move(parsed).value();
  return {};
}

}  // namespace

void BenchOptions::add_to(CLI::App& app) {
  Case& c = bench_case;
  RunSettings& s = settings;
  app.add_option("--engine", texts_.engine, "cpu or cuda")->capture_default_str();
  app.add_option("--ranks,--num-processes", c.ranks, "Ranks in all")->capture_default_str();
  app.add_option("--tokens,--num-tokens", c.tokens, "Tokens per rank")->capture_default_str();
  app.add_option("--rank-tokens", c.rank_tokens,
                 "Tokens of each rank, where they differ: 8,0,128,1")
      ->delimiter(',');
  app.add_option("--hidden", c.hidden, "Elements per row")->capture_default_str();
  app.add_option("--top-k,--num-topk", c.top_k, "Experts per token")->capture_default_str();
  app.add_option("--experts,--num-experts", c.experts, "Experts in all")->capture_default_str();
  app.add_option("--layout", texts_.layout, "expert_slab, expert_major or rank_major")
      ->capture_default_str();
  app.add_option("--mode", texts_.mode, "latency, throughput or automatic (by --tokens)")
      ->capture_default_str();
  app.add_option("--dispatch-codec", texts_.dispatch_codec,
                 "bf16, f16, f32 or fp8[:f32|pow2|ue8m0][:GROUP]")
      ->capture_default_str();
  app.add_flag("--encoded", c.encoded,
               "x is given encoded, as --dispatch-codec says (fp8): rows with their scales");
  app.add_option("--combine-codec", texts_.combine_codec, "bf16, f16 or f32")
      ->capture_default_str();
  app.add_option("--reduce", texts_.reduce,
                 "rank, single, node, or automatic: rank, on several nodes node")
      ->capture_default_str();
  app.add_option(
         "--nodes", c.nodes,
         "Nodes on which the ranks are, which share no memory: what they move goes through the "
         "network (SLUICE_NETWORK)")
      ->capture_default_str();
  app.add_flag(
      "--netns", s.netns,
      "With --nodes: each node in a network, UTS and mount namespace of its own, which this "
      "command makes; takes root and ip (iproute2)");
  app.add_option("--y-memory", texts_.y_memory,
                 "ordinary, registered or automatic (as --registered)")
      ->capture_default_str();
  app.add_option("--registered", texts_.registered,
                 "yes or no: x and y in registered memory, as Communicator::allocate gives it")
      ->capture_default_str();
  app.add_option("--slot-tokens", c.slot_tokens, "Latency mode: tokens of one call; 0: the tokens")
      ->capture_default_str();
  app.add_option("--slab-rows", c.slab_rows, "expert_slab: rows per expert; 0: ranks * tokens")
      ->capture_default_str();
  app.add_option("--in-flight", c.in_flight, "Operations of a kind between their halves")
      ->capture_default_str();
  app.add_option("--blocks", c.blocks,
                 "cuda: thread blocks of one launch at most; 0: what the library takes by itself")
      ->capture_default_str();
  app.add_option("--routing", texts_.routing, "uniform, zipf:S, hot:N or grouped:G[/N]")
      ->capture_default_str();
  app.add_option("--weights", texts_.weights,
                 "dispatch or combine: which of the two is given the weights of the routes")
      ->capture_default_str();
  app.add_option("--launch", texts_.launch,
                 "cuda: graph (replays of a graph), stream (plain launches) or both")
      ->capture_default_str();
  app.add_option("--chain", c.chain, "cuda: operations of one sample")->capture_default_str();
  app.add_option("--singles", c.singles,
                 "cuda: so many pairs of graphs timed one by one as well, by the device's clock")
      ->capture_default_str();
  app.add_flag("--combines", c.combines,
               "cuda: graphs of combines alone timed as well, of handles that were filled before");
  app.add_option("--late", c.late_us,
                 "cuda: time operations as well that one rank after the other starts so many "
                 "microseconds late, and such that all do: what it costs to have waited")
      ->capture_default_str();
  app.add_option("--sets", c.sets, "Routings and data sets that rotate")->capture_default_str();
  app.add_option("--iterations", c.iterations, "Timed iterations")->capture_default_str();
  app.add_option("--warmup", c.warmup, "Iterations before them")->capture_default_str();
  app.add_option("--seed", c.seed, "Of routings and data")->capture_default_str();
  app.add_option("--deadline", c.deadline_s, "Seconds that one operation may wait")
      ->capture_default_str();
  app.add_option("--peer", texts_.peer,
                 "Measure the usual way as well: over MPI_Alltoallv (mpi; --engine cpu), or over "
                 "grouped sends and receives of NCCL (nccl; --engine cuda)");
  app.add_option("--nccl", s.nccl_library, "--peer nccl: where NCCL is, as for dlopen")
      ->capture_default_str();
  app.add_option("--gemm", texts_.gemm,
                 "cuda: time a GEMM in bf16 of this size, M,N,K or default (4096,4096,7168), alone "
                 "and between the halves of a dispatch and of a combine as well");
  app.add_option("--cublas", s.cublas_library,
                 "--gemm: where cuBLAS is, as for dlopen; otherwise libcublas.so.13, .12 or .so");
  app.add_flag("--check", s.check, "Poison the outputs and verify every value afterwards");
  app.add_flag("--threads", s.threads, "Ranks as threads of one process");
  app.add_flag("--bind,!--no-bind", s.bind,
               "Bind rank r to processor r mod n, or, on several nodes, to as many of its own as "
               "there are for each (the default)");
  app.add_flag("--quiet", s.quiet, "No table");
  app.add_option("--profile", s.profile_dir, "Write rank<r>.json (Perfetto) into this directory");
  app.add_option("--json", s.json, "Write the results as JSON; - is standard output");
  app.add_option("--csv", s.csv, "Write the results as CSV; - is standard output");
  app.add_option("--samples", s.samples,
                 "Write every sample of every rank as CSV; - is standard output");
  app.add_option("--watchdog", s.watchdog_s, "Seconds without progress before all ranks are ended")
      ->capture_default_str();
}

Status BenchOptions::parse_engine() {
  Case& c = bench_case;
  const auto bad = [](std::string message) {
    return Status(StatusCode::invalid_argument, std::move(message));
  };
  if (texts_.engine != "cpu" && texts_.engine != "cuda") {
    return bad(fmt::format("--engine {}: expected cpu or cuda", texts_.engine));
  }
  c.engine = texts_.engine == "cuda" ? Device::cuda : Device::cpu;
  if (texts_.launch != "graph" && texts_.launch != "stream" && texts_.launch != "both") {
    return bad(fmt::format("--launch {}: expected graph, stream or both", texts_.launch));
  }
  c.graphs = texts_.launch != "stream";
  c.plain_launches = texts_.launch != "graph";
  if (texts_.weights != "dispatch" && texts_.weights != "combine") {
    return bad(fmt::format("--weights {}: expected dispatch or combine", texts_.weights));
  }
  c.weights_at_combine = texts_.weights == "combine";
  if (c.singles > 0 && (c.engine == Device::cpu || !c.graphs)) {
    return bad("--singles goes with --engine cuda and --launch graph or both");
  }
  if (c.combines && (c.engine == Device::cpu || !c.graphs)) {
    return bad("--combines goes with --engine cuda and --launch graph or both");
  }
  if (c.late_us > 0 && (c.engine == Device::cpu || !c.graphs)) {
    return bad("--late goes with --engine cuda and --launch graph or both");
  }
  return {};
}

Status BenchOptions::parse_peer() {
  const auto bad = [](std::string message) {
    return Status(StatusCode::invalid_argument, std::move(message));
  };
  const Case& c = bench_case;
  settings.peer_mpi = texts_.peer == "mpi";
  settings.peer_nccl = texts_.peer == "nccl";
  if (texts_.peer.empty()) return {};
  if (!settings.peer_mpi && !settings.peer_nccl) {
    return bad(fmt::format("--peer {}: expected mpi or nccl", texts_.peer));
  }
  if (settings.peer_mpi && c.engine != Device::cpu) return bad("--peer mpi goes with --engine cpu");
  if (c.encoded) return bad("--encoded and --peer exclude each other: peers encode x themselves");
  if (!settings.peer_nccl) return {};
  if (c.engine != Device::cuda) return bad("--peer nccl goes with --engine cuda");
  const Codec& codec = c.dispatch_codec;
  const bool common_fp8 = codec_text(codec) == codec_text({CodecKind::fp8, ScaleForm::f32, 128});
  if (codec.kind != CodecKind::bf16 && !common_fp8) {
    return bad("--peer nccl can do --dispatch-codec bf16 and fp8 (f32 scales for 128 elements)");
  }
  if (c.combine_codec != CodecKind::bf16 || c.resolved_reduce() != Reduce::rank) {
    return bad("--peer nccl can do --combine-codec bf16 with --reduce rank only");
  }
  return {};
}

Status BenchOptions::parse_gemm() {
  if (texts_.gemm.empty()) return {};
  Case& c = bench_case;
  if (c.engine != Device::cuda) {
    return {StatusCode::invalid_argument, "--gemm goes with --engine cuda"};
  }
  if (c.iterations < 2) {
    return {StatusCode::invalid_argument,
            "--gemm needs --iterations 2 or more: ranks are late in turn"};
  }
  GemmSize size;
  if (Status status = assign(GemmSize::parse(texts_.gemm), "--gemm", size); !status) return status;
  c.gemm = size;
  return {};
}

Status BenchOptions::parse_texts() {
  Case& c = bench_case;
  if (Status status = parse_engine(); !status) return status;
  for (const Status& status :
       {assign(parse_layout(texts_.layout), "--layout", c.layout),
        assign(parse_mode(texts_.mode), "--mode", c.mode),
        assign(parse_codec(texts_.dispatch_codec), "--dispatch-codec", c.dispatch_codec),
        assign(parse_combine_codec(texts_.combine_codec), "--combine-codec", c.combine_codec),
        parse_reduce_text(), assign(RoutingSpec::parse(texts_.routing), "--routing", c.routing)}) {
    if (!status) return status;
  }
  if (Status status = parse_peer(); !status) return status;
  if (Status status = parse_gemm(); !status) return status;
  if (texts_.registered != "yes" && texts_.registered != "no") {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--registered {}: expected yes or no", texts_.registered));
  }
  // On a GPU all memory is alike in latency mode.
  const bool alike = c.engine == Device::cuda && c.resolved_mode() == Mode::latency;
  c.registered = texts_.registered == "yes" && !alike;
  if (alike && texts_.y_memory == "registered") {
    return Status(StatusCode::invalid_argument,
                  "--y-memory registered: with --engine cuda all memory is alike in latency mode");
  }
  if (texts_.y_memory == "automatic") {
    c.y_memory = c.registered ? YMemory::registered : YMemory::ordinary;
    return {};
  }
  return assign(parse_y_memory(texts_.y_memory), "--y-memory", c.y_memory);
}

Status BenchOptions::parse_reduce_text() {
  if (texts_.reduce == "automatic") return {};
  Result<Reduce> reduce = parse_reduce(texts_.reduce);
  if (!reduce) return reduce.status();
  bench_case.reduce = *reduce;
  return {};
}

Status BenchOptions::finish(const CLI::App& app, int argc, const char* const* argv) {
  ranks_given = app.count("--ranks") > 0;
  nodes_given = app.count("--nodes") > 0;
  for (int i = 0; i < argc; ++i) {
    settings.command += i > 0 ? " " : "";
    settings.command += argv[i];
  }
  if (!(settings.watchdog_s > 0.0) || settings.watchdog_s > 86400.0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--watchdog is {}, expected more than 0 and at most 86400 seconds",
                              settings.watchdog_s));
  }
  if (Status status = parse_texts(); !status) return status;
  if (!texts_.peer.empty() && !bench_case.rank_tokens.empty()) {
    return Status(
        StatusCode::invalid_argument,
        "--rank-tokens and --peer exclude each other: peers send as many tokens from all");
  }
  if (bench_case.nodes > 1 && (settings.peer_nccl || (settings.peer_mpi && !settings.netns))) {
    return Status(
        StatusCode::invalid_argument,
        "with --nodes a peer can be mpi only, and with --netns: it would use the shared memory");
  }
  if (settings.threads && settings.peer_mpi) {
    return Status(StatusCode::invalid_argument,
                  "--threads and --peer mpi exclude each other: ranks of MPI are processes");
  }
  if (settings.netns && (bench_case.nodes < 2 || settings.threads)) {
    return Status(StatusCode::invalid_argument,
                  "--netns goes with --nodes 2 or more, and not with --threads: ranks of different "
                  "nodes are processes in different namespaces");
  }
  return bench_case.settle();
}

}  // namespace sluice::bench
