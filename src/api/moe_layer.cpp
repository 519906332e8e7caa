// SPDX-License-Identifier: MIT
#include "sluice/moe_layer.hpp"

#include <utility>

#include "api/guarded.hpp"

namespace sluice {
namespace {

Status finalized_status() noexcept {
  return api::guarded([] {
    return Status(StatusCode::failed_precondition,
                  "the MoeLayer has been finalized; expected a live one");
  });
}

}  // namespace

Result<MoeLayer> MoeLayer::create(World& world, const Shape& shape,
                                  const CommunicatorOptions& options) {
  Result<Communicator> communicator = Communicator::create(world, shape, options);
  if (!communicator) return communicator.status();
  return MoeLayer(std::move(communicator).value());
}

MoeLayer::MoeLayer(Communicator communicator) : communicator_(std::move(communicator)) {}

// An engaged optional stays engaged when it is moved from, so that the source would look alive.
MoeLayer::MoeLayer(MoeLayer&& other) noexcept
    : communicator_(std::exchange(other.communicator_, std::nullopt)),
      received_(std::exchange(other.received_, Received{})) {}

MoeLayer& MoeLayer::operator=(MoeLayer&& other) noexcept {
  if (this != &other) {
    finalize();
    communicator_ = std::exchange(other.communicator_, std::nullopt);
    received_ = std::exchange(other.received_, Received{});
  }
  return *this;
}

MoeLayer::~MoeLayer() {
  finalize();
}

const Received& MoeLayer::dispatch(ConstTensorView x, ConstTensorView topk_ids,
                                   ConstTensorView topk_weights, const DispatchOptions& options,
                                   const DispatchOutputs& outputs) {
  // The old rows go first: the communicator reuses their memory for the new ones.
  received_ = Received{};
  if (finalized()) {
    received_.status = finalized_status();
    return received_;
  }
  received_ = communicator_->dispatch(x, topk_ids, topk_weights, options, outputs);
  return received_;
}

CombineResult MoeLayer::combine(ConstTensorView y, TensorView out, const CombineOptions& options,
                                const CombineOutputs& outputs) {
  if (finalized()) return CombineResult{finalized_status(), Report{}};
  // Without a dispatch the handle is not given; the communicator refuses it, and peers complete.
  return communicator_->combine(y, received_.handle, out, options, outputs);
}

void MoeLayer::release_rows() noexcept {
  received_.release();
  received_.rows = {};
  received_.scales = {};
}

void MoeLayer::finalize() noexcept {
  received_ = Received{};
  communicator_.reset();
}

}  // namespace sluice
