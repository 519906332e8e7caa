// SPDX-License-Identifier: MIT
#include "bootstrap/launch_environment.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "sluice/limits.hpp"
#include "store/address.hpp"
#include "transport/own_address.hpp"

namespace sluice::bootstrap {
namespace {

using base::Environment;
using base::name_of;
using base::Variable;

Status bad_value(Variable variable, const std::string& value, const std::string& expected) {
  return Status(StatusCode::invalid_argument,
                std::string(name_of(variable)) + " is \"" + value + "\", expected " + expected);
}

Status missing_value(const char* launcher, Variable variable) {
  return Status(StatusCode::invalid_argument, std::string("the environment looks like that of ") +
                                                  launcher + ", but " + name_of(variable) +
                                                  " is not set");
}

/// Reads values of one launcher; the first thing that is wrong stays in status().
class Reader {
 public:
  Reader(const Environment& environment, const char* launcher)
      : environment_(environment), launcher_(launcher) {}

  int number(Variable variable, int least, int most) {
    const auto& text = environment_.get(variable);
    if (!text.has_value()) {
      fail(missing_value(launcher_, variable));
      return least;
    }
    int value = 0;
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > most) {
      fail(bad_value(variable, *text,
                     "a number from " + std::to_string(least) + " to " + std::to_string(most)));
      return least;
    }
    return value;
  }
  std::string text(Variable variable) {
    const auto& value = environment_.get(variable);
    if (!value.has_value()) fail(missing_value(launcher_, variable));
    return value.value_or("");
  }
  /// The size first: it bounds the rank.
  Launch launch(Variable rank, Variable size) {
    Launch launch;
    launch.launcher = launcher_;
    launch.size = number(size, 1, kMaxRanks);
    launch.rank = number(rank, 0, launch.size - 1);
    return launch;
  }
  const Status& status() const noexcept { return status_; }

 private:
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const Environment& environment_;
  const char* launcher_;
  Status status_;
};

// Long names of jobs are shortened to a prefix and a hash (FNV-1a), which keeps them apart.
std::string joined(std::string name, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) name += "-" + part;
  if (name.size() > store::kNameBytesMax) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
    name = name.substr(0, store::kNameBytesMax - 21) + "-" + std::to_string(hash);
  }
  return name;
}

// A rendezvous that only ranks of one job on one host know.
std::string unix_rendezvous(std::initializer_list<std::string> parts) {
  return "unix:" + joined("sluice-" + std::to_string(::geteuid()), parts);
}

Status nowhere_to_meet(const Launch& launch, const std::string& seen) {
  return Status(
      StatusCode::invalid_argument,
      std::string(launch.launcher) + " started " + std::to_string(launch.size) +
          " ranks on several hosts (" + seen + "), and does not say where they can meet: set " +
          name_of(Variable::rendezvous) +
          " on all of them to tcp:host:port, the host of rank 0 and a port that is free there");
}

/// Rank and size as the launcher says, the place as the environment does.
Result<Launch> at_rendezvous(const Environment& environment, const Reader& reader, Launch launch) {
  if (!reader.status().ok()) return reader.status();
  launch.rendezvous = environment.get(Variable::rendezvous).value_or("");
  if (store::parse_address(launch.rendezvous).ok()) return launch;
  return bad_value(Variable::rendezvous, launch.rendezvous,
                   "tcp:host:port, tcp:[IPv6 address]:port, one of these with /name, or unix:name");
}

Result<Launch> from_sluice(const Environment& environment) {
  Reader reader(environment, "Sluice");
  Launch launch = reader.launch(Variable::rank, Variable::size);
  static_cast<void>(reader.text(Variable::rendezvous));  // There has to be one.
  return at_rendezvous(environment, reader, launch);
}

Result<Launch> from_torchrun(const Environment& environment) {
  Reader reader(environment, "torchrun");
  Launch launch = reader.launch(Variable::torch_rank, Variable::torch_world_size);
  if (environment.has(Variable::rendezvous)) return at_rendezvous(environment, reader, launch);
  // The port itself is taken by the launcher's own store: it names the job, or gives its neighbour.
  const int port = reader.number(Variable::torch_master_port, 1, 65534);
  const std::string host = reader.text(Variable::torch_master_address);
  // Not every launcher that speaks torchrun's language says how many ranks are here.
  const bool all_here =
      environment.has(Variable::torch_local_world_size)
          ? reader.number(Variable::torch_local_world_size, 1, launch.size) == launch.size
          : launch.size == 1 || host == "localhost" || transport::is_loopback(host);
  if (!reader.status().ok()) return reader.status();
  if (all_here) {
    launch.rendezvous = unix_rendezvous(
        {"torchrun", std::to_string(port), environment.get(Variable::torch_run_id).value_or("none"),
         environment.get(Variable::torch_restart_count).value_or("0")});
  } else {
    store::Address address;
    address.host = host;
    address.port = static_cast<std::uint16_t>(port + 1);
    // How often it was restarted every agent counts for itself.
    address.name = joined("torchrun", {environment.get(Variable::torch_run_id).value_or("none")});
    launch.rendezvous = store::to_string(address);
  }
  return launch;
}

Result<Launch> from_open_mpi(const Environment& environment) {
  Reader reader(environment, "mpirun");
  Launch launch = reader.launch(Variable::open_mpi_rank, Variable::open_mpi_size);
  if (environment.has(Variable::rendezvous)) return at_rendezvous(environment, reader, launch);
  const int local = reader.number(Variable::open_mpi_local_size, 1, launch.size);
  const std::string job = reader.text(Variable::pmix_namespace);
  if (!reader.status().ok()) return reader.status();
  if (local != launch.size) return nowhere_to_meet(launch, std::to_string(local) + " of them here");
  launch.rendezvous = unix_rendezvous({"mpirun", job});
  return launch;
}

Result<Launch> from_srun(const Environment& environment) {
  Reader reader(environment, "srun");
  const bool has_step_tasks = environment.has(Variable::slurm_step_tasks);
  Launch launch = reader.launch(
      Variable::slurm_rank, has_step_tasks ? Variable::slurm_step_tasks : Variable::slurm_tasks);
  if (environment.has(Variable::rendezvous)) return at_rendezvous(environment, reader, launch);
  const std::string job = reader.text(Variable::slurm_job);
  const std::string step = reader.text(Variable::slurm_step);
  int nodes = 1;
  for (const Variable variable : {Variable::slurm_step_nodes, Variable::slurm_nodes}) {
    if (!environment.has(variable)) continue;
    nodes = reader.number(variable, 1, std::numeric_limits<int>::max());
    break;
  }
  if (!reader.status().ok()) return reader.status();
  if (nodes > 1) return nowhere_to_meet(launch, std::to_string(nodes) + " nodes");
  launch.rendezvous = unix_rendezvous({"srun", job, step});
  return launch;
}

/// Of the first launcher whose variables are set; null: none are.
using Reading = Result<Launch> (*)(const Environment& environment);
Reading reading_of(const Environment& environment) {
  if (environment.has(Variable::rank) || environment.has(Variable::size)) return from_sluice;
  // RANK alone is too common a name to mean torchrun.
  if (environment.has(Variable::torch_rank) && environment.has(Variable::torch_world_size)) {
    return from_torchrun;
  }
  if (environment.has(Variable::open_mpi_rank)) return from_open_mpi;
  // A batch script has SLURM_PROCID too: only srun gives a step.
  if (environment.has(Variable::slurm_rank) && environment.has(Variable::slurm_step)) {
    return from_srun;
  }
  return nullptr;
}

}  // namespace

bool is_launched(const Environment& environment) {
  return reading_of(environment) != nullptr;
}

Result<Launch> read_launch(const Environment& environment) {
  if (const Reading read = reading_of(environment)) return read(environment);
  // Says what is missing.
  if (environment.has(Variable::rendezvous)) return from_sluice(environment);
  return Status(StatusCode::invalid_argument,
                "no launcher found: expected SLUICE_RANK, SLUICE_SIZE and SLUICE_RENDEZVOUS, or a "
                "start by torchrun, mpirun (Open MPI) or srun");
}

}  // namespace sluice::bootstrap
