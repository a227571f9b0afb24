// Other agents: how they find this one, when they are connected, and notifications of them.

#include "engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <sched.h>

#include "log.h"

namespace polyrail_nixl {

namespace {

constexpr char CONNECTION_MAGIC[] = "PLRC1";
constexpr size_t MAGIC_BYTES = sizeof(CONNECTION_MAGIC) - 1;

// A notification is the length of the sender's name in two bytes, the name, the message: NIXL wants the name of an
// agent whose metadata may never have come here.
constexpr size_t NAME_LENGTH_BYTES = 2;

bool same(const polyrail_instance &one, const polyrail_instance &other) {
    return std::memcmp(one.bytes, other.bytes, sizeof(one.bytes)) == 0;
}

// How long to ask again while the ops pool is full.
constexpr auto NOTIFY_PATIENCE = std::chrono::seconds(1);

// On fewer CPUs who looks at a transfer again and again is in the way of the threads that move its data.
constexpr int ENOUGH_CPUS = 8;

// How long an agent that ends waits for what it has sent.
constexpr uint64_t LEAVE_PATIENCE_NS = 1'000'000'000;

} // namespace

Engine::Engine(const nixlBackendInitParams *params) : nixlBackendEngine(params) {
    if (localAgent.size() > UINT16_MAX) {
        log(Level::Error, "the agent's name has " + std::to_string(localAgent.size()) + " bytes, allowed is 1 to 65535");
        throw std::invalid_argument("the agent's name");
    }
    for (const auto &[name, value] : *params->customParams) {
        // Empty is what get_backend_options() tells for "not given".
        if (value.empty()) {
            continue;
        }
        if (name == "config_file") {
            config_file_ = value;
        } else {
            settings_.push_back(name + "=" + value);
        }
    }
    cpu_set_t cpus;
    few_cpus_ = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < ENOUGH_CPUS;
    if (start(localAgent, engine_) != NIXL_SUCCESS) {
        throw std::runtime_error("the engine");
    }
}

Engine::~Engine() {
    // NIXL has no call for it, but a notification that was sent before the end should arrive.
    if (engine_) {
        polyrail_engine_drain(engine_.get(), LEAVE_PATIENCE_NS);
    }
    // Ends all transfers, so that requests and regions close without a wait.
    loop_.reset();
    engine_.reset();
}

nixl_status_t Engine::start(const std::string &name, EngineHandle &engine) const {
    std::vector<const char *> settings;
    settings.reserve(settings_.size());
    for (const std::string &setting : settings_) {
        settings.push_back(setting.c_str());
    }
    polyrail_engine_options options = polyrail_engine_options_init();
    options.name = name.c_str();
    options.settings = settings.data();
    options.setting_count = settings.size();
    options.config_file = config_file_.empty() ? nullptr : config_file_.c_str();
    const int status = polyrail_engine_open(&options, engine.out());
    if (status != POLYRAIL_OK) {
        return failed("can't start an engine for agent '" + localAgent + "'", status);
    }
    polyrail_bytes rails = {};
    if (logs(Level::Info) && polyrail_engine_rails(engine.get(), &rails) == POLYRAIL_OK) {
        log(Level::Info, "engine of agent '" + localAgent + "' uses " + reinterpret_cast<const char *>(rails.data));
        polyrail_bytes_free(&rails);
    }
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getConnInfo(std::string &text) const {
    polyrail_bytes metadata = {};
    const int status = polyrail_engine_metadata(engine_.get(), &metadata);
    if (status != POLYRAIL_OK) {
        return failed("can't tell how to connect", status);
    }
    text.assign(CONNECTION_MAGIC, MAGIC_BYTES);
    text.append(reinterpret_cast<const char *>(metadata.data), metadata.length);
    polyrail_bytes_free(&metadata);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string &agent, const std::string &info) {
    if (info.compare(0, MAGIC_BYTES, CONNECTION_MAGIC) != 0) {
        return refused(NIXL_ERR_MISMATCH, "can't use the connection info of agent '" + agent +
                                              "': it does not begin with " + CONNECTION_MAGIC +
                                              "; use the same version of Polyrail's backend there");
    }
    auto peer = std::make_shared<Peer>();
    peer->agent = agent;
    peer->metadata = info.substr(MAGIC_BYTES);
    const std::lock_guard<std::mutex> lock(mutex_);
    peers_[agent] = std::move(peer);
    speakers_.erase(agent);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::connect(const std::string &agent) {
    if (agent == localAgent) {
        return NIXL_SUCCESS;
    }
    std::shared_ptr<Peer> peer;
    return find(agent, peer);
}

// Forgets what the agent told. Its connections stay as long as its process: it may have this agent's metadata, and
// go on using that. For the same reason what is on its way there is not ended; the agent releases its requests.
nixl_status_t Engine::disconnect(const std::string &agent) {
    if (agent == localAgent) {
        return NIXL_SUCCESS;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = peers_.find(agent);
    if (known == peers_.end()) {
        return refused(NIXL_ERR_NOT_FOUND, "can't disconnect agent '" + agent + "': it is not known");
    }
    // Nobody else may send notifications in its name while it is there.
    if (known->second->handle) {
        speakers_[agent] = known->second->instance;
    }
    peers_.erase(known);
    return NIXL_SUCCESS;
}

// The agent, connected or being so.
nixl_status_t Engine::find(const std::string &agent, std::shared_ptr<Peer> &peer) const {
    if (agent == localAgent && !has_loop_) {
        auto self = std::make_shared<Peer>();
        self->agent = agent;
        const nixl_status_t status = start_loop(*self);
        if (status != NIXL_SUCCESS) {
            return status;
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        peers_.try_emplace(agent, std::move(self));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = peers_.find(agent);
    if (found == peers_.end()) {
        return refused(NIXL_ERR_NOT_FOUND, "agent '" + agent + "' is not known: load its metadata first");
    }
    peer = found->second;
    if (!peer->handle) {
        return reconnect(*peer);
    }
    polyrail_peer_info info = polyrail_peer_info_init();
    if (polyrail_peer_describe(peer->handle.get(), &info) == POLYRAIL_OK && info.is_gone != 0) {
        return reconnect(*peer);
    }
    return NIXL_SUCCESS;
}

// Begins to connect; whoever calls holds the mutex.
nixl_status_t Engine::reconnect(Peer &peer) const {
    int status = polyrail_engine_add_peer(engine_.get(), peer.metadata.data(), peer.metadata.size(), peer.handle.out());
    polyrail_peer_info info = polyrail_peer_info_init();
    if (status == POLYRAIL_OK) {
        status = polyrail_peer_describe(peer.handle.get(), &info);
    }
    peer.instance = info.instance;
    return status == POLYRAIL_OK ? NIXL_SUCCESS : failed("can't connect to agent '" + peer.agent + "'", status);
}

nixl_status_t Engine::start_loop(Peer &self) const {
    const std::lock_guard<std::mutex> lock(loop_mutex_);
    if (!loop_) {
        const nixl_status_t status = start(localAgent + " (itself)", loop_);
        if (status != NIXL_SUCCESS) {
            return status;
        }
    }
    polyrail_bytes metadata = {};
    const int status = polyrail_engine_metadata(loop_.get(), &metadata);
    if (status != POLYRAIL_OK) {
        return failed("can't connect agent '" + localAgent + "' to itself", status);
    }
    self.metadata.assign(reinterpret_cast<const char *>(metadata.data), metadata.length);
    polyrail_bytes_free(&metadata);
    has_loop_ = true;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getNotifs(notif_list_t &list) {
    take_notifications(engine_.get(), list);
    if (has_loop_) {
        take_notifications(loop_.get(), list);
    }
    return NIXL_SUCCESS;
}

void Engine::take_notifications(polyrail_engine *engine, notif_list_t &list) const {
    // With progress=caller nobody else moves data; otherwise this does nothing.
    polyrail_engine_progress(engine);
    for (;;) {
        polyrail_notification got = polyrail_notification_init();
        const int status = polyrail_engine_next_notification(engine, 0, &got);
        if (status != POLYRAIL_OK) {
            failed("can't take notifications", status);
            return;
        }
        const auto *data = reinterpret_cast<const char *>(got.data.data);
        const size_t name = got.data.length < NAME_LENGTH_BYTES ? SIZE_MAX : got.data.data[0] | got.data.data[1] << 8;
        if (name > got.data.length - NAME_LENGTH_BYTES) {
            log(Level::Warn, "a notification of " + std::to_string(got.data.length) + " bytes has come from no NIXL agent");
        } else {
            std::string agent(data + NAME_LENGTH_BYTES, name);
            const char *message = data + NAME_LENGTH_BYTES + name;
            if (speaks_for(engine, got.from, agent)) {
                list.emplace_back(std::move(agent), std::string(message, data + got.data.length));
            }
        }
        polyrail_bytes_free(&got.data);
    }
}

// Whether a notification in an agent's name comes from that agent's engine. An agent whose metadata is here has the
// engine that the metadata is of, any other one the first that sends for it, until that is gone.
bool Engine::speaks_for(polyrail_engine *engine, const polyrail_instance &from, const std::string &agent) const {
    polyrail_instance own{};
    const bool is_own = agent == localAgent;
    if (is_own) {
        polyrail_engine_instance(engine_.get(), &own);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = peers_.find(agent);
    bool speaks = false;
    if (is_own || engine == loop_.get()) {
        speaks = is_own && engine == loop_.get() && same(own, from);
    } else if (known != peers_.end()) {
        Peer &peer = *known->second;
        speaks = (peer.handle || reconnect(peer) == NIXL_SUCCESS) && same(peer.instance, from);
    } else {
        const auto speaker = speakers_.find(agent);
        speaks = (speaker != speakers_.end() && same(speaker->second, from)) || may_begin_to_speak_for(from, agent);
    }
    // 1, 2, 4, 8 and so on: one that sends many does not fill the log.
    if (!speaks && std::has_single_bit(++refused_notifications_)) {
        log(Level::Warn, "a notification in the name of agent '" + agent + "' has come from another agent's engine and is dropped (" +
                             std::to_string(refused_notifications_) + " so far); an agent that was started again has to hand over new metadata");
    }
    return speaks;
}

// An engine is one agent's; whoever calls holds the mutex.
bool Engine::may_begin_to_speak_for(const polyrail_instance &from, const std::string &agent) const {
    const auto is_here = [this](const polyrail_instance &instance) {
        PeerHandle peer;
        polyrail_peer_info info = polyrail_peer_info_init();
        return polyrail_engine_peer(engine_.get(), &instance, peer.out()) == POLYRAIL_OK &&
               polyrail_peer_describe(peer.get(), &info) == POLYRAIL_OK && info.is_gone == 0;
    };
    std::erase_if(speakers_, [&](const auto &speaker) { return !same(speaker.second, from) && !is_here(speaker.second); });
    const bool has_name =
        std::any_of(speakers_.begin(), speakers_.end(), [&](const auto &speaker) { return same(speaker.second, from); }) ||
        std::any_of(peers_.begin(), peers_.end(),
                    [&](const auto &peer) { return peer.second->handle && same(peer.second->instance, from); });
    return !has_name && speakers_.try_emplace(agent, from).second;
}

std::string Engine::stamped(const std::string &message) const {
    std::string text;
    text.reserve(NAME_LENGTH_BYTES + localAgent.size() + message.size());
    text.push_back(static_cast<char>(localAgent.size() & 0xff));
    text.push_back(static_cast<char>(localAgent.size() >> 8));
    return text.append(localAgent).append(message);
}

nixl_status_t Engine::genNotif(const std::string &agent, const std::string &message) const {
    const std::string text = stamped(message);
    const auto until = std::chrono::steady_clock::now() + NOTIFY_PATIENCE;
    int status = POLYRAIL_OK;
    do {
        std::shared_ptr<Peer> peer;
        const nixl_status_t found = find(agent, peer);
        if (found != NIXL_SUCCESS) {
            return found;
        }
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            status = polyrail_notify(engine_.get(), peer->handle.get(), text.data(), text.size(), nullptr);
        }
        if (status != POLYRAIL_BUSY) {
            break;
        }
        polyrail_engine_progress(engine_.get());
        std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < until);
    if (status == POLYRAIL_BUSY) {
        return refused(NIXL_ERR_BACKEND, "can't notify agent '" + agent + "': the ops pool was full for a second");
    }
    return status == POLYRAIL_OK ? NIXL_SUCCESS : failed("can't notify agent '" + agent + "'", status);
}

} // namespace polyrail_nixl
