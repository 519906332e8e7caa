// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "conformance/scenario.hpp"
#include "support/tensor.hpp"

namespace sluice::conformance {

/// A call's input in registered memory, which the host may not be able to write itself.
class RegisteredCopy {
 public:
  RegisteredCopy() = default;
  ~RegisteredCopy();
  RegisteredCopy(const RegisteredCopy&) = delete;
  RegisteredCopy& operator=(const RegisteredCopy&) = delete;

  /// The same as `tensor`, there. Once; `tensor` stays as it is until the call has ended.
  TensorView of(const support::Tensor& tensor, Communicator& communicator,
                support::Findings& findings);

 private:
  Communicator* communicator_ = nullptr;
  support::Findings* findings_ = nullptr;
  void* memory_ = nullptr;
};

/// One rank's side of one dispatch: it owns the inputs and the outputs, so that any number may be
/// in flight, and knows what must come out.
class DispatchCall {
 public:
  /// `repetition` 0 is the step's own dispatch, n its n-th cached one.
  DispatchCall(Communicator& communicator, const Step& step, int repetition,
               support::Findings& findings);
  ~DispatchCall();
  DispatchCall(const DispatchCall&) = delete;
  DispatchCall& operator=(const DispatchCall&) = delete;

  /// The call in one piece: a first dispatch, or one along `cached`.
  void whole();
  void whole(const Handle& cached);
  void send();
  void send(const Handle& cached);
  void receive();
  /// The routing only, checked; `whole(handle)` then moves the rows.
  void plan();

  /// The call in one piece, on this stream: nothing waits for it here, or has taken what comes.
  Received queue(void* stream) const;
  /// For a call that a graph repeats, with other data each time. load() lets `captured` read what this call has, and empties what it
  /// writes, before whatever follows on the place's stream; unload() takes what it has left, as if `received` had come of
  /// this call, once it is over.
  void load(const DispatchCall& captured) const;
  void unload(const DispatchCall& captured, const Received& received);

  /// Compares everything that came out with the reference.
  void check();

  const Received& received() const { return received_; }
  Received& received() { return received_; }
  const Handle& handle() const { return received_.handle; }
  /// The shape that y must have for what was received here.
  std::vector<std::int64_t> rows_shape() const;

  // The arguments, for calls that differ in one of them.
  ConstTensorView x() const { return x_; }
  ConstTensorView ids() const { return ids_; }
  ConstTensorView weights() const { return weights_; }
  const DispatchOptions& options() const { return options_; }
  const DispatchOutputs& outputs() const { return outputs_; }
  void take(Received received) {
    received_ = std::move(received);
    settle();
  }

 private:
  void make_inputs();
  /// `in_place`: x_tensor_ where the call reads it.
  void make_encoded_x(const std::function<TensorView()>& in_place, bool null);
  void make_outputs();
  /// Waits for the call, and brings to the host what the library owns elsewhere.
  void settle();
  /// Rows that may come at most.
  std::int64_t most_rows() const;
  void check_report();
  void check_routes();
  void check_counts();
  void check_records();
  void check_sources();
  void check_rows();
  void check_padding();
  void check_given_memory();

  Communicator& communicator_;
  const Step& step_;
  support::Findings& findings_;
  std::string context_;
  int rank_;
  const reference::DispatchProblem& problem_;
  const reference::Dispatched& expected_;
  const reference::RankRows& rows_;
  bool moves_rows_ = true;
  std::shared_ptr<void> report_;               // A Report.
  std::vector<std::int64_t> row_counts_seen_;  // As soon as they had come.
  bool along_handle_ = false;

  support::Tensor x_tensor_, given_scales_, ids_tensor_, weights_tensor_, mask_tensor_;
  support::Tensor rows_tensor_, scales_tensor_, handle_tensor_, row_counts_tensor_;
  std::deque<support::Tensor> allocated_;
  std::vector<std::byte> rows_copy_, scales_copy_;
  void* allocated_rows_ = nullptr;
  void* allocated_scales_ = nullptr;
  RegisteredCopy registered_;
  ConstTensorView x_, ids_, weights_;
  DispatchOptions options_;
  DispatchOutputs outputs_;
  DispatchTicket ticket_;
  Received received_;
};

/// One rank's side of one combine.
class CombineCall {
 public:
  /// `rows_shape`: of the tensor that the dispatch filled (DispatchCall::rows_shape).
  CombineCall(Communicator& communicator, const Step& step, int repetition, const Handle& handle,
              const std::vector<std::int64_t>& rows_shape, support::Findings& findings);
  CombineCall(const CombineCall&) = delete;
  CombineCall& operator=(const CombineCall&) = delete;

  void whole();
  void send();
  void receive();
  /// As of DispatchCall.
  CombineResult queue(void* stream) const;
  void load(const CombineCall& captured) const;
  void unload(const CombineCall& captured, const CombineResult& result);
  void check();

  const CombineResult& result() const { return result_; }
  ConstTensorView y() const { return y_; }
  TensorView out() const { return outputs_.out; }
  const CombineOptions& options() const { return options_; }
  const CombineOutputs& outputs() const { return outputs_; }
  void take(CombineResult result) {
    result_ = std::move(result);
    settle();
  }

 private:
  void settle();
  void make_y(const std::vector<std::int64_t>& rows_shape);
  void make_options();
  void make_outputs();

  Communicator& communicator_;
  const Step& step_;
  support::Findings& findings_;
  std::string context_;
  int rank_;
  /// Whether the call asks for the surviving weights: those that do not may get kernels of their own.
  bool survival_;
  const reference::CombineProblem& problem_;
  const reference::CombineInput& input_;
  const reference::Combined& expected_;
  Handle handle_;

  support::Tensor y_tensor_, weights_tensor_, row_weights_tensor_;
  support::Tensor out_tensor_, surviving_tensor_, weights_home_tensor_;
  std::deque<support::Tensor> extras_;
  RegisteredCopy registered_;
  ConstTensorView y_;
  CombineOptions options_;
  CombineOutputs outputs_;
  CombineTicket ticket_;
  CombineResult result_;
  std::shared_ptr<void> report_;  // A Report.
};

/// A view without memory, as frameworks give for empty tensors, in place of an empty one.
ConstTensorView or_null(ConstTensorView view, bool null);

/// Copies what is in one tensor of a call, if there is one, to where another call of the same shape has it: by the place's stream.
void copy_tensor(const support::Tensor& from, const ConstTensorView& to);

/// Bytes of a vector of numbers.
template <typename T>
std::vector<std::byte> bytes_of_values(const std::vector<T>& values) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  return std::vector<std::byte>(data, data + values.size() * sizeof(T));
}

}  // namespace sluice::conformance
