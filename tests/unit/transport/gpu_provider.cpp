// SPDX-License-Identifier: MIT
#include "unit/transport/gpu_provider.hpp"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

namespace sluice::transport::gpu_provider {
namespace {

struct State {
  Library real;
  Grants grants;
  std::vector<Registration> registrations;
  // Tables of the provider, with what is played in the place of its own, and what that was.
  fi_ops_fabric fabric;
  fi_ops_domain domain;
  fi_ops_mr memory;
  fi_ops_ep endpoint;
  decltype(fi_ops_fabric::domain) open_domain;
  decltype(fi_ops_domain::endpoint) open_endpoint;
  decltype(fi_ops_mr::reg) register_memory;
  decltype(fi_ops_ep::setopt) set_option;
};
State state;

/// What the provider itself is asked for.
fi_info* without_gpus(const fi_info* info) {
  fi_info* const plain = state.real.dupinfo(info);
  plain->caps &= ~FI_HMEM;
  plain->domain_attr->mr_mode &= ~FI_MR_HMEM;
  return plain;
}

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** info) {
  const bool asked = (hints->caps & FI_HMEM) != 0;
  if (asked && !state.grants.memory_of_gpus) return -FI_ENODATA;
  fi_info* const plain = without_gpus(hints);
  const int error = state.real.getinfo(version, node, service, flags, plain, info);
  state.real.freeinfo(plain);
  if (error != 0 || !asked) return error;
  for (fi_info* each = *info; each != nullptr; each = each->next) each->caps |= FI_HMEM;
  return 0;
}

int set_option(fid_t fid, int level, int option, const void* value, std::size_t bytes) {
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 18
  if (option == FI_OPT_CUDA_API_PERMITTED) {
    const bool forbidden = bytes == sizeof(bool) && !*static_cast<const bool*>(value);
    return forbidden && state.grants.without_cuda ? 0 : -FI_EOPNOTSUPP;
  }
#else
  if (option == FI_OPT_FI_HMEM_P2P) {
    const bool required =
        bytes == sizeof(int) && *static_cast<const int*>(value) == FI_HMEM_P2P_REQUIRED;
    return required && state.grants.without_cuda ? 0 : -FI_EOPNOTSUPP;
  }
#endif
  return state.set_option(fid, level, option, value, bytes);
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  fi_info* const plain = without_gpus(info);
  const int error = state.open_endpoint(domain, plain, endpoint, context);
  state.real.freeinfo(plain);
  if (error != 0) return error;
  state.endpoint = *(*endpoint)->ops;
  state.set_option = state.endpoint.setopt;
  state.endpoint.setopt = set_option;
  (*endpoint)->ops = &state.endpoint;
  return 0;
}

int register_memory(fid* domain, const fi_mr_attr* attributes, std::uint64_t flags,
                    fid_mr** memory) {
  Registration registration;
  registration.of_cuda = attributes->iface == FI_HMEM_CUDA;
  registration.device = attributes->device.cuda;
#if defined(FI_MR_DMABUF)
  registration.by_dmabuf = (flags & FI_MR_DMABUF) != 0;
  if (registration.by_dmabuf) {
    registration.file = attributes->dmabuf->fd;
    registration.offset = attributes->dmabuf->offset;
    registration.base =
        static_cast<const char*>(attributes->dmabuf->base_addr) + attributes->dmabuf->offset;
    registration.bytes = attributes->dmabuf->len;
  }
#else
  (void)flags;
#endif
  if (!registration.by_dmabuf) {
    registration.base = attributes->mr_iov->iov_base;
    registration.bytes = attributes->mr_iov->iov_len;
  }
  if (!(registration.by_dmabuf ? state.grants.dmabuf : state.grants.address)) return -FI_ENOSYS;
  if (state.grants.registrations-- <= 0) return -FI_ENOMEM;
  state.registrations.push_back(registration);
  return state.register_memory(domain, registration.base, registration.bytes, attributes->access,
                               attributes->offset, attributes->requested_key, 0, memory, nullptr);
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  fi_info* const plain = without_gpus(info);
  const int error = state.open_domain(fabric, plain, domain, context);
  state.real.freeinfo(plain);
  if (error != 0) return error;
  state.domain = *(*domain)->ops;
  state.open_endpoint = state.domain.endpoint;
  state.domain.endpoint = open_endpoint;
  (*domain)->ops = &state.domain;
  state.memory = *(*domain)->mr;
  state.register_memory = state.memory.reg;
  state.memory.regattr = register_memory;
  (*domain)->mr = &state.memory;
  return 0;
}

int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  const int error = state.real.fabric(attributes, fabric, context);
  if (error != 0) return error;
  // libfabric hands the same one out again while it is open.
  if ((*fabric)->ops == &state.fabric) return 0;
  state.fabric = *(*fabric)->ops;
  state.open_domain = state.fabric.domain;
  state.fabric.domain = open_domain;
  (*fabric)->ops = &state.fabric;
  return 0;
}

}  // namespace

Result<Library> library(const Grants& grants) {
  const Result<const Library*> real = Library::load();
  if (!real.ok()) return real.status();
  state.real = **real;
  state.grants = grants;
  state.registrations.clear();
  Library played = state.real;
  played.getinfo = get_info;
  played.fabric = open_fabric;
  return played;
}

const std::vector<Registration>& registrations() noexcept {
  return state.registrations;
}

}  // namespace sluice::transport::gpu_provider
