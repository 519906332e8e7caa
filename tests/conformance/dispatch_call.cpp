// SPDX-License-Identifier: MIT
#include <algorithm>

#include "conformance/calls.hpp"
#include "conformance/rules.hpp"
#include "reference/small_float.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {

using reference::at;
using support::expect_true;
using support::Tensor;

namespace {

Tensor ids_tensor(DType dtype, const std::vector<std::int64_t>& ids, std::int64_t tokens,
                  std::int64_t top_k, std::int64_t gap) {
  Tensor tensor(dtype, {tokens, top_k}, gap);
  if (dtype == DType::i64) {
    tensor.fill(bytes_of_values(ids));
  } else {
    tensor.fill(bytes_of_values(std::vector<std::int32_t>(ids.begin(), ids.end())));
  }
  return tensor;
}

}  // namespace

ConstTensorView or_null(ConstTensorView view, bool null) {
  if (null && view.shape[0] == 0) view.data = nullptr;
  return view;
}

RegisteredCopy::~RegisteredCopy() {
  if (memory_ == nullptr) return;
  support::place().finish();
  const Status freed = communicator_->deallocate(memory_);
  if (!freed.ok()) findings_->add("deallocate: " + freed.to_string());
}

TensorView RegisteredCopy::of(const support::Tensor& tensor, Communicator& communicator,
                              support::Findings& findings) {
  communicator_ = &communicator;
  findings_ = &findings;
  TensorView view = tensor.view();
  Result<void*> memory = communicator.allocate(std::max<std::size_t>(tensor.bytes(), 64));
  if (!memory.ok()) {
    findings.add("allocate: " + memory.status().to_string());
    return view;
  }
  memory_ = *memory;
  if (tensor.bytes() > 0) support::place().write(memory_, view.data, tensor.bytes());
  view.data = memory_;
  return view;
}

DispatchCall::DispatchCall(Communicator& communicator, const Step& step, int repetition,
                           support::Findings& findings)
    : communicator_(communicator),
      step_(step),
      findings_(findings),
      context_(step.name + ", dispatch " + std::to_string(repetition) + ": "),
      rank_(communicator.rank()),
      problem_(step.dispatches[at(repetition)]),
      expected_(step.dispatched[at(repetition)]),
      rows_(expected_.ranks[at(rank_)]) {
  findings_.set_context(context_);
  make_inputs();
  make_outputs();
}

DispatchCall::~DispatchCall() {
  received_.release();
}

void DispatchCall::make_inputs() {
  const StepSpec& spec = step_.spec;
  const reference::RankInput& input = problem_.inputs[at(rank_)];
  const std::int64_t tokens = input.tokens;
  const std::int64_t top_k = problem_.top_k;
  const bool null = rank_ % 2 == 1;
  const auto in_place = [&] {
    return spec.registered_x ? registered_.of(x_tensor_, communicator_, findings_)
                             : x_tensor_.view();
  };
  if (!input.encoded.empty()) {
    make_encoded_x(in_place, null);
  } else {
    x_tensor_ = Tensor(spec.x_dtype, {tokens, problem_.hidden}, spec.input_gap);
    x_tensor_.fill(input.x);
    x_ = or_null(in_place(), null);
  }
  ids_tensor_ = ids_tensor(spec.ids_dtype, input.topk_ids, tokens, top_k, spec.input_gap);
  ids_ = or_null(ids_tensor_.view(), null);
  if (spec.weights_at_dispatch) {
    weights_tensor_ = Tensor(DType::f32, {tokens, top_k}, spec.input_gap);
    weights_tensor_.fill(bytes_of_values(input.topk_weights));
    weights_ = or_null(weights_tensor_.view(), null);
  }
  if (spec.mask == support::MaskKind::token) {
    mask_tensor_ = Tensor(DType::u8, {tokens});
    std::copy_n(reinterpret_cast<const std::byte*>(input.mask.data()), input.mask.size(),
                static_cast<std::byte*>(mask_tensor_.view().data));
  } else if (spec.mask == support::MaskKind::route) {
    mask_tensor_ = Tensor(DType::u8, {tokens, top_k}, spec.input_gap);
    mask_tensor_.fill(bytes_of_values(input.mask));
  }
  if (spec.mask != support::MaskKind::none) options_.mask = or_null(mask_tensor_.view(), null);
  options_.layout = spec.layout;
  options_.codec = spec.codec;
  options_.expert_alignment = spec.expert_alignment;
  options_.capacity = spec.capacity;
  options_.stream = support::place().stream();
}

void DispatchCall::make_encoded_x(const std::function<TensorView()>& in_place, bool null) {
  const StepSpec& spec = step_.spec;
  const std::int64_t tokens = problem_.inputs[at(rank_)].tokens;
  const auto words =
      static_cast<std::int64_t>(reference::scale_words(problem_.codec, at(problem_.hidden)));
  const DType dtype = reference::scale_dtype(problem_.codec);
  std::vector<reference::EncodedRow> rows = problem_.inputs[at(rank_)].encoded;
  if (problem_.codec.scale_form == ScaleForm::ue8m0) {
    // Bytes that no scale uses may be anything.
    const auto used = at((problem_.hidden + problem_.codec.group - 1) / problem_.codec.group);
    for (reference::EncodedRow& row : rows) {
      std::fill(row.scales.begin() + static_cast<std::ptrdiff_t>(used), row.scales.end(),
                std::byte{0xA5});
    }
  }
  if (spec.encoded_x == EncodedX::one_record) {
    x_tensor_ = Tensor(DType::u8, {tokens, problem_.hidden + 4 * words}, 4 * spec.input_gap);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<std::byte> record = rows[at(t)].elements;
      record.insert(record.end(), rows[at(t)].scales.begin(), rows[at(t)].scales.end());
      x_tensor_.set_row(t, record.data());
    }
    TensorView x = in_place();
    TensorView scales = x;
    scales.data = static_cast<std::byte*>(x.data) + problem_.hidden;
    scales.dtype = dtype;
    scales.shape[1] = words;
    scales.strides[0] = x.strides[0] / 4;
    x.dtype = DType::e4m3;
    x.shape[1] = problem_.hidden;
    x_ = or_null(x, null);
    options_.scales = or_null(scales, null);
    return;
  }
  x_tensor_ = Tensor(DType::e4m3, {tokens, problem_.hidden}, spec.input_gap);
  given_scales_ = spec.token_contiguous_scales
                      ? Tensor::token_contiguous(dtype, {tokens, words}, spec.input_gap)
                      : Tensor(dtype, {tokens, words}, spec.input_gap);
  for (std::int64_t t = 0; t < tokens; ++t) {
    x_tensor_.set_row(t, rows[at(t)].elements.data());
    given_scales_.set_row(t, rows[at(t)].scales.data());
  }
  x_ = or_null(in_place(), null);
  options_.scales = or_null(given_scales_.view(), null);
}

void DispatchCall::make_outputs() {
  const StepSpec& spec = step_.spec;
  std::vector<std::int64_t> shape = step_.rows_shape(rank_);
  if (problem_.layout != Layout::expert_slab) {
    // Where the host does not wait for counts, a tensor holds whatever may come.
    if (support::place().device() != Device::cpu) shape[0] = most_rows();
    shape[0] += spec.spare_rows;
  }
  std::vector<std::int64_t> scales_shape = shape;
  scales_shape.back() =
      static_cast<std::int64_t>(reference::scale_words(problem_.codec, at(problem_.hidden)));
  const bool has_scales = problem_.codec.kind == CodecKind::fp8;
  if (spec.rows_from == RowsFrom::caller) {
    rows_tensor_ = Tensor(reference::row_dtype(problem_.codec), shape, spec.output_gap);
    outputs_.rows = rows_tensor_.view();
    if (has_scales) {
      const DType dtype = reference::scale_dtype(problem_.codec);
      scales_tensor_ = spec.token_contiguous_scales
                           ? Tensor::token_contiguous(dtype, scales_shape, spec.output_gap)
                           : Tensor(dtype, scales_shape, spec.output_gap);
      outputs_.scales = scales_tensor_.view();
    }
  } else if (spec.rows_from == RowsFrom::allocator) {
    outputs_.allocator = [this](BufferKind kind, std::size_t bytes) -> void* {
      allocated_.emplace_back(DType::u8,
                              std::vector<std::int64_t>{static_cast<std::int64_t>(bytes)});
      void* memory = allocated_.back().view().data;
      (kind == BufferKind::rows ? allocated_rows_ : allocated_scales_) = memory;
      return memory;
    };
  }
  outputs_.zero_padding = spec.zero_padding;
  // On a GPU always, so that the host can read it.
  if (spec.caller_handle || support::place().device() != Device::cpu) {
    const std::size_t bytes = communicator_.handle_bytes();
    // 64 bytes more than given: they must stay as they are.
    handle_tensor_ = Tensor(DType::u8, {static_cast<std::int64_t>(bytes) + 64});
    outputs_.handle = Handle(handle_tensor_.view().data, bytes, support::place().device());
  }
  if (spec.row_counts) {
    row_counts_tensor_ = Tensor(DType::i64, {communicator_.local_experts() + 2});
    outputs_.row_counts = row_counts_tensor_.view();
  }
  outputs_.stream = support::place().stream();
  report_ = support::place().allocate(sizeof(Report));
  outputs_.report = new (report_.get()) Report();
}

std::int64_t DispatchCall::most_rows() const {
  if (problem_.capacity > 0) return problem_.capacity;
  const std::int64_t records =
      std::int64_t{communicator_.size()} * communicator_.shape().max_tokens;
  if (problem_.layout == Layout::rank_major) return records;
  const std::int64_t experts = communicator_.local_experts();
  return records * std::min<std::int64_t>(problem_.top_k, experts) +
         experts * (step_.spec.expert_alignment - 1);
}

void DispatchCall::settle() {
  support::Place& place = support::place();
  if (outputs_.row_counts.given() && received_.epoch != 0) {
    // Before the stream is waited for.
    const Status come =
        await_row_counts(outputs_.row_counts, received_.epoch, std::chrono::seconds(60));
    expect_true(findings_, kCounts, come.to_string(), come.ok());
    const auto* const words = static_cast<const std::int64_t*>(outputs_.row_counts.data);
    row_counts_seen_.assign(words, words + outputs_.row_counts.shape[0]);
  }
  if (place.device() == Device::cpu) return;
  place.finish();
  received_.report = *outputs_.report;
  if (step_.spec.rows_from != RowsFrom::library) return;
  const auto bring = [&](TensorView& view, std::vector<std::byte>& copy) {
    if (!view.given()) return;
    std::size_t bytes = reference::bytes_of(view.dtype);
    for (int d = 0; d < view.dims; ++d) bytes *= at(view.shape[at(d)]);
    copy = place.read(view.data, bytes);
    view.data = copy.data();
  };
  bring(received_.rows, rows_copy_);
  bring(received_.scales, scales_copy_);
}

void DispatchCall::whole() {
  take(communicator_.dispatch(x_, ids_, weights_, options_, outputs_));
}

void DispatchCall::whole(const Handle& cached) {
  moves_rows_ = true;
  along_handle_ = true;
  DispatchOptions options = options_;
  options.mask = {};
  // The host does not look into a handle on a GPU.
  if (support::place().device() != Device::cpu) options.layout = problem_.layout;
  take(communicator_.dispatch(x_, cached, options, outputs_));
}

void DispatchCall::send() {
  ticket_ = communicator_.send_dispatch(x_, ids_, weights_, options_);
}

void DispatchCall::send(const Handle& cached) {
  moves_rows_ = true;
  along_handle_ = true;
  DispatchOptions options = options_;
  options.mask = {};
  // The host does not look into a handle on a GPU.
  if (support::place().device() != Device::cpu) options.layout = problem_.layout;
  ticket_ = communicator_.send_dispatch(x_, cached, options);
}

void DispatchCall::receive() {
  findings_.set_context(context_);
  expect_true(findings_, kRefusal, "send_dispatch: " + ticket_.status.to_string(),
              ticket_.status.ok());
  take(communicator_.receive_dispatch(ticket_, outputs_));
}

void DispatchCall::plan() {
  moves_rows_ = false;
  DispatchOutputs outputs;
  outputs.handle = outputs_.handle;
  outputs.report = outputs_.report;
  outputs.row_counts = outputs_.row_counts;
  DispatchOptions options = options_;
  options.scales = {};
  take(communicator_.plan(ids_, weights_, options, outputs));
}

Received DispatchCall::queue(void* stream) const {
  DispatchOptions options = options_;
  options.stream = stream;
  return communicator_.dispatch(x_, ids_, weights_, options, outputs_);
}

void copy_tensor(const Tensor& from, const ConstTensorView& to) {
  if (!from.view().given() || from.bytes() == 0) return;
  support::place().write(const_cast<void*>(to.data), from.view().data, from.bytes());
}

void DispatchCall::load(const DispatchCall& captured) const {
  copy_tensor(x_tensor_, captured.x_);
  copy_tensor(given_scales_, captured.options_.scales);
  copy_tensor(ids_tensor_, captured.ids_);
  copy_tensor(weights_tensor_, captured.weights_);
  copy_tensor(mask_tensor_, captured.options_.mask);
  copy_tensor(rows_tensor_, captured.outputs_.rows);
  copy_tensor(scales_tensor_, captured.outputs_.scales);
  copy_tensor(handle_tensor_, captured.handle_tensor_.view());
  copy_tensor(row_counts_tensor_, captured.outputs_.row_counts);
  support::place().fill(captured.outputs_.report, 0xFF, sizeof(Report));
}

void DispatchCall::unload(const DispatchCall& captured, const Received& received) {
  support::Place& place = support::place();
  copy_tensor(captured.rows_tensor_, outputs_.rows);
  copy_tensor(captured.scales_tensor_, outputs_.scales);
  copy_tensor(captured.handle_tensor_, handle_tensor_.view());
  copy_tensor(captured.row_counts_tensor_, outputs_.row_counts);
  place.write(outputs_.report, captured.outputs_.report, sizeof(Report));
  place.finish();
  Received own = received;
  const auto exchange = [&](TensorView& view, const TensorView& theirs, const TensorView& ours) {
    if (!theirs.given()) return;
    expect_true(findings_, kMemory, "a tensor is not in the memory given",
                view.data == theirs.data);
    view.data = ours.data;
  };
  exchange(own.rows, captured.outputs_.rows, outputs_.rows);
  exchange(own.scales, captured.outputs_.scales, outputs_.scales);
  expect_true(findings_, kMemory, "the handle is not in the memory given",
              own.handle.data() == captured.outputs_.handle.data());
  own.handle = outputs_.handle;
  take(std::move(own));
}

std::vector<std::int64_t> DispatchCall::rows_shape() const {
  const TensorView& rows = received_.rows;
  if (!rows.given()) return step_.rows_shape(rank_);
  return std::vector<std::int64_t>(rows.shape.begin(), rows.shape.begin() + rows.dims);
}

}  // namespace sluice::conformance
