// SPDX-License-Identifier: MIT
#include "bootstrap/introduction.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/source_hash.hpp"
#include "bootstrap/agreement.hpp"
#include "sluice/version.hpp"

namespace sluice::bootstrap {
namespace {

constexpr std::string_view kLibrary = "sluice ";

#if SLUICE_CUDA_SIMULATED
constexpr std::string_view kGpus = ", with simulated GPUs";  // Their windows differ.
#else
constexpr std::string_view kGpus;
#endif

// Ranks of one world are of one build: what they say to each other from here on needs no versions.
std::string own_build() {
  return fmt::format("{}{}, of sources {}{}", kLibrary, version(), base::source_hash(), kGpus);
}

std::string encode(const Introduction& introduction) {
  base::ByteWriter writer;
  writer.put_string(own_build()).put_string(encode_status(introduction.status));
  writer.put(introduction.rank).put(introduction.size);
  writer.put_string(introduction.host.node).put_string(introduction.host.process_space);
  writer.put(introduction.host.process);
  writer.put_string(introduction.listener).put_string(introduction.nonce);
  return writer.take();
}

Result<Introduction> decode(std::string_view blob, std::size_t place) {
  base::ByteReader reader(blob);
  Introduction introduction;
  const std::string build = reader.get_string();
  if (build.starts_with(kLibrary) && build != own_build()) {
    return Status(StatusCode::mismatch,
                  fmt::format("builds of the library differ: the rank at place {} of the gather "
                              "has {}, this one {}",
                              place, build, own_build()));
  }
  introduction.status = decode_status(reader.get_string());
  introduction.rank = reader.get<int>();
  introduction.size = reader.get<int>();
  introduction.host.node = reader.get_string();
  introduction.host.process_space = reader.get_string();
  introduction.host.process = reader.get<std::int32_t>();
  introduction.listener = reader.get_string();
  introduction.nonce = reader.get_string();
  if (build != own_build() || !reader.ok() || !reader.at_end()) {
    return Status(StatusCode::mismatch,
                  "the blob at place " + std::to_string(place) + " of the gather (" +
                      std::to_string(blob.size()) +
                      " bytes) is no introduction of this version of the library");
  }
  return introduction;
}

Status check(const std::vector<Introduction>& all) {
  std::vector<Status> outcomes;
  for (const Introduction& one : all) outcomes.push_back(one.status);
  if (Status status = agreed_status(outcomes); !status.ok()) return status;
  for (std::size_t place = 0; place < all.size(); ++place) {
    const Introduction& one = all[place];
    if (one.rank != static_cast<int>(place) || one.size != static_cast<int>(all.size())) {
      return Status(StatusCode::mismatch,
                    "place " + std::to_string(place) + " of " + std::to_string(all.size()) +
                        " in the gather came from rank " + std::to_string(one.rank) +
                        " of a world of " + std::to_string(one.size));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Introduction>> introduce(const Introduction& mine, const Gather& gather) {
  auto blobs = gather(encode(mine));
  if (!blobs.ok()) return blobs.status();
  if (blobs->size() != static_cast<std::size_t>(mine.size)) {
    return Status(StatusCode::mismatch, "the gather returned " + std::to_string(blobs->size()) +
                                            " blobs, expected one of each of " +
                                            std::to_string(mine.size) + " ranks");
  }
  std::vector<Introduction> all;
  for (std::size_t place = 0; place < blobs->size(); ++place) {
    auto one = decode((*blobs)[place], place);
    if (!one.ok()) return one.status();
    all.push_back(std::move(*one));
  }
  if (Status status = check(all); !status.ok()) return status;
  return all;
}

}  // namespace sluice::bootstrap
