#ifndef HOROVOD_GLOO_MESH_CONTEXT_H
#define HOROVOD_GLOO_MESH_CONTEXT_H

#include <chrono>
#include <memory>
#include <vector>

#include "gloo/context.h"

#include "gloo_store.h"

namespace horovod {
namespace common {

// Every rank connected with every other one. Gloo's own way asks the store for the addresses of N
// ranks on each of N; here rank 0 reads what each has written, and writes what each has to know.
class MeshContext : public gloo::Context {
public:
  using gloo::Context::Context;

  // Throws gloo::IoException if a rank does not come in time, or a connection cannot be made.
  void Connect(GlooStore& store, std::shared_ptr<gloo::transport::Device>& device);

  // How long a rank waits for another one in an operation that names no time.
  void SetPatience(std::chrono::milliseconds time);

private:
  // The greeting of the mesh, and the other ranks' addresses for this one, in the order of their
  // ranks; its own is left out.
  std::vector<char> Exchange(GlooStore& store, const std::vector<char>& mine,
                             std::size_t length);
};

} // namespace common
} // namespace horovod

#endif // HOROVOD_GLOO_MESH_CONTEXT_H
