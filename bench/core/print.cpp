// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "gpu.hpp"
#include "numbers.hpp"
#include "print_network.hpp"
#include "results.hpp"
#include "summary_json.hpp"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes per microsecond are megabytes per second.
double gigabytes_per_second(double bytes, double us) {
  return us > 0.0 ? bytes / us * 1e-3 : 0.0;
}

struct Line {
  const char* operation;
  const Summary& us;
  double wire;
  double naive;
};

std::vector<Line> lines_of(const ContestantResult& result) {
  return {{"dispatch", result.dispatch_us, result.dispatch_wire_bytes, result.dispatch_naive_bytes},
          {"combine", result.combine_us, result.combine_wire_bytes, result.combine_naive_bytes},
          {"pair", result.pair_us, result.wire_bytes(), result.naive_bytes()}};
}

void print_head(const Results& results, std::FILE* out) {
  const Machine& machine = results.machine;
  const Case& bench_case = results.bench_case;
  fmt::print(out, "# sluice {}, {} row kernels, {}, {}\n", machine.version, machine.row_kernels,
             machine.compiler, machine.build);
  fmt::print(out, "# {}, {} processors, {:.1f} GiB, {}\n", machine.cpu, machine.cpus,
             static_cast<double>(machine.memory_bytes) / (1024.0 * 1024.0 * 1024.0),
             machine.kernel);
  if (!machine.gpu.empty()) fmt::print(out, "# {}\n", machine.gpu);
  fmt::print(
      out,
      "# {} ranks{}, {} tokens{}, hidden {}, top-{} of {} experts, {}, {}, dispatch {}, combine "
      "{}, reduce {}, routing {}\n",
      bench_case.ranks,
      bench_case.nodes > 1 ? fmt::format(" on {} nodes", bench_case.nodes) : std::string(),
      bench_case.tokens,
      bench_case.rank_tokens.empty()
          ? std::string()
          : fmt::format(" at most ({})", fmt::join(bench_case.rank_tokens, ", ")),
      bench_case.hidden, bench_case.top_k, bench_case.experts, to_string(bench_case.layout),
      to_string(bench_case.resolved_mode()), codec_text(bench_case.dispatch_codec),
      to_string(bench_case.combine_codec), to_string(bench_case.resolved_reduce()),
      bench_case.routing.text());
  fmt::print(
      out, "# {} iterations after {} of warm-up, {} data sets, seed {}; x{} and y in {} memory\n",
      bench_case.iterations, bench_case.warmup, bench_case.sets, bench_case.seed,
      bench_case.encoded ? " (encoded)" : "", bench_case.registered ? "registered" : "ordinary");
  if (bench_case.engine == Device::cuda) {
    fmt::print(out,
               "# a sample is the mean of {} operations in a row, by events, after {} for a common "
               "start; the slowest rank counts; combine is pair - dispatch; weights to {}\n",
               bench_case.chain, kHeadOperations,
               bench_case.weights_at_combine ? "combine" : "dispatch");
  }
  if (results.network) print_network_head(*results.network, out);
  for (const std::string& warning : machine.warnings(bench_case.ranks)) {
    fmt::print(out, "# note: {}\n", warning);
  }
}

void print_ratio(const char* label, const Ratio& ratio, std::FILE* out) {
  fmt::print(out, "# {}{}{}: dispatch {:.2f}, combine {:.2f}, pair {:.2f}\n", label,
             ratio.way.empty() ? "" : ", ", ratio.way, ratio.dispatch, ratio.combine, ratio.pair);
}

void print_gemm(const GemmResult& gemm, std::FILE* out) {
  fmt::print(
      out,
      "#\n# a GEMM between the halves of an operation: {} x {} x {}, bf16, {}, {:.0f} TFLOP/s; "
      "alone it is timed twice, {:.2f} % apart\n",
      gemm.size.m, gemm.size.n, gemm.size.k, gemm.about, gemm.tflops(), gemm.noise_percent());
  fmt::print(out, "# {:<9} {:>10} {:>10} {:>9} {:>12} {:>9} {:>12} {:>12} {:>14}\n", "", "alone",
             "between", "slowed", "peers late", "slowed", "halves only", "all of it",
             "beyond alone");
  for (const int operation : {kDispatch, kCombine}) {
    const GemmTimes& times = gemm.times[static_cast<std::size_t>(operation)];
    const Excess between = Excess::of(times, GemmPart::between);
    const Excess late = Excess::of(times, GemmPart::late);
    const Excess whole = Excess::of(times, GemmPart::whole);
    const std::vector<double>& halves = times.of(GemmPart::halves);
    fmt::print(out,
               "  {:<9} {:>10.2f} {:>10.2f} {:>7.2f} % {:>12.2f} {:>7.2f} % {:>12.2f} {:>12.2f} "
               "{:>14.2f}\n",
               operation == kDispatch ? "dispatch" : "combine", between.alone_us, between.part_us,
               between.percent(), late.part_us, late.percent(),
               *std::max_element(halves.begin(), halves.end()), whole.part_us, whole.us());
  }
  fmt::print(
      out,
      "#\n# the same GEMM on a stream of its own, beside a whole call on one of higher priority\n"
      "# {:<9} {:>10} {:>10} {:>9} {:>12} {:>10} {:>9} {:>12}\n",
      "", "alone", "beside", "slowed", "call alone", "with it", "slowed", "both");
  for (const int operation : {kDispatch, kCombine}) {
    const GemmTimes& times = gemm.times[static_cast<std::size_t>(operation)];
    const Excess beside = Excess::of(times, GemmPart::beside);
    const Excess with = Excess::of(times, GemmPart::with, GemmPart::call);
    const std::vector<double>& both = times.of(GemmPart::both);
    fmt::print(out,
               "  {:<9} {:>10.2f} {:>10.2f} {:>7.2f} % {:>12.2f} {:>10.2f} {:>7.2f} % {:>12.2f}\n",
               operation == kDispatch ? "dispatch" : "combine", beside.alone_us, beside.part_us,
               beside.percent(), with.alone_us, with.part_us, with.percent(),
               *std::max_element(both.begin(), both.end()));
  }
}

Json ratio_json(const Ratio& ratio) {
  return {{"dispatch", ratio.dispatch}, {"combine", ratio.combine}, {"pair", ratio.pair}};
}

Json gemm_json(const GemmResult& gemm, bool checked) {
  Json json = {{"m", gemm.size.m},
               {"n", gemm.size.n},
               {"k", gemm.size.k},
               {"about", gemm.about},
               {"tflops", gemm.tflops()},
               {"noise_percent", gemm.noise_percent()},
               {"wrong", checked ? Json(gemm.wrong) : Json(nullptr)}};
  for (const int operation : {kDispatch, kCombine}) {
    const GemmTimes& times = gemm.times[static_cast<std::size_t>(operation)];
    Json& of = json[operation == kDispatch ? "dispatch" : "combine"];
    for (std::size_t part = 0; part < kGemmParts; ++part) {
      of[fmt::format("{}_us", kGemmPartNames[part])] = times.us[part];
    }
    of["slowed_percent"] = Excess::of(times, GemmPart::between).percent();
    of["late_slowed_percent"] = Excess::of(times, GemmPart::late).percent();
    of["beyond_alone_us"] = Excess::of(times, GemmPart::whole).us();
    of["beside_slowed_percent"] = Excess::of(times, GemmPart::beside).percent();
    of["with_slowed_percent"] = Excess::of(times, GemmPart::with, GemmPart::call).percent();
  }
  return json;
}

/// Null when void; with several ways one for each, by its name.
Json ratios_json(const std::vector<Ratio>& ratios) {
  Json by_way = nullptr;
  for (const Ratio& ratio : ratios) {
    if (ratio.way.empty()) return ratio_json(ratio);
    by_way[ratio.way] = ratio_json(ratio);
  }
  return by_way;
}

Json case_json(const Case& bench_case) {
  return {{"engine", to_string(bench_case.engine)},
          {"ranks", bench_case.ranks},
          {"tokens", bench_case.tokens},
          {"rank_tokens", bench_case.rank_tokens},
          {"hidden", bench_case.hidden},
          {"top_k", bench_case.top_k},
          {"experts", bench_case.experts},
          {"layout", to_string(bench_case.layout)},
          {"mode", to_string(bench_case.resolved_mode())},
          {"dispatch_codec", codec_text(bench_case.dispatch_codec)},
          {"combine_codec", to_string(bench_case.combine_codec)},
          {"nodes", bench_case.nodes},
          {"reduce", to_string(bench_case.resolved_reduce())},
          {"y_memory", y_memory_text(bench_case.y_memory)},
          {"registered", bench_case.registered},
          {"encoded", bench_case.encoded},
          {"slot_tokens", bench_case.slot_tokens},
          {"slab_rows", bench_case.slab_rows},
          {"in_flight", bench_case.in_flight},
          {"blocks", bench_case.blocks},
          {"routing", bench_case.routing.text()},
          {"sets", bench_case.sets},
          {"iterations", bench_case.iterations},
          {"chain", bench_case.engine == Device::cuda ? bench_case.chain : 1},
          {"singles", bench_case.singles},
          {"combines", bench_case.combines},
          {"late_us", bench_case.late_us},
          {"weights", bench_case.weights_at_combine ? "combine" : "dispatch"},
          {"warmup", bench_case.warmup},
          {"seed", bench_case.seed}};
}

Json machine_json(const Machine& machine, int ranks) {
  return {{"cpu", machine.cpu},
          {"cpus", machine.cpus},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"compiler", machine.compiler},
          {"build", machine.build},
          {"version", machine.version},
          {"row_kernels", machine.row_kernels},
          {"gpu", machine.gpu},
          {"load", machine.load},
          {"warnings", machine.warnings(ranks)}};
}

/// On a GPU operations are counted as they run, replays of graphs too, so there is no mean of those
/// that were called; and bytes that are not shown are not none.
bool counts_bytes(const Results& results) {
  return results.bench_case.engine == Device::cpu;
}

Json result_json(const ContestantResult& result, bool checked, bool counts) {
  const auto counted = [counts](double bytes) { return counts ? Json(whole(bytes)) : Json(); };
  return {{"name", result.name},
          {"dispatch_us", summary_json(result.dispatch_us)},
          {"combine_us", summary_json(result.combine_us)},
          {"pair_us", summary_json(result.pair_us)},
          {"wire_bytes", counted(result.wire_bytes())},
          {"naive_bytes", whole(result.naive_bytes())},
          {"dispatch_wire_bytes", counted(result.dispatch_wire_bytes)},
          {"combine_wire_bytes", counted(result.combine_wire_bytes)},
          {"dispatch_naive_bytes", whole(result.dispatch_naive_bytes)},
          {"combine_naive_bytes", whole(result.combine_naive_bytes)},
          // Nothing was looked at without --check, and 0 would say that it was.
          {"wrong", checked ? Json(result.wrong) : Json(nullptr)}};
}

}  // namespace

void print_table(const Results& results, std::FILE* out) {
  print_head(results, out);
  fmt::print(out, "#\n# {:<18} {:<9} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7}\n", "",
             "", "wire", "naive", "min", "p50", "p99", "max", "GB/s", "#wrong");
  fmt::print(out, "# {:<18} {:<9} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>7}\n", "name",
             "operation", "(B)", "(B)", "(us)", "(us)", "(us)", "(us)", "(p50)");
  const int digits = results.bench_case.engine == Device::cuda ? 2 : 1;
  for (const ContestantResult& result : results.contestants) {
    const std::string wrong = results.checked ? std::to_string(result.wrong) : "N/A";
    for (const Line& line : lines_of(result)) {
      const bool counted = counts_bytes(results);
      fmt::print(
          out,
          "  {:<18} {:<9} {:>12} {:>12} {:>10.{}f} {:>10.{}f} {:>10.{}f} {:>10.{}f} {:>7} "
          "{:>7}\n",
          result.name, line.operation, counted ? std::to_string(whole(line.wire)) : "-",
          whole(line.naive), line.us.min, digits, line.us.p50, digits, line.us.p99, digits,
          line.us.max, digits,
          counted ? fmt::format("{:.2f}", gigabytes_per_second(line.wire, line.us.p50)) : "-",
          wrong);
    }
  }
  for (const ContestantResult& result : results.contestants) {
    if (!result.combine_alone_us) continue;
    const Summary& us = *result.combine_alone_us;
    fmt::print(out, "# {}: combines alone: min {:.2f}, p50 {:.2f}, p99 {:.2f}, max {:.2f} us\n",
               result.name, us.min, us.p50, us.p99, us.max);
  }
  for (const ContestantResult& result : results.contestants) {
    if (!result.single_us) continue;
    const Summary& us = *result.single_us;
    fmt::print(
        out,
        "# {}: {} pairs one by one, by the device's clock and with its reading between them: "
        "min {:.2f}, p50 {:.2f}, p99 {:.2f}, max {:.2f} us; p99 is {:.2f} of p50\n",
        result.name, results.bench_case.singles, us.min, us.p50, us.p99, us.max,
        us.p50 > 0.0 ? us.p99 / us.p50 : 0.0);
  }
  const ContestantResult* all_late = results.find(Role::late_all);
  const ContestantResult* one_late = results.find(Role::late_one);
  if (all_late != nullptr && one_late != nullptr) {
    fmt::print(
        out,
        "# having waited {} us for one rank: dispatch {:+.2f}, combine {:+.2f}, pair {:+.2f} "
        "us, against all being late\n",
        results.bench_case.late_us, one_late->dispatch_us.p50 - all_late->dispatch_us.p50,
        one_late->combine_us.p50 - all_late->combine_us.p50,
        one_late->pair_us.p50 - all_late->pair_us.p50);
  }
  for (const FloorPart& part : results.floor) {
    fmt::print(out, "  {:<18} {:<35} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", "peer's floor",
               part.name, part.us.min, part.us.p50, part.us.p99, part.us.max);
  }
  const ContestantResult* peer = results.find(Role::peer);
  if (peer != nullptr && !peer->about.empty()) fmt::print(out, "# peer: {}\n", peer->about);
  if (peer != nullptr && !results.floor.empty()) {
    fmt::print(out, "# peer's floor: {:.1f} us; its pair takes {:.2f} of it (limit {})\n",
               results.floor_us(), peer->pair_us.p50 / results.floor_us(), kPeerLimit);
    if (results.bench_case.layout == Layout::rank_major) {
      fmt::print(out, "# the peer sends one row per route both ways, also in rank_major\n");
    }
  }
  for (const Ratio& ratio : results.ratios) print_ratio("peer's p50 over ours", ratio, out);
  if (results.ratio_per_rank) {
    print_ratio("against one row per (token, rank)", *results.ratio_per_rank, out);
  }
  if (!results.void_reason.empty()) {
    fmt::print(out, "# VOID comparison: {}\n", results.void_reason);
  }
  if (results.gemm) print_gemm(*results.gemm, out);
  if (results.network) print_network(*results.network, out);
  const std::int64_t wrong = results.wrong();
  if (wrong != 0) {
    fmt::print(out, "# FAILED: {} values are wrong\n", wrong);
  } else {
    fmt::print(
        out, "# {}\n",
        results.checked ? "OK: every value is right" : "done, nothing was checked (see --check)");
  }
}

std::string to_json(const Results& results) {
  Json document;
  document["machine"] = machine_json(results.machine, results.bench_case.ranks);
  document["case"] = case_json(results.bench_case);
  document["command"] = results.command;
  document["results"] = Json::array();
  for (const ContestantResult& result : results.contestants) {
    document["results"].push_back(result_json(result, results.checked, counts_bytes(results)));
    if (!result.about.empty()) document["results"].back()["about"] = result.about;
    if (result.combine_alone_us) {
      document["results"].back()["combine_alone_us"] = summary_json(*result.combine_alone_us);
    }
    if (result.single_us) {
      document["results"].back()["single_pair_us"] = summary_json(*result.single_us);
    }
  }
  if (!results.floor.empty()) {
    Json floor;
    for (const FloorPart& part : results.floor) floor[part.name] = summary_json(part.us);
    document["floor_us"] = {
        {"parts", floor}, {"total_p50", results.floor_us()}, {"limit", kPeerLimit}};
  }
  if (results.network) document["network"] = network_json(*results.network);
  if (results.gemm) document["gemm"] = gemm_json(*results.gemm, results.checked);
  if (results.find(Role::peer) != nullptr) {
    document["ratio"] = ratios_json(results.ratios);
    if (results.ratio_per_rank) document["ratio_per_rank"] = ratio_json(*results.ratio_per_rank);
    if (!results.void_reason.empty()) document["void"] = results.void_reason;
  }
  return document.dump(2) + "\n";
}

std::string to_csv(const Results& results) {
  std::string text = "name,operation,min_us,p50_us,p99_us,max_us,wire_bytes,naive_bytes,wrong\n";
  for (const ContestantResult& result : results.contestants) {
    for (const Line& line : lines_of(result)) {
      text += fmt::format("\"{}\",{},{:.3f},{:.3f},{:.3f},{:.3f},{},{},{}\n", result.name,
                          line.operation, line.us.min, line.us.p50, line.us.p99, line.us.max,
                          counts_bytes(results) ? std::to_string(whole(line.wire)) : "",
                          whole(line.naive), results.checked ? std::to_string(result.wrong) : "");
    }
  }
  for (const FloorPart& part : results.floor) {
    text += fmt::format("floor,{},{:.3f},{:.3f},{:.3f},{:.3f},,,\n", part.name, part.us.min,
                        part.us.p50, part.us.p99, part.us.max);
  }
  return text;
}

}  // namespace sluice::bench
