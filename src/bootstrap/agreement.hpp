// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/own_process.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// A Status as a blob that travels, and back. Bytes that are no Status give `internal`.
std::string encode_status(const Status& status);
Status decode_status(std::string_view blob);

/// What all ranks return when each gathered the same outcomes: ok if all are, else the Status of
/// the lowest rank that failed, its message led by "rank r: ".
Status agreed_status(const std::vector<Status>& outcomes);
/// The same of encoded ones.
Status agreed_status(const std::vector<std::string>& blobs);

/// A rank's wish in a split.
struct SplitWish {
  int color = 0;
  int key = 0;
};
std::string encode_split_wish(SplitWish wish);
Result<SplitWish> decode_split_wish(std::string_view blob);
/// Of all ranks.
Result<std::vector<SplitWish>> decode_split_wishes(const std::vector<std::string>& blobs);

/// The old ranks of one color, ordered by (key, rank): the position is the new rank.
std::vector<int> split_members(const std::vector<SplitWish>& wishes, int color);
/// What a rank with a negative color gets.
Status no_group_for(int color);

/// What calls in a forked child get.
Status check_joined(const base::OwnProcess& process, int rank);

/// "rank 3", "ranks 0, 3 and 4".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace sluice::bootstrap
