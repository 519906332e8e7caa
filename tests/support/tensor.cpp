// SPDX-License-Identifier: MIT
#include "support/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "reference/small_float.hpp"
#include "support/place.hpp"

namespace sluice::support {

namespace {

std::size_t last(const TensorView& view) {
  return static_cast<std::size_t>(view.dims - 1);
}

}  // namespace

std::size_t Tensor::bytes_needed(DType dtype, const std::vector<std::int64_t>& shape,
                                 std::int64_t gap) {
  std::int64_t elements = shape.back() + gap;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) elements *= shape[d];
  return static_cast<std::size_t>(elements) * reference::bytes_of(dtype);
}

Tensor::Tensor(DType dtype, const std::vector<std::int64_t>& shape, std::int64_t gap,
               void* memory) {
  view_.dtype = dtype;
  view_.dims = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    view_.shape[d] = shape[d];
    view_.strides[d] = stride;
    stride *= d + 1 == shape.size() ? shape[d] + gap : shape[d];
  }
  bytes_ = bytes_needed(dtype, shape, gap);
  place(memory);
}

Tensor Tensor::token_contiguous(DType dtype, const std::vector<std::int64_t>& shape,
                                std::int64_t gap) {
  Tensor tensor;
  tensor.view_.dtype = dtype;
  tensor.view_.dims = static_cast<int>(shape.size());
  const std::size_t columns = shape.size() - 1;
  const std::size_t rows = shape.size() - 2;
  for (std::size_t d = 0; d < shape.size(); ++d) tensor.view_.shape[d] = shape[d];
  tensor.view_.strides[rows] = 1;
  tensor.view_.strides[columns] = shape[rows] + gap;
  std::int64_t elements = (shape[rows] + gap) * shape[columns];
  if (shape.size() == 3) {
    tensor.view_.strides[0] = elements;
    elements *= shape[0];
  }
  tensor.bytes_ = static_cast<std::size_t>(elements) * reference::bytes_of(dtype);
  tensor.place(nullptr);
  return tensor;
}

void Tensor::place(void* memory) {
  data_ = static_cast<std::byte*>(memory);
  storage_.reset();
  if (data_ == nullptr) {
    storage_ = support::place().allocate(bytes_);
    data_ = static_cast<std::byte*>(storage_.get());
  }
  std::fill_n(data_, bytes_, kPoison);
  view_.data = data_;
  view_.device = support::place().device();
}

std::int64_t Tensor::rows() const {
  std::int64_t rows = 1;
  for (std::size_t d = 0; d < last(view_); ++d) rows *= view_.shape[d];
  return rows;
}

const std::byte* row_of(const ConstTensorView& view, std::int64_t r) {
  std::int64_t place = 0;
  if (view.dims == 3) {
    place = r / view.shape[1] * view.strides[0] + r % view.shape[1] * view.strides[1];
  } else if (view.dims == 2) {
    place = r * view.strides[0];
  }
  return static_cast<const std::byte*>(view.data) +
         place * static_cast<std::int64_t>(reference::bytes_of(view.dtype));
}

std::byte* Tensor::row(std::int64_t r) const {
  return data_ + (row_of(view_, r) - static_cast<const std::byte*>(view_.data));
}

void Tensor::fill(const std::vector<std::byte>& contiguous) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(columns()) * reference::bytes_of(view_.dtype);
  const auto given = static_cast<std::int64_t>(row_bytes > 0 ? contiguous.size() / row_bytes : 0);
  for (std::int64_t r = 0; r < given; ++r) {
    set_row(r, contiguous.data() + static_cast<std::size_t>(r) * row_bytes);
  }
}

void Tensor::set_row(std::int64_t r, const std::byte* elements) {
  const std::size_t bytes = reference::bytes_of(view_.dtype);
  const auto stride = static_cast<std::size_t>(view_.strides[last(view_)]) * bytes;
  std::byte* to = row(r);
  for (std::int64_t c = 0; c < columns(); ++c, elements += bytes, to += stride) {
    std::memcpy(to, elements, bytes);
  }
}

void Tensor::poison_row(std::int64_t r) {
  const std::vector<std::byte> poison(
      static_cast<std::size_t>(columns()) * reference::bytes_of(view_.dtype), kPoison);
  set_row(r, poison.data());
}

std::int64_t Tensor::first_written() const {
  const std::byte* end = data_ + bytes_;
  const std::byte* found = std::find_if(static_cast<const std::byte*>(data_), end,
                                        [](std::byte b) { return b != kPoison; });
  return found == end ? -1 : found - data_;
}

}  // namespace sluice::support
