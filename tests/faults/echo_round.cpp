// SPDX-License-Identifier: MIT
#include "faults/echo_round.hpp"

#include <fmt/core.h>

#include <vector>

namespace sluice::faults {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

float element(int rank, int round, int token, int column) {
  return static_cast<float>((rank * 61 + round * 17 + token * 7 + column) % 251 + 1);
}

std::int32_t expert_of(int rank, int round, int route, int ranks) {
  return (route * 5 + rank * 3 + round) % (2 * ranks);
}

}  // namespace

CommunicatorOptions EchoRound::options() {
  CommunicatorOptions options;
  options.layout = Layout::rank_major;
  options.dispatch_codec = {CodecKind::f32};
  options.combine_codec = CodecKind::f32;
  options.deadline = options.first_deadline = std::chrono::seconds(15);
  return options;
}

EchoRound::Outcome EchoRound::run(int round, const Hook& hook, int tokens) {
  const int rank = communicator_.rank();
  const int hidden = communicator_.shape().hidden;
  if (tokens == 0) tokens = communicator_.shape().max_tokens;
  std::vector<float> x;
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i < hidden; ++i) x.push_back(element(rank, round, token, i));
  }
  std::vector<std::int32_t> ids;
  for (int route = 0; route < tokens * kTopk; ++route) {
    ids.push_back(expert_of(rank, round, route, communicator_.shape().experts / 2));
  }
  if (hook) hook(Moment::idle);
  Outcome outcome;
  const auto start = Clock::now();
  const DispatchTicket ticket = communicator_.send_dispatch(
      {x.data(), DType::f32, tokens, hidden}, {ids.data(), DType::i32, tokens, kTopk}, {}, {});
  if (hook) hook(Moment::sent);
  const Received received = communicator_.receive_dispatch(ticket);
  outcome.dispatch_seconds = seconds_since(start);
  outcome.dispatch = received.report;
  if (!received.status.ok()) {
    findings_.add(fmt::format("round {}: dispatch: {}", round, received.status.to_string()));
  } else {
    check_rows(round, received);
  }
  if (hook) hook(Moment::between);
  std::vector<float> out(x.size());
  CombineOutputs outputs;
  outputs.renormalize = false;
  const auto middle = Clock::now();
  const CombineResult result = communicator_.combine(
      received.rows, received.handle, {out.data(), DType::f32, tokens, hidden}, {}, outputs);
  outcome.combine_seconds = seconds_since(middle);
  outcome.combine = result.report;
  if (!result.status.ok()) {
    findings_.add(fmt::format("round {}: combine: {}", round, result.status.to_string()));
  } else {
    check_sums(round, tokens, out, result.report);
  }
  for (int peer = 0; peer < communicator_.shape().experts / 2; ++peer) {
    if (outcome.dispatch.missing.contains(peer) || outcome.combine.missing.contains(peer)) {
      outcome.missing.insert(peer);
    }
  }
  return outcome;
}

// Every row that has a source is that source's.
void EchoRound::check_rows(int round, const Received& received) {
  const int hidden = communicator_.shape().hidden;
  const auto rows = static_cast<std::size_t>(received.handle.rows());
  std::vector<std::int32_t> sources(rows * 3);
  const Status status =
      received.handle.row_sources({sources.data(), DType::i32, received.handle.rows(), 3});
  if (!status.ok()) return findings_.add("row_sources: " + status.to_string());
  const auto* values = static_cast<const float*>(received.rows.data);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int32_t source = sources[row * 3];
    for (int i = 0; source >= 0 && i < hidden; ++i) {
      const float expected = element(source, round, sources[row * 3 + 1], i);
      const float seen =
          values[row * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(i)];
      if (seen == expected) continue;
      findings_.add(fmt::format("round {}: row {}, token {} of rank {}: {} at {}, expected {}",
                                round, row, sources[row * 3 + 1], source, seen, i, expected));
      break;
    }
  }
}

void EchoRound::check_sums(int round, int tokens, const std::vector<float>& out,
                           const Report& report) {
  const int rank = communicator_.rank();
  const int hidden = communicator_.shape().hidden;
  for (int token = 0; token < tokens; ++token) {
    RankSet owners;
    int expected = 0;
    for (int k = 0; k < kTopk; ++k) {
      const int owner =
          expert_of(rank, round, token * kTopk + k, communicator_.shape().experts / 2) / 2;
      if (!owners.contains(owner)) ++expected;
      owners.insert(owner);
    }
    const auto at = static_cast<std::size_t>(token * hidden);
    const float times = out[at] / element(rank, round, token, 0);
    bool right = times == static_cast<float>(static_cast<int>(times)) && times >= 0.0F &&
                 times <= static_cast<float>(expected);
    if (report.lost_routes == 0) right = right && times == static_cast<float>(expected);
    for (int i = 0; i < hidden; ++i) {
      right =
          right && out[at + static_cast<std::size_t>(i)] == times * element(rank, round, token, i);
    }
    if (!right) {
      findings_.add(fmt::format("round {}: token {}: {} times its row, expected {}", round, token,
                                times, expected));
    }
  }
}

}  // namespace sluice::faults
