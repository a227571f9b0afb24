// Lines on standard error, as many as NIXL_LOG_LEVEL allows, and NIXL's statuses for Polyrail's.
#pragma once

#include <string>

#include "abi.h"

namespace polyrail_nixl {

enum class Level { Error, Warn, Info, Debug };

bool logs(Level level);
void log(Level level, const std::string &text);

// NIXL's status for one of Polyrail's, without a line.
nixl_status_t status_of(int polyrail_status);

// The same for a call of this thread that has just failed: logs what was done, Polyrail's text and its help.
nixl_status_t failed(const std::string &what, int polyrail_status);

// Logs a refusal of this backend itself.
nixl_status_t refused(nixl_status_t status, const std::string &text);

} // namespace polyrail_nixl
