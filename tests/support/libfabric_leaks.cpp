// SPDX-License-Identifier: MIT
// The address sanitizer asks for it: 1.17's `net` leaks a description of itself with every endpoint, also
// where nothing but an endpoint is opened and closed. (Processes that are forked for a test end without
// looking for leaks.)
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libfabric.so";
}
