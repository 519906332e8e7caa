// SPDX-License-Identifier: MIT
// What is put on the way to other nodes: one record for each (token, node), none for what stays on the node. Of both engines.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/deadline.hpp"
#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/nodes.hpp"

namespace sluice::conformance {
namespace {

// Counted where chunks are put.
class Traffic : public OnNodes {
 protected:
  static constexpr int kHidden = 2048;  // A row is longer than all that describes it.
  static constexpr std::int64_t kRowBytes = 2 * kHidden;

  Scenario scenario(Mode mode, Layout layout) const {
    Scenario made;
    made.ranks = GetParam().ranks;
    made.shape = Shape{GetParam().ranks * 2, 4, kHidden, 6};
    made.options.mode = mode;
    made.options.layout = layout;
    made.steps.emplace_back();
    made.steps.back().tokens = support::TokensKind::full;
    return made;
  }
  void expect_one_record(Mode mode, Layout layout) const;
  static std::int64_t rows_put(const Communicator& communicator, std::vector<std::int64_t>& before,
                               const std::vector<int>& nodes, support::Findings& findings) {
    const std::vector<std::int64_t> now = communicator.statistics().network_bytes;
    before.resize(now.size());
    std::int64_t rows = 0;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      const std::int64_t bytes = now[rank] - before[rank];
      const bool own = nodes[rank] == nodes[static_cast<std::size_t>(communicator.rank())];
      if (own && bytes != 0)
        findings.add(fmt::format("{} bytes to rank {} of this node", bytes, rank));
      rows += bytes / kRowBytes;
      if (bytes % kRowBytes > kRowBytes / 2) findings.add("more metadata than was reckoned with");
    }
    before = now;
    return rows;
  }
  /// Of one operation: who has put something says when, and somebody got something after that.
  class Times {
   public:
    explicit Times(const Communicator& communicator)
        : communicator_(communicator), before_(communicator.statistics()) {}

    void check(World& world, const char* operation, support::Findings& findings) const {
      const Statistics now = communicator_.statistics();
      const std::int64_t end_ns = base::now_ns();
      const bool has_put = now.network_bytes != before_.network_bytes;
      const bool in_it =
          now.network_first_put_ns >= begin_ns_ && now.network_first_put_ns <= end_ns;
      const bool as_before = now.network_first_put_ns == before_.network_first_put_ns;
      if (!in_it && (has_put || !as_before)) {
        findings.add(fmt::format("{}: first put at {} ns, expected {} to {}", operation,
                                 now.network_first_put_ns, begin_ns_, end_ns));
      }
      if (now.network_last_arrival_ns > end_ns) {
        findings.add(fmt::format("{}: last arrival at {} ns, expected {} at most", operation,
                                 now.network_last_arrival_ns, end_ns));
      }
      const auto all = world.all_gather(
          fmt::format("{} {}", now.network_first_put_ns, now.network_last_arrival_ns));
      if (!all.ok()) return findings.add("all_gather: " + all.status().to_string());
      std::int64_t last_put_ns = 0;
      std::int64_t last_arrival_ns = 0;
      for (const std::string& text : *all) {
        last_put_ns = std::max<std::int64_t>(last_put_ns, std::strtoll(text.c_str(), nullptr, 10));
        last_arrival_ns = std::max<std::int64_t>(
            last_arrival_ns, std::strtoll(text.substr(text.find(' ')).c_str(), nullptr, 10));
      }
      if (last_arrival_ns <= last_put_ns) {
        findings.add(fmt::format("{}: the last arrival of all was {} ns before a first put",
                                 operation, last_put_ns - last_arrival_ns));
      }
    }

   private:
    const Communicator& communicator_;
    Statistics before_;
    std::int64_t begin_ns_ = base::now_ns();
  };
};

void Traffic::expect_one_record(Mode mode, Layout layout) const {
  place(GetParam(), 1);
  const Scenario job = scenario(mode, layout);
  const Step step = prepare_step(job, job.steps[0], 0);
  const std::vector<int> nodes = rank_to_node(job.ranks);
  const auto failures = run_body(job, [&](World& world, Communicator& communicator,
                                          support::Findings& findings) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const reference::Dispatched& dispatched = step.dispatched[0];
    // Of its own tokens to other nodes; of the tokens of homes that it answers for its node.
    std::int64_t dispatch_rows = 0;
    for (std::int64_t token = 0; token < 6; ++token) {
      std::set<int> there;
      for (int k = 0; k < 4; ++k) {
        const std::int32_t id =
            dispatched.routes[rank].ids[static_cast<std::size_t>(token * 4 + k)];
        if (id < 0) continue;
        const auto owner =
            static_cast<std::size_t>(dispatched.expert_to_rank[static_cast<std::size_t>(id)]);
        if (nodes[owner] != nodes[rank]) there.insert(nodes[owner]);
      }
      dispatch_rows += static_cast<std::int64_t>(there.size());
    }
    std::vector<std::int64_t> before;
    const Times of_dispatch(communicator);
    DispatchCall dispatch(communicator, step, 0, findings);
    dispatch.whole();
    dispatch.check();
    // When all have it, all has been put.
    if (!world.barrier().ok()) findings.add("barrier");
    const std::int64_t rows = rows_put(communicator, before, nodes, findings);
    if (rows != dispatch_rows) {
      findings.add(fmt::format("dispatch: {} rows put, expected {}", rows, dispatch_rows));
    }
    of_dispatch.check(world, "dispatch", findings);
    const Times of_combine(communicator);
    CombineCall combine(communicator, step, 0, dispatch.handle(), dispatch.rows_shape(), findings);
    combine.whole();
    combine.check();
    if (!world.barrier().ok()) findings.add("barrier");
    const std::int64_t answered = rows_put(communicator, before, nodes, findings);
    of_combine.check(world, "combine", findings);
    // Every rank tells how many rows its tokens owe each other node, and how many it has put: all
    // together must be equal.
    auto all = world.all_gather(fmt::format("{} {}", dispatch_rows, answered));
    if (!all.ok()) return findings.add("all_gather: " + all.status().to_string());
    std::int64_t owed = 0;
    std::int64_t put = 0;
    for (const std::string& text : *all) {
      owed += std::strtoll(text.c_str(), nullptr, 10);
      put += std::strtoll(text.substr(text.find(' ')).c_str(), nullptr, 10);
    }
    if (owed != put)
      findings.add(fmt::format("combine: {} rows put in all, expected {}", put, owed));
  });
  expect_clean(failures);
}

TEST_P(Traffic, OneRecordPerTokenAndNode) {
  for (const Mode mode : {Mode::latency, Mode::throughput}) {
    for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_slab}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(mode), to_string(layout)));
      expect_one_record(mode, layout);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Traffic,
                         ::testing::Values(Nodes{"2x2", 4, 2}, Nodes{"3x2", 6, 2},
                                           Nodes{"3plus1", 4, 3}),
                         OnNodes::name);

}  // namespace
}  // namespace sluice::conformance
