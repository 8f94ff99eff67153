// What this process did in each collective: kept in memory, taken by whoever shows it.

#ifndef HOROVOD_SPANS_H
#define HOROVOD_SPANS_H

#include <cstdint>
#include <string>
#include <vector>

namespace horovod {
namespace common {

struct TensorTableEntry;

// Microseconds since the epoch: the moment at which a tensor is handed over.
int64_t SpanNow();

// All ranks have come: this process begins what it does for these tensors.
void SpanBegin(const std::vector<TensorTableEntry>& entries);

// A part of it begins and ends, on one thread.
void SpanActivity(const std::string& activity);
void SpanActivityEnd(const std::vector<TensorTableEntry>& entries);

// This tensor's collective is over, or will never be.
void SpanEnd(const TensorTableEntry& entry);

} // namespace common
} // namespace horovod

#endif // HOROVOD_SPANS_H
