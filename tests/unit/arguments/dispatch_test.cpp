// SPDX-License-Identifier: MIT
//
// Every bad argument of dispatch, cached dispatch, plan and their outputs.
#include <gtest/gtest.h>

#include <array>
#include <new>

#include "calls.hpp"

namespace sluice::arguments {
namespace {

using Spoil = std::function<void(DispatchArguments&)>;

Bad bad(std::string name, Spoil spoil, std::vector<std::string> words,
        StatusCode code = StatusCode::invalid_argument) {
  const auto call = [spoil = std::move(spoil)](Fixture& fixture) {
    DispatchArguments a = fixture.dispatch_arguments();
    spoil(a);
    const Received received = fixture.dispatch(a);
    // A refused dispatch has a valid handle that is marked.
    EXPECT_TRUE(received.handle.valid() && received.handle.refused());
    EXPECT_FALSE(received.rows.given() && received.status.ok());
    return received.status;
  };
  return {std::move(name), call, std::move(words), code};
}

alignas(64) std::array<std::byte, 1 << 16> memory;

TEST(DispatchArguments, X) {
  Fixture fixture;
  expect_refused(
      fixture,
      {bad("not given", [](auto& a) { a.x = {}; }, {"x is not given"}),
       bad("dtype", [](auto& a) { a.x.dtype = DType::i32; }, {"x has dtype i32", "expected bf16"}),
       bad("dims 1", [](auto& a) { a.x.dims = 1; }, {"x has 1 dimensions", "expected 2"}),
       bad("dims 3", [](auto& a) { a.x.dims = 3; }, {"x has 3 dimensions", "expected 2"}),
       bad("device", [](auto& a) { a.x.device = Device::cuda; },
           {"x is in cuda memory", "expected host"}),
       bad("columns", [](auto& a) { a.x.shape[1] = 31; }, {"[5, 31]", "expected [5, 32]"}),
       bad("rows", [](auto& a) { a.x.shape[0] = 4; }, {"[4, 32]", "expected [5, 32]"}),
       bad("stride", [](auto& a) { a.x.strides[1] = 2; }, {"innermost stride 2", "expected 1"}),
       bad("null", [](auto& a) { a.x.data = nullptr; }, {"x has 5 rows and no memory"})});
}

TEST(DispatchArguments, EncodedX) {
  Fixture fixture;
  const auto encode = [](auto& a) {
    a.options.codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
    a.x = ConstTensorView(memory.data(), DType::e4m3, Fixture::kTokens, Fixture::kHidden);
    a.options.scales = ConstTensorView(memory.data(), DType::f32, Fixture::kTokens, 1);
  };
  const auto spoiled = [&](std::string name, Spoil spoil, std::vector<std::string> words) {
    return bad(
        std::move(name),
        [encode, spoil = std::move(spoil)](auto& a) {
          encode(a);
          spoil(a);
        },
        std::move(words));
  };
  expect_refused(
      fixture,
      {spoiled("no scales", [](auto& a) { a.options.scales = {}; },
               {"x has dtype e4m3", "options.scales are not given"}),
       spoiled("codec", [](auto& a) { a.options.codec = Codec{CodecKind::bf16}; },
               {"options.scales are given", "codec is bf16", "expected fp8"}),
       spoiled("x", [](auto& a) { a.x.dtype = DType::bf16; },
               {"x has dtype bf16", "expected e4m3", "options.scales"}),
       spoiled("columns of x", [](auto& a) { a.x.shape[1] = 16; }, {"[5, 16]", "[5, 32]"}),
       spoiled("stride of x", [](auto& a) { a.x.strides[1] = 2; }, {"innermost stride 2"}),
       spoiled("rows", [](auto& a) { a.options.scales.shape[0] = 4; },
               {"options.scales has shape [4, 1]", "expected [5, 1]"}),
       spoiled("words", [](auto& a) { a.options.scales.shape[1] = 2; }, {"expected [5, 1]"}),
       spoiled("dtype", [](auto& a) { a.options.scales.dtype = DType::i32; },
               {"options.scales has dtype i32", "expected f32"}),
       spoiled("ue8m0", [](auto& a) { a.options.codec->scale_form = ScaleForm::ue8m0; },
               {"options.scales has dtype f32", "expected i32 (ue8m0)"}),
       spoiled("device", [](auto& a) { a.options.scales.device = Device::cuda; },
               {"options.scales is in cuda memory"}),
       spoiled("alignment",
               [](auto& a) {
                 a.options.scales.data = static_cast<const std::byte*>(a.options.scales.data) + 2;
               },
               {"options.scales lie at", "a multiple of 4"}),
       spoiled("null", [](auto& a) { a.options.scales.data = nullptr; },
               {"options.scales has 5 rows and no memory"})});
  DispatchArguments a = fixture.dispatch_arguments();
  encode(a);
  expect_status("plan", fixture.communicator().plan(a.ids, a.weights, a.options).status,
                StatusCode::invalid_argument, {"options.scales are given", "a plan has no rows"});
  const Received received = fixture.dispatch(a);
  EXPECT_TRUE(received.status.ok()) << received.status.to_string();
}

TEST(DispatchArguments, RowCounts) {
  Fixture fixture;
  std::array<std::int64_t, Fixture::kExperts + 2> counts{};
  const auto spoiled = [&](std::string name, std::function<void(TensorView&)> spoil,
                           std::vector<std::string> words) {
    return bad(
        std::move(name),
        [&counts, spoil = std::move(spoil)](auto& a) {
          a.outputs.row_counts = TensorView(counts.data(), DType::i64, Fixture::kExperts + 2);
          spoil(a.outputs.row_counts);
        },
        std::move(words));
  };
  expect_refused(
      fixture,
      {spoiled("dtype", [](auto& v) { v.dtype = DType::i32; }, {"row_counts has dtype i32", "i64"}),
       spoiled("too short", [](auto& v) { v.shape[0] = 5; }, {"5 elements", "at least 6"}),
       spoiled("dims", [](auto& v) { v.dims = 2; }, {"row_counts has 2 dimensions"}),
       spoiled("stride", [](auto& v) { v.strides[0] = 2; }, {"stride 2"}),
       spoiled("null", [](auto& v) { v.data = nullptr; }, {"row_counts lies at", "multiple of 8"}),
       spoiled("alignment", [](auto& v) { v.data = static_cast<std::byte*>(v.data) + 4; },
               {"row_counts lies at", "multiple of 8"})});
  const TensorView view(counts.data(), DType::i64, Fixture::kExperts + 2);
  DispatchArguments a = fixture.dispatch_arguments();
  a.outputs.row_counts = view;
  const Received received = fixture.dispatch(a);
  ASSERT_TRUE(received.status.ok()) << received.status.to_string();
  EXPECT_TRUE(await_row_counts(view, received.epoch, std::chrono::seconds(0)).ok());
  EXPECT_EQ(counts[1], received.handle.rows());
  expect_status("another", await_row_counts(view, received.epoch + 1, std::chrono::milliseconds(2)),
                StatusCode::deadline_exceeded, {"dispatch", "had not come after 2 ms"});
  expect_status("no dispatch", await_row_counts(view, 0, std::chrono::seconds(0)),
                StatusCode::failed_precondition, {"dispatch 0"});
  expect_status("no tensor", await_row_counts({}, 1, std::chrono::seconds(0)),
                StatusCode::invalid_argument, {"expected the i64 tensor"});
}

TEST(DispatchArguments, Routing) {
  Fixture fixture;
  expect_refused(
      fixture,
      {bad("no ids", [](auto& a) { a.ids = {}; }, {"topk_ids is not given"}),
       bad("dtype", [](auto& a) { a.ids.dtype = DType::f32; },
           {"topk_ids has dtype f32", "expected i32 or i64"}),
       bad("dims", [](auto& a) { a.ids.dims = 1; }, {"topk_ids has 1 dimensions", "expected 2"}),
       bad("K", [](auto& a) { a.ids.shape[1] = 1; }, {"topk_ids", "[5, 1]", "expected [any, 2]"}),
       bad("device", [](auto& a) { a.ids.device = Device::cuda; },
           {"topk_ids", "cuda memory", "expected host"}),
       bad("null", [](auto& a) { a.ids.data = nullptr; }, {"topk_ids has 5 rows and no memory"}),
       bad("T < 0", [](auto& a) { a.ids.shape[0] = a.x.shape[0] = -1; }, {"[-1, 2]"}),
       bad("T > M", [](auto& a) { a.ids.shape[0] = a.x.shape[0] = 9; },
           {"9 tokens", "expected at most 8", "slot_tokens"}),
       bad("weights dtype", [](auto& a) { a.weights.dtype = DType::bf16; },
           {"topk_weights has dtype bf16", "expected f32"}),
       bad("weights T", [](auto& a) { a.weights.shape[0] = 4; },
           {"topk_weights has shape [4, 2]", "expected [5, 2]"}),
       bad("weights K", [](auto& a) { a.weights.shape[1] = 3; }, {"[5, 3]", "expected [5, 2]"}),
       bad("mask dtype",
           [](auto& a) {
             a.options.mask = {memory.data(), DType::i32, 5};
           },
           {"mask has dtype i32", "expected u8"}),
       bad("mask T",
           [](auto& a) {
             a.options.mask = {memory.data(), DType::u8, 6};
           },
           {"mask has shape [6]", "expected [5]"}),
       bad("mask K",
           [](auto& a) {
             a.options.mask = {memory.data(), DType::u8, 5, 3};
           },
           {"mask has shape [5, 3]", "expected [5, 2]"}),
       bad("mask dims",
           [](auto& a) {
             a.options.mask = {memory.data(), DType::u8, 5, 2, 1};
           },
           {"mask has 3 dimensions"})});
}

TEST(DispatchArguments, Options) {
  Fixture fixture;
  expect_refused(
      fixture,
      {bad("layout", [](auto& a) { a.options.layout = static_cast<Layout>(7); },
           {"layout = 7", "expected rank_major"}),
       bad("alignment 0", [](auto& a) { a.options.expert_alignment = 0; },
           {"expert_alignment = 0", "expected 1 to 65536"}),
       bad("alignment", [](auto& a) { a.options.expert_alignment = 65537; },
           {"expert_alignment = 65537", "expected 1 to 65536"}),
       bad("capacity", [](auto& a) { a.options.capacity = -3; }, {"capacity = -3", "expected 0"}),
       bad("slab rows",
           [](auto& a) {
             a.options.layout = Layout::expert_slab;
             a.options.capacity = 1 << 30;
           },
           {"4 local experts x 1073741824 slab rows", "expected at most 2147483647"}),
       bad("no codec",
           [](auto& a) {
             a.options.codec = Codec{CodecKind::fp8, ScaleForm::f32, 100};
           },
           {"group 100", "expected bf16"}),
       bad("codec kind", [](auto& a) { a.options.codec = Codec{static_cast<CodecKind>(9)}; },
           {"kind 9", "expected bf16"}),
       bad("larger codec", [](auto& a) { a.options.codec = Codec{CodecKind::f32}; },
           {"codec f32 needs records of 128 bytes", "expected at most 64"})});
}

TEST(DispatchArguments, Rows) {
  Fixture fixture;
  constexpr std::int64_t kRows = Fixture::kTokens * Fixture::kTopK;
  const auto rows = [](DType dtype, std::int64_t n, std::int64_t columns) {
    return TensorView(memory.data(), dtype, n, columns);
  };
  expect_refused(
      fixture,
      {bad("dtype", [&](auto& a) { a.outputs.rows = rows(DType::f32, kRows, 32); },
           {"rows has dtype f32", "expected bf16"}),
       bad("columns", [&](auto& a) { a.outputs.rows = rows(DType::bf16, kRows, 31); },
           {"rows has 31 columns", "expected 32"}),
       bad("too few", [&](auto& a) { a.outputs.rows = rows(DType::bf16, kRows - 1, 32); },
           {"rows holds 9 rows", "expected at least 10"}),
       bad("dims",
           [&](auto& a) { a.outputs.rows = TensorView(memory.data(), DType::bf16, 4, 8, 32); },
           {"rows has 3 dimensions", "expected 2"}),
       bad("stride",
           [&](auto& a) {
             a.outputs.rows = rows(DType::bf16, kRows, 32);
             a.outputs.rows.strides[1] = 2;
           },
           {"rows has innermost stride 2", "expected 1"}),
       bad("device",
           [&](auto& a) {
             a.outputs.rows = rows(DType::bf16, kRows, 32);
             a.outputs.rows.device = Device::cuda;
           },
           {"rows is in cuda memory", "expected host"}),
       bad("null", [&](auto& a) { a.outputs.rows = TensorView(nullptr, DType::bf16, kRows, 32); },
           {"rows has no memory"}),
       bad(
           "allocator",
           [&](auto& a) {
             a.outputs.allocator = [](BufferKind, std::size_t) -> void* { return nullptr; };
           },
           {"no memory for the received rows", "640 bytes"}, StatusCode::out_of_memory),
       bad(
           "allocator that throws",
           [&](auto& a) {
             a.outputs.allocator = [](BufferKind, std::size_t) -> void* { throw std::bad_alloc(); };
           },
           {"no memory for the received rows", "640 bytes"}, StatusCode::out_of_memory)});
}

// What is zeroed behind the last row must be there: of rows and of scales.
TEST(DispatchArguments, ScalesAreAsLongAsRowsThatAreZeroed) {
  Fixture fixture(Layout::expert_major);
  constexpr std::int64_t kRows = Fixture::kTokens * Fixture::kTopK;
  const auto padded = [](DispatchArguments& a) {
    a.options.codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
    a.outputs.rows = TensorView(memory.data(), DType::e4m3, kRows + 20, 32);
    a.outputs.zero_padding = true;
  };
  DispatchArguments good = fixture.dispatch_arguments();
  padded(good);
  const Received received =
      fixture.communicator().dispatch(good.x, good.ids, good.weights, good.options, good.outputs);
  ASSERT_TRUE(received.status.ok()) << received.status.to_string();
  EXPECT_EQ(received.scales.shape[0], kRows + 20);
  expect_refused(fixture, {bad("scales shorter than rows",
                               [&](auto& a) {
                                 padded(a);
                                 a.outputs.scales = TensorView(memory.data(), DType::f32, kRows, 1);
                               },
                               {"scales holds 10 rows", "as many as rows, 30"})});
}

TEST(DispatchArguments, SlabRowsAndScales) {
  Fixture fixture(Layout::expert_slab);
  const auto fp8 = [](DispatchArguments& a) {
    a.options.codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
    a.options.capacity = 8;
  };
  expect_refused(
      fixture,
      {bad("slab shape",
           [](auto& a) {
             a.options.capacity = 8;
             a.outputs.rows = TensorView(memory.data(), DType::bf16, 3, 8, 32);
           },
           {"rows has shape [3, 8, 32]", "expected [4, 8, 32]"}),
       bad("slab dims",
           [](auto& a) { a.outputs.rows = TensorView(memory.data(), DType::bf16, 40, 32); },
           {"rows has 2 dimensions", "expected 3"}),
       bad("rows of another codec",
           [&](auto& a) {
             fp8(a);
             a.outputs.rows = TensorView(memory.data(), DType::bf16, 4, 8, 32);
           },
           {"rows has dtype bf16", "expected e4m3"}),
       bad("scales dtype",
           [&](auto& a) {
             fp8(a);
             a.outputs.scales = TensorView(memory.data(), DType::i32, 4, 8, 1);
           },
           {"scales has dtype i32", "expected f32"}),
       bad("scales columns",
           [&](auto& a) {
             fp8(a);
             a.outputs.scales = TensorView(memory.data(), DType::f32, 4, 8, 2);
           },
           {"scales has 2 columns", "expected 1"})});
}

// Memory for the handle that does not fit: the handle comes from the library instead, filled.
TEST(DispatchArguments, HandleMemory) {
  Fixture fixture;
  const std::size_t bytes = fixture.communicator().handle_bytes();
  ASSERT_LT(bytes + 64, memory.size());
  for (const Handle& given :
       {Handle(memory.data(), bytes - 1), Handle(memory.data() + 32, bytes)}) {
    DispatchArguments a = fixture.dispatch_arguments();
    a.outputs.handle = given;
    const Received received = fixture.dispatch(a);
    expect_status("handle memory", received.status, StatusCode::invalid_argument,
                  {"memory for the handle", "expected at least", "aligned to 64"});
    EXPECT_TRUE(received.handle.valid());
    EXPECT_NE(received.handle.data(), given.data());
    EXPECT_EQ(fixture.good_round(), "");
  }
}

using SpoilCached = std::function<void(ConstTensorView&, Handle&, DispatchOptions&)>;

Bad bad_cached(std::string name, SpoilCached spoil, std::vector<std::string> words,
               StatusCode code = StatusCode::invalid_argument) {
  const auto call = [spoil = std::move(spoil)](Fixture& fixture) {
    const DispatchArguments a = fixture.dispatch_arguments();
    const Received first = fixture.dispatch(a);
    ConstTensorView x = a.x;
    Handle handle = first.handle;
    DispatchOptions options;
    spoil(x, handle, options);
    return fixture.communicator().dispatch(x, handle, options).status;
  };
  return {std::move(name), call, std::move(words), code};
}

TEST(DispatchArguments, CachedHandle) {
  Fixture fixture;
  Fixture other;  // Of the same shape: its handles are as good.
  Fixture foreign(Layout::rank_major);
  const Received of_other = other.dispatch(other.dispatch_arguments());
  const Received of_foreign = foreign.dispatch(foreign.dispatch_arguments());
  DispatchArguments spoiled = fixture.dispatch_arguments();
  spoiled.x = {};
  const Received refused = fixture.dispatch(spoiled);
  ASSERT_TRUE(refused.handle.valid());
  EXPECT_TRUE(
      fixture.communicator().dispatch(fixture.dispatch_arguments().x, of_other.handle).status.ok());
  memory.fill(std::byte{0});
  expect_refused(
      fixture,
      {bad_cached("not given", [](auto&, auto& handle, auto&) { handle = {}; },
                  {"the handle is not given"}),
       bad_cached("not filled",
                  [](auto&, auto& handle, auto&) { handle = Handle(memory.data(), memory.size()); },
                  {"is not a filled handle"}),
       bad_cached("cut off",
                  [](auto&, auto& handle, auto&) { handle = Handle(handle.data(), 100); },
                  {"the handle (100 bytes", "is not a filled handle"}),
       bad_cached("foreign", [&](auto&, auto& handle, auto&) { handle = of_foreign.handle; },
                  {"the handle is foreign"}),
       bad_cached(
           "refused", [&](auto&, auto& handle, auto&) { handle = refused.handle; },
           {"of a refused dispatch"}, StatusCode::failed_precondition),
       bad_cached("layout",
                  [](auto&, auto&, auto& options) { options.layout = Layout::expert_slab; },
                  {"layout = expert_slab", "expected the handle's expert_major"}),
       bad_cached("mask",
                  [](auto&, auto&, auto& options) {
                    options.mask = {memory.data(), DType::u8, 5};
                  },
                  {"mask is given", "expected none"}),
       bad_cached("rows", [](auto& x, auto&, auto&) { x.shape[0] = 4; },
                  {"x has shape [4, 32]", "expected [5, 32]"}),
       bad_cached("codec",
                  [](auto&, auto&, auto& options) { options.codec = Codec{CodecKind::f32}; },
                  {"codec f32 needs records"})});
}

TEST(DispatchArguments, Plan) {
  Fixture fixture;
  const auto plan = [](std::string name, Spoil spoil, std::vector<std::string> words) {
    const auto call = [spoil = std::move(spoil)](Fixture& f) {
      DispatchArguments a = f.dispatch_arguments();
      spoil(a);
      return f.communicator().plan(a.ids, a.weights, a.options, a.outputs).status;
    };
    return Bad{std::move(name), call, std::move(words)};
  };
  expect_refused(fixture,
                 {plan("no ids", [](auto& a) { a.ids = {}; }, {"topk_ids is not given"}),
                  plan("weights", [](auto& a) { a.weights.shape[0] = 1; },
                       {"topk_weights", "expected [5, 2]"}),
                  plan("capacity", [](auto& a) { a.options.capacity = -1; }, {"capacity = -1"})});
}

TEST(DispatchArguments, Halves) {
  Fixture fixture;
  const DispatchArguments a = fixture.dispatch_arguments();
  Communicator& communicator = fixture.communicator();
  expect_status("receive without send", communicator.receive_dispatch({}).status,
                StatusCode::failed_precondition,
                {"dispatch receive half of epoch 0", "no send half"});
  const DispatchTicket first = communicator.send_dispatch(a.x, a.ids, a.weights);
  const DispatchTicket second = communicator.send_dispatch(a.x, a.ids, a.weights);
  const DispatchTicket third = communicator.send_dispatch(a.x, a.ids, a.weights);
  expect_status("a third send", third.status, StatusCode::failed_precondition,
                {"dispatch: 2 send halves", "in_flight = 2"});
  expect_status("its receive half", communicator.receive_dispatch(third).status,
                StatusCode::failed_precondition, {"2 send halves"});
  expect_status("out of order", communicator.receive_dispatch(second).status,
                StatusCode::failed_precondition, {"epoch 2", "expected", "epoch 1"});
  EXPECT_TRUE(communicator.receive_dispatch(first).status.ok());
  EXPECT_TRUE(communicator.receive_dispatch(second).status.ok());
  EXPECT_EQ(fixture.good_round(), "");
}

TEST(DispatchArguments, HandleQueries) {
  Fixture fixture;
  Fixture by_rank(Layout::rank_major);
  const Received received = fixture.dispatch(fixture.dispatch_arguments());
  const Received ranks = by_rank.dispatch(by_rank.dispatch_arguments());
  const auto view = [](DType dtype, std::int64_t a, std::int64_t b) {
    return TensorView(memory.data(), dtype, a, b);
  };
  const auto invalid = StatusCode::invalid_argument;
  expect_status("no handle", Handle().row_sources(view(DType::i32, 10, 3)), invalid,
                {"row_sources", "not filled"});
  expect_status("dtype", received.handle.row_sources(view(DType::i64, 10, 3)), invalid,
                {"row_sources", "expected i32 [10", "seen i64"});
  expect_status("columns", received.handle.row_sources(view(DType::i32, 10, 2)), invalid,
                {"row_sources", "expected i32 [10", "[10, 2"});
  expect_status("too few", received.handle.row_sources(view(DType::i32, 9, 3)), invalid,
                {"row_sources", "expected i32 [10", "[9, 3"});
  expect_status("no handle", Handle().source_segments({}), invalid,
                {"source_segments", "not filled"});
  expect_status("dims", received.handle.source_segments(view(DType::i64, 4, 2)), invalid,
                {"source_segments", "of 3 dimensions", "of 2"});
  expect_status("rank_major", ranks.handle.source_segments({}), invalid,
                {"source_segments", "rank_major", "expected an expert layout"});
  EXPECT_TRUE(received.handle.row_sources(view(DType::i32, 10, 3)).ok());
}

}  // namespace
}  // namespace sluice::arguments
