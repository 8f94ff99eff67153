"""Edits of how ranks connect and exchange data: Horovod's use of Gloo, and Gloo itself."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added
from rankroom.horovod_build.edits.greeting_edits import GREETING, TCP

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
_CONTEXT = "horovod/common/gloo/gloo_context.cc"

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
    Edit(
        "stopped-pairs",
        TCP + "pair.h",
        "  std::chrono::milliseconds getTimeout() const {\n    return timeout_;\n  }\n",
        "  // As long as its context waits, which may have learnt patience since they met.\n"
        "  std::chrono::milliseconds getTimeout() const;\n",
        _STOPPED,
    ),
    added(
        "stopped-pairs-ask",
        TCP + "pair.cc",
        """\
std::chrono::milliseconds Pair::getTimeout() const {
  return context_->getTimeout();
}

""",
        _STOPPED,
        before='// Destructor performs a "soft" close.\n',
    ),
    added(
        "stopped-keepalive",
        TCP + "pair.cc",
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
    Edit(
        "stall-ranks",
        "horovod/common/gloo/gloo_controller.cc",
        "  global_ranks_.reserve(size_);\n",
        "  global_ranks_.resize(size_);\n",
        "the ranks' numbers were written beyond the end of an empty list: the stall check, and "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, did nothing",
    ),
    *GREETING,
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
        TCP + "loop.h",
        "  uint64_t ticks_{0};\n",
        _TICK,
        after="  std::condition_variable cv_;\n",
    ),
    Edit(
        "tick-wait",
        TCP + "loop.cc",
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
        TCP + "loop.cc",
        "    {\n      std::lock_guard<std::mutex> guard(m_);\n      ticks_++;\n    }\n",
        _TICK,
        after="    // Wakeup everyone waiting for a loop tick to finish.\n",
        before="    cv_.notify_all();\n",
    ),
    Edit("tick-sleep", TCP + "loop.cc", "events.size(), 10);", "events.size(), -1);", _TICK),
    added(
        "tick-end",
        TCP + "loop.cc",
        "    defer([] {});\n",
        _TICK,
        after="    done_ = true;\n",
    ),
)
