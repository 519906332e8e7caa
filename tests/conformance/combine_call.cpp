// SPDX-License-Identifier: MIT
#include <fmt/core.h>

#include <algorithm>

#include "conformance/calls.hpp"
#include "conformance/rules.hpp"
#include "reference/small_float.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {

using reference::at;
using support::expect_equal;
using support::expect_row;
using support::expect_true;
using support::expect_values;
using support::Tensor;

CombineCall::CombineCall(Communicator& communicator, const Step& step, int repetition,
                         const Handle& handle, const std::vector<std::int64_t>& rows_shape,
                         support::Findings& findings)
    : communicator_(communicator),
      step_(step),
      findings_(findings),
      context_(step.name + ", combine " + std::to_string(repetition) + ": "),
      rank_(communicator.rank()),
      survival_((rank_ + repetition) % 2 == 1),
      problem_(step.combines[at(repetition)]),
      input_(problem_.inputs[at(rank_)]),
      expected_(step.combined[at(repetition)][at(rank_)]),
      handle_(handle) {
  findings_.set_context(context_);
  make_y(rows_shape);
  make_options();
  make_outputs();
}

// Rows that hold no result stay NaN: if one is read, it shows.
void CombineCall::make_y(const std::vector<std::int64_t>& rows_shape) {
  const StepSpec& spec = step_.spec;
  y_tensor_ = Tensor(spec.y_dtype, rows_shape, spec.input_gap);
  const reference::RankRows& rows = step_.dispatched[0].ranks[at(rank_)];
  const std::size_t row_bytes = at(rows_shape.back()) * reference::bytes_of(spec.y_dtype);
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    if (!rows.rows[i].stored || rows.rows[i].number >= y_tensor_.rows()) continue;
    y_tensor_.set_row(rows.rows[i].number, input_.y.data() + i * row_bytes);
  }
  const TensorView y =
      spec.registered_y ? registered_.of(y_tensor_, communicator_, findings_) : y_tensor_.view();
  y_ = or_null(y, rank_ % 2 == 1);
}

void CombineCall::make_options() {
  const StepSpec& spec = step_.spec;
  const std::int64_t top_k = step_.dispatches[0].top_k;
  options_.reduce = spec.reduce;
  options_.codec = spec.combine_codec;
  options_.plain_sum = spec.plain_sum;
  options_.stream = support::place().stream();
  if (spec.weights_at_combine) {
    weights_tensor_ =
        Tensor(DType::f32, {static_cast<std::int64_t>(input_.weights.size()) / top_k, top_k},
               spec.input_gap);
    weights_tensor_.fill(bytes_of_values(input_.weights));
    options_.weights = or_null(weights_tensor_.view(), rank_ % 2 == 1);
  }
  if (spec.row_weights) {
    row_weights_tensor_ =
        Tensor(DType::f32, {static_cast<std::int64_t>(input_.row_weights.size()) / top_k, top_k},
               spec.input_gap);
    row_weights_tensor_.fill(bytes_of_values(input_.row_weights));
    options_.row_weights = or_null(row_weights_tensor_.view(), rank_ % 2 == 1);
  }
}

void CombineCall::make_outputs() {
  const StepSpec& spec = step_.spec;
  const reference::DispatchProblem& problem = step_.dispatches[0];
  const std::int64_t tokens = problem.inputs[at(rank_)].tokens;
  const std::int64_t hidden = problem.hidden;
  out_tensor_ = Tensor(spec.out_dtype, {tokens, hidden}, spec.output_gap);
  outputs_.out = out_tensor_.view();
  if (survival_) {
    surviving_tensor_ = Tensor(DType::f32, {tokens});
    outputs_.surviving_weight = surviving_tensor_.view();
  }
  if (spec.row_weights) {
    weights_home_tensor_ = Tensor(DType::f32, {tokens, problem.top_k}, spec.output_gap);
    outputs_.weights_home = weights_home_tensor_.view();
  }
  const auto add = [&](const std::vector<reference::Matrix>& matrices,
                       std::vector<ConstTensorView>& views) {
    for (const reference::Matrix& matrix : matrices) {
      extras_.emplace_back(matrix.dtype, std::vector<std::int64_t>{tokens, hidden}, spec.input_gap);
      extras_.back().fill(matrix.data);
      views.push_back(extras_.back().view());
    }
  };
  add(input_.shared_results, outputs_.shared_results);
  add(input_.biases, outputs_.biases);
  outputs_.renormalize = spec.renormalize;
  outputs_.stream = support::place().stream();
  report_ = support::place().allocate(sizeof(Report));
  outputs_.report = new (report_.get()) Report();
}

// On a GPU: waits for the call.
void CombineCall::settle() {
  support::Place& place = support::place();
  if (place.device() == Device::cpu) return;
  place.finish();
  result_.report = *outputs_.report;
}

void CombineCall::whole() {
  take(communicator_.combine(y_, handle_, outputs_.out, options_, outputs_));
}

void CombineCall::send() {
  ticket_ = communicator_.send_combine(y_, handle_, options_);
}

void CombineCall::receive() {
  findings_.set_context(context_);
  expect_true(findings_, kRefusal, "send_combine: " + ticket_.status.to_string(),
              ticket_.status.ok());
  take(communicator_.receive_combine(ticket_, outputs_));
}

CombineResult CombineCall::queue(void* stream) const {
  CombineOptions options = options_;
  options.stream = stream;
  return communicator_.combine(y_, handle_, outputs_.out, options, outputs_);
}

void CombineCall::load(const CombineCall& captured) const {
  copy_tensor(y_tensor_, captured.y_);
  copy_tensor(weights_tensor_, captured.options_.weights);
  copy_tensor(row_weights_tensor_, captured.options_.row_weights);
  for (std::size_t i = 0; i < extras_.size(); ++i) {
    copy_tensor(extras_[i], captured.extras_[i].view());
  }
  copy_tensor(out_tensor_, captured.outputs_.out);
  copy_tensor(surviving_tensor_, captured.outputs_.surviving_weight);
  copy_tensor(weights_home_tensor_, captured.outputs_.weights_home);
  support::place().fill(captured.outputs_.report, 0xFF, sizeof(Report));
}

void CombineCall::unload(const CombineCall& captured, const CombineResult& result) {
  support::Place& place = support::place();
  copy_tensor(captured.out_tensor_, outputs_.out);
  copy_tensor(captured.surviving_tensor_, outputs_.surviving_weight);
  copy_tensor(captured.weights_home_tensor_, outputs_.weights_home);
  place.write(outputs_.report, captured.outputs_.report, sizeof(Report));
  take(result);
}

void CombineCall::check() {
  findings_.set_context(context_);
  expect_true(findings_, kRefusal, "status: " + result_.status.to_string(), result_.status.ok());
  if (!result_.status.ok()) return;
  const reference::DispatchProblem& problem = step_.dispatches[0];
  expect_equal(findings_, kLoss, "report.lost_routes", expected_.lost_routes,
               result_.report.lost_routes);
  expect_equal(findings_, kReport, "lost_routes of the report in the caller's memory",
               result_.report.lost_routes, outputs_.report->lost_routes);
  expect_true(findings_, kReport, "report.missing is not empty", result_.report.missing.empty());
  expect_true(findings_, kReport, "report.mismatched is not empty",
              result_.report.mismatched.empty());
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const bool refused = !step_.spec.lost_ranks.empty() && step_.spec.lost_ranks[at(rank)];
    expect_equal(findings_, kRefusal, "report.refused names a rank", refused ? 1 : 0,
                 result_.report.refused.contains(rank) ? 1 : 0);
  }
  const auto hidden = at(problem.hidden);
  const DType dtype = step_.spec.out_dtype;
  const std::int64_t tokens = problem.inputs[at(rank_)].tokens;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::byte* wanted =
        expected_.out.data() + at(token) * hidden * reference::bytes_of(dtype);
    if (!expect_row(findings_, kNumbers, fmt::format("out of token {}", token), dtype, wanted,
                    out_tensor_.row(token), hidden)) {
      break;
    }
  }
  if (survival_) {
    expect_values(findings_, kSurviving, "surviving_weight", expected_.surviving_weight,
                  outputs_.surviving_weight);
  }
  if (step_.spec.row_weights) {
    expect_values(findings_, kWeightsHome, "weights_home", expected_.weights_home,
                  outputs_.weights_home, problem.top_k);
  }
  for (Tensor* tensor : {&out_tensor_, &weights_home_tensor_}) {
    if (!tensor->view().given()) continue;
    for (std::int64_t token = 0; token < tokens; ++token) tensor->poison_row(token);
    expect_true(findings_, kStrides,
                fmt::format("{}: a byte between the rows was written",
                            tensor == &out_tensor_ ? "out" : "weights_home"),
                tensor->first_written() < 0);
  }
}

}  // namespace sluice::conformance
