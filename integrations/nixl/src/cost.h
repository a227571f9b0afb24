// What transfers with a peer have taken so far, to estimate others by.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace polyrail_nixl {

class Cost {
public:
    struct Estimate {
        std::chrono::microseconds duration;
        std::chrono::microseconds margin;
    };

    // A transfer of this many bytes has taken so long.
    void measured(uint64_t bytes, uint64_t nanoseconds);

    // None before the first transfer.
    std::optional<Estimate> estimate(uint64_t bytes) const;

private:
    mutable std::mutex mutex_;
    // Means that forget: the latest transfer counts for an eighth.
    double latency_us_ = 0;
    double bytes_per_us_ = 0;
    // How far estimates were off, as a part of what it took.
    double error_ = 0;
    bool any_ = false;

    double expected_us(uint64_t bytes) const;
};

} // namespace polyrail_nixl
