// Compares the backend interface of the NIXL that loads this backend with the one it was built for.
#pragma once

#include <string>

namespace polyrail_nixl {

// What differs, or nothing. NIXL has no number that tells: interface 1 has had several orders of virtual functions.
// So this reads the table of virtual functions in a backend that came with NIXL.
#ifdef POLYRAIL_NIXL_HEADERS
// The order is that of its headers, so there is nothing to compare.
inline std::string difference_from_nixl() { return ""; }
#else
std::string difference_from_nixl();
#endif

} // namespace polyrail_nixl
