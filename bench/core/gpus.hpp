// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::bench {

/// One GPU, as this process sees it.
struct Gpu {
  std::string name;
  std::string bus;  ///< PCI address.
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
  int compute_major = 0, compute_minor = 0;
  std::string sharing;  ///< How its memory is shared with other ranks, or why it cannot be.
  /// Another one whose memory it can map.
  struct Reachable {
    int gpu = 0;
    /// How it is connected, as `nvidia-smi topo -m` says (NV18, PIX, SYS, ...); empty: not known.
    std::string way;
  };
  std::vector<Reachable> reachable;
};

/// What the CUDA engine would find.
struct Gpus {
  bool built = false;   ///< Whether this build has the engine.
  std::string problem;  ///< Why there is no GPU.
  std::string driver;
  std::vector<Gpu> list;

  static Gpus here();
};

}  // namespace sluice::bench
