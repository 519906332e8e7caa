// SPDX-License-Identifier: MIT
#include "sluice_contestant.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "codec/row_kernels.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// A benchmark has no use for an operation that ended early or lost something.
Status complete(const Status& status, const Report& report, std::string_view operation) {
  if (!status) return status;
  if (report.lost_routes == 0 && report.bad_routes == 0 && report.overflow_rows == 0 &&
      report.missing.empty() && report.refused.empty() && report.mismatched.empty()) {
    return {};
  }
  return Status(
      StatusCode::internal,
      fmt::format("{} is incomplete: {} lost routes, {} bad routes, {} overflow rows, "
                  "missing peers: {}, refusing peers: {}, mismatched peers: {}",
                  operation, report.lost_routes, report.bad_routes, report.overflow_rows,
                  !report.missing.empty(), !report.refused.empty(), !report.mismatched.empty()));
}

template <typename Element>
const Element* elements(const ConstTensorView& view) {
  return static_cast<const Element*>(view.data);
}

}  // namespace

SluiceContestant::SluiceContestant(Communicator communicator, const Workload& workload)
    : workload_(workload),
      case_(workload.bench_case),
      communicator_(std::move(communicator)),
      space_(RowSpace::of_layout(workload)),
      x_pool_(x_pool(workload)) {}

Result<std::unique_ptr<SluiceContestant>> SluiceContestant::create(World& world,
                                                                   const Workload& workload) {
  const Case& bench_case = workload.bench_case;
  const std::size_t row_bytes = static_cast<std::size_t>(bench_case.hidden) * 2;
  CommunicatorOptions options = bench_case.communicator_options();
  const bool y_registered = bench_case.registered || bench_case.y_memory == YMemory::registered;
  const RowSpace space = RowSpace::of_layout(workload);
  if (bench_case.registered) {
    options.registered_bytes +=
        whole_pages(static_cast<std::size_t>(x_pool(workload).total_rows()) * row_bytes) + kPage;
  }
  if (y_registered) {
    options.registered_bytes +=
        whole_pages(static_cast<std::size_t>(space.pool(world.rank()).total_rows()) * row_bytes) +
        kPage;
  }
  Result<Communicator> communicator = Communicator::create(world, bench_case.shape(), options);
  if (!communicator) return communicator.status();
  std::unique_ptr<SluiceContestant> contestant(
      new SluiceContestant(std::move(communicator).value(), workload));
  if (Status status = contestant->allocate(); !status) return status;
  return contestant;
}

Status SluiceContestant::allocate() {
  const int rank = communicator_.rank();
  const std::size_t hidden = static_cast<std::size_t>(case_.hidden);
  const auto place = [this](std::size_t bytes, bool registered, Buffer& own,
                            std::byte*& out) -> Status {
    if (registered) {
      Result<void*> memory = communicator_.allocate(bytes);
      if (!memory) return memory.status();
      out = static_cast<std::byte*>(*memory);
      return {};
    }
    Result<Buffer> memory = Buffer::make(bytes, Buffer::Pages::huge);
    if (!memory) return memory.status();
    own = std::move(memory).value();
    out = own.data();
    return {};
  };
  const std::size_t x_bytes = static_cast<std::size_t>(x_pool_.total_rows()) * hidden * 2;
  const std::size_t y_bytes = static_cast<std::size_t>(space_.pool(rank).total_rows()) * hidden * 2;
  if (Status status = place(x_bytes, case_.registered, x_memory_, x_); !status) return status;
  const bool y_registered = case_.registered || case_.y_memory == YMemory::registered;
  if (Status status = place(y_bytes, y_registered, y_memory_, y_); !status) return status;
  fill_x(workload_, rank, x_);
  space_.fill_y(rank, y_);

  const std::int64_t rows = layout_rows(case_, rank);
  const std::size_t row_count = static_cast<std::size_t>(rows);
  const std::size_t row_bytes = codec::row_bytes(case_.dispatch_codec, case_.hidden);
  const std::size_t scale_bytes = codec::scale_bytes(case_.dispatch_codec, case_.hidden);
  handle_stride_ = whole_pages(communicator_.handle_bytes());
  for (auto [buffer, bytes] : {std::pair<Buffer*, std::size_t>{&rows_, row_count * row_bytes},
                               {&scales_, row_count * scale_bytes},
                               {&out_, static_cast<std::size_t>(case_.tokens) * hidden * 2},
                               {&handles_, 2 * handle_stride_}}) {
    Result<Buffer> made = Buffer::make(bytes, Buffer::Pages::huge);
    if (!made) return made.status();
    *buffer = std::move(made).value();
  }
  const DType dtype = codec::row_dtype(case_.dispatch_codec);
  const DType scale_dtype =
      case_.dispatch_codec.scale_form == ScaleForm::ue8m0 ? DType::i32 : DType::f32;
  const std::int64_t scales = static_cast<std::int64_t>(scale_bytes / sizeof(float));
  if (case_.layout == Layout::expert_slab) {
    const std::int64_t local = case_.local_experts(rank);
    const std::int64_t slab = case_.slab_rows_or_default();
    dispatch_outputs_.rows = TensorView(rows_.data(), dtype, local, slab, case_.hidden);
    if (scales > 0) {
      dispatch_outputs_.scales = TensorView(scales_.data(), scale_dtype, local, slab, scales);
    }
    dispatch_options_.capacity = case_.slab_rows;
  } else {
    dispatch_outputs_.rows = TensorView(rows_.data(), dtype, rows, case_.hidden);
    if (scales > 0) {
      dispatch_outputs_.scales = TensorView(scales_.data(), scale_dtype, rows, scales);
    }
  }
  combine_outputs_.out = TensorView(out_.data(), DType::bf16, case_.tokens, case_.hidden);
  // Pages are taken before the clock runs, as the peer's are.
  for (int set = 0; set < case_.sets; ++set) {
    poison_rows(workload_, space_, set, rank, rows_view());
  }
  poison_output(workload_, out_.data());
  return {};
}

ConstTensorView SluiceContestant::x(int set) const {
  const std::size_t row_bytes = static_cast<std::size_t>(case_.hidden) * 2;
  return ConstTensorView(x_ + static_cast<std::size_t>(x_pool_.first(set)) * row_bytes, DType::bf16,
                         case_.tokens, case_.hidden);
}

ConstTensorView SluiceContestant::y(int set) const {
  const int rank = communicator_.rank();
  const std::size_t row_bytes = static_cast<std::size_t>(case_.hidden) * 2;
  const std::byte* first = y_ + static_cast<std::size_t>(space_.pool(rank).first(set)) * row_bytes;
  if (case_.layout == Layout::expert_slab) {
    return ConstTensorView(first, DType::bf16, case_.local_experts(rank),
                           case_.slab_rows_or_default(), case_.hidden);
  }
  return ConstTensorView(first, DType::bf16, received_.handle.rows(), case_.hidden);
}

Status SluiceContestant::dispatch(int set, int handle) {
  const int rank = communicator_.rank();
  dispatch_outputs_.handle =
      Handle(handles_.data() + static_cast<std::size_t>(handle) * handle_stride_,
             communicator_.handle_bytes());
  received_ = communicator_.dispatch(
      x(set), ConstTensorView(workload_.ids(set, rank), DType::i32, case_.tokens, case_.top_k),
      ConstTensorView(workload_.weights(set, rank), DType::f32, case_.tokens, case_.top_k),
      dispatch_options_, dispatch_outputs_);
  return complete(received_.status, received_.report, "dispatch");
}

Status SluiceContestant::combine(int set) {
  const CombineResult result =
      communicator_.combine(y(set), received_.handle, combine_outputs_.out, {}, combine_outputs_);
  return complete(result.status, result.report, "combine");
}

Status SluiceContestant::run(int operation, int set) {
  if (operation == kCombine) return combine(set);
  if (Status status = dispatch(set, operation == kPair ? 1 : 0); !status) return status;
  return operation == kPair ? combine(set) : Status();
}

void SluiceContestant::start_counting() {
  counted_ = communicator_.statistics();
}

Traffic SluiceContestant::traffic() const {
  const Statistics now = communicator_.statistics();
  const auto mean = [](std::int64_t bytes, std::int64_t operations) {
    return operations > 0 ? static_cast<double>(bytes) / static_cast<double>(operations) : 0.0;
  };
  return {
      mean(now.dispatch_wire_bytes - counted_.dispatch_wire_bytes,
           now.dispatches - counted_.dispatches),
      mean(now.combine_wire_bytes - counted_.combine_wire_bytes, now.combines - counted_.combines)};
}

RowsView SluiceContestant::rows_view() const {
  const std::size_t scale_bytes = codec::scale_bytes(case_.dispatch_codec, case_.hidden);
  return RowsView{rows_.data(), codec::row_bytes(case_.dispatch_codec, case_.hidden),
                  scale_bytes > 0 ? scales_.data() : nullptr, scale_bytes};
}

std::int64_t SluiceContestant::count_wrong_handle(int set) const {
  const int rank = communicator_.rank();
  const Placement& placement = space_.placement(set);
  const Handle& handle = received_.handle;
  std::int64_t wrong = 0;
  const std::int32_t* counts = elements<std::int32_t>(handle.counts());
  for (int l = 0; l < case_.local_experts(rank); ++l) {
    const std::size_t expert = static_cast<std::size_t>(case_.first_expert(rank) + l);
    wrong += counts[l] != placement.expert_counts[expert] ? 1 : 0;
  }
  const std::size_t at = static_cast<std::size_t>(rank);
  wrong += handle.records() != placement.records[at] ? 1 : 0;
  if (case_.layout == Layout::expert_major) {
    wrong += handle.rows() != placement.expert_rows[at] ? 1 : 0;
  }
  return wrong == 0 ? count_wrong_records(set) : wrong;
}

std::int64_t SluiceContestant::count_wrong_records(int set) const {
  const int rank = communicator_.rank();
  const Handle& handle = received_.handle;
  const std::int32_t* sources = elements<std::int32_t>(handle.record_rank());
  const std::int32_t* tokens = elements<std::int32_t>(handle.record_token());
  const std::int32_t* local_ids = elements<std::int32_t>(handle.local_ids());
  const float* local_weights = elements<float>(handle.local_weights());
  std::int64_t wrong = 0;
  std::size_t record = 0;
  for (int source = 0; source < case_.ranks; ++source) {
    const std::int32_t* ids = workload_.ids(set, source);
    const float* weights = workload_.weights(set, source);
    for (int token = 0; token < case_.tokens; ++token) {
      const std::size_t first =
          static_cast<std::size_t>(token) * static_cast<std::size_t>(case_.top_k);
      const std::size_t to = record * static_cast<std::size_t>(case_.top_k);
      bool here = false;
      for (std::size_t k = 0; k < static_cast<std::size_t>(case_.top_k); ++k) {
        here = here || case_.rank_of_expert(ids[first + k]) == rank;
      }
      if (!here) continue;
      wrong += sources[record] != source || tokens[record] != token ? 1 : 0;
      for (std::size_t k = 0; k < static_cast<std::size_t>(case_.top_k); ++k) {
        const bool mine = case_.rank_of_expert(ids[first + k]) == rank;
        const std::int32_t id = mine ? ids[first + k] - case_.first_expert(rank) : -1;
        wrong += local_ids[to + k] != id ? 1 : 0;
        wrong += local_weights[to + k] != (mine ? weights[first + k] : 0.0F) ? 1 : 0;
      }
      ++record;
    }
  }
  return wrong;
}

Result<std::int64_t> SluiceContestant::check(int set) {
  const int rank = communicator_.rank();
  poison_rows(workload_, space_, set, rank, rows_view());
  poison_output(workload_, out_.data());
  if (Status status = dispatch(set, 0); !status) return status;
  std::int64_t wrong = count_wrong_rows(workload_, space_, set, rank, rows_view());
  wrong += count_wrong_handle(set);
  if (Status status = combine(set); !status) return status;
  const SumOrder order = case_.reduce == Reduce::single ? SumOrder::single : SumOrder::rank;
  return wrong + count_wrong_output(workload_, space_, set, rank, order, out_.data());
}

Status SluiceContestant::profile(int rounds, const std::string& path) {
  communicator_.start_profile();
  for (int round = 0; round < rounds; ++round) {
    if (Status status = run(kPair, round % case_.sets); !status) return status;
  }
  return communicator_.write_profile(path);
}

}  // namespace sluice::bench
