// SPDX-License-Identifier: MIT
#include "results.hpp"

#include <fmt/format.h>

#include "codec/row_kernels.hpp"

namespace sluice::bench {
namespace {

/// Routes that leave their rank, over all ranks, mean of the sets.
double remote_routes(const Workload& workload) {
  return workload.mean_routes([](int source, int owner) { return owner != source; });
}

Ratio ratio_of(const ContestantResult& peer, const ContestantResult& ours) {
  const auto divide = [](double a, double b) { return b > 0.0 ? a / b : 0.0; };
  return {ours.way, divide(peer.dispatch_us.p50, ours.dispatch_us.p50),
          divide(peer.combine_us.p50, ours.combine_us.p50),
          divide(peer.pair_us.p50, ours.pair_us.p50)};
}

}  // namespace

const ContestantResult* Results::find(Role role) const noexcept {
  for (const ContestantResult& result : contestants) {
    if (result.role == role) return &result;
  }
  return nullptr;
}

const ContestantResult* Results::find(Role role, const std::string& way) const noexcept {
  for (const ContestantResult& result : contestants) {
    if (result.role == role && result.way == way) return &result;
  }
  return nullptr;
}

double Results::floor_us() const noexcept {
  double total = 0.0;
  for (const FloorPart& part : floor) total += part.us.p50;
  return total;
}

std::int64_t Results::wrong() const noexcept {
  std::int64_t total = 0;
  for (const ContestantResult& result : contestants) total += result.wrong;
  return gemm ? total + gemm->wrong : total;
}

int Results::exit_status() const noexcept {
  if (wrong() != 0) return 1;
  return void_reason.empty() ? 0 : 3;
}

void judge_peer(Results& results) {
  const ContestantResult* peer = results.find(Role::peer);
  const ContestantResult* variant = results.find(Role::peer_variant);
  if (peer == nullptr) return;
  const double limit = kPeerLimit * results.floor_us();
  // Nobody has measured what a peer without a floor cannot avoid.
  if (!results.floor.empty() && peer->pair_us.p50 > limit) {
    results.void_reason = fmt::format(
        "the peer's pair takes {:.1f} us, more than {} x {:.1f} us, which its exchange, copies "
        "and quantising take alone",
        peer->pair_us.p50, kPeerLimit, results.floor_us());
    return;
  }
  for (const ContestantResult& ours : results.contestants) {
    if (ours.role != Role::ours) continue;
    peer = results.find(Role::peer, ours.way);
    if (peer != nullptr) results.ratios.push_back(ratio_of(*peer, ours));
    if (variant != nullptr) results.ratio_per_rank = ratio_of(*variant, ours);
  }
}

std::string samples_csv(const Board& board, const Contestants& contestants, bool combines) {
  std::string text = "name,operation,rank,iteration,us\n";
  for (std::size_t which = 0; which < contestants.size(); ++which) {
    const std::vector<std::string> operations = contestants[which]->operations();
    for (std::size_t operation = 0; operation < operations.size(); ++operation) {
      const int series = series_of(contestants, which) + static_cast<int>(operation);
      for (int rank = 0; rank < board.ranks(); ++rank) {
        int iteration = 0;
        for (const double us : board.samples(rank, series)) {
          text += fmt::format("\"{}\",{},{},{},{:.3f}\n", contestants[which]->name(),
                              operations[operation], rank, iteration++, us);
        }
      }
    }
  }
  for (int rank = 0; combines && rank < board.ranks(); ++rank) {
    int iteration = 0;
    for (const double us : board.samples(rank, combines_series(contestants))) {
      text +=
          fmt::format("\"{}\",combine alone,{},{},{:.3f}\n",
                      contestants[singles_contestant(contestants)]->name(), rank, iteration++, us);
    }
  }
  for (int rank = 0; rank < board.ranks(); ++rank) {
    int pair = 0;
    for (const double us : board.singles(rank)) {
      text += fmt::format("\"{}\",one pair,{},{},{:.3f}\n",
                          contestants[singles_contestant(contestants)]->name(), rank, pair++, us);
    }
  }
  return text;
}

Results collect(const Board& board, const Workload& workload, const Contestants& contestants,
                bool checked, const NetworkMeter* network) {
  Results results;
  results.bench_case = workload.bench_case;
  results.checked = checked;
  const Case& bench_case = workload.bench_case;
  const double remote = remote_routes(workload);
  const double dispatch_row =
      static_cast<double>(codec::row_bytes(bench_case.dispatch_codec, bench_case.hidden) +
                          codec::scale_bytes(bench_case.dispatch_codec, bench_case.hidden));
  const double combine_row = static_cast<double>(
      codec::row_bytes(Codec{bench_case.combine_codec, ScaleForm::f32, 128}, bench_case.hidden));
  for (std::size_t which = 0; which < contestants.size(); ++which) {
    const int first = series_of(contestants, which);
    const bool timed_singles = which == singles_contestant(contestants) && bench_case.singles > 0;
    const auto summary = [&](int operation) {
      return Summary::of(longest_of_ranks(board, first + operation));
    };
    if (contestants[which]->role() == Role::floor) {
      const std::vector<std::string> names = contestants[which]->operations();
      for (std::size_t i = 0; i < names.size(); ++i) {
        results.floor.push_back({names[i], summary(static_cast<int>(i))});
      }
      continue;
    }
    if (contestants[which]->role() == Role::gemm) {
      results.gemm = GemmResult::of(board, first, *bench_case.gemm);
      results.gemm->about = contestants[which]->about();
      for (int rank = 0; rank < board.ranks(); ++rank) {
        results.gemm->wrong += board.record(rank).wrong[which];
      }
      continue;
    }
    ContestantResult result;
    result.name = contestants[which]->name();
    result.role = contestants[which]->role();
    result.way = contestants[which]->way();
    result.about = contestants[which]->about();
    result.dispatch_us = summary(kDispatch);
    result.combine_us = summary(kCombine);
    result.pair_us = summary(kPair);
    if (timed_singles) result.single_us = Summary::of(longest_singles(board));
    if (which == singles_contestant(contestants) && bench_case.combines) {
      result.combine_alone_us = Summary::of(longest_of_ranks(board, combines_series(contestants)));
    }
    result.dispatch_naive_bytes = remote * dispatch_row;
    result.combine_naive_bytes = remote * combine_row;
    for (int rank = 0; rank < board.ranks(); ++rank) {
      const RankRecord& record = board.record(rank);
      result.dispatch_wire_bytes += record.dispatch_wire_bytes[which];
      result.combine_wire_bytes += record.combine_wire_bytes[which];
      result.wrong += record.wrong[which];
    }
    results.contestants.push_back(std::move(result));
  }
  judge_peer(results);
  const ContestantResult* ours = results.find(Role::ours);
  if (network != nullptr && ours != nullptr) {
    results.network =
        NetworkResult::of(board, workload, *network,
                          {ours->dispatch_us.p50, ours->combine_us.p50, ours->pair_us.p50});
  }
  return results;
}

}  // namespace sluice::bench
