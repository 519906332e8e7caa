// SPDX-License-Identifier: MIT
#include "bootstrap/mesh_share.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_stream.hpp"
#include "base/system_error.hpp"
#include "bootstrap/mesh_files.hpp"
#include "memory/mapping.hpp"
#include "memory/pages.hpp"

namespace sluice::bootstrap {
namespace {

Result<memory::Mapping> map_offer(int peer, std::size_t bytes, const base::Descriptor& file) {
  const std::string whose =
      "the " + std::to_string(bytes) + " bytes of rank " + std::to_string(peer);
  if (bytes == 0) return memory::Mapping();
  if (!file.open()) {
    return Status(StatusCode::io_error,
                  "cannot map " + whose + ": its descriptor did not arrive (too many open files?)");
  }
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) {
    return base::system_status(errno, "cannot map " + whose);
  }
  // A shorter file would be a SIGBUS at the first touch.
  if (static_cast<std::uint64_t>(facts.st_size) < bytes) {
    return Status(StatusCode::internal, "cannot map " + whose + ": the file that came has " +
                                            std::to_string(facts.st_size));
  }
  auto mapping = memory::Mapping::of_file(file, bytes);
  if (!mapping.ok()) {
    return Status(mapping.status().code(), whose + ": " + mapping.status().message());
  }
  return mapping;
}

}  // namespace

Result<memory::SharedRegion> share_over(Mesh& mesh, std::size_t bytes, bool committed,
                                        base::Deadline deadline) {
  auto file = bytes > 0 ? memory::create_memory_file(bytes, committed)
                        : Result<base::Descriptor>(base::Descriptor());
  base::ByteWriter mine;
  mine.put(static_cast<std::uint64_t>(memory::rounded_to_pages(bytes)));
  auto offers = offer_files(mesh, ExchangeKind::share, file, mine.take(), deadline);
  if (!offers.ok()) return offers.status();

  auto mappings = std::make_shared<std::vector<memory::Mapping>>();
  std::vector<memory::SharedRegion::Part> parts;
  Status mapped;
  for (int peer = 0; peer < mesh.size() && mapped.ok(); ++peer) {
    const FileOffer& offer = (*offers)[static_cast<std::size_t>(peer)];
    auto mapping = map_offer(peer, base::ByteReader(offer.words).get<std::uint64_t>(),
                             peer == mesh.rank() ? *file : offer.file);
    mapped = mapping.status();
    if (!mapping.ok()) break;
    parts.push_back({mapping->base(), mapping->bytes()});
    mappings->push_back(std::move(*mapping));
  }
  if (!mapped.ok()) mappings->clear();  // Before the others look: a rank may retry with less.
  if (Status status = agree(mesh, ExchangeKind::share_outcome, mapped, deadline); !status.ok())
    return status;
  return memory::SharedRegion(std::move(parts), [mappings] { mappings->clear(); });
}

}  // namespace sluice::bootstrap
