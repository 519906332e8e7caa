// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include "sluice/communicator.hpp"
#include "sluice/export.hpp"
#include "sluice/handle.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"
#include "sluice/world.hpp"

namespace sluice {

/// The usual life of an MoE layer in four calls: create, then dispatch and combine per step, then
/// finalize. It owns one communicator and remembers the handle of the last dispatch, so that the
/// caller keeps no state. One object may serve all layers of a model that have one shape, as long
/// as each combine follows its dispatch. Whatever does not fit (halves, cached handles, plans) is
/// on communicator().
///
/// Calls come from one thread at a time. dispatch and combine are operations of the communicator:
/// every rank makes them in the same order.
class SLUICE_API MoeLayer {
 public:
  /// Collective over the world. The world may be destroyed before the layer. Fails as Communicator::create.
  static Result<MoeLayer> create(World& world, const Shape& shape,
                                 const CommunicatorOptions& options = {});

  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  ~MoeLayer();

  /// Sends x [T, H] (bf16, f16 or f32) to the ranks of its experts, topk_ids i32 or i64 [T, K],
  /// topk_weights f32 [T, K] (not given: 1). Blocks as Communicator::dispatch does. What it returns
  /// belongs to the layer and is valid until the next dispatch or finalize; its rows only until
  /// release_rows. On a refusal `status` is not ok, peers complete, and combine is still to be
  /// called. After finalize: failed_precondition, and peers are not told.
  const Received& dispatch(ConstTensorView x, ConstTensorView topk_ids,
                           ConstTensorView topk_weights = {}, const DispatchOptions& options = {},
                           const DispatchOutputs& outputs = {});

  /// Sums the experts' results y (rows as the last dispatch laid them out) into out [T, H]. May be
  /// called again for the same dispatch. Before the first dispatch it is a refusal: peers complete.
  /// Blocks as Communicator::combine does. After finalize: failed_precondition.
  CombineResult combine(ConstTensorView y, TensorView out, const CombineOptions& options = {},
                        const CombineOutputs& outputs = {});

  /// Gives the received rows back before combine; the handle stays. Local.
  void release_rows() noexcept;

  /// Frees everything. Local: waits for no peer, and leaves the world alone. A second call does
  /// nothing.
  void finalize() noexcept;
  bool finalized() const noexcept { return !communicator_.has_value(); }

  /// The communicator below; only while not finalized.
  Communicator& communicator() noexcept { return *communicator_; }
  const Communicator& communicator() const noexcept { return *communicator_; }
  /// What the last dispatch returned; `handle` is not given before the first one.
  const Received& received() const noexcept { return received_; }

 private:
  explicit MoeLayer(Communicator communicator);

  std::optional<Communicator> communicator_;
  Received received_;
};

}  // namespace sluice
