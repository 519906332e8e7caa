// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace sluice::base {

/// A thread that takes none of the program's signals: its handlers run where they did without us. But those of its own faults do:
/// where they are blocked the kernel ends the process, and whoever writes stacks then (faulthandler, breakpad) is not asked.
/// `name`: as debuggers and `top -H` show it, 15 characters at most; it stays valid. Throws std::system_error as std::thread does.
template <typename Body>
std::thread start_background_thread(const char* name, Body body) {
  class SignalsBlocked {
   public:
    SignalsBlocked() noexcept {
      sigset_t blocked;
      sigfillset(&blocked);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
        sigdelset(&blocked, fault);
      }
      pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_{};
  };
  const SignalsBlocked blocked;  // A thread starts with the mask of the one that made it.
  return std::thread([name, body = std::move(body)]() mutable {
    static_cast<void>(pthread_setname_np(pthread_self(), name));
    body();
  });
}

}  // namespace sluice::base
