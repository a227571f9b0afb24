// The backend: an engine of Polyrail behind NIXL's interface.
//
// A transfer of an agent with itself goes to a second engine in this process, which starts when the first such
// transfer is prepared. So it has the same meaning as one with another agent.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "cost.h"
#include "handles.h"

namespace polyrail_nixl {

// A remote agent, as its metadata tells. It is connected when it is first needed.
struct Peer {
    std::string agent;
    std::string metadata;
    PeerHandle handle;
    // Of its engine, once there is a handle.
    polyrail_instance instance{};
    Cost cost;
};

// Memory that the agent registered here.
struct Memory final : nixlBackendMD {
    Memory(nixl_mem_t kind, uintptr_t base, uint64_t length, uint64_t device)
        : nixlBackendMD(true), kind(kind), base(base), length(length), device(device) {}

    const nixl_mem_t kind;
    const uintptr_t base;
    const uint64_t length;
    const uint64_t device;
    RegionHandle region;
};

// Memory as the target of transfers: of a remote agent, or of this one.
struct Target final : nixlBackendMD {
    Target(uintptr_t base, const Memory *own) : nixlBackendMD(false), base(base), own(own) {}

    const uintptr_t base;
    // Set for memory of this agent. Then the rest is filled in when it is first used.
    const Memory *const own;
    RegionHandle at_loop;
    RemoteHandle remote;
};

struct Request;

class Engine final : public nixlBackendEngine {
public:
    // Throws a text if the engine can't start; its reason is logged.
    explicit Engine(const nixlBackendInitParams *params);
    ~Engine() override;

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override { return memory_kinds(); }

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) override;
    nixl_status_t deregisterMem(nixlBackendMD *meta) override;
    nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &text) const override;
    nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &kind, const std::string &agent,
                               nixlBackendMD *&out) override;
    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&out) override;
    nixl_status_t unloadMD(nixlBackendMD *meta) override;
    nixl_status_t queryMem(const nixl_reg_dlist_t &descs, std::vector<nixl_query_resp_t> &resp) const override;

    nixl_status_t getConnInfo(std::string &text) const override;
    nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override;
    nixl_status_t connect(const std::string &agent) override;
    nixl_status_t disconnect(const std::string &agent) override;

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *args) const override;
    nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *args) const override;
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;
    nixl_status_t estimateXferCost(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &agent,
                                   nixlBackendReqH *const &handle, std::chrono::microseconds &duration,
                                   std::chrono::microseconds &margin, nixl_cost_t &method,
                                   const nixl_opt_args_t *args) const override;

    nixl_status_t getNotifs(notif_list_t &list) override;
    nixl_status_t genNotif(const std::string &agent, const std::string &message) const override;

    static nixl_mem_list_t memory_kinds() { return {DRAM_SEG, VRAM_SEG}; }

private:
    // peers.cpp
    nixl_status_t start(const std::string &name, EngineHandle &engine) const;
    nixl_status_t start_loop(Peer &self) const;
    nixl_status_t find(const std::string &agent, std::shared_ptr<Peer> &peer) const;
    nixl_status_t reconnect(Peer &peer) const;
    void take_notifications(polyrail_engine *engine, notif_list_t &list) const;
    bool speaks_for(polyrail_engine *engine, const polyrail_instance &from, const std::string &agent) const;
    bool may_begin_to_speak_for(const polyrail_instance &from, const std::string &agent) const;
    std::string stamped(const std::string &message) const;

    // transfer.cpp
    nixl_status_t prepare(const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, Request &request) const;
    nixl_status_t resolve(Target &target) const;
    int post(Request &request) const;
    nixl_status_t look(Request &request) const;
    nixl_status_t end(Request &request, int status, const char *what) const;
    nixl_status_t tell(Request &request) const;
    void bury(std::unique_ptr<Request> request) const;

    std::vector<std::string> settings_;
    std::string config_file_;
    bool few_cpus_ = false;
    EngineHandle engine_;

    // Guards what is below; no call that waits is made under it. The agent calls functions that are const from
    // several threads.
    mutable std::mutex mutex_;
    mutable std::map<std::string, std::shared_ptr<Peer>> peers_;
    // The engines that have sent notifications for agents whose metadata is not here.
    mutable std::map<std::string, polyrail_instance> speakers_;
    mutable uint64_t refused_notifications_ = 0;
    mutable std::vector<std::unique_ptr<Request>> released_;
    std::map<std::pair<uint64_t, uintptr_t>, const Memory *> memories_;

    // Started by the first transfer with itself.
    mutable std::mutex loop_mutex_;
    mutable EngineHandle loop_;
    mutable std::atomic<bool> has_loop_{false};
};

// What the agent holds for a transfer.
struct Request final : nixlBackendReqH {
    enum class State {
        Ready,     // prepared, or over
        Waiting,   // the ops pool was full: checkXfer posts it
        Moving,    // posted
        Telling,   // a read is complete: checkXfer sends its notification
        Notifying, // that is on its way
        Refused,   // the other side refuses: checkXfer finds out whether it is leaving
    };

    nixl_xfer_op_t operation;
    State state = State::Ready;
    // How the latest post ended.
    nixl_status_t result = NIXL_ERR_NOT_POSTED;
    bool notifies = false;
    // A release was refused, because the transfer was not over yet.
    bool refused_release = false;
    std::string notification;
    std::shared_ptr<Peer> peer;
    // At the latest post, while it was under way.
    uint32_t looks = 0;
    std::chrono::steady_clock::time_point refused_at;
    PreparedHandle prepared;
    TransferHandle transfer;
    uint64_t bytes = 0;
};

} // namespace polyrail_nixl
