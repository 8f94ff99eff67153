"""Edits of Horovod's native code: every rank knows when it came to each collective, and its parts.

Not by way of Horovod's timeline: that begins a negotiation when the coordinator hears of it, or
when any rank comes; and users may start it for themselves at the same time. These spans stay in
memory until they are taken, so there is no file to bound, no thread, and nothing to wait for: a
span is there before the call that waited for it returns.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit

_EVERY_RANK = "what each rank did in a collective, and when it came to it, is seen nowhere else"

SPANS: tuple[Change, ...] = (
    Addition("spans-header", "horovod/common/spans.h", "spans.h", _EVERY_RANK),
    Addition("spans-recorder", "horovod/common/spans.cc", "spans.cc", _EVERY_RANK),
    Edit(
        "spans-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/timeline.cc"\n',
        '        "${PROJECT_SOURCE_DIR}/horovod/common/spans.cc"\n'
        '        "${PROJECT_SOURCE_DIR}/horovod/common/timeline.cc"\n',
        "the added file is compiled into every library",
    ),
    Edit(
        "spans-entry",
        "horovod/common/common.h",
        "  int32_t process_set_id = 0;\n  // Root rank",
        "  int32_t process_set_id = 0;\n"
        "  // Who remembers that this process handed the tensor over; none if it did not.\n"
        "  SpanRecorder* spans = nullptr;\n"
        "  std::size_t span_place = 0;\n"
        "  int64_t span_ticket = 0;\n"
        "  // Root rank",
        "a tensor's arrival is known until its collective is over",
    ),
    Edit(
        "spans-arrive",
        "horovod/common/tensor_queue.cc",
        "  tensor_table_.emplace(e.tensor_name, std::move(e));\n",
        "  SpanArrive(e, message);\n  tensor_table_.emplace(e.tensor_name, std::move(e));\n",
        "every collective of every framework is handed over here",
    ),
    Edit(
        "spans-arrive-grouped",
        "horovod/common/tensor_queue.cc",
        "    tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n",
        "    SpanArrive(entries[i], messages[i]);\n"
        "    tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n",
        "every grouped collective is handed over here",
    ),
    Edit(
        "spans-begin",
        "horovod/common/operations.cc",
        "  if (response.response_type() != Response::JOIN &&\n"
        "      response.response_type() != Response::BARRIER) {\n"
        "    for (auto& e : entries) {\n"
        "      timeline.Start(",
        "  SpanBegin(entries);\n"
        "  if (response.response_type() != Response::JOIN &&\n"
        "      response.response_type() != Response::BARRIER) {\n"
        "    for (auto& e : entries) {\n"
        "      timeline.Start(",
        "here the negotiation is over for all tensors that were fused",
    ),
    Edit(
        "spans-activity",
        "horovod/common/timeline.cc",
        "                                const std::string& activity) {\n",
        "                                const std::string& activity) {\n"
        "  SpanActivity(activity);\n",
        "the parts of an operation, whether or not a timeline is written",
    ),
    Edit(
        "spans-activity-end",
        "horovod/common/timeline.cc",
        "void Timeline::ActivityEndAll(const std::vector<TensorTableEntry>& entries) {\n",
        "void Timeline::ActivityEndAll(const std::vector<TensorTableEntry>& entries) {\n"
        "  SpanActivityEnd(entries);\n",
        "the parts of an operation, whether or not a timeline is written",
    ),
    Edit(
        "spans-wait",
        "horovod/common/ops/collective_operations.cc",
        "  while (!waiting_tensors.empty()) {\n"
        "    for (auto it = waiting_tensors.begin(); it != waiting_tensors.end();) {\n",
        "  if (!waiting_tensors.empty()) {\n"
        "    SpanActivity(WAIT_FOR_DATA);\n"
        "  }\n"
        "  while (!waiting_tensors.empty()) {\n"
        "    for (auto it = waiting_tensors.begin(); it != waiting_tensors.end();) {\n",
        "a GPU that still computes what is to be sent is not the network",
    ),
    Edit(
        "spans-wait-end",
        "horovod/common/ops/collective_operations.cc",
        "    std::this_thread::sleep_for(std::chrono::nanoseconds(100));\n"
        "  }\n"
        "  for (auto& e : entries) {\n",
        "    std::this_thread::sleep_for(std::chrono::nanoseconds(100));\n"
        "  }\n"
        "  SpanActivityEnd(entries);\n"
        "  for (auto& e : entries) {\n",
        "a GPU that still computes what is to be sent is not the network",
    ),
    Edit(
        "spans-end",
        "horovod/common/common.cc",
        "void TensorTableEntry::FinishWithCallback(const Status& status) {\n",
        "void TensorTableEntry::FinishWithCallback(const Status& status) {\n  SpanEnd(*this);\n",
        "every collective ends here once, also one that fails or is given up",
    ),
    Edit(
        "spans-include",
        "horovod/common/common.h",
        '#include "nvtx_op_range.h"\n',
        '#include "nvtx_op_range.h"\n#include "spans.h"\n',
        "code that knows a tensor's entry knows its spans",
    ),
)
