#ifndef HOROVOD_GLOO_SMALL_ALLREDUCE_H
#define HOROVOD_GLOO_SMALL_ALLREDUCE_H

#include <memory>

#include "gloo/allreduce.h"
#include "gloo/context.h"

namespace horovod {
namespace common {

// Bytes of a vector that is sent to all in less time than around a ring in parts.
const std::size_t MOST_SMALL = 256 * 1024;

// Replaces `data` by what all ranks' are reduced to, the same on all to the last bit: pairs of ranks
// exchange what they have, log2(size) times. Gloo's ring takes 2 (size - 1) steps.
void SmallAllreduce(const std::shared_ptr<gloo::Context>& context, void* data,
                    std::size_t elements, std::size_t element_size,
                    gloo::AllreduceOptions::Func reduce);

} // namespace common
} // namespace horovod

#endif // HOROVOD_GLOO_SMALL_ALLREDUCE_H
