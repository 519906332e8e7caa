// SPDX-License-Identifier: MIT
#include "case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "codec/row_kernels.hpp"
#include "distribution.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

Status bad(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

/// strtod would accept spaces and ignore what follows; a benchmark's argument must be all number.
bool parse_number(std::string_view text, double& value) {
  const std::from_chars_result result =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

template <typename Value, std::size_t n>
Result<Value> pick(std::string_view what, std::string_view text, const Named<Value> (&names)[n]) {
  std::string choices;
  for (const Named<Value>& named : names) {
    if (named.name == text) return named.value;
    choices += choices.empty() ? "" : ", ";
    choices += named.name;
  }
  return bad(fmt::format("unknown {} '{}', expected one of: {}", what, text, choices));
}

/// Of a GEMM: rows of 16 bytes, and half of M, too.
constexpr int kGemmMultiple = 16;
constexpr int kGemmMax = 32768;
constexpr int kGroupsMax = 1024;

Status in_range(std::string_view what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return bad(fmt::format("{} is {}, expected {} to {}", what, value, low, high));
}

}  // namespace

Result<RoutingSpec> RoutingSpec::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  RoutingSpec spec;
  if (name == "uniform") {
    if (colon != std::string_view::npos) return bad("routing 'uniform' takes no parameter");
    return spec;
  }
  const Result<Distribution> distribution =
      pick<Distribution>("routing", name,
                         {{"uniform", Distribution::uniform},
                          {"zipf", Distribution::zipf},
                          {"hot", Distribution::hot},
                          {"grouped", Distribution::grouped}});
  if (!distribution) return distribution.status();
  spec.distribution = *distribution;
  std::string_view parameter =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const std::size_t slash = parameter.find('/');
  if (spec.distribution == Distribution::grouped && slash != std::string_view::npos) {
    double groups = 0.0;
    if (!parse_number(parameter.substr(slash + 1), groups) || groups < 1.0 || groups > kGroupsMax ||
        groups != std::floor(groups)) {
      return bad(fmt::format("routing '{}': of how many groups must be a whole number from 1 to {}",
                             text, kGroupsMax));
    }
    spec.groups = static_cast<int>(groups);
    parameter = parameter.substr(0, slash);
  }
  if (!parse_number(parameter, spec.parameter) || !std::isfinite(spec.parameter)) {
    return bad(
        fmt::format("routing '{}' needs a number after the colon, as in zipf:1.2, hot:4 or "
                    "grouped:4",
                    text));
  }
  const bool whole = spec.parameter == std::floor(spec.parameter) && spec.parameter >= 1.0;
  if (spec.distribution == Distribution::zipf ? spec.parameter < 0.0 : !whole) {
    return bad(fmt::format(
        "routing '{}': the parameter must be {}", text,
        spec.distribution == Distribution::zipf ? "at least 0" : "a whole number of 1 or more"));
  }
  return spec;
}

std::string RoutingSpec::text() const {
  switch (distribution) {
    case Distribution::uniform: return "uniform";
    case Distribution::zipf: return fmt::format("zipf:{}", parameter);
    case Distribution::hot: return fmt::format("hot:{:.0f}", parameter);
    case Distribution::grouped:
      return groups == RoutingSpec{}.groups ? fmt::format("grouped:{:.0f}", parameter)
                                            : fmt::format("grouped:{:.0f}/{}", parameter, groups);
  }
  return "unknown";
}

Result<GemmSize> GemmSize::parse(std::string_view text) {
  GemmSize size;
  if (text == "default") return size;
  std::string_view rest = text;
  for (int* const side : {&size.m, &size.n, &size.k}) {
    const std::size_t length = std::min(rest.find(','), rest.size());
    double number = 0.0;
    if ((length < rest.size()) != (side != &size.k) ||
        !parse_number(rest.substr(0, length), number) || number < kGemmMultiple ||
        number > kGemmMax || std::fmod(number, kGemmMultiple) != 0.0) {
      return bad(
          fmt::format("'{}': expected M,N,K, each a multiple of {} and at most {}, or default",
                      text, kGemmMultiple, kGemmMax));
    }
    *side = static_cast<int>(number);
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return size;
}

Mode Case::resolved_mode() const noexcept {
  if (mode != Mode::automatic) return mode;
  return tokens <= 512 ? Mode::latency : Mode::throughput;
}

Status Case::settle() {
  if (!rank_tokens.empty()) {
    if (rank_tokens.size() != static_cast<std::size_t>(ranks)) {
      return bad(fmt::format("--rank-tokens has {} numbers, expected one for each of {} ranks",
                             rank_tokens.size(), ranks));
    }
    for (const int own : rank_tokens) {
      if (Status status = in_range("--rank-tokens", own, 0, kMaxTokens); !status) return status;
    }
    tokens = *std::max_element(rank_tokens.begin(), rank_tokens.end());
  }
  for (const Status& status :
       {in_range("--ranks", ranks, 1, kMaxRanks),
        in_range(rank_tokens.empty() ? "--tokens" : "the largest of --rank-tokens", tokens, 1,
                 kMaxTokens),
        in_range("--hidden", hidden, kHiddenMultiple, kMaxHidden),
        in_range("--experts", experts, 1, kMaxExperts),
        in_range("--top-k", top_k, 1, std::min(kMaxTopk, experts)),
        in_range("--slot-tokens", slot_tokens, 0, kMaxTokens),
        in_range("--in-flight", in_flight, 1, kMaxInFlight),
        in_range("--blocks", blocks, 0, 1 << 16),
        in_range("--slab-rows", slab_rows, 0, std::int64_t{kMaxRanks} * kMaxTokens),
        in_range("--sets", sets, 1, 1024), in_range("--iterations", iterations, 1, 1'000'000),
        in_range("--warmup", warmup, 0, 1'000'000), in_range("--chain", chain, 1, 10'000),
        in_range("--singles", singles, 0, 1'000'000), in_range("--late", late_us, 0, 1'000'000)}) {
    if (!status) return status;
  }
  if (hidden % kHiddenMultiple != 0) {
    return bad(fmt::format("--hidden is {}, expected a multiple of {}", hidden, kHiddenMultiple));
  }
  if (!codec::valid(dispatch_codec)) {
    return bad(fmt::format("--dispatch-codec {}: the group must be 32, 64, 128 or 256",
                           codec_text(dispatch_codec)));
  }
  if (encoded && dispatch_codec.kind != CodecKind::fp8) {
    return bad(fmt::format("--encoded with --dispatch-codec {}, expected fp8",
                           codec_text(dispatch_codec)));
  }
  if (weights_at_combine && layout == Layout::rank_major) {
    return bad("--weights combine needs an expert layout: in rank_major y is weighted already");
  }
  if (nodes < 1 || nodes > ranks) {
    return bad(fmt::format("--nodes is {}, expected 1 to --ranks {}", nodes, ranks));
  }
  if (layout == Layout::rank_major && reduce == Reduce::single) {
    return bad("--reduce single needs an expert layout: in rank_major y already is a rank's sum");
  }
  if (!(deadline_s > 0.0) || deadline_s > 86400.0) {
    return bad(fmt::format("--deadline is {}, expected more than 0 and at most 86400 seconds",
                           deadline_s));
  }
  if (resolved_mode() == Mode::latency && slot_tokens == 0 && tokens > 512) slot_tokens = tokens;
  return check_distribution(*this);
}

int Case::tokens_of(int rank) const noexcept {
  return rank_tokens.empty() ? tokens : rank_tokens[static_cast<std::size_t>(rank)];
}

int Case::first_expert(int rank) const noexcept {
  return rank * (experts / ranks) + std::min(rank, experts % ranks);
}

int Case::local_experts(int rank) const noexcept {
  return experts / ranks + (rank < experts % ranks ? 1 : 0);
}

int Case::rank_of_expert(int expert) const noexcept {
  const int each = experts / ranks;
  const int larger = (experts % ranks) * (each + 1);
  if (expert < larger) return expert / (each + 1);
  return experts % ranks + (expert - larger) / each;
}

std::int64_t Case::slab_rows_or_default() const noexcept {
  return slab_rows > 0 ? slab_rows : std::int64_t{ranks} * tokens;
}

std::size_t Case::x_stride() const noexcept {
  if (!encoded) return static_cast<std::size_t>(hidden) * 2;
  constexpr std::size_t kAlignment = 128;
  const std::size_t record =
      codec::row_bytes(dispatch_codec, hidden) + codec::scale_bytes(dispatch_codec, hidden);
  return (record + kAlignment - 1) / kAlignment * kAlignment;
}

Shape Case::shape() const noexcept {
  return Shape{experts, top_k, hidden, tokens};
}

std::vector<int> Case::node_sizes() const {
  std::vector<int> sizes;
  for (int node = 0; node < nodes; ++node) {
    sizes.push_back(ranks / nodes + (node < ranks % nodes ? 1 : 0));
  }
  return sizes;
}

int Case::node_of(int rank) const {
  int node = 0;
  for (const int size : node_sizes()) {
    if (rank < size) break;
    rank -= size;
    ++node;
  }
  return node;
}

CommunicatorOptions Case::communicator_options() const {
  CommunicatorOptions options;
  options.mode = mode;
  options.layout = layout;
  options.dispatch_codec = dispatch_codec;
  options.combine_codec = combine_codec;
  options.reduce = reduce;
  options.permit_single = reduce == Reduce::single;
  options.y_memory = y_memory;
  options.slot_tokens = slot_tokens;
  options.in_flight = in_flight;
  options.block_limit = blocks;
  options.deadline = duration_of(deadline_s);
  return options;
}

Result<Layout> parse_layout(std::string_view text) {
  return pick<Layout>("layout", text,
                      {{"expert_slab", Layout::expert_slab},
                       {"expert_major", Layout::expert_major},
                       {"rank_major", Layout::rank_major}});
}

Result<Mode> parse_mode(std::string_view text) {
  return pick<Mode>("mode", text,
                    {{"latency", Mode::latency},
                     {"throughput", Mode::throughput},
                     {"automatic", Mode::automatic}});
}

Result<Codec> parse_codec(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = text;;) {
    const std::size_t colon = rest.find(':');
    parts.push_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) break;
    rest = rest.substr(colon + 1);
  }
  const Result<CodecKind> kind = pick<CodecKind>("codec", parts[0],
                                                 {{"bf16", CodecKind::bf16},
                                                  {"f16", CodecKind::f16},
                                                  {"f32", CodecKind::f32},
                                                  {"fp8", CodecKind::fp8}});
  if (!kind) return kind.status();
  Codec codec;
  codec.kind = *kind;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    double group = 0.0;
    if (codec.kind != CodecKind::fp8) {
      return bad(fmt::format("codec '{}': only fp8 has scales, as in fp8:pow2:64", text));
    }
    if (parse_number(parts[i], group) && group >= 1.0 && group <= 4096.0) {
      codec.group = static_cast<int>(group);
      continue;
    }
    const Result<ScaleForm> form = pick<ScaleForm>(
        "scale form", parts[i],
        {{"f32", ScaleForm::f32}, {"pow2", ScaleForm::pow2}, {"ue8m0", ScaleForm::ue8m0}});
    if (!form) return form.status();
    codec.scale_form = *form;
  }
  return codec;
}

Result<CodecKind> parse_combine_codec(std::string_view text) {
  return pick<CodecKind>(
      "combine codec", text,
      {{"bf16", CodecKind::bf16}, {"f16", CodecKind::f16}, {"f32", CodecKind::f32}});
}

Result<Reduce> parse_reduce(std::string_view text) {
  return pick<Reduce>("reduce", text,
                      {{"rank", Reduce::rank}, {"single", Reduce::single}, {"node", Reduce::node}});
}

Result<YMemory> parse_y_memory(std::string_view text) {
  return pick<YMemory>("y memory", text,
                       {{"ordinary", YMemory::ordinary}, {"registered", YMemory::registered}});
}

std::string codec_text(const Codec& codec) {
  switch (codec.kind) {
    case CodecKind::bf16: return "bf16";
    case CodecKind::f16: return "f16";
    case CodecKind::f32: return "f32";
    case CodecKind::fp8: break;
  }
  const char* form = codec.scale_form == ScaleForm::f32    ? ""
                     : codec.scale_form == ScaleForm::pow2 ? ":pow2"
                                                           : ":ue8m0";
  return codec.group == 128 ? fmt::format("fp8{}", form)
                            : fmt::format("fp8{}:{}", form, codec.group);
}

std::string_view y_memory_text(YMemory y_memory) noexcept {
  return y_memory == YMemory::registered ? "registered" : "ordinary";
}

}  // namespace sluice::bench
