// SPDX-License-Identifier: MIT
#include "nccl_peer.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "numbers.hpp"

namespace sluice::bench {
namespace {

Status launched_well(int error, const char* kernel) {
  return memory::cuda_status(static_cast<cudaError_t>(error), kernel);
}

/// Copies `bytes` of every set to a piece of its own.
template <typename Source>
Status fill_sets(Place& place, int sets, std::size_t bytes, Mirror& memory, const Source& source) {
  Result<Mirror> made = Mirror::make(place, std::max<std::size_t>(index(sets) * bytes, 16));
  if (!made) return made.status();
  memory = std::move(made).value();
  for (int set = 0; set < sets; ++set) {
    const auto [from, length] = source(set);
    if (length > 0) std::memcpy(memory.host() + index(set) * bytes, from, length);
  }
  return memory.push(place);
}

}  // namespace

NcclPeer::NcclPeer(std::unique_ptr<NcclLink> link, const Workload& workload, Place& place, int rank)
    : link_(std::move(link)),
      workload_(workload),
      case_(workload.bench_case),
      place_(place),
      rank_(rank),
      form_(nccl::RecordForm::of(case_.hidden, case_.top_k,
                                 case_.dispatch_codec.kind == CodecKind::fp8)),
      space_(RowSpace::of_layout(workload)),
      x_pool_(x_pool(workload)) {
  for (int set = 0; set < case_.sets; ++set) {
    plans_.push_back(ExchangePlan::make(workload, set, rank));
  }
}

Result<std::unique_ptr<NcclPeer>> NcclPeer::create(World& world, const Workload& workload,
                                                   Place& place, const std::string& library) {
  Result<std::unique_ptr<NcclLink>> link = NcclLink::create(world, place, library);
  if (!link) return link.status();
  std::unique_ptr<NcclPeer> peer(
      new NcclPeer(std::move(link).value(), workload, place, world.rank()));
  if (Status status = peer->allocate(); !status) return status;
  return peer;
}

std::string NcclPeer::about() const {
  return fmt::format("NCCL {}, {} memory; counts and positions are given to it", link_->version(),
                     link_->registers_memory() ? "registered" : "ordinary");
}

Status NcclPeer::allocate() {
  if (Status status = allocate_exchanged(); !status) return status;
  const std::size_t rows = in_records() ? 0 : index(layout_rows(case_, rank_));
  for (auto [memory, bytes] :
       {std::pair<Mirror*, std::size_t>{&x_, index(x_pool_.total_rows()) * result_bytes()},
        {&rows_, rows * index(form_.row_bytes)},
        {&scales_, rows * index(form_.scale_words) * 4},
        {&out_, index(case_.tokens) * result_bytes()}}) {
    Result<Mirror> made = Mirror::make(place_, bytes);
    if (!made) return made.status();
    *memory = std::move(made).value();
  }
  fill_x(workload_, rank_, x_.host());
  space_.fill_y(rank_, y_.host());
  for (const Mirror* memory : {&x_, &y_}) {
    if (Status status = memory->push(place_); !status) return status;
  }
  return upload();
}

/// What NCCL reads and writes. In rank_major that is also y, sent from where it lies.
Status NcclPeer::allocate_exchanged() {
  std::int64_t sent = 0;
  std::int64_t received = 0;
  for (const ExchangePlan& plan : plans_) {
    sent = std::max(sent, plan.out.total);
    received = std::max(received, plan.in.total);
  }
  const std::size_t stride = index(form_.stride);
  const std::size_t parts = in_records() ? 0 : index(received) * result_bytes();
  for (auto [memory, bytes] : {std::pair<std::byte**, std::size_t>{&send_, index(sent) * stride},
                               {&parts_, parts},
                               {&answers_, index(sent) * result_bytes()}}) {
    Result<std::byte*> taken = link_->take(bytes);
    if (!taken) return taken.status();
    *memory = *taken;
  }
  // One record more, which nothing may be written to.
  const std::size_t y_bytes = index(space_.pool(rank_).total_rows()) * result_bytes();
  for (auto [memory, bytes, exchanged] :
       {std::tuple<Mirror*, std::size_t, bool>{&received_, index(received + 1) * stride, true},
        {&y_, y_bytes, in_records()}}) {
    Result<std::byte*> taken = exchanged ? link_->take(bytes) : place_.take(bytes);
    if (!taken) return taken.status();
    Result<Mirror> made = Mirror::of(*taken, bytes);
    if (!made) return made.status();
    *memory = std::move(made).value();
  }
  return {};
}

/// Routes and plans of all sets.
Status NcclPeer::upload() {
  const std::size_t routes = index(case_.tokens) * index(case_.top_k) * 4;
  for (const ExchangePlan& plan : plans_) row_stride_ = std::max(row_stride_, plan.row.size());
  using Piece = std::pair<const void*, std::size_t>;
  const int sets = case_.sets;
  Status status = fill_sets(place_, sets, routes, ids_,
                            [&](int set) { return Piece(workload_.ids(set, rank_), routes); });
  if (status) {
    status = fill_sets(place_, sets, routes, weights_,
                       [&](int set) { return Piece(workload_.weights(set, rank_), routes); });
  }
  if (status) {
    status = fill_sets(place_, sets, plans_.front().place.size() * 4, places_, [&](int set) {
      return Piece(plan(set).place.data(), plan(set).place.size() * 4);
    });
  }
  if (!status) return status;
  return fill_sets(place_, sets, row_stride_ * 4, rows_of_records_,
                   [&](int set) { return Piece(plan(set).row.data(), plan(set).row.size() * 4); });
}

nccl::Others NcclPeer::others(int set) const noexcept {
  const ExchangePlan::Side& in = plan(set).in;
  const std::size_t own = index(rank_);
  return {static_cast<int>(in.total - in.count[own]), static_cast<int>(in.first[own]),
          static_cast<int>(in.count[own])};
}

const std::int32_t* NcclPeer::place_of(int set) const noexcept {
  return reinterpret_cast<const std::int32_t*>(places_.device()) +
         index(set) * plans_.front().place.size();
}

const std::int32_t* NcclPeer::row_of(int set) const noexcept {
  return reinterpret_cast<const std::int32_t*>(rows_of_records_.device()) +
         index(set) * row_stride_;
}

const float* NcclPeer::weights_of(int set) const noexcept {
  return reinterpret_cast<const float*>(weights_.device()) +
         index(set) * index(case_.tokens) * index(case_.top_k);
}

const std::byte* NcclPeer::x(int set) const noexcept {
  return x_.device() + index(x_pool_.first(set)) * result_bytes();
}

const std::byte* NcclPeer::y(int set) const noexcept {
  return y_.device() + index(space_.pool(rank_).first(set)) * result_bytes();
}

nccl::Target NcclPeer::target(int set) const noexcept {
  const int width = ExchangePlan::row_width(case_);
  if (in_records()) {
    return {received_.device(), form_.stride, received_.device() + form_.scales_at,
            form_.stride,       row_of(set),  width};
  }
  return {rows_.device(),        form_.row_bytes, scales_.device(),
          form_.scale_words * 4, row_of(set),     width};
}

RowsView NcclPeer::rows_view() const noexcept {
  const bool scaled = form_.scale_words > 0;
  if (in_records()) {
    const std::size_t stride = index(form_.stride);
    return {received_.host(), stride, scaled ? received_.host() + form_.scales_at : nullptr,
            stride};
  }
  return {rows_.host(), index(form_.row_bytes), scaled ? scales_.host() : nullptr,
          index(form_.scale_words) * 4};
}

Status NcclPeer::dispatch(int set) {
  nccl::PackArgs pack;
  pack.form = form_;
  pack.x = x(set);
  pack.ids = reinterpret_cast<const std::int32_t*>(ids_.device()) +
             index(set) * index(case_.tokens) * index(case_.top_k);
  pack.weights = weights_of(set);
  pack.place = place_of(set);
  pack.tokens = case_.tokens;
  pack.ranks = case_.ranks;
  pack.rank = rank_;
  pack.send = send_;
  pack.received = received_.device();
  pack.target = target(set);
  Status status = launched_well(launch_pack(pack, place_.stream()), "packing records");
  if (status) {
    status = link_->exchange(send_, plan(set).out, received_.device(), plan(set).in,
                             index(form_.stride));
  }
  // In rank_major the records lie as they should.
  if (!status || in_records()) return status;
  const nccl::UnpackArgs unpack{form_, received_.device(), others(set), target(set)};
  return launched_well(launch_unpack(unpack, place_.stream()), "unpacking records");
}

Status NcclPeer::combine(int set) {
  const int width = ExchangePlan::row_width(case_);
  if (!in_records()) {
    const nccl::PartArgs parts{form_, y(set), received_.device(), others(set), row_of(set),
                               width, parts_};
    Status status = launched_well(launch_parts(parts, place_.stream()), "forming partial sums");
    if (!status) return status;
  }
  Status status = link_->exchange(in_records() ? y(set) : parts_, plan(set).in, answers_,
                                  plan(set).out, result_bytes());
  if (!status) return status;
  nccl::HomeArgs home;
  home.form = form_;
  home.y = y(set);
  home.answers = answers_;
  home.place = place_of(set);
  home.row = row_of(set);
  home.width = width;
  home.weights = in_records() ? nullptr : weights_of(set);
  home.tokens = case_.tokens;
  home.ranks = case_.ranks;
  home.rank = rank_;
  home.out = out_.device();
  return launched_well(launch_home(home, place_.stream()), "summing at home");
}

Status NcclPeer::run(int operation, int set) {
  if (operation == kCombine) return combine(set);
  if (Status status = dispatch(set); !status) return status;
  return operation == kPair ? combine(set) : Status();
}

Status NcclPeer::poison(int set) {
  poison_rows(workload_, space_, set, rank_, rows_view());
  poison_output(workload_, out_.host());
  for (const Mirror* memory : {&rows_, &scales_, &received_, &out_}) {
    if (Status status = memory->push(place_); !status) return status;
  }
  return {};
}

Status NcclPeer::pull(std::initializer_list<const Mirror*> memories) {
  for (const Mirror* memory : memories) {
    if (Status status = memory->pull(place_); !status) return status;
  }
  return {};
}

std::int64_t NcclPeer::count_wrong_sums(int set) const {
  return count_wrong_output(workload_, space_, set, rank_, SumOrder::rank, out_.host());
}

Result<std::int64_t> NcclPeer::check(int set, const Submit& submit) {
  if (Status status = poison(set); !status) return status;
  if (Status status = submit([&] { return dispatch(set); }); !status) return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&rows_, &scales_, &received_}); !status) return status;
  const std::int64_t wrong = count_wrong_rows(workload_, space_, set, rank_, rows_view());
  if (Status status = submit([&] { return combine(set); }); !status) return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&out_}); !status) return status;
  return wrong + count_wrong_sums(set);
}

Result<std::int64_t> NcclPeer::check_chain(int set, const std::function<Status()>& chain) {
  if (Status status = poison(set); !status) return status;
  if (Status status = chain(); !status) return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&rows_, &scales_, &received_, &out_}); !status) return status;
  return count_wrong_rows(workload_, space_, set, rank_, rows_view(), false) +
         count_wrong_sums(set);
}

Result<std::shared_ptr<QueuedContestant>> nccl_peer(World& world, const Workload& workload,
                                                    Place& place, const std::string& library) {
  Result<std::unique_ptr<NcclPeer>> peer = NcclPeer::create(world, workload, place, library);
  if (!peer) return peer.status();
  return std::shared_ptr<QueuedContestant>(std::move(peer).value());
}

}  // namespace sluice::bench
