#include "small_allreduce.h"

#include <cstdint>
#include <vector>

#include "gloo/transport/unbound_buffer.h"
#include "gloo/types.h"

namespace horovod {
namespace common {

void SmallAllreduce(const std::shared_ptr<gloo::Context>& context, void* data,
                    std::size_t elements, std::size_t element_size,
                    gloo::AllreduceOptions::Func reduce) {
  const int rank = context->rank;
  const int size = context->size;
  const std::size_t bytes = elements * element_size;
  if (size == 1 || bytes == 0) {
    return;
  }
  // A tag that no other of Horovod's operations uses, as they all use 0.
  const auto slot = gloo::Slot::build(gloo::kAllreduceSlotPrefix, 1);
  std::vector<uint8_t> got(bytes);
  auto out = context->createUnboundBuffer(data, bytes);
  auto in = context->createUnboundBuffer(got.data(), bytes);

  int paired = 1; // the largest power of two: so many ranks exchange
  while (paired * 2 <= size) {
    paired *= 2;
  }
  // Those beyond it hand theirs to a rank that exchanges, and are handed the result.
  if (rank >= paired) {
    out->send(rank - paired, slot);
    out->waitSend();
    out->recv(rank - paired, slot);
    out->waitRecv();
    return;
  }
  const bool has_another = rank + paired < size;
  if (has_another) {
    in->recv(rank + paired, slot);
    in->waitRecv();
    reduce(data, data, got.data(), elements);
  }
  for (int distance = 1; distance < paired; distance *= 2) {
    const int other = rank ^ distance;
    in->recv(other, slot);
    out->send(other, slot);
    in->waitRecv();
    out->waitSend();
    // In the order of ranks, so that both come to the same.
    if (rank < other) {
      reduce(data, data, got.data(), elements);
    } else {
      reduce(data, got.data(), data, elements);
    }
  }
  if (has_another) {
    out->send(rank + paired, slot);
    out->waitSend();
  }
}

} // namespace common
} // namespace horovod
