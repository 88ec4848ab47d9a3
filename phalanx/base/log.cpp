#include "phalanx/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

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

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("phalanx", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%v");
    const char* wanted = std::getenv("PHALANX_LOG");
    made.set_level(wanted ? spdlog::level::from_str(wanted) : spdlog::level::info);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void set_log_prefix(const std::string& prefix) { logger().set_pattern(prefix + "%v"); }

void log(LogLevel level, const std::string& line) {
  logger().log(to_spdlog(level), level == LogLevel::warning ? "warning: " + line
                                 : level == LogLevel::error ? "error: " + line
                                                            : line);
}

}  // namespace phalanx
