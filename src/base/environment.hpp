// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace sluice::base {

/// Every environment variable that the library reads. The table in environment.cpp says what each
/// is called and means; nothing else in the library calls getenv.
enum class Variable : std::uint8_t {
  log,
  kernels,
  cuda_memory,
  network,
  network_signals,
  network_rails,
  network_address,
  network_nics,
  network_receiver,
  network_bundle,
  network_chunk,
  network_message_rows,
  network_credits,
  network_patience,
  network_gpu,
  mutant,
  rank,
  size,
  rendezvous,
  node,
  torch_rank,
  torch_world_size,
  torch_local_world_size,
  torch_master_address,
  torch_master_port,
  torch_run_id,
  torch_restart_count,
  open_mpi_rank,
  open_mpi_size,
  open_mpi_local_size,
  pmix_namespace,
  slurm_rank,
  slurm_tasks,
  slurm_step_tasks,
  slurm_nodes,
  slurm_step_nodes,
  slurm_job,
  slurm_step,
  count_,  // Not a variable: how many there are.
};

struct VariableFacts {
  Variable variable;
  const char* name;
  const char* meaning;
};
std::span<const VariableFacts> all_variables() noexcept;
const char* name_of(Variable variable) noexcept;

/// The values of all variables at one moment. An empty value counts as not set.
class Environment {
 public:
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  /// Reads every variable once.
  explicit Environment(const Lookup& lookup);
  /// The process's own variables now. Joining a world reads them afresh: a forked worker may have
  /// been given a rank of its own after its parent first used the library.
  static Environment read();
  /// The process's variables as they were at first use: for settings that hold for a process's
  /// life (SLUICE_LOG, SLUICE_KERNELS).
  static const Environment& at_start();

  const std::optional<std::string>& get(Variable variable) const noexcept {
    return values_[static_cast<std::size_t>(variable)];
  }
  bool has(Variable variable) const noexcept { return get(variable).has_value(); }

 private:
  std::array<std::optional<std::string>, static_cast<std::size_t>(Variable::count_)> values_;
};

}  // namespace sluice::base
