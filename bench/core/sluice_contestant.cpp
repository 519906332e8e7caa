// SPDX-License-Identifier: MIT
#include "sluice_contestant.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "codec/row_kernels.hpp"
#include "numeric/float_environment.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kPage = 4096;
/// Of a profile. On a GPU every warp has events of its own, and viewers do not read files of any size.
constexpr std::size_t kHostEvents = 1 << 20;
constexpr std::size_t kGpuEvents = 1 << 17;

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

SluiceContestant::SluiceContestant(Communicator communicator, const Workload& workload,
                                   Place& place)
    : workload_(workload),
      case_(workload.bench_case),
      place_(place),
      communicator_(std::move(communicator)),
      space_(RowSpace::of_layout(workload)),
      x_pool_(x_pool(workload)) {}

Result<std::unique_ptr<SluiceContestant>> SluiceContestant::create(World& world,
                                                                   const Workload& workload,
                                                                   Place& place) {
  const Case& bench_case = workload.bench_case;
  const std::size_t row_bytes = static_cast<std::size_t>(bench_case.hidden) * 2;
  CommunicatorOptions options = bench_case.communicator_options();
  place.adapt(options);
  const bool y_registered = bench_case.registered || bench_case.y_memory == YMemory::registered;
  const RowSpace space = RowSpace::of_layout(workload);
  if (bench_case.registered) {
    options.registered_bytes +=
        whole_pages(static_cast<std::size_t>(x_pool(workload).total_rows()) *
                    bench_case.x_stride()) +
        kPage;
  }
  if (y_registered) {
    options.registered_bytes +=
        whole_pages(static_cast<std::size_t>(space.pool(world.rank()).total_rows()) * row_bytes) +
        kPage;
  }
  Result<Communicator> communicator = Communicator::create(world, bench_case.shape(), options);
  if (!communicator) return communicator.status();
  std::unique_ptr<SluiceContestant> contestant(
      new SluiceContestant(std::move(communicator).value(), workload, place));
  if (Status status = contestant->allocate(); !status) return status;
  return contestant;
}

Status SluiceContestant::allocate() {
  dispatch_options_.stream = place_.stream();
  combine_options_.stream = place_.stream();
  dispatch_outputs_.stream = place_.stream();
  combine_outputs_.stream = place_.stream();
  if (Status status = allocate_inputs(); !status) return status;
  if (Status status = allocate_outputs(); !status) return status;
  // Pages are taken before the clock runs, as the peer's are.
  for (int set = 0; set < case_.sets; ++set) {
    if (Status status = poison(set); !status) return status;
  }
  return {};
}

Status SluiceContestant::allocate_inputs() {
  const int rank = communicator_.rank();
  // Filled, and where the device finds it.
  const auto place = [this](std::size_t bytes, bool registered, Mirror& own, std::byte*& out,
                            const auto& fill) -> Status {
    if (registered) {
      Result<void*> memory = communicator_.allocate(bytes);
      if (!memory) return memory.status();
      out = static_cast<std::byte*>(*memory);
      if (case_.engine == Device::cpu) {
        fill(out);
        return {};
      }
    }
    Result<Mirror> memory = registered ? Mirror::of(out, bytes) : Mirror::make(place_, bytes);
    if (!memory) return memory.status();
    own = std::move(memory).value();
    out = own.device();
    fill(own.host());
    return own.push(place_);
  };
  const std::size_t row_bytes = static_cast<std::size_t>(case_.hidden) * 2;
  const std::size_t x_bytes = static_cast<std::size_t>(x_pool_.total_rows()) * case_.x_stride();
  const std::size_t y_bytes = static_cast<std::size_t>(space_.pool(rank).total_rows()) * row_bytes;
  const bool y_registered = case_.registered || case_.y_memory == YMemory::registered;
  const std::size_t routes =
      static_cast<std::size_t>(case_.tokens) * static_cast<std::size_t>(case_.top_k);
  const std::size_t sets = static_cast<std::size_t>(case_.sets);
  const auto copy_sets = [&](std::byte* to, const auto& from) {
    for (int set = 0; set < case_.sets; ++set) {
      std::memcpy(to + static_cast<std::size_t>(set) * routes * 4, from(set), routes * 4);
    }
  };
  std::byte* device = nullptr;
  if (Status status =
          place(x_bytes, case_.registered, x_memory_, x_, [&](std::byte* to) { write_x(to); });
      !status) {
    return status;
  }
  if (Status status = place(y_bytes, y_registered, y_memory_, y_,
                            [&](std::byte* to) { space_.fill_y(rank, to); });
      !status) {
    return status;
  }
  if (Status status = place(
          sets * routes * 4, false, ids_, device,
          [&](std::byte* to) { copy_sets(to, [&](int set) { return workload_.ids(set, rank); }); });
      !status) {
    return status;
  }
  return place(sets * routes * 4, false, weights_, device, [&](std::byte* to) {
    copy_sets(to, [&](int set) { return workload_.weights(set, rank); });
  });
}

void SluiceContestant::write_x(std::byte* to) const {
  const int rank = communicator_.rank();
  if (!case_.encoded) return fill_x(workload_, rank, to);
  const auto rows = static_cast<std::size_t>(x_pool_.total_rows());
  const std::size_t plain_bytes = static_cast<std::size_t>(case_.hidden) * 2;
  std::vector<std::byte> plain(rows * plain_bytes);
  fill_x(workload_, rank, plain.data());
  const numeric::FloatEnvironment environment;
  const std::size_t row_bytes = codec::row_bytes(case_.dispatch_codec, case_.hidden);
  for (std::size_t row = 0; row < rows; ++row, to += case_.x_stride()) {
    codec::best_kernels().quantise(plain.data() + row * plain_bytes, DType::bf16,
                                   case_.dispatch_codec, case_.hidden,
                                   reinterpret_cast<std::uint8_t*>(to), to + row_bytes);
  }
}

Status SluiceContestant::allocate_outputs() {
  const int rank = communicator_.rank();
  rows_count_ = layout_rows(case_, rank);
  const std::size_t row_count = static_cast<std::size_t>(rows_count_);
  const std::size_t row_bytes = codec::row_bytes(case_.dispatch_codec, case_.hidden);
  const std::size_t scale_bytes = codec::scale_bytes(case_.dispatch_codec, case_.hidden);
  const std::size_t hidden = static_cast<std::size_t>(case_.hidden);
  handle_stride_ = whole_pages(communicator_.handle_bytes());
  for (auto [memory, bytes] :
       {std::pair<Mirror*, std::size_t>{&rows_, row_count * row_bytes},
        {&scales_, row_count * scale_bytes},
        {&out_, static_cast<std::size_t>(case_.tokens) * hidden * 2},
        {&handles_, static_cast<std::size_t>(kSetHandles + (case_.combines ? case_.sets : 0)) *
                        handle_stride_}}) {
    Result<Mirror> made = Mirror::make(place_, bytes);
    if (!made) return made.status();
    *memory = std::move(made).value();
  }
  const DType dtype = codec::row_dtype(case_.dispatch_codec);
  const DType scale_dtype =
      case_.dispatch_codec.scale_form == ScaleForm::ue8m0 ? DType::i32 : DType::f32;
  const std::int64_t scales = static_cast<std::int64_t>(scale_bytes / sizeof(float));
  const auto tensor = [&](const Mirror& memory, DType type, std::int64_t columns) {
    if (case_.layout != Layout::expert_slab) {
      return view(memory.device(), type, rows_count_, columns);
    }
    TensorView slabs(memory.device(), type, case_.local_experts(rank), case_.slab_rows_or_default(),
                     columns);
    slabs.device = place_.device();
    return slabs;
  };
  dispatch_outputs_.rows = tensor(rows_, dtype, case_.hidden);
  if (scales > 0) dispatch_outputs_.scales = tensor(scales_, scale_dtype, scales);
  if (case_.layout == Layout::expert_slab) dispatch_options_.capacity = case_.slab_rows;
  combine_outputs_.out = view(out_.device(), DType::bf16, case_.tokens_of(rank), case_.hidden);
  return {};
}

TensorView SluiceContestant::view(std::byte* data, DType dtype, std::int64_t rows,
                                  std::int64_t columns) const {
  TensorView tensor(data, dtype, rows, columns);
  tensor.device = place_.device();
  return tensor;
}

ConstTensorView SluiceContestant::x(int set) const {
  const int tokens = case_.tokens_of(communicator_.rank());
  std::byte* const first = x_ + static_cast<std::size_t>(x_pool_.first(set)) * case_.x_stride();
  if (!case_.encoded) return view(first, DType::bf16, tokens, case_.hidden);
  TensorView rows = view(first, DType::e4m3, tokens, case_.hidden);
  rows.strides[0] = static_cast<std::int64_t>(case_.x_stride());
  return rows;
}

ConstTensorView SluiceContestant::x_scales(int set) const {
  if (!case_.encoded) return {};
  const ConstTensorView rows = x(set);
  const std::size_t bytes = codec::scale_bytes(case_.dispatch_codec, case_.hidden);
  ConstTensorView scales = rows;
  scales.data = static_cast<const std::byte*>(rows.data) +
                codec::row_bytes(case_.dispatch_codec, case_.hidden);
  scales.dtype = case_.dispatch_codec.scale_form == ScaleForm::ue8m0 ? DType::i32 : DType::f32;
  scales.shape[1] = static_cast<std::int64_t>(bytes / 4);
  scales.strides[0] = rows.strides[0] / 4;
  return scales;
}

ConstTensorView SluiceContestant::y(int set) const {
  const int rank = communicator_.rank();
  const std::size_t row_bytes = static_cast<std::size_t>(case_.hidden) * 2;
  std::byte* first = y_ + static_cast<std::size_t>(space_.pool(rank).first(set)) * row_bytes;
  if (case_.layout == Layout::expert_slab) {
    TensorView slabs(first, DType::bf16, case_.local_experts(rank), case_.slab_rows_or_default(),
                     case_.hidden);
    slabs.device = place_.device();
    return slabs;
  }
  // On a GPU the host does not know how many rows there are.
  const bool known = place_.device() == Device::cpu;
  return view(first, DType::bf16, known ? received_.handle.rows() : rows_count_, case_.hidden);
}

ConstTensorView SluiceContestant::weights(int set) const {
  const std::int64_t routes = std::int64_t{case_.tokens} * case_.top_k;
  return view(weights_.device() + static_cast<std::size_t>(set * routes) * 4, DType::f32,
              case_.tokens_of(communicator_.rank()), case_.top_k);
}

Handle SluiceContestant::handle_at(int index) const {
  return Handle(handles_.device() + static_cast<std::size_t>(index) * handle_stride_,
                communicator_.handle_bytes(), place_.device());
}

Status SluiceContestant::dispatch(int set, int handle) {
  const std::int64_t routes = std::int64_t{case_.tokens} * case_.top_k;
  dispatch_outputs_.handle = handle_at(handle);
  const ConstTensorView ids = view(ids_.device() + static_cast<std::size_t>(set * routes) * 4,
                                   DType::i32, case_.tokens_of(communicator_.rank()), case_.top_k);
  const ConstTensorView given = case_.weights_at_combine ? ConstTensorView() : weights(set);
  dispatch_options_.scales = x_scales(set);
  Status queued = before_ ? before_() : Status();
  if (!queued) return queued;
  if (between_) {
    const DispatchTicket ticket =
        communicator_.send_dispatch(x(set), ids, given, dispatch_options_);
    queued = between_();
    received_ = communicator_.receive_dispatch(ticket, dispatch_outputs_);
  } else {
    received_ = communicator_.dispatch(x(set), ids, given, dispatch_options_, dispatch_outputs_);
  }
  return queued ? complete(received_.status, received_.report, "dispatch") : queued;
}

Status SluiceContestant::combine(int set, const Handle& handle) {
  if (case_.weights_at_combine) combine_options_.weights = weights(set);
  CombineResult result;
  Status queued = before_ ? before_() : Status();
  if (!queued) return queued;
  if (between_) {
    const CombineTicket ticket = communicator_.send_combine(y(set), handle, combine_options_);
    queued = between_();
    result = communicator_.receive_combine(ticket, combine_outputs_);
  } else {
    result = communicator_.combine(y(set), handle, combine_outputs_.out, combine_options_,
                                   combine_outputs_);
  }
  return queued ? complete(result.status, result.report, "combine") : queued;
}

Status SluiceContestant::run(int operation, int set) {
  if (operation == kCombine) return combine(set, received_.handle);
  if (Status status = dispatch(set, operation == kPair ? 1 : 0); !status) return status;
  return operation == kPair ? combine(set, received_.handle) : Status();
}

Status SluiceContestant::dispatch_sets() {
  for (int set = 0; set < case_.sets; ++set) {
    if (Status status = dispatch(set, kSetHandles + set); !status) return status;
  }
  return settle();
}

Status SluiceContestant::combine_alone(int set) {
  return combine(set, handle_at(kSetHandles + set));
}

Result<std::int64_t> SluiceContestant::check_combine(int set) {
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&out_}); !status) return status;
  return count_wrong_sums(set);
}

Status SluiceContestant::settle() {
  if (Status status = place_.finish(); !status) return status;
  // Calls that only queue report nothing.
  const Statistics all = communicator_.statistics();
  if (Status status = complete({}, all.dispatch_reports, "dispatch"); !status) return status;
  return complete({}, all.combine_reports, "combine");
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

NetworkUse SluiceContestant::network_use() const {
  Statistics now = communicator_.statistics();
  return {std::move(now.network_bytes), now.network_first_put_ns, now.network_last_arrival_ns};
}

RowsView SluiceContestant::rows_view() const {
  const std::size_t scale_bytes = codec::scale_bytes(case_.dispatch_codec, case_.hidden);
  return RowsView{rows_.host(), codec::row_bytes(case_.dispatch_codec, case_.hidden),
                  scale_bytes > 0 ? scales_.host() : nullptr, scale_bytes};
}

std::int64_t SluiceContestant::count_wrong_handle(const Handle& handle, int set) const {
  const int rank = communicator_.rank();
  const Placement& placement = space_.placement(set);
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
  return wrong == 0 ? count_wrong_records(handle, set) : wrong;
}

std::int64_t SluiceContestant::count_wrong_records(const Handle& handle, int set) const {
  const int rank = communicator_.rank();
  const std::int32_t* sources = elements<std::int32_t>(handle.record_rank());
  const std::int32_t* tokens = elements<std::int32_t>(handle.record_token());
  const std::int32_t* local_ids = elements<std::int32_t>(handle.local_ids());
  const float* local_weights = elements<float>(handle.local_weights());
  std::int64_t wrong = 0;
  std::size_t record = 0;
  for (int source = 0; source < case_.ranks; ++source) {
    const std::int32_t* ids = workload_.ids(set, source);
    const float* weights = workload_.weights(set, source);
    for (int token = 0; token < case_.tokens_of(source); ++token) {
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
        const float given = case_.weights_at_combine ? 1.0F : weights[first + k];
        wrong += local_weights[to + k] != (mine ? given : 0.0F) ? 1 : 0;
      }
      ++record;
    }
  }
  return wrong;
}

Status SluiceContestant::poison(int set) {
  poison_rows(workload_, space_, set, communicator_.rank(), rows_view());
  poison_output(workload_, out_.host());
  std::memset(handles_.host(), 0xA5, kSetHandles * handle_stride_);
  for (const Mirror* memory : {&rows_, &scales_, &out_, &handles_}) {
    if (Status status = memory->push(place_); !status) return status;
  }
  return {};
}

Status SluiceContestant::pull(std::initializer_list<const Mirror*> memories) {
  for (const Mirror* memory : memories) {
    if (Status status = memory->pull(place_); !status) return status;
  }
  return {};
}

std::int64_t SluiceContestant::count_wrong_sums(int set) const {
  const Reduce reduce = case_.resolved_reduce();
  const SumOrder order = reduce == Reduce::single ? SumOrder::single
                         : reduce == Reduce::node ? SumOrder::node
                                                  : SumOrder::rank;
  return count_wrong_output(workload_, space_, set, communicator_.rank(), order, out_.host());
}

Result<std::int64_t> SluiceContestant::check(int set, const Submit& submit) {
  if (Status status = poison(set); !status) return status;
  if (Status status = submit([&] { return dispatch(set, 0); }); !status) return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&rows_, &scales_, &handles_}); !status) return status;
  std::int64_t wrong = count_wrong_rows(workload_, space_, set, communicator_.rank(), rows_view());
  wrong += count_wrong_handle(Handle(handles_.host(), communicator_.handle_bytes()), set);
  if (Status status = submit([&] { return combine(set, received_.handle); }); !status)
    return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&out_}); !status) return status;
  return wrong + count_wrong_sums(set);
}

Result<std::int64_t> SluiceContestant::check_chain(int set, const std::function<Status()>& chain) {
  if (Status status = poison(set); !status) return status;
  if (Status status = chain(); !status) return status;
  if (Status status = settle(); !status) return status;
  if (Status status = pull({&rows_, &scales_, &handles_, &out_}); !status) return status;
  const Handle handle(handles_.host() + handle_stride_, communicator_.handle_bytes());
  return count_wrong_rows(workload_, space_, set, communicator_.rank(), rows_view(), false) +
         count_wrong_handle(handle, set) + count_wrong_sums(set);
}

void SluiceContestant::start_profile() {
  communicator_.start_profile(case_.engine == Device::cuda ? kGpuEvents : kHostEvents);
}

Status SluiceContestant::write_profile(const std::string& path) {
  return communicator_.write_profile(path);
}

Status SluiceContestant::profile(int rounds, const std::string& path) {
  start_profile();
  for (int round = 0; round < rounds; ++round) {
    if (Status status = run(kPair, round % case_.sets); !status) return status;
  }
  return write_profile(path);
}

}  // namespace sluice::bench
