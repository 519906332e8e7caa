// SPDX-License-Identifier: MIT
#pragma once

namespace sluice::support {

/// Before a process forks ranks: waits until it has no other thread, at most half a minute, in a build with the address
/// sanitizer. A closed communicator's thread may serve others for some seconds; a lock of the sanitizer's allocator that it
/// holds at a fork is held for ever in the child (that of the C library is not).
void wait_until_alone();

}  // namespace sluice::support
