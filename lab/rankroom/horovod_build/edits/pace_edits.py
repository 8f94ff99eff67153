"""Edits of Horovod's native code: its thread asks the other ranks only when there is a reason.

It used to ask a thousand times a second whether a collective was ready, also while ranks computed
and between two cells. That cost each rank up to a quarter of a core, and a collective that was
ready waited for the next cycle. See added/pace.h.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added

_PACE = "ranks that do nothing leave the cores to others, and a collective begins when it can"
_SETS = (
    "a rank takes part in every cycle, also for process sets that it is not in: while there is "
    "work in any of them, it must not keep others waiting"
)
_WRITER = "the thread that writes a timeline woke a thousand times a second, with none to write"

PACE: tuple[Change, ...] = (
    Addition("pace-header", "horovod/common/pace.h", "pace.h", _PACE),
    Addition("pace-code", "horovod/common/pace.cc", "pace.cc", _PACE),
    added(
        "pace-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/pace.cc"\n',
        "the added file is compiled into every library",
        before='        "${PROJECT_SOURCE_DIR}/horovod/common/tensor_queue.cc"\n',
    ),
    added(
        "pace-include-queue",
        "horovod/common/tensor_queue.cc",
        '#include "pace.h"\n',
        _PACE,
        after='#include "logging.h"\n',
    ),
    added(
        "pace-empty-declare",
        "horovod/common/tensor_queue.h",
        "  // Whether no collective has begun here that has not ended.\n  bool IsEmpty() const;\n",
        _PACE,
        after="  void FinalizeTensorQueue(const Status& status);\n",
    ),
    added(
        "pace-empty",
        "horovod/common/tensor_queue.cc",
        """\
bool TensorQueue::IsEmpty() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return tensor_table_.empty();
}

""",
        _PACE,
        before="// Execute callback for each tensor and clear tensor queue\n",
    ),
    added(
        "pace-handed-over",
        "horovod/common/tensor_queue.cc",
        "  TensorHandedOver();\n",
        _PACE,
        after="  message_queue_.push(std::move(message));\n",
        before="  return Status::OK();\n",
    ),
    added(
        "pace-handed-over-grouped",
        "horovod/common/tensor_queue.cc",
        "  TensorHandedOver();\n",
        _PACE,
        after="    message_queue_.push(std::move(messages[i]));\n  }\n",
        before="  return Status::OK();\n",
    ),
    added(
        "pace-taken",
        "horovod/common/tensor_queue.cc",
        "  TensorsTaken();\n",
        _PACE,
        after="    message_queue_.pop();\n  }\n",
        before="}\n\n// Push a message",
    ),
    added(
        "pace-include-loop",
        "horovod/common/operations.cc",
        '#include "pace.h"\n',
        _PACE,
        after='#include "logging.h"\n',
    ),
    added(
        "pace-state",
        "horovod/common/global_state.h",
        """\

  // Whether no collective has taken place in it.
  bool cycle_did_nothing = true;

  // When this process last had something to do in a process set other than that of all; whether
  // this was lately; and whether it was so for any process.
  std::chrono::steady_clock::time_point last_work_in_sets;
  bool works_in_sets = false;
  bool any_works_in_sets = false;

  // Whether a tensor was handed over here, or anywhere, whose collective is not over; and when this
  // was last so.
  bool is_open = false;
  bool any_is_open = false;
  std::chrono::steady_clock::time_point last_open;
""",
        _PACE,
        after="  std::chrono::steady_clock::time_point last_cycle_start;\n",
    ),
    Edit(
        "pace-last-cycle",
        "horovod/common/operations.cc",
        """\
bool RunLoopOnce(HorovodGlobalState& state) {
  // This delay determines thread frequency and communication message latency
  auto start_time = std::chrono::steady_clock::now();
  auto sleep_duration = state.last_cycle_start +
                        std::chrono::microseconds(long(
                            state.parameter_manager.CycleTimeMs() * 1000.)) -
                        start_time;
  if (sleep_duration > std::chrono::steady_clock::duration::zero()) {
    std::this_thread::sleep_for(sleep_duration);
  }
""",
        """\
Cycle LastCycle(HorovodGlobalState& state) {
  auto now = std::chrono::steady_clock::now();
  auto ids = state.process_set_table.Ids();
  state.is_open = false;
  for (auto id : ids) {
    if (!state.process_set_table.Get(id).tensor_queue.IsEmpty()) {
      state.is_open = true;
      if (id != 0) {
        state.last_work_in_sets = now;
      }
    }
  }
  state.works_in_sets =
      now - state.last_work_in_sets < std::chrono::seconds(1);
  // Without the response cache, no process tells the others.
  bool sets = state.any_works_in_sets ||
              (ids.size() > 1 && state.cache_capacity == 0);

  Cycle last;
  last.began = state.last_cycle_start;
  last.time = std::chrono::microseconds(
      long(state.parameter_manager.CycleTimeMs() * 1000.));
  last.is_open = state.is_open || sets;
  last.did_nothing = state.cycle_did_nothing && !sets;
  last.is_fixed = state.parameter_manager.IsAutoTuning();
  // What needs this process without its having anything to do: that another one shuts down, which
  // lets others go that wait for this one; that it makes a process set, or begins to work in one.
  if (state.is_open || state.any_is_open || !state.cycle_did_nothing) {
    state.last_open = now;
  }
  bool sets_may_begin = ids.size() > 1 || state.dynamic_process_sets;
  bool is_quiet = now - state.last_open > std::chrono::seconds(2);
  auto longest = sets_may_begin ? (is_quiet ? 20 : 10) : (is_quiet ? 400 : 50);
  last.longest = std::chrono::milliseconds(longest);
  return last;
}

bool RunLoopOnce(HorovodGlobalState& state) {
  AwaitCycle(LastCycle(state));
  state.cycle_did_nothing = true;
""",
        _PACE,
    ),
    added(
        "pace-did-something",
        "horovod/common/operations.cc",
        """\
    if (!response_list.responses().empty()) {
      state.cycle_did_nothing = false;
    }

""",
        _PACE,
        before="    if (process_set_id == 0 && state.parameter_manager.IsAutoTuning()) {\n"
        "      bool should_sync =\n",
    ),
    added(
        "pace-shutdown",
        "horovod/common/operations.cc",
        "    WakeUp();\n",
        "shutting down begins at once",
        after="    horovod_global.shut_down = true;\n",
        before="    horovod_global.background_thread.join();\n",
    ),
    added(
        "pace-add-set",
        "horovod/common/operations.cc",
        "  WakeUp();\n",
        "making a process set begins at once",
        after="      return HOROVOD_PROCESS_SET_ERROR_EXISTING_SET;\n    }\n  }\n",
    ),
    added(
        "pace-remove-set",
        "horovod/common/operations.cc",
        "  WakeUp();\n",
        "removing a process set begins at once",
        after="MarkProcessSetForRemoval(process_set_id);\n  }\n",
    ),
    added(
        "pace-writer-include",
        "horovod/common/timeline.h",
        "#include <condition_variable>\n",
        _WRITER,
        after="#include <atomic>\n",
    ),
    added(
        "pace-writer-members",
        "horovod/common/timeline.h",
        "  // What the thread waits for while no timeline is written.\n"
        "  std::condition_variable_any changed_;\n",
        _WRITER,
        after="  std::recursive_mutex writer_mutex_;\n",
    ),
    Edit(
        "pace-writer-sleep",
        "horovod/common/timeline.cc",
        """\
        active_.exchange(0);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
""",
        """\
        active_.exchange(0);
      }
    }
    std::unique_lock<std::recursive_mutex> lock(writer_mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(1));
    if (!active() && record_queue_.empty()) {
      changed_.wait_for(lock, std::chrono::seconds(10),
                        [&] { return pending_status_ || !healthy(); });
    }
""",
        _WRITER,
    ),
    added(
        "pace-writer-begins",
        "horovod/common/timeline.cc",
        "  changed_.notify_all();\n",
        _WRITER,
        after="    pending_status_ = true;\n  }\n",
    ),
    Edit(
        "pace-writer-ends",
        "horovod/common/timeline.cc",
        "  active_.exchange(0);\n  healthy_.exchange(0);\n  try {\n",
        """\
  {
    std::lock_guard<std::recursive_mutex> guard(writer_mutex_);
    active_.exchange(0);
    healthy_.exchange(0);
  }
  changed_.notify_all();
  try {
""",
        _WRITER,
    ),
    Edit(
        "pace-sets-bits",
        "horovod/common/response_cache.h",
        "#define NUM_STATUS_BITS 3",
        "#define NUM_STATUS_BITS 5",
        _SETS,
    ),
    Edit(
        "pace-sets-bit",
        "horovod/common/response_cache.h",
        "    INVALID_IN_QUEUE = 2\n",
        "    INVALID_IN_QUEUE = 2,\n    WORKS_IN_SETS = 3,\n    IS_OPEN = 4\n",
        _SETS,
    ),
    added(
        "pace-sets-declare",
        "horovod/common/response_cache.h",
        """\

  void set_work(bool works_in_sets, bool is_open);

  bool works_in_sets() const;

  bool is_open() const;
""",
        _SETS,
        after="  void set_uncached_in_queue(bool uncached_in_queue);\n",
    ),
    added(
        "pace-sets-member",
        "horovod/common/response_cache.h",
        "  bool works_in_sets_ = false;\n  bool is_open_ = false;\n",
        _SETS,
        after="  bool uncached_in_queue_ = false;\n",
    ),
    added(
        "pace-sets-define",
        "horovod/common/response_cache.cc",
        """\
void CacheCoordinator::set_work(bool works_in_sets, bool is_open) {
  assert(!synced_);
  works_in_sets_ = works_in_sets;
  is_open_ = is_open;
}

bool CacheCoordinator::works_in_sets() const {
  assert(synced_);
  return works_in_sets_;
}

bool CacheCoordinator::is_open() const {
  assert(synced_);
  return is_open_;
}

""",
        _SETS,
        before="const std::set<uint32_t>& CacheCoordinator::cache_hits() const {\n",
    ),
    added(
        "pace-sets-say",
        "horovod/common/response_cache.cc",
        """\
  if (!works_in_sets_) {
    bitvector_[0] |= (1ull << StatusBit::WORKS_IN_SETS);
  }
  if (!is_open_) {
    bitvector_[0] |= (1ull << StatusBit::IS_OPEN);
  }

""",
        _SETS,
        before="  // Before communication, remove any invalid",
    ),
    added(
        "pace-sets-hear",
        "horovod/common/response_cache.cc",
        """\
  if (!cache_hits_.erase(StatusBit::WORKS_IN_SETS - NUM_STATUS_BITS)) {
    works_in_sets_ = true;
  }
  if (!cache_hits_.erase(StatusBit::IS_OPEN - NUM_STATUS_BITS)) {
    is_open_ = true;
  }

""",
        _SETS,
        before="  // If any worker has invalid cache entries, communicate",
    ),
    added(
        "pace-sets-before",
        "horovod/common/controller.cc",
        "  cache_coordinator.set_work(state.works_in_sets, state.is_open);\n",
        _SETS,
        after="  cache_coordinator.set_should_shut_down(should_shut_down);\n",
    ),
    added(
        "pace-sets-after",
        "horovod/common/controller.cc",
        """\
    if (this == state.global_controller.get()) {
      state.any_works_in_sets = cache_coordinator.works_in_sets();
      state.any_is_open = cache_coordinator.is_open();
    }
""",
        _SETS,
        after="    CoordinateCacheAndState(cache_coordinator);\n",
    ),
)
