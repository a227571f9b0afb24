#include "cost.h"

#include <algorithm>
#include <cmath>

namespace polyrail_nixl {

namespace {

// Below this the time of a transfer says little of the rate, and above little of the latency.
constexpr uint64_t SMALL_BYTES = 64 * 1024;
constexpr double WEIGHT = 1.0 / 8;

void follow(double &mean, double seen) { mean = mean == 0 ? seen : mean + WEIGHT * (seen - mean); }

} // namespace

void Cost::measured(uint64_t bytes, uint64_t nanoseconds) {
    const double took_us = std::max(static_cast<double>(nanoseconds) / 1e3, 0.001);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (any_) {
        follow(error_, std::abs(expected_us(bytes) - took_us) / took_us);
    }
    if (bytes <= SMALL_BYTES) {
        follow(latency_us_, took_us);
    } else {
        const double moving_us = std::max(took_us - latency_us_, took_us / 2);
        follow(bytes_per_us_, static_cast<double>(bytes) / moving_us);
    }
    any_ = true;
}

std::optional<Cost::Estimate> Cost::estimate(uint64_t bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!any_) {
        return std::nullopt;
    }
    const double expected = expected_us(bytes);
    // One transfer tells nothing of how much they differ.
    const double margin = expected * (error_ == 0 ? 1.0 : error_);
    const auto whole = [](double us) { return std::chrono::microseconds(std::llround(std::ceil(us))); };
    return Estimate{whole(expected), whole(margin)};
}

double Cost::expected_us(uint64_t bytes) const {
    const double moving = bytes_per_us_ > 0 ? static_cast<double>(bytes) / bytes_per_us_ : 0;
    return latency_us_ + moving;
}

} // namespace polyrail_nixl
