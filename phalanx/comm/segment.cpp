#include "phalanx/comm/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "phalanx/base/error.h"

namespace phalanx {

Mapping::Mapping(const Descriptor& descriptor, int64_t bytes) : bytes_(bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  require(data != MAP_FAILED, ExitCode::environment, "cannot map a shared segment of ", bytes,
          " bytes: ", std::strerror(errno), "; raise the limit on address space (ulimit -v)");
  data_ = static_cast<char*>(data);
  madvise(data, bytes, MADV_HUGEPAGE);  // only a wish: most systems keep small pages here
}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

Descriptor make_segment(const std::string& name, int64_t bytes) {
  Descriptor descriptor(memfd_create(name.c_str(), MFD_CLOEXEC));
  require(descriptor.open(), ExitCode::environment, "cannot create a shared segment for ", name,
          ": ", std::strerror(errno), "; raise the limit on open files (ulimit -n)");
  const bool sized = ftruncate(descriptor.get(), bytes) == 0;  // before errno is read below
  require(sized, ExitCode::environment, "cannot make the shared segment ", name, " ", bytes,
          " bytes large: ", std::strerror(errno),
          "; raise the limits on memory and on the size of files (ulimit -f)");
  return descriptor;
}

}  // namespace phalanx
