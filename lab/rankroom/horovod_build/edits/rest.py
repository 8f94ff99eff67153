"""Edits of Horovod's native code: its thread rests while there is nothing to do.

It looked for work a thousand times a second, and asked all other ranks each time: between two cells
as much as in one. That cost each rank up to a quarter of a core.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit

_RESTS = "ranks that do nothing must leave the cores to whoever does something"

REST: tuple[Change, ...] = (
    Addition("rest-header", "horovod/common/rest.h", "rest.h", _RESTS),
    Addition("rest-code", "horovod/common/rest.cc", "rest.cc", _RESTS),
    Edit(
        "rest-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/tensor_queue.cc"\n',
        '        "${PROJECT_SOURCE_DIR}/horovod/common/rest.cc"\n'
        '        "${PROJECT_SOURCE_DIR}/horovod/common/tensor_queue.cc"\n',
        "the added file is compiled into every library",
    ),
    Edit(
        "rest-include-queue",
        "horovod/common/tensor_queue.cc",
        '#include "logging.h"\n',
        '#include "logging.h"\n#include "rest.h"\n',
        _RESTS,
    ),
    Edit(
        "rest-empty-declare",
        "horovod/common/tensor_queue.h",
        "  void FinalizeTensorQueue(const Status& status);\n",
        "  void FinalizeTensorQueue(const Status& status);\n"
        "  // Whether no collective has begun here that has not ended.\n"
        "  bool IsEmpty() const;\n",
        _RESTS,
    ),
    Edit(
        "rest-empty",
        "horovod/common/tensor_queue.cc",
        "// Execute callback for each tensor and clear tensor queue\n",
        """\
bool TensorQueue::IsEmpty() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return tensor_table_.empty();
}

// Execute callback for each tensor and clear tensor queue
""",
        _RESTS,
    ),
    Edit(
        "rest-wake",
        "horovod/common/tensor_queue.cc",
        "  message_queue_.push(std::move(message));\n  return Status::OK();\n",
        "  message_queue_.push(std::move(message));\n  WakeUp();\n  return Status::OK();\n",
        _RESTS,
    ),
    Edit(
        "rest-wake-grouped",
        "horovod/common/tensor_queue.cc",
        "    message_queue_.push(std::move(messages[i]));\n  }\n  return Status::OK();\n",
        "    message_queue_.push(std::move(messages[i]));\n  }\n  WakeUp();\n"
        "  return Status::OK();\n",
        _RESTS,
    ),
    Edit(
        "rest-include-loop",
        "horovod/common/operations.cc",
        '#include "logging.h"\n',
        '#include "logging.h"\n#include "rest.h"\n',
        _RESTS,
    ),
    Edit(
        "rest-between",
        "horovod/common/operations.cc",
        "    std::this_thread::sleep_for(sleep_duration);\n  }\n",
        "    std::this_thread::sleep_for(sleep_duration);\n  }\n  Rest();\n",
        _RESTS,
    ),
    Edit(
        "rest-later",
        "horovod/common/operations.cc",
        "    if (process_set_id == 0 && state.parameter_manager.IsAutoTuning()) {\n"
        "      bool should_sync =\n",
        """\
    if (!response_list.responses().empty() ||
        !process_set.tensor_queue.IsEmpty() ||
        state.parameter_manager.IsAutoTuning()) {
      RestLater();
    }

    if (process_set_id == 0 && state.parameter_manager.IsAutoTuning()) {
      bool should_sync =
""",
        "tuning measures cycles, too",
    ),
    Edit(
        "rest-ends",
        "horovod/common/operations.cc",
        "    horovod_global.shut_down = true;\n    horovod_global.background_thread.join();\n",
        "    horovod_global.shut_down = true;\n    WakeUp();\n"
        "    horovod_global.background_thread.join();\n",
        "nobody waits for a rest to end",
    ),
)
