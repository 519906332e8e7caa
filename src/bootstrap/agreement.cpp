// SPDX-License-Identifier: MIT
#include "bootstrap/agreement.hpp"

#include <algorithm>
#include <cstdint>

#include "base/byte_stream.hpp"

namespace sluice::bootstrap {

std::string encode_status(const Status& status) {
  base::ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(status.code())).put_string(status.message());
  return writer.take();
}

Status decode_status(std::string_view blob) {
  base::ByteReader reader(blob);
  const auto code = reader.get<std::uint8_t>();
  std::string message = reader.get_string();
  if (!reader.ok() || code > static_cast<std::uint8_t>(StatusCode::internal)) {
    return Status(StatusCode::internal,
                  "a peer sent " + std::to_string(blob.size()) + " bytes that are no status");
  }
  return Status(static_cast<StatusCode>(code), std::move(message));
}

Status agreed_status(const std::vector<Status>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Status& outcome = outcomes[rank];
    if (outcome.ok()) continue;
    return Status(outcome.code(), "rank " + std::to_string(rank) + ": " + outcome.message());
  }
  return {};
}

Status agreed_status(const std::vector<std::string>& blobs) {
  std::vector<Status> outcomes;
  for (const std::string& blob : blobs) outcomes.push_back(decode_status(blob));
  return agreed_status(outcomes);
}

std::string encode_split_wish(SplitWish wish) {
  base::ByteWriter writer;
  writer.put(wish.color).put(wish.key);
  return writer.take();
}

Result<SplitWish> decode_split_wish(std::string_view blob) {
  base::ByteReader reader(blob);
  SplitWish wish;
  wish.color = reader.get<int>();
  wish.key = reader.get<int>();
  if (!reader.ok() || !reader.at_end()) {
    return Status(StatusCode::mismatch,
                  "split expects the color and key of every rank, a peer sent " +
                      std::to_string(blob.size()) + " other bytes: it made another call");
  }
  return wish;
}

Result<std::vector<SplitWish>> decode_split_wishes(const std::vector<std::string>& blobs) {
  std::vector<SplitWish> wishes;
  for (const std::string& blob : blobs) {
    auto wish = decode_split_wish(blob);
    if (!wish.ok()) return wish.status();
    wishes.push_back(*wish);
  }
  return wishes;
}

std::vector<int> split_members(const std::vector<SplitWish>& wishes, int color) {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    if (wishes[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int left, int right) {
    return wishes[static_cast<std::size_t>(left)].key < wishes[static_cast<std::size_t>(right)].key;
  });
  return members;
}

Status no_group_for(int color) {
  return Status(StatusCode::failed_precondition,
                "color " + std::to_string(color) +
                    " is negative: this rank took part in the split and belongs to no new world");
}

Status check_joined(const base::OwnProcess& process, int rank) {
  if (!process.forked()) return {};
  return Status(StatusCode::failed_precondition,
                "rank " + std::to_string(rank) + " joined as process " +
                    std::to_string(process.number()) + ", this is its forked child " +
                    std::to_string(::getpid()) + ": a world does not survive fork");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace sluice::bootstrap
