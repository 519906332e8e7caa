// SPDX-License-Identifier: MIT
#include "base/environment.hpp"

#include <cstdlib>

namespace sluice::base {
namespace {

constexpr std::size_t kCount = static_cast<std::size_t>(Variable::count_);

// In the order of the enumeration, which the static_assert below checks.
constexpr std::array<VariableFacts, kCount> kVariables{{
    {Variable::log, "SLUICE_LOG", "what is logged to stderr: error, warn (default), info, debug"},
    {Variable::kernels, "SLUICE_KERNELS", "forces the row functions of one instruction set"},
    {Variable::cuda_memory, "SLUICE_CUDA_MEMORY",
     "how GPU memory is shared: vmm (default), ipc or fabric"},
    {Variable::network, "SLUICE_NETWORK",
     "between nodes: providers of libfabric by preference, as net,tcp;ofi_rxm; or "
     "memory[-gpu][:seed]"},
    {Variable::network_signals, "SLUICE_NETWORK_SIGNALS",
     "how chunks are signalled: immediate, ordered or serial; default: what the provider can do"},
    {Variable::network_rails, "SLUICE_NETWORK_RAILS", "endpoints of a rank, 1 (default) to 8"},
    {Variable::network_address, "SLUICE_NETWORK_ADDRESS",
     "host name or address of the interface to other nodes"},
    {Variable::network_nics, "SLUICE_NETWORK_NICS",
     "network cards that rails may be of, as mlx5_0,mlx5_1; default: all, on TCP one"},
    {Variable::network_receiver, "SLUICE_NETWORK_RECEIVER",
     "whether a thread of its own receives: yes or no; default: on TCP, with 3 processors a rank"},
    {Variable::network_bundle, "SLUICE_NETWORK_BUNDLE",
     "chunks of up to so many bytes travel together (16000); 0: none do"},
    {Variable::network_chunk, "SLUICE_NETWORK_CHUNK",
     "longest piece that is put at once, in bytes (524288)"},
    {Variable::network_message_rows, "SLUICE_NETWORK_MESSAGE_ROWS",
     "rows that are passed on together when all have come, 1 to 256 (64)"},
    {Variable::network_credits, "SLUICE_NETWORK_CREDITS",
     "chunks under way to one peer, 4 to 65536 (256)"},
    {Variable::network_patience, "SLUICE_NETWORK_PATIENCE_MS",
     "a rank of another node that is silent for so long is given up (900)"},
    {Variable::network_gpu, "SLUICE_NETWORK_GPU",
     "rows of GPUs to other nodes: staged in host memory, or direct, else fail; default: what can "
     "be"},
    {Variable::mutant, "SLUICE_MUTANT", "test builds only: the mutant that runs"},
    {Variable::rank, "SLUICE_RANK", "this process's rank, from 0"},
    {Variable::size, "SLUICE_SIZE", "ranks of the world"},
    {Variable::rendezvous, "SLUICE_RENDEZVOUS",
     "where ranks meet: tcp:host:port, tcp:host:port/name or unix:name"},
    {Variable::node, "SLUICE_NODE",
     "ranks of one machine with different values count as ranks of different nodes"},
    {Variable::torch_rank, "RANK", "torchrun: rank"},
    {Variable::torch_world_size, "WORLD_SIZE", "torchrun: ranks"},
    {Variable::torch_local_world_size, "LOCAL_WORLD_SIZE", "torchrun: ranks of this host"},
    {Variable::torch_master_address, "MASTER_ADDR", "torchrun: the host of rank 0"},
    {Variable::torch_master_port, "MASTER_PORT", "torchrun: the port of its own store"},
    {Variable::torch_run_id, "TORCHELASTIC_RUN_ID", "torchrun: names the job"},
    {Variable::torch_restart_count, "TORCHELASTIC_RESTART_COUNT", "torchrun: starts so far"},
    {Variable::open_mpi_rank, "OMPI_COMM_WORLD_RANK", "mpirun (Open MPI): rank"},
    {Variable::open_mpi_size, "OMPI_COMM_WORLD_SIZE", "mpirun (Open MPI): ranks"},
    {Variable::open_mpi_local_size, "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun: ranks of this host"},
    {Variable::pmix_namespace, "PMIX_NAMESPACE", "mpirun (Open MPI): names the job"},
    {Variable::slurm_rank, "SLURM_PROCID", "srun: rank"},
    {Variable::slurm_tasks, "SLURM_NTASKS", "srun: ranks, where SLURM_STEP_NUM_TASKS is missing"},
    {Variable::slurm_step_tasks, "SLURM_STEP_NUM_TASKS", "srun: ranks of the step"},
    {Variable::slurm_nodes, "SLURM_NNODES", "srun: hosts, where SLURM_STEP_NUM_NODES is missing"},
    {Variable::slurm_step_nodes, "SLURM_STEP_NUM_NODES", "srun: hosts of the step"},
    {Variable::slurm_job, "SLURM_JOB_ID", "srun: names the job"},
    {Variable::slurm_step, "SLURM_STEP_ID", "srun: names the step within the job"},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (static_cast<std::size_t>(kVariables[i].variable) != i) return false;
  }
  return true;
}
static_assert(in_order(), "every variable has one line, in the order of the enumeration");

std::optional<std::string> process_lookup(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace

std::span<const VariableFacts> all_variables() noexcept {
  return kVariables;
}

const char* name_of(Variable variable) noexcept {
  return kVariables[static_cast<std::size_t>(variable)].name;
}

Environment::Environment(const Lookup& lookup) {
  for (const VariableFacts& facts : kVariables) {
    auto value = lookup(facts.name);
    if (value.has_value() && value->empty()) value.reset();
    values_[static_cast<std::size_t>(facts.variable)] = std::move(value);
  }
}

Environment Environment::read() {
  return Environment(process_lookup);
}

const Environment& Environment::at_start() {
  static const Environment environment = read();
  return environment;
}

}  // namespace sluice::base
