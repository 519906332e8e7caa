// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "bootstrap/mesh.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// What a rank brought.
struct FileOffer {
  std::string words;
  bool has_file = false;
  base::Descriptor file;  // Closed at the own place, and where a file did not arrive.
};

/// Every rank's file (or why it has none: then all ranks get that Status) and words.
Result<std::vector<FileOffer>> offer_files(Mesh& mesh, ExchangeKind kind,
                                           const Result<base::Descriptor>& mine,
                                           std::string_view words, base::Deadline deadline);

/// All ranks' statuses, agreed.
Status agree(Mesh& mesh, ExchangeKind kind, const Status& mine, base::Deadline deadline);

/// Group::exchange_files over a mesh, in two exchanges: files, then whether all arrived.
Result<std::vector<base::Descriptor>> exchange_files_over(Mesh& mesh,
                                                          const Result<base::Descriptor>& mine,
                                                          base::Deadline deadline);

}  // namespace sluice::bootstrap
