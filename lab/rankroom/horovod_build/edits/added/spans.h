// What this process did in each collective: kept in memory, taken by whoever shows it.

#ifndef HOROVOD_SPANS_H
#define HOROVOD_SPANS_H

#include <string>
#include <vector>

namespace horovod {
namespace common {

struct TensorTableEntry;
class Request;

// What one library of Horovod records. A process may have loaded two, for two frameworks: then one
// of them runs the other's operations (they share virtual functions), and a tensor knows its own.
class SpanRecorder;

// This process hands a tensor over.
void SpanArrive(TensorTableEntry& entry, const Request& request);

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
