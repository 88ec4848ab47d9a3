// The door of libphalanx_torch.so: what LibTorch throws becomes phalanx::Error, or a plain
// exception without LibTorch's backtrace.
#include <c10/util/Exception.h>

#include <stdexcept>

#include "phalanx/base/error.h"

extern "C" int phalanx_call_command(int (*function)(int, char**), int argc, char** argv) {
  try {
    return function(argc, argv);
  } catch (const c10::OutOfMemoryError& error) {
    phalanx::fail(phalanx::ExitCode::environment, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string sentence = error.what_without_backtrace();
    // LibTorch's CPU allocator throws the general type.
    if (sentence.find("can't allocate memory") != std::string::npos)
      phalanx::fail(phalanx::ExitCode::environment, "out of memory on the host: ", sentence);
    throw std::runtime_error(sentence);
  }
}
