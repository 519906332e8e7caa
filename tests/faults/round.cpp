// SPDX-License-Identifier: MIT
#include "faults/round.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "support/compare.hpp"
#include "support/data.hpp"
#include "support/place.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"

namespace sluice::faults {
namespace {

using Clock = std::chrono::steady_clock;
using reference::at;
using support::Random;

constexpr int kExperts = 10;
constexpr int kTopK = 4;
constexpr int kHidden = 128;
constexpr int kTokens = 12;
constexpr std::size_t kElement = 2;  // bf16 in x, y and out
constexpr std::size_t kRowsBytes = std::size_t{kTokens} * kHidden * kElement;

enum Purpose : std::uint64_t { kCount, kRouting, kWeights, kData, kAnswers };

reference::DispatchProblem without(const reference::DispatchProblem& problem,
                                   const RankSet& missing) {
  reference::DispatchProblem rest = problem;
  for (int rank = 0; rank < rest.ranks; ++rank) {
    if (missing.contains(rank)) rest.inputs[at(rank)] = {};
  }
  return rest;
}

// What `expert` (or in rank_major a whole rank) answers for one token.
std::vector<std::byte> answer(const Round& round, int source, std::int64_t token, int expert) {
  return support::draw_elements(
      DType::bf16, kHidden, support::DataKind::ordinary,
      Random::of(round.seed, kAnswers + 8 * static_cast<std::uint64_t>(expert),
                 static_cast<std::uint64_t>(source), static_cast<std::uint64_t>(token)));
}

int answerer(const reference::DispatchProblem& problem, const reference::RankRows& rows,
             const reference::Row& row, int rank) {
  if (problem.layout == Layout::rank_major) return kExperts + rank;
  return rows.local_experts[at(row.local_expert)];
}

// The view, of memory of this rank's place.
template <typename View>
View here(View view) {
  view.device = support::place().device();
  return view;
}

RankSet others(const RankSet& all, int rank) {
  RankSet rest = all;
  rest.erase(rank);
  return rest;
}

}  // namespace

std::string text_of(const RankSet& set) {
  std::string text = "{";
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (set.contains(rank)) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", rank);
  }
  return text + "}";
}

Shape shape_of(const Terms&) {
  return {kExperts, kTopK, kHidden, kTokens};
}

CommunicatorOptions options_of(const Terms& terms) {
  CommunicatorOptions options;
  options.mode = terms.mode;
  options.layout = terms.layout;
  options.registered_bytes = terms.registered ? std::size_t{1} << 20 : 0;
  options.y_memory = terms.registered ? YMemory::registered : YMemory::ordinary;
  options.deadline = std::chrono::seconds(20);
  options.first_deadline = std::chrono::seconds(20);
  options.reduce = Reduce::rank;  // On several nodes too: what is lost is then one rank.
  return options;
}

std::string name_of(const Terms& terms) {
  return fmt::format("{}_{}{}_{}ranks", to_string(terms.mode), to_string(terms.layout),
                     terms.registered ? "_registered" : "", terms.ranks);
}

Round make_round(const Terms& terms, int number) {
  Round round;
  round.seed = Random::of(77, static_cast<std::uint64_t>(number)).next();
  reference::DispatchProblem& problem = round.problem;
  problem.ranks = terms.ranks;
  problem.experts = kExperts;
  problem.top_k = kTopK;
  problem.hidden = kHidden;
  problem.max_tokens = kTokens;
  problem.layout = terms.layout;
  const support::RoutingKind kinds[] = {support::RoutingKind::distinct,
                                        support::RoutingKind::duplicates,
                                        support::RoutingKind::sparse};
  for (int rank = 0; rank < terms.ranks; ++rank) {
    const auto who = static_cast<std::uint64_t>(rank);
    reference::RankInput input;
    // Never without tokens: a lost rank must be missed by every home.
    input.tokens = 4 + Random::of(round.seed, kCount, who).below(kTokens - 3);
    input.topk_ids = support::draw_ids(kinds[number % 3], input.tokens, kTopK, kExperts, 0,
                                       Random::of(round.seed, kRouting, who));
    input.topk_weights = support::draw_weights(input.topk_ids.size(), support::DataKind::ordinary,
                                               Random::of(round.seed, kWeights, who));
    input.x =
        support::draw_elements(DType::bf16, at(input.tokens) * kHidden, support::DataKind::ordinary,
                               Random::of(round.seed, kData, who));
    problem.inputs.push_back(std::move(input));
  }
  return round;
}

Member::Member(const Terms& terms, Communicator& communicator, support::Findings& findings)
    : terms_(terms), communicator_(communicator), findings_(findings) {
  x_ = memory(kRowsBytes);
  x_given_ = input(x_, kRowsBytes);
  const std::size_t rows = terms.layout == Layout::rank_major
                               ? at(terms.ranks) * kTokens
                               : at(terms.ranks) * kTokens * kExperts;
  y_bytes_ = rows * kHidden * kElement;
  y_ = memory(y_bytes_);
  y_given_ = input(y_, y_bytes_);
  out_ = static_cast<std::byte*>(memory(kRowsBytes));
  surviving_ = static_cast<float*>(memory(kTokens * sizeof(float)));
  ids_ = static_cast<std::int64_t*>(memory(kTokens * kTopK * sizeof(std::int64_t)));
  weights_ = static_cast<float*>(memory(kTokens * kTopK * sizeof(float)));
  report_ = new (memory(sizeof(Report))) Report();
  handle_ = memory(communicator_.handle_bytes());
}

void* Member::memory(std::size_t bytes) {
  owned_.push_back(support::place().allocate(bytes));
  return owned_.back().get();
}

void* Member::input(void* own, std::size_t bytes) {
  if (!terms_.registered) return own;
  const Result<void*> allocated = communicator_.allocate(bytes);
  if (allocated) return *allocated;
  findings_.add("allocate: " + allocated.status().to_string());
  return own;
}

ConstTensorView Member::given(const void* own, void* given, ConstTensorView view,
                              std::size_t bytes) {
  if (given != own) support::place().write(given, own, bytes);
  view.data = given;
  return view;
}

// With a report, and rows that the host can read, wherever the rank's tensors are.
Received Member::receive(const DispatchTicket& sent) {
  support::Place& place = support::place();
  DispatchOutputs outputs;
  outputs.report = report_;
  outputs.stream = place.stream();
  outputs.handle = Handle(handle_, communicator_.handle_bytes(), place.device());
  Received received = communicator_.receive_dispatch(sent, outputs);
  place.finish();
  received.report = *report_;
  if (place.device() != Device::cpu && received.rows.given()) {
    std::size_t bytes = kElement;
    for (int d = 0; d < received.rows.dims; ++d) bytes *= at(received.rows.shape[at(d)]);
    rows_ = place.read(received.rows.data, bytes);
    received.rows.data = rows_.data();
  }
  return received;
}

ConstTensorView Member::make_y(const Round& round, const reference::RankRows& rows) {
  // What no expert wrote must not be looked at: NaN in every element.
  std::memset(y_, 0xFF, y_bytes_);
  for (const reference::Row& row : rows.rows) {
    const std::vector<std::byte> elements = answer(
        round, row.source, row.token, answerer(round.problem, rows, row, communicator_.rank()));
    std::memcpy(static_cast<std::byte*>(y_) + at(row.number) * elements.size(), elements.data(),
                elements.size());
  }
  if (terms_.layout == Layout::expert_slab) {
    return given(y_, y_given_,
                 here<ConstTensorView>({y_, DType::bf16, communicator_.local_experts(),
                                        std::int64_t{terms_.ranks} * kTokens, kHidden}),
                 y_bytes_);
  }
  return given(y_, y_given_, here<ConstTensorView>({y_, DType::bf16, rows.row_count, kHidden}),
               y_bytes_);
}

void Member::check_received(const Received& received, const reference::Dispatched& view) {
  const reference::RankRows& rows = view.ranks[at(communicator_.rank())];
  if (!received.status.ok()) findings_.add("dispatch: " + received.status.to_string());
  support::expect_values(findings_, "Counts", "counts", rows.counts, received.handle.counts());
  support::expect_values(findings_, "Records", "record_rank", rows.record_rank,
                         received.handle.record_rank());
  support::expect_values(findings_, "Records", "record_token", rows.record_token,
                         received.handle.record_token());
  support::expect_values(findings_, "Records", "local_ids", rows.local_ids,
                         received.handle.local_ids(), kTopK);
  support::expect_values(findings_, "Records", "local_weights", rows.local_weights,
                         received.handle.local_weights(), kTopK);
  support::expect_values(findings_, "Rows", "route_rows", rows.route_rows,
                         received.handle.route_rows(), kTopK);
  for (const reference::Row& row : rows.rows) {
    support::expect_row(
        findings_, "Rows",
        fmt::format("row {} (source {}, token {})", row.number, row.source, row.token), DType::bf16,
        view.payload(row).elements.data(),
        static_cast<const std::byte*>(received.rows.data) + at(row.number) * kHidden * kElement,
        kHidden);
  }
}

void Member::check_combined(const Round& round, const CombineResult& result) {
  const int rank = communicator_.rank();
  if (!result.status.ok()) findings_.add("combine: " + result.status.to_string());
  const reference::Dispatched all = reference::dispatch(round.problem);
  reference::CombineProblem problem;
  for (int other = 0; other < terms_.ranks; ++other) {
    const reference::RankRows& rows = all.ranks[at(other)];
    reference::CombineInput input;
    for (const reference::Row& row : rows.rows) {
      const std::vector<std::byte> elements =
          answer(round, row.source, row.token, answerer(round.problem, rows, row, other));
      input.y.insert(input.y.end(), elements.begin(), elements.end());
    }
    problem.inputs.push_back(std::move(input));
    problem.lost_ranks.push_back(result.report.missing.contains(other));
  }
  const reference::Combined expected =
      std::move(reference::combine(round.problem, all, problem)[at(rank)]);
  support::expect_equal(findings_, "Loss", "lost_routes", expected.lost_routes,
                        result.report.lost_routes);
  const std::int64_t tokens = round.problem.inputs[at(rank)].tokens;
  support::expect_values(findings_, "Loss", "surviving_weight", expected.surviving_weight,
                         ConstTensorView(surviving_, DType::f32, tokens));
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::size_t row = at(token) * kHidden * kElement;
    support::expect_row(findings_, "Combine", fmt::format("token {}", token), DType::bf16,
                        expected.out.data() + row, out_ + row, kHidden);
  }
}

RoundResult Member::run(const Round& round, const RoundOptions& options) {
  const int rank = communicator_.rank();
  const reference::RankInput& input = round.problem.inputs[at(rank)];
  RoundResult result;
  Clock::time_point began;
  support::Place& place = support::place();
  const auto stage = [&](Stage now) {
    place.finish();
    result.longest_half =
        std::max(result.longest_half,
                 now == Stage::dispatch_send ? Clock::duration::zero() : Clock::now() - began);
    if (options.on_stage) options.on_stage(now);
    began = Clock::now();
  };

  if (!input.x.empty()) std::memcpy(x_, input.x.data(), input.x.size());
  std::copy(input.topk_ids.begin(), input.topk_ids.end(), ids_);
  std::copy(input.topk_weights.begin(), input.topk_weights.end(), weights_);
  DispatchOptions dispatch_options;
  dispatch_options.stream = place.stream();
  dispatch_options.deadline = options.dispatch_deadline;
  stage(Stage::dispatch_send);
  const DispatchTicket sent = communicator_.send_dispatch(
      given(x_, x_given_, here<ConstTensorView>({x_, DType::bf16, input.tokens, kHidden}),
            kRowsBytes),
      here<ConstTensorView>({ids_, DType::i64, input.tokens, kTopK}),
      here<ConstTensorView>({weights_, DType::f32, input.tokens, kTopK}), dispatch_options);
  stage(Stage::dispatch_receive);
  const Received received = receive(sent);
  result.dispatch_missing = received.report.missing;
  const reference::Dispatched view =
      reference::dispatch(without(round.problem, others(result.dispatch_missing, rank)));
  if (options.check) check_received(received, view);

  const ConstTensorView y = make_y(round, view.ranks[at(rank)]);
  std::memset(out_, 0xFF, kRowsBytes);
  std::fill_n(surviving_, kTokens, -1.0F);
  CombineOptions combine_options;
  combine_options.stream = place.stream();
  combine_options.deadline = options.combine_deadline;
  CombineOutputs outputs;
  outputs.out = here<TensorView>({out_, DType::bf16, input.tokens, kHidden});
  outputs.surviving_weight = here<TensorView>({surviving_, DType::f32, input.tokens});
  outputs.report = report_;
  outputs.stream = place.stream();
  stage(Stage::combine_send);
  const CombineTicket ticket = communicator_.send_combine(y, received.handle, combine_options);
  stage(Stage::combine_receive);
  CombineResult combined = communicator_.receive_combine(ticket, outputs);
  place.finish();
  combined.report = *report_;
  result.combine_missing = combined.report.missing;
  stage(Stage::end);
  if (options.check) check_combined(round, combined);
  return result;
}

}  // namespace sluice::faults
