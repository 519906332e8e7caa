// SPDX-License-Identifier: MIT
#include "mpi_peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "codec/row_kernels.hpp"
#include "numbers.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kLine = 64;
/// Beyond this, non-temporal stores made every phase faster: what is packed is next read by another
/// processor.
constexpr std::size_t kStreamingBytes = std::size_t{1} << 20;

Status mpi_status(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  return Status(StatusCode::io_error, fmt::format("{} returned error {}", call, code));
}

void put_i32(std::byte* to, std::size_t at, std::int32_t value) {
  std::memcpy(to + 4 * at, &value, 4);
}
void put_f32(std::byte* to, std::size_t at, float value) {
  std::memcpy(to + 4 * at, &value, 4);
}

}  // namespace

RecordLayout RecordLayout::of(const Case& bench_case, SendOrder::Rows rows) {
  RecordLayout layout;
  layout.row_bytes = codec::row_bytes(bench_case.dispatch_codec, bench_case.hidden);
  layout.scale_bytes = codec::scale_bytes(bench_case.dispatch_codec, bench_case.hidden);
  layout.meta_bytes = rows == SendOrder::Rows::per_route ? 16 : 8 + 8 * index(bench_case.top_k);
  const std::size_t used = layout.row_bytes + layout.scale_bytes + layout.meta_bytes;
  layout.stride = (used + kLine - 1) / kLine * kLine;
  return layout;
}

MpiPeer::MpiPeer(MPI_Comm comm, const Workload& workload, SendOrder::Rows rows, int rank)
    : comm_(comm),
      workload_(workload),
      case_(workload.bench_case),
      per_rank_(rows == SendOrder::Rows::per_rank),
      rank_(rank),
      record_(RecordLayout::of(workload.bench_case, rows)),
      result_bytes_(
          codec::row_bytes(Codec{case_.combine_codec, ScaleForm::f32, 128}, case_.hidden)),
      space_(case_.layout == Layout::rank_major && !per_rank_ ? RowSpace::of_routes(workload)
                                                              : RowSpace::of_layout(workload)),
      x_pool_(x_pool(workload)),
      order_(case_, rows),
      announced_(order_.announced().size()),
      received_rows_(index(case_.ranks)),
      received_firsts_(index(case_.ranks)),
      run_rows_(announced_.size()) {}

MpiPeer::~MpiPeer() {
  if (record_type_ != MPI_DATATYPE_NULL) MPI_Type_free(&record_type_);
  if (result_type_ != MPI_DATATYPE_NULL) MPI_Type_free(&result_type_);
}

Result<std::unique_ptr<MpiPeer>> MpiPeer::create(MPI_Comm comm, const Workload& workload,
                                                 SendOrder::Rows rows) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  std::unique_ptr<MpiPeer> peer(new MpiPeer(comm, workload, rows, rank));
  if (Status status = peer->allocate(); !status) return status;
  return peer;
}

Status MpiPeer::allocate() {
  MPI_Type_contiguous(static_cast<int>(record_.stride), MPI_BYTE, &record_type_);
  MPI_Type_contiguous(static_cast<int>(result_bytes_), MPI_BYTE, &result_type_);
  MPI_Type_commit(&record_type_);
  MPI_Type_commit(&result_type_);

  const std::size_t bf16_row = index(case_.hidden) * 2;
  const std::size_t routes = index(case_.tokens) * index(case_.top_k);
  const std::size_t exchanged = std::max(record_.stride, result_bytes_);
  const std::size_t layout = index(layout_rows(case_, rank_));
  const bool placed = case_.layout != Layout::rank_major;
  const std::size_t y_rows = index(space_.pool(rank_).total_rows());
  for (auto [buffer, bytes] :
       {std::pair<Buffer*, std::size_t>{&x_, index(x_pool_.total_rows()) * bf16_row},
        {&y_, y_rows * bf16_row},
        {&out_, index(case_.tokens) * bf16_row},
        {&send_, routes * exchanged},
        {&received_, (index(case_.ranks) * routes + 1) * exchanged},
        {&rows_, placed ? layout * record_.row_bytes : 0},
        {&scales_, placed ? layout * record_.scale_bytes : 0},
        {&meta_, placed ? layout * record_.meta_bytes : 0}}) {
    Result<Buffer> made = Buffer::make(bytes, Buffer::Pages::huge);
    if (!made) return made.status();
    *buffer = std::move(made).value();
  }
  fill_x(workload_, rank_, x_.data());
  space_.fill_y(rank_, y_.data());
  std::memset(send_.data(), 0, send_.bytes());
  for (int set = 0; set < case_.sets; ++set) {
    poison_rows(workload_, space_, set, rank_, rows_view());
  }
  poison_output(workload_, out_.data());
  return {};
}

const std::byte* MpiPeer::x(int set) const {
  return x_.data() + index(x_pool_.first(set)) * index(case_.hidden) * 2;
}

const std::byte* MpiPeer::y(int set) const {
  return y_.data() + index(space_.pool(rank_).first(set)) * index(case_.hidden) * 2;
}

RowsView MpiPeer::rows_view() const {
  if (case_.layout == Layout::rank_major) {
    std::byte* first = received_.data();
    return {first, record_.stride, record_.scale_bytes > 0 ? first + record_.row_bytes : nullptr,
            record_.stride};
  }
  return {rows_.data(), record_.row_bytes, record_.scale_bytes > 0 ? scales_.data() : nullptr,
          record_.scale_bytes};
}

void MpiPeer::pack(int set) {
  const codec::RowKernels& kernels = codec::best_kernels();
  const bool quantised = case_.dispatch_codec.kind == CodecKind::fp8;
  const DType row_dtype = codec::row_dtype(case_.dispatch_codec);
  const std::int32_t* ids = workload_.ids(set, rank_);
  const float* weights = workload_.weights(set, rank_);
  const std::int32_t* places = order_.places().data();
  const std::size_t top_k = index(case_.top_k);
  const bool streaming = index(case_.tokens) * top_k * record_.stride > kStreamingBytes;
  std::array<void*, kMaxTopk> to{};
  for (std::size_t token = 0; token < index(case_.tokens); ++token) {
    int rows = 0;
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::size_t at = token * top_k + k;
      std::byte* record = send_.data() + index(places[at]) * record_.stride;
      std::byte* meta = record + record_.row_bytes + record_.scale_bytes;
      if (!per_rank_) {
        put_i32(meta, 0, static_cast<std::int32_t>(token));
        put_i32(meta, 1, static_cast<std::int32_t>(k));
        put_i32(meta, 2, ids[at]);
        put_f32(meta, 3, weights[at]);
        to[index(rows++)] = record;
        continue;
      }
      const auto known = std::find(to.begin(), to.begin() + rows, static_cast<void*>(record));
      if (known == to.begin() + rows) {
        to[index(rows++)] = record;
        put_i32(meta, 0, static_cast<std::int32_t>(token));
        put_i32(meta, 1, 0);
        for (std::size_t other = 0; other < top_k; ++other) {
          put_i32(meta, 2 + 2 * other, -1);
          put_f32(meta, 3 + 2 * other, 0.0F);
        }
      }
      put_i32(meta, 2 + 2 * k, ids[at]);
      put_f32(meta, 3 + 2 * k, weights[at]);
    }
    const std::byte* source = x(set) + token * index(case_.hidden) * 2;
    if (!quantised && row_dtype == DType::bf16) {
      kernels.fan_out(source, record_.row_bytes, to.data(), rows, streaming);
      continue;
    }
    // Once per token, straight into its first record; the others are copies of that.
    std::byte* first = static_cast<std::byte*>(to[0]);
    if (quantised) {
      kernels.quantise(source, DType::bf16, case_.dispatch_codec, case_.hidden,
                       reinterpret_cast<std::uint8_t*>(first), first + record_.row_bytes);
    } else {
      kernels.convert(source, DType::bf16, first, row_dtype, case_.hidden);
    }
    kernels.fan_out(first, record_.row_bytes + record_.scale_bytes, to.data() + 1, rows - 1,
                    streaming);
  }
  kernels.finish_streaming();
}

void MpiPeer::count_received() {
  const std::size_t groups = index(order_.group_count());
  const int local = case_.local_experts(rank_);
  int first = 0;
  for (std::size_t source = 0; source < received_rows_.size(); ++source) {
    int rows = 0;
    for (std::size_t group = 0; group < groups; ++group)
      rows += announced_[source * groups + group];
    received_rows_[source] = rows;
    received_firsts_[source] = first;
    first += rows;
  }
  if (case_.layout == Layout::rank_major) return;
  // Where every (source, expert) run goes: experts have their base, sources follow each other.
  std::int64_t base = 0;
  for (std::size_t group = 0; group < index(local); ++group) {
    std::int64_t row = case_.layout == Layout::expert_slab
                           ? static_cast<std::int64_t>(group) * case_.slab_rows_or_default()
                           : base;
    for (std::size_t source = 0; source < received_rows_.size(); ++source) {
      run_rows_[source * groups + group] = row;
      row += announced_[source * groups + group];
      base += announced_[source * groups + group];
    }
  }
}

void MpiPeer::unpack() {
  if (case_.layout == Layout::rank_major) return;  // The records lie as they should.
  const codec::RowKernels& kernels = codec::best_kernels();
  const std::byte* record = received_.data();
  const std::byte* end = received_.data();
  for (const int rows : received_rows_) end += index(rows) * record_.stride;
  const bool streaming = static_cast<std::size_t>(end - record) > kStreamingBytes;
  for (std::size_t run = 0; run < announced_.size(); ++run) {
    std::size_t row = index(run_rows_[run]);
    for (std::int32_t i = 0; i < announced_[run]; ++i, ++row, record += record_.stride) {
      void* to = rows_.data() + row * record_.row_bytes;
      kernels.fan_out(record, record_.row_bytes, &to, 1, streaming);
      std::memcpy(scales_.data() + row * record_.scale_bytes, record + record_.row_bytes,
                  record_.scale_bytes);
      std::memcpy(meta_.data() + row * record_.meta_bytes,
                  record + record_.row_bytes + record_.scale_bytes, record_.meta_bytes);
    }
  }
  kernels.finish_streaming();
}

Status MpiPeer::dispatch(int set) {
  order_.compute(workload_.ids(set, rank_));
  const int groups = order_.group_count();
  int code = MPI_Alltoall(order_.announced().data(), groups, MPI_INT32_T, announced_.data(), groups,
                          MPI_INT32_T, comm_);
  if (Status status = mpi_status(code, "MPI_Alltoall"); !status) return status;
  pack(set);
  count_received();
  code = MPI_Alltoallv(send_.data(), order_.rows().data(), order_.firsts().data(), record_type_,
                       received_.data(), received_rows_.data(), received_firsts_.data(),
                       record_type_, comm_);
  if (Status status = mpi_status(code, "MPI_Alltoallv"); !status) return status;
  unpack();
  ++dispatches_;
  for (int peer = 0; peer < case_.ranks; ++peer) {
    if (peer == rank_) continue;
    dispatch_bytes_ += order_.rows()[index(peer)] * static_cast<std::int64_t>(record_.stride) +
                       groups * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  return {};
}

const std::byte* MpiPeer::pack_results(int set) {
  const bool in_order = case_.layout == Layout::rank_major;
  if (in_order && case_.combine_codec == CodecKind::bf16) return y(set);
  const codec::RowKernels& kernels = codec::best_kernels();
  const DType dtype = codec::row_dtype(Codec{case_.combine_codec, ScaleForm::f32, 128});
  const std::size_t bf16_row = index(case_.hidden) * 2;
  std::byte* to = received_.data();
  std::size_t rows = 0;
  for (const int from : received_rows_) rows += index(from);
  const bool streaming = rows * result_bytes_ > kStreamingBytes;
  for (std::size_t run = 0; run < announced_.size(); ++run) {
    std::size_t row = in_order ? index(received_firsts_[run]) : index(run_rows_[run]);
    for (std::int32_t i = 0; i < announced_[run]; ++i, ++row, to += result_bytes_) {
      if (dtype == DType::bf16) {
        void* copy = to;
        kernels.fan_out(y(set) + row * bf16_row, bf16_row, &copy, 1, streaming);
      } else {
        kernels.convert(y(set) + row * bf16_row, DType::bf16, to, dtype, case_.hidden);
      }
    }
  }
  kernels.finish_streaming();
  return received_.data();
}

void MpiPeer::sum(int set) {
  const codec::RowKernels& kernels = codec::best_kernels();
  const float* weights = workload_.weights(set, rank_);
  const std::int32_t* ids = workload_.ids(set, rank_);
  const std::size_t top_k = index(case_.top_k);
  std::array<codec::SumTerm, kMaxTopk> terms{};
  codec::SumArgs args;
  args.term_dtype = codec::row_dtype(Codec{case_.combine_codec, ScaleForm::f32, 128});
  args.weighted = !per_rank_;
  args.elements = case_.hidden;
  std::array<int, kMaxTopk> ranks{};
  for (std::size_t token = 0; token < index(case_.tokens); ++token) {
    std::size_t count = 0;
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::size_t at = token * top_k + k;
      const std::byte* row = send_.data() + index(order_.places()[at]) * result_bytes_;
      if (!per_rank_) {
        terms[count++] = {row, weights[at]};
        continue;
      }
      // One result per rank, ranks ascending: an insertion into a list that is never long.
      const int rank = order_.rank_of(ids[at]);
      const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count);
      const auto place = std::lower_bound(ranks.begin(), end, rank);
      if (place != end && *place == rank) continue;
      const std::ptrdiff_t shift = place - ranks.begin();
      std::move_backward(place, end, end + 1);
      std::move_backward(terms.begin() + shift, terms.begin() + static_cast<std::ptrdiff_t>(count),
                         terms.begin() + static_cast<std::ptrdiff_t>(count) + 1);
      ranks[index(shift)] = rank;
      terms[index(shift)] = {row, 1.0F};
      ++count;
    }
    args.terms = {terms.data(), count};
    args.out = out_.data() + token * index(case_.hidden) * 2;
    kernels.sum(args);
  }
}

Status MpiPeer::combine(int set) {
  const std::byte* results = pack_results(set);
  const int code = MPI_Alltoallv(results, received_rows_.data(), received_firsts_.data(),
                                 result_type_, send_.data(), order_.rows().data(),
                                 order_.firsts().data(), result_type_, comm_);
  if (Status status = mpi_status(code, "MPI_Alltoallv"); !status) return status;
  sum(set);
  ++combines_;
  for (int peer = 0; peer < case_.ranks; ++peer) {
    if (peer == rank_) continue;
    combine_bytes_ += received_rows_[index(peer)] * static_cast<std::int64_t>(result_bytes_);
  }
  return {};
}

Status MpiPeer::run(int operation, int set) {
  if (operation == kCombine) return combine(set);
  if (Status status = dispatch(set); !status) return status;
  return operation == kPair ? combine(set) : Status();
}

void MpiPeer::start_counting() {
  dispatches_ = combines_ = dispatch_bytes_ = combine_bytes_ = 0;
}

Traffic MpiPeer::traffic() const {
  const auto mean = [](std::int64_t bytes, std::int64_t operations) {
    return operations > 0 ? static_cast<double>(bytes) / static_cast<double>(operations) : 0.0;
  };
  return {mean(dispatch_bytes_, dispatches_), mean(combine_bytes_, combines_)};
}

Result<std::int64_t> MpiPeer::check(int set) {
  poison_rows(workload_, space_, set, rank_, rows_view());
  poison_output(workload_, out_.data());
  if (Status status = dispatch(set); !status) return status;
  const std::int64_t wrong = count_wrong_rows(workload_, space_, set, rank_, rows_view());
  if (Status status = combine(set); !status) return status;
  const SumOrder order = per_rank_ ? SumOrder::rank : SumOrder::single;
  return wrong + count_wrong_output(workload_, space_, set, rank_, order, out_.data());
}

}  // namespace sluice::bench
