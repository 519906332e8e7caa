// SPDX-License-Identifier: MIT
#include "api/checks.hpp"

#include <fmt/format.h>

#include "api/arguments.hpp"
#include "api/configuration.hpp"

namespace sluice::api {
namespace {

std::string extent(std::int64_t expected) {
  return expected == kAny ? "any" : fmt::format("{}", expected);
}

}  // namespace

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

bool is_float(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

bool on_host(const engine::EngineConfig& config) noexcept {
  return config.options.device == Device::cpu;
}

Status check_device(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view) {
  if (view.device == config.options.device) return {};
  return invalid(fmt::format("{} is in {} memory, expected {} memory (the communicator's device)",
                             name, to_string(view.device), to_string(config.options.device)));
}

Status check_tensor(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view, int dims, std::int64_t rows,
                    std::int64_t columns) {
  if (!view.given()) return invalid(fmt::format("{} is not given", name));
  if (view.dims != dims) {
    return invalid(fmt::format("{} has {} dimensions, expected {}", name, view.dims, dims));
  }
  if (Status status = check_device(config, name, view); !status.ok()) return status;
  if (view.shape[0] < 0 || (rows != kAny && view.shape[0] != rows) ||
      (dims == 2 && view.shape[1] != columns)) {
    return invalid(dims == 1 ? fmt::format("{} has shape [{}], expected [{}]", name, view.shape[0],
                                           extent(rows))
                             : fmt::format("{} has shape [{}, {}], expected [{}, {}]", name,
                                           view.shape[0], view.shape[1], extent(rows), columns));
  }
  if (view.data == nullptr && view.shape[0] > 0) {
    return invalid(fmt::format("{} has {} rows and no memory (null data)", name, view.shape[0]));
  }
  return {};
}

Status check_dtype(const char* name, const ConstTensorView& view, bool fits, const char* expected) {
  if (fits) return {};
  return invalid(
      fmt::format("{} has dtype {}, expected {}", name, to_string(view.dtype), expected));
}

Status check_innermost(const char* name, const ConstTensorView& view) {
  const std::int64_t stride = view.strides[static_cast<std::size_t>(view.dims) - 1];
  if (stride == 1) return {};
  return invalid(fmt::format("{} has innermost stride {}, expected 1", name, stride));
}

Status check_rows(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                  std::int64_t rows) {
  const std::int64_t hidden = config.shape.hidden;
  if (Status status = check_tensor(config, name, view, 2, rows, hidden); !status.ok())
    return status;
  if (Status status = check_dtype(name, view, is_float(view.dtype), "bf16, f16 or f32");
      !status.ok()) {
    return status;
  }
  return check_innermost(name, view);
}

Status check_f32(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                 int dims, std::int64_t rows, std::int64_t columns) {
  if (Status status = check_tensor(config, name, view, dims, rows, columns); !status.ok())
    return status;
  return check_dtype(name, view, view.dtype == DType::f32, "f32");
}

Status check_tokens(const engine::EngineConfig& config, std::int64_t tokens) {
  if (tokens <= config.tokens_max) return {};
  return invalid(fmt::format("{} tokens, expected at most {} ({})", tokens, config.tokens_max,
                             config.throughput() ? "max_tokens" : "slot_tokens of mode latency"));
}

Status check_handle(const engine::EngineConfig& config, const Handle& handle) {
  if (!handle.given()) return invalid("the handle is not given");
  if (handle.device() != config.options.device) {
    return invalid(fmt::format("the handle is in {} memory, expected {} memory",
                               to_string(handle.device()), to_string(config.options.device)));
  }
  if (!on_host(config)) return check_handle_memory(config, handle);
  if (!handle.valid()) {
    return invalid(
        fmt::format("the handle ({} bytes at {}) is not a filled handle of {} bytes, aligned "
                    "to 64",
                    handle.bytes(), fmt::ptr(handle.data()), handle_layout(config).bytes));
  }
  const auto& header = *static_cast<const window::HandleHeader*>(handle.data());
  if (header.fingerprint != config.fingerprint || header.rank != config.rank) {
    return invalid(
        fmt::format("the handle is foreign: it is of rank {} and shape {:#x}, expected rank "
                    "{} and shape {:#x}",
                    header.rank, header.fingerprint, config.rank, config.fingerprint));
  }
  return {};
}

window::HandleHeader known_header(const engine::EngineConfig& config, const Handle& handle) {
  if (on_host(config)) return *static_cast<const window::HandleHeader*>(handle.data());
  window::HandleHeader header;
  header.local_experts = config.local_experts();
  header.tokens = kAny;
  header.rows = kAny;
  return header;
}

}  // namespace sluice::api
