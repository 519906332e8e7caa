// SPDX-License-Identifier: MIT
#include "bootstrap/mesh_files.hpp"

#include <cstdint>
#include <utility>

#include "base/byte_stream.hpp"
#include "bootstrap/agreement.hpp"

namespace sluice::bootstrap {

Result<std::vector<FileOffer>> offer_files(Mesh& mesh, ExchangeKind kind,
                                           const Result<base::Descriptor>& mine,
                                           std::string_view words, base::Deadline deadline) {
  const bool has_file = mine.ok() && mine.value().open();
  base::ByteWriter writer;
  writer.put_string(encode_status(mine.status()))
      .put(static_cast<std::uint8_t>(has_file))
      .put_string(words);
  auto messages = mesh.exchange(kind, writer.take(), has_file ? &mine.value() : nullptr, deadline);
  if (!messages.ok()) return messages.status();

  std::vector<FileOffer> offers;
  std::vector<Status> outcomes;
  for (Mesh::Message& message : *messages) {
    base::ByteReader reader(message.blob);
    outcomes.push_back(decode_status(reader.get_string()));
    FileOffer& offer = offers.emplace_back();
    offer.has_file = reader.get<std::uint8_t>() != 0;
    offer.words = reader.get_string();
    offer.file = std::move(message.file);
  }
  // Every rank sees the same offers: here all go on, or none does.
  if (Status status = agreed_status(outcomes); !status.ok()) return status;
  return offers;
}

Status agree(Mesh& mesh, ExchangeKind kind, const Status& mine, base::Deadline deadline) {
  auto messages = mesh.exchange(kind, encode_status(mine), nullptr, deadline);
  if (!messages.ok()) return messages.status();
  std::vector<Status> outcomes;
  for (const Mesh::Message& message : *messages) outcomes.push_back(decode_status(message.blob));
  return agreed_status(outcomes);
}

Result<std::vector<base::Descriptor>> exchange_files_over(Mesh& mesh,
                                                          const Result<base::Descriptor>& mine,
                                                          base::Deadline deadline) {
  auto own = mine.ok() ? base::duplicate(mine.value()) : Result<base::Descriptor>(mine.status());
  auto offers = offer_files(mesh, ExchangeKind::files, own, {}, deadline);
  if (!offers.ok()) return offers.status();

  std::vector<base::Descriptor> files;
  Status arrived;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    FileOffer& offer = (*offers)[static_cast<std::size_t>(peer)];
    files.push_back(std::move(peer == mesh.rank() ? *own : offer.file));
    if (offer.has_file && !files.back().open()) {
      arrived = Status(StatusCode::io_error, "the file of rank " + std::to_string(peer) +
                                                 " did not arrive (too many open files?)");
      break;
    }
  }
  if (!arrived.ok()) {  // Before the others look: a rank may try again.
    files.clear();
    offers->clear();
  }
  if (Status status = agree(mesh, ExchangeKind::files_outcome, arrived, deadline); !status.ok()) {
    return status;
  }
  return files;
}

}  // namespace sluice::bootstrap
