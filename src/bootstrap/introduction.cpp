// SPDX-License-Identifier: MIT
#include "bootstrap/introduction.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/byte_stream.hpp"
#include "bootstrap/agreement.hpp"

namespace sluice::bootstrap {
namespace {

// "sluice", and in the upper 16 bits the version of what ranks of one world say to each other.
constexpr std::uint64_t kMagic = 0x0105'6563'6975'6c73;
constexpr int kVersionShift = 48;

std::string encode(const Introduction& introduction) {
  base::ByteWriter writer;
  writer.put(kMagic).put_string(encode_status(introduction.status));
  writer.put(introduction.rank).put(introduction.size);
  writer.put_string(introduction.host.node).put_string(introduction.host.process_space);
  writer.put(introduction.host.process);
  writer.put_string(introduction.listener).put_string(introduction.nonce);
  return writer.take();
}

Result<Introduction> decode(std::string_view blob, std::size_t place) {
  base::ByteReader reader(blob);
  Introduction introduction;
  const auto magic = reader.get<std::uint64_t>();
  if (reader.ok() && magic != kMagic && (magic ^ kMagic) << (64 - kVersionShift) == 0) {
    return Status(
        StatusCode::mismatch,
        fmt::format("the rank at place {} of the gather introduces itself by version {:#x}, "
                    "this one by version {:#x}: their builds of the library differ",
                    place, magic >> kVersionShift, kMagic >> kVersionShift));
  }
  introduction.status = decode_status(reader.get_string());
  introduction.rank = reader.get<int>();
  introduction.size = reader.get<int>();
  introduction.host.node = reader.get_string();
  introduction.host.process_space = reader.get_string();
  introduction.host.process = reader.get<std::int32_t>();
  introduction.listener = reader.get_string();
  introduction.nonce = reader.get_string();
  if (magic != kMagic || !reader.ok() || !reader.at_end()) {
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
