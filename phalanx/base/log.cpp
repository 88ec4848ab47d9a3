#include "phalanx/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace phalanx {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::optional<LogLevel> level_named(std::string name) {
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  if (name == "debug") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  if (name == "warning") return LogLevel::warning;
  if (name == "error") return LogLevel::error;
  return std::nullopt;
}

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("phalanx", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%v");
    made.set_level(spdlog::level::info);
    const char* wanted = std::getenv("PHALANX_LOG");
    if (!wanted || !*wanted) return made;
    if (const auto level = level_named(wanted))
      made.set_level(to_spdlog(*level));
    else
      made.warn(
          "warning: PHALANX_LOG is '{}', which is none of debug, info, warning and error; "
          "info is taken",
          wanted);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void log(LogLevel level, const std::string& line) {
  logger().log(to_spdlog(level), level == LogLevel::warning ? "warning: " + line
                                 : level == LogLevel::error ? "error: " + line
                                                            : line);
}

}  // namespace phalanx
