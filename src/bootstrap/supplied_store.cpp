// SPDX-License-Identifier: MIT
#include "bootstrap/supplied_store.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/gather_keys.hpp"
#include "bootstrap/host_identity.hpp"

namespace sluice::bootstrap {
namespace {

using std::chrono::nanoseconds;

// While a rank waits it looks this often whether another is lost. Then seldomer and seldomer: a store that
// takes longer than that to answer, and keeps to the time it is given, would never come to answer.
constexpr nanoseconds kLookAfter = std::chrono::milliseconds(250);
constexpr nanoseconds kLookAfterMax = std::chrono::seconds(2);
// What one look for losses takes at most then.
constexpr nanoseconds kLookLost = std::chrono::milliseconds(500);
// What a rank that gives up, or has seen another end, takes to say so.
constexpr nanoseconds kFarewell = std::chrono::seconds(2);

constexpr const char* kSize = "size";
constexpr const char* kLostJoining = "join/lost";
constexpr const char* kLost = "lost";
constexpr const char* kLeft = "left";

std::string join_key(int rank) {
  return "join/" + std::to_string(rank);
}

// As Store takes it.
nanoseconds timeout_of(base::Deadline deadline) {
  return nanoseconds(deadline.is_never() ? -1 : deadline.remaining_ns());
}

// A caller's code may throw; nothing here does.
template <typename Call>
auto ask(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, std::string("the store threw: ") + error.what());
  } catch (...) {
    return Status(StatusCode::internal, "the store threw what is no std::exception");
  }
}

void log_failure(const char* what, const Status& status) {
  if (!status.ok()) base::log_info("supplied store: {}: {}", what, status.to_string());
}

}  // namespace

SuppliedStore::SuppliedStore(std::shared_ptr<Store> store, std::string prefix, int rank, int size)
    : store_(std::move(store)), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

Status SuppliedStore::enter(base::Deadline deadline) {
  const std::string mine = std::to_string(size_);
  auto swap = claim(kSize, mine, timeout_of(deadline));
  if (!swap.ok()) return swap.status();
  if (!swap->swapped && swap->value != mine) {
    return Status(StatusCode::mismatch,
                  "rank " + std::to_string(rank_) + " joins a world of " + mine +
                      " ranks; in the store another rank has said that it is one of " +
                      swap->value.value_or("?"));
  }
  return {};
}

Result<std::vector<std::string>> SuppliedStore::gather(std::string_view blob,
                                                       base::Deadline deadline) {
  auto swap = claim(join_key(rank_), blob, timeout_of(deadline));
  if (!swap.ok()) return swap.status();
  if (!swap->swapped) {
    return Status(
        StatusCode::failed_precondition,
        "key \"" + prefix_ + join_key(rank_) +
            "\" is in the store already: another process has joined as rank " +
            std::to_string(rank_) +
            ", or the store was used before by a world that not all ranks joined or left");
  }
  joined_here_ = true;
  std::vector<std::string> keys;
  for (int peer = 0; peer < size_; ++peer) keys.push_back(join_key(peer));
  auto blobs = gather_keys(*this, keys, deadline, did_not_join);
  if (!blobs.ok()) return blobs;
  knows_all_ = true;
  return blobs;
}

void SuppliedStore::tidy(base::Deadline deadline) {
  Status status = erase(join_key(rank_), deadline);
  if (rank_ == 0 && status.ok()) status = erase(kSize, deadline);
  log_failure("keys of the join stay behind", status);
}

void SuppliedStore::give_up(const Status& why) {
  const std::string text = "rank " + std::to_string(rank_) + " gave up: " + why.to_string();
  const auto tell = [&](const char* key) {
    log_failure("others are not told that this rank gives up",
                claim(key, text, kFarewell).status());
  };
  if (joined_here_ || knows_all_) tell(kLost);
  if (joined_here_ || !knows_all_) tell(kLostJoining);
}

Result<Store::Swap> SuppliedStore::claim(const std::string& key, std::string_view value,
                                         nanoseconds timeout) {
  return ask([&] { return store_->compare_and_set(prefix_ + key, std::nullopt, value, timeout); });
}

Result<std::string> SuppliedStore::look(const std::string& key, nanoseconds timeout) {
  return ask([&] { return store_->get(prefix_ + key, timeout); });
}

Status SuppliedStore::set(const std::string& key, std::string_view value, base::Deadline deadline) {
  return ask([&] { return store_->set(prefix_ + key, value, timeout_of(deadline)); });
}

Result<std::string> SuppliedStore::get(const std::string& key, base::Deadline deadline) {
  for (nanoseconds after = kLookAfter;; after = std::min(2 * after, kLookAfterMax)) {
    const nanoseconds left(deadline.remaining_ns());
    auto value = look(key, std::min(left, after));
    if (value.status().code() != StatusCode::deadline_exceeded) return value;
    nanoseconds at_most(0);
    if (after == kLookAfterMax) {
      at_most = std::min(kLookLost, nanoseconds(deadline.remaining_ns()));
    }
    if (Status status = look_for_losses(at_most); !status.ok()) return status;
    if (deadline.expired()) return value;
  }
}

Result<std::vector<std::string>> SuppliedStore::get_all(std::span<const std::string> keys,
                                                        base::Deadline deadline) {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    auto value = get(key, deadline);
    if (!value.ok()) return value.status();
    values.push_back(std::move(*value));
  }
  return values;
}

// First what others have seen, so that all ranks name the same.
Status SuppliedStore::look_for_losses(nanoseconds at_most) {
  const char* const key = knows_all_ ? kLost : kLostJoining;
  auto lost = look(key, at_most);
  if (lost.ok()) return Status(StatusCode::unavailable, *lost);
  if (lost.status().code() != StatusCode::deadline_exceeded) return lost.status();
  const std::optional<int> rank = find_lost_ ? find_lost_() : std::nullopt;
  if (!rank.has_value()) return {};
  const std::string what = "rank " + std::to_string(*rank) + " ended without leaving";
  auto told = claim(key, what, kFarewell);
  if (!told.ok()) return told.status();
  return Status(StatusCode::unavailable, told->value.value_or(what));
}

Status SuppliedStore::erase(const std::string& key, base::Deadline deadline) {
  return ask([&] { return store_->erase(prefix_ + key, timeout_of(deadline)); }).status();
}

std::string SuppliedStore::own_host() const {
  return routed_address();
}

StorePlace SuppliedStore::part(const std::string& name, int rank, int size) const {
  auto part = std::make_shared<SuppliedStore>(store_, prefix_ + name + "/", rank, size);
  part->knows_all_ = true;
  return {{}, std::move(part)};
}

void SuppliedStore::watch(std::function<std::optional<int>()> find_lost) {
  find_lost_ = std::move(find_lost);
}

// The last one to leave knows that nobody reads any more.
void SuppliedStore::leave(const std::vector<std::string>& left_behind, base::Deadline deadline) {
  auto left = ask([&] { return store_->add(prefix_ + kLeft, 1, timeout_of(deadline)); });
  Status status = left.status();
  if (left.ok() && *left == size_) {
    std::vector<std::string> keys = left_behind;
    for (int rank = 0; joined_here_ && rank < size_; ++rank) keys.push_back(join_key(rank));
    for (const char* key : {kLostJoining, kLost, kLeft, kSize}) keys.emplace_back(key);
    for (auto key = keys.begin(); key != keys.end() && status.ok(); ++key) {
      status = erase(*key, deadline);
    }
  }
  log_failure("keys of the world stay behind", status);
}

void SuppliedStore::disown() noexcept {
  // Its last owner's destructor may say goodbye over the parent's connection.
  static_cast<void>(new (std::nothrow) std::shared_ptr<Store>(std::move(store_)));
}

}  // namespace sluice::bootstrap
