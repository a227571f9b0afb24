// Polyrail's handles, closed by who owns them.
#pragma once

#include <utility>

#include "polyrail.h"

namespace polyrail_nixl {

template <class T, int (*CLOSE)(T *)> class Owned {
public:
    Owned() = default;
    explicit Owned(T *handle) : handle_(handle) {}
    Owned(Owned &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owned &operator=(Owned &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() { reset(); }

    T *get() const { return handle_; }
    explicit operator bool() const { return handle_ != nullptr; }
    // Where a call puts a new handle, in place of the one that is here.
    T **out() {
        reset();
        return &handle_;
    }
    void reset() {
        if (handle_ != nullptr) {
            CLOSE(std::exchange(handle_, nullptr));
        }
    }

private:
    T *handle_ = nullptr;
};

using EngineHandle = Owned<polyrail_engine, polyrail_engine_close>;
using PeerHandle = Owned<polyrail_peer, polyrail_peer_free>;
using RegionHandle = Owned<polyrail_region, polyrail_region_close>;
using RemoteHandle = Owned<polyrail_remote, polyrail_remote_free>;
using PreparedHandle = Owned<polyrail_prepared, polyrail_prepared_free>;
using TransferHandle = Owned<polyrail_transfer, polyrail_transfer_free>;

} // namespace polyrail_nixl
