// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace sluice::base {

/// A thread that takes none of the program's signals: its handlers run where they did without us.
/// Throws std::system_error as std::thread does.
template <typename Body>
std::thread start_background_thread(Body body) {
  class AllSignalsBlocked {
   public:
    AllSignalsBlocked() noexcept {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_{};
  };
  const AllSignalsBlocked blocked;  // A thread starts with the mask of the one that made it.
  return std::thread(std::move(body));
}

}  // namespace sluice::base
