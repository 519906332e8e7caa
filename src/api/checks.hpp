// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "engine/engine.hpp"
#include "sluice/communicator.hpp"
#include "window/handle_layout.hpp"

/// What the arguments of dispatch and of combine are checked for alike.
namespace sluice::api {

/// An extent that is left open.
inline constexpr std::int64_t kAny = -1;

Status invalid(std::string message);
bool on_host(const engine::EngineConfig& config) noexcept;

/// Dimensions, place and memory of a tensor [rows, columns] or [rows]; kAny leaves rows open.
Status check_tensor(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view, int dims, std::int64_t rows, std::int64_t columns);
Status check_device(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view);
/// `fits`: whether it is one of those `expected`.
Status check_dtype(const char* name, const ConstTensorView& view, bool fits, const char* expected);
/// Whether a dtype is one that rows are summed in.
bool is_float(DType dtype) noexcept;
Status check_innermost(const char* name, const ConstTensorView& view);
/// [rows, H] of bf16, f16 or f32.
Status check_rows(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                  std::int64_t rows);
Status check_f32(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                 int dims, std::int64_t rows, std::int64_t columns);
Status check_tokens(const engine::EngineConfig& config, std::int64_t tokens);

/// Whether the handle was made by this rank of a communicator of this shape. What lies on a GPU is
/// checked there.
Status check_handle(const engine::EngineConfig& config, const Handle& handle);
/// What the host knows of a handle: all of it, or what the call says itself.
window::HandleHeader known_header(const engine::EngineConfig& config, const Handle& handle);

}  // namespace sluice::api
