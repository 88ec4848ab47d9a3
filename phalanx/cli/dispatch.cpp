#include "phalanx/cli/dispatch.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <new>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"

namespace phalanx::cli {
namespace {

void* torch_library() {
  static void* library = [] {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const std::string path = (folder / "libphalanx_torch.so").string();
    void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) fail(ExitCode::environment, "cannot load LibTorch: ", dlerror());
    return opened;
  }();
  return library;
}

void* torch_symbol(const std::string& name) {
  void* symbol = dlsym(torch_library(), name.c_str());
  require(symbol != nullptr, ExitCode::environment, "libphalanx_torch.so has no '", name,
          "': it is of another build than this program; build both again");
  return symbol;
}

int call(const Command& command, int argc, char** argv) {
  if (command.function) return command.function(argc, argv);
  using Guard = int (*)(CommandFunction, int, char**);
  const auto guard = reinterpret_cast<Guard>(torch_symbol("phalanx_call_command"));
  const auto function = reinterpret_cast<CommandFunction>(
      torch_symbol(std::string("phalanx_command_") + command.name));
  return guard(function, argc, argv);
}

int report(ExitCode code, const std::string& sentence) {
  log_error(sentence);
  return static_cast<int>(code);
}

}  // namespace

const Command* find_command(std::string_view name) {
  for (const auto& command : commands())
    if (name == command.name) return &command;
  return nullptr;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const auto& command : commands()) names.push_back(command.name);
  return names;
}

bool prepare_command(const Command& command, int argc, char** argv, int ranks) {
  const auto asks_for_help = [](std::string_view word) { return word == "--help" || word == "-h"; };
  if (std::any_of(argv + 1, argv + argc, asks_for_help)) {
    call(command, argc, argv);
    return false;
  }
  if (command.function) return true;
  using Check = bool (*)(int, char**, int);
  const std::string name = std::string("phalanx_check_") + command.name;
  const auto check = reinterpret_cast<Check>(dlsym(torch_library(), name.c_str()));
  return !check || check(argc, argv, ranks);
}

int run_command(const Command& command, int argc, char** argv) noexcept {
  try {
    const int code = call(command, argc, argv);
    require(!std::cout.flush().fail(), ExitCode::environment,
            "cannot write the results to stdout: disk full, or the reader has gone");
    return code;
  } catch (const Error& error) {
    std::cout.flush();
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::environment,
                  "out of memory on the host; end other programs, or raise this one's limit "
                  "(ulimit -v, the cgroup's)");
  } catch (const std::exception& error) {  // nothing that was checked has failed
    std::cout.flush();
    return report(ExitCode::environment, error.what());
  }
}

}  // namespace phalanx::cli
