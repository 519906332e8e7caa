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
#include "bootstrap/agreement.hpp"
#include "memory/mapping.hpp"
#include "memory/pages.hpp"

namespace sluice::bootstrap {
namespace {

struct Offer {
  Status status;
  std::size_t bytes = 0;  // Rounded up to pages.
};

std::string encode_offer(const Offer& offer) {
  base::ByteWriter writer;
  writer.put_string(encode_status(offer.status)).put(static_cast<std::uint64_t>(offer.bytes));
  return writer.take();
}

Offer decode_offer(std::string_view blob) {
  base::ByteReader reader(blob);
  Offer offer;
  offer.status = decode_status(reader.get_string());
  offer.bytes = reader.get<std::uint64_t>();
  return offer;
}

Result<memory::Mapping> map_offer(int peer, const Offer& offer, const base::Descriptor& file) {
  const std::string whose =
      "the " + std::to_string(offer.bytes) + " bytes of rank " + std::to_string(peer);
  if (offer.bytes == 0) return memory::Mapping();
  if (!file.open()) {
    return Status(StatusCode::io_error,
                  "cannot map " + whose + ": its descriptor did not arrive (too many open files?)");
  }
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) {
    return base::system_status(errno, "cannot map " + whose);
  }
  // A shorter file would be a SIGBUS at the first touch.
  if (static_cast<std::uint64_t>(facts.st_size) < offer.bytes) {
    return Status(StatusCode::internal, "cannot map " + whose + ": the file that came has " +
                                            std::to_string(facts.st_size));
  }
  auto mapping = memory::Mapping::of_file(file, offer.bytes);
  if (!mapping.ok()) {
    return Status(mapping.status().code(), whose + ": " + mapping.status().message());
  }
  return mapping;
}

// All ranks' statuses, agreed.
Status agree(Mesh& mesh, const Status& mine, base::Deadline deadline) {
  auto messages =
      mesh.exchange(ExchangeKind::share_outcome, encode_status(mine), nullptr, deadline);
  if (!messages.ok()) return messages.status();
  std::vector<Status> outcomes;
  for (const Mesh::Message& message : *messages) outcomes.push_back(decode_status(message.blob));
  return agreed_status(outcomes);
}

}  // namespace

Result<memory::SharedRegion> share_over(Mesh& mesh, std::size_t bytes, bool committed,
                                        base::Deadline deadline) {
  auto file = memory::create_memory_file(bytes, committed);
  Offer mine;
  mine.status = file.status();
  mine.bytes = memory::rounded_to_pages(bytes);
  const bool sends_file = file.ok() && mine.bytes > 0;
  auto messages = mesh.exchange(ExchangeKind::share, encode_offer(mine),
                                sends_file ? &*file : nullptr, deadline);
  if (!messages.ok()) return messages.status();

  std::vector<Offer> offers;
  std::vector<Status> outcomes;
  for (const Mesh::Message& message : *messages) {
    offers.push_back(decode_offer(message.blob));
    outcomes.push_back(offers.back().status);
  }
  // Every rank sees the same offers: here all go on, or none does.
  if (Status status = agreed_status(outcomes); !status.ok()) return status;

  auto mappings = std::make_shared<std::vector<memory::Mapping>>();
  std::vector<memory::SharedRegion::Part> parts;
  Status mapped;
  for (int peer = 0; peer < mesh.size() && mapped.ok(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    auto mapping =
        map_offer(peer, offers[index], peer == mesh.rank() ? *file : (*messages)[index].file);
    mapped = mapping.status();
    if (!mapping.ok()) break;
    parts.push_back({mapping->base(), mapping->bytes()});
    mappings->push_back(std::move(*mapping));
  }
  if (!mapped.ok()) mappings->clear();  // Before the others look: a rank may retry with less.
  if (Status status = agree(mesh, mapped, deadline); !status.ok()) return status;
  return memory::SharedRegion(std::move(parts), [mappings] { mappings->clear(); });
}

}  // namespace sluice::bootstrap
