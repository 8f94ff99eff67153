"""Edits of Horovod's native code: a rank that waits for others sleeps.

It used to spin, yielding the core and taking Python's lock in each iteration. On a machine with
more ranks than cores, or with other work to do, waiting ranks kept those they waited for from
running.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Edit, added

_SPUN = "a rank that waits for others must leave the core to them"

WAIT = (
    added(
        "wait-include",
        "horovod/torch/handle_manager.h",
        "#include <condition_variable>\n",
        _SPUN,
        after="#include <atomic>\n",
    ),
    added(
        "wait-include-pace",
        "horovod/torch/handle_manager.cc",
        '\n#include "../common/pace.h"\n',
        "as a rank waits, the collective begins",
        after='#include "handle_manager.h"\n',
    ),
    added(
        "wait-declare",
        "horovod/torch/handle_manager.h",
        "  // Sleeps until the handle is done, or cleared.\n  void WaitForHandle(int handle);\n",
        _SPUN,
        after="  bool PollHandle(int handle);\n",
    ),
    added(
        "wait-member",
        "horovod/torch/handle_manager.h",
        "  std::condition_variable changed_;\n",
        _SPUN,
        after="  std::mutex mutex_;\n",
    ),
    added(
        "wait-done",
        "horovod/torch/handle_manager.cc",
        """\
  changed_.notify_all();
}

void HandleManager::WaitForHandle(int handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto is_over = [&] {
    auto found = results_.find(handle);
    return found == results_.end() || found->second != nullptr;
  };
  if (!is_over()) {
    common::WaitBegins();
    changed_.wait(lock, is_over);
    common::WaitEnds();
  }
""",
        _SPUN,
        after="  results_[handle] = std::make_shared<Status>(status);\n",
        before="}\n",
    ),
    added(
        "wait-cleared",
        "horovod/torch/handle_manager.cc",
        "  changed_.notify_all();\n",
        "a thread that waits for a handle learns that it was cleared",
        after="  results_.clear();\n",
    ),
    Edit(
        "wait-asleep",
        "horovod/torch/mpi_ops_v2.cc",
        """\
  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      std::this_thread::yield();
    }
  }
  auto status""",
        """\
  {
    py::gil_scoped_release release_python_gil;
    handle_manager.WaitForHandle(handle);
  }
  auto status""",
        _SPUN,
    ),
    Edit(
        "wait-broadcast",
        "horovod/tensorflow/mpi_ops.cc",
        "      std::this_thread::yield();\n",
        "      std::this_thread::sleep_for(std::chrono::microseconds(200));\n",
        _SPUN,
    ),
)
