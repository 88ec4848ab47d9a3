#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/base/nearest.h"
#include "phalanx/cli/command.h"
#include "phalanx/cli/dispatch.h"
#include "phalanx/launch/launch.h"

namespace phalanx::cli {
namespace {

int whole_number(const std::string& option, const std::string& value, int least, int most) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  require(error == std::errc() && stop == end && number >= least && number <= most, ExitCode::usage,
          option, " must be a whole number from ", least, " to ", most, ", not '", value, "'");
  return number;
}

// Where COMMAND begins: after "--", or at the first word that is no option of `run`. What follows
// is not ours to read.
int command_begin(int argc, char** argv) {
  int i = 1;
  while (i < argc && argv[i][0] == '-') {
    if (std::strcmp(argv[i], "--") == 0) return i + 1;
    const bool alone = std::strchr(argv[i], '=') || std::strcmp(argv[i], "-h") == 0 ||
                       std::strcmp(argv[i], "--help") == 0;
    i += alone ? 1 : 2;
  }
  return std::min(i, argc);
}

bool can_run(const std::string& path) {
  std::error_code error;  // X_OK is true of folders, too
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// Whether execvp() would find it, which it can only say in the ranks.
bool is_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return can_run(name);
  const char* path = std::getenv("PATH");
  std::stringstream folders(path ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (can_run(folder.empty() ? name : folder + "/" + name)) return true;
  return false;
}

int become_program(char** argv) {
  execvp(argv[0], argv);
  fail(ExitCode::usage, "cannot run '", argv[0], "': ", std::strerror(errno));
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CommandLine app(
      "Starts ranks on this machine, one process each with torchrun's environment (RANK, "
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and ends them all when "
      "one fails or on Ctrl-C.",
      "phalanx run");
  std::string ranks = "1", port = "0", grace = "30", log_dir, shown_only;
  app.add_option("COMMAND", shown_only, "what each rank runs, with its arguments, after --")
      ->type_name("...");
  app.add_option("--nproc-per-node,--nproc_per_node", ranks, "number of ranks (default 1)")
      ->type_name("N");
  app.add_option("--master-port,--master_port", port,
                 "where the ranks meet (default: a port that is free)")
      ->type_name("PORT");
  app.add_option("--log-dir,--log_dir", log_dir, "write each rank's output to DIR/rank-N.log too")
      ->type_name("DIR");
  app.add_option("--grace", grace,
                 "how long the ranks may take to save after SIGINT or SIGTERM, before they are "
                 "killed (default 30)")
      ->type_name("SECONDS");
  app.footer(
      "COMMAND is one of phalanx's (train, eval, verify ...) or any program; its arguments are "
      "passed on as they are.\n\n"
      "Rank 0's output goes through; lines of the others are shown on stderr behind [rank N]. "
      "OMP_NUM_THREADS is set to the cores divided by the ranks unless it is given. SIGINT, "
      "SIGTERM and SIGHUP ask the ranks to stop, a second one kills them; one that is ignored at "
      "the start (nohup) stays ignored.\n\n"
      "The exit code is 0, or that of the rank that failed first, or 128 + the signal that killed "
      "it; 75 if the ranks stopped after a save.\n\n"
      "example: phalanx run --nproc-per-node 2 -- train config.toml");
  const int begin = command_begin(argc, argv);
  const int options_end = begin > 1 && std::strcmp(argv[begin - 1], "--") == 0 ? begin - 1 : begin;
  if (!app.read(options_end, argv)) return 0;

  LaunchOptions options;
  options.ranks = whole_number("--nproc-per-node", ranks, 1, most_ranks);
  options.master_port = whole_number("--master-port", port, 0, 65535);
  options.grace = std::chrono::seconds(whole_number("--grace", grace, 1, 86400));
  options.log_dir = log_dir;
  require(begin < argc, ExitCode::usage,
          "no command to run; for example: phalanx run --nproc-per-node 2 -- train config.toml");
  const std::string name = argv[begin];
  const Command* own = find_command(name);
  require(name != "run", ExitCode::usage, "run cannot start itself; name the command it is to run");
  require(own || is_program(name), ExitCode::usage, "'", name,
          "' is neither a command of phalanx nor a program that can be run",
          did_you_mean(name, command_names()));
  options.own_command = own != nullptr;
  if (own)
    options.prepare = [=, ranks = options.ranks] {
      return prepare_command(*own, argc - begin, argv + begin, ranks);
    };
  options.body = [=] {
    if (own) return run_command(*own, argc - begin, argv + begin);
    return run_command({"run", "", [](int, char** program) { return become_program(program); }},
                       argc - begin, argv + begin);
  };
  return launch(std::move(options));
}

}  // namespace phalanx::cli
