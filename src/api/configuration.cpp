// SPDX-License-Identifier: MIT
#include "api/configuration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "api/checks.hpp"
#include "codec/row_kernels.hpp"
#include "protocol/epochs.hpp"
#include "sluice/version.hpp"

namespace sluice::api {
namespace {

constexpr int kLatencyTokens = 512;

Status check_shape(const Shape& shape, int ranks) {
  if (shape.top_k < 1 || shape.top_k > kMaxTopk) {
    return invalid(fmt::format("top_k = {}, expected 1 to {}", shape.top_k, kMaxTopk));
  }
  if (shape.hidden < kHiddenMultiple || shape.hidden > kMaxHidden ||
      shape.hidden % kHiddenMultiple != 0) {
    return invalid(fmt::format("hidden = {}, expected a multiple of {} from {} to {}", shape.hidden,
                               kHiddenMultiple, kHiddenMultiple, kMaxHidden));
  }
  if (shape.max_tokens < 1 || shape.max_tokens > kMaxTokens) {
    return invalid(fmt::format("max_tokens = {}, expected 1 to {}", shape.max_tokens, kMaxTokens));
  }
  if (ranks < 1 || ranks > kMaxRanks) {
    return invalid(fmt::format("{} ranks, expected 1 to {}", ranks, kMaxRanks));
  }
  return {};
}

bool known(const CommunicatorOptions& options) noexcept {
  return options.mode <= Mode::throughput && options.layout <= Layout::expert_slab &&
         options.reduce.value_or(Reduce::rank) <= Reduce::node &&
         options.y_memory <= YMemory::registered && options.device <= Device::cuda;
}

Status check_options(const Shape& shape, const CommunicatorOptions& options) {
  if (!known(options)) {
    return invalid(
        fmt::format("mode = {}, layout = {}, reduce = {}, y_memory = {}: expected values of "
                    "their enumerations",
                    static_cast<int>(options.mode), static_cast<int>(options.layout),
                    static_cast<int>(options.reduce.value_or(Reduce::rank)),
                    static_cast<int>(options.y_memory)));
  }
  if (!codec::valid(options.dispatch_codec)) {
    return invalid(fmt::format(
        "dispatch_codec (kind {}, scale form {}, group {}) is no codec, expected "
        "bf16, f16, f32, or fp8 with a group of 32, 64, 128 or 256",
        static_cast<int>(options.dispatch_codec.kind),
        static_cast<int>(options.dispatch_codec.scale_form), options.dispatch_codec.group));
  }
  if (options.combine_codec > CodecKind::f32) {
    return invalid(fmt::format("combine_codec = {}, expected bf16, f16 or f32",
                               to_string(options.combine_codec)));
  }
  if (options.slot_tokens < 0 || options.slot_tokens > shape.max_tokens) {
    return invalid(fmt::format("slot_tokens = {}, expected 0 (default) to max_tokens = {}",
                               options.slot_tokens, shape.max_tokens));
  }
  if (options.in_flight < 1 || options.in_flight > kMaxInFlight) {
    return invalid(
        fmt::format("in_flight = {}, expected 1 to {}", options.in_flight, kMaxInFlight));
  }
  if (options.reduce == Reduce::single && !options.permit_single) {
    return invalid("reduce = single, expected permit_single to be set with it");
  }
  return {};
}

// Row numbers are 32-bit.
Status check_row_numbers(const engine::EngineConfig& config) {
  const std::int64_t rows = std::int64_t{config.ranks} * config.tokens_max *
                            std::min(config.shape.top_k, config.map.max_local_experts());
  if (rows > std::numeric_limits<std::int32_t>::max()) {
    return invalid(
        fmt::format("a rank may receive {} rows (ranks x tokens x routes), expected at most "
                    "{}",
                    rows, std::numeric_limits<std::int32_t>::max()));
  }
  return {};
}

window::WindowShape window_shape(const engine::EngineConfig& config) {
  const CommunicatorOptions& options = config.options;
  window::WindowShape window;
  window.ranks = config.ranks;
  window.top_k = config.shape.top_k;
  window.banks = protocol::banks_for(options.in_flight);
  // Dispatched rows are staged once and pulled by their readers: through caches that ranks share
  // this moves fewer bytes than a copy per (token, rank). Partial sums are read once: they are
  // pushed.
  window.dispatch_stages = config.throughput() ? options.in_flight : window.banks;
  window.combine_stages = config.throughput() ? options.in_flight : 0;
  window.tokens = config.tokens_max;
  window.combine_rows_per_token =
      options.permit_single
          ? std::max(1, std::min(config.shape.top_k, config.map.max_local_experts()))
          : 1;
  window.results_in_place = options.y_memory == YMemory::registered;
  window.dispatch_row_bytes = codec::row_bytes(options.dispatch_codec, config.shape.hidden) +
                              codec::scale_bytes(options.dispatch_codec, config.shape.hidden);
  window.combine_row_bytes =
      codec::row_bytes({options.combine_codec, ScaleForm::f32, 128}, config.shape.hidden);
  return window;
}

/// Bytes of the packets of one record.
std::size_t packet_bytes(const Codec& codec, int hidden) {
  const std::size_t row = codec::row_bytes(codec, hidden);
  if (codec.kind != CodecKind::fp8) return row;
  const int units = (hidden + window::kUnitElements - 1) / window::kUnitElements;
  const int packets =
      window::scale_packets_per_unit(codec.group, codec.scale_form == ScaleForm::ue8m0 ? 1 : 4);
  return row + static_cast<std::size_t>(units * packets) * window::kPacketBytes;
}

/// Of the longest record that a dispatch may have whose codec is none longer than the communicator's, unpadded (check_codec()).
std::size_t packet_bytes_max(const engine::EngineConfig& config) {
  const int hidden = config.shape.hidden;
  std::size_t most = packet_bytes(config.options.dispatch_codec, hidden);
  const auto consider = [&](const Codec& codec) {
    const std::size_t bytes = codec::row_bytes(codec, hidden) + codec::scale_bytes(codec, hidden);
    if (bytes <= config.window.dispatch_row_bytes) {
      most = std::max(most, packet_bytes(codec, hidden));
    }
  };
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32}) {
    consider({kind, ScaleForm::f32, 128});
  }
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0}) {
    for (const int group : {32, 64, 128, 256}) consider({CodecKind::fp8, form, group});
  }
  return most;
}

window::PacketShape packet_shape(const engine::EngineConfig& config) {
  window::PacketShape packets;
  packets.ranks = config.ranks;
  packets.top_k = config.shape.top_k;
  packets.banks = protocol::banks_for(config.options.in_flight);
  packets.tokens = config.tokens_max;
  packets.cell_tokens = config.tokens_max;
  if (config.throughput()) {
    // Slots are large: as many banks as operations in flight, or one more, since their number is odd.
    packets.banks = config.options.in_flight / 2 * 2 + 1;
    packets.cell_tokens = 0;
    packets.stages = packets.banks;
    for (int rank = 0; rank < config.ranks; ++rank) {
      packets.served =
          std::max(packets.served, static_cast<int>(config.nodes.served_by(rank).size()));
    }
  }
  packets.local_experts = config.map.max_local_experts();
  packets.combine_rows_per_token = config.options.permit_single ? config.shape.top_k : 1;
  packets.dispatch_row_bytes = packet_bytes_max(config);
  packets.combine_row_bytes =
      codec::row_bytes({config.options.combine_codec, ScaleForm::f32, 128}, config.shape.hidden);
  return packets;
}

}  // namespace

Result<engine::EngineConfig> resolve(const Shape& shape, const CommunicatorOptions& options,
                                     int rank, const routing::NodeMap& nodes) {
  const int ranks = nodes.ranks();
  if (Status status = check_shape(shape, ranks); !status.ok()) return status;
  if (Status status = check_options(shape, options); !status.ok()) return status;
  Result<routing::ExpertMap> map =
      routing::ExpertMap::create(shape.experts, ranks, options.expert_to_rank);
  if (!map) return map.status();

  engine::EngineConfig config;
  config.rank = rank;
  config.ranks = ranks;
  config.shape = shape;
  config.options = options;
  config.map = std::move(map).value();
  config.nodes = nodes;
  config.reduce = options.reduce.value_or(nodes.several() ? Reduce::node : Reduce::rank);
  if (options.mode == Mode::automatic) {
    config.options.mode = shape.max_tokens <= kLatencyTokens ? Mode::latency : Mode::throughput;
  }
  if (options.slot_tokens == 0) {
    config.options.slot_tokens = std::min(shape.max_tokens, kLatencyTokens);
  }
  config.tokens_max = config.throughput() ? shape.max_tokens : config.options.slot_tokens;
  if (Status status = check_row_numbers(config); !status.ok()) return status;
  config.window = window_shape(config);
  config.packets = packet_shape(config);
  return config;
}

std::string describe(const engine::EngineConfig& config) {
  const CommunicatorOptions& options = config.options;
  return fmt::format(
      "version = {}\ndevice = {}\nexperts = {}\ntop_k = {}\nhidden = {}\nmax_tokens = {}\nmode = "
      "{}\n"
      "layout = {}\ndispatch_codec = {}/{}/{}\ncombine_codec = {}\nreduce = {}\npermit_single = "
      "{}\n"
      "y_memory = {}\nslot_tokens = {}\nin_flight = {}\nexpert_to_rank = {}\nrank_to_node = {}\n",
      version(), to_string(options.device), config.shape.experts, config.shape.top_k,
      config.shape.hidden, config.shape.max_tokens, to_string(options.mode),
      to_string(options.layout), to_string(options.dispatch_codec.kind),
      to_string(options.dispatch_codec.scale_form), options.dispatch_codec.group,
      to_string(options.combine_codec), to_string(config.reduce), options.permit_single,
      options.y_memory == YMemory::registered ? "registered" : "ordinary", options.slot_tokens,
      options.in_flight, fmt::join(config.map.expert_to_rank(), ","),
      fmt::join(config.nodes.rank_to_node(), ","));
}

std::vector<std::string_view> parts_of(std::string_view text, char end) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t length = std::min(text.find(end, begin), text.size()) - begin;
    parts.push_back(text.substr(begin, length));
    begin += length + 1;
  }
  return parts;
}

// The first line in which two descriptions differ, as each has it; of a list, the first such item.
std::pair<std::string, std::string> difference(std::string_view one, std::string_view other) {
  const std::vector<std::string_view> lines = parts_of(one, '\n');
  const std::vector<std::string_view> others = parts_of(other, '\n');
  const auto [line, other_line] =
      std::mismatch(lines.begin(), lines.end() - 1, others.begin(), others.end() - 1);
  const std::size_t values = line->find(" = ");
  if (line->find(',') == line->npos || values != other_line->find(" = ")) {
    return {std::string(*line), std::string(*other_line)};
  }
  const std::vector<std::string_view> items = parts_of(line->substr(values + 3), ',');
  const std::vector<std::string_view> other_items = parts_of(other_line->substr(values + 3), ',');
  const auto [item, other_item] =
      std::mismatch(items.begin(), items.end() - 1, other_items.begin(), other_items.end() - 1);
  const std::string place = fmt::format("{}[{}] = ", line->substr(0, values), item - items.begin());
  return {place + std::string(*item), place + std::string(*other_item)};
}

Status compare(const std::vector<std::string>& descriptions) {
  for (std::size_t rank = 1; rank < descriptions.size(); ++rank) {
    if (descriptions[rank] == descriptions[0]) continue;
    const auto [first, second] = difference(descriptions[0], descriptions[rank]);
    return {StatusCode::mismatch,
            fmt::format("ranks disagree on the communicator: rank 0 has '{}', rank {} has '{}'",
                        first, rank, second)};
  }
  return {};
}

std::uint64_t fingerprint_of(const std::string& description) noexcept {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, 64 bits
  for (const char c : description) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  return hash;
}

window::HandleLayout handle_layout(const engine::EngineConfig& config) noexcept {
  return {config.ranks, config.shape.top_k, config.local_experts(), config.tokens_max};
}

}  // namespace sluice::api
