// SPDX-License-Identifier: MIT
//
// Every bad argument of combine and its outputs.
#include <gtest/gtest.h>

#include <array>

#include "calls.hpp"

namespace sluice::arguments {
namespace {

using Spoil = std::function<void(CombineArguments&)>;

Bad bad(std::string name, Spoil spoil, std::vector<std::string> words,
        StatusCode code = StatusCode::invalid_argument) {
  const auto call = [spoil = std::move(spoil)](Fixture& fixture) {
    const Received received = fixture.dispatch(fixture.dispatch_arguments());
    EXPECT_TRUE(received.status.ok()) << received.status.to_string();
    CombineArguments a = fixture.combine_arguments(received);
    spoil(a);
    return fixture.combine(a).status;
  };
  return {std::move(name), call, std::move(words), code};
}

alignas(64) std::array<std::byte, 1 << 16> memory;

TEST(CombineArguments, Y) {
  Fixture fixture;
  expect_refused(
      fixture,
      {bad("not given", [](auto& a) { a.y = {}; }, {"y is not given"}),
       bad("dtype", [](auto& a) { a.y.dtype = DType::u8; }, {"y has dtype u8", "expected bf16"}),
       bad("dims", [](auto& a) { a.y.dims = 3; }, {"y has 3 dimensions", "expected 2"}),
       bad("columns", [](auto& a) { a.y.shape[1] = 16; }, {"[10, 16]", "expected [any, 32]"}),
       bad("rows", [](auto& a) { a.y.shape[0] = 9; },
           {"y has 9 rows", "expected at least the dispatch's 10"}),
       bad("stride", [](auto& a) { a.y.strides[1] = 3; }, {"y has innermost stride 3"}),
       bad("device", [](auto& a) { a.y.device = Device::cuda; },
           {"y is in cuda memory", "expected host"}),
       bad("null", [](auto& a) { a.y.data = nullptr; }, {"y has 10 rows and no memory"})});
}

TEST(CombineArguments, YInSlabs) {
  Fixture fixture(Layout::expert_slab);
  expect_refused(
      fixture,
      {bad("not given", [](auto& a) { a.y = {}; }, {"y is not given"}),
       bad("dims", [](auto& a) { a.y.dims = 2; }, {"y has 2 dimensions", "expected", "[4, 8, 32]"}),
       bad("shape", [](auto& a) { a.y.shape[1] = 7; }, {"[4, 7, 32]", "expected", "[4, 8, 32]"}),
       bad("dtype", [](auto& a) { a.y.dtype = DType::i32; }, {"y has dtype i32"}),
       bad("stride", [](auto& a) { a.y.strides[2] = 2; }, {"y has innermost stride 2"}),
       bad("device", [](auto& a) { a.y.device = Device::cuda; },
           {"y is in cuda memory", "expected host"}),
       bad("null", [](auto& a) { a.y.data = nullptr; }, {"y has no memory"})});
}

TEST(CombineArguments, Handle) {
  Fixture fixture;
  Fixture foreign(Layout::rank_major);
  const Received of_foreign = foreign.dispatch(foreign.dispatch_arguments());
  DispatchArguments spoiled = fixture.dispatch_arguments();
  spoiled.x = {};
  const Received refused = fixture.dispatch(spoiled);
  memory.fill(std::byte{0});
  expect_refused(
      fixture,
      {bad("not given", [](auto& a) { a.handle = {}; }, {"the handle is not given"}),
       bad("not filled", [](auto& a) { a.handle = sluice::Handle(memory.data(), memory.size()); },
           {"is not a filled handle"}),
       bad("foreign", [&](auto& a) { a.handle = of_foreign.handle; }, {"the handle is foreign"}),
       bad(
           "refused", [&](auto& a) { a.handle = refused.handle; }, {"of a refused dispatch"},
           StatusCode::failed_precondition)});
}

TEST(CombineArguments, Options) {
  Fixture fixture;
  const auto f32 = [](std::int64_t rows, std::int64_t columns) {
    return ConstTensorView(memory.data(), DType::f32, rows, columns);
  };
  expect_refused(fixture, {bad("reduce", [](auto& a) { a.options.reduce = static_cast<Reduce>(5); },
                               {"reduce = 5", "expected rank, single or node"}),
                           bad("single", [](auto& a) { a.options.reduce = Reduce::single; },
                               {"reduce = single", "permit_single"}),
                           bad("larger codec", [](auto& a) { a.options.codec = CodecKind::f32; },
                               {"combine codec f32", "combine_codec bf16"}),
                           bad("fp8", [](auto& a) { a.options.codec = CodecKind::fp8; },
                               {"combine codec fp8"}),
                           bad("weights dtype",
                               [](auto& a) {
                                 a.options.weights = {memory.data(), DType::bf16, 5, 2};
                               },
                               {"weights has dtype bf16", "expected f32"}),
                           bad("weights shape", [&](auto& a) { a.options.weights = f32(4, 2); },
                               {"weights has shape [4, 2]", "expected [5, 2]"}),
                           bad("row_weights", [&](auto& a) { a.options.row_weights = f32(10, 2); },
                               {"row_weights with layout expert_major", "expected rank_major"})});
}

TEST(CombineArguments, RankMajor) {
  Fixture fixture(Layout::rank_major);
  const auto f32 = [](std::int64_t rows, std::int64_t columns) {
    return ConstTensorView(memory.data(), DType::f32, rows, columns);
  };
  expect_refused(fixture,
                 {bad("row_weights rows", [&](auto& a) { a.options.row_weights = f32(4, 2); },
                      {"row_weights has 4 rows", "expected at least 5"}),
                  bad("row_weights K", [&](auto& a) { a.options.row_weights = f32(5, 3); },
                      {"row_weights has shape [5, 3]", "[any, 2]"}),
                  bad("weights_home alone",
                      [&](auto& a) {
                        a.outputs.weights_home = {memory.data(), DType::f32, 5, 2};
                      },
                      {"weights_home is given", "expected options.row_weights"}),
                  bad("weights_home K",
                      [&](auto& a) {
                        a.options.row_weights = f32(5, 2);
                        a.outputs.weights_home = {memory.data() + 4096, DType::f32, 5, 1};
                      },
                      {"weights_home has shape [5, 1]", "expected [5, 2]"})});
}

// `single` where the communicator permits it, but not with partial sums.
TEST(CombineArguments, SingleWithRankMajor) {
  auto worlds = World::threads(1);
  ASSERT_TRUE(worlds.ok());
  CommunicatorOptions options;
  options.permit_single = true;
  options.layout = Layout::rank_major;
  Result<Communicator> made = Communicator::create((*worlds)[0], Fixture::shape(), options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  Fixture arguments;
  const DispatchArguments d = arguments.dispatch_arguments();
  const Received received = made->dispatch(d.x, d.ids, d.weights);
  CombineArguments a = arguments.combine_arguments(received);
  a.options.reduce = Reduce::single;
  expect_status("single", made->combine(a.y, a.handle, a.out, a.options).status,
                StatusCode::invalid_argument,
                {"reduce = single with a rank_major handle", "expected an expert layout"});
}

TEST(CombineArguments, Outputs) {
  Fixture fixture;
  const auto rows = [](std::int64_t count, std::int64_t columns) {
    return ConstTensorView(memory.data(), DType::bf16, count, columns);
  };
  const auto invalid = StatusCode::invalid_argument;
  expect_refused(
      fixture,
      {bad("out not given", [](auto& a) { a.out = {}; }, {"out is not given"}),
       bad("out dtype", [](auto& a) { a.out.dtype = DType::i32; }, {"out has dtype i32"}),
       bad("out rows", [](auto& a) { a.out.shape[0] = 6; }, {"[6, 32]", "expected [5, 32]"}),
       bad("out columns", [](auto& a) { a.out.shape[1] = 33; }, {"[5, 33]", "expected [5, 32]"}),
       bad("out stride", [](auto& a) { a.out.strides[1] = 2; }, {"out has innermost stride 2"}),
       bad("out null", [](auto& a) { a.out.data = nullptr; }, {"out has 5 rows and no memory"}),
       bad("out overlaps y",
           [](auto& a) {
             a.out.data = static_cast<std::byte*>(const_cast<void*>(a.y.data)) + 9 * 32 * 2;
           },
           {"out overlaps y"}),
       bad("biases", [&](auto& a) { a.outputs.biases.assign(3, rows(5, 32)); },
           {"3 biases", "expected at most 2"}),
       bad("bias shape", [&](auto& a) { a.outputs.biases = {rows(4, 32)}; },
           {"bias has shape [4, 32]", "expected [5, 32]"}),
       bad("bias not given", [&](auto& a) { a.outputs.biases = {ConstTensorView()}; },
           {"bias is not given"}),
       bad("shared results", [&](auto& a) { a.outputs.shared_results.assign(9, rows(5, 32)); },
           {"9 shared results", "expected at most 8"}),
       bad("shared shape", [&](auto& a) { a.outputs.shared_results = {rows(5, 31)}; },
           {"shared result has shape [5, 31]"}),
       bad("surviving dtype",
           [](auto& a) {
             a.outputs.surviving_weight = {memory.data(), DType::i32, 5};
           },
           {"surviving_weight has dtype i32", "expected f32"}),
       bad("surviving shape",
           [](auto& a) {
             a.outputs.surviving_weight = {memory.data(), DType::f32, 4};
           },
           {"surviving_weight has shape [4]", "expected [5]"}),
       bad(
           "surviving dims",
           [](auto& a) {
             a.outputs.surviving_weight = {memory.data(), DType::f32, 5, 1};
           },
           {"surviving_weight has 2 dimensions", "expected 1"}, invalid)});
}

TEST(CombineArguments, Halves) {
  Fixture fixture;
  Communicator& communicator = fixture.communicator();
  const Received received = fixture.dispatch(fixture.dispatch_arguments());
  const CombineArguments a = fixture.combine_arguments(received);
  CombineOutputs outputs;
  outputs.out = a.out;
  expect_status("receive without send", communicator.receive_combine({}, outputs).status,
                StatusCode::failed_precondition,
                {"combine receive half of epoch 0", "no send half"});
  const CombineTicket first = communicator.send_combine(a.y, a.handle);
  const CombineTicket second = communicator.send_combine(a.y, a.handle);
  const CombineTicket third = communicator.send_combine(a.y, a.handle);
  expect_status("a third send", third.status, StatusCode::failed_precondition,
                {"combine: 2 send halves", "in_flight = 2"});
  expect_status("out of order", communicator.receive_combine(second, outputs).status,
                StatusCode::failed_precondition, {"epoch 2", "expected", "epoch 1"});
  EXPECT_TRUE(communicator.receive_combine(first, outputs).status.ok());
  EXPECT_TRUE(communicator.receive_combine(second, outputs).status.ok());
  EXPECT_EQ(fixture.good_round(), "");
}

}  // namespace
}  // namespace sluice::arguments
