"""Edits of Horovod's native code: ranks record when they reach each collective, and its parts.

Horovod's timeline is not used: it begins a negotiation when the coordinator is told of it, or when
any rank arrives, and users may start it for themselves at the same time. These spans stay in memory
until they are taken, so there is no file to limit, no thread, and nothing to wait for: a span is
there before the call that waited for it returns.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, added

_EVERY_RANK = "what each rank did in a collective, and when it came to it, is seen nowhere else"

SPANS: tuple[Change, ...] = (
    Addition("spans-header", "horovod/common/spans.h", "spans.h", _EVERY_RANK),
    Addition("spans-recorder", "horovod/common/spans.cc", "spans.cc", _EVERY_RANK),
    added(
        "spans-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/spans.cc"\n',
        "the added file is compiled into every library",
        before='        "${PROJECT_SOURCE_DIR}/horovod/common/timeline.cc"\n',
    ),
    added(
        "spans-entry",
        "horovod/common/common.h",
        """\
  // Who remembers that this process handed the tensor over; none if it did not.
  SpanRecorder* spans = nullptr;
  std::size_t span_place = 0;
  int64_t span_ticket = 0;
""",
        "a tensor's arrival is known until its collective is over",
        after="  int32_t process_set_id = 0;\n",
        before="  // Root rank",
    ),
    added(
        "spans-arrive",
        "horovod/common/tensor_queue.cc",
        "  SpanArrive(e, message);\n",
        "every collective of every framework is handed over here",
        before="  tensor_table_.emplace(e.tensor_name, std::move(e));\n",
    ),
    added(
        "spans-arrive-grouped",
        "horovod/common/tensor_queue.cc",
        "    SpanArrive(entries[i], messages[i]);\n",
        "every grouped collective is handed over here",
        before="    tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n",
    ),
    added(
        "spans-begin",
        "horovod/common/operations.cc",
        "  SpanBegin(entries);\n",
        "here the negotiation is over for all tensors that were fused",
        before="  if (response.response_type() != Response::JOIN &&\n"
        "      response.response_type() != Response::BARRIER) {\n"
        "    for (auto& e : entries) {\n      timeline.Start(",
    ),
    added(
        "spans-activity",
        "horovod/common/timeline.cc",
        "  SpanActivity(activity);\n",
        "the parts of an operation, whether or not a timeline is written",
        after="                                const std::string& activity) {\n",
    ),
    added(
        "spans-activity-end",
        "horovod/common/timeline.cc",
        "  SpanActivityEnd(entries);\n",
        "the parts of an operation, whether or not a timeline is written",
        after="void Timeline::ActivityEndAll(const std::vector<TensorTableEntry>& entries) {\n",
    ),
    added(
        "spans-wait",
        "horovod/common/ops/collective_operations.cc",
        "  if (!waiting_tensors.empty()) {\n    SpanActivity(WAIT_FOR_DATA);\n  }\n",
        "a GPU that still computes what is to be sent is not the network",
        before="  while (!waiting_tensors.empty()) {\n"
        "    for (auto it = waiting_tensors.begin(); it != waiting_tensors.end();) {\n",
    ),
    added(
        "spans-wait-end",
        "horovod/common/ops/collective_operations.cc",
        "  SpanActivityEnd(entries);\n",
        "a GPU that still computes what is to be sent is not the network",
        after="    std::this_thread::sleep_for(std::chrono::nanoseconds(100));\n  }\n",
        before="  for (auto& e : entries) {\n",
    ),
    added(
        "spans-end",
        "horovod/common/common.cc",
        "  SpanEnd(*this);\n",
        "every collective ends here once, also one that fails or is given up",
        after="void TensorTableEntry::FinishWithCallback(const Status& status) {\n",
    ),
    added(
        "spans-include",
        "horovod/common/common.h",
        '#include "spans.h"\n',
        "code that knows a tensor's entry knows its spans",
        after='#include "nvtx_op_range.h"\n',
    ),
)
