// SPDX-License-Identifier: MIT
#pragma once
// Nothing: device code converts to fp8 by instructions, or by src/numeric.
