#include "phalanx/device/failure.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>

namespace phalanx {
namespace {

std::string first_line(const c10::Error& error) {
  return phalanx::first_line(error.what_without_backtrace());
}

}  // namespace

std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

std::string out_of_memory_reason() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return first_line(error);
  } catch (const c10::Error& error) {  // LibTorch's CPU allocator throws the general type
    const std::string sentence = first_line(error);
    return sentence.find("can't allocate memory") == std::string::npos ? "" : sentence;
  } catch (const std::bad_alloc&) {
    return "std::bad_alloc";
  } catch (...) {
    return "";
  }
}

Error current_failure() {
  const std::string reason = out_of_memory_reason();
  if (!reason.empty())
    return Error(ExitCode::environment,
                 text("out of memory on the host: ", reason,
                      "; end other programs, or raise this one's limit (ulimit -v, the cgroup's)"));
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return Error(ExitCode::environment, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Error(ExitCode::environment, error.what());
  }
}

void allocate_named(const std::string& what, const std::function<void()>& make) {
  try {
    make();
  } catch (const Error& error) {  // of a shared segment, for example; it says what to do
    if (error.code() != ExitCode::environment) throw;
    fail(ExitCode::environment, "cannot allocate ", what, ": ", error.what());
  } catch (...) {
    const std::string reason = out_of_memory_reason();
    if (reason.empty()) throw;
    fail(ExitCode::environment, "no memory for ", what, ": ", reason,
         "; lower batch.micro or the model's size, use more ranks, or a strategy that shards more");
  }
}

}  // namespace phalanx
