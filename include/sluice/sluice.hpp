// SPDX-License-Identifier: MIT
#pragma once

/// Everything that a user of the library needs. Each header also compiles alone.
#include "sluice/communicator.hpp"
#include "sluice/handle.hpp"
#include "sluice/limits.hpp"
#include "sluice/moe_layer.hpp"
#include "sluice/report.hpp"
#include "sluice/status.hpp"
#include "sluice/store.hpp"
#include "sluice/types.hpp"
#include "sluice/version.hpp"
#include "sluice/world.hpp"
