"""Edits of how ranks meet and exchange: Horovod's use of Gloo, and Gloo itself."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added

_MESH = "ranks asked the rendezvous store 10 N² times: 64 of them for three quarters of a minute"
_SMALL = (
    "what ranks ask each other in every cycle, and small tensors, went around a ring twice: the "
    "time it takes is that of its 2 (N - 1) steps"
)
_TICK = (
    "Gloo's thread woke a hundred times a second to see whether it is waited for, and what waited "
    "for it, as each connection does, waited for that"
)
_STOPPED = (
    "a rank that is stopped (in a debugger), or does not get a core, for half a minute ended "
    "Horovod on all: it cannot be told from one that is gone by waiting, but by its connection"
)
_GREETING = (
    "a rank took what connected to its port first for the other rank: a client that looks for a "
    "server that is gone, or another user; the two ranks did not meet then"
)
_CONTEXT = "horovod/common/gloo/gloo_context.cc"
_TCP = "third_party/gloo/gloo/transport/tcp/"

GLOO: tuple[Change, ...] = (
    Addition("mesh-header", "horovod/common/gloo/mesh_context.h", "mesh_context.h", _MESH),
    Addition("mesh-code", "horovod/common/gloo/mesh_context.cc", "mesh_context.cc", _MESH),
    Addition("small-header", "horovod/common/gloo/small_allreduce.h", "small_allreduce.h", _SMALL),
    Addition("small-code", "horovod/common/gloo/small_allreduce.cc", "small_allreduce.cc", _SMALL),
    added(
        "gloo-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/gloo/mesh_context.cc"\n'
        '        "${PROJECT_SOURCE_DIR}/horovod/common/gloo/small_allreduce.cc"\n',
        "the added files are compiled into every library",
        after='"${PROJECT_SOURCE_DIR}/horovod/common/gloo/gloo_context.cc"\n',
    ),
    added(
        "mesh-include",
        _CONTEXT,
        '#include "mesh_context.h"\n',
        _MESH,
        after='#include "memory_store.h"\n',
    ),
    Edit(
        "mesh-alone",
        _CONTEXT,
        "  if (server_addr_env != nullptr) {\n    std::string server_addr = server_addr_env;\n"
        "    store.reset",
        "  if (server_addr_env != nullptr && size > 1) {\n"
        "    std::string server_addr = server_addr_env;\n    store.reset",
        "a rank that is alone needs no store",
    ),
    Edit(
        "mesh-connect",
        _CONTEXT,
        """\
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(timeout);
  context->connectFullMesh(*store, dev);
""",
        """\
  auto context = std::make_shared<MeshContext>(rank, size);
  context->setTimeout(timeout);
  context->Connect(*store, dev);
""",
        _MESH,
    ),
    Edit(
        "mesh-local",
        _CONTEXT,
        """\
  local_ctx = Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,
                         rendezvous_addr_env, rendezvous_port,
                         local_rank, local_size, dev, timeout_);
""",
        """\
  // On one node, the connections of all ranks are those of its own as well.
  local_ctx = local_size == size && local_rank == rank
                  ? ctx
                  : Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,
                               rendezvous_addr_env, rendezvous_port,
                               local_rank, local_size, dev, timeout_);
""",
        "ranks of one node connected with each other twice",
    ),
    Edit(
        "mesh-local-set",
        _CONTEXT,
        """\
    local_ctx =
        Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_ + process_set_suffix,
                   rendezvous_addr_env, rendezvous_port, local_rank, local_size,
                   dev, timeout_);
""",
        """\
    local_ctx =
        local_size == size
            ? ctx
            : Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_ + process_set_suffix,
                         rendezvous_addr_env, rendezvous_port, local_rank,
                         local_size, dev, timeout_);
""",
        "ranks of one node connected with each other twice",
    ),
    added(
        "stopped-patience",
        _CONTEXT,
        """\
  if (std::getenv(HOROVOD_GLOO_TIMEOUT_SECONDS) == nullptr) {
    // They have met: from now on a connection that breaks says that a rank is gone.
    context->SetPatience(std::chrono::hours(24 * 365));
  }
""",
        _STOPPED,
        after="  store->Finalize();\n",
        before="  return context;\n",
    ),
    added(
        "stopped-keepalive",
        _TCP + "pair.cc",
        """\
  // A node that is gone says nothing; its rank would be waited for without end.
  for (auto option : {std::array<int, 3>{SOL_SOCKET, SO_KEEPALIVE, 1},
                      std::array<int, 3>{IPPROTO_TCP, TCP_KEEPIDLE, 20},
                      std::array<int, 3>{IPPROTO_TCP, TCP_KEEPINTVL, 5},
                      std::array<int, 3>{IPPROTO_TCP, TCP_KEEPCNT, 6}}) {
    rv = setsockopt(fd_, option[0], option[1], &option[2], sizeof(int));
    GLOO_ENFORCE_NE(rv, -1);
  }

""",
        _STOPPED,
        before="  // Set timeout\n  struct timeval tv = {};\n",
    ),
    added(
        "greeting-text",
        _TCP + "context.h",
        """\
  // What the connecting side of each pair says first; empty if nothing.
  std::string greeting;

""",
        _GREETING,
        after="      size_t size) override;\n\n",
        before=" protected:\n  std::shared_ptr<Device> device_;\n",
    ),
    added(
        "greeting-include",
        _TCP + "context.h",
        "#include <string>\n",
        _GREETING,
        after="#include <mutex>\n",
        before="#include <tuple>\n",
    ),
    added(
        "greeting-declare",
        _TCP + "pair.h",
        """\
  // A connection that was accepted, and has not said yet that it is the peer's.
  struct Arrival final : public Handler {
    Arrival(Pair* pair, int fd) : pair(pair), fd(fd) {}

    void handleEvents(int /* unused */) override {
      pair->handleArrival(*this);
    }

    Pair* const pair;
    int fd;
  };

  // They stay until the pair is gone: the loop may hold an event of one that is closed.
  std::list<Arrival> arrivals_;

  // Sees whether it is the peer; called from the device's thread.
  void handleArrival(Arrival& arrival);

  void closeArrival(Arrival& arrival);

  void closeArrivals();

  // Makes an accepted connection the pair's; the pair mutex is held.
  void adopt(int fd);

""",
        _GREETING,
        before=(
            "  // Finishes connection setup if this side of the pair is on the\n"
            "  // connecting side"
        ),
    ),
    Edit(
        "greeting-listen",
        _TCP + "pair.cc",
        """\
  changeState(LISTENING);
  device_->registerDescriptor(fd_, EPOLLIN, this);
""",
        """\
  // once connect() has been told what the peer will say.
  setSocketBlocking(fd_, false);
  changeState(LISTENING);
  device_->registerDescriptor(fd_, 0, this);
""",
        _GREETING,
    ),
    added(
        "greeting-await",
        _TCP + "pair.cc",
        "    device_->registerDescriptor(fd_, EPOLLIN, this);\n",
        _GREETING,
        after="  if (!is_client_) {\n",
        before="    waitUntilConnected(lock, true);\n",
    ),
    Edit(
        "greeting-accept",
        _TCP + "pair.cc",
        """\
  struct sockaddr_storage addr;
  socklen_t addrlen = sizeof(addr);
  int rv;

  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);

  // Close the listening file descriptor whether we've successfully connected
  // or run into an error and will throw an exception.
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  fd_ = FD_INVALID;

  if (rv == -1) {
    signalException(GLOO_ERROR_MSG("accept: ", strerror(errno)));
    return;
  }

  // Connected, replace file descriptor
  fd_ = rv;

  // Common connection-made code
  handleConnected();
}
""",
        """\
  const int fd = accept(fd_, nullptr, nullptr);
  if (fd == -1) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      signalException(GLOO_ERROR_MSG("accept: ", strerror(errno)));
    }
    return;
  }
  if (context_->greeting.empty()) {
    adopt(fd);
    return;
  }
  setSocketBlocking(fd, false);
  arrivals_.emplace_back(this, fd);
  device_->registerDescriptor(fd, EPOLLIN, &arrivals_.back());
}

void Pair::handleArrival(Arrival& arrival) {
  // As in handleEvents.
  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock || arrival.fd == FD_INVALID) {
    return;
  }
  const auto& greeting = context_->greeting;
  std::vector<char> said(greeting.size());
  const auto count = ::recv(arrival.fd, said.data(), said.size(), MSG_PEEK);
  if (count == -1 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count <= 0 || greeting.compare(0, count, said.data(), count) != 0) {
    closeArrival(arrival);
    return;
  }
  if (static_cast<size_t>(count) < greeting.size()) {
    return;
  }
  // It is all there, so that this does not wait.
  GLOO_ENFORCE_EQ(::recv(arrival.fd, said.data(), said.size(), 0), count);
  device_->unregisterDescriptor(arrival.fd, &arrival);
  const int fd = arrival.fd;
  arrival.fd = FD_INVALID;
  adopt(fd);
}

void Pair::closeArrival(Arrival& arrival) {
  if (arrival.fd != FD_INVALID) {
    device_->unregisterDescriptor(arrival.fd, &arrival);
    ::close(arrival.fd);
    arrival.fd = FD_INVALID;
  }
}

void Pair::closeArrivals() {
  for (auto& arrival : arrivals_) {
    closeArrival(arrival);
  }
}

void Pair::adopt(int fd) {
  closeArrivals();
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  fd_ = fd;
  handleConnected();
}
""",
        _GREETING,
    ),
    added(
        "greeting-say",
        _TCP + "pair.cc",
        """\
  // There is room for it, as nothing was sent before.
  const auto& greeting = context_->greeting;
  const auto sent = ::send(fd_, greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(greeting.size())) {
    signalException(GLOO_ERROR_MSG("send ", peer_.str(), ": ", strerror(errno)));
    return;
  }

""",
        _GREETING,
        after="""\
        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }

""",
    ),
    added(
        "greeting-close",
        _TCP + "pair.cc",
        "        closeArrivals();\n",
        _GREETING,
        after="        // The pair may be in the LISTENING state when it is destructed.\n",
    ),
    added(
        "small-include",
        "horovod/common/gloo/gloo_controller.cc",
        '#include "small_allreduce.h"\n',
        _SMALL,
        after='#include "gloo_context.h"\n',
    ),
    *(
        Edit(
            f"small-{what.lower()}",
            "horovod/common/gloo/gloo_controller.cc",
            f"""\
  gloo::AllreduceOptions opts(gloo_context_.ctx);
  opts.setOutput(bitvector.data(), count);
  void (*func)(void*, const void*, const void*, size_t) = &Bit{what}<long long>;
  opts.setReduceFunction(gloo::AllreduceOptions::Func(func));
  gloo::allreduce(opts);
""",
            f"""\
  void (*func)(void*, const void*, const void*, size_t) = &Bit{what}<long long>;
  SmallAllreduce(gloo_context_.ctx, bitvector.data(), count, sizeof(long long),
                 func);
""",
            _SMALL,
        )
        for what in ("And", "Or")
    ),
    added(
        "small-include-tensors",
        "horovod/common/ops/gloo_operations.cc",
        '#include "../gloo/small_allreduce.h"\n',
        _SMALL,
        after='#include "../global_state.h"\n',
    ),
    Edit(
        "small-function",
        "horovod/common/ops/gloo_operations.cc",
        "    opts.setReduceFunction(gloo::AllreduceOptions::Func(func));\n",
        "    reduce = func;\n",
        _SMALL,
        count=4,
    ),
    added(
        "small-function-declare",
        "horovod/common/ops/gloo_operations.cc",
        "  gloo::AllreduceOptions::Func reduce;\n",
        _SMALL,
        after="  opts.setOutput<T>(static_cast<T*>(buffer_data), (size_t) num_elements);\n",
        before="\n  if (reduce_op == ReduceOp::SUM) {\n",
    ),
    added(
        "small-tensors",
        "horovod/common/ops/gloo_operations.cc",
        """\
  if (num_elements * sizeof(T) <= MOST_SMALL) {
    SmallAllreduce(gloo_context_->ctx, buffer_data, num_elements, sizeof(T),
                   reduce);
    return;
  }
  opts.setReduceFunction(reduce);
""",
        _SMALL,
        before="  gloo::allreduce(opts);\n",
    ),
    added(
        "tick-count",
        _TCP + "loop.h",
        "  uint64_t ticks_{0};\n",
        _TICK,
        after="  std::condition_variable cv_;\n",
    ),
    Edit(
        "tick-wait",
        _TCP + "loop.cc",
        "    std::unique_lock<std::mutex> lock(m_);\n    cv_.wait(lock);\n",
        """\
    std::unique_lock<std::mutex> lock(m_);
    const auto tick = ticks_;
    lock.unlock();
    defer([] {});
    lock.lock();
    cv_.wait(lock, [&] { return ticks_ != tick; });
""",
        _TICK,
    ),
    added(
        "tick-tell",
        _TCP + "loop.cc",
        "    {\n      std::lock_guard<std::mutex> guard(m_);\n      ticks_++;\n    }\n",
        _TICK,
        after="    // Wakeup everyone waiting for a loop tick to finish.\n",
        before="    cv_.notify_all();\n",
    ),
    Edit("tick-sleep", _TCP + "loop.cc", "events.size(), 10);", "events.size(), -1);", _TICK),
    added(
        "tick-end",
        _TCP + "loop.cc",
        "    defer([] {});\n",
        _TICK,
        after="    done_ = true;\n",
    ),
)
