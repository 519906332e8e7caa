// SPDX-License-Identifier: MIT
#pragma once

/// Everything in the library is hidden unless it carries SLUICE_API.
#if defined(SLUICE_STATIC)
#define SLUICE_API
#else
#define SLUICE_API __attribute__((visibility("default")))
#endif
