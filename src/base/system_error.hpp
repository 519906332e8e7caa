// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "sluice/status.hpp"

namespace sluice::base {

/// "No space left on device (ENOSPC)" for an errno value; safe to call from any thread.
std::string error_text(int error);

/// A Status for a system call that failed: "<what>: <error_text>". Errors that mean too little
/// memory give out_of_memory, a peer's end gives unavailable, everything else io_error.
Status system_status(int error, const std::string& what);

}  // namespace sluice::base
