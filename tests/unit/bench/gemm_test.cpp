// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "contestant.hpp"
#include "cublas_library.hpp"
#include "gemm_result.hpp"
#include "options.hpp"
#include "results.hpp"

namespace sluice::bench {
namespace {

TEST(GemmSize, IsReadAndRefused) {
  const Result<GemmSize> size = GemmSize::parse("128,64,32768");
  ASSERT_TRUE(size.ok()) << size.status().message();
  EXPECT_EQ(size->m, 128);
  EXPECT_EQ(size->n, 64);
  EXPECT_EQ(size->k, 32768);
  EXPECT_EQ(GemmSize::parse("default")->k, GemmSize().k);
  for (const char* text : {"", "128", "128,64", "128,64,", "128,64,32,", "128,64,32,16", "128,64,x",
                           "128,,64", "120,64,8", "0,64,64", "-16,64,64", "32784,64,64"}) {
    EXPECT_FALSE(GemmSize::parse(text).ok()) << text;
  }
}

Status finish(std::vector<const char*> words, Case* bench_case = nullptr) {
  CLI::App app;
  BenchOptions options;
  options.add_to(app);
  words.insert(words.begin(), "bench");
  app.parse(static_cast<int>(words.size()), words.data());
  const Status status = options.finish(app, static_cast<int>(words.size()), words.data());
  if (bench_case != nullptr) *bench_case = options.bench_case;
  return status;
}

TEST(GemmOption, GoesWithTheCudaEngine) {
  Case bench_case;
  EXPECT_TRUE(finish({"--engine", "cuda"}, &bench_case).ok());
  EXPECT_FALSE(bench_case.gemm.has_value());
  EXPECT_TRUE(finish({"--engine", "cuda", "--gemm", "64,32,16"}, &bench_case).ok());
  ASSERT_TRUE(bench_case.gemm.has_value());
  EXPECT_EQ(bench_case.gemm->n, 32);
  const Status on_cpu = finish({"--gemm", "default"});
  EXPECT_EQ(on_cpu.code(), StatusCode::invalid_argument);
  EXPECT_NE(on_cpu.message().find("--gemm goes with --engine cuda"), std::string::npos);
  EXPECT_NE(finish({"--engine", "cuda", "--gemm", "5"}).message().find("--gemm: '5'"),
            std::string::npos);
  EXPECT_FALSE(finish({"--engine", "cuda", "--gemm", "default", "--iterations", "1"}).ok());
}

TEST(LateOption, GoesWithGraphsOfTheCudaEngine) {
  Case bench_case;
  EXPECT_TRUE(finish({"--engine", "cuda", "--late", "100"}, &bench_case).ok());
  EXPECT_EQ(bench_case.late_us, 100);
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"--late", "100"},
        std::vector<const char*>{"--engine", "cuda", "--launch", "stream", "--late", "100"}}) {
    EXPECT_NE(finish(words).message().find("--late goes with"), std::string::npos);
  }
  EXPECT_NE(finish({"--engine", "cuda", "--late", "-1"}).message().find("--late is -1"),
            std::string::npos);
}

TEST(CublasLibrary, SaysWhatIsMissingAndWhereItLooked) {
  const Result<CublasLibrary> cublas = CublasLibrary::load("/nowhere/libcublas.so.13");
  ASSERT_FALSE(cublas.ok());
  EXPECT_EQ(cublas.status().code(), StatusCode::unavailable);
  EXPECT_NE(cublas.status().message().find("/nowhere/libcublas.so.13"), std::string::npos);
  EXPECT_NE(cublas.status().message().find("--cublas"), std::string::npos);
}

TEST(CublasLibrary, RefusesAnotherLibrary) {
  const Result<CublasLibrary> cublas = CublasLibrary::load("libc.so.6");
  ASSERT_FALSE(cublas.ok());
  EXPECT_NE(cublas.status().message().find("libc.so.6 has no cublasCreate_v2"), std::string::npos);
}

TEST(GemmResult, TheSlowestRankCountsAndLateRanksDoNot) {
  constexpr int kIterations = 6;
  const Board::Form form{1 + 2 * kGemmParts, kIterations, 0};
  std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(form.bytes() + 64));
  std::vector<std::byte*> pieces;
  for (auto& piece : memory) {
    void* at = piece.data();
    std::size_t room = piece.size();
    pieces.push_back(static_cast<std::byte*>(std::align(64, form.bytes(), at, room)));
  }
  const Board board(pieces, 0, form, 1.0, {});
  // Rank 1 is slowed by 2 %, and by 3 % when its peer is late.
  for (int rank = 0; rank < 2; ++rank) {
    const auto put = [&](GemmPart part, int iteration, double us) {
      board.samples(rank, 1 + gemm_series(kDispatch, part))[static_cast<std::size_t>(iteration)] =
          us;
    };
    for (int i = 0; i < kIterations; ++i) {
      put(GemmPart::alone, i, rank == 0 ? 200.0 : 100.0);
      put(GemmPart::between, i, rank == 0 ? 201.0 : 102.0);
      put(GemmPart::late, i, starts_late(rank, i) ? 900.0 : rank == 0 ? 200.0 : 103.0);
      put(GemmPart::whole, i, rank == 0 ? 210.0 : 110.0 + i);
    }
  }
  const GemmResult result = GemmResult::of(board, 1, {1000, 1000, 1000});
  const Excess between = Excess::of(result.times[kDispatch], GemmPart::between);
  EXPECT_EQ(between.rank, 1);
  EXPECT_NEAR(between.percent(), 2.0, 1e-9);
  EXPECT_NEAR(Excess::of(result.times[kDispatch], GemmPart::late).percent(), 3.0, 1e-9);
  EXPECT_DOUBLE_EQ(Excess::of(result.times[kDispatch], GemmPart::whole).us(), 12.0);
  EXPECT_NEAR(result.tflops(), 2e9 / 200e-6 * 1e-12, 1e-9);

  Results results;
  results.gemm = result;
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_EQ(json["gemm"]["m"], 1000);
  EXPECT_NEAR(json["gemm"]["dispatch"]["slowed_percent"].get<double>(), 2.0, 1e-9);
  EXPECT_EQ(json["gemm"]["dispatch"]["alone_us"].size(), 2U);
  EXPECT_TRUE(json["gemm"]["wrong"].is_null());
  results.gemm->wrong = 1;
  EXPECT_EQ(results.exit_status(), 1);
}

}  // namespace
}  // namespace sluice::bench
