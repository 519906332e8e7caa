// SPDX-License-Identifier: MIT
#pragma once

/// The rules that checks name when they fail; the numbers are those of the semantics in
/// docs/design.md.
namespace sluice::conformance {

inline constexpr const char* kRoutes = "semantics 1 (routes as used: mask, -1, ids out of range)";
inline constexpr const char* kRowOrder = "semantics 2 (rows by count, never by arrival)";
inline constexpr const char* kCounts = "semantics 2 (true counts, offsets, alignment)";
inline constexpr const char* kRecords = "semantics 2 (records in order source rank, token)";
inline constexpr const char* kPadding = "semantics 2 (padding untouched, or zeroed on request)";
inline constexpr const char* kStrides = "semantics 2 (strides; nothing beside the elements)";
inline constexpr const char* kCapacity = "semantics 3 (capacity and overflow)";
inline constexpr const char* kWeightsHome = "semantics 4 (weights sent home)";
inline constexpr const char* kNumbers = "semantics 5 (the sum, bit for bit)";
inline constexpr const char* kSurviving =
    "semantics 5, 6 (surviving weight: answered, k ascending)";
inline constexpr const char* kCodecs = "semantics 6 (encoded rows and scales, bit for bit)";
inline constexpr const char* kStatistics = "semantics 8 (statistics)";
inline constexpr const char* kRefusal = "errors (refusal: own status, peers complete)";
inline constexpr const char* kReport = "errors (report)";
inline constexpr const char* kLoss = "faults (the unit of loss is the route)";
inline constexpr const char* kHandle = "handles (data, any number, every use an operation)";
inline constexpr const char* kMemory = "memory (given, allocated, registered)";

}  // namespace sluice::conformance
