// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "case.hpp"
#include "commands.hpp"
#include "sluice/communicator.hpp"

namespace sluice::tools {
namespace {

struct SizeArguments {
  bench::Case shape;
  std::string engine = "cpu";
  std::string mode = "automatic";
  std::string dispatch_codec = "bf16";
  std::string combine_codec = "bf16";
  std::string y_memory = "ordinary";
  std::size_t registered_bytes = 0;
  bool permit_single = false;
  bool as_json = false;
};

Status parse(SizeArguments& arguments) {
  if (arguments.engine != "cpu" && arguments.engine != "cuda") {
    return {StatusCode::invalid_argument,
            fmt::format("--engine {}: expected cpu or cuda", arguments.engine)};
  }
  arguments.shape.engine = arguments.engine == "cuda" ? Device::cuda : Device::cpu;
  const Result<Mode> mode = bench::parse_mode(arguments.mode);
  if (!mode) return mode.status();
  const Result<Codec> dispatch = bench::parse_codec(arguments.dispatch_codec);
  if (!dispatch) return dispatch.status();
  const Result<CodecKind> combine = bench::parse_combine_codec(arguments.combine_codec);
  if (!combine) return combine.status();
  const Result<YMemory> y_memory = bench::parse_y_memory(arguments.y_memory);
  if (!y_memory) return y_memory.status();
  arguments.shape.mode = *mode;
  arguments.shape.dispatch_codec = *dispatch;
  arguments.shape.combine_codec = *combine;
  arguments.shape.y_memory = *y_memory;
  return arguments.shape.settle();
}

void print_text(const SizeArguments& arguments, const std::vector<SizeEntry>& entries) {
  const bench::Case& shape = arguments.shape;
  fmt::print("# per rank: {}, {} ranks{}, {} tokens, hidden {}, top-{} of {} experts, {}\n",
             to_string(shape.engine), shape.ranks,
             shape.nodes > 1 ? fmt::format(" on {} nodes", shape.nodes) : "", shape.tokens,
             shape.hidden, shape.top_k, shape.experts, to_string(shape.resolved_mode()));
  for (const SizeEntry& entry : entries) {
    fmt::print("{:<40} {:>16} B {:>10.2f} MiB\n", entry.name, entry.bytes,
               static_cast<double>(entry.bytes) / (1024.0 * 1024.0));
  }
}

void print_json(const SizeArguments& arguments, const std::vector<SizeEntry>& entries) {
  const bench::Case& shape = arguments.shape;
  nlohmann::ordered_json json;
  json["shape"] = {{"engine", to_string(shape.engine)},
                   {"ranks", shape.ranks},
                   {"nodes", shape.nodes},
                   {"tokens", shape.tokens},
                   {"hidden", shape.hidden},
                   {"top_k", shape.top_k},
                   {"experts", shape.experts},
                   {"mode", to_string(shape.resolved_mode())},
                   {"dispatch_codec", bench::codec_text(shape.dispatch_codec)},
                   {"combine_codec", to_string(shape.combine_codec)}};
  json["entries"] = nlohmann::ordered_json::array();
  for (const SizeEntry& entry : entries) {
    json["entries"].push_back({{"name", entry.name}, {"bytes", entry.bytes}});
  }
  fmt::print("{}\n", json.dump(2));
}

int run(SizeArguments& arguments) {
  Status status = parse(arguments);
  if (status.ok()) {
    CommunicatorOptions options = arguments.shape.communicator_options();
    options.device = arguments.shape.engine;
    options.permit_single = arguments.permit_single;
    options.registered_bytes = arguments.registered_bytes;
    const Result<std::vector<SizeEntry>> entries =
        Communicator::sizes(arguments.shape.shape(), arguments.shape.node_sizes(), options);
    if (entries) {
      (arguments.as_json ? print_json : print_text)(arguments, *entries);
      return 0;
    }
    status = entries.status();
  }
  fmt::print(stderr, "sluice size: {}\n", status.to_string());
  return 2;
}

}  // namespace

void add_size_command(CLI::App& app, int& result) {
  CLI::App* command =
      app.add_subcommand("size", "Bytes that a communicator of a shape takes on every rank");
  auto arguments = std::make_shared<SizeArguments>();
  bench::Case& shape = arguments->shape;
  command->add_option("--ranks,--num-processes", shape.ranks, "Ranks in all")
      ->capture_default_str();
  command->add_option("--nodes", shape.nodes, "Nodes on which they are, as evenly as may be")
      ->capture_default_str();
  command->add_option("--tokens,--num-tokens", shape.tokens, "Tokens per rank, at most")
      ->capture_default_str();
  command->add_option("--hidden", shape.hidden, "Elements per row")->capture_default_str();
  command->add_option("--top-k,--num-topk", shape.top_k, "Experts per token")
      ->capture_default_str();
  command->add_option("--experts,--num-experts", shape.experts, "Experts in all")
      ->capture_default_str();
  command->add_option("--engine", arguments->engine, "cpu or cuda")->capture_default_str();
  command->add_option("--mode", arguments->mode, "latency, throughput or automatic")
      ->capture_default_str();
  command->add_option("--dispatch-codec", arguments->dispatch_codec, "As of sluice bench")
      ->capture_default_str();
  command->add_option("--combine-codec", arguments->combine_codec, "bf16, f16 or f32")
      ->capture_default_str();
  command->add_option("--y-memory", arguments->y_memory, "ordinary or registered")
      ->capture_default_str();
  command->add_option("--slot-tokens", shape.slot_tokens, "Latency mode: tokens of one call")
      ->capture_default_str();
  command->add_option("--in-flight", shape.in_flight, "Operations of a kind between their halves")
      ->capture_default_str();
  command->add_option("--registered-bytes", arguments->registered_bytes, "Registered memory")
      ->capture_default_str();
  command->add_flag("--permit-single", arguments->permit_single, "Room for reduce = single");
  command->add_flag("--json", arguments->as_json, "Print JSON");
  command->callback([=, &result] { result = run(*arguments); });
}

}  // namespace sluice::tools
