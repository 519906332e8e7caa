// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

/// Reads a whole file. Returns false, and says why in `error`, when that fails or it is empty.
bool read_text(const std::string& path, std::string& text, std::string& error);

/// Splits text into words and single other characters; the number of each is its hash modulo the
/// vocabulary. No table, no training: what MoE layers need of a tokeniser is that equal words give
/// equal numbers.
std::vector<std::int32_t> tokenise(std::string_view text, int vocabulary);

/// Exactly `count` tokens: the text's own, from the start again when they run out.
std::vector<std::int32_t> repeat_to(const std::vector<std::int32_t>& tokens, std::size_t count);

}  // namespace moe
