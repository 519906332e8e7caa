// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "network_result.hpp"

namespace sluice::bench {

/// What a reader must know of the network before the first number.
void print_network_head(const NetworkResult& network, std::FILE* out);
void print_network(const NetworkResult& network, std::FILE* out);
nlohmann::ordered_json network_json(const NetworkResult& network);

}  // namespace sluice::bench
