// SPDX-License-Identifier: MIT
#include "print_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "contestant.hpp"
#include "numbers.hpp"
#include "summary_json.hpp"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kOperationNames = {"dispatch", "combine", "pair"};

/// Every host once, in the order of ranks.
std::vector<std::string> distinct(const std::vector<std::string>& hosts) {
  std::vector<std::string> seen;
  for (const std::string& host : hosts) {
    if (std::find(seen.begin(), seen.end(), host) == seen.end()) seen.push_back(host);
  }
  return seen;
}

void print_raw(const NetworkResult& network, RawSeries series, const std::string& what,
               const std::string& speed, std::FILE* out) {
  const Summary& us = network.raw(series);
  fmt::print(out, "  {:<54} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>7}\n", what, us.min, us.p50,
             us.p99, us.max, speed);
}

}  // namespace

void print_network_head(const NetworkResult& network, std::FILE* out) {
  fmt::print(
      out,
      "# between nodes: {}, {}, {} rail{}, chunks of {} B; {} network namespace{}, host{} {}\n",
      network.provider, network.signals, network.rails, network.rails == 1 ? "" : "s",
      network.chunk_bytes, network.network_namespaces, network.network_namespaces == 1 ? "" : "s",
      distinct(network.hosts).size() == 1 ? "" : "s", fmt::join(distinct(network.hosts), ", "));
}

void print_network(const NetworkResult& network, std::FILE* out) {
  fmt::print(out,
             "#\n# raw puts, {} rounds, half of them before the operations and half after; GB/s of "
             "the busiest node\n# {:<54} {:>10} {:>10} {:>10} {:>10} {:>7}\n",
             network.rounds, "", "min (us)", "p50 (us)", "p99 (us)", "max (us)", "GB/s");
  print_raw(network, RawSeries::stream,
            fmt::format("every rank {} B to its rail peers", network.stream_bytes),
            fmt::format("{:.2f}", network.stream.gigabytes_per_second()), out);
  const double busy_us = network.raw(RawSeries::stream_busy).p50;
  print_raw(network, RawSeries::stream_busy, "the same, every rank copies memory meanwhile",
            fmt::format("{:.2f}", network.stream.gigabytes_per_second(busy_us)), out);
  for (const int operation : {kDispatch, kCombine}) {
    const NetworkOperation& of = network.operations[static_cast<std::size_t>(operation)];
    print_raw(network,
              operation == kDispatch ? RawSeries::dispatch_bytes : RawSeries::combine_bytes,
              fmt::format("every rank the bytes of its {}",
                          kOperationNames[static_cast<std::size_t>(operation)]),
              fmt::format("{:.2f}", of.gigabytes_per_second(of.puts_us)), out);
  }
  print_raw(network, RawSeries::one_way_record,
            fmt::format("one way, a record of {} B, two ranks", network.record_bytes), "", out);
  print_raw(network, RawSeries::one_way_word, "one way, 8 B, two ranks", "", out);
  const auto rate = [&](RawSeries series) {
    return fmt::format("{:.2f}", static_cast<double>(network.stream_bytes) /
                                     std::max(network.raw(series).p50, 1e-3) * 1e-3);
  };
  if (network.staged) {
    const std::string what = fmt::format("every rank {} B from", network.stream_bytes);
    print_raw(network, RawSeries::stage_out, what + " its GPU to its host",
              rate(RawSeries::stage_out), out);
    print_raw(network, RawSeries::stage_in, what + " its host to its GPU",
              rate(RawSeries::stage_in), out);
  }
  for (const int operation : {kDispatch, kCombine}) {
    if (!network.staged) break;
    for (std::size_t way = 0; way < kBarePieces.size(); ++way) {
      if (network.raw(bare_series(operation, way)).p50 <= 0.0) continue;
      print_raw(network, bare_series(operation, way),
                fmt::format("the bare way of a {}, in {} piece{} to each",
                            kOperationNames[static_cast<std::size_t>(operation)], kBarePieces[way],
                            kBarePieces[way] == 1 ? "" : "s"),
                "", out);
    }
  }
  fmt::print(out, "#\n# {:<9} {:>13} {:>13} {:>13} {:>10} {:>12} {:>12} {:>12}\n", "between", "put",
             "naive", "busiest node", "GB/s", "of raw", "times puts", "times a");
  fmt::print(out, "# {:<9} {:>13} {:>13} {:>13} {:>10} {:>12} {:>12} {:>12}\n", "nodes", "(B)",
             "(B)", "(B)", "(p50)", "bandwidth", "of its bytes", "record's way");
  for (const int operation : {kDispatch, kCombine, kPair}) {
    const NetworkOperation& of = network.operations[static_cast<std::size_t>(operation)];
    fmt::print(out, "  {:<9} {:>13} {:>13} {:>13} {:>10.2f} {:>10.1f} % {:>12.2f} {:>12.2f}\n",
               kOperationNames[static_cast<std::size_t>(operation)], whole(of.bytes),
               whole(of.naive_bytes), whole(of.busiest_node_bytes), of.gigabytes_per_second(),
               100.0 * network.share_of_stream(operation), network.times_puts(operation),
               network.times_one_way(operation));
  }
  fmt::print(out, "#\n# {:<9} {:>13} {:>10} {:>12} {:>12}\n", "network", "first put to", "GB/s",
             "of raw", "of raw");
  fmt::print(out, "# {:<9} {:>13} {:>10} {:>12} {:>12}\n", "alone", "last arrival", "(p50)",
             "bandwidth", "with copies");
  for (const int operation : {kDispatch, kCombine, kPair}) {
    const NetworkOperation& of = network.operations[static_cast<std::size_t>(operation)];
    fmt::print(out, "  {:<9} {:>10.1f} us {:>10.2f} {:>10.1f} % {:>10.1f} %\n",
               kOperationNames[static_cast<std::size_t>(operation)], of.network_us,
               of.gigabytes_per_second(of.network_us),
               100.0 * network.network_share_of_stream(operation),
               100.0 * network.network_share_of_busy_stream(operation));
  }
  for (const int operation : {kDispatch, kCombine, kPair}) {
    if (!network.staged) break;
    fmt::print(out,
               "# {} staged: {:.2f} times {:.1f} us, which are the longest of copies out, network "
               "and copies in, and {:.0f} us a way; {:.2f} times the bare way\n",
               kOperationNames[static_cast<std::size_t>(operation)],
               network.times_staged_floor(operation), network.staged_floor_us(operation),
               kStagedWayUs, network.times_bare_way(operation));
  }
  fmt::print(out,
             "# the time of an operation, but for the network alone, is all of it (p50), its work "
             "within nodes included; a "
             "pair has two ways\n");
}

Json network_json(const NetworkResult& network) {
  Json json = {{"provider", network.provider}, {"signals", network.signals},
               {"rails", network.rails},       {"chunk_bytes", network.chunk_bytes},
               {"hosts", network.hosts},       {"network_namespaces", network.network_namespaces},
               {"rounds", network.rounds}};
  Json& raw = json["raw"];
  raw["stream_bytes"] = network.stream_bytes;
  raw["stream_us"] = summary_json(network.raw(RawSeries::stream));
  raw["stream_busy_us"] = summary_json(network.raw(RawSeries::stream_busy));
  raw["stream_gb_per_s"] = network.stream.gigabytes_per_second();
  raw["dispatch_bytes_us"] = summary_json(network.raw(RawSeries::dispatch_bytes));
  raw["combine_bytes_us"] = summary_json(network.raw(RawSeries::combine_bytes));
  raw["record_bytes"] = network.record_bytes;
  raw["one_way_record_us"] = summary_json(network.raw(RawSeries::one_way_record));
  raw["one_way_word_us"] = summary_json(network.raw(RawSeries::one_way_word));
  if (network.staged) {
    raw["stage_out_us"] = summary_json(network.raw(RawSeries::stage_out));
    raw["stage_in_us"] = summary_json(network.raw(RawSeries::stage_in));
    for (const int operation : {kDispatch, kCombine}) {
      for (std::size_t way = 0; way < kBarePieces.size(); ++way) {
        raw[fmt::format("bare_{}_in_{}_us", kOperationNames[static_cast<std::size_t>(operation)],
                        kBarePieces[way])] = summary_json(network.raw(bare_series(operation, way)));
      }
    }
  }
  for (const int operation : {kDispatch, kCombine, kPair}) {
    const NetworkOperation& of = network.operations[static_cast<std::size_t>(operation)];
    json[kOperationNames[static_cast<std::size_t>(operation)]] = {
        {"bytes", whole(of.bytes)},
        {"naive_bytes", whole(of.naive_bytes)},
        {"busiest_node_bytes", whole(of.busiest_node_bytes)},
        {"gb_per_s", of.gigabytes_per_second()},
        {"share_of_raw_bandwidth", network.share_of_stream(operation)},
        {"network_us", of.network_us},
        {"network_share_of_raw_bandwidth", network.network_share_of_stream(operation)},
        {"network_share_of_raw_bandwidth_with_copies",
         network.network_share_of_busy_stream(operation)},
        {"times_puts_of_its_bytes", network.times_puts(operation)},
        {"times_one_way_record", network.times_one_way(operation)}};
    if (!network.staged) continue;
    Json& of_json = json[kOperationNames[static_cast<std::size_t>(operation)]];
    of_json["staged_floor_us"] = network.staged_floor_us(operation);
    of_json["times_staged_floor"] = network.times_staged_floor(operation);
    of_json["bare_way_us"] = network.operations[static_cast<std::size_t>(operation)].bare_us;
    of_json["bare_way_pieces"] =
        network.operations[static_cast<std::size_t>(operation)].bare_pieces;
    of_json["times_bare_way"] = network.times_bare_way(operation);
  }
  return json;
}

}  // namespace sluice::bench
