// Transfers: a list of descriptors is one prepared request, which is posted any number of times.

#include "engine.h"

#include <chrono>
#include <thread>

#include "log.h"

namespace polyrail_nixl {

namespace {

// How long a release waits for the end of a cancelled transfer. A healthy peer needs far less.
constexpr uint64_t RELEASE_PATIENCE_NS = 20'000'000;

// An agent that ends takes its memory away first, and its good-bye comes a moment later.
constexpr auto PARTING_PATIENCE = std::chrono::milliseconds(50);

// Agents look in a loop. On few CPUs they would take one from the threads that move the data, so after as many looks
// at a transfer each further one lets others run.
constexpr uint32_t LOOKS_ALONE = 16;

const char *name_of(nixl_xfer_op_t operation) { return operation == NIXL_WRITE ? "write to" : "read from"; }

} // namespace

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                               const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                               const nixl_opt_b_args_t *) const {
    auto request = std::make_unique<Request>();
    request->operation = operation;
    nixl_status_t status = find(agent, request->peer);
    if (status == NIXL_SUCCESS) {
        status = prepare(local, remote, *request);
    }
    if (status == NIXL_SUCCESS) {
        handle = request.release();
    }
    return status;
}

nixl_status_t Engine::prepare(const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, Request &request) const {
    const std::string what = std::string("can't prepare to ") + name_of(request.operation) + " agent '" +
                             request.peer->agent + "'";
    if (local.descCount() != remote.descCount()) {
        return refused(NIXL_ERR_INVALID_PARAM, what + ": " + std::to_string(local.descCount()) + " descriptors here and " +
                                                   std::to_string(remote.descCount()) + " there, allowed are as many");
    }
    std::vector<polyrail_segment> segments(static_cast<size_t>(local.descCount()));
    const nixlBackendMD *latest = nullptr;
    for (size_t index = 0; index < segments.size(); index++) {
        const nixlMetaDesc &here = local[index];
        const nixlMetaDesc &there = remote[index];
        if (here.len != there.len || here.metadataP == nullptr || there.metadataP == nullptr) {
            return refused(NIXL_ERR_INVALID_PARAM, what + ": descriptor " + std::to_string(index) + " has " +
                                                       std::to_string(here.len) + " bytes here and " +
                                                       std::to_string(there.len) + " there, allowed are as many");
        }
        const auto &memory = static_cast<const Memory &>(*here.metadataP);
        auto &target = static_cast<Target &>(*there.metadataP);
        if (target.own != nullptr && there.metadataP != latest) {
            const nixl_status_t status = resolve(target);
            if (status != NIXL_SUCCESS) {
                return status;
            }
        }
        latest = there.metadataP;
        // Polyrail checks that offset and length are inside; what lies before the base becomes a huge offset.
        segments[index] = {memory.region.get(), here.addr - memory.base, target.remote.get(), there.addr - target.base,
                           here.len};
    }
    polyrail_request wanted = polyrail_request_init();
    wanted.operation = request.operation == NIXL_WRITE ? POLYRAIL_WRITE : POLYRAIL_READ;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        wanted.peer = request.peer->handle.get();
    }
    wanted.segments = segments.data();
    wanted.segment_count = segments.size();
    const int status = polyrail_prepare(engine_.get(), &wanted, request.prepared.out());
    if (status != POLYRAIL_OK) {
        return failed(what, status);
    }
    polyrail_prepared_info info = polyrail_prepared_info_init();
    if (polyrail_prepared_describe(request.prepared.get(), &info) == POLYRAIL_OK) {
        request.bytes = info.bytes;
    }
    polyrail_bytes path = {};
    if (logs(Level::Debug) && polyrail_prepared_path(request.prepared.get(), &path) == POLYRAIL_OK) {
        log(Level::Debug, std::to_string(segments.size()) + " descriptors (" + std::to_string(info.segments) +
                              " after merging, " + std::to_string(info.bytes) + " bytes) " + name_of(request.operation) +
                              " agent '" + request.peer->agent + "' go by " + reinterpret_cast<const char *>(path.data));
        polyrail_bytes_free(&path);
    }
    return NIXL_SUCCESS;
}

// Makes own memory a target: it is registered with the second engine as well.
nixl_status_t Engine::resolve(Target &target) const {
    const std::lock_guard<std::mutex> lock(loop_mutex_);
    if (target.remote) {
        return NIXL_SUCCESS;
    }
    polyrail_memory wanted = polyrail_memory_init();
    wanted.base = reinterpret_cast<void *>(target.own->base);
    wanted.length = target.own->length;
    wanted.kind = target.own->kind == VRAM_SEG ? POLYRAIL_CUDA : POLYRAIL_HOST;
    wanted.access = POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE;
    int status = polyrail_region_register(loop_.get(), &wanted, target.at_loop.out());
    polyrail_bytes key = {};
    if (status == POLYRAIL_OK) {
        status = polyrail_region_key(target.at_loop.get(), &key);
    }
    if (status == POLYRAIL_OK) {
        status = polyrail_remote_import(engine_.get(), key.data, key.length, target.remote.out());
        polyrail_bytes_free(&key);
    }
    return status == POLYRAIL_OK ? NIXL_SUCCESS : failed("can't use memory of this agent as a target", status);
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                               const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                               const nixl_opt_b_args_t *args) const {
    if (handle == nullptr) {
        return refused(NIXL_ERR_INVALID_PARAM, "can't post a transfer with agent '" + agent + "' that was not prepared");
    }
    auto &request = static_cast<Request &>(*handle);
    if (request.state != Request::State::Ready && look(request) == NIXL_IN_PROG) {
        return refused(NIXL_ERR_REPOST_ACTIVE, "can't post a transfer with agent '" + agent + "' again before it is over");
    }
    request.operation = operation;
    request.notifies = args != nullptr && args->hasNotif;
    request.notification = request.notifies ? stamped(args->notifMsg) : std::string();
    request.transfer.reset();
    request.looks = 0;
    int status = post(request);
    if (status == POLYRAIL_ERR_PEER_LOST) {
        // It has left us since the request was prepared, and may be there for those who connect anew.
        const nixl_status_t found = find(agent, request.peer);
        const nixl_status_t prepared = found == NIXL_SUCCESS ? prepare(local, remote, request) : found;
        if (prepared != NIXL_SUCCESS) {
            return prepared;
        }
        status = post(request);
    }
    if (status < 0) {
        return end(request, status, "can't post");
    }
    return look(request);
}

int Engine::post(Request &request) const {
    const bool with_data = request.notifies && request.operation == NIXL_WRITE;
    polyrail_transfer **out = request.transfer.out();
    const int status = with_data ? polyrail_post_with(request.prepared.get(), request.notification.data(),
                                                      request.notification.size(), out)
                                 : polyrail_post(request.prepared.get(), out);
    if (status == POLYRAIL_OK) {
        request.state = Request::State::Moving;
    } else if (status == POLYRAIL_BUSY) {
        request.state = Request::State::Waiting;
    }
    return status;
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const {
    if (handle == nullptr) {
        return refused(NIXL_ERR_INVALID_PARAM, "can't check a transfer that is none");
    }
    return look(static_cast<Request &>(*handle));
}

// How a request stands; makes no system call while its transfer is under way, unless there are few CPUs.
nixl_status_t Engine::look(Request &request) const {
    if (request.state == Request::State::Waiting) {
        const int status = post(request);
        if (status < 0) {
            return end(request, status, "can't post");
        }
    }
    if (request.state == Request::State::Moving || request.state == Request::State::Notifying) {
        polyrail_outcome outcome = polyrail_outcome_init();
        const int status = polyrail_transfer_poll(request.transfer.get(), &outcome);
        if (status == POLYRAIL_PENDING) {
            if (few_cpus_ && ++request.looks > LOOKS_ALONE) {
                std::this_thread::yield();
            }
            return NIXL_IN_PROG;
        }
        if (status == POLYRAIL_ERR_REFUSED && request.state == Request::State::Moving) {
            request.state = Request::State::Refused;
            request.refused_at = std::chrono::steady_clock::now();
            return look(request);
        }
        if (status != POLYRAIL_OK) {
            return end(request, status, "a transfer failed");
        }
        const bool tells = request.state == Request::State::Moving && request.notifies && request.operation == NIXL_READ;
        if (request.state == Request::State::Moving) {
            request.peer->cost.measured(outcome.bytes, outcome.duration_ns);
        }
        if (!tells) {
            return end(request, status, "");
        }
        request.state = Request::State::Telling;
    }
    if (request.state == Request::State::Telling) {
        return tell(request);
    }
    if (request.state == Request::State::Refused) {
        polyrail_peer_info info = polyrail_peer_info_init();
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            polyrail_peer_describe(request.peer->handle.get(), &info);
        }
        if (info.is_gone != 0 || std::chrono::steady_clock::now() - request.refused_at > PARTING_PATIENCE) {
            // Once more, for the text of the error.
            const int status = polyrail_transfer_poll(request.transfer.get(), nullptr);
            const nixl_status_t ended = end(request, status, "a transfer failed");
            return request.result = info.is_gone != 0 ? NIXL_ERR_REMOTE_DISCONNECT : ended;
        }
    }
    return request.state == Request::State::Ready ? request.result : NIXL_IN_PROG;
}

// A read is complete: its notification goes to the side that was read from.
nixl_status_t Engine::tell(Request &request) const {
    polyrail_peer *handle = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        handle = request.peer->handle.get();
    }
    const int status = polyrail_notify(engine_.get(), handle, request.notification.data(), request.notification.size(),
                                       request.transfer.out());
    if (status < 0) {
        return end(request, status, "a read is complete, and its notification failed");
    }
    if (status == POLYRAIL_OK) {
        request.state = Request::State::Notifying;
    }
    return NIXL_IN_PROG;
}

nixl_status_t Engine::end(Request &request, int status, const char *what) const {
    request.state = Request::State::Ready;
    request.result = status == POLYRAIL_OK
                         ? NIXL_SUCCESS
                         : failed(std::string(what) + " (" + std::to_string(request.bytes) + " bytes, " +
                                      name_of(request.operation) + " agent '" + request.peer->agent + "')",
                                  status);
    return request.result;
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const {
    std::unique_ptr<Request> request(static_cast<Request *>(handle));
    if (!request || !request->transfer || polyrail_transfer_poll(request->transfer.get(), nullptr) != POLYRAIL_PENDING) {
        bury(nullptr);
        return NIXL_SUCCESS;
    }
    // After a release the agent may use the memory for something else, so the transfer has to be over.
    polyrail_transfer_cancel(request->transfer.get());
    if (polyrail_transfer_wait(request->transfer.get(), RELEASE_PATIENCE_NS, nullptr) != POLYRAIL_PENDING) {
        return NIXL_SUCCESS;
    }
    const std::string what = "a transfer with agent '" + request->peer->agent + "' was cancelled and is not over yet";
    if (!request->refused_release) {
        request->refused_release = true;
        request.release();
        log(Level::Warn, what + ": release it again later");
        return NIXL_ERR_REPOST_ACTIVE;
    }
    // The agent has no use for a second refusal: it forgets the handle.
    log(Level::Warn, what + ": don't use its memory again before it is deregistered");
    bury(std::move(request));
    return NIXL_SUCCESS;
}

// Keeps requests until their transfers are over, and frees those that are.
void Engine::bury(std::unique_ptr<Request> request) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(released_, [](const std::unique_ptr<Request> &released) {
        return polyrail_transfer_poll(released->transfer.get(), nullptr) != POLYRAIL_PENDING;
    });
    if (request) {
        released_.push_back(std::move(request));
    }
}

nixl_status_t Engine::estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &,
                                       const std::string &agent, nixlBackendReqH *const &,
                                       std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                                       nixl_cost_t &method, const nixl_opt_args_t *) const {
    std::shared_ptr<Peer> peer;
    const nixl_status_t status = find(agent, peer);
    if (status != NIXL_SUCCESS) {
        return status;
    }
    uint64_t bytes = 0;
    for (int index = 0; index < local.descCount(); index++) {
        bytes += local[static_cast<size_t>(index)].len;
    }
    const auto estimate = peer->cost.estimate(bytes);
    if (!estimate) {
        return refused(NIXL_ERR_NOT_FOUND, "no cost is known before a first transfer with agent '" + agent + "' is complete");
    }
    duration = estimate->duration;
    margin = estimate->margin;
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    return NIXL_SUCCESS;
}

} // namespace polyrail_nixl
