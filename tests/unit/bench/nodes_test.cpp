// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "launch.hpp"
#include "node_namespaces.hpp"
#include "run_rank.hpp"
#include "transport/libfabric.hpp"

namespace sluice::bench {
namespace {

using nlohmann::json;

constexpr int kRanks = 4;
constexpr int kTokens = 6;

/// Every token goes to every rank, so that all counts are known; rows without scales or padding.
BenchOptions job(int hidden) {
  BenchOptions options;
  Case& bench_case = options.bench_case;
  bench_case.ranks = kRanks;
  bench_case.nodes = 2;
  bench_case.tokens = kTokens;
  bench_case.hidden = hidden;
  bench_case.experts = kRanks;
  bench_case.top_k = kRanks;
  bench_case.dispatch_codec = {CodecKind::bf16, ScaleForm::f32, 128};
  bench_case.sets = 2;
  bench_case.iterations = 3;
  bench_case.warmup = 1;
  options.settings.check = true;
  options.settings.bind = false;
  options.settings.quiet = true;
  return options;
}

/// Runs the job and reads what it has left. In a process of its own: what a closed communicator leaves to
/// do in the background must not be there when the next job forks.
template <typename Runner>
json results_of(Runner run, BenchOptions options) {
  const std::string path =
      testing::TempDir() + "sluice-nodes-" + std::to_string(getpid()) + ".json";
  options.settings.json = path;
  EXPECT_TRUE(options.bench_case.settle().ok());
  const pid_t pid = fork();
  if (pid == 0) _exit(run(options));
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitOk);
  std::ifstream file(path);
  json results = json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(results.is_discarded());
  std::filesystem::remove(path);
  return results;
}

Status libfabric() {
  return transport::open_libfabric(0, 1, {}).status();
}

class BenchOnNodes : public testing::Test {
 protected:
  // Threads need no library for this, and no two runs take each other's time.
  void SetUp() override { setenv("SLUICE_NETWORK", "memory:7", 1); }
  void TearDown() override { unsetenv("SLUICE_NETWORK"); }
};

TEST_F(BenchOnNodes, MeasuresTheNetworkBesideTheOperations) {
  const json results = results_of(run_threads, job(1024));
  ASSERT_TRUE(results.contains("network"));
  const json& network = results["network"];
  EXPECT_EQ(network["provider"], "memory");
  EXPECT_EQ(network["hosts"].size(), std::size_t{kRanks});
  EXPECT_EQ(network["network_namespaces"], 1);
  EXPECT_EQ(network["rounds"], 3);
  EXPECT_EQ(network["raw"]["record_bytes"], 2048);
  EXPECT_GT(network["raw"]["stream_gb_per_s"].get<double>(), 0.0);
  for (const char* name : {"stream_us", "stream_busy_us", "dispatch_bytes_us", "combine_bytes_us",
                           "one_way_record_us", "one_way_word_us"}) {
    EXPECT_GT(network["raw"][name]["min"].get<double>(), 0.0) << name;
  }
  for (const char* operation : {"dispatch", "combine", "pair"}) {
    for (const char* name :
         {"bytes", "naive_bytes", "busiest_node_bytes", "gb_per_s", "share_of_raw_bandwidth",
          "network_us", "network_share_of_raw_bandwidth",
          "network_share_of_raw_bandwidth_with_copies", "times_puts_of_its_bytes",
          "times_one_way_record"}) {
      EXPECT_GT(network[operation][name].get<double>(), 0.0) << operation << ", " << name;
    }
  }
  EXPECT_EQ(results["results"][0]["wrong"], 0);
}

TEST_F(BenchOnNodes, CountsOneRecordForEachTokenAndNode) {
  const json narrow = results_of(run_threads, job(1024))["network"];
  const json wide = results_of(run_threads, job(2048))["network"];
  // What comes with rows does not depend on their length.
  constexpr int kRecords = kRanks * kTokens;
  constexpr int kLonger = 2048;
  for (const char* operation : {"dispatch", "combine"}) {
    const auto bytes = [&](const json& network, const char* name) {
      return network[operation][name].get<std::int64_t>();
    };
    EXPECT_EQ(bytes(wide, "bytes") - bytes(narrow, "bytes"), kRecords * kLonger) << operation;
    EXPECT_GE(bytes(narrow, "bytes"), kRecords * 2048) << operation;
    // Two of the four routes of every token.
    EXPECT_EQ(bytes(narrow, "naive_bytes"), 2 * kRecords * 2048) << operation;
    EXPECT_EQ(2 * bytes(narrow, "busiest_node_bytes"), bytes(narrow, "bytes")) << operation;
  }
  for (const char* name : {"bytes", "naive_bytes", "busiest_node_bytes"}) {
    EXPECT_EQ(
        narrow["pair"][name].get<std::int64_t>(),
        narrow["dispatch"][name].get<std::int64_t>() + narrow["combine"][name].get<std::int64_t>())
        << name;
  }
}

TEST_F(BenchOnNodes, OneNodeHasNoNetwork) {
  BenchOptions options = job(1024);
  options.bench_case.nodes = 1;
  EXPECT_FALSE(results_of(run_threads, options).contains("network"));
}

// Over libfabric, if it is there: ranks that share nothing but the board.
TEST_F(BenchOnNodes, RunsAsProcesses) {
  unsetenv("SLUICE_NETWORK");
  if (const Status status = libfabric(); !status) GTEST_SKIP() << status.message();
  const json results = results_of(run_forked, job(1024));
  EXPECT_NE(results["network"]["provider"], "memory");
  EXPECT_EQ(results["network"]["dispatch"]["naive_bytes"], 2 * kRanks * kTokens * 2048);
  EXPECT_EQ(results["results"][0]["wrong"], 0);
}

TEST_F(BenchOnNodes, RunsInNamespaces) {
  unsetenv("SLUICE_NETWORK");
  if (const Status status = libfabric(); !status) GTEST_SKIP() << status.message();
  if (const auto probe = NodeNamespaces::make(2); !probe) {
    GTEST_SKIP() << "no namespaces: " << probe.status().message();
  }
  BenchOptions options = job(1024);
  options.settings.netns = true;
  const json results = results_of(run_forked, options);
  const json hosts = {"node0", "node0", "node1", "node1"};
  EXPECT_EQ(results["network"]["hosts"], hosts);
  EXPECT_EQ(results["network"]["network_namespaces"], 2);
  EXPECT_EQ(results["network"]["dispatch"]["naive_bytes"], 2 * kRanks * kTokens * 2048);
  EXPECT_EQ(results["results"][0]["wrong"], 0);
}

TEST_F(BenchOnNodes, SaysWhyThereAreNoNamespaces) {
  BenchOptions options = job(1024);
  options.settings.netns = true;
  ASSERT_TRUE(options.bench_case.settle().ok());
  const auto run_without_rights = [&] {
    constexpr uid_t kNobody = 65534;
    // Who is not root cannot change, and need not.
    static_cast<void>(setresuid(kNobody, kNobody, kNobody) == 0);
    _exit(run_forked(options));
  };
  EXPECT_EXIT(run_without_rights(), testing::ExitedWithCode(kExitFailed),
              "no namespaces: .*rights");
}

}  // namespace
}  // namespace sluice::bench
